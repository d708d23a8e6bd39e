"""Tree rollouts: one episode, continued several times from chosen turns.

The trunk is played first. Before a chosen turn, the environment is restored (or the recorded
replies are replayed) and the model samples again. Every leaf is a separate episode with its own
reward and stop reason. It shares the tokens before the fork with its parent, which alone trains
them. `envkit.advantages.tree_advantages` turns the leaves' rewards into credit for each turn.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import gymnasium
import numpy as np

from envkit.errors import ConfigurationError, RunFailedError, describe, shown
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.interrupt import Interrupt, until_done
from envkit.rollout.player import AnyPlayer, resumed_spec
from envkit.rollout.setup import EpisodeSpec
from envkit.seeds import derive_seed
from envkit.trajectory.fork import fork_before
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

OnLeaf = Callable[[Trajectory], object]


class Branching(Protocol):
    """Chooses where to fork an episode."""

    @property
    def width(self) -> int:
        """Continuations per fork, including the existing one."""
        ...

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return the turns to fork before, counted from 0. Shorter leaves are not forked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTurns:
    """Fork before fixed turns: `width ** len(turns)` leaves if all episodes are long enough."""

    turns: tuple[int, ...]
    width: int = 2

    def __post_init__(self) -> None:
        """Validate the turns and the width.

        Raises:
            ConfigurationError: There are no turns, one is not an integer of at least 0, or the
                width is below 2.
        """
        if not _turns_in(self.turns):
            raise ConfigurationError(
                "AtTurns takes a tuple of turns counted from 0, at least one, "
                f"got {shown(self.turns)}"
            )
        _check_width(self.width)

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return the fixed turns."""
        return sorted(set(self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByEntropy:
    """Fork before the turns where the model was least certain: those with the highest mean -log p.

    The mean over the sampled tokens is a one-sample estimate of the reply's entropy. Replies whose
    log-probabilities are all 0, such as scripted ones, say nothing about the model and do not fork.
    """

    forks: int = 2
    """Number of turns to fork before."""
    width: int = 2

    def __post_init__(self) -> None:
        """Validate the numbers.

        Raises:
            ConfigurationError: There are no forks, or the width is below 2.
        """
        if not _is_integer(self.forks) or self.forks < 1:
            raise ConfigurationError(
                f"ByEntropy takes at least one fork, an integer, got forks={self.forks!r:.80}"
            )
        _check_width(self.width)

    def turns_of(self, trunk: Trajectory) -> Sequence[int]:
        """Return the turns with the highest mean surprisal in nats per token."""
        logprobs: dict[int, list[float]] = {}
        for segment in trunk.segments:
            if segment.kind is SegmentKind.MODEL:
                logprobs.setdefault(segment.turn, []).extend(segment.logprobs)
        # A reply of zeros only, such as a scripted one, does not show where the model was unsure.
        surprisal = {turn: -float(np.mean(one)) for turn, one in logprobs.items() if any(one)}
        answered = [turn for turn in surprisal if _is_forkable(trunk, turn)]
        return sorted(sorted(answered, key=lambda turn: (-surprisal[turn], turn))[: self.forks])


async def play_tree(
    env: str | AnyEnv | EnvFactory,
    player: AnyPlayer,
    *,
    branching: Branching,
    spec: EpisodeSpec | None = None,
    token_budget: int | None = None,
    concurrency: int = 64,
    interrupt: Interrupt | None = None,
    on_leaf: OnLeaf | None = None,
) -> tuple[Trajectory, ...]:
    """Play one episode and its forks; return the leaves, the trunk first.

    A leaf that faults is a faulted trajectory, as from `Player.play`.

    Args:
        env: As for `Player.play`. With an id, a function or a source, the forks of a turn
            play concurrently; a single environment plays them sequentially.
        player: Plays and resumes the episodes.
        branching: Where to fork, and how often.
        spec: The episode; its `group_id` marks all leaves. None draws one.
        token_budget: Sampled tokens of the whole tree; None is unlimited. A fork starts only while
            the tree is below the budget; a running fork counts with the tokens that its parent
            sampled from that turn on. A fork that has started is played to its end.
        concurrency: Maximum number of concurrent forks.
        interrupt: Ends the tree early: finished leaves are kept, running ones become valid partial
            trajectories.
        on_leaf: Called once with each leaf as soon as it has ended, before the next fork starts in
            its place; an awaitable result is awaited. It receives every leaf that has ended, even
            if the tree is cancelled or fails.

    Raises:
        ConfigurationError: The environment has several agents or can neither be restored nor
            replayed, engine and codec record no ledger, or `branching` or a number is invalid; or
            as for `Player.play`.
        RunFailedError: As for `Player.play`.
        Exception: The exception of `on_leaf`.
    """
    width = _width_of(branching)
    _check_positive("concurrency", concurrency)
    if on_leaf is not None and not callable(on_leaf):
        raise ConfigurationError(
            f"on_leaf must be a function that takes a leaf, got {shown(on_leaf)}"
        )
    if token_budget is not None:
        _check_positive("token_budget, if not None for unlimited,", token_budget)
    spec = spec or EpisodeSpec()
    tree = _Tree(
        env=env,
        player=player,
        spec=replace(spec, group_id=spec.group_id or spec.episode_id),
        budget=token_budget,
        # A single environment plays one episode at a time.
        concurrency=1 if isinstance(env, gymnasium.Env) else concurrency,
        interrupt=interrupt or Interrupt(),
        on_leaf=on_leaf,
    )
    try:
        trunk = await tree.play_trunk()
        if any(_is_forkable(trunk, turn) for turn in range(len(trunk.turns))):
            for turn in _turns_of(branching, trunk):
                await tree.grow(turn, width)
    finally:  # until then the engine keeps the tokens that forks share
        await tree.end_sessions()
    return tree.in_order()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """The leaves played so far, and methods to add more."""

    env: str | AnyEnv | EnvFactory
    player: AnyPlayer
    spec: EpisodeSpec
    budget: int | None
    concurrency: int
    interrupt: Interrupt
    on_leaf: OnLeaf | None
    leaves: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    """Leaves by name, in order of their end. A name is the episode's id, unless the player had to
    start over with a new id."""
    snapshots: dict[str, dict[int, bytes]] = field(default_factory=dict[str, dict[int, bytes]])
    """By name, in order of their start: the environment's states by the number of replies that it
    had answered."""
    running: dict[str, int] = field(default_factory=dict[str, int])
    """By name: the number of tokens that a fork is expected to sample."""

    def in_order(self) -> tuple[Trajectory, ...]:
        """Return the leaves in the order in which they started."""
        return tuple(self.leaves[name] for name in self.snapshots if name in self.leaves)

    async def play_trunk(self) -> Trajectory:
        """Play the episode that is forked."""
        name = self.spec.episode_id
        known = self.snapshots[name] = {}
        spec = replace(self.spec, snapshots=known)
        await self._ended(name, self.player.play(self.env, spec, interrupt=self.interrupt))
        return self.leaves[name]

    async def grow(self, turn: int, width: int) -> None:
        """Play the forks of a turn, within the budget."""
        parents = [
            name
            for name in self.snapshots
            if name in self.leaves and _is_forkable(self.leaves[name], turn)
        ]
        waiting = deque((parent, n) for parent in parents for n in range(1, width))
        workers = [
            asyncio.ensure_future(self._work(waiting, turn))
            for _ in range(min(self.concurrency, len(waiting)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            # Cancelled forks still deliver the leaves that have ended.
            await until_done(workers)

    async def end_sessions(self) -> None:
        """End the episodes' sessions in the engine."""
        # A restarted episode has another id than its name.
        known = dict.fromkeys((*self.snapshots, *(one.episode_id for one in self.leaves.values())))
        await asyncio.gather(*map(self.player.end_session, known))

    async def _work(self, waiting: deque[tuple[str, int]], turn: int) -> None:
        while waiting and self._may_start():
            parent, number = waiting.popleft()
            name = f"{parent}.{turn}.{number}"
            self.running[name] = sum(
                one.token_count
                for one in self.leaves[parent].segments
                if one.kind is SegmentKind.MODEL and one.turn >= turn
            )
            try:
                await self._ended(name, self._resume(self._fork(parent, turn, name)))
            finally:
                del self.running[name]

    def _fork(self, parent: str, turn: int, name: str) -> Trajectory:
        """Return a fork that has not been played yet."""
        trajectory, known = self.leaves[parent], self.snapshots[parent]
        played = sum(one.purpose is None for one in trajectory.turns[:turn])
        # A fork can be forked again at every turn that it shares with its parent.
        self.snapshots[name] = {n: one for n, one in known.items() if n <= played}
        return fork_before(trajectory, turn, episode_id=name, env_snapshot=known.get(played))

    def _may_start(self) -> bool:
        if self.interrupt.reason is not None:
            return False
        # Running forks count with what they are expected to sample: otherwise all of them would
        # start before the first one has ended.
        spent = sum(leaf.sampled_token_count for leaf in self.leaves.values())
        return self.budget is None or spent + sum(self.running.values()) < self.budget

    async def _resume(self, fork: Trajectory) -> tuple[Trajectory, ...]:
        place = fork.episode_id.removeprefix(self.spec.episode_id)
        spec = replace(
            resumed_spec(fork, derive_seed(self.spec.member, place)),
            limits=self.spec.limits,
            sampling=self.spec.sampling,
            snapshots=self.snapshots[fork.episode_id],
        )
        return await self.player.play(self.env, spec, interrupt=self.interrupt)

    async def _ended(self, name: str, playing: Awaitable[tuple[Trajectory, ...]]) -> None:
        """Play a leaf and deliver it, even if it shows that further ones are pointless."""
        try:
            played = await playing
        except RunFailedError as failure:
            for leaf in failure.played:
                await self._deliver(name, leaf)
            raise
        (leaf,) = played  # `check_forkable` has refused several agents
        await self._deliver(name, leaf)

    async def _deliver(self, name: str, leaf: Trajectory) -> None:
        self.leaves[name] = leaf
        if self.on_leaf is None:
            return
        delivering = asyncio.ensure_future(_called(self.on_leaf, leaf))
        try:
            # A leaf that has ended is delivered even if the tree is cancelled meanwhile.
            await asyncio.shield(delivering)
        except asyncio.CancelledError:
            await until_done((delivering,))
            raise


async def _called(on_leaf: OnLeaf, leaf: Trajectory) -> None:
    result = on_leaf(leaf)
    if inspect.isawaitable(result):
        await result


def _turns_of(branching: Branching, trunk: Trajectory) -> list[int]:
    """Return the chosen turns in ascending order, each once.

    Raises:
        ConfigurationError: `turns_of` failed, or did not return turns.
    """
    where = f"{type(branching).__name__}.turns_of"
    try:
        found: Any = branching.turns_of(trunk)
        turns = _turns_in(found)
    except ConfigurationError:
        raise
    except Exception as error:  # a third party's function
        raise ConfigurationError(f"{where} failed: {describe(error)}") from error
    if turns is None:
        raise ConfigurationError(
            f"{where} must return turns counted from 0, such as [1, 2], got {shown(found)}"
        )
    return sorted(set(turns))


def _width_of(branching: Branching) -> int:
    """Return the number of continuations.

    Raises:
        ConfigurationError: It is not a branching, or its width is invalid.
    """
    width: Any = getattr(branching, "width", None)
    if not callable(getattr(branching, "turns_of", None)):
        raise ConfigurationError(
            "branching must be an object with width and turns_of(trunk), such as AtTurns or "
            f"ByEntropy, got {shown(branching)}"
        )
    _check_width(width)
    return int(width)


def _is_forkable(trajectory: Trajectory, turn: int) -> bool:
    """Whether an episode has a turn whose recorded reply went to the environment."""
    if turn >= len(trajectory.turns):
        return False
    record = trajectory.turns[turn]
    # A fork owns every turn that can still be chosen: turns are forked in ascending order.
    is_recorded = any(
        one.kind is SegmentKind.MODEL and one.turn == turn for one in trajectory.segments
    )
    is_over = trajectory.stop_reason is not StopReason.ABORTED
    return is_over and is_recorded and record.purpose is None


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _turns_in(values: Any) -> list[int] | None:  # noqa: ANN401  # a caller's value
    """Return turns as integers, or None if the values are not turns."""
    if not isinstance(values, Iterable):
        return None
    found = list(cast("Iterable[Any]", values))
    is_sound = all(_is_integer(value) and value >= 0 for value in found)
    return [int(value) for value in found] if is_sound else None


def _check_width(width: Any) -> None:  # noqa: ANN401  # a caller's value
    if not _is_integer(width) or width < 2:
        raise ConfigurationError(
            f"a fork has at least 2 continuations, an integer, got width={width!r:.80}"
        )


def _check_positive(name: str, value: Any) -> None:  # noqa: ANN401  # a caller's value
    if not _is_integer(value) or value < 1:
        raise ConfigurationError(f"{name} must be a positive integer, got {value!r:.80}")
