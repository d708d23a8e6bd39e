"""An engine of one HTTP server: every turn is one request.

The server's `Dialect` writes and reads messages; `call` handles deadlines and aborts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from envkit import fast_json, ranges
from envkit.errors import ConfigurationError, ContractError, EngineFault, FaultKind
from envkit.images import Image
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind, Sampling
from envkit.rollout.token_stream import Report
from envkit.tokens import ChatCodec
from envkit_remote import prompt
from envkit_remote.call import Call, CallSettings
from envkit_remote.conversations import Conversations, PromptIds
from envkit_remote.dialect import Dialect, FlagCheck, ServerHealth, ServerInfo
from envkit_remote.probe import ServerProbe, check_server
from envkit_remote.transport import (
    MAX_BODY_BYTES,
    MAX_PAGE_BYTES,
    MAX_PAGE_VALUES,
    UNKNOWN,
    Answer,
    AnswerLimit,
    Transport,
)

_TOKEN_BYTES: Final = 1 << 10
"""A sampled token's text, which JSON may escape, with its id and log-probability."""
_TOKEN_VALUES: Final = 24
"""A sampled token's entry in `fast_json.values_in`: 5 of SGLang, 11 of vLLM. Brackets in its text
count too."""
_ID_BYTES: Final = 16
"""A prompt's token, of which an answer only repeats the id."""
_COMPARE_EACH: Final = 16
"""One request in this many has its prompt's ids compared, if answers do not name their request."""

T = TypeVar("T")


