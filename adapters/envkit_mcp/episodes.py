"""The episodes that a server plays for its clients, by handle.

Newer clients of MCP have no session, so an episode is a handle in the arguments of each call.
Handles are random. An episode ends with its last step, by `close`, after a time without a step, or
with the server; its environment is closed then.
"""

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from envkit import ranges
from envkit.env import Env, Observation, Step
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind, describe
from envkit.threads.workers import DeadlineError, Mailbox, Worker

T = TypeVar("T")
_REMEMBERED: Final = 1000
"""Ended episodes whose handles get a better message than unknown ones."""
_CLOSE_S: Final = 10.0


class UnplayableError(Exception):
    """A client's call cannot be played; its message is for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Limits on clients. Times are in seconds."""

    max_episodes: int = 16
    """At the same time; each has its own environment."""
    idle_timeout_s: float = 1800.0
    """An episode ends after this time without a step."""
    step_timeout_s: float = 600.0
    """An episode ends with a reset or step that takes longer."""

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be played.

        Raises:
            ConfigurationError: One is not positive.
        """
        ranges.positive(**asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a reset or a step returned."""

    handle: str
    observation: Observation
    state: dict[str, Any]
    """JSON data beside the observation."""


class _Made:
    """An environment, made on its episode's thread."""

    def __init__(self, make: Callable[[], Env]) -> None:
        self._make = make
        self._env: Env | None = None

    def reset(
        self, *, seed: int | None, task: dict[str, Any] | None
    ) -> tuple[Observation, dict[str, Any]]:
        """Make it, and return its first observation and state."""
        self._env = self._make()
        options = None if task is None else {"task": task}
        observation, info = self._env.reset(seed=seed, options=options)
        return observation, _opening(self._env, info)

    def step(self, reply: str) -> Step:
        """Play a reply."""
        assert self._env is not None
        return Step(*self._env.step(reply))

    def close(self) -> None:
        """Close it, if it was made."""
        if self._env is not None:
            self._env.close()


@dataclass(slots=True, kw_only=True)
class _Episode:
    env: _Made
    worker: Worker
    used: float
    is_busy: bool = field(default=False)
    turn: int = 0
    """Replies played."""


