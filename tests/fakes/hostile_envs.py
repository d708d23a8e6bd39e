"""Environments that misbehave in one place, in one episode of a run.

An `Attack` says where (`place`) and what happens there (`act`). A `HostileRun` is shared by the
environments of one run: it picks the episode, counts what is open and holds what hangs.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import gymnasium

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Observation, Reset, Step, StepKey, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.messages import Message
from envkit.rollout import RetryBudget
from envkit.tasks import Task

BAD_TASK = 5
"""Number of the task whose episode misbehaves; in groups, one member of it."""
BAD_BUILD = 1
"""Number of the environment whose constructor misbehaves: the first after a good one."""
HANG_S = 20.0
"""The longest that a hung call takes; the run releases it much earlier."""


class Ends(StrEnum):
    """What may become of the episode."""

    FAULT = "fault"
    FINE = "fine"
    EITHER = "either"
    """A fault or a sound trajectory with a reward; the author of the library may choose."""


class Form(StrEnum):
    """How the rollout calls the environment: each is a path of its own."""

    OWN_THREAD = "own_thread"
    POOL = "pool"
    ASYNC = "async"
    WRAPPED = "wrapped"


AnyEnv = gymnasium.Env[Observation, str]
Normal = Callable[[], Any]
"""Gives what a good environment answers at that place."""
Act = Callable[["HostileRun", Any, Normal], Any]
"""What happens instead; gets the run, the environment, and the good answer on demand."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One kind of misbehaviour."""

    name: str
    place: str
    """"build", or the name of a method or property of `HostileEnv`."""
    act: Act
    ends: Ends = Ends.FAULT
    form: Form = Form.OWN_THREAD
    step_timeout_s: float = 5.0
    has_snapshot: bool = False
    is_once: bool = True
    """False goes on after the place was reached once in the episode."""
    has_images: bool = False
    """Whether the episode shows images, which needs a codec of a vision model."""

    def __str__(self) -> str:
        return f"{self.place}-{self.name}-{self.form.value}"

    @property
    def retries(self) -> RetryBudget:
        """The budget to play it with: deadlines are short only where something hangs."""
        return RetryBudget(
            step_timeout_s=self.step_timeout_s,
            reset_timeout_s=self.step_timeout_s,
            max_env_retries_per_turn=1 if self.has_snapshot else 0,
            max_engine_retries_per_turn=0,
            max_episode_restarts=0,
        )


@dataclass(kw_only=True)
class HostileRun:
    """What the environments of one run share."""

    attack: Attack
    member: int | None = None
    """Which arrival at the bad task misbehaves, from 0; None is every one of them."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set when the run is over: what hangs then returns."""
    reached: int = 0
    """How often the attack happened."""
    open_envs: int = 0
    _built: int = 0
    _arrivals: Counter[int] = field(default_factory=Counter[int])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def build(self) -> AnyEnv:
        """Build an environment; the factory of the run."""
        with self._lock:
            number, self._built = self._built, self._built + 1
        kind = HostileAsyncEnv if self.attack.form is Form.ASYNC else HostileEnv
        is_late = number > BAD_BUILD and not self.attack.is_once
        if self.attack.place == "build" and (number == BAD_BUILD or is_late):
            return cast(AnyEnv, self.act(None, lambda: kind(self)))
        env = kind(self)
        return gymnasium.Wrapper(env) if self.attack.form is Form.WRAPPED else env

    def opened(self, change: int) -> None:
        """Count an environment that opened (1) or closed (-1)."""
        with self._lock:
            self.open_envs += change

    def is_bad(self, task: Mapping[str, Any]) -> bool:
        """Return whether the episode that starts now is the one that misbehaves."""
        number = int(task["number"])
        with self._lock:
            arrival, self._arrivals[number] = self._arrivals[number], self._arrivals[number] + 1
        return number == BAD_TASK and self.member in (None, arrival)

    def act(self, env: Any, normal: Normal) -> Any:
        """Misbehave."""
        with self._lock:
            self.reached += 1
        return self.attack.act(self, env, normal)

    def hang(self) -> None:
        """Block until the run is over."""
        self.released.wait(HANG_S)


