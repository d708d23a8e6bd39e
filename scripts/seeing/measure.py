"""Measure a model: rewards with the right images, blank ones, and those of another task.

    python scripts/seeing/measure.py build/seeing/model --episodes 256

Task seeds differ from those in training. Prints a Markdown table.
"""

import argparse
import asyncio
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from policy import LEARNED

import envkit
from envkit.rollout import Engine, Limits, RolloutConfig, collect
from envkit.seeds import derive_seed
from envkit.tokens import load_codec
from envkit.wrappers import BlankImage, SwapImage
from envkit_transformers import create_engine

_MAX_TURNS: Final = 6
"""More turns than the tasks need, so blind policies end early."""
_SEED: Final = derive_seed("measure", 0)
_WRAPS: Final[Mapping[str, Any]] = {"blank": BlankImage, "swapped": SwapImage}
_ALL: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An environment to measure on."""

    title: str
    env_id: str
    arguments: Mapping[str, Any]


def _desktop(family: str, **more: str) -> Trial:
    arguments = {"level": 1, "families": [family], **more}
    said = "".join(f", {name}={value}" for name, value in more.items())
    return Trial(
        title=f"`computer-use-v0` level 1 {family}{said}",
        env_id="computer-use-v0",
        arguments=arguments,
    )


def _world(env_id: str) -> Trial:
    return Trial(title=f"`{env_id}` level 1", env_id=env_id, arguments={"level": 1})


TRIALS: Final = (
    Trial(title="`canary-v0`, defaults", env_id="canary-v0", arguments={}),
    Trial(
        title="`canary-v0`, 4 of all 36 characters",
        env_id="canary-v0",
        arguments={"alphabet": _ALL},
    ),
    Trial(
        title="`canary-v0`, one digit",
        env_id="canary-v0",
        arguments={"length": 1, "alphabet": "0123456789"},
    ),
    Trial(
        title="`canary-v0`, 8 of all 36 characters",
        env_id="canary-v0",
        arguments={"length": 8, "alphabet": _ALL},
    ),
    _desktop("move_window"),
    _desktop("resize_window"),
    *(_world(env_id) for env_id in LEARNED),
)
BEYOND: Final = (
    Trial(title="`canary-v0`, length 12", env_id="canary-v0", arguments={"length": 12}),
    _desktop("move_window", split="test"),
    _desktop("press_button"),
    _desktop("set_sliders"),
    Trial(
        title="`computer-use-v0` level 2 move_window",
        env_id="computer-use-v0",
        arguments={"level": 2, "families": ["move_window"]},
    ),
    Trial(title="`geo3k-v0` level 1", env_id="geo3k-v0", arguments={"level": 1}),
    *(_world(env_id) for env_id in ("visual/pegs-v0", "visual/tint-v0")),
)
"""Trials outside the model's training."""


class Measurer:
    """Plays trials with one model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engine: Engine = create_engine(folder, threads=1, seed=0)

    def reward(
        self, trial: Trial, *, episodes: int, temperature: float, wrap: str | None = None
    ) -> float:
        """Return the mean reward of a trial.

        Args:
            trial: The trial to play.
            episodes: Number of episodes, each with its own task.
            temperature: Sampling temperature; 0 is greedy.
            wrap: "blank" or "swapped"; None shows the right images.
        """
        make = functools.partial(envkit.make, trial.env_id, **trial.arguments)
        factory = make if wrap is None else lambda: _WRAPS[wrap](make())
        env: Any = make().unwrapped
        codec = load_codec(self._folder, tools=env.tools)
        config = RolloutConfig(
            seed=_SEED,
            limits=Limits(max_turns=_MAX_TURNS),
            sampling={"max_new_tokens": 24, "seed": 1, "temperature": temperature},
        )

        async def play() -> list[float]:
            found = collect(factory, self._engine, codec, episodes=episodes, config=config)
            return [one.reward async for one in found if one.reward is not None]

        rewards = asyncio.run(play())
        return sum(rewards) / len(rewards)


@functools.cache
def _measurer(folder: Path) -> Measurer:
    """Return the worker process's cached measurer."""
    return Measurer(folder)


def _line(trial: Trial, *, folder: Path, episodes: int, greedy: int) -> str:
    """Return a trial's row, and print a line to stderr."""
    begun = time.monotonic()
    measurer = _measurer(folder)
    rewards = [
        measurer.reward(trial, episodes=greedy, temperature=0.0),
        measurer.reward(trial, episodes=episodes, temperature=1.0),
        *(measurer.reward(trial, episodes=episodes, temperature=0.0, wrap=w) for w in _WRAPS),
    ]
    line = f"| {trial.title} | {' | '.join(f'{reward:.3f}' for reward in rewards)} |"
    sys.stderr.write(f"{line}  {time.monotonic() - begun:.0f} s\n")
    return line


def table(
    folder: Path, trials: Sequence[Trial], *, episodes: int, greedy: int, jobs: int
) -> list[str]:
    """Return a Markdown table of rewards.

    Args:
        folder: Folder of the model.
        trials: One per row.
        episodes: Episodes per figure, except greedy with the right images.
        greedy: Episodes of the greedy figure with the right images.
        jobs: Processes that share the trials.
    """
    lines = [
        f"| environment | greedy, n={greedy} | T=1, n={episodes} | blank | swapped |",
        "| --- | --- | --- | --- | --- |",
    ]
    play = functools.partial(_line, folder=folder, episodes=episodes, greedy=greedy)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        return lines + list(pool.map(play, trials))


def main() -> int:
    """Print the table of a folder; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=256, help="episodes per figure")
    parser.add_argument("--greedy", type=int, default=256, help="episodes of the greedy figure")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the trials")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="trials with this in their title"
    )
    options = parser.parse_args()
    chosen = [trial for trial in (*TRIALS, *BEYOND) if options.only in trial.title]
    lines = table(
        options.folder,
        chosen,
        episodes=options.episodes,
        greedy=options.greedy,
        jobs=options.jobs,
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
