"""Ask a server for its facts, once before the first request and on demand, and check it."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout.engine import Engine, LogprobKind, Sampling, sample_once
from envkit.tokens import ChatCodec
from envkit_remote import faults
from envkit_remote.answers import read_json
from envkit_remote.dialect import Dialect, ServerHealth, ServerInfo
from envkit_remote.transport import Answer, Transport

_TIMEOUT_S: Final = 30.0
_ASK_AGAIN_S: Final = 30.0
"""Seconds before asking again a server that did not report its facts."""
_REFRESH_S: Final = 300.0
"""Seconds after which a server that reported them is asked again: its model may be another."""
_TEXT: Final = "Zürich, 東京: 12 + 30 = 42?\n\tif x != y: pass  # 🙂"
"""Text that different tokenizers split differently."""


class ServerProbe:
    """Facts of a server, fetched once for all concurrent requests."""

    def __init__(
        self,
        http: Transport,
        dialect: Dialect,
        *,
        context_length: int | None,
        check_logprobs: bool,
        timeout_s: float,
    ) -> None:
        self._http, self._dialect = http, dialect
        self._timeout_s = min(_TIMEOUT_S, timeout_s)
        self._info = ServerInfo(context_length=context_length)
        self._served: str | None = None
        self._asks_for_info = context_length is None
        self._is_info_known = context_length is not None
        self._is_kind_known = not check_logprobs
        self._ask_again_at = 0.0
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def prepare(self, sampling: Sampling, *, token: int) -> ServerInfo:
        """Return the facts, fetching missing ones.

        Args:
            sampling: Sampling of the next request; for some settings both kinds of
                log-probabilities agree.
            token: Any token id of the served model, for a probe.

        Raises:
            EngineFault: The server reports log-probabilities of the wrong kind, or answers with
                something that is not JSON.
            ConfigurationError: It serves another model than before.
        """
        wants_kind = self._dialect.kind_matters(sampling)
        if self._asks_for_info and self._is_info_known and time.monotonic() >= self._ask_again_at:
            await self._learn_info(_REFRESH_S)  # the other requests go on with what is known
        if self._is_info_known and (self._is_kind_known or not wants_kind):
            return self._info
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if not self._is_info_known and time.monotonic() >= self._ask_again_at:
                await self._learn_info(_ASK_AGAIN_S)
            if wants_kind and not self._is_kind_known:
                await self._learn_kind(token)
        return self._info

    async def _learn_info(self, again_s: float) -> None:
        """Fetch the facts, or keep those that are known.

        Args:
            again_s: Seconds before asking again a server that does not report them.

        Raises:
            ConfigurationError: It serves another model than before.
        """
        # Not every router has the facts; if the server is unavailable, the request reports it.
        self._ask_again_at = time.monotonic() + again_s
        try:
            info = await self.fetch_info(self._timeout_s)
        except EngineFault:
            return
        self._check_model(info.served_model_name)
        self._info, self._is_info_known = info, True
        self._ask_again_at = time.monotonic() + _REFRESH_S

    def _check_model(self, name: str | None) -> None:
        """Reject a server whose model has changed.

        Raises:
            ConfigurationError: It serves another model now.
        """
        if self._served is None:
            self._served = name
        # By its name: the folder of the weights may change with every update of a trainer.
        elif name is not None and name != self._served:
            self._ask_again_at = 0.0
            raise ConfigurationError(
                f"the {self._dialect.title} server at {self._http.base_url} came back as another "
                f"model, {name!r}; it was {self._served!r} before. Start it with the same model, "
                "or with the same --served-model-name if the weights are the right ones"
            )

    def forget(self) -> None:
        """Fetch the facts again before the next request: the server may have changed."""
        if self._asks_for_info:
            self._is_info_known, self._ask_again_at = False, 0.0

    async def _learn_kind(self, token: int) -> None:
        dialect = self._dialect
        body = json.dumps(dialect.kind_probe(token)).encode()
        with suppress(TimeoutError, *faults.CONNECTION_ERRORS):
            async with asyncio.timeout(self._timeout_s):
                answer = await self._http.post(dialect.generate_path, body)
            if answer.status != 200:
                return
            # A proxy's own page with status 200 must not count as a passed probe.
            read_json(dialect.title, answer.body)
            if dialect.probed_kind(answer.body) is LogprobKind.RAW:
                raise EngineFault(
                    f"the {dialect.title} server at {self._http.base_url} reports the "
                    "log-probabilities of the unscaled distribution, which are wrong for training "
                    f"with this sampling: {dialect.raw_advice}"
                )
            self._is_kind_known = True

    async def fetch_info(self, timeout_s: float) -> ServerInfo:
        """Return what the server says about itself.

        Raises:
            EngineFault: No answer, or not those facts.
        """
        http, dialect = self._http, self._dialect

        async def fetch(path: str) -> bytes:
            answer = await http.get(path)
            if answer.status != 200:
                raise await dialect.status_fault(http, answer)
            return answer.body

        async with faults.asking(http, timeout_s, "for its facts"):
            return await dialect.fetch_info(fetch)

    async def health(self, timeout_s: float) -> ServerHealth:
        """Return whether the server samples; faults become the detail of the result."""
        started = time.perf_counter()
        info: ServerInfo | None = None
        healthy = False
        try:
            answer = await self._ask_health(timeout_s)
            healthy = answer.status == 200
            detail = "" if healthy else self._unhealthy(answer)
        except EngineFault as fault:
            detail = str(fault)
        if healthy:
            title = self._dialect.title
            detail = f"{title}, or its router, answers"
            with suppress(EngineFault):
                info = await self.fetch_info(timeout_s)
                detail = (
                    f"{title} {info.version}, model {info.model}, context {info.context_length}"
                )
        return ServerHealth(
            url=self._http.base_url,
            healthy=healthy,
            detail=detail,
            seconds=time.perf_counter() - started,
            info=info,
        )

    async def check_health(self) -> None:
        """Return if `/health` reports that the server accepts requests, or has no such route.

        Raises:
            EngineFault: It does not, with `is_unavailable`.
        """
        answer = await self._ask_health(self._timeout_s)
        if answer.status >= 500 or answer.status == 429:
            raise EngineFault(
                self._unhealthy(answer),
                kind=FaultKind.TRANSIENT,
                is_unavailable=True,
                retry_after_s=answer.retry_after_s,
            )

    async def _ask_health(self, timeout_s: float) -> Answer:
        url = self._http.base_url
        try:
            async with asyncio.timeout(timeout_s):
                return await self._http.get("/health")
        except faults.CONNECTION_ERRORS as error:
            raise faults.connection_fault(self._http, error) from error
        except TimeoutError as error:
            raise EngineFault(
                f"{url}/health gave no answer in {timeout_s:g} s: the server is overloaded",
                kind=FaultKind.TIMEOUT,
                is_unavailable=True,
            ) from error

    def _unhealthy(self, answer: Answer) -> str:
        fault = faults.status_fault(self._http, answer, self._dialect.advice)
        return f"{fault}. It may still be loading its model"


async def check_server(
    engine: Engine, http: Transport, codec: ChatCodec, sampling: Sampling
) -> None:
    """Compare the server's tokenizer with the codec's, then sample one token.

    A wrong server would otherwise fault every episode. It sends no image: a text run may use a
    vision model whose server accepts none. An image that the server counts differently faults the
    first episodes, which also stops the run.

    Args:
        engine: Engine of the server.
        http: Transport to the same server.
        codec: Codec of the run.
        sampling: Sampling of the run.

    Raises:
        ConfigurationError: See the message. Nothing is raised if the server is unavailable or slow,
            since the episodes wait for it.
    """
    await _compare_tokenizers(http, codec)
    prompt = codec.encode_prompt([message("user", "Say hello.")])
    try:
        await sample_once(engine, prompt, replace(sampling, max_new_tokens=1).for_codec(codec))
    except LedgerFault as fault:
        raise ConfigurationError(
            f"the server at {http.base_url} counts a prompt differently from the codec: {fault}. "
            "Give the codec the folder of the served model"
        ) from fault
    except EngineFault as fault:
        # Any other fault may pass: the episodes wait for the server.
        if fault.kind is FaultKind.PERMANENT and not fault.retryable:
            raise ConfigurationError(f"the server cannot play this run: {fault}") from fault


async def _compare_tokenizers(http: Transport, codec: ChatCodec) -> None:
    """Compare the server's tokenization of a text; skip servers without such a route.

    Raises:
        ConfigurationError: Its ids differ from the codec's.
    """
    ours = codec.encode_text(_TEXT)
    theirs = await _tokenised(http, _TEXT)
    if theirs is not None and list(theirs) != list(ours):
        raise ConfigurationError(
            f"the server at {http.base_url} serves a model with another tokenizer: it makes "
            f"{theirs[:8]} of {_TEXT[:12]!r}, the codec {list(ours)[:8]}. Give --model (or the "
            "codec) the folder of the served model"
        )


async def _tokenised(http: Transport, text: str) -> Sequence[int] | None:
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    with suppress(TimeoutError, EngineFault, *faults.CONNECTION_ERRORS):
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await http.post("/tokenize", body, is_control=True)
        if answer.status == 200:
            with suppress(ValueError, TypeError, LookupError, RecursionError):
                return [int(token) for token in json.loads(answer.body)["tokens"]]
    return None
