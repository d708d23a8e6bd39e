"""A fake SGLang server, as strict as release 0.5.23, for tests without a real one.

    async with FakeSGLang(lambda request: [5, 6, 7]) as server:
        engine = SGLangEngine(server.url)

It checks requests by the real schema's rules, expands images, stops where a server stops, keeps a
prefix cache, aborts by prefix, and fails as a seeded plan says. `log` holds every request. Settings
are those of `WorkerSettings`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from fakes.port_server import STATUS_FAILURES, PortServer, stream_events
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import HangError
from fakes.sglang_schema import Refusal, crash_refusal, http_refusal, parse_body
from fakes.sglang_worker import CrashError, Script, Worker, WorkerSettings


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One request as it came."""

    path: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str]


class FakeSGLang(PortServer):
    """One server on a free loopback port, in the running event loop."""

    def __init__(
        self,
        script: Script,
        *,
        failures: FailurePlan | None = None,
        slow_s: float = 0.2,
        has_server_info: bool = True,
        **settings: Any,  # of WorkerSettings, which checks the names
    ) -> None:
        """Prepare a server; `async with` starts it.

        Args:
            script: Writes each reply, as ids or as text.
            failures: What goes wrong; None is nothing.
            slow_s: Seconds that `Failure.SLOW` adds.
            has_server_info: False answers 404, as some routers do.
            settings: Of `WorkerSettings`.
        """
        self.settings = WorkerSettings(**settings)
        self.worker = Worker(script, self.settings)
        self.failures = failures or FailurePlan()
        self.slow_s = slow_s
        self.is_healthy = True
        self.changed_prompt: list[int] | None = None
        """What the server says that the prompt was, like one that re-tokenises."""
        self.info_requests = 0
        self.log: list[Logged] = []
        self._has_server_info = has_server_info
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._crash: asyncio.Task[None] | None = None

    def payloads(self, path: str = "/generate") -> list[Mapping[str, Any]]:
        """Return the bodies that came to a path, in order."""
        return [entry.payload for entry in self.log if entry.path == path]

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""
        return [
            web.post("/generate", self._generate), web.post("/abort_request", self._abort),
            web.get("/health", self._health), web.get("/health_generate", self._health),
            web.get("/ready", self._ready), web.get("/model_info", self._model_info),
            web.get("/get_model_info", self._model_info), web.get("/workers", self._workers),
            web.get("/server_info", self._server_info), web.get("/v1/loads", self._loads),
            web.get("/flush_cache", self._flush), web.post("/flush_cache", self._flush),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
        ]  # fmt: skip

    async def stop(self) -> None:
        """Let a crash on its way happen, then close the port and every connection."""
        if self._crash is not None:
            await self._crash
        await super().stop()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = {}
        try:
            body = parse_body(await request.read())
            self.log.append(Logged(path="/generate", payload=body, headers=request.headers))
            await self._resumed.wait()
            failure = self.failures.draw()
            await self._fail_early(request, failure)
            session = request.headers.get("X-SMG-Routing-Key")
            answer = await self.worker.serve(body, session, failure)
            if self.changed_prompt is not None and "prompt_token_ids" in answer:
                answer["prompt_token_ids"] = self.changed_prompt
            return await self._respond(request, body, answer, failure)
        except Refusal as refusal:
            if body.get("stream") and refusal.message:  # of a ValueError, after the headers
                return await stream_events(request, [_stream_error(refusal)])
            return refusal.response
        except CrashError:
            self._crash = asyncio.get_running_loop().create_task(self._die())
            return await _never()
        except HangError:
            return await _never()

    async def _fail_early(self, request: web.Request, failure: Failure | None) -> None:
        if failure is not None and failure in STATUS_FAILURES:
            raise http_refusal(STATUS_FAILURES[failure], "injected")
        if failure is Failure.INTERNAL:
            raise crash_refusal()
        if failure is Failure.HANG:
            raise HangError
        if failure is Failure.RESET:
            _drop(request)
            raise HangError
        if failure is Failure.SLOW:
            await asyncio.sleep(self.slow_s)

    async def _respond(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        answer: dict[str, Any],
        failure: Failure | None,
    ) -> web.StreamResponse:
        if body.get("stream") and failure is not Failure.NOT_JSON:
            interval = (body.get("sampling_params") or {}).get("stream_interval") or 1
            is_incremental = self.settings.is_incremental
            chunks = _chunks(answer, interval, is_incremental=is_incremental)
            breaks_at = 2 if failure is Failure.RESET_MID_BODY else None
            return await stream_events(request, chunks, breaks_at=breaks_at)
        if failure is Failure.RESET_MID_BODY:
            response = web.StreamResponse(headers={"Content-Length": "4096"})
            await response.prepare(request)
            await response.write(b'{"text": "')
            _drop(request)
            return response
        if failure is Failure.NOT_JSON:
            return web.Response(text="<html>a page</html>", content_type="text/html")
        return web.json_response(answer)

    async def _die(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.log.append(Logged(path="/abort_request", payload=body, headers=request.headers))
        self.worker.abort(body.get("rid"), abort_all=bool(body.get("abort_all")))
        return web.Response()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _ready(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy and self._resumed.is_set() else 503)

    async def _model_info(self, _request: web.Request) -> web.Response:
        return web.json_response({
            "model_path": self.settings.model_path,
            "served_model_name": self.settings.served_model_name,
            "tokenizer_path": "fake", "is_generation": True,
            "weight_version": self.settings.weight_version,
            "has_image_understanding": self.settings.image_token_id is not None,
            "model_type": self.settings.family.value,
        })  # fmt: skip

    async def _server_info(self, _request: web.Request) -> web.Response:
        self.info_requests += 1
        if not self._has_server_info:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({
            "model_path": self.settings.model_path, "version": "0.5.23", "status": "ready",
            "served_model_name": self.settings.served_model_name,
            "internal_states": [],
            "context_length": self.settings.context_length,
            "max_req_input_len": self.settings.context_length - 6,
            "weight_version": self.settings.weight_version,
            "enable_deterministic_inference": False,
            "enable_return_routed_experts": self.settings.routed_experts is not None,
        })  # fmt: skip

    async def _flush(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.worker.flush() else 400)

    async def _pause(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self._resumed.clear()
        if body.get("mode", "abort") == "abort":
            self.worker.abort(None, abort_all=True)
        return web.Response()

    async def _continue(self, _request: web.Request) -> web.Response:
        self._resumed.set()
        return web.Response()

    async def _workers(self, _request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": self.url}]})

    async def _loads(self, _request: web.Request) -> web.Response:
        load = {"num_running_reqs": self.worker.running, "num_waiting_reqs": self.worker.waiting}
        return web.json_response({"loads": [load]})


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _never() -> web.StreamResponse:
    await asyncio.Event().wait()
    raise RuntimeError("unreachable: nobody sets the event")


def _chunks(answer: dict[str, Any], interval: int, *, is_incremental: bool) -> list[dict[str, Any]]:
    """Split an answer as SGLang streams it: the first token, then one chunk per interval.

    Each repeats what came before, except with `--incremental-streaming-output`.
    """
    count = len(answer["output_ids"])
    chunks: list[dict[str, Any]] = []
    begin = 0
    for end in (*range(1, count, interval), count):
        start = begin if is_incremental else 0
        meta: dict[str, Any] = {**answer["meta_info"], "completion_tokens": end}
        if end < count:
            meta["finish_reason"] = None
        for key in ("output_token_logprobs", "output_top_logprobs"):
            if key in meta:
                meta[key] = meta[key][start:end]
        ids = answer["output_ids"][start:end]
        whole = {key: answer[key] for key in answer if key == "prompt_token_ids"}
        chunks.append({"text": "", "output_ids": ids, "meta_info": meta, **whole})
        begin = end
    chunks[-1]["text"] = answer["text"]
    return chunks


def _stream_error(refusal: Refusal) -> dict[str, Any]:
    status = refusal.response.status
    error = {"message": refusal.message, "type": "invalid_request_error"}
    return {"error": {**error, "code": status, "retryable": False}}
