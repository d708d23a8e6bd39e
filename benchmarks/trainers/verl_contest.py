"""Compare verl's own tool agent loop with envkit's, in verl's real worker (V0).

Run by benchmarks/vs_trainers.py with the interpreter of verl's contract environment.
"""

import logging
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from contest import (
    ANSWER,
    QUESTION,
    REPLY,
    TOKENS,
    WARM_UP,
    Clock,
    Load,
    Played,
    Result,
    measured,
    picture,
    play,
)
from fakes.models import tiny_model_dir
from fakes.verl_server import SAMPLING_KEYS, make_client
from fakes.verl_worker import Bench, Sample
from omegaconf import OmegaConf
from rooms import register_rooms
from verl.protocol import DataProto
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse
from verl.workers.rollout.replica import TokenOutput

from envkit.rollout import EpisodeRequest

SCHEMA: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where to look."}},
            "required": ["place"],
        },
    },
}


class LookTool(BaseTool):
    """The same for verl's own loop."""

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        *,
        agent_data: Any,  # noqa: ANN401  # verl's state of the episode
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Show the next room."""
        del instance_id, parameters
        episode = agent_data.tools_kwargs["look"]["create_kwargs"]["episode"]
        room = picture(episode, agent_data.assistant_turns)
        return ToolResponse(text=ANSWER, image=[room]), 0.0, {}


def _process_vision_info(
    messages: list[dict[str, Any]], *, image_patch_size: int, return_video_metadata: bool
) -> tuple[list[Any], None]:
    """Return the images of a prompt; the real one does more, and needs torchvision."""
    del image_patch_size, return_video_metadata
    parts = [part for entry in messages for part in entry["content"]]
    return [part["image"] for part in parts if part["type"] == "image"], None


def _stand_in() -> None:
    module = types.ModuleType("qwen_vl_utils")
    module.process_vision_info = _process_vision_info  # type: ignore[attr-defined]
    sys.modules["qwen_vl_utils"] = module


class Server:
    """Answers immediately with the same reply; counts placeholders and its own time."""

    def __init__(self, clock: Clock) -> None:
        self.tokenizer: Any = None
        self.processor: Any = None
        self.clock = clock
        self.ids: list[int] = []
        self.images = 0
        self.turns = 0

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
    ) -> TokenOutput:
        """Answer; parameter names follow vLLM's server in verl 0.9.1."""
        del request_id, video_data, audio_data, mm_processor_kwargs, priority
        with self.clock.running():
            images = image_data or []
            if set(sampling_params) - SAMPLING_KEYS:
                raise TypeError(f"unknown sampling parameters in {sorted(sampling_params)}")
            pad = self.processor.image_token_id
            if prompt_ids.count(pad) != TOKENS * len(images):
                raise ValueError(f"{prompt_ids.count(pad)} placeholders, {len(images)} images")
            if not self.ids:
                self.ids = self.tokenizer.encode(REPLY, add_special_tokens=False)
                self.ids.append(self.tokenizer.eos_token_id)
            self.turns += 1
            self.images += len(images)
        return TokenOutput(
            token_ids=list(self.ids),
            log_probs=[-0.5] * len(self.ids),
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": 1},
        )


def _reply(_text: str, _images: list[Any]) -> str:
    return REPLY


class Contest:
    """The worker of one side. They differ in verl's tools, which envkit's loop refuses."""

    def __init__(self, folder: Path, load: Load, agent_name: str) -> None:
        self.agent_name = agent_name
        self.server_clock, self.batch_clock = Clock(), Clock()
        folder.mkdir()
        tools = folder / "tools.yaml"
        entry = {
            "class_name": "verl_contest.LookTool",
            "config": {"type": "native"},
            "tool_schema": SCHEMA,
        }
        tools.write_text(OmegaConf.to_yaml(OmegaConf.create({"tools": [entry]})))
        rollout = "actor_rollout_ref__rollout"
        loop = {"env_id": "rooms-v0", "limits": {"max_turns": load.turns}}
        overrides: dict[str, Any] = {
            f"{rollout}__prompt_length": 1024,
            f"{rollout}__response_length": 16_384,
            f"{rollout}__multi_turn__format": "hermes",
            f"{rollout}__multi_turn__max_assistant_turns": load.turns,
        }
        if agent_name == "tool_agent":
            overrides[f"{rollout}__multi_turn__tool_config_path"] = str(tools)
        self.bench = Bench(
            "v0",
            folder,
            _reply,
            loop={"envkit": loop},
            model=tiny_model_dir("qwen2_5_vl"),
            max_model_len=32_768,
            **overrides,
        )

        self._count_batches()

    def _count_batches(self) -> None:
        """Count the worker's processing of a loop's output, which never waits."""
        worker: Any = self.bench.worker
        finish, collate = worker._agent_loop_postprocess, worker._postprocess

        async def counted_finish(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # verl's
            with self.batch_clock.running():
                return await finish(*args, **kwargs)

        def counted_collate(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # verl's
            with self.batch_clock.running():
                return collate(*args, **kwargs)

        worker._agent_loop_postprocess, worker._postprocess = counted_finish, counted_collate

    async def side(self, episodes: Sequence[int]) -> Result:
        """Play with the side's loop."""
        server = Server(self.server_clock)
        worker = self.bench.worker
        server.tokenizer, server.processor = worker.tokenizer, worker.processor
        worker.llm_client = make_client(self.bench.config, server)
        rows = [_row(self.agent_name, episode) for episode in episodes]
        batch = DataProto.from_dict(
            tensors={"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)},
            non_tensors={key: _column([row[key] for row in rows]) for key in rows[0]},
            meta_info={"global_steps": 1, "validate": False},
        )

        async def play() -> Played:
            output = await worker.generate_sequences(batch)
            return Played(
                turns=server.turns, images=server.images, episodes=len(episodes), output=output
            )

        return await measured(play, server=self.server_clock, batch=self.batch_clock)


def _row(agent_name: str, episode: int) -> dict[str, Any]:
    """Return a row whose prompt has an image; envkit's loop makes its own."""
    request = EpisodeRequest(env_id="rooms-v0", task={"episode": episode}, seed=0)
    room = {"type": "image", "image": picture(episode, 0)}
    sample = Sample(
        envkit=request.to_column(), uid=f"u{episode}", index=episode, agent_name=agent_name
    )
    return {
        **sample.columns(),
        "raw_prompt": [{"role": "user", "content": [room, {"type": "text", "text": QUESTION}]}],
        "tools_kwargs": {"look": {"create_kwargs": {"episode": episode}}},
    }


def _column(values: list[Any]) -> Any:  # noqa: ANN401  # an array of objects
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


async def contest(load: Load) -> tuple[Result, Result]:
    """Return both sides, warmed up."""
    with tempfile.TemporaryDirectory() as folder:
        games = [Contest(Path(folder) / name, load, name) for name in ("tool_agent", "envkit")]
        for game in games:
            await game.side([WARM_UP])
        own, envkit = [await game.side(range(load.episodes)) for game in games]
        return own, envkit


def main() -> None:
    """Play and print."""
    logging.disable(logging.WARNING)
    _stand_in()
    register_rooms()
    play("verl 0.9.1", contest)


if __name__ == "__main__":
    main()
