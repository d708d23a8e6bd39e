"""A fake inference server behind verl's real client, and the fakes of Ray and TransferQueue."""

# pyright: reportMissingImports=false
# verl is installed only where its contract tests run.

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

SAMPLING_KEYS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logprobs", "max_tokens",
    "max_new_tokens", "stop", "stop_token_ids", "seed", "ignore_eos", "logit_bias",
    "skip_special_tokens",
})  # fmt: skip
"""What vLLM's SamplingParams takes of verl's and envkit's keys; any other is a TypeError there."""


class Remote:
    """An object as a Ray actor's handle: its methods have an awaitable `.remote()`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = _RemoteMethod(getattr(self._target, name))
        setattr(self, name, method)  # found without this call from now on, as cheap as an actor's
        return method


class _RemoteMethod:
    """One method of an actor's handle."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._call(*args, **kwargs))

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        result = self._method(*args, **kwargs)
        return await result if asyncio.iscoroutine(result) else result


@dataclass(kw_only=True)
class Call:
    """One request as the server got it, and what it answered."""

    prompt_ids: list[int]
    params: dict[str, Any]
    request_id: str
    images: list[Any]
    reply: list[int] = field(default_factory=list)


Policy = Callable[[str, list[Any]], str | BaseException | TokenOutput]
"""From the prompt's text and its images to a reply, an error to raise, or a whole answer."""


class StrictVllmServer:
    """vLLMHttpServer.generate of verl 0.9.1: no **kwargs, its own clamps, its own checks."""

    def __init__(
        self, policy: Policy, tokenizer: Any, *, processor: Any = None, max_model_len: int = 4096
    ) -> None:
        self.policy, self.tokenizer, self.processor = policy, tokenizer, processor
        self.max_model_len = max_model_len
        self.global_steps = 7
        self.checks_images = True
        self.calls: list[Call] = []

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        kv_transfer_params: dict[str, Any] | None = None,
    ) -> TokenOutput:
        del video_data, audio_data, mm_processor_kwargs, priority, kv_transfer_params
        assert isinstance(prompt_ids, list)
        assert {type(identity) for identity in prompt_ids} == {int}
        unknown = set(sampling_params) - SAMPLING_KEYS
        if unknown:
            raise TypeError(f"Unexpected keyword argument {sorted(unknown)}")
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ValueError(f"Prompt length ({len(prompt_ids)}) leaves no room to generate")
        images = list(image_data or [])
        if self.checks_images:
            self._check_images(prompt_ids, images)
        call = Call(
            prompt_ids=list(prompt_ids),
            params=dict(sampling_params),
            request_id=request_id,
            images=images,
        )
        self.calls.append(call)
        await asyncio.sleep(0)
        answer = self.policy(self.tokenizer.decode(prompt_ids), images)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, TokenOutput):
            return answer
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        ids.append(self.tokenizer.eos_token_id)
        ids = ids[: max(1, min(sampling_params.get("max_tokens", 64), room))]
        call.reply = self._stopped(ids, sampling_params)
        wants = sampling_params.get("logprobs")
        return TokenOutput(
            token_ids=call.reply,
            log_probs=[-0.5 - index / 100 for index in range(len(call.reply))] if wants else None,
            stop_reason="completed",  # what verl's vLLM server says of cut replies too
            num_preempted=0,
            extra_fields={"global_steps": self.global_steps, "num_cached_tokens": 3},
        )

    def _stopped(self, ids: list[int], params: dict[str, Any]) -> list[int]:
        """Return ids up to the end of a stop string, as vLLM's detokenizer finds it."""
        stops, skips = params.get("stop") or (), params.get("skip_special_tokens", True)
        for count in range(1, len(ids) + 1):
            text = self.tokenizer.decode(ids[:count], skip_special_tokens=skips)
            if any(stop in text for stop in stops):
                return ids[:count]
        return ids

    def _check_images(self, prompt_ids: list[int], images: Sequence[Any]) -> None:
        """Process images as vLLM does, and compare with the placeholders that were sent."""
        if self.processor is None:
            assert not images
            return
        pad = self.processor.image_token_id
        wire = qwen2_5_vl_dedup_image_tokens(prompt_ids, self.processor)
        assert wire.count(pad) == len(images), (wire.count(pad), len(images))
        if not images:
            return
        assert all(image.mode == "RGB" for image in images)
        processor = self.processor.image_processor
        grids = processor(images=images, return_tensors="pt")["image_grid_thw"]
        expanded = int(grids.prod(-1).sum()) // processor.merge_size**2
        assert prompt_ids.count(pad) == expanded, (prompt_ids.count(pad), expanded)


def make_client(config: Any, *servers: Any, client_class: type[Any] = LLMServerClient) -> Any:
    """Return verl's real client with its real balancer in front of some servers."""
    handles = {f"server-{number}": Remote(server) for number, server in enumerate(servers)}
    return client_class(config, load_balancer_handle=Remote(GlobalRequestLoadBalancer(handles)))


class FakeTransferQueue:
    """Keeps what the V1 worker puts."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, str]] = []
        self.puts: list[tuple[list[str], Any, list[dict[str, Any]]]] = []

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        del partition_id
        self.statuses.append((key, tag["status"]))

    async def async_kv_batch_put(
        self, keys: list[str], fields: Any, tags: list[dict[str, Any]], partition_id: str
    ) -> None:
        del partition_id
        self.puts.append((keys, fields, tags))
