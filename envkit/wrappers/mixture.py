"""One environment made of several, for training on a mixture of tasks."""

import base64
import bisect
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from envkit.env import Capabilities, Env, Observation, Policy, PolicyContext, Reset, Step
from envkit.errors import ConfigurationError, DatasetError
from envkit.messages import Message
from envkit.registration import make
from envkit.seeds import derive_seed
from envkit.tasks import ENDLESS_INDEX_LIMIT, Task

INFO_KEY: Final = "member"
"""Key of info, and of a task, with the name of the member that is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One environment of a mixture."""

    id: str
    """Of a registered environment."""
    weight: float = 1.0
    """Its share of the episodes is this over the sum of all weights."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Arguments of its constructor."""
    name: str | None = None
    """What tasks and info call it; None takes the id. The same id may come twice by two names."""

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ConfigurationError(
                f"the weight of {self.id!r} must be greater than 0, got {self.weight}"
            )


class MixedTasks:
    """Endless tasks `{"member": name, "task": {...}}`, drawn from the members by weight."""

    def __init__(self, envs: Mapping[str, Env], weights: Sequence[float]) -> None:
        self._envs = envs
        self._names = list(envs)
        self._bounds = list(itertools.accumulate(weights))

    @property
    def size(self) -> int | None:
        """None: there is a task for every index."""
        return None

    def task(self, index: int) -> Task:
        """Return the task of this index; that of a member without a task source is empty."""
        rng = random.Random(derive_seed("mixture", index))
        place = bisect.bisect_right(self._bounds, rng.random() * self._bounds[-1])
        name = self._names[min(place, len(self._names) - 1)]
        source = self._envs[name].tasks
        if source is None:
            return {INFO_KEY: name, "task": {}}
        drawn = rng.randrange(ENDLESS_INDEX_LIMIT if source.size is None else source.size)
        return {INFO_KEY: name, "task": source.task(drawn)}


class MixEnv(Env):
    """Plays each episode in one of its members, drawn by weight with the seed.

    Task: `{"member": name, "task": a task of that member}`.
    Observation, action, reward, episode end and budget: those of the member. `info["member"]` names
        it. System prompt, tools and `max_turns` change with every reset; before the first one there
        are no tools and no prompt, and `max_turns` is the greatest of all.

    It promises what all members promise. Members that are asynchronous are played by their
    synchronous methods, on the thread of the mixture.
    """

    def __init__(
        self, members: Sequence[Member | Mapping[str, Any]], *, render_mode: str | None = None
    ) -> None:
        """Make the members.

        Args:
            members: What to mix; a mapping has the fields of `Member`, so that the list can stand
                in a spec: `[{"id": "canary-v0"}, {"id": "geo3k-v0", "weight": 3.0}]`.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: No member, two of one name, or an unknown field.
            UnknownNameError: An id is not registered.
        """
        chosen = [_member(entry) for entry in members]
        names = [member.name or member.id for member in chosen]
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(
                f"members must be one or more with different names, got {names}; name= tells two "
                "of one id apart"
            )
        extra = {} if render_mode is None else {"render_mode": render_mode}
        self._envs: dict[str, Env] = {}
        for name, member in zip(names, chosen, strict=True):
            arguments: dict[str, Any] = {**member.kwargs, **extra}
            self._envs[name] = make(member.id, disable_env_checker=True, **arguments)
        envs = list(self._envs.values())
        super().__init__(max_turns=max(env.max_turns for env in envs), render_mode=render_mode)
        self.capabilities = _common([env.capabilities for env in envs])  # pyright: ignore[reportAttributeAccessIssue]  # a fact of this mixture, not of the class
        self.tasks = MixedTasks(self._envs, [member.weight for member in chosen])
        self._active: Env = envs[0]

    @property
    def active(self) -> Env:
        """The member that plays; the first one before `reset`."""
        return self._active

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode in the member that the task names.

        Raises:
            DatasetError: The task names no member.
        """
        task = self._prepare(seed, options)
        name, inner = self._parts(task)
        self._activate(name)
        env = self._active
        # Drawn whether or not the task was given, so that a recorded task replays by its seed.
        drawn = int(self.np_random.integers(2**31))
        given = {"task": inner} if inner or env.tasks is not None else None
        observation, info = env.reset(seed=drawn, options=given)
        self._activate(name)  # an environment may set its prompt and tools by its task
        self.turn, self._running = 0, True
        return Reset(observation, {**info, INFO_KEY: name})

    def step(self, action: str) -> Step:
        """Play one reply in the member.

        Raises:
            EpisodeStateError: Before `reset`, or after the episode ended.
        """
        self._require_running(action)
        self._active.step_key = self.step_key
        observation, reward, terminated, truncated, info = self._active.step(action)
        self.turn += 1
        self._running = not (terminated or truncated)
        told = {**info, INFO_KEY: self.task[INFO_KEY]}
        return Step(observation, reward, terminated, truncated, told)

    def format_observation(self, observation: Observation) -> Message:
        """Return the member's message."""
        return self._active.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return the member's shorter form."""
        return self._active.shorten(observation, tokens)

    def render(self) -> Any:  # noqa: ANN401  # the member's
        """Return what the member shows."""
        return self._active.render()

    def get_state(self) -> dict[str, Any]:
        """Return the member's snapshot; the task says whose it is."""
        return {"inner": base64.b64encode(self._active.snapshot()).decode() if self.task else None}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put the member's snapshot back."""
        if state["inner"] is not None:
            name, _ = self._parts(self.task)
            self._activate(name)
            self._active.restore(base64.b64decode(state["inner"]))
            self._activate(name)

    def oracle(self) -> Policy:
        """Return a policy that asks the oracle of the member that plays.

        Raises:
            ConfigurationError: A member has no oracle.
        """
        oracles = {name: env.oracle() for name, env in self._envs.items()}

        def reply(context: PolicyContext) -> str:
            mixture = cast(MixEnv, context.env.unwrapped)
            task = context.task
            return oracles[task[INFO_KEY]](replace(context, env=mixture.active, task=task["task"]))

        return reply

    def close(self) -> None:
        """Close every member."""
        for env in self._envs.values():
            env.close()

    def _activate(self, name: str) -> None:
        env = self._active = self._envs[name]
        self.system_prompt, self.tools, self.max_turns = env.system_prompt, env.tools, env.max_turns

    def _parts(self, task: Task) -> tuple[str, Task]:
        name, inner = task.get(INFO_KEY), task.get("task")
        if name not in self._envs or not isinstance(inner, dict):
            raise DatasetError(
                "a task of a mixture must be {'member': name, 'task': {...}} with a name of "
                f"{list(self._envs)}, got {task!r:.120}"
            )
        return name, cast(Task, inner)


def _member(entry: Member | Mapping[str, Any]) -> Member:
    if isinstance(entry, Member):
        return entry
    try:
        return Member(**entry)
    except TypeError as error:
        raise ConfigurationError(
            f"a member must have the fields id, weight, kwargs and name, got {dict(entry)}"
        ) from error


def _common(promises: Sequence[Capabilities]) -> Capabilities:
    bounds = [each.max_sessions for each in promises if each.max_sessions is not None]
    return Capabilities(
        thread_safe=all(each.thread_safe for each in promises),
        replay_safe=all(each.replay_safe for each in promises),
        snapshot=all(each.snapshot for each in promises),
        deterministic=all(each.deterministic for each in promises),
        max_sessions=min(bounds, default=None),
    )
