"""The two remote engines, each with its fake server, for rules that hold for both."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fakes.remote_requests import PAD, reply
from fakes.sglang_failures import FailurePlan
from fakes.sglang_server import FakeSGLang
from fakes.vllm_server import FakeVLLM

from envkit_remote import RemoteEngine
from envkit_sglang import SGLangEngine
from envkit_vllm import VLLMEngine


@dataclass(frozen=True, kw_only=True)
class RemoteKind:
    """One kind of server: its fake, its engine, and where it has what the tests look at."""

    fake: Any
    engine: type[RemoteEngine]
    id_key: str
    budget_key: str
    raw: Mapping[str, bool]
    """Settings of a server that reports log-probabilities of the unscaled distribution."""
    raw_advice: str
    version: str
    internal: tuple[str, bool]
    """Kind of the fault of a 500, and whether it may be retried."""
    is_probe: Callable[[Mapping[str, Any]], bool]
    """Whether a body asks which log-probabilities the server reports."""
    sent: Callable[[Any], Sequence[Mapping[str, Any]]]
    """Bodies of requests to sample."""
    aborted: Callable[[Any], Sequence[str]]
    """Names of requests that were aborted."""
    running: Callable[[Any], int]

    @asynccontextmanager
    async def serving(
        self, script: Any = reply, *, options: Mapping[str, Any] | None = None, **settings: Any
    ) -> AsyncGenerator[tuple[Any, RemoteEngine]]:
        """Give a server and an engine for it.

        Args:
            script: Writes the replies.
            options: Of the engine.
            settings: Of the server. `failures` may be a list: those of the first requests.
        """
        if isinstance(failures := settings.get("failures"), list):
            settings["failures"] = FailurePlan(script=failures)
        async with self.fake(script, **settings) as server:
            engine = self.engine(server.url, **(options or {}))
            try:
                yield server, engine
            finally:
                await engine.aclose()
                await engine.aclose()


KINDS = {
    "sglang": RemoteKind(
        fake=FakeSGLang,
        engine=SGLangEngine,
        id_key="rid",
        budget_key="max_new_tokens",
        raw={"reports_raw_logprobs": True},
        raw_advice="SGLANG_RETURN_ORIGINAL_LOGPROB",
        version="0.5.23",
        internal=("permanent", True),
        is_probe=lambda body: bool(body.get("top_logprobs_num")),
        sent=lambda server: server.payloads(),
        aborted=lambda server: [body["rid"] for body in server.payloads("/abort_request")],
        running=lambda server: server.worker.running,
    ),
    "vllm": RemoteKind(
        fake=FakeVLLM,
        engine=VLLMEngine,
        id_key="request_id",
        budget_key="max_tokens",
        raw={"is_processed": False},
        raw_advice="--logprobs-mode processed_logprobs",
        version="0.32.0",
        internal=("permanent", False),
        is_probe=lambda body: "allowed_token_ids" in body["sampling_params"],
        sent=lambda server: server.requests,
        aborted=lambda server: [name.removeprefix("generate-tokens-") for name in server.aborts],
        running=lambda server: server.running,
    ),
}
SEEING: Mapping[str, Any] = {"image_token_id": PAD}
"""Of servers and engines that know the placeholder of an image."""