class _Places(Env):
    """Two turns, reward 0.5 each, and a place for every attack."""

    def __init__(self, run: HostileRun) -> None:
        self.run = run
        self.is_bad = False
        self.was_bad = False
        self._done_before = 0
        self._key: StepKey | None = None
        self._task: Task = {}
        super().__init__(max_turns=4)
        self._is_open = True
        run.opened(1)

    def at(self, place: str, normal: Normal) -> Any:
        """Answer normally, or misbehave if this is the place of the attack."""
        attack = self.run.attack
        is_bad = self.was_bad if place in ("close", "aclose") else self.is_bad
        if not (is_bad and attack.place == place):
            return normal()
        if attack.is_once and self._done_before:
            return normal()
        self._done_before += 1
        return self.run.act(self, normal)

    def first(self, task: Task) -> Turn:
        """Return the turn of a reset."""
        return Turn(f"Task {task['number']}: say go.", images=self._images())

    def second(self, text: str) -> Turn:
        """Return the turn of a reply, after a failed attempt where the attack needs a restore."""
        needs_fault = self.run.attack.place in ("restore", "set_state")
        if self.is_bad and needs_fault and not self.run.reached:
            raise EnvFault("lost on the way", kind=FaultKind.TRANSIENT)
        return Turn("Go on.", reward=0.5, done=self.turn >= 1, images=self._images())

    def _images(self) -> Any:
        if not self.run.attack.has_images:
            return ()
        from fakes.envs import DotsEnv

        dots = DotsEnv()
        dots.reset(seed=1)
        return (dots._draw(),)

    def begin_episode(self, options: dict[str, Any] | None) -> None:
        """Find out whether this episode is the bad one."""
        self._done_before, self.max_turns = 0, 4
        self.is_bad = self.run.is_bad((options or {})["task"])
        self.was_bad = self.was_bad or self.is_bad

    def close_once(self) -> None:
        """Count the environment as closed."""
        if self._is_open:
            self._is_open = False
            self.run.opened(-1)

    @property
    def task(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.at("task", lambda: self._task)

    @task.setter
    def task(self, value: Task) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._task = value

    @property
    def tools(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.at("tools", lambda: ())

    @property
    def system_prompt(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.at("system_prompt", lambda: "Say go.")

    @property
    def step_key(self) -> StepKey | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._key

    @step_key.setter
    def step_key(self, value: StepKey | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        def keep() -> None:
            self._key = value

        self.at("step_key", keep)

    @property
    def unwrapped(self) -> Any:
        return self.at("unwrapped", lambda: self)

    def format_observation(self, observation: Observation) -> Message:
        normal = super().format_observation
        return self.at("format_observation", lambda: normal(observation))

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        normal = super().shorten
        return self.at("shorten", lambda: normal(observation, tokens))

    def snapshot(self) -> bytes:
        return self.at("snapshot", super().snapshot)

    def restore(self, data: bytes) -> None:
        normal = super().restore
        self.at("restore", lambda: normal(data))

    def get_state(self) -> dict[str, Any]:
        return self.at("get_state", dict[str, Any])

    def set_state(self, state: dict[str, Any]) -> None:
        self.at("set_state", lambda: None)


class HostileEnv(_Places):
    """Synchronous, on its own thread or on the pool's."""

    @property
    def capabilities(self) -> Capabilities:  # pyright: ignore[reportIncompatibleVariableOverride]
        attack = self.run.attack
        declared = Capabilities(
            thread_safe=attack.form is Form.POOL,
            snapshot=attack.has_snapshot,
            deterministic=True,
        )
        return self.at("capabilities", lambda: declared)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.begin_episode(options)
        normal = super().reset
        return self.at("reset", lambda: normal(seed=seed, options=options))

    def step(self, action: str) -> Step:
        normal = super().step
        return self.at("step", lambda: normal(action))

    def on_reset(self, task: Task) -> Turn:
        return self.at("on_reset", lambda: self.first(task))

    def on_turn(self, response_text: str) -> Turn:
        return self.at("on_turn", lambda: self.second(response_text))

    def close(self) -> None:
        self.close_once()
        self.at("close", lambda: None)


class HostileAsyncEnv(_Places, AsyncEnv):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Asynchronous. Where an attack's answer is a coroutine, it is awaited first."""

    capabilities = Capabilities(deterministic=True)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        self.begin_episode(options)
        normal = await super().areset(seed=seed, options=options)
        return await _settled(self.at("areset", lambda: normal))

    def astep(self, action: str) -> Any:
        """Not `async`: what happens here happens in the call and not in the await."""
        return self.at("astep_call", lambda: self._astep(action))

    async def _astep(self, action: str) -> Step:
        normal = await super().astep(action)
        return await _settled(self.at("astep", lambda: normal))

    async def on_areset(self, task: Task) -> Turn:
        return await _settled(self.at("on_areset", lambda: self.first(task)))

    async def on_aturn(self, response_text: str) -> Turn:
        return await _settled(self.at("on_aturn", lambda: self.second(response_text)))

    async def aclose(self) -> None:
        self.close_once()
        await _settled(self.at("aclose", lambda: None))


async def _settled(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer
