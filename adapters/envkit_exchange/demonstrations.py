"""Demonstrations for supervised training: episodes of an environment's oracle, with noise.

At noisy turns another valid action is played, and the oracle plans again from what it led to. Noisy
replies have mask 0 and the weight version `NOISE`. Demonstrations are stored as trajectories in the
order of their tasks, each split in its own folder.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from envkit.cli.engines import Built
from envkit.cli.play_options import DEFAULT_CONCURRENCY
from envkit.cli.progress import progress_for
from envkit.closing import Closing
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ConfigurationError, StorageError
from envkit.messages import Message
from envkit.random_replies import random_policy
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import GenerateRequest, Generation
from envkit.rollout.host import EnvFactory
from envkit.rollout.plan import Played, RolloutState, RunPlan
from envkit.rollout.player import Player
from envkit.rollout.run import Run
from envkit.rollout.scripted import ScriptedEngine
from envkit.rollout.vocabulary_file import VOCABULARY_FILE, TokenText, VocabularyWriter
from envkit.seeds import derive_seed
from envkit.tokens.codec import ChatCodec
from envkit.trajectory import SegmentKind, Trajectory, TrajectoryWriter, success_of
from envkit.viewer.episodes import used_ids

NOISE: Final = "noise"
"""Weight version of the replies that the oracle did not write."""
NOISY_TURNS: Final = "noisy_turns"
"""Key of a trajectory's metadata: the turns with such replies."""
TRAIN: Final = "train"
TEST: Final = "test"
_DRAWS: Final = 8
"""Attempts to draw an action other than the oracle's."""
_SEEDS: Final = 2**31


class NoisyOracle(ScriptedEngine):
    """Plays the oracle, and another action at some turns, which depend only on the seeds."""

    def __init__(self, codec: ChatCodec, oracle: Policy, other: Policy, *, rate: float) -> None:
        """Create the engine.

        Args:
            codec: The rollout's codec.
            oracle: The environment's oracle.
            other: Writes other valid actions, a pure function of its context.
            rate: Share of the turns at which `other` plays.
        """
        super().__init__(codec, oracle)
        self._other, self._rate = other, rate

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return the oracle's reply, or another one with the weight version `NOISE`."""
        noise = None if request.context is None else self._noise(request.context)
        if noise is None:
            return await super().generate(request)
        engine = ScriptedEngine(self._codec, lambda _: noise)
        return replace(await engine.generate(request), weight_version=NOISE)

    def _noise(self, context: PolicyContext) -> str | None:
        rng = random.Random(derive_seed("demonstration noise", context.seed, context.turn))
        if rng.random() >= self._rate:
            return None
        best = self._policy(context)
        for draw in range(_DRAWS):
            seed = derive_seed("demonstration action", context.seed, draw)
            reply = self._other(replace(context, seed=seed))
            if reply != best:
                return reply
        return None


def noise_policy(env: Env) -> Policy:
    """Return the environment's own policy `random`.

    Raises:
        ConfigurationError: It has none, so nothing writes valid actions.
    """
    if "random" not in getattr(env.unwrapped, "policies", {}):
        raise ConfigurationError(
            f"--noise plays valid actions of the environment's own policy 'random', which "
            f"{type(env.unwrapped).__name__} does not have: drop --noise"
        )
    return random_policy(env)


