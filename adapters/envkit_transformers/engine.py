"""The embedded engine: a transformers model in this process.

This module is the asyncio side. One thread, `worker`, owns the model: it runs `scheduler`, which
packs many sessions into one forward. Any number of event loops may use an engine, in sequence or
concurrently.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

from envkit import ranges
from envkit.errors import ConfigurationError, EngineFault, Fault
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind
from envkit.rollout.token_stream import Report
from envkit.seeds import checked_seed
from envkit_transformers.attention import use_packed_attention
from envkit_transformers.forward import PackedForward
from envkit_transformers.prompt import PromptBuilder, VisionTraits
from envkit_transformers.scheduler import Command, EngineStats, Scheduler, SchedulerSettings
from envkit_transformers.sessions import SessionStore
from envkit_transformers.worker import Worker

WeightUpdate = Mapping[str, Tensor] | Callable[[Any], None]
"""New tensors by parameter name (some or all), or a function that changes the model in place
(called without gradients)."""
_MEMORY_SHARE: Final = 0.25
_UNKNOWN_MEMORY: Final = 8 << 30
_NO_LIMIT: Final = 1 << 20


def _apply_update(model: Any, update: WeightUpdate) -> None:  # noqa: ANN401  # a transformers model
    """Change the model's weights in place.

    Args:
        model: The engine's model.
        update: New weights. All tensors are checked before the first is copied.

    Raises:
        EngineFault: A name or shape does not match the model.
    """
    if not isinstance(update, Mapping):
        with torch.no_grad():
            update(model)
        return
    own: dict[str, Tensor] = model.state_dict()
    unknown = sorted(set(update) - set(own))
    if unknown or not update:
        raise EngineFault(
            f"new weights must be named as in model.state_dict(), got {unknown[:5] or 'none'}"
        )
    wrong = [name for name, tensor in update.items() if tensor.shape != own[name].shape]
    if wrong:
        shapes = {name: (tuple(update[name].shape), tuple(own[name].shape)) for name in wrong[:5]}
        raise EngineFault(f"new weights must keep their shapes, got (new, own) {shapes}")
    with torch.no_grad():
        for name, tensor in update.items():
            own[name].copy_(tensor)


class TransformersEngine:
    """Samples from a transformers model, token ids in and token ids out.

    Models: text models with rotary or learned positions (Llama, Qwen, Mistral, ...), Qwen2-VL,
    Qwen2.5-VL and Qwen3-VL, on any device. Others are rejected when the engine is created.

    While the engine lives, the model's text attention is the engine's own; a forward on another
    thread (a trainer's) runs as with SDPA. `aclose` restores the previous one.
    """

    name = "transformers"
    """Short name for records."""
    logprob_kind = LogprobKind.SAMPLED
    """Log-probabilities are those of the sampled distribution; see `sampling` for top-p."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401  # a transformers model
        processor: Any | None = None,  # noqa: ANN401  # a tokenizer, a processor
        *,
        max_batch_tokens: int = 1024,
        kv_budget_tokens: int | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        threads: int | None = None,
        weight_version: str = "0",
    ) -> None:
        """Wrap a loaded model.

        Args:
            model: A causal language model or a Qwen-VL style one; the engine runs it in place.
            processor: Its tokenizer (needed for stop strings) or its processor (needed for images
                that come without features); None if neither is needed.
            max_batch_tokens: Tokens in one forward, of all sessions together.
            kv_budget_tokens: Tokens of key-value cache over all sessions; None uses a quarter of
                the device's free memory.
            device: Device to move the model to; None does not move it.
            dtype: Type to convert the model to; None does not convert it.
            seed: Seed for requests without their own.
            threads: CPU threads; None keeps torch's setting.
            weight_version: Reported with every generation until `update_weights`.

        Raises:
            ConfigurationError: An option is out of range, or the model cannot be run packed.
        """
        ranges.at_least(2, max_batch_tokens=max_batch_tokens)
        ranges.at_least(1, kv_budget_tokens=kv_budget_tokens)
        seed = checked_seed(seed)
        if device is not None or dtype is not None:
            model.to(device=device, dtype=dtype)
        model.eval()
        self.model: Any = model
        self.processor: Any | None = processor
        self.tokenizer: Any | None = getattr(processor, "tokenizer", processor)
        text_config: Any = model.config.get_text_config()
        vision = _vision_traits(model.config)
        restore = use_packed_attention(text_config)
        try:
            forward = PackedForward(model, vision)
            token_bytes = forward.check(text_config.vocab_size)
        except Exception:
            restore()
            raise
        budget = kv_budget_tokens or _default_budget(model.device, token_bytes)
        self._scheduler = Scheduler(
            forward,
            PromptBuilder(
                vocabulary=text_config.vocab_size,
                vision=vision,
                image_processor=getattr(processor, "image_processor", None),
            ),
            SessionStore(budget_tokens=budget),
            SchedulerSettings(
                max_batch_tokens=max_batch_tokens,
                context_length=getattr(text_config, "max_position_embeddings", None) or _NO_LIMIT,
                stop_ids=_stop_ids(model, self.tokenizer),
                banned_ids=() if vision is None else vision.placeholder_ids,
                seed=seed,
            ),
            tokenizer=self.tokenizer,
            weight_version=weight_version,
        )
        self._worker = Worker(self._scheduler, threads=threads)
        self._finalizer = weakref.finalize(self, _shut_down, self._worker, restore)

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was created."""
        return self._scheduler.stats

    @property
    def weight_version(self) -> str:
        """The version that generations are currently tagged with."""
        return self._scheduler.weight_version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn.

        The session's cache is kept, so the next request that extends this context prefills only its
        new tokens (`cached_tokens` says how many were not computed again). Media placeholders are
        never sampled. Requests of one session run one after the other. A generation ends with
        LENGTH at the end of the model's context.

        Raises:
            EngineFault: The request cannot be served, the forward failed, or the engine is closed.
            LedgerFault: Placeholders, images and features do not match.
        """
        return await self._sampled(request, None)

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Sample one turn as `generate` does, and report each token after its forward.

        Raises:
            EngineFault: As `generate`.
            LedgerFault: As `generate`.
        """
        return await self._sampled(request, report)

    async def _sampled(self, request: GenerateRequest, report: Report | None) -> Generation:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def complete(outcome: Generation | Fault) -> None:
            with suppress(RuntimeError):  # the loop was closed; nothing waits for it
                loop.call_soon_threadsafe(_settle, future, outcome)

        def told(token: int) -> None:
            if report is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(report, (token,))

        tell = None if report is None else told
        self._worker.post(
            Command(run=lambda: self._scheduler.submit(request, complete, tell), fail=complete)
        )
        try:
            return await future
        except asyncio.CancelledError:
            await self.abort(request.request_id)
            raise

    async def abort(self, request_id: str) -> None:
        """Stop a request; its `generate` returns the tokens so far with ABORT."""
        self._post_if_open(lambda: self._scheduler.abort(request_id))

    async def end_session(self, session_id: str) -> None:
        """Free an episode's cache. Unknown sessions are ignored."""
        self._post_if_open(lambda: self._scheduler.end_session(session_id))

    async def update_weights(self, update: WeightUpdate, *, version: str) -> None:
        """Replace weights between two forwards, and free every cache.

        It waits for running requests and holds back new ones, so every generation is sampled under
        exactly one version.

        Args:
            update: New tensors by parameter name (some or all), or a function that changes the
                model; it runs on the engine's thread.
            version: Reported with every generation from then on.

        Raises:
            EngineFault: The weights do not fit (nothing was changed), or the function raised (its
                changes remain). The version does not change.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def complete(outcome: Fault | None) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, outcome)

        def apply() -> None:
            try:
                _apply_update(self.model, update)
            except Fault as fault:
                complete(fault)
            except Exception as error:  # noqa: BLE001  # the caller's function may raise anything
                complete(EngineFault(f"the update raised {type(error).__name__}: {error}"))
            else:
                self._scheduler.weight_version = version
                complete(None)

        change = Command(run=apply, fail=complete)
        self._worker.post(Command(run=lambda: self._scheduler.update(change), fail=complete))
        await future

    async def aclose(self) -> None:
        """Stop the thread and fail pending requests; safe to call twice."""
        self._worker.close()
        await asyncio.to_thread(self._worker.join)
        self._finalizer()

    def _post_if_open(self, run: Any) -> None:  # noqa: ANN401
        with suppress(EngineFault):
            self._worker.post(Command(run=run, fail=_ignore))


def _ignore(fault: Fault) -> None:
    """Drop the fault: nothing waits for the outcome of an abort."""


def _settle(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, Fault):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _shut_down(worker: Worker, restore_attention: Any) -> None:  # noqa: ANN401
    worker.close()
    worker.join()
    restore_attention()


def _vision_traits(config: Any) -> VisionTraits | None:  # noqa: ANN401
    if getattr(config, "vision_config", None) is None:
        return None
    merge = getattr(config.vision_config, "spatial_merge_size", None)
    image_id = getattr(config, "image_token_id", None)
    rope: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if merge is None or image_id is None or "mrope_section" not in rope:
        raise ConfigurationError(
            "the embedded engine runs vision-language models of the Qwen2-VL family (multimodal "
            f"rotary positions), got {config.model_type!r}; serve it with SGLang or vLLM"
        )
    ids = (image_id, getattr(config, "video_token_id", None))
    placeholders = tuple(token for token in ids if token is not None)
    return VisionTraits(image_token_id=image_id, placeholder_ids=placeholders, merge_size=merge)


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:  # noqa: ANN401
    generation_config: Any = getattr(model, "generation_config", None)
    for owner in (generation_config, model.config.get_text_config(), tokenizer):
        ids: Any = getattr(owner, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    return ()


def _default_budget(device: torch.device, token_bytes: int) -> int:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            free = _UNKNOWN_MEMORY
    return max(4096, int(free * _MEMORY_SHARE) // max(1, token_bytes))
