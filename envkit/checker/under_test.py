"""An environment under test and the episodes played in it, for checks and certification."""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, cast

from envkit.env import Env, Observation, Policy, PolicyContext, Reset, Step
from envkit.errors import ConfigurationError
from envkit.messages import Message, message
from envkit.reply import Reply
from envkit.tasks import Task
from envkit.text import counted

LONGEST_EPISODE: Final = 64
"""Turns after which a test leaves an episode that does not end."""
_BEFORE: Final = 20
_EXCERPT: Final = 60

AnyPolicy = Callable[[PolicyContext], str | Reply]
"""A policy whose replies may be cut."""


class Ids(Protocol):
    """The token ids of messages."""

    @property
    def train_ids(self) -> Sequence[int]:
        """Ids with image placeholders expanded."""
        ...


class Codec(Protocol):
    """The methods of a chat codec that the rules use; `envkit.tokens.ChatCodec` has them."""

    def encode_prompt(self, messages: Sequence[Message]) -> Ids:
        """Encode a conversation up to the model's next reply."""
        ...

    def readable(self, entry: Message) -> Message:
        """Return a message in a role that the template renders."""
        ...

    def encode_observation(
        self,
        messages: Sequence[Message],
        *,
        sampled_ids: Sequence[int],
        history: Sequence[Message] = (),
        previous_images: int | None = None,
    ) -> Ids:
        """Encode what follows a reply."""
        ...


class Skip(Exception):  # not an error
    """A rule does not apply; the argument says why."""


@dataclass(slots=True, kw_only=True)
class EnvUnderTest:
    """An environment, and how to make more of it."""

    env: Env
    factory: Callable[[], Env] | None
    seed: int
    episodes: int
    codec: Codec | None = None
    max_pixels: int | None = None
    """Limit on a single observation; None is unlimited, as for tokens."""
    max_tokens: int | None = None
    turns: int = 0
    """Number of turns played so far."""
    made: list[Env] = field(default_factory=list[Env])
    _model: Env | Exception | None = None

    def __post_init__(self) -> None:
        if self.makes_new:
            return
        try:  # before any rule plays
            self._model = copy.deepcopy(self.env)
        except Exception as error:  # noqa: BLE001  # a foreign object may refuse in any way
            self._model = error

    @property
    def makes_new(self) -> bool:
        """Whether `fresh` returns a new instance rather than a copy of a used one."""
        return self.factory is not None or self.env.spec is not None

    def fresh(self) -> Env:
        """Return another instance, which the check closes at its end.

        Raises:
            Skip: No second instance can be made.
        """
        env = self._make()
        self.made.append(env)
        return env

    def _make(self) -> Env:
        if self.factory is not None:
            return self.factory()
        if self.env.spec is not None:
            return cast(Env, self.env.spec.make().unwrapped)
        if not isinstance(self._model, Env):
            raise Skip(f"no second instance: pass factory= or make it by id ({self._model!r})")
        return copy.deepcopy(self._model)

    def begin(
        self, policy: AnyPolicy, *, seed: int, task: Task | None = None, env: Env | None = None
    ) -> "CheckedEpisode":
        """Begin an episode on this environment, or on another instance of it."""
        env = self.env if env is None else env
        return CheckedEpisode(env, policy, seed=seed, task=task, under_test=self)

    def play(
        self,
        policy: AnyPolicy,
        *,
        seed: int,
        task: Task | None = None,
        env: Env | None = None,
        max_turns: int = LONGEST_EPISODE,
    ) -> "CheckedEpisode":
        """Play at most `max_turns` turns of one episode."""
        return self.begin(policy, seed=seed, task=task, env=env).play(max_turns)

    def replay(
        self,
        episode: "CheckedEpisode",
        *,
        seed: int,
        task: Task | None = None,
        env: Env | None = None,
    ) -> "CheckedEpisode":
        """Play the replies of an episode again."""
        turns = len(episode.replies)
        return self.play(recorded(episode), seed=seed, task=task, env=env, max_turns=turns)

    def close_made(self) -> None:
        """Close the instances from `fresh`, twice, because closing twice must be allowed."""
        for env in self.made:
            env.close()
            env.close()
        self.made.clear()


