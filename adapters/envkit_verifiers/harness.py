"""The library's chat loop, played in this process instead of in a program of its own.

The library's `null` harness starts a Python program for every segment of a conversation, which
imports an SDK and takes seconds of CPU. A harness need not be a program: its contract is that its
model calls go through the library's interception server. This one keeps it, so the library's
limits, stop conditions, hooks and trace see every call.
"""

import json
from contextlib import AsyncExitStack
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import aiohttp

from envkit_verifiers.loading import library

HARNESS_ID = "envkit-verifiers"
"""Name under which the library imports the harness."""
_base: Any = library().Harness
_chat: Any = import_module("verifiers.v1.dialects.chat")
_core: Any = import_module("verifiers.v1.harnesses.utils.core")
_mcp: Any = import_module("verifiers.v1.harnesses.utils.mcp")
_bound: Any = import_module("verifiers.v1.harnesses.utils.compaction").bound_tool_message


class ChatHarness(_base):
    """A chat loop with the task's tools, as the library's `null` harness."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,  # noqa: ANN401
        trace: Any,  # noqa: ANN401
        runtime: Any,  # noqa: ANN401
        *place: Any,  # noqa: ANN401
        tool_interception_url: str | None = None,
    ) -> Any:  # noqa: ANN401
        """Play one segment: until a reply calls no tool, or the library refuses a request.

        Args:
            ctx: The library's model of the agent.
            trace: The library's record of the rollout.
            runtime: Unused; the loop is in this process.
            place: The endpoint of the model, its secret, the addresses of tools, and the task.
            tool_interception_url: Where the task's policy decides on calls of tools; None has none.
        """
        del runtime
        endpoint, secret, mcp_urls, data = place
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = []
        if system:
            messages.append({"role": "system", "content": system})
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [_chat.message_to_wire(message) for message in prompt or ()]
        async with AsyncExitStack() as stack:
            tools = _Tools(secret, tool_interception_url)
            await tools.connect(mcp_urls, self.config.tool_timeout, stack)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {secret}"},
                    timeout=aiohttp.ClientTimeout(total=None),  # a policy may take any time
                )
            )
            body: dict[str, Any] = {"model": ctx.model, "messages": messages}
            if tools.schemas:
                body["tools"] = tools.schemas
            while True:
                async with http.post(f"{endpoint}/chat/completions", json=body) as answer:
                    found: Any = json.loads(await answer.read())
                if answer.status != 200:
                    return _result(0 if trace.stop_condition else 1, json.dumps(found))
                said = found["choices"][0]["message"]
                messages.append({key: part for key, part in said.items() if part is not None})
                if not said.get("tool_calls"):
                    return _result(0)
                for call in said["tool_calls"]:
                    messages.append(await tools.answer(call))


class _Tools:
    """The servers of a segment's tools."""

    def __init__(self, secret: str, gate: str | None) -> None:
        self._secret, self._gate = secret, gate
        self._gate_client: Any = None
        self.schemas: list[dict[str, Any]] = []
        self._places: dict[str, Any] = {}
        self._servers: dict[str, Any] = {}

    async def connect(self, urls: dict[str, str], timeout: float, stack: AsyncExitStack) -> None:
        """Open the connections, which close with the stack."""
        if self._gate is not None:
            httpx: Any = import_module("httpx")
            self._gate_client = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
        if urls:
            servers = {name: {"url": url, "timeout": timeout} for name, url in urls.items()}
            self.schemas, self._places, self._servers = await _mcp.connect_mcp(
                {"mcpServers": servers}, stack
            )

    async def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the message that answers a call, or what the task's policy put in its place."""
        name: str = call["function"]["name"]
        if self._gate is not None:
            asked = SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
            decision = await _core.gate_tool_call(
                self._gate_client, self._gate, self._secret, asked
            )
            if decision["action"] == "deny":
                return _bound(decision["message"])
        message = {"role": "tool", "tool_call_id": call["id"], "name": name}
        return _bound({**message, "content": await self._run(name, call["function"]["arguments"])})

    async def _run(self, name: str, written: str) -> Any:  # noqa: ANN401
        if name not in self._places:
            return f"error: unknown tool {name!r}"
        return await _mcp.call_mcp(self._servers, self._places, name, json.loads(written))


def _result(code: int, error: str = "") -> Any:  # noqa: ANN401
    return library().ProgramResult(exit_code=code, stdout="", stderr=error)
