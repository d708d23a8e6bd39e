"""Compare TRL's tool loop with an `environment_factory` with envkit's trainer, in GRPOTrainer.

Both run TRL's `_generate_and_score_completions`; its work after the rollouts is reported separately
as the trainer's batch. TRL's loop samples all rows at once in `_generate_single_turn`, which the
fake server replaces; envkit calls it row by row. Run by benchmarks/vs_trainers.py with the
interpreter of TRL's contract environment.
"""

import copy
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from contest import (
    ANSWER,
    QUESTION,
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
from datasets import Dataset, disable_progress_bars
from fakes.codecs import vision_codec
from fakes.models import tiny_model_dir
from rooms import register_rooms
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from trl_server import Replies, Server

from envkit.rollout import EpisodeRequest
from envkit.rollout.config import RolloutConfig
from envkit_transformers.loading import load_model
from envkit_trl import EnvGRPOTrainer, load_processor


class TrlRooms:
    """The rooms for TRL's own loop: public methods are tools."""

    def reset(self, **row: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # the dataset's columns
        """Show the first room."""
        self._episode, self._number = row["episode"], 0
        return self._show(QUESTION)

    def get_reward(self) -> float:
        """Return a constant reward."""
        return 0.0

    def look(self, place: str) -> list[dict[str, Any]]:
        """Look somewhere.

        Args:
            place: Where to look.
        """
        del place
        self._number += 1
        return self._show(ANSWER)

    def _show(self, text: str) -> list[dict[str, Any]]:
        room = picture(self._episode, self._number)
        return [{"type": "image", "image": room}, {"type": "text", "text": text}]


class OwnTrainer(GRPOTrainer):
    """TRL's trainer with the fake server in place of a model."""

    server: Server

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: list[list[Any] | None] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], list[list[float]]]:
        del multimodal_fields, num_generations, has_tool_images
        server = self.server
        with server.clock.running():
            for ids, shown in zip(prompt_ids, images or [], strict=True):
                server.check(ids.count(server.pad) // TOKENS, len(shown or []))
        count = len(server.ids)
        return [list(server.ids) for _ in prompt_ids], [[-0.5] * count for _ in prompt_ids]


class Contest:
    """A trainer per side, with the same model."""

    def __init__(self, folder: Path, load: Load) -> None:
        self.server = Server()
        self.load = load
        folder_of_model = str(tiny_model_dir("qwen2_5_vl"))
        model, _ = load_model(folder_of_model, dtype="float32")
        self.processor = load_processor(folder_of_model)
        # TRL recognises this form of tool calls only by the templates of other Qwen models.
        self.processor.tokenizer.response_template = qwen3_template
        self.model = model
        self.shared: dict[str, Any] = {
            "output_dir": str(folder),
            "per_device_train_batch_size": 2,
            "num_generations": 2,
            "max_completion_length": 8_000,
            "max_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
        }

    def own(self) -> Any:  # noqa: ANN401  # a trainer
        """Return TRL's trainer."""
        trainer: Any = OwnTrainer(
            copy.deepcopy(self.model),
            args=GRPOConfig(**self.shared, max_tool_calling_iterations=self.load.turns - 1),
            processing_class=copy.deepcopy(self.processor),
            train_dataset=Dataset.from_list(_rows(range(2))),
            environment_factory=TrlRooms,
        )
        trainer.server = self.server
        return _ungrouped(trainer)

    def envkit(self) -> Any:  # noqa: ANN401  # a trainer
        """Return envkit's trainer."""

        async def keep(_model: Any, _version: str) -> None:  # noqa: ANN401  # no weights are used
            return

        limits = {"max_turns": self.load.turns}
        trainer = EnvGRPOTrainer(
            copy.deepcopy(self.model),
            engine=Replies(self.server),
            codec=vision_codec(),
            config=RolloutConfig.from_mapping({"env_id": "rooms-v0", "limits": limits}),
            send_weights=keep,
            args=GRPOConfig(**self.shared),
            processing_class=copy.deepcopy(self.processor),
            train_dataset=Dataset.from_list(_rows(range(2))),
        )
        return _ungrouped(trainer)

    async def side(self, trainer: Any, episodes: Sequence[int]) -> Result:  # noqa: ANN401
        """Play with one of the trainers."""
        server, batch, finished = self.server, Clock(), 0.0
        server.turns = server.images = 0
        generate = trainer._generate

        def timed(prompts: list[Any]) -> Any:  # noqa: ANN401  # TRL's columns
            nonlocal finished
            columns = generate(prompts)
            finished = time.process_time()
            return columns

        async def play() -> Played:
            output = trainer._generate_and_score_completions(_rows(episodes))
            batch.seconds = time.process_time() - finished
            return Played(
                turns=server.turns, images=server.images, episodes=len(episodes), output=output
            )

        trainer._generate = timed
        try:
            return await measured(play, server=server.clock, batch=batch)
        finally:
            trainer._generate = generate


def _ungrouped(trainer: Any) -> Any:  # noqa: ANN401  # a trainer
    """Make every row its own group, since all images differ; TRL's arguments reject that."""
    trainer.num_generations = trainer.num_generations_eval = 1
    return trainer


def _rows(episodes: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": ""}],
            "episode": episode,
            "envkit": EpisodeRequest(
                env_id="rooms-v0", task={"episode": episode}, seed=0
            ).to_column(),
        }
        for episode in episodes
    ]


async def contest(load: Load) -> tuple[Result, Result]:
    """Return both sides, warmed up."""
    with tempfile.TemporaryDirectory() as folder:
        game = Contest(Path(folder), load)
        own, envkit = game.own(), game.envkit()
        for trainer in (own, envkit):
            await game.side(trainer, [WARM_UP] * 2)
        first = await game.side(own, range(load.episodes))
        second = await game.side(envkit, range(load.episodes))
        envkit.close()
        return first, second


def main() -> None:
    """Play and print."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    disable_progress_bars()
    register_rooms()
    play("TRL 1.16.0", contest)


if __name__ == "__main__":
    main()