class RemoteEngine:
    """Samples over the HTTP API of one server. A subclass names the server's dialect."""

    logprob_kind = LogprobKind.SAMPLED
    """SAMPLED; a server that reports others is rejected."""
    max_top_logprobs = 20
    """The default limit of a vLLM server, and that of OpenAI's API."""

    dialect_type: ClassVar[type[Dialect]]

    def __init__(
        self,
        base_url: str,
        *,
        image_token_id: int | None = None,
        vocabulary_size: int | None = None,
        context_length: int | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        abort_grace_s: float = 10.0,
        max_connections: int = 512,
        compare_prompts: int = 4,
        check_logprobs: bool = True,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Store the settings; the first request connects.

        Args:
            base_url: Address of a server or of its router, without a path such as /v1.
            image_token_id: The placeholder of an image; None does not count placeholders; a server
                then silently accepts a wrong number of images.
            vocabulary_size: Ids must be below it. None is unchecked.
            context_length: Limit on prompt plus new tokens. None asks the server once.
            timeout_s: Seconds for one `generate`. The first request can take 20 s on a slow
                machine.
            connect_timeout_s: Seconds to make a connection.
            abort_grace_s: Seconds that an aborted request has to return its tokens; after that it
                counts as aborted without tokens.
            max_connections: Requests in flight; more wait for a free connection.
            compare_prompts: Number of first requests whose prompt ids are fetched and compared with
                ours. If the answers do not name their requests, one in 16 of the others is too.
            check_logprobs: Ask the server once which log-probabilities it reports, before the first
                request for which that matters.
            api_key: Sent as a bearer token.
            headers: Sent with every request.

        Raises:
            ConfigurationError: The address is not an http(s) URL, or a number is out of range.
        """
        self.base_url: Final = _checked_url(base_url)
        """The address that requests go to."""
        ranges.at_least(1e-3, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        ranges.at_least(0, abort_grace_s=abort_grace_s, compare_prompts=compare_prompts)
        ranges.at_least(1, max_connections=max_connections)
        self._image_token_id = image_token_id
        self._conversations = Conversations(vocabulary_size)
        self._compare_left = compare_prompts
        self._names_requests = False
        """Whether an answer has named its request; a proxy may replace ids by its own."""
        self._requests = count(1)
        self._live: dict[str, Call] = {}
        self._background: set[asyncio.Task[None]] = set()
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = Transport(
            self.base_url,
            title=self.dialect_type.title,
            headers={**authorization, **(headers or {})},
            max_connections=max_connections,
            connect_timeout_s=connect_timeout_s,
        )
        self._dialect = self.dialect_type()
        self._probe = ServerProbe(
            self._http,
            self._dialect,
            context_length=context_length,
            check_logprobs=check_logprobs,
            timeout_s=timeout_s,
        )
        self._settings = CallSettings(
            http=self._http,
            dialect=self._dialect,
            timeout_s=timeout_s,
            abort_grace_s=abort_grace_s,
            spawn=self._spawn,
        )

    @property
    def name(self) -> str:
        """The engine's name in records."""
        return self.dialect_type.name

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn.

        Raises:
            EngineFault: TRANSIENT, TIMEOUT, CRASHED or PERMANENT. `is_unavailable` if the server is
                unreachable or currently accepts no requests.
            LedgerFault: The request's ids and images, or the server's counts, disagree.
            ConfigurationError: `sampling.extras` holds an unknown key, or the server serves another
                model than before.
            ContractError: A request with this id is already running.
        """
        return await self._sampled(request, None)

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Sample one turn as `generate` does, and report ids as the server sends them.

        Raises:
            EngineFault: As `generate`.
            LedgerFault: As `generate`.
            ConfigurationError: As `generate`.
            ContractError: As `generate`.
        """
        return await self._sampled(request, report)

    async def _sampled(self, request: GenerateRequest, report: Report | None) -> Generation:
        if request.request_id in self._live:
            raise ContractError(f"request_id {request.request_id!r} is already running")
        ids = self._prompt(request.session_id, request.wire_ids, request.images)
        info = await self._probe.prepare(request.sampling, token=request.wire_ids[0])
        max_new_tokens = prompt.clamp_new_tokens(
            request.sampling.max_new_tokens,
            prompt_length=request.train_length,
            context_length=info.context_length,
        )
        compare = self._compare_left > 0 or (
            not self._names_requests and next(self._requests) % _COMPARE_EACH == 0
        )
        fields = self._dialect.generate_fields(
            request, max_new_tokens=max_new_tokens, with_prompt_ids=compare
        )
        call = Call(
            self._settings,
            fields if report is None else self._dialect.stream_fields(fields),
            ids,
            request.images,
            limit=answer_limit(request, max_new_tokens),
            session_id=request.root_id or request.session_id,  # a fork goes where its parent was
            report=report,
        )
        self._live[request.request_id] = call
        try:
            answer = await call.run()
        except EngineFault as fault:
            # It may come back as another model, or with another context length.
            if fault.is_unavailable:
                self._probe.forget()
            raise
        finally:
            del self._live[request.request_id]
        if answer is None:
            return Generation(
                token_ids=(),
                logprobs=(),
                finish_reason=FinishReason.ABORT,
                prompt_tokens=None,
                extras={"rid": call.rid},
            )
        return await self._read(answer, partial(self._generation, request, call.rid))

    def _generation(
        self, request: GenerateRequest, rid: str, answer: Mapping[str, Any]
    ) -> Generation:
        """Return the reply of a parsed answer.

        Raises:
            EngineFault: As `generate`.
            LedgerFault: As `generate`.
        """
        self._check_answered(answer, rid)
        # Even ids that were not requested: the answer may be that to another request.
        if prompt.check_prompt_ids(
            self._dialect.prompt_ids(answer),
            request.wire_ids,
            image_token_id=self._image_token_id,
            hint=self._dialect.changed_hint,
        ):
            self._compare_left = max(0, self._compare_left - 1)
        return self._dialect.generation(answer, train_length=request.train_length, rid=rid)

    def _check_answered(self, answer: Mapping[str, Any], rid: str) -> None:
        """Refuse the answer to another request, which a faulty router may deliver.

        Raises:
            EngineFault: It names another request, although earlier answers named theirs.
        """
        found = self._dialect.answered(answer)
        if found == rid:
            self._names_requests = True
        elif found is not None and self._names_requests:
            raise EngineFault(
                f"{self.base_url} answered request {rid} with the reply to {found!r:.80}: a router "
                "or proxy before the server mixes up its answers",
                kind=FaultKind.TRANSIENT,
            )

    def _prompt(
        self, conversation: str | None, ids: Sequence[int], images: Sequence[Image]
    ) -> PromptIds:
        """Return checked ids, of which those of the conversation's last request are known.

        Raises:
            LedgerFault: An id is out of range, or placeholders and images do not match.
        """
        found = self._conversations.prompt(conversation, ids)
        if self._image_token_id is not None:
            placeholders = found.count(self._image_token_id)
            prompt.check_placeholders(placeholders, len(images), self._image_token_id)
        return found

    async def score(
        self, ids: Sequence[int], images: Sequence[Image] = ()
    ) -> tuple[float | None, ...]:
        """Return the log-probability of every token of a sequence at temperature 1, for checks.

        Args:
            ids: Wire ids: the server expands placeholders, and the result has the EXPANDED length.
            images: One per placeholder.

        Returns:
            One value per token of the expanded sequence; None for the first. Banned ids stay in the
            distribution here.

        Raises:
            EngineFault: See `generate`.
            LedgerFault: The ids and the images do not agree.
        """
        found = self._prompt(None, ids, images)
        call = Call(self._settings, self._dialect.score_fields(), found, images)
        answer = await call.run()
        if answer is None:
            raise EngineFault("the scoring request was aborted")
        return await self._read(answer, self._dialect.prompt_logprobs)

    async def abort(self, request_id: str) -> None:
        """Stop a running request; its `generate` returns the tokens so far with ABORT.

        Unknown and finished requests are ignored.
        """
        call = self._live.get(request_id)
        if call is not None:
            await call.abort()

    async def end_session(self, session_id: str) -> None:
        """Forget the conversation's ids. The server's prefix cache evicts by itself."""
        self._conversations.forget(session_id)

    async def aclose(self) -> None:
        """Wait for pending aborts and close the connections; safe to call twice."""
        loop = asyncio.get_running_loop()
        pending = [task for task in self._background if task.get_loop() is loop]
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
        await self._http.aclose()

    async def probe(self) -> None:
        """Return if the server accepts requests; the rollout polls it while waiting.

        Raises:
            EngineFault: It does not accept requests; `is_unavailable` is set.
        """
        await self._probe.check_health()

    async def server_info(self, *, timeout_s: float = 30.0) -> ServerInfo:
        """Return what the server says about itself.

        Raises:
            EngineFault: It cannot be reached, or has no facts (a router, for example).
        """
        return await self._probe.fetch_info(timeout_s)

    async def health(self, *, timeout_s: float = 30.0) -> ServerHealth:
        """Check whether the server can sample; the result says what is wrong."""
        return await self._probe.health(timeout_s)

    async def check(self, codec: ChatCodec, sampling: Sampling) -> None:
        """Sample one token before a run, so that a wrong server fails it early.

        Args:
            codec: Codec of the run; its tokenizer must be the server's.
            sampling: Sampling of the run.

        Raises:
            ConfigurationError: The server was started without a needed flag, or serves another
                model. An unavailable server is not an error: the episodes wait for it.
        """
        await check_server(self, self._http, codec, sampling)

    async def flags(self) -> list[FlagCheck]:
        """Return which relevant flags the server was started with.

        Raises:
            EngineFault: It does not answer.
        """
        return await self._dialect.flags(self._http)

    async def _read(self, answer: Answer, read: Callable[[dict[str, Any]], T]) -> T:
        """Return what `read` returns for the parsed answer, off the event loop if it is large."""
        if fast_json.is_quick(answer.body):
            return read(self._dialect.parse(answer))

        def read_it() -> T:
            # Its values are gone before the next collection, which would look at all of them.
            with fast_json.collection.paused():
                return read(self._dialect.parse(answer))

        return await asyncio.to_thread(read_it)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def answer_limit(request: GenerateRequest, max_new_tokens: int) -> AnswerLimit:
    """Return what an answer may have at most: a longer one would only hold the event loop."""
    if request.sampling.extras:  # routed experts, hidden states
        return UNKNOWN
    entries = max_new_tokens * (1 + request.top_logprobs)
    prompt_length = max(request.train_length, len(request.wire_ids))
    size = MAX_PAGE_BYTES + _TOKEN_BYTES * entries + _ID_BYTES * prompt_length
    return AnswerLimit(
        max_bytes=min(MAX_BODY_BYTES, size),
        max_values=MAX_PAGE_VALUES + _TOKEN_VALUES * entries + prompt_length,
    )


def _checked_url(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"base_url must look like http://127.0.0.1:30000, got {base_url!r}"
        )
    try:
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"base_url has a bad port: {base_url!r} ({error})") from error
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigurationError(
            f"base_url is the server's root, not its OpenAI routes: drop /v1 from {base_url!r}"
        )
    return base_url.rstrip("/")
