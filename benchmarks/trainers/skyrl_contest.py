"""Compare SkyRL's own image generator with envkit's, over SkyRL's real HTTP client.

`SkyRLVLMGymGenerator` renders the whole conversation on the server in every turn, including images.
It decodes vLLM's format at the end of an episode; vLLM is replaced by a stand-in of the same size.
Run by benchmarks/vs_trainers.py with the interpreter of SkyRL's contract environment.
"""

import base64
import logging
import sys
import types
import typing
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import skyrl_gym
import torch
import typing_extensions
from contest import (
    ANSWER,
    QUESTION,
    WARM_UP,
    Clock,
    Load,
    Played,
    Result,
    measured,
    play,
    screenshot,
)
from fakes.codecs import vision_codec
from fakes.models import tiny_model_dir
from harness import serving
from loguru import logger
from rooms import register_rooms
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from transformers import AutoTokenizer

from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest

# skyrl/tinker/types.py uses typing.TypedDict in a pydantic model, which pydantic refuses before
# Python 3.12.
typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore[reportAttributeAccessIssue]

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (  # noqa: E402
    RemoteInferenceClient,
)
from skyrl.train.config import SkyRLGymConfig, SkyRLTrainConfig  # noqa: E402
from skyrl.train.generators.base import BatchMetadata, TrajectoryID  # noqa: E402

from envkit_skyrl import EnvGenerator, SkyRLOptions  # noqa: E402


def _content(text: str, png: bytes) -> list[dict[str, Any]]:
    uri = "data:image/png;base64," + base64.b64encode(png).decode()
    return [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": text}]


class SkyRLRooms(BaseTextEnv):
    """The rooms for SkyRL's own generator."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:  # noqa: ANN401
        super().__init__()
        del env_config
        self.extras = extras or {}

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401  # a conversation
        """Show the first room."""
        del prompt
        content = _content(QUESTION, screenshot(self.extras["episode"], 0))
        return [{"role": "user", "content": content}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Show the next room."""
        del action
        self.turns += 1
        done = self.turns >= self.extras["max_turns"]
        content = _content(ANSWER, screenshot(self.extras["episode"], self.turns))
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": content}],
            reward=0.0,
            done=done,
            metadata={},
        )


class _Item:
    """vLLM's decoded form of one image."""

    def __init__(self, data: str) -> None:
        raw = bytearray(base64.b64decode(data))
        self.grid = torch.frombuffer(raw, dtype=torch.int64, count=3)
        self.pixels = torch.frombuffer(raw, dtype=torch.bfloat16, offset=24).view(-1, 1176)

    def get_data(self) -> dict[str, torch.Tensor]:
        """Return the tensors."""
        return {"pixel_values": self.pixels, "image_grid_thw": self.grid}


def _stand_in() -> None:
    """Replace vLLM's decoder, since vLLM has no build for every machine."""
    path = "vllm.entrypoints.scale_out.token_in_token_out.mm_serde"
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[path].decode_mm_kwargs_item = _Item  # type: ignore[attr-defined]


class Contest:
    """One client and one server for both generators."""

    def __init__(self, url: str, load: Load) -> None:
        self.url, self.load = url, load
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir("qwen2_5_vl"))
        self.client = RemoteInferenceClient(
            proxy_url=url,
            server_urls=[url],
            data_parallel_size=1,
            model_name="policy",
            tokenizer=self.tokenizer,
        )
        self.cfg: Any = SkyRLTrainConfig().generator
        self.cfg.max_turns = load.turns
        self.cfg.max_input_length = 32_768
        self.cfg.sampling_params.max_generate_length = 512
        self.cfg.inference_engine.enable_ray_prometheus_stats = False  # it would need Ray otherwise
        self.cfg.inference_engine.served_model_name = "policy"
        # As `prepare_config` sets it; SkyRL's own generator sends all tensors even so.
        self.cfg.inference_engine.engine_init_kwargs = {"mm_processor_cache_gb": 4}

    def own(self) -> Any:  # noqa: ANN401  # SkyRL's generator
        """Return SkyRL's generator."""
        from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator

        return SkyRLVLMGymGenerator(self.cfg, SkyRLGymConfig(), self.client, self.tokenizer)

    def envkit(self) -> EnvGenerator:
        """Return envkit's generator."""
        section = {"env_id": "plain-rooms-v0", "env_kwargs": {"role": "user"}}
        chosen = SkyRLOptions.from_mapping(section)
        return EnvGenerator(self.cfg, self.client, vision_codec(), options=chosen)

    async def side(self, generator: Any, episodes: Sequence[int]) -> Result:  # noqa: ANN401
        """Play with one of the generators."""
        batch = {
            "prompts": [[{"role": "user", "content": QUESTION}] for _ in episodes],
            "env_classes": ["skyrl-rooms"] * len(episodes),
            "env_extras": [_extras(episode) for episode in episodes],
            "sampling_params": None,
            "trajectory_ids": [TrajectoryID(str(episode), 0) for episode in episodes],
            "batch_metadata": BatchMetadata(global_step=1, training_phase="train"),
        }

        async def play() -> Played:
            output = await generator.generate(batch, disable_tqdm=True)
            if any(len(grid) != self.load.turns for grid in output["image_grid_thw"]):
                raise SystemExit("an image of an episode did not come back")
            with urllib.request.urlopen(f"{self.url}/counts") as answer:
                turns, images = orjson.loads(answer.read())
            return Played(turns=turns, images=images, episodes=len(episodes), output=output)

        return await measured(play, server=Clock(), batch=Clock())


def _extras(episode: int) -> dict[str, Any]:
    request = EpisodeRequest(
        env_id="plain-rooms-v0", env_kwargs={"role": "user"}, task={"episode": episode}, seed=0
    )
    return {"episode": episode, ENVKIT_COLUMN: request.to_column()}


async def contest(url: str, load: Load) -> tuple[Result, Result]:
    """Return both sides, warmed up."""
    game = Contest(url, load)
    own, envkit = game.own(), game.envkit()
    _stand_in()  # now, because SkyRL's configuration checks for vLLM
    for generator in (own, envkit):
        await game.side(generator, [WARM_UP])
    first = await game.side(own, range(load.episodes))
    second = await game.side(envkit, range(load.episodes))
    await game.client.aclose()
    return first, second


def main() -> None:
    """Play and print."""
    logging.disable(logging.WARNING)
    logger.remove()
    register_rooms()
    skyrl_gym.register(id="skyrl-rooms", entry_point=SkyRLRooms)
    server = str(Path(__file__).with_name("skyrl_server.py"))
    with serving([sys.executable, "-W", "ignore", server]) as url:
        play("SkyRL 0.4.0", partial(contest, url))


if __name__ == "__main__":
    main()
