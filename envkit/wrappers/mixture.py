"""A mixture of several environments for training on varied tasks."""

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
from envkit.success import own_reward
from envkit.tasks import ENDLESS_INDEX_LIMIT, Task

INFO_KEY: Final = "member"
"""Key of info, and of a task, with the name of the active member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One environment of a mixture."""

    id: str
    """Id of a registered environment."""
    weight: float = 1.0
    """Its share of the episodes is its weight over the sum of all weights."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Arguments of `envkit.make`, including `reward_threshold`."""
    name: str | None = None
    """Name in tasks and info; None uses the id. An id may appear twice under different names."""

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
        """None: every index has a task."""
        return None

    def task(self, index: int) -> Task:
        """Return the task of this index; it is empty for a member without a task source."""
        rng = random.Random(derive_seed("mixture", index))
        place = bisect.bisect_right(self._bounds, rng.random() * self._bounds[-1])
        name = self._names[min(place, len(self._names) - 1)]
        source = self._envs[name].tasks
        if source is None:
            return {INFO_KEY: name, "task": {}}
        drawn = rng.randrange(ENDLESS_INDEX_LIMIT if source.size is None else source.size)
        return {INFO_KEY: name, "task": source.task(drawn)}


class MixEnv(Env):
    """Plays each episode in one member, drawn by weight with the seed.

    Task: `{"member": name, "task": a task of that member}`.
    Observation, action, reward, episode end and budget are the member's. `info["member"]` names
        it. System prompt, tools and `max_turns` change with every reset; before the first one there
        are no tools and no prompt, and `max_turns` is the maximum over members.

    It declares the capabilities that all members share. Asynchronous members are played through
    their synchronous methods on the thread of the mixture.
    """

    def __init__(
        self, members: Sequence[Member | Mapping[str, Any]], *, render_mode: str | None = None
    ) -> None:
        """Create the members.

        Args:
            members: The environments to mix. A mapping has the fields of `Member`, so the list can
                be part of a spec: `[{"id": "canary-v0"}, {"id": "geo3k-v0", "weight": 3.0}]`.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: There is no member, two share a name, or a field is unknown.
            UnknownNameError: An id is not registered.
        """
        chosen = [_member(entry) for entry in members]
        names = [member.name or member.id for member in chosen]
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(
                f"members must be one or more with different names, got {names}; set name= to use "
                "an id twice"
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
        """The active member; the first one before `reset`."""
        return self._active

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode in the member named by the task.

        Raises:
            DatasetError: The task does not name a member.
        """
        task = self._prepare(seed, options)
        name, inner = self._parts(task)
        self._activate(name)
        env = self._active
        # Draw even if a task was given, so a recorded task replays with its seed.
        drawn = int(self.np_random.integers(2**31))
        given = {"task": inner} if inner or env.tasks is not None else None
        observation, info = env.reset(seed=drawn, options=given)
        self._activate(name)  # an environment may set its prompt and tools per task
        self.turn, self._running = 0, True
        return Reset(observation, {**info, INFO_KEY: name})

    def step(self, action: str) -> Step:
        """Play one reply in the member.

        Raises:
            EpisodeStateError: Before `reset`, or after the episode ended.
        """
        cast(Env, self._active.unwrapped).announce(self._hear(action))
        self._active.step_key = self.step_key
        observation, reward, terminated, truncated, info = self._active.step(action)
        self.turn += 1
        self._running = not (terminated or truncated)
        self.own_reward = own_reward(info, reward)
        told = {**info, INFO_KEY: self.task[INFO_KEY]}
        return Step(observation, reward, terminated, truncated, told)

    def format_observation(self, observation: Observation) -> Message:
        """Return the member's message."""
        return self._active.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return the member's shorter form."""
        return self._active.shorten(observation, tokens)

    def render(self) -> Any:  # noqa: ANN401  # the member's
        """Render the member."""
        return self._active.render()

    def get_state(self) -> dict[str, Any]:
        """Return the member's snapshot; the task names the member."""
        return {"inner": base64.b64encode(self._active.snapshot()).decode() if self.task else None}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the member's snapshot."""
        if state["inner"] is not None:
            name, _ = self._parts(self.task)
            self._activate(name)
            self._active.restore(base64.b64decode(state["inner"]))
            self._activate(name)

    def oracle(self) -> Policy:
        """Return a policy that calls the oracle of the active member.

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
        self.default_threshold = env.reward_threshold

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
