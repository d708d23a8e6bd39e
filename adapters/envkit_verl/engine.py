"""The engine of verl's rollout worker: envkit's loop over `server_manager.generate`.

`server_manager` is verl's LLMServerClient (AsyncLLMServerManager before 0.8.0), which routes by
`request_id` and calls a server actor with a fixed signature: only arguments that the backend
accepts may be passed (verl 0.9.1, workers/rollout/llm_server.py:99-168).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from envkit.errors import EngineFault, FaultKind
from envkit.images import Image
from envkit.retry_after import UNAVAILABLE_STATUS
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, Sampling
from envkit.tokens.placeholders import repeat_each
from envkit_training.engine import ABORTED, ClientEngine
from envkit_verl.settings import SGLANG, VLLM, VerlSettings

_PERMANENT: Final = (ValueError, TypeError, AttributeError, LookupError, AssertionError)
_UNAVAILABLE: Final = frozenset(
    {"ActorUnavailableError", "ClientConnectionError", "ConnectionError"}
)
"""Names of transient errors of Ray, aiohttp and Python: the server may recover."""
_DEAD: Final = frozenset({"RayActorError"})
"""Names of Ray's errors for a dead actor."""
_BAN_BIAS: Final = -10_000.0
"""Added to the logit of a banned token on SGLang, which does not ban media placeholders itself."""

_rgb_images: WeakKeyDictionary[Image, Any] = WeakKeyDictionary()


class ServerManager(Protocol):
    """The part of verl's client that is used."""

    async def generate(self, request_id: str, **arguments: Any) -> Any:  # noqa: ANN401  # TokenOutput
        """Sample one turn on the server that serves this request id."""
        ...


class VerlEngine(ClientEngine):
    """Samples through verl's own client and servers.

    Log-probabilities are those of the sampled distribution: `VerlSettings` rejects servers that
    would report others. verl does not report the prompt length that its server saw, so a server
    that resizes images differently goes undetected here; worker, codec and server read one
    processor from one model folder, with the same `data.mm_processor_kwargs`.
    """

    def __init__(
        self,
        server_manager: ServerManager,
        settings: VerlSettings,
        *,
        placeholder_id: int | None,
        sends_expanded: bool,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        routing_shape: tuple[int, ...] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Store the parts of requests.

        Args:
            server_manager: verl's client.
            settings: Settings of the rollout.
            placeholder_id: The image placeholder of the model; None for a text model.
            sends_expanded: Send each placeholder as often as its image has tokens. True for vLLM
                with Qwen-VL processors, for which verl's server collapses the runs again
                (workers/rollout/utils.py:93-114); False elsewhere, where the server expands one
                placeholder per image itself.
            mm_processor_kwargs: `data.mm_processor_kwargs`, which vLLM needs with images.
            routing_shape: (layers, experts per token) of routed experts, if known before a reply.
            timeout_s: As for `ClientEngine`.

        Raises:
            ConfigurationError: The timeout is not positive.
        """
        super().__init__("verl", timeout_s=timeout_s)
        self._manager, self._settings = server_manager, settings
        self._placeholder_id, self._sends_expanded = placeholder_id, sends_expanded
        self._mm_kwargs = dict(mm_processor_kwargs or {})
        self._begun: set[str] = set()
        self.routing_shape = routing_shape
        """(layers, experts per token) of routed experts, once a server has reported it."""

    async def end_session(self, session_id: str) -> None:
        """Forget an episode."""
        self._begun.discard(session_id)

    async def _ask(self, request: GenerateRequest) -> Generation:
        self._check_prompt(request)
        parameters = self._parameters(request.sampling)
        output = await self._call(request, parameters)
        return self._generation(output, request, parameters)

    def _check_prompt(self, request: GenerateRequest) -> None:
        if request.session_id in self._begun:
            return
        most = self._settings.prompt_length
        if request.train_length > most:
            raise EngineFault(
                f"the prompt of an episode must fit rollout.prompt_length, got "
                f"{request.train_length} tokens for {most}: raise data.max_prompt_length, or make "
                "the environment's first observation or its images smaller"
            )
        self._begun.add(request.session_id)

    def _parameters(self, sampling: Sampling) -> dict[str, Any]:
        """Return the server's parameters, with `max_tokens`, whose default ignores turns."""
        parameters: dict[str, Any] = {
            **sampling.extras,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1 if sampling.top_k is None else sampling.top_k,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
        }
        if sampling.stop:
            parameters["stop"] = list(sampling.stop)
        if parameters.get("stop"):  # the servers look for it in text without special tokens
            parameters["skip_special_tokens"] = False
        is_sglang = self._settings.backend == SGLANG
        if sampling.seed is not None:
            parameters["sampling_seed" if is_sglang else "seed"] = sampling.seed
        if sampling.banned_ids and is_sglang:  # vLLM's server bans them itself
            bans = {str(identity): _BAN_BIAS for identity in sampling.banned_ids}
            parameters["logit_bias"] = {**parameters.get("logit_bias", {}), **bans}
        return parameters

    async def _call(self, request: GenerateRequest, parameters: dict[str, Any]) -> Any:  # noqa: ANN401  # TokenOutput
        sent = dict(parameters)
        arguments: dict[str, Any] = {
            "prompt_ids": self._prompt_ids(request),
            "image_data": pil_images(request.images) or None,
        }
        if "priority" in sent:
            arguments["priority"] = sent.pop("priority")
        if self._mm_kwargs and request.images and self._settings.backend == VLLM:
            arguments["mm_processor_kwargs"] = dict(self._mm_kwargs)
        return await self._manager.generate(request.session_id, sampling_params=sent, **arguments)

    def _prompt_ids(self, request: GenerateRequest) -> list[int]:
        if not self._sends_expanded or not request.images or self._placeholder_id is None:
            return list(request.wire_ids)
        counts = [feature.token_count for feature in request.features]
        return repeat_each(request.wire_ids, self._placeholder_id, counts)

    def _generation(
        self,
        output: Any,  # noqa: ANN401  # TokenOutput
        request: GenerateRequest,
        parameters: Mapping[str, Any],
    ) -> Generation:
        ids = tuple(map(int, output.token_ids))
        if not ids:
            return ABORTED
        facts: Mapping[str, Any] = output.extra_fields or {}
        first, last = facts.get("min_global_steps"), facts.get("max_global_steps")
        last = facts.get("global_steps") if last is None else last
        first = last if first is None else first
        finish = _finish_reason(output.stop_reason, ids, parameters)
        experts = output.routed_experts
        if experts is not None:
            experts = np.asarray(experts)
            self.routing_shape = tuple(int(size) for size in experts.shape[1:])
        elif self._settings.keeps_routing and finish is not FinishReason.ABORT:
            raise EngineFault(
                "rollout.enable_rollout_routing_replay is set, so verl's server must report the "
                f"routed experts of each finished reply, got none for {len(ids)} tokens; a reply "
                "without them would train experts that did not write it"
            )
        found = {
            "min_global_steps": first,
            "max_global_steps": last,
            "num_preempted": output.num_preempted,
            "routed_experts": experts,
            **{key: value for key, value in facts.items() if key.startswith("spec_")},
        }
        return Generation(
            token_ids=ids,
            logprobs=_logprobs(output, ids, is_asked=bool(parameters.get("logprobs"))),
            finish_reason=finish,
            prompt_tokens=request.train_length,  # verl does not report it
            cached_tokens=int(facts.get("num_cached_tokens") or 0),
            weight_version=None if last is None else str(last),
            extras={key: value for key, value in found.items() if value is not None},
        )

    def _fault(self, error: BaseException) -> EngineFault:
        # Ray's task errors have the server's error as their cause.
        cause: Any = getattr(error, "cause", None)
        real = cause if isinstance(cause, BaseException) else error
        if isinstance(real, EngineFault):
            return real
        message = f"verl's server failed: {type(real).__name__}: {real}"
        names = {entry.__name__ for entry in type(real).__mro__}
        if names & _UNAVAILABLE or getattr(real, "status", None) in UNAVAILABLE_STATUS:
            return EngineFault(message, kind=FaultKind.TRANSIENT, is_unavailable=True)
        if names & _DEAD:
            return EngineFault(message, kind=FaultKind.CRASHED)
        kind = FaultKind.TRANSIENT
        if isinstance(real, TimeoutError):
            kind = FaultKind.TIMEOUT
        elif isinstance(real, _PERMANENT) or not isinstance(real, Exception):
            kind = FaultKind.PERMANENT
        return EngineFault(message, kind=kind)


def pil_images(images: Sequence[Image]) -> list[Any]:
    """Return images as RGB PIL images, the form that verl's servers and processors accept."""
    return [_rgb(image) for image in images]


def _rgb(image: Image) -> Any:  # noqa: ANN401  # a PIL image
    picture = image.pil()
    if picture.mode == "RGB":
        return picture
    found = _rgb_images.get(image)
    if found is None:  # grey: convert once, although it is sent in every turn
        found = _rgb_images[image] = picture.convert("RGB")
    return found


def _logprobs(output: Any, ids: Sequence[int], *, is_asked: bool) -> tuple[float, ...]:  # noqa: ANN401  # TokenOutput
    """Return one log-probability per token; unused zeros if none were requested."""
    if not is_asked:
        return (0.0,) * len(ids)
    values = output.log_probs
    if values is None or len(values) != len(ids) or not all(map(math.isfinite, values)):
        found = "none" if values is None else f"{len(values)}, or one that is not finite,"
        raise EngineFault(
            "rollout.calculate_log_probs is set, so verl's server must return a finite "
            f"log-probability for each token, got {found} for {len(ids)} tokens"
        )
    return tuple(map(float, values))


def _finish_reason(
    stop_reason: str | None, ids: Sequence[int], parameters: Mapping[str, Any]
) -> FinishReason:
    """Return why sampling ended; verl reports stopped and truncated replies alike."""
    if stop_reason in ("aborted", "abort"):
        return FinishReason.ABORT
    if ids[-1] in parameters["stop_token_ids"]:
        return FinishReason.STOP
    if stop_reason == "length" or len(ids) >= parameters["max_tokens"]:
        return FinishReason.LENGTH
    return FinishReason.STOP  # a stop string
