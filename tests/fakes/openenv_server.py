"""A server that speaks OpenEnv's WebSocket protocol, strict, and fails as it is told.

As openenv 0.10.0 does it: a connection is a session, a validation error applies nothing, a full
server says so and hangs up, an observation has its metadata in it, often empty. A message that the
real one would not understand is noted in `complaints`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

from aiohttp import WSMsgType, web
from fakes.search_server import HANG_S, running
from fakes.virtual_time import skip

COUNTER_ACTION: dict[str, Any] = {
    "title": "CountAction",
    "type": "object",
    "description": "Add to the sum.",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object"},
        "number": {"type": "integer", "description": "What to add."},
        "note": {"type": "string", "default": ""},
    },
    "required": ["number"],
}
TOOLS_ACTION: dict[str, Any] = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
}


class Failure(StrEnum):
    """One way for a session to fail, when a message comes."""

    HANG = "no answer"
    DROP = "the connection is cut"
    CLOSE = "the connection is closed"
    PROSE = "text that is not valid JSON"
    BYTES = "bytes"
    LIST = "a JSON list"
    NO_DATA = "an object without data"
    NO_DONE = "an observation without done"
    TEXT_REWARD = "a reward that is a string"
    NAN_REWARD = "a reward that is not a number"
    HUGE = "a message beyond the limit"
    BAD_IMAGE = "a data URI that holds no picture"
    FULL = "an error: the server is full"
    FACTORY = "an error: the environment cannot be made"
    EXECUTION = "an error: the environment raised"
    INVALID = "an error: the action is not valid"


TEXTS = {
    Failure.PROSE: "<html>Bad gateway</html>",
    Failure.LIST: "[1]",
    Failure.NO_DATA: '{"type": "observation"}',
    Failure.NO_DONE: '{"type": "observation", "data": {"observation": {}, "reward": 1.0}}',
    Failure.TEXT_REWARD: (
        '{"type": "observation", "data": {"observation": {}, "reward": "1", "done": false}}'
    ),
    Failure.NAN_REWARD: (
        '{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": false}}'
    ),
    Failure.BAD_IMAGE: json.dumps(
        {
            "type": "observation",
            "data": {
                "observation": {"screen": "data:image/png;base64,aGVsbG8="},
                "reward": None,
                "done": False,
            },
        }
    ),
    Failure.HUGE: json.dumps(
        {"type": "observation", "data": {"observation": {"x": "y" * 400_000}}}
    ),
}
CODES = {
    Failure.FULL: "CAPACITY_REACHED",
    Failure.FACTORY: "FACTORY_ERROR",
    Failure.EXECUTION: "EXECUTION_ERROR",
}


class FakeOpenEnvServer:
    """Counts, or offers tools; each session has a sum of its own."""

    def __init__(
        self,
        *,
        script: Sequence[Failure | None] = (),
        handshakes: Sequence[int] = (),
        schema: Any = None,
        goal: int = 10,
    ) -> None:
        """Make a server.

        Args:
            script: What happens to the first messages, over all sessions; None is success.
            handshakes: Status of the first connections; 0 lets one in.
            schema: Of actions; None is the counter's.
            goal: The sum that ends an episode; reaching it exactly is worth 1.
        """
        self.script, self.handshakes = list(script), list(handshakes)
        self.schema = COUNTER_ACTION if schema is None else schema
        self.goal = goal
        self.opened = self.open = 0
        self.resets: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.complaints: list[str] = []
        self.pictures: list[Any] = []
        """Shown in observations as "screen", one after the other."""
        self.truncates = False
        self.pages: list[str] = []
        """Bodies of a proxy's answers in place of the first schemas."""

    async def serve_schema(self, request: web.Request) -> web.Response:
        """Answer `GET /schema`."""
        if self.pages:
            return web.Response(text=self.pages.pop(0), content_type="text/html")
        return web.json_response({"action": self.schema, "observation": {}, "state": {}})

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Answer a connection to `/ws`."""
        status = self.handshakes.pop(0) if self.handshakes else 0
        if status:
            return web.Response(status=status, text="no")
        socket = web.WebSocketResponse(heartbeat=None)
        await socket.prepare(request)
        self.opened += 1
        self.open += 1
        self.headers.append(request.headers.get("Authorization"))
        session: dict[str, Any] = {"sum": 0, "step_count": 0}
        try:
            async for received in socket:
                if received.type is not WSMsgType.TEXT:
                    continue
                if not await self._answer(socket, request, session, json.loads(received.data)):
                    break
        finally:
            self.open -= 1
        return socket

    async def _answer(
        self,
        socket: web.WebSocketResponse,
        request: web.Request,
        session: dict[str, Any],
        message: dict[str, Any],
    ) -> bool:
        if set(message) - {"type", "data"}:
            self.complaints.append(f"extra fields in {message}")
        kind = message.get("type")
        if kind == "close":
            await socket.close()
            return False
        if kind == "step":
            self.steps.append(message["data"])
        failure = self.script.pop(0) if self.script else None
        if failure is not None:
            return await self._fail(failure, socket, request)
        match kind:
            case "reset":
                self.resets.append(message["data"])
                session.update({"sum": int(message["data"].get("start", 0)), "step_count": 0})
                data = self._observed({"text": f"The sum is {session['sum']}."}, None, False)
            case "step":
                data = self._step(session, message["data"])
            case "state":
                await socket.send_json({"type": "state", "data": session})
                return True
            case _:
                self.complaints.append(f"unknown type {kind!r}")
                data = {}
        if "message" in data:
            await socket.send_json({"type": "error", "data": data})
        else:
            await socket.send_json({"type": "observation", "data": data})
        return True

    def _step(self, session: dict[str, Any], action: dict[str, Any]) -> dict[str, Any]:
        if action.get("type") == "list_tools":
            tool = {
                "name": "add",
                "description": "Add to the sum.",
                "input_schema": {
                    "type": "object",
                    "properties": {"number": {"type": "integer"}},
                    "required": ["number"],
                },
            }
            return self._observed({"tools": [tool]}, None, False)
        is_tool = action.get("type") == "call_tool"
        number = action["arguments"]["number"] if is_tool else action.get("number")
        if not isinstance(number, int):
            self.complaints.append(f"not validated: {action}")
            number = 0
        if number == 13:
            error = {"loc": ["number"], "msg": "13 is not allowed", "type": "value_error"}
            return {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": [error]}
        if is_tool and number < 0:
            error = {"error_type": "execution_error", "message": "no negative numbers"}
            return self._observed({"tool_name": "add", "result": None, "error": error}, 0, False)
        session["sum"] += number
        session["step_count"] += 1
        done = session["sum"] >= self.goal
        reward = 1.0 if session["sum"] == self.goal else 0.0
        text = f"The sum is {session['sum']}."
        if not is_tool:
            return self._observed({"text": text, "gone": None}, reward, done)
        result = {"content": [{"type": "text", "text": text}], "is_error": False, "data": None}
        return self._observed({"tool_name": "add", "result": result, "error": None}, reward, done)

    def _observed(
        self, observation: dict[str, Any], reward: float | None, done: bool
    ) -> dict[str, Any]:
        if self.pictures:
            observation = {**observation, "screen": self.pictures.pop(0)}
        if done and self.truncates:
            observation = {**observation, "truncated": True}
        metadata = {"secret": "not shown"} if done else {}
        return {
            "observation": {**observation, "metadata": metadata},
            "reward": reward,
            "done": done,
            **({"metadata": metadata} if metadata else {}),
        }

    async def _fail(
        self, failure: Failure, socket: web.WebSocketResponse, request: web.Request
    ) -> bool:
        if failure is Failure.HANG:
            skip(HANG_S)
            await asyncio.sleep(3600)
        elif failure is Failure.DROP:
            assert request.transport is not None
            request.transport.abort()
            return False
        elif failure is Failure.BYTES:
            await socket.send_bytes(b"\x00")
        elif failure is Failure.INVALID:
            data = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}
            await socket.send_json({"type": "error", "data": data})
        elif failure in TEXTS:
            await socket.send_str(TEXTS[failure])
        elif failure in CODES:
            data = {"message": failure.value, "code": CODES[failure]}
            await socket.send_json({"type": "error", "data": data})
        if failure in (Failure.CLOSE, Failure.FULL):
            await socket.close()
            return False
        return True


@asynccontextmanager
async def openenv_served(server: FakeOpenEnvServer) -> AsyncGenerator[str, None]:
    """Run the server on a free port of this machine; gives its address."""
    app = web.Application()
    app.router.add_get("/schema", server.serve_schema)
    app.router.add_get("/ws", server.connect)
    async with running(app) as address:
        yield address
