"""State shared by a process's samples: engine, codecs, players, abort flag.

A runtime belongs to one event loop and one `GenerateState`. slime runs everything on one background
loop (slime/utils/async_utils.py), so there is one in practice.
"""

import asyncio
import json
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from envkit.errors import ConfigurationError, EnvkitError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.player import AnyPlayer, Player
from envkit.rollout.setup import GroupStart
from envkit.tokens import ChatCodec
from envkit.tokens.loading import generation_stops
from envkit_remote.model import model_facts
from envkit_slime.engine import GenerateState, SlimeEngine
from envkit_slime.remote import WorkerRecipe

POLL_S: Final = 0.05
"""Seconds between checks of the abort flag."""
_GROUPS: Final = 4096


class Runtime:
    """Engine, codecs and players for one state on the running loop."""

    def __init__(
        self, args: Namespace, state: GenerateState, base_url: str, options: Mapping[str, Any]
    ) -> None:
        """Store the settings; nothing is connected or built yet.

        Args:
            args: The trainer's arguments.
            state: Holds tokenizer, processor and the abort flag.
            base_url: Address of the router.
            options: Options of `SlimeEngine`, which override those from the arguments.

        Raises:
            ConfigurationError: The engine does not accept an option.
        """
        self.state = state
        self.stop_ids = generation_stops(args.hf_checkpoint)
        known: dict[str, Any] = dict(model_facts(args.hf_checkpoint))
        context = getattr(args, "sglang_context_length", None)
        if context is not None:
            known["context_length"] = int(context)
        self._vocabulary_size: int | None = known.get("vocabulary_size")
        self._wants_experts = bool(getattr(args, "use_rollout_routing_replay", False))
        # miles gives the file's template to the tokenizer only; a processor keeps its own.
        self._has_template_file = bool(getattr(args, "chat_template_path", None))
        self._base_url, self._engine_arguments = base_url, {**known, **options}
        try:
            self.engine = SlimeEngine(base_url, **self._engine_arguments)
        except TypeError as error:
            raise ConfigurationError(f"envkit.engine: {error}") from error
        self._codecs: dict[str, ChatCodec] = {}
        self._players: dict[str, AnyPlayer] = {}
        self._building = asyncio.Lock()
        self._interrupt = Interrupt()
        self._active = 0
        self._watching: asyncio.Task[None] | None = None
        self._starts: OrderedDict[str, GroupStart] = OrderedDict()

    async def player(self, config: RolloutConfig) -> AnyPlayer:
        """Return the player of these settings; the codec is built on a thread, once.

        With `workers` it plays in actors of the trainer's Ray cluster.

        Raises:
            MissingDependencyError: Workers are requested, and Ray is not installed.
            TemplateError: The model's chat template cannot be encoded exactly.
            ConfigurationError: The codec cannot be built for another reason.
        """
        codec_key = json.dumps(
            [config.codec_history, dict(config.template_kwargs)], sort_keys=True, default=str
        )
        own = (config.history, config.retries, config.adjust_rewards)
        key = f"{codec_key}{own}{config.workers}{config.player_options}"
        async with self._building:
            if codec_key not in self._codecs:
                self._codecs[codec_key] = await asyncio.to_thread(self._codec, config)
            if key not in self._players:
                self._players[key] = (
                    self._on_workers(config)
                    if config.workers
                    else Player(self.engine, self._codecs[codec_key], config)
                )
        return self._players[key]

    def _on_workers(self, config: RolloutConfig) -> AnyPlayer:
        from envkit_ray import RayPlayer  # only for settings that ask for workers

        recipe = WorkerRecipe(
            base_url=self._base_url,
            engine=self._engine_arguments,
            processor=self.state.processor or self.state.tokenizer,
            codec=self._codec_arguments(config),
            config=config.of_worker(),
            wants_experts=self._wants_experts,
        )
        has_tensors = self.state.processor is not None  # of images, which training rows hold
        return RayPlayer(recipe, config, keeps_features=has_tensors)

    def _codec_arguments(self, config: RolloutConfig) -> dict[str, Any]:
        template: dict[str, Any] = {}
        if self._has_template_file:
            template["chat_template"] = self.state.tokenizer.chat_template
        return {
            "template_kwargs": {**template, **config.template_kwargs},
            "history": config.codec_history,
            "stop_ids": self.stop_ids,
            "vocabulary_size": self._vocabulary_size,
        }

    def _codec(self, config: RolloutConfig) -> ChatCodec:
        try:
            processor = self.state.processor or self.state.tokenizer
            return ChatCodec(processor, **self._codec_arguments(config))
        except EnvkitError:
            raise
        except Exception as error:  # every sample would fail
            raise ConfigurationError(f"the model's codec cannot be built: {error!r}") from error

    @contextmanager
    def episode(self) -> Generator[Interrupt]:
        """Provide an interrupt that fires when the trainer sets its abort flag, for one episode."""
        if self._interrupt.reason is not None and not self.state.aborted:
            self._interrupt = Interrupt()  # of an earlier rollout
        self._active += 1
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield self._interrupt
        finally:
            self._active -= 1
            if not self._active:
                self._watching.cancel()

    async def _watch(self) -> None:
        """Stop waits outside the server: retries, connections, slow steps."""
        while True:
            if self.state.aborted:
                self._interrupt.fire()
            await asyncio.sleep(POLL_S)

    def group_start(self, group_id: str | None) -> GroupStart | None:
        """Return what the members of a group compare their first observation with."""
        if group_id is None:
            return None
        start = self._starts.setdefault(group_id, GroupStart())
        self._starts.move_to_end(group_id)
        while len(self._starts) > _GROUPS:
            self._starts.popitem(last=False)
        return start

    async def aclose(self) -> None:
        """Close environments, threads and connections."""
        for player in self._players.values():
            await player.aclose()
        self._players.clear()
        await self.engine.aclose()


_runtimes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, str], Runtime]] = (
    WeakKeyDictionary()
)


def runtime_of(
    args: Namespace,
    state: GenerateState,
    options: Mapping[str, Any],
    *,
    make: Callable[..., Runtime] = Runtime,
) -> Runtime:
    """Return the running loop's runtime for a state, made on first use.

    Raises:
        ConfigurationError: The engine does not accept an option, or an address is invalid.
    """
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    mine = _runtimes.setdefault(asyncio.get_running_loop(), {})
    key = (id(state), url + json.dumps(dict(options), sort_keys=True, default=str))
    if key not in mine:
        mine[key] = make(args, state, url, options)
    return mine[key]


async def close_runtimes() -> None:
    """Close this module's state for the running loop; a later episode recreates it."""
    for runtime in _runtimes.pop(asyncio.get_running_loop(), {}).values():
        await runtime.aclose()