@dataclass(slots=True, kw_only=True)
class SplitTally:
    """What a split holds."""

    demonstrations: int = 0
    rows: int = 0
    turns: int = 0
    noisy_turns: int = 0
    images: int = 0
    tokens: int = 0
    trained_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class DemoTally:
    """The result of playing."""

    episodes: int = 0
    solved: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of excluded demonstrations by reason."""
    splits: dict[str, SplitTally] = field(default_factory=dict[str, SplitTally])

    @property
    def has_images(self) -> bool:
        """Whether any demonstration shows an image."""
        return any(split.images for split in self.splits.values())

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {
            "episodes": self.episodes,
            "success_rate": self.solved / self.episodes if self.episodes else 0.0,
            "left_out": dict(sorted(self.left_out.items())),
            "splits": {name: asdict(split) for name, split in self.splits.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSelection:
    """Which episodes become demonstrations, and of which split."""

    test_share: float = 0.0
    """Share of the tasks in the split `test`."""
    with_failed: bool = False
    """Keep episodes that did not solve their task."""
    threshold: float | None = None
    """As for `success_of`."""

    def refusal(self, trajectory: Trajectory, *, is_solved: bool | None) -> str | None:
        """Return why a trajectory is excluded; None if it is kept."""
        if trajectory.is_faulted:
            return "faulted"
        if is_solved is None and not self.with_failed:
            return "not known to be solved"
        if not is_solved and not self.with_failed:
            return "failed"
        if not any(segment.trained_token_count for segment in trajectory.segments):
            return "without a reply of the oracle"
        return None

    def split(self, trajectory: Trajectory) -> str:
        """Return the split of a task. It does not depend on the other tasks."""
        place = derive_seed("demonstration split", _task_key(trajectory))
        return TEST if place < self.test_share * _SEEDS else TRAIN


class DemoWriter(Closing):
    """Writes finished episodes in the order of the run, each demonstration once."""

    def __init__(self, folder: Path, selection: DemoSelection, token_text: TokenText) -> None:
        """Start with nothing.

        Args:
            folder: Gets a folder of trajectories for each split.
            selection: What to keep.
            token_text: As for `VocabularyWriter`.
        """
        self.tally: Final = DemoTally()
        self._folder, self._selection, self._token_text = folder, selection, token_text
        self._waiting: dict[int, Played] = {}
        self._next = 0
        self._seen: set[str] = set()
        self._writers: dict[str, tuple[TrajectoryWriter, VocabularyWriter]] = {}
        self._open = ExitStack()

    def take(self, played: Played) -> None:
        """Take a finished episode; it is written after those that were planned before it.

        Raises:
            StorageError: A file cannot be written.
        """
        self._waiting[played[0].metadata["group"]] = played
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            self.tally.episodes += 1
            solved = [success_of(one, threshold=self._selection.threshold) for one in ready]
            self.tally.solved += all(solved)
            for trajectory, is_solved in zip(ready, solved, strict=True):
                self._write(_without_noise(trajectory), is_solved)

    def close(self) -> None:
        """Close the files."""
        self._open.close()
        for _, vocabulary in self._writers.values():
            vocabulary.write()

    def _write(self, trajectory: Trajectory, is_solved: bool | None) -> None:
        reason = self._selection.refusal(trajectory, is_solved=is_solved)
        key = _content_key(trajectory)
        if reason is None and key in self._seen:
            reason = "repeated"
        if reason is not None:
            self.tally.left_out[reason] += 1
            return
        self._seen.add(key)
        split = self._selection.split(trajectory)
        writer, vocabulary = self._files(split)
        writer.write(trajectory)
        vocabulary.add(used_ids(trajectory))
        held = self.tally.splits[split]
        held.demonstrations += 1
        held.turns += len(trajectory.turns)
        held.noisy_turns += len(trajectory.metadata.get(NOISY_TURNS, ()))
        held.images += trajectory.image_count
        held.tokens += trajectory.token_count
        held.trained_tokens += sum(one.trained_token_count for one in trajectory.segments)

    def _files(self, split: str) -> tuple[TrajectoryWriter, VocabularyWriter]:
        if split not in self._writers:
            folder = self._folder / split
            writer = self._open.enter_context(TrajectoryWriter(folder))
            vocabulary = VocabularyWriter(folder / VOCABULARY_FILE, is_new=True)
            vocabulary.token_text = self._token_text
            self._writers[split] = (writer, vocabulary)
            self.tally.splits[split] = SplitTally()
        return self._writers[split]


async def play_demonstrations(
    env: str | EnvFactory,
    built: Built,
    config: RolloutConfig,
    writer: DemoWriter,
    *,
    episodes: int,
    is_quiet: bool,
) -> None:
    """Play episodes and pass them to the writer.

    Args:
        env: A registered environment, or a function that builds one.
        built: The engine and its codec, which this closes.
        config: The settings of the episodes.
        writer: Takes the episodes.
        episodes: How many to play, each with its own seed.
        is_quiet: Whether to show no progress.

    Raises:
        EnvkitError: As for `Run.play`, or a file cannot be written.
    """
    state, player = RolloutState(), Player(built.engine, built.codec, config)
    try:
        plan = RunPlan(episodes=episodes, concurrency=DEFAULT_CONCURRENCY)
        run = Run(env, player, plan, state=state)
        with progress_for(state, done=0, is_quiet=is_quiet) as progress:

            async def deliver(played: Played) -> None:
                writer.take(played)
                progress.finished(played)

            await run.play(deliver)
    finally:
        await player.aclose()
        await built.engine.aclose()


def check_demonstrations(tally: DemoTally) -> None:
    """Check that there is something to train on.

    Raises:
        StorageError: There is not.
    """
    if TRAIN in tally.splits:
        return
    if tally.splits:
        raise StorageError(
            f"all {tally.splits[TEST].demonstrations} demonstrations belong to the test split: "
            "play more with -n, or lower --test-share"
        )
    why = ", ".join(f"{number} {reason}" for reason, number in tally.left_out.most_common())
    raise StorageError(
        f"all {tally.episodes} episodes were left out, so there is no demonstration: {why}. "
        "--with-failed keeps episodes that did not solve their task, and --reward-threshold says "
        "from which reward on a task is solved"
    )


def _without_noise(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory whose noisy replies are not trained."""
    noisy = {
        segment.turn
        for segment in trajectory.segments
        if segment.kind is SegmentKind.MODEL and segment.weight_version == NOISE
    }
    if not noisy:
        return trajectory
    segments = tuple(
        segment.as_context() if segment.turn in noisy else segment
        for segment in trajectory.segments
    )
    metadata = {**trajectory.metadata, NOISY_TURNS: sorted(noisy)}
    return replace(trajectory, segments=segments, metadata=metadata)


def _task_key(trajectory: Trajectory) -> str:
    """Return what identifies a task. Without one, equal first observations are the same task."""
    if not trajectory.task:
        return str(trajectory.initial_observation_hash)
    return json.dumps(dict(trajectory.task), sort_keys=True, default=str)


def _content_key(trajectory: Trajectory) -> str:
    """Return a hash of the messages. Two tasks with the same messages teach the same."""
    digest = hashlib.sha256()
    for entry in trajectory.messages:
        for text in _texts(entry):
            digest.update(f"\x1e{text}".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _texts(entry: Message) -> Iterator[str]:
    yield entry["role"]
    content = entry["content"]
    for part in [] if isinstance(content, str) else content:
        yield part["text"] if part["type"] == "text" else part["image"].sha256
    if isinstance(content, str):
        yield content
