"""Deadlines tell the truth: one that interrupts a call is a fault, never a reward.

A deadline that is reached between two calls ends the episode as a truncation, with the rewards
earned so far. So does a step's deadline where the environment says that its time is the
reply's own doing (`on_step_timeout="truncate"`).
"""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.virtual_time import skip, skip_from_thread

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.rollout import (
    Backoff,
    GenerateRequest,
    Generation,
    Limits,
    RetryBudget,
    ScriptedEngine,
    play,
)
from envkit.tasks import Task
from envkit.trajectory import FaultPlace, StopReason, Trajectory
from envkit.trajectory.checks import check_trajectory

DEADLINE_S = 20.0
"""A busy machine plays what comes before the slow call in less."""

PATIENCE_S = 5 * DEADLINE_S
"""What takes longer was not cut at all."""

FOREVER_S = 10 * PATIENCE_S


class SlowEnv(Env):
    """Three turns with reward 0.25 each; the second one, or another call, does what it is told."""

    released: ClassVar[threading.Event] = threading.Event()
    loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(
        self, *, slow: str = "", then: FaultKind | None = None, is_late: bool = True
    ) -> None:
        super().__init__(max_turns=5)
        self._slow, self._then, self._is_late = slow, then, is_late

    def on_reset(self, task: Task) -> Turn:
        self._maybe("reset")
        return Turn("Begin.")

    def on_turn(self, response_text: str) -> Turn:
        if self.turn == 1:
            self._maybe("step")
        return Turn("Go on.", reward=0.25, done=self.turn == 2)

    def _maybe(self, place: str) -> None:
        if self._slow != place:
            return
        if self._is_late:
            skip_from_thread(self.loop, DEADLINE_S)
            self.released.wait(PATIENCE_S)
        else:
            self.loop.call_soon_threadsafe(self.loop.call_later, 0.02, skip, DEADLINE_S)
        if self._then is not None:
            raise EnvFault("the browser is gone", kind=self._then)


