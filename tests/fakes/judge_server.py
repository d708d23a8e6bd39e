"""A stand-in for an OpenAI-compatible server, as strict about requests and as rude in its answers.

    async with JudgeServer(['{"reason": "", "scores": {"x": 3}}', Trouble.RATE_LIMIT]) as server:
        Endpoint(server.url, model="judge", api_key="sk-right")

Each request takes the next entry of the script, a reply or a trouble; the last entry stays.
Statuses and bodies follow OpenAI's API reference and its guide to error codes.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from aiohttp import web
from fakes.port_server import PortServer

KEY = "sk-right"
MODEL = "judge"
_FIELDS = {
    "model",
    "messages",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "response_format",
    "reasoning_effort",
}


class Trouble(StrEnum):
    """What may go wrong with an answer."""

    RATE_LIMIT = "rate limit"
    """429, to be tried again at once."""
    RATE_LIMIT_SHORT = "short rate limit"
    """429 that asks to wait 0.3 s."""
    RATE_LIMIT_LONG = "long rate limit"
    """429 with `Retry-After: 3600`."""
    QUOTA = "quota"
    """429 that no waiting fixes."""
    SERVER_ERROR = "server error"
    """500 with a JSON body."""
    BAD_GATEWAY = "bad gateway"
    """502 with a proxy's page."""
    HTML = "html"
    """200 with a page."""
    EMPTY = "empty"
    """200 with nothing."""
    CUT_JSON = "cut json"
    """200 whose body stops in the middle."""
    NO_CHOICE = "no choice"
    """200 with an empty list of choices."""
    DROP = "drop"
    """The connection is closed without an answer."""
    HANG = "hang"
    """No answer for an hour."""
    HUGE = "huge"
    """A body of 10 MB."""
    REDIRECT = "redirect"
    """A redirection to another host."""
    REFUSAL = "refusal"
    """200 without content, with a refusal."""