class CheckedEpisode:
    """An episode, played turn by turn, so that two can be interleaved."""

    def __init__(
        self,
        env: Env,
        policy: AnyPolicy,
        *,
        seed: int,
        task: Task | None = None,
        under_test: EnvUnderTest | None = None,
    ) -> None:
        """Begin an episode.

        Args:
            env: It is reset.
            policy: Gives the replies.
            seed: The seed of the reset.
            task: The task to play; None lets the seed draw it.
            under_test: Counts the turns.
        """
        self._under_test = under_test
        self._env = env
        self._policy = policy
        self._seed = seed
        options = None if task is None else {"task": copy.deepcopy(task)}
        self.start = Reset(*env.reset(seed=seed, options=options))
        self.task: Task = copy.deepcopy(env.task)
        self.steps: list[Step] = []
        self.replies: tuple[str, ...] = ()
        self.messages: list[Message] = []
        if env.system_prompt is not None:
            self.messages.append(message("system", env.system_prompt))
        self.messages.append(self._format(self.start.observation))

    @property
    def ended(self) -> bool:
        """Whether the environment ended it."""
        return bool(self.steps) and bool(self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def total(self) -> float:
        """The sum of its rewards."""
        return math.fsum(float(step.reward) for step in self.steps)

    def rows(self) -> list[str]:
        """Return the episode as JSON lines: one for the start and one per step."""
        start = {"observation": _seen(self.start.observation), "info": self.start.info}
        return [_line(start), *(row(step) for step in self.steps)]

    def context(self) -> PolicyContext:
        """Return what the policy is asked with."""
        return PolicyContext(
            env=self._env,
            task=self.task,
            turn=len(self.steps),
            messages=tuple(self.messages),
            seed=self._seed,
        )

    def turn(self) -> Step:
        """Play one turn."""
        text = self._policy(self.context())
        if isinstance(text, Reply):
            self._env.announce(text)
            text = text.text
        step = Step(*self._env.step(text))
        if self._under_test is not None:
            self._under_test.turns += 1
        self.replies += (text,)
        self.steps.append(step)
        self.messages.append(message("assistant", text))
        self.messages.append(self._format(step.observation))
        return step

    def play(self, max_turns: int = LONGEST_EPISODE) -> Self:
        """Play on until the episode ends or has so many turns."""
        while not self.ended and len(self.steps) < max_turns:
            self.turn()
        return self

    def _format(self, observation: Observation) -> Message:
        try:
            return self._env.format_observation(observation)
        except Exception as error:  # noqa: BLE001  # the rule about messages reports it
            return message("user", repr(error))


def row(step: Step) -> str:
    """Return a step as one line of JSON."""
    seen = step._asdict()
    return _line({**seen, "observation": _seen(step.observation)})


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, default=repr)


def _seen(observation: Observation) -> dict[str, Any]:
    """Return an observation as JSON data, with the hashes of its images' PNG bytes."""
    images = [hashlib.sha256(image.png_bytes()).hexdigest() for image in observation["images"]]
    return {**observation, "images": images}


def recorded(episode: CheckedEpisode) -> Policy:
    """Return a policy that gives the replies of an episode."""
    return lambda context: episode.replies[context.turn]


def oracle_of(env: Env) -> Policy | None:
    """Return the oracle; None if the class or this instance has none."""
    try:
        return env.oracle()
    except ConfigurationError:
        return None


def difference(before: Sequence[str], after: Sequence[str]) -> str | None:
    """Return where the rows of two episodes first differ; None if they are equal."""
    for turn, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return f"{f'turn {turn}' if turn else 'the start'}: {excerpts(old, new)}"
    if len(before) != len(after):
        return f"the end: {counted(len(before) - 1, 'turn')} became {len(after) - 1}"
    return None


def excerpts(old: str, new: str) -> str:
    """Return what became of a text, from shortly before the first difference."""
    pairs = enumerate(zip(old, new, strict=False))
    same = next((n for n, (left, right) in pairs if left != right), min(len(old), len(new)))
    start = max(0, same - _BEFORE)
    shown = [repr(text[start : start + _EXCERPT]) for text in (old, new)]
    return f"{shown[0]} became {shown[1]}" + (f" (from character {start})" if start else "")
