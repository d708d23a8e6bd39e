"""An MCP server on stdio with a chosen defect, as a script of the standard library alone.

    python mcp_odd_server.py DEFECT

It speaks the handshake of 2025-06-18. Every server has the tools of `TOOLS`, which do what their
names say; the defect changes the start, the list or the answers.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
TOOLS: dict[str, dict[str, Any]] = {
    "note": NOTE,
    "count": EMPTY,
    "exit": EMPTY,
    "exit_once": EMPTY,
    "exit_later": EMPTY,
    "hang": EMPTY,
    "slow": EMPTY,
    "huge": EMPTY,
    "child": EMPTY,
    "deep": EMPTY,
    "ask": EMPTY,
    "fail": EMPTY,
    "odd_image": EMPTY,
    "latin": EMPTY,
    "surrogate": EMPTY,
    "nested": EMPTY,
    "flood": EMPTY,
    "spoil": EMPTY,
    "structured": EMPTY,
}
MARKER = Path("exited-once")
SPOILT = Path("spoilt")
"""No server starts where this file is."""
counter = itertools.count(1)
"""Numbers of the calls."""


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


def nest() -> None:
    """Make folders nested 1,500 deep in the working folder."""
    os.chdir(os.environ["HOME"])
    for _ in range(1500):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)


def start_child() -> int:
    """Start a process in its own session, which outlives this one, and return its id."""
    code = "import time; time.sleep(600)"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid


def ask_for_a_model() -> str:
    """Request sampling, and return what the client answered."""
    params = {"messages": [], "maxTokens": 1}
    write({"id": "question", "method": "sampling/createMessage", "params": params})
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "question":
            return "declined" if "error" in message else "answered"


def answer_oddly(name: str, number: int) -> None:
    """Answer with a line that is not valid Unicode, or that is nested too deep."""
    value = {
        "latin": b'"caf\xe9"',
        "surrogate": b'"a\\ud800b"',
        "nested": b"[" * 5000 + b"]" * 5000,
    }[name]
    line = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":%s}]}}\n'
    sys.stdout.buffer.write(line % (number, value))
    sys.stdout.buffer.flush()


def run(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    if name == "odd_image":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if name == "fail":
        return text("the disk is full", is_error=True)
    if name == "structured":
        return {**text("3"), "structuredContent": {"x": "three"}}
    if name == "flood":
        for _ in range(20_000):
            write({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
    if name == "spoil":
        SPOILT.touch()
        os._exit(3)
    if name == "exit" or (name == "exit_once" and not MARKER.exists()):
        MARKER.touch()
        os._exit(3)
    if name == "note":
        with Path("notes.txt").open("a") as file:
            file.write(arguments["text"] + "\n")
    actions: dict[str, Callable[[], object]] = {
        "exit_later": lambda: threading.Timer(0.2, os._exit, [3]).start(),
        "hang": lambda: time.sleep(600),
        "huge": lambda: "x" * (3 << 20),
        "child": start_child,
        "deep": nest,
        "ask": ask_for_a_model,
        "count": lambda: number,
    }
    found = actions[name]() if name in actions else None
    return text("done" if found is None else str(found))


def answer_call(number: int, params: dict[str, Any], number_of_call: int) -> None:
    name = params["name"]
    if name == "slow":
        return  # never answers this call, but others
    if name in ("latin", "surrogate", "nested"):
        answer_oddly(name, number)
    else:
        write({"id": number, "result": run(name, params.get("arguments", {}), number_of_call)})


def listed(defect: str, cursor: str | None) -> dict[str, Any]:
    tools = [
        {"name": name, "description": name, "inputSchema": schema} for name, schema in TOOLS.items()
    ]
    whole = {"type": "object", "properties": {"x": {"type": "integer"}}}
    next(tool for tool in tools if tool["name"] == "structured")["outputSchema"] = whole
    if defect == "many":
        tools = [{"name": f"tool{n}", "inputSchema": EMPTY} for n in range(5000)]
    elif defect == "endless":
        return {"tools": tools[:1], "nextCursor": "again"}
    elif defect == "pages":
        at = int(cursor or 0)
        following = {"nextCursor": str(at + 1)} if at + 1 < len(tools) else {}
        return {"tools": tools[at : at + 1], **following}
    elif defect == "twins":
        tools.append(tools[0])
    elif defect == "broken":
        schema = {"type": "object", "properties": {"x": {"type": "strange"}}}
        tools.append({"name": "broken", "inputSchema": schema})
    elif defect == "malformed":
        tools.append({"name": "broken", "inputSchema": {"type": "object", "required": 3}})
    elif defect == "reference":
        schema = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/x"}}}
        tools.append({"name": "broken", "inputSchema": schema})
    elif defect == "name":
        tools.append({"name": "no spaces / here", "inputSchema": EMPTY})
    return {"tools": tools}


def main() -> None:
    defect = sys.argv[1] if len(sys.argv) > 1 else "none"
    if defect == "dies" or SPOILT.exists():
        sys.exit("the licence has run out")
    if defect == "noisy":
        sys.stdout.write("Listening!\n{}\n[1\n")
        sys.stdout.flush()
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if defect == "silent" or number is None:
            continue
        if method == "initialize":
            if defect == "dies late":
                os._exit(1)
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
            write({"id": number, "result": result})
        elif method == "tools/list":
            write({"id": number, "result": listed(defect, message.get("params", {}).get("cursor"))})
        elif method == "tools/call":
            answer_call(number, message["params"], next(counter))
        else:
            write({"id": number, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
