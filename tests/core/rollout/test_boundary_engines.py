"""One answer of nonsense from an engine costs its episode alone."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.envs import EchoEnv
from fakes.hostile_values import EXCEPTIONS, PLANTED, cyclic, nested
from fakes.matrix import share
from fakes.playing import play_hostile

from envkit.rollout import (
    FinishReason,
    GenerateRequest,
    Generation,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
    collect,
)
from envkit.trajectory import Trajectory, TrajectoryWriter, verify_file

EPISODES = 16
BAD = 5
BUDGET = RetryBudget(max_engine_retries_per_turn=0)
Spoil = Callable[[Generation], Any]


class HostileEngine(ScriptedEngine):
    """Answers the first reply of one task with something else."""

    def __init__(self, spoil: Spoil) -> None:
        super().__init__(text_codec(), lambda context: str(context.task["word"]))
        self._spoil = spoil

    async def generate(self, request: GenerateRequest) -> Any:
        good = await super().generate(request)
        assert request.context is not None
        return self._spoil(good) if request.context.task["index"] == BAD else good


class Fields:
    """Looks like a Generation, with any fields."""

    def __init__(self, good: Generation, fields: dict[str, Any]) -> None:
        names = type(good).__dataclass_fields__
        self.__dict__.update({name: getattr(good, name) for name in names}, **fields)


def having(**fields: Any) -> Spoil:
    """Return the good answer with other fields, unchecked."""
    return lambda good: Fields(good, fields)


def ids_of(change: Callable[[tuple[int, ...]], Any]) -> Spoil:
    return lambda good: Fields(good, {"token_ids": change(tuple(good.token_ids))})


def logprobs_of(change: Callable[[tuple[float, ...]], Any]) -> Spoil:
    return lambda good: Fields(good, {"logprobs": change(tuple(good.logprobs))})


def raising(name: str) -> Spoil:
    def spoil(_good: Generation) -> Any:
        raise EXCEPTIONS[name]()

    return spoil


def cancel_itself(good: Generation) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel(PLANTED)
    return good


RAISED = ("exception", "system_exit_0", "keyboard_interrupt", "cancelled", "generator_exit",
          "stop_iteration", "base_group", "mute", "odd_text")  # fmt: skip
NONSENSE: dict[str, Spoil] = {
    **{name: raising(name) for name in RAISED},
    "cancels_its_task": cancel_itself,
    "none": lambda good: None,
    "text": lambda good: "alpha",
    "mapping": lambda good: {"token_ids": [1, 2]},
    "ids_none": ids_of(lambda ids: None),
    "ids_text": ids_of(lambda ids: "12"),
    "ids_of_none": ids_of(lambda ids: (*ids[:-1], None)),
    "ids_of_text": ids_of(lambda ids: ("a",) * len(ids)),
    "ids_of_floats": ids_of(lambda ids: tuple(i + 0.5 for i in ids)),
    "id_negative": ids_of(lambda ids: (-1, *ids[1:])),
    "id_last_negative": ids_of(lambda ids: (*ids[:-1], -1)),
    "id_outside": ids_of(lambda ids: (*ids[:-1], 10**6)),
    "id_huge": ids_of(lambda ids: (10**30, *ids[1:])),
    "ids_empty": having(token_ids=(), logprobs=()),
    "ids_longer": ids_of(lambda ids: (*ids, ids[-1])),
    "logprobs_none": logprobs_of(lambda values: None),
    "logprobs_of_none": logprobs_of(lambda values: (None,) * len(values)),
    "logprobs_short": logprobs_of(lambda values: values[:-1]),
    "logprobs_nan": logprobs_of(lambda values: (math.nan,) * len(values)),
    "logprobs_positive": logprobs_of(lambda values: (0.5,) * len(values)),
    "logprobs_text": logprobs_of(lambda values: ("-1",) * len(values)),
    "prompt_none": having(prompt_tokens=None),
    "prompt_wrong": having(prompt_tokens=3),
    "prompt_text": having(prompt_tokens="3"),
    "finish_text": having(finish_reason="done"),
    "finish_none": having(finish_reason=None),
}
ODD: dict[str, Spoil] = {
    "extras_cyclic": having(extras=cyclic()),
    "extras_deep": having(extras=nested(900)),
    "extras_deeper": having(extras=nested(10_000)),
    "extras_list": having(extras=[1]),
    "extras_set": having(extras={"a": {1}}),
    "extras_none": having(extras=None),
    "extras_huge": having(extras={"a": 10**5000}),
    "cached_text": having(cached_tokens="many"),
    "queue_nan": having(queue_seconds=math.nan),
    "version_number": having(weight_version=3),
    "retries_none": having(retries=None),
    "aborted_unasked": having(finish_reason=FinishReason.ABORT),
}
"""A fault or a sound record: the library may choose."""


def play(spoil: Spoil) -> list[Trajectory]:
    """Play a run; fail the test if it ends early."""
    return play_hostile(
        collect(
            EchoEnv,
            HostileEngine(spoil),
            text_codec(),
            episodes=EPISODES,
            concurrency=4,
            tasks=[{"word": "alpha", "index": index} for index in range(EPISODES)],
            config=RolloutConfig(retries=BUDGET),
        )
    )


@pytest.mark.parametrize("name", share([*NONSENSE, *ODD], of=3))
def test_nonsense_of_an_engine_costs_its_episode_alone(name: str, tmp_path: Path) -> None:
    played = play({**NONSENSE, **ODD}[name])
    assert len(played) == EPISODES
    for one in played:
        if one.task["index"] != BAD:
            assert one.reward == 1.0
        elif name in NONSENSE or one.is_faulted:
            assert one.is_faulted
            assert one.fault is not None
            assert one.fault.message.strip()
            assert one.reward is None
            assert one.trained_token_count == 0
    with TrajectoryWriter(tmp_path / "run") as writer:
        for one in played:
            writer.write(one)
    report = verify_file(tmp_path / "run")
    assert report.is_sound, str(report)
