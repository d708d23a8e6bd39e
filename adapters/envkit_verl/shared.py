"""State shared by a rollout worker's episodes: codec, engine, threads, environments, groups.

verl builds a loop object for every trajectory (agent_loop.py:683 of verl 0.9.1), so costly objects
live here, once per event loop, client and configuration.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.player import Player
from envkit.tokens import ChatCodec
from envkit.tokens.loading import generation_stops, read_json, vocabulary_size_of
from envkit_verl.contract import CONTRACT
from envkit_verl.engine import VerlEngine
from envkit_verl.groups import Groups
from envkit_verl.settings import VLLM, VerlSettings


class SharedRollout:
    """Long-lived state of `EnvAgentLoop`."""

    def __init__(self, loop: Any, options: Mapping[str, Any]) -> None:  # noqa: ANN401  # of verl
        """Create codec, engine and player on the running event loop.

        Args:
            loop: Any of verl's loop objects, which all have the same parts: `server_manager`,
                `tokenizer`, `processor` (None for a text model), `config` (the trainer's) and
                `data_config` (its section `data`).
            options: The `envkit` mapping of the loop's YAML entry.

        Raises:
            ConfigurationError: Unknown options, or incompatible settings.
            TemplateError: The model's chat template cannot be encoded exactly.
        """
        self.loop = loop
        self.config = RolloutConfig.for_trainer(
            options, tail="async_training.partial_rollout of its fully asynchronous policy"
        )
        if self.config.workers:
            raise ConfigurationError(
                "verl already plays in its own Ray workers, got envkit.workers="
                f"{self.config.workers}; drop it and raise rollout.agent.num_workers"
            )
        self.settings = VerlSettings.from_config(loop.config)
        self.mm_processor_kwargs = plain(loop.data_config.get("mm_processor_kwargs"))
        self.codec = self._codec()
        self.engine = self._engine()
        self.player = Player(
            self.engine,
            self.codec,
            replace(self.config, limits=self.settings.limits(self.config.limits)),
        )
        self.groups = Groups()

    def _codec(self) -> ChatCodec:
        loop, config = self.loop, self.config
        kwargs = plain(loop.data_config.get("apply_chat_template_kwargs"))
        processor, folder = loop.processor, _model_folder(loop.tokenizer)
        if processor is not None and self.mm_processor_kwargs:
            processor = _Configured(processor, self.mm_processor_kwargs)
        return ChatCodec(
            loop.tokenizer if processor is None else processor,
            template_kwargs=kwargs | dict(config.template_kwargs),
            stop_ids=generation_stops(folder) if folder else None,
            vocabulary_size=vocabulary_size_of(folder) if folder else None,
            history=config.codec_history,
            lazy_features=True,  # verl's worker processes the images itself
        )

    def _engine(self) -> VerlEngine:
        unknown = sorted(set(self.config.engine) - {"timeout_s"})
        if unknown:
            raise ConfigurationError(
                f"envkit.engine may hold 'timeout_s', the seconds for one reply, got {unknown}"
            )
        loop, placeholder = self.loop, self.codec.audit().image_placeholder
        image_processor = getattr(loop.processor, "image_processor", None)
        return VerlEngine(
            loop.server_manager,
            self.settings,
            placeholder_id=None
            if placeholder is None
            else int(loop.tokenizer.convert_tokens_to_ids(placeholder)),
            sends_expanded=self.settings.backend == VLLM
            and "Qwen2VLImageProcessor" in type(image_processor).__name__,
            mm_processor_kwargs=self.mm_processor_kwargs,
            routing_shape=_routing_shape(loop.tokenizer) if self.settings.keeps_routing else None,
            timeout_s=self.config.engine.get("timeout_s"),
        )

    @property
    def filler_id(self) -> int:
        """A token for samples without tokens."""
        return self.codec.stop_ids[0]

    @property
    def branching_setting(self) -> str | None:
        """The setting by which a trajectory may become more than one row."""
        return self.config.branching_setting(self.codec)


_kept: dict[asyncio.AbstractEventLoop, dict[str, SharedRollout]] = {}


def shared_rollout(loop: Any, options: Mapping[str, Any]) -> SharedRollout:  # noqa: ANN401  # as above
    """Return the shared rollout of loops with these parts and options on the running event loop."""
    for dead in [one for one in _kept if one.is_closed()]:
        del _kept[dead]
    known = _kept.setdefault(asyncio.get_running_loop(), {})
    # A cached rollout keeps its loop's parts alive, so their ids are not reused.
    identities = (id(loop.server_manager), id(loop.tokenizer), id(loop.processor))
    key = json.dumps([identities, options], sort_keys=True, default=str)
    if key not in known:
        CONTRACT.check()
        known[key] = SharedRollout(loop, options)
    return known[key]


async def aclose_shared() -> None:
    """Close the environments and threads of the running event loop's rollouts.

    verl kills its worker processes, so only tests and notebooks need this.
    """
    known = _kept.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(rollout.player.aclose() for rollout in known.values()))


class _Configured:
    """A processor called with `data.mm_processor_kwargs`, as verl's worker calls it."""

    def __init__(self, processor: Any, kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        self._processor, self._kwargs = processor, dict(kwargs)

    def __call__(self, **inputs: Any) -> Any:  # noqa: ANN401  # a BatchFeature
        """Return the processor's outputs for some text and images."""
        return self._processor(**inputs, **self._kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._processor, name)


def plain(node: Any) -> dict[str, Any]:  # noqa: ANN401  # a mapping of OmegaConf or Python, or None
    """Return a configuration node as a dictionary; empty for None."""
    from omegaconf import OmegaConf

    if node is None:
        return {}
    found: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return dict(found)


def _model_folder(tokenizer: Any) -> str:  # noqa: ANN401  # a transformers tokenizer
    """Return the model's folder on this machine; empty for a tokenizer that was made in memory."""
    from huggingface_hub import try_to_load_from_cache

    name = str(getattr(tokenizer, "name_or_path", ""))
    if not name or Path(name).is_dir():
        return name
    found: object = None
    with suppress(ValueError):  # neither a folder nor a name of the hub
        # verl has loaded the model, so a hub name is in the cache; asking the hub would only wait.
        found = try_to_load_from_cache(name, "config.json")
    return str(Path(found).parent) if isinstance(found, str) else ""


def _routing_shape(tokenizer: Any) -> tuple[int, ...] | None:  # noqa: ANN401  # of transformers
    """Return (layers, experts per token) from the model's config.json, or None.

    An episode may fail before a server reports the shape, and its row needs it too.
    """
    folder = _model_folder(tokenizer)
    config = read_json(folder, "config.json") if folder else {}
    text = {**config, **(config.get("text_config") or {})}
    layers, experts = text.get("num_hidden_layers"), text.get("num_experts_per_tok")
    return None if layers is None or experts is None else (int(layers), int(experts))