class Episodes:
    """Running episodes. All methods run on one event loop."""

    def __init__(
        self,
        make: Callable[[], Env],
        limits: EpisodeLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Play no episode yet.

        Args:
            make: Makes an environment.
            limits: Limits on clients.
            clock: Seconds; tests pass their own.
        """
        self._make, self._limits, self._clock = make, limits, clock
        self._running: dict[str, _Episode] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._latest: OrderedDict[str, tuple[int, str, Played]] = OrderedDict()
        """The turn, reply and result of the latest step, also of episodes that ended lately."""
        self._mailbox: Mailbox | None = None

    def __len__(self) -> int:
        return len(self._running)

    async def reset(self, *, seed: int | None, task: dict[str, Any] | None) -> Played:
        """Start an episode.

        Args:
            seed: Of the task and the episode; None draws one.
            task: Plays this one; None draws one.

        Raises:
            UnplayableError: All places are taken, the arguments are wrong, or the environment
                failed.
        """
        await self.end_idle()
        if len(self._running) >= self._limits.max_episodes:
            raise UnplayableError(
                f"all {self._limits.max_episodes} episodes of this server are taken: close one, "
                "or try again later"
            )
        if self._mailbox is None:
            self._mailbox = Mailbox()
        handle, worker = secrets.token_urlsafe(12), Worker(self._mailbox)
        env = _Made(self._make)
        # A place is taken from now on, so that concurrent resets cannot exceed the limit.
        episode = _Episode(env=env, worker=worker, used=self._clock(), is_busy=True)
        self._running[handle] = episode
        observation, state = await self._run(
            handle, episode, lambda: env.reset(seed=seed, task=task)
        )
        state = {"episode": handle, "turn": 0, **state}
        return Played(handle=handle, observation=observation, state=state)

    async def step(self, handle: str, reply: str, *, turn: int | None = None) -> Played:
        """Play a reply.

        Args:
            handle: The episode.
            reply: The reply.
            turn: Of the state that it replies to. A step that is repeated with its turn returns its
                result again, and is not played twice. None plays the reply at any turn.

        Raises:
            UnplayableError: There is no such episode, a step of it is running, the episode is at
                another turn, or the environment failed, which ends the episode.
        """
        await self.end_idle()
        latest = self._latest.get(handle)
        if latest is not None and latest[:2] == (turn, reply):
            return latest[2]
        episode = self._find(handle)
        if turn is not None and turn != episode.turn:
            raise UnplayableError(
                f"the episode {handle!r} is at turn {episode.turn}, got a reply to turn {turn}"
            )
        played: Step = await self._run(handle, episode, lambda: episode.env.step(reply))
        episode.turn += 1
        result = self._result(handle, played, episode.turn)
        self._latest[handle] = (episode.turn - 1, reply, result)
        self._latest.move_to_end(handle)
        while len(self._latest) > 2 * self._limits.max_episodes:
            self._latest.popitem(last=False)
        if played.terminated or played.truncated:
            await self._end(handle, "it ended with its last step")
        return result

    def _result(self, handle: str, played: Step, turn: int) -> Played:
        state = {
            "episode": handle,
            "turn": turn,
            "reward": float(played.reward),
            "terminated": bool(played.terminated),
            "truncated": bool(played.truncated),
            "info": played.info,
        }
        return Played(handle=handle, observation=played.observation, state=state)

    async def close(self, handle: str) -> None:
        """End an episode.

        Raises:
            UnplayableError: There is no such episode, or a step of it is running.
        """
        self._find(handle)
        await self._end(handle, "it was closed")

    async def end_idle(self) -> None:
        """End the episodes without a step for too long."""
        oldest = self._clock() - self._limits.idle_timeout_s
        for handle, episode in list(self._running.items()):
            if not episode.is_busy and episode.used < oldest:
                await self._end(
                    handle, f"it had no step for {self._limits.idle_timeout_s:g} seconds"
                )

    async def aclose(self) -> None:
        """End all episodes."""
        await asyncio.gather(*(self._end(handle, "the server ended") for handle in self._running))

    def _find(self, handle: str) -> _Episode:
        episode = self._running.get(handle)
        if episode is None:
            why = self._ended.get(handle)
            raise UnplayableError(
                f"there is no episode {handle!r:.60}: call reset, which returns one"
                if why is None
                else f"the episode {handle!r} is over: {why}. Call reset for another one"
            )
        if episode.is_busy:
            raise UnplayableError(f"a step of the episode {handle!r} is running: wait for it")
        return episode

    async def _run(self, handle: str, episode: _Episode, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run work on the episode's thread; a failure ends the episode.

        Raises:
            UnplayableError: It failed.
        """
        episode.is_busy = True
        limit = self._limits.step_timeout_s
        try:
            return await episode.worker.call(lambda: _contained(work), timeout_s=limit)
        except DeadlineError as error:
            await self._end(
                handle, f"its environment took longer than {limit:g} seconds", hung=True
            )
            raise UnplayableError(self._ended[handle]) from error
        except asyncio.CancelledError:  # the client may repeat a step that was applied
            await self._end(handle, "a call of it was cancelled", hung=True)
            raise
        except (ConfigurationError, DatasetError) as error:
            await self._end(handle, str(error))
            raise UnplayableError(str(error)) from error
        except Exception as error:  # an environment may raise anything
            kind = error.kind if isinstance(error, EnvFault) else FaultKind.CRASHED
            await self._end(handle, f"the environment failed ({kind.value}): {error!s:.500}")
            raise UnplayableError(self._ended[handle]) from error
        finally:
            episode.is_busy, episode.used = False, self._clock()

    async def _end(self, handle: str, why: str, *, hung: bool = False) -> None:
        episode = self._running.pop(handle, None)
        if episode is None:
            return
        self._ended[handle] = why
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        closing = episode.worker.abandon(episode.env.close)
        if not hung:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await closing


def _contained(work: Callable[[], T]) -> T:
    """Run work of an environment; what would end the server becomes its fault.

    Raises:
        EnvFault: It raised SystemExit, KeyboardInterrupt or a cancellation of its own.
    """
    try:
        return work()
    except Exception:
        raise
    except BaseException as error:
        raise EnvFault(f"it raised {describe(error)}", kind=FaultKind.CRASHED) from error


def _opening(env: Env, info: dict[str, Any]) -> dict[str, Any]:
    """Return what a client needs before its first reply; never the task, which has the answers."""
    inner: Env = env.unwrapped  # pyright: ignore[reportAssignmentType]  # Gymnasium's own type
    return {
        "system_prompt": inner.system_prompt,
        "tools": [spec.to_json() for spec in inner.tools],
        "max_turns": inner.max_turns,
        "info": info,
    }