class Refused(Exception):
    def __init__(self, status: int, message: str, kind: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


Entry = str | Trouble | Callable[[dict[str, Any]], "str | dict[str, Any] | web.Response"]
"""A reply, a trouble, or what returns a reply, a completion or a whole answer to the request."""


class JudgeServer(PortServer):
    """One server on a free loopback port, in the running event loop."""

    def __init__(
        self,
        script: Sequence[Entry],
        *,
        delay_s: float = 0.0,
        accept: "Callable[[web.Request, bytes], dict[str, Any]] | None" = None,
    ) -> None:
        self._script, self._delay_s = list(script), delay_s
        self._accept = accept or _accepted
        self.requests: list[dict[str, Any]] = []
        """Bodies that were accepted."""
        self.times: list[float] = []
        self.most_at_once = 0
        self._running = 0

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers: everything, with a refusal if need be."""
        return [web.route("*", "/{path:.*}", self._handle)]

    @property
    def url(self) -> str:
        """Base address, with the version."""
        return f"{super().url}/v1"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            body = self._accept(request, await request.read())
            self.requests.append(body)
            self.times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self._delay_s)
            entry = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            if isinstance(entry, Trouble):
                return await _trouble(request, entry)
            said = entry if isinstance(entry, str) else entry(body)
            if isinstance(said, web.Response):
                return said
            return _completion(said) if isinstance(said, str) else web.json_response(said)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.status)
        finally:
            self._running -= 1


def _completion(text: str | None, **message: Any) -> web.Response:
    spoken = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "finish_reason": "stop", "message": spoken}
    return web.json_response(
        {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice]}
    )


_PAGE = "<html><body><h1>502 Bad Gateway</h1></body></html>"


def _error(status: int, message: str, code: str, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": code, "param": None, "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(body, status=status, headers=named)


def _limited(**headers: str) -> web.Response:
    return _error(429, "Rate limit reached", "rate_limit_exceeded", **headers)


_ANSWERS: dict[Trouble, Callable[[], web.Response]] = {
    Trouble.RATE_LIMIT: lambda: _limited(Retry_After="0"),
    Trouble.RATE_LIMIT_SHORT: lambda: _limited(retry_after_ms="300"),
    Trouble.RATE_LIMIT_LONG: lambda: _limited(Retry_After="3600"),
    Trouble.QUOTA: lambda: _error(429, "You exceeded your current quota", "insufficient_quota"),
    Trouble.SERVER_ERROR: lambda: _error(500, "The server had an error", "server_error"),
    Trouble.BAD_GATEWAY: lambda: web.Response(status=502, text=_PAGE, content_type="text/html"),
    Trouble.EMPTY: lambda: web.Response(content_type="application/json"),
    Trouble.HTML: lambda: web.Response(text=_PAGE, content_type="text/html"),
    Trouble.CUT_JSON: lambda: web.Response(text='{"choices": [{"message": {"con'),
    Trouble.NO_CHOICE: lambda: web.json_response({"choices": []}),
    Trouble.HUGE: lambda: _completion("x" * 10_000_000),
    Trouble.REDIRECT: lambda: web.Response(status=307, headers={"Location": "http://192.0.2.1/"}),
    Trouble.REFUSAL: lambda: _completion(None, refusal="I can't help with that."),
}


async def _trouble(request: web.Request, trouble: Trouble) -> web.Response:
    if trouble is Trouble.HANG:
        await asyncio.sleep(3600)
    if trouble is Trouble.DROP and request.transport is not None:
        request.transport.close()
    return _ANSWERS[trouble]() if trouble in _ANSWERS else web.Response()


def _accepted(request: web.Request, raw: bytes) -> dict[str, Any]:
    """Return the request's body, or raise what the real server answers."""
    if request.path != "/v1/chat/completions" or request.method != "POST":
        raise Refused(
            404, f"Invalid URL ({request.method} {request.path})", "invalid_request_error"
        )
    given = request.headers.get("Authorization", "")
    if given != f"Bearer {KEY}":
        raise Refused(
            401,
            f"Incorrect API key provided: {given.removeprefix('Bearer ')}.",
            "invalid_request_error",
            "invalid_api_key",
        )
    try:
        body: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise Refused(400, "We could not parse the JSON body", "invalid_request_error") from None
    if extra := sorted(body.keys() - _FIELDS):
        raise Refused(
            400, f"Unrecognized request argument supplied: {extra[0]}", "invalid_request_error"
        )
    if body.get("model") != MODEL:
        raise Refused(
            404,
            f"The model `{body.get('model')}` does not exist",
            "invalid_request_error",
            "model_not_found",
        )
    _check_messages(body.get("messages"))
    if not 0 <= body.get("temperature", 1) <= 2:
        raise Refused(400, "temperature must be 0 to 2", "invalid_request_error")
    if (form := body.get("response_format")) and form["type"] == "json_schema":
        _check_schema(form["json_schema"]["schema"])
    return body


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "[] is too short - 'messages'", "invalid_request_error")
    for entry in messages:
        if entry.keys() != {"role", "content"} or entry["role"] not in (
            "system",
            "user",
            "assistant",
        ):
            raise Refused(400, "Invalid 'messages'", "invalid_request_error")
        parts = entry["content"]
        if not parts:
            raise Refused(400, "content must not be empty", "invalid_request_error")
        for part in parts if isinstance(parts, list) else []:
            is_image = part["type"] == "image_url"
            if is_image and not part["image_url"]["url"].startswith("data:image/png;base64,"):
                raise Refused(400, "Invalid image", "invalid_request_error")


def _check_schema(schema: dict[str, Any]) -> None:
    """Strict mode: every object closed, and every property required."""
    if schema["type"] != "object":
        return
    names = set(schema["properties"])
    if schema.get("additionalProperties") is not False or set(schema["required"]) != names:
        raise Refused(400, "Invalid schema for response_format", "invalid_request_error")
    for inner in schema["properties"].values():
        _check_schema(inner)
