"""What engines return and raise: anything wrong ends its own episode as a typed fault."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.codecs import text_codec
from fakes.envs import EchoEnv
from fakes.faults import CountingEnv, World, say_turn
from fakes.hostile_values import EXCEPTIONS, PLANTED, cyclic, nested
from fakes.playing import play_hostile

from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, ContractError, EnvFault, LedgerFault
from envkit.faults import FaultPlan
from envkit.metrics import Aggregator
from envkit.rollout import (
    FinishReason,
    GenerateRequest,
    Generation,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
    collect,
    play,
)
from envkit.trajectory import (
    StopReason,
    Trajectory,
    TrajectoryWriter,
    check_trajectory,
    verify_file,
)
from envkit.trajectory.segment import LOGPROB_SLACK

ONCE = RetryBudget(max_engine_retries_per_turn=0, engine_unavailable_s=0)
Spoil = Callable[[Generation], Any]


def with_ids(*ids: Any) -> Spoil:
    return lambda g: replace(g, token_ids=(*g.token_ids[:-1], *ids), logprobs=g.logprobs)


def with_logprob(value: Any) -> Spoil:
    return lambda g: replace(g, logprobs=[value, *g.logprobs[1:]])


def having(**fields: Any) -> Spoil:
    return lambda g: replace(g, **fields)


class BadIterator:
    def __iter__(self) -> Any:
        raise SystemExit(0)


def say_word(context: PolicyContext) -> str:
    return str(context.task["word"])


class SpoiledEngine(ScriptedEngine):
    """Breaks its answer in one turn, or to one task."""

    def __init__(self, spoil: Spoil, *, turn: int = 0, index: int | None = None) -> None:
        super().__init__(text_codec(), say_turn if index is None else say_word)
        self._spoil, self._turn, self._index = spoil, turn, index

    async def generate(self, request: GenerateRequest) -> Any:
        generation, context = await super().generate(request), request.context
        assert context is not None
        is_hit = (context.turn, context.task.get("index")) == (self._turn, self._index)
        return self._spoil(generation) if is_hit else generation


def build() -> CountingEnv:
    return CountingEnv(World(), FaultPlan(0.0))


async def played(engine: Any, **options: Any) -> Trajectory:
    settings: dict[str, Any] = {"retries": ONCE, "seed": 5, **options}
    return await play(build, engine, text_codec(), **settings)


# Each rule of the check stands in test_generation.py; here are one case of a kind, and odd ones.
LEDGER: dict[str, Spoil] = {
    "id of 10^30": with_ids(10**30),
    "id beyond the vocabulary": lambda g: replace(
        g, token_ids=(*g.token_ids[:-1], text_codec().vocabulary_size)
    ),
    "id too long to print": with_ids(10**5000),
    "nan": with_logprob(float("nan")),
    "another prompt": having(prompt_tokens=1),
    "aborted with a bad id": lambda g: replace(with_ids(-1)(g), finish_reason=FinishReason.ABORT),
}
ENGINE: dict[str, Spoil] = {
    "None": lambda g: None,
    "a class": lambda g: Generation,
    "ids that raise": having(token_ids=BadIterator()),
    "numpy float id": with_ids(np.float32(5)),
    "complex logprob": with_logprob(1j),
    "huge logprob": with_logprob(-(10**400)),
    "extras 100000 deep": having(extras=nested(100_000)),
    "extras of 300 MB": having(extras={"a": [bytes(100 << 20)] * 3}),
    "extras that contain themselves": having(extras=cyclic()),
    "extras with a huge number": having(extras={"a": 10**5000}),
}


@pytest.mark.parametrize("name", LEDGER)
@pytest.mark.parametrize("turn", [0, 2])
async def test_answer_that_is_not_of_the_ledger_faults_its_episode(name: str, turn: int) -> None:
    trajectory = await played(SpoiledEngine(LEDGER[name], turn=turn))
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT
    assert trajectory.reward is None
    assert len(trajectory.turns) == turn + 1


@pytest.mark.parametrize("name", ENGINE)
async def test_answer_of_a_wrong_type_faults_its_episode(name: str) -> None:
    trajectory = await played(SpoiledEngine(ENGINE[name]))
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert trajectory.reward is None
    assert trajectory.fault is not None
    assert "engine 'scripted'" in trajectory.fault.message
    assert len(trajectory.fault.message) < 600


async def test_logprobs_above_zero_by_rounding_are_clamped_and_counted() -> None:
    def spoil(g: Generation) -> Generation:
        return replace(g, logprobs=[LOGPROB_SLACK, 1e-6, *[-0.5] * (len(g.logprobs) - 2)])

    trajectory = await played(SpoiledEngine(spoil, turn=1))
    assert trajectory.reward == 1.0
    assert max(trajectory.logprobs()) == 0.0
    assert [turn.clamped_logprobs for turn in trajectory.turns] == [0, 2, 0]
    assert check_trajectory(trajectory) == ()
    metrics = Aggregator()
    metrics.add(trajectory)
    assert metrics.result()["tokens/logprobs_clamped"] == 2


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopAsyncIteration": StopAsyncIteration,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("many", [SystemExit(1), ValueError("x")]),
    "unspeakable": Unspeakable,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "TimeoutError": TimeoutError,
    "ContractError": lambda: ContractError("two requests"),
    "EnvFault": lambda: EnvFault("not an engine's"),
    "surrogate": lambda: ValueError("\ud800"),
}


class RaisingEngine(ScriptedEngine):
    def __init__(self, error: Callable[[], BaseException]) -> None:
        super().__init__(text_codec(), say_turn)
        self._error = error

    async def generate(self, request: GenerateRequest) -> Generation:
        raise self._error()


@pytest.mark.parametrize("name", RAISED)
async def test_exception_of_an_engine_faults_its_episode(name: str) -> None:
    trajectory = await played(RaisingEngine(RAISED[name]))
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert trajectory.reward is None


async def test_wrong_setting_still_ends_the_run() -> None:
    with pytest.raises(ConfigurationError, match="unknown key"):
        await played(RaisingEngine(lambda: ConfigurationError("unknown key")))


async def test_ledger_fault_of_an_engine_stays_one() -> None:
    trajectory = await played(RaisingEngine(lambda: LedgerFault("images were dropped")))
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT


async def test_cancellation_by_the_caller_ends_the_episode() -> None:
    class Hanging(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            await asyncio.Event().wait()
            raise AssertionError

    task = asyncio.create_task(played(Hanging(text_codec(), say_turn)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_engine_that_is_not_async_faults_its_episode() -> None:
    class Plain(ScriptedEngine):
        def generate(self, request: GenerateRequest) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return "text"

    trajectory = await played(Plain(text_codec(), say_turn))
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT


def test_vocabulary_of_a_loaded_codec_counts_padded_embeddings() -> None:
    assert text_codec().vocabulary_size == 49_216


EPISODES = 16
BAD = 5
NO_RETRY = RetryBudget(max_engine_retries_per_turn=0)


def raising(name: str) -> Spoil:
    def spoil(_good: Generation) -> Any:
        raise EXCEPTIONS[name]()

    return spoil


def cancel_itself(good: Generation) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel(PLANTED)
    return good


NONSENSE: dict[str, Spoil] = {
    **{name: raising(name) for name in ("system_exit_0", "cancelled", "mute", "odd_text")},
    "cancels_its_task": cancel_itself,
    **{name: LEDGER[name] for name in ("id too long to print", "another prompt")},
    **{name: ENGINE[name] for name in ("None", "extras 100000 deep")},
}


def play_run(spoil: Spoil) -> list[Trajectory]:
    """Play a run; fail the test if it ends early."""
    return play_hostile(
        collect(
            EchoEnv,
            SpoiledEngine(spoil, index=BAD),
            text_codec(),
            episodes=EPISODES,
            concurrency=4,
            tasks=[{"word": "alpha", "index": index} for index in range(EPISODES)],
            config=RolloutConfig(retries=NO_RETRY),
        )
    )


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_of_an_engine_costs_its_episode_alone(name: str, tmp_path: Path) -> None:
    played = play_run(NONSENSE[name])
    assert len(played) == EPISODES
    for one in played:
        if one.task["index"] != BAD:
            assert one.reward == 1.0
        else:
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
