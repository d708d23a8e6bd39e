"""A run of slime without GPUs: its arguments, a server in a thread, and samples to roll out."""

import asyncio
import threading
from argparse import Namespace
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from fakes.codecs import text_codec, vision_codec
from fakes.envs import EchoEnv, register_missing
from fakes.models import tiny_model_dir
from fakes.sglang_server import FakeSGLang
from fakes.sglang_worker import Script

from envkit.env import Capabilities, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.tasks import Task
from envkit.tokens import ChatCodec


class BrokenEnv(EchoEnv):
    """Fails where it is told to, in a way that no retry fixes."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def __init__(self, *, at: str = "step", render_mode: str | None = None) -> None:
        super().__init__(max_turns=4, render_mode=render_mode)
        self.at = at

    def on_reset(self, task: Task) -> Turn:
        if self.at == "reset":
            raise EnvFault("no backend", kind=FaultKind.PERMANENT)
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        if self.at == "step":
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        if self.at == "bug":
            raise KeyError("bug")
        return super().on_turn(response_text)


def register_broken() -> None:
    """Make `toy-broken-v0` known; a second call changes nothing."""
    register_missing({"toy-broken-v0": BrokenEnv})


def slime_args(url: str, model: str, envkit: dict[str, Any], **overrides: Any) -> Namespace:
    """Return every attribute that slime's rollout reads, for one server at an address."""
    parts = urlsplit(url)
    values: dict[str, Any] = {
        "envkit": envkit,
        "hf_checkpoint": model,
        "sglang_server_concurrency": 64,
        "rollout_num_engines": 1,
        "use_distributed_post": False,
        "sglang_dp_size": 1,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 512,
        "rollout_max_context_len": None,
        "eval_max_context_len": None,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": False,
        "rollout_seed": 42,
        "n_samples_per_prompt": 2,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 2,
        "ci_test": False,
        "use_rollout_routing_replay": False,
        "sglang_router_ip": parts.hostname,
        "sglang_router_port": parts.port,
        "router_policy": None,
        "sglang_speculative_algorithm": None,
        "partial_rollout": False,
        "mask_offpolicy_in_partial_rollout": False,
        "group_rm": False,
        "reward_key": None,
        "eval_reward_key": None,
        "rm_type": None,
        "custom_generate_function_path": "envkit_slime.generate",
        "custom_rm_path": None,
        "custom_reward_post_process_path": None,
        "rollout_global_dataset": True,
        "rollout_shuffle": False,
        "dynamic_sampling_filter_path": None,
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "rollout_sample_hook_path": [],
        "buffer_filter_path": None,
        "apply_chat_template": True,
        "apply_chat_template_kwargs": {},
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "num_layers": 2,
        "moe_router_topk": 2,
        "save": None,
        "load": None,
    }
    return Namespace(**{**values, **overrides})


class Served:
    """A fake server on an event loop of its own thread, so that slime's loop can be another."""

    def __init__(self, server: Callable[[], FakeSGLang], model: str) -> None:
        self.model = model
        self.loop = asyncio.new_event_loop()
        self._make = server
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.fake: FakeSGLang

    def __enter__(self) -> Self:
        self._thread.start()

        async def make() -> FakeSGLang:
            fake = self._make()
            await fake.start()
            return fake

        self.fake = self.run(make())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run(self.fake.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the server's loop and wait for it."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(120)

    @property
    def url(self) -> str:
        """Base address."""
        return self.fake.url

    def args(self, envkit: dict[str, Any], **overrides: Any) -> Namespace:
        """Return slime's arguments for this server."""
        return slime_args(self.url, self.model, envkit, **overrides)


def vision_server(script: Script, **settings: Any) -> Served:
    """Return a server of the tiny Qwen2.5-VL, whose replies are written as text."""
    return _served("qwen2_5_vl", vision_codec(), script, settings)


def text_server(script: Script, **settings: Any) -> Served:
    """Return a server of the tiny Llama."""
    return _served("llama", text_codec(), script, settings)


def _served(kind: str, codec: ChatCodec, script: Script, settings: dict[str, Any]) -> Served:
    def encode(text: str) -> list[int]:
        return list(codec.encode_reply(text))[:-1]

    defaults: dict[str, Any] = {
        "encode": encode,
        "decode": codec.decode,
        "eos_ids": codec.stop_ids,
        "image_token_id": codec.media_ids[0] if codec.media_ids else None,
        "vocabulary_size": None,
    }
    return Served(lambda: FakeSGLang(script, **{**defaults, **settings}), str(tiny_model_dir(kind)))


DOTS: dict[str, Any] = {"env_id": "toy-dots-v0", "env_kwargs": {"rounds": 3, "max_turns": 4}}
"""Four turns of an image each, unless three are counted right."""
ECHO: dict[str, Any] = {"env_id": "toy-echo-v0", "env_kwargs": {"max_turns": 3}}