class SlowPoolEnv(SlowEnv):
    """The same on the shared threads."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)


async def hang() -> None:
    """Let the deadline pass in a call that does not return."""
    skip(DEADLINE_S)
    await asyncio.sleep(FOREVER_S)


class SlowAsyncEnv(AsyncEnv):
    """The same, awaited."""

    def __init__(self, *, slow: str = "") -> None:
        super().__init__(max_turns=5)
        self._slow = slow

    async def on_areset(self, task: Task) -> Turn:
        if self._slow == "reset":
            await hang()
        return Turn("Begin.")

    async def on_aturn(self, response_text: str) -> Turn:
        if self._slow == "step" and self.turn == 1:
            await hang()
        return Turn("Go on.", reward=0.25, done=self.turn == 2)


class SlowEngine(ScriptedEngine):
    """Hangs in one turn; deaf to aborts, or answering them with half a reply."""

    def __init__(self, turn: int, *, is_deaf: bool) -> None:
        def wait(request: GenerateRequest) -> float:
            assert request.context is not None
            if request.context.turn != turn:
                return 0.0
            skip(DEADLINE_S)
            return FOREVER_S

        super().__init__(text_codec(), lambda context: "go go go go", latency=wait)
        self._turn, self._is_deaf = turn, is_deaf

    async def generate(self, request: GenerateRequest) -> Generation:
        if self._is_deaf and request.context is not None and request.context.turn == self._turn:
            await hang()
        return await super().generate(request)


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]  # used by name
    SlowEnv.released.clear()
    yield
    SlowEnv.released.set()


async def played(
    env: Any,
    *,
    engine: ScriptedEngine | None = None,
    deadline_s: float | None = DEADLINE_S,
    retries: RetryBudget | None = None,
) -> Trajectory:
    """Play one episode with a deadline, and check its record."""
    SlowEnv.loop = asyncio.get_running_loop()
    codec = text_codec()
    engine = engine or ScriptedEngine(codec, lambda context: "go")
    trajectory = await asyncio.wait_for(
        play(
            env,
            engine,
            codec,
            limits=Limits(episode_timeout_s=deadline_s),
            retries=retries or RetryBudget(step_timeout_s=None, reset_timeout_s=None),
        ),
        PATIENCE_S,
    )
    assert not check_trajectory(trajectory)
    return trajectory


def check_cut(trajectory: Trajectory, stop: StopReason, place: FaultPlace) -> None:
    """What must hold where a deadline interrupted a call."""
    assert trajectory.stop_reason is stop
    assert trajectory.is_faulted
    assert trajectory.fault is not None
    assert (trajectory.fault.where, trajectory.fault.kind) == (place, FaultKind.TIMEOUT)
    assert trajectory.fault.message
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0
    assert not any(any(row.loss_mask) for row in trajectory.steps(merge=True))


@pytest.mark.parametrize(
    ("turn", "is_deaf", "says"),
    [
        (0, False, "episode_timeout_s"),
        (1, False, "episode_timeout_s"),
        pytest.param(1, True, "did not answer an abort", marks=pytest.mark.slow),
    ],
)
async def test_a_deadline_that_cuts_an_engine_is_a_fault(
    turn: int, is_deaf: bool, says: str
) -> None:
    trajectory = await played(SlowEnv, engine=SlowEngine(turn, is_deaf=is_deaf))
    check_cut(trajectory, StopReason.ENGINE_FAULT, FaultPlace.GENERATE)
    assert trajectory.fault is not None
    assert says in trajectory.fault.message


@pytest.mark.parametrize("place", ["reset", "step"])
@pytest.mark.parametrize("kind", [SlowEnv, SlowPoolEnv, SlowAsyncEnv])
async def test_a_deadline_that_cuts_an_environment_is_a_fault(kind: Any, place: str) -> None:
    trajectory = await played(lambda: kind(slow=place))
    check_cut(trajectory, StopReason.ENV_FAULT, FaultPlace(place))


@pytest.mark.parametrize("place", ["reset", "step"])
async def test_a_deadline_that_cuts_a_call_before_its_own_deadline_does(place: str) -> None:
    budget = RetryBudget(
        step_timeout_s=4 * DEADLINE_S,
        reset_timeout_s=4 * DEADLINE_S,
        max_env_retries_per_turn=0,
        max_episode_restarts=0,
    )
    trajectory = await played(lambda: SlowEnv(slow=place), retries=budget)
    check_cut(trajectory, StopReason.ENV_FAULT, FaultPlace(place))


@pytest.mark.parametrize("place", ["reset", "step"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_crash_near_the_deadline_is_a_fault(place: str, is_late: bool) -> None:
    budget = RetryBudget(
        step_timeout_s=8 * DEADLINE_S,
        reset_timeout_s=8 * DEADLINE_S,
        max_episode_restarts=0,
        backoff=Backoff(initial_s=4 * DEADLINE_S, jitter=0.0),
    )
    trajectory = await played(
        lambda: SlowEnv(slow=place, then=FaultKind.CRASHED, is_late=is_late), retries=budget
    )
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert trajectory.fault.kind in (FaultKind.TIMEOUT, FaultKind.CRASHED)
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0


async def test_an_engine_that_fails_after_the_deadline_is_a_fault() -> None:
    aborted = asyncio.Event()

    class Failing(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            if request.context is not None and request.context.turn == 1:
                skip(DEADLINE_S)
                await aborted.wait()
                raise ConnectionResetError("the server went away")
            return await super().generate(request)

        async def abort(self, request_id: str) -> None:
            aborted.set()

    engine = Failing(text_codec(), lambda context: "go")
    trajectory = await played(SlowEnv, engine=engine)
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0


async def test_a_reply_that_comes_after_the_deadline_is_a_fault() -> None:
    def write(context: PolicyContext) -> str:
        if context.turn == 1:
            skip(2 * DEADLINE_S)  # on the event loop: nothing can interrupt this call
        return "go"

    trajectory = await played(SlowEnv, engine=ScriptedEngine(text_codec(), write))
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT  # the environment never answered it
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0


async def test_a_deadline_between_two_calls_is_a_truncation_with_the_rewards_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = text_codec()
    encode = codec.encode_observation

    def slow(*messages: Any, **options: Any) -> Any:
        skip(2 * DEADLINE_S)  # after the first step, before the second request
        return encode(*messages, **options)

    monkeypatch.setattr(codec, "encode_observation", slow)
    trajectory = await played(SlowEnv)
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert trajectory.fault is None
    assert trajectory.reward == 0.25
    assert len(trajectory.turns) == 1
    assert trajectory.trained_token_count > 0


async def test_a_deadline_that_is_not_reached_changes_nothing() -> None:
    trajectory = await played(SlowEnv, deadline_s=DEADLINE_S)
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 0.75


def check_truncated(trajectory: Trajectory) -> None:
    """The first turn keeps its reward; the reply whose step hung is trained without one."""
    assert trajectory.stop_reason is StopReason.STEP_TIMEOUT
    assert trajectory.stop_reason.is_truncation
    assert trajectory.fault is None
    assert trajectory.reward == 0.25
    assert trajectory.trained_token_count > 0
    assert len(trajectory.turns) == 2
    assert not check_trajectory(trajectory)


def declaring(kind: type[Env]) -> Any:
    """Return the same environment, which runs what the model wrote."""
    promises = replace(kind.capabilities, on_step_timeout="truncate")
    return type(kind.__name__, (kind,), {"capabilities": promises})


@pytest.mark.parametrize("kind", [SlowEnv, SlowPoolEnv, SlowAsyncEnv])
async def test_a_step_timeout_truncates_where_the_environment_declares_it(kind: Any) -> None:
    declared = declaring(kind)
    trajectory = await played(
        lambda: declared(slow="step"),
        deadline_s=None,
        retries=RetryBudget(step_timeout_s=DEADLINE_S),
    )
    check_truncated(trajectory)


async def test_a_step_timeout_is_a_fault_by_default() -> None:
    budget = RetryBudget(step_timeout_s=DEADLINE_S, max_episode_restarts=0)
    trajectory = await played(lambda: SlowEnv(slow="step"), deadline_s=None, retries=budget)
    check_cut(trajectory, StopReason.ENV_FAULT, FaultPlace.STEP)


async def test_truncation_is_for_steps_alone() -> None:
    declared = declaring(SlowEnv)
    budget = RetryBudget(reset_timeout_s=DEADLINE_S, max_env_retries_per_turn=0)
    trajectory = await played(lambda: declared(slow="reset"), deadline_s=None, retries=budget)
    check_cut(trajectory, StopReason.ENV_FAULT, FaultPlace.RESET)


@pytest.mark.parametrize("place", ["reset", "step"])
async def test_an_episodes_deadline_is_a_fault_even_where_a_steps_truncates(place: str) -> None:
    declared = declaring(SlowEnv)
    trajectory = await played(lambda: declared(slow=place))
    check_cut(trajectory, StopReason.ENV_FAULT, FaultPlace(place))
