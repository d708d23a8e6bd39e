"""A fault campaign with bookkeeping independent of the library.

The environment logs every reply that it applied, the engine every reply that it gave. Each
trajectory is compared with both on delivery. Episodes that started but were never delivered are
counted at the end.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from envkit import rollout
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import EngineFault, EnvFault, FaultKind
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, Trajectory

TURNS = 4
HANG_S = 0.12
BUDGET = rollout.RetryBudget(
    step_timeout_s=0.06,
    reset_timeout_s=5.0,
    backoff=rollout.Backoff(initial_s=0.001, maximum_s=0.002),
    max_env_retries_per_turn=3,
    max_env_retries_per_episode=8,
    max_engine_retries_per_turn=2,
    max_episode_restarts=2,
)


@dataclass(kw_only=True)
class Books:
    """What actually happened, by episode."""

    applied: dict[str, Counter[tuple[int, int]]] = field(
        default_factory=dict[str, Counter[tuple[int, int]]]
    )
    """Number of times each (turn, attempt) was applied."""
    said: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The engine's replies, in order."""
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, episode: str, turn: int, attempt: int) -> None:
        """Record that a reply changed an environment's state."""
        with self.lock:
            self.steps += 1
            self.applied.setdefault(episode, Counter())[turn, attempt] += 1

    def count_fault(self, kind: str) -> None:
        """Record a deliberate failure."""
        with self.lock:
            self.faults[kind] += 1


class CountedEnv(Env):
    """Four turns; the answer to the last one lists every reply that the state holds."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, snapshot=True, replay_safe=True, deterministic=True
    )

    def __init__(self, books: Books, rate: float) -> None:
        super().__init__(max_turns=TURNS + 2)
        self._books, self._rate = books, rate
        self._history: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        """Start with an empty history."""
        self._history = []
        return Turn(f"Say four things about number {int(self.np_random.integers(1000))}.")

    def on_turn(self, response_text: str) -> Turn:
        """Apply the reply, and fail before it, after it, or not at all."""
        key = self.step_key
        assert key is not None
        rng = random.Random(derive_seed("step", key.episode_id, key.turn, key.attempt))
        fails, is_applied = rng.random() < self._rate, rng.random() < 0.5
        if fails and not is_applied:
            self._fail(rng)
        self._books.apply(key.episode_id, key.turn, key.attempt)
        self._history.append(response_text)
        if fails:
            self._fail(rng)
        done = len(self._history) >= TURNS
        return Turn(
            f"{len(self._history)} so far.",
            reward=1.0 if done else 0.0,
            done=done,
            info={"history": list(self._history)},
        )

    def get_state(self) -> dict[str, Any]:
        """Return the history."""
        return {"history": self._history}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the history."""
        self._history = list(state["history"])

    def _fail(self, rng: random.Random) -> None:
        kind = "hang" if rng.random() < 0.01 else rng.choice(("transient", "crashed", "os_error"))
        self._books.count_fault(kind)
        if kind == "hang":
            time.sleep(HANG_S)
        elif kind == "os_error":
            raise ConnectionResetError("the backend went away")
        else:
            raise EnvFault(f"the backend is {kind}", kind=FaultKind(kind))


class ReplayedEnv(CountedEnv):
    """Recovers by replay."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)


class RestartedEnv(CountedEnv):
    """Declares nothing: a failed step restarts the episode."""

    capabilities: ClassVar[Capabilities] = Capabilities()


class CountedEngine(rollout.ScriptedEngine):
    """Logs its replies, and fails as often as the environment."""

    def __init__(self, codec: ChatCodec, books: Books, rate: float) -> None:
        super().__init__(codec, _say)
        self._codec_of_log, self._books, self._rate = codec, books, rate
        self._rng = random.Random(1)

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        """Fail, or answer and log the answer."""
        if self._rng.random() < self._rate:
            self._books.count_fault("engine")
            await asyncio.sleep(0)
            kind = self._rng.choice((FaultKind.TRANSIENT, FaultKind.TIMEOUT))
            raise EngineFault("the server went away", kind=kind)
        generation = await super().generate(request)
        text = self._codec_of_log.decode(generation.token_ids)
        self._books.said.setdefault(request.session_id or "", []).append(text)
        return generation


def _say(context: PolicyContext) -> str:
    return f"Thing {context.turn} of {context.seed % 9973}."


def is_paid_fault(trajectory: Trajectory) -> bool:
    """Return whether a faulted episode has a reward or a trained token."""
    is_masked = not any(any(row.loss_mask) for row in trajectory.steps(merge=True))
    return trajectory.reward is not None or not is_masked


def is_rewarded(trajectory: Trajectory, turns: int) -> bool:
    """Return whether an episode ended by itself after so many turns, with the full reward."""
    ended = trajectory.stop_reason is StopReason.TERMINATED
    return ended and trajectory.reward == 1.0 and len(trajectory.turns) == turns


@dataclass(kw_only=True)
class Verdict:
    """Discrepancies, by kind."""

    turns: int = 0
    episodes: int = 0
    faulted: int = 0
    lost: int = 0
    """Replies missing from a finished episode, and episodes never delivered."""
    doubled: int = 0
    """Attempts applied twice, replies twice in a state, episodes delivered twice."""
    paid_faults: int = 0
    """Faulted episodes with a reward or a trained token."""
    wrong_rewards: int = 0
    """Finished episodes whose reward differs from the environment's."""

    def take(self, trajectory: Trajectory, books: Books, seen: set[str]) -> None:
        """Compare a delivered trajectory with the books and remove its entry."""
        name = trajectory.episode_id
        self.episodes += 1
        self.turns += len(trajectory.turns)
        self.doubled += name in seen
        seen.add(name)
        applied = books.applied.pop(name, Counter())
        said = books.said.pop(name, [])
        self.doubled += sum(count > 1 for count in applied.values())
        if trajectory.is_faulted:
            self.faulted += 1
            self.paid_faults += is_paid_fault(trajectory)
            return
        replies = [turn.response_text for turn in trajectory.turns]
        history = trajectory.turns[-1].info["history"] if trajectory.turns else []
        self.lost += replies != history or said[-len(replies) :] != replies
        self.doubled += len(history) > len(replies)
        self.wrong_rewards += not is_rewarded(trajectory, TURNS)


async def campaign(
    codec: ChatCodec, *, turns: int, rate: float, concurrency: int
) -> dict[str, Any]:
    """Play about this many turns in three kinds of environment; return the discrepancies."""
    verdict, books = Verdict(), Books()
    started = time.perf_counter()
    kinds: tuple[Callable[[Books, float], CountedEnv], ...] = (
        CountedEnv, ReplayedEnv, RestartedEnv,
    )  # fmt: skip
    for kind in kinds:
        seen = set[str]()
        episodes = max(1, turns // (len(kinds) * TURNS))
        engine = CountedEngine(codec, books, rate)
        async for trajectory in rollout.collect(
            lambda kind=kind: kind(books, rate),
            engine,
            codec,
            episodes=episodes,
            concurrency=concurrency,
            config=rollout.RolloutConfig(retries=BUDGET),
        ):
            verdict.take(trajectory, books, seen)
        verdict.lost += episodes - len(seen) + len(books.said)
        books.said.clear()
        books.applied.clear()
    return {
        "turns": verdict.turns,
        "steps_applied": books.steps,
        "episodes": verdict.episodes,
        "faults_injected": sum(books.faults.values()),
        "faulted": verdict.faulted,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "faults_with_reward_or_mask": verdict.paid_faults,
        "wrong_rewards": verdict.wrong_rewards,
        "seconds": time.perf_counter() - started,
    }
