"""The subject of the checker's rules: an environment and the episodes played in it."""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from envkit.env import Env, Observation, PolicyContext, Reset, Step
from envkit.messages import Message, message
from envkit.tasks import Task

Reply = Callable[[PolicyContext], str]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits on a single observation; None is unlimited."""

    pixels: int | None = None
    tokens: int | None = None


class Skip(Exception):  # not an error
    """A rule does not apply; the argument says why."""


@dataclass(slots=True, kw_only=True)
class Subject:
    """The environment under check, and how to make more of it."""

    env: Env
    factory: Callable[[], Env] | None
    seed: int
    episodes: int
    codec: Codec | None
    budgets: Budgets
    turns: int = 0
    """Number of turns played so far by all rules."""
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

    def close(self) -> None:
        """Close the instances from `fresh`, twice, because closing twice must be allowed."""
        for env in self.made:
            env.close()
            env.close()
        self.made.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One played episode as comparable data."""

    task: Task
    start: Reset
    replies: tuple[str, ...]
    steps: tuple[Step, ...]
    messages: tuple[Message, ...]

    @property
    def ended(self) -> bool:
        """Whether the environment ended it."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    def rows(self) -> list[str]:
        """Return the episode as JSON lines: one for the start and one per step."""
        start = {"observation": _seen(self.start.observation), "info": self.start.info}
        return [_line(start), *(row(step) for step in self.steps)]


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


def play(
    subject: Subject,
    env: Env,
    reply: Reply,
    *,
    seed: int,
    task: Task | None = None,
    max_turns: int = 64,
) -> Episode:
    """Play at most `max_turns` turns of one episode."""
    player = Player(subject, env, reply, seed=seed, task=task)
    while not player.done and len(player.steps) < max_turns:
        player.turn()
    return player.episode()


class Player:
    """Plays an episode turn by turn, so that two can be interleaved."""

    def __init__(
        self, subject: Subject, env: Env, reply: Reply, *, seed: int, task: Task | None = None
    ) -> None:
        self._subject = subject
        self._env = env
        self._reply = reply
        self._seed = seed
        options = None if task is None else {"task": copy.deepcopy(task)}
        self.start = Reset(*env.reset(seed=seed, options=options))
        self.task: Task = copy.deepcopy(env.task)
        self.steps: list[Step] = []
        self.replies: list[str] = []
        self.done = False
        self.messages: list[Message] = []
        if env.system_prompt is not None:
            self.messages.append(message("system", env.system_prompt))
        self.messages.append(self._format(self.start.observation))

    def turn(self) -> None:
        """Play one turn."""
        context = PolicyContext(
            env=self._env,
            task=self.task,
            turn=len(self.steps),
            messages=tuple(self.messages),
            seed=self._seed,
        )
        text = self._reply(context)
        step = Step(*self._env.step(text))
        self._subject.turns += 1
        self.replies.append(text)
        self.steps.append(step)
        self.done = bool(step.terminated or step.truncated)
        self.messages.append(message("assistant", text))
        self.messages.append(self._format(step.observation))

    def _format(self, observation: Observation) -> Message:
        try:
            return self._env.format_observation(observation)
        except Exception as error:  # noqa: BLE001  # the rule about messages reports it
            return message("user", repr(error))

    def episode(self) -> Episode:
        """Return the turns played so far."""
        return Episode(
            task=self.task,
            start=self.start,
            replies=tuple(self.replies),
            steps=tuple(self.steps),
            messages=tuple(self.messages),
        )
