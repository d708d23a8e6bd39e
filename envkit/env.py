"""The environment contract between authors and callers.

An author subclasses `Env` and writes two hooks, `on_reset(task) -> Turn` and
`on_turn(response_text) -> Turn`. The base class handles seeding, drawing tasks, counting turns,
truncation at `max_turns`, the fixed keys of observation and info, and the error of a step after
the end. It is a `gymnasium.Env`: the action is the model's raw reply, and the observation is the
model's next input.
"""

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envkit.errors import (
    ConfigurationError,
    ContractError,
    EpisodeStateError,
    did_you_mean,
    shown,
)
from envkit.images import Image
from envkit.messages import Message, message
from envkit.ranges import at_least, one_of
from envkit.reply import Reply
from envkit.seeds import checked_seed
from envkit.signature import checked_arguments
from envkit.spaces import observation_space, response_space
from envkit.success import own_reward, with_verdict
from envkit.tasks import Task, TaskSource, draw_index
from envkit.tools import ToolSpec
from envkit.turns import (
    Observation,
    ObservationRole,
    Reset,
    Step,
    StepKey,
    Turn,
    after_cut,
    observe,
)

__all__ = [
    "Capabilities",
    "Env",
    "Observation",
    "ObservationRole",
    "Policy",
    "PolicyContext",
    "Reset",
    "Step",
    "StepKey",
    "Turn",
]


_DEFAULT_TURNS: Final = 1
_OURS: Final = ("envkit.", "gymnasium.")
_AWAITED: Final = {
    "on_reset": "on_areset",
    "on_turn": "on_aturn",
    "reset": "areset",
    "step": "astep",
    "close": "aclose",
}
"""Names of an `AsyncEnv` for what an `Env` does without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities that an environment declares. The defaults declare none."""

    thread_safe: bool = False
    """Steps may run on any thread; otherwise each instance keeps its own thread."""
    compute_bound: bool = False
    """Steps are CPU-bound and never wait. Only a few then run at once: Python runs one thread at a
    time, and each additional one would delay the event loop further."""
    replay_safe: bool = False
    """reset(seed, task) and the same replies rebuild the same state, without side effects."""
    snapshot: bool = False
    """`snapshot` and `restore` are supported."""
    deterministic: bool = False
    """The same seed, task and replies give the same observations, rewards and info."""
    max_sessions: int | None = None
    """Maximum live instances; None means no limit."""
    on_step_timeout: Literal["fault", "truncate"] = "fault"
    """Handling of a step that exceeds `RetryBudget.step_timeout_s`. "fault" masks the episode: a
    slow backend must not cost reward. "truncate" ends it with the rewards so far, for environments
    that run the model's code: if a hang were always masked, a policy could learn to hang instead of
    failing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """The inputs of a scripted policy."""

    env: "Env"
    task: Task
    turn: int
    """Turns completed so far: 0 at the first reply."""
    messages: Sequence[Message]
    seed: int
    """Differs per episode, so a noisy policy can be both random and repeatable."""


Policy = Callable[[PolicyContext], str]
"""Writes a reply. An environment's `oracle()` returns one that solves its tasks."""


class Env(gymnasium.Env[Observation, str]):
    """The base class of every environment; see the module docstring for the two hooks."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # type: ignore[misc]  # Gymnasium declares an instance attribute
    capabilities: ClassVar[Capabilities] = Capabilities()
    system_prompt: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tasks: TaskSource | None = None
    history_policy: ClassVar[str | Mapping[str, Any] | None] = None
    """The default history policy of rollouts, such as
    `{"keep_last_images": {"keep": 3, "drop_at": 6}}`; None appends everything."""
    grades_cut_replies: bool = False
    """True for an environment that grades text as it comes. Otherwise a reply that was cut has
    `parse_error` "cut", and the observation after it says that it was cut."""
    reply: Reply = Reply(text="")
    """The reply that the hook takes: how it ended, and its thoughts apart from its answer. Grade
    and run `reply.final`, or what `parse_tool_calls(self.reply)` finds."""
    step_key: StepKey | None = None
    """Set by a rollout before every step; None if there are no retries. An environment with a
    remote backend sends it as the idempotency key."""

    default_threshold: float | None = None
    """`reward_threshold` without one in the spec; for thresholds that depend on arguments."""
    threshold_is_mean: ClassVar[bool] = False
    """Whether the threshold is about the mean over many episodes, as Gymnasium's are. An oracle may
    then stay below it in some."""
    own_reward: float | None = None
    """Reward of the last step, before any wrapper changed it; None if unknown."""

    _announced: Reply | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # of other base classes
        super().__init_subclass__(**kwargs)
        _check_synchronous(cls)
        if "__init__" in vars(cls):
            cls.__init__ = checked_arguments(cls.__init__)

    @checked_arguments
    def __init__(self, *, max_turns: int | None = None, render_mode: str | None = None) -> None:
        self._chose_turns = max_turns is not None
        max_turns = _DEFAULT_TURNS if max_turns is None else max_turns
        at_least(1, max_turns=max_turns)
        if render_mode is not None:
            one_of("render_mode, if not None,", render_mode, self.metadata["render_modes"])
        self.max_turns = max_turns
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = response_space()
        self.task: Task = {}
        self.turn = 0
        self._running = False
        self._transcript: list[str] = []  # filled only if a render mode asks for it
        self._shown: Sequence[Image] = ()

    @property
    def reward_threshold(self) -> float | None:
        """Return from which an episode is solved; None if none is declared.

        It is the spec's, or else `default_threshold`, and is about `own_reward` summed over steps.
        `info["is_success"]` takes precedence.
        """
        declared = None if self.spec is None else self.spec.reward_threshold
        return self.default_threshold if declared is None else declared

    @property
    def sets_max_turns(self) -> bool:
        """Whether a number of turns was chosen; otherwise an episode has one."""
        return self._chose_turns or self.max_turns != _DEFAULT_TURNS

    def on_reset(self, task: Task) -> Turn:
        """Start the task and return what the model reads first."""
        name, is_async = type(self).__name__, hasattr(self, "on_areset")
        fix = ": on_areset is a hook of envkit.AsyncEnv, derive from that" if is_async else ""
        raise ContractError(f"{name} must define on_reset(task) or override reset{fix}")

    def on_turn(self, response_text: str) -> Turn:
        """Take the model's reply and return what it reads next. Never raise for a bad reply.

        `self.reply` says more about it than its text.
        """
        raise ContractError(f"{type(self).__name__} must define on_turn(text) or override step")

    def announce(self, reply: Reply) -> None:
        """Say how the reply of the next step ended. Without it, `step` takes a whole reply.

        A wrapper may still change the text between here and `step`.
        """
        self._announced = reply

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode.

        Args:
            seed: Reseeds `np_random`; None keeps the current generator.
            options: `{"task": {...}}` plays that task; otherwise one is drawn with `np_random`.

        Raises:
            ConfigurationError: The seed or the options are invalid.
        """
        return self._begin(self.on_reset(self._prepare(seed, options)))

    def step(self, action: str) -> Step:
        """Play one reply.

        Raises:
            ConfigurationError: The reply is not a string.
            EpisodeStateError: Before `reset`, or after the episode ended.
        """
        self._hear(action)
        return self._advance(action, self.on_turn(action))

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message to append."""
        return message(observation["role"], observation["text"], observation["images"])

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form of an observation that does not fit, or None to end.

        Args:
            observation: What `step` returned.
            tokens: Approximate number of tokens that fit, including the template's own;
                `sys.maxsize` if only the number of images exceeds its limit.
        """
        return None

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override]  # Gymnasium's return type is its own type variable
        """Return the transcript as text ("ansi") or as a page of pixels ("rgb_array")."""
        if self.render_mode == "rgb_array":
            from envkit.transcript import draw_page  # lazy: fonts are slow to import

            return draw_page(self._transcript, self._shown)
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def snapshot(self) -> bytes:
        """Return the state of the running episode; the author's part comes from `get_state`."""
        state = {
            "task": self.task,
            "turn": self.turn,
            "running": self._running,
            "generator": self.np_random.bit_generator.state,
            "transcript": self._transcript,
            "state": self.get_state(),
        }
        try:
            return json.dumps(state).encode()
        except (TypeError, ValueError) as error:
            name = type(self).__name__
            raise ContractError(f"{name}: task and get_state() must be JSON: {error}") from error

    def restore(self, data: bytes) -> None:
        """Restore a state that `snapshot` returned; later steps are byte-identical."""
        try:
            state = json.loads(data)
            self.np_random.bit_generator.state = state["generator"]
            self.task, self.turn = state["task"], state["turn"]
            self._running, self._transcript = state["running"], state["transcript"]
        except (ValueError, LookupError, TypeError) as error:
            raise ContractError(
                f"{type(self).__name__}.restore takes what Env.snapshot returned, got "
                f"{shown(data)}; a class with its own snapshot needs its own restore"
            ) from error
        self._shown = ()
        self.reply, self._announced = Reply(text=""), None
        self.set_state(state["state"])

    def get_state(self) -> dict[str, Any]:
        """Return the author's own state as JSON data, for `snapshot`."""
        raise _without(self, "get_state")

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; `task` and `turn` are already set."""
        raise _without(self, "set_state")

    def oracle(self) -> Policy:
        """Return a policy that solves this environment's tasks; used by tests and demos."""
        raise ConfigurationError(f"{type(self).__name__} has no oracle policy")

    def _prepare(self, seed: int | None, options: dict[str, Any] | None) -> Task:
        super().reset(seed=None if seed is None else checked_seed(seed))
        self.reply, self._announced = Reply(text=""), None
        self._running = False  # a hook that fails leaves no half-started episode behind
        return self._choose_task(options)

    def _choose_task(self, options: dict[str, Any] | None) -> Task:
        task = _given_task(options)
        # Draw even if a task is given, so a recorded task with the same seed plays the same
        # episode.
        index = None if self.tasks is None else draw_index(self.tasks, self.np_random)
        if task is None:
            task = {} if self.tasks is None or index is None else self.tasks.task(index)
        self.task = copy.deepcopy(task)
        return self.task

    def _begin(self, turn: Turn) -> Reset:
        observation = observe(turn, f"{type(self).__name__}.on_reset")
        self.turn, self._running, self._transcript = 0, True, []
        self._show(turn)
        return Reset(observation, self._info(turn))

    def _hear(self, action: object) -> Reply:
        """Take the reply of a step.

        Raises:
            ConfigurationError: The action is not a model's reply.
            EpisodeStateError: No episode is running.
        """
        if not self._running:
            raise EpisodeStateError(
                "the episode is over or never started: call reset() before step()"
            )
        if not isinstance(action, str):
            raise ConfigurationError(
                f"step() takes the model's reply, a str such as step({str(action)!r:.40}), "
                f"got {shown(action)}"
            )
        return self._take(action)

    def _take(self, action: str) -> Reply:
        announced, self._announced, self.own_reward = self._announced, None, None
        self.reply = Reply(text=action) if announced is None else announced.with_text(action)
        return self.reply

    def _advance(self, action: str, turn: Turn) -> Step:
        observation = observe(turn, f"{type(self).__name__}.on_turn")
        if self.reply.is_cut and not self.grades_cut_replies:
            turn = after_cut(turn)
            observation = observe(turn, "")
        self.turn += 1
        done = bool(turn.done)
        truncated = not done and self.turn >= self.max_turns
        self._running = not (done or truncated)
        self._show(turn, action)
        reward = float(turn.reward)
        self.own_reward = own_reward(turn.info, reward)
        return Step(observation, reward, done, truncated, self._info(turn))

    def _show(self, turn: Turn, *before: str) -> None:
        if self.render_mode is not None:
            self._transcript += [*before, turn.text]
            self._shown = turn.images

    def _info(self, turn: Turn) -> dict[str, Any]:
        defaults: dict[str, Any] = {"tool_call": None, "parse_error": None, "reward_terms": {}}
        return with_verdict({**defaults, **copy.deepcopy(dict(turn.info)), "turn": self.turn})


def _without(env: Env, missing: str) -> ContractError:
    """Return the error of an environment that lacks one half of a snapshot."""
    kind, pairs = type(env), (("get_state", "set_state"), ("snapshot", "restore"))
    own = [name for pair in pairs for name in pair if getattr(kind, name) is not getattr(Env, name)]
    if not own and not env.capabilities.snapshot:
        return ContractError(
            f"{kind.__name__} declares no snapshot: define get_state and set_state, and declare "
            "Capabilities(snapshot=True)"
        )
    has = ", ".join(own) or "only Capabilities(snapshot=True)"
    return ContractError(
        f"{kind.__name__} must define {missing}: a snapshot needs get_state and set_state, or its "
        f"own snapshot and restore, got {has}"
    )


def _check_synchronous(kind: type[Env]) -> None:
    """Reject coroutines in the place of methods that are called without `await`.

    Raises:
        ContractError: There is one.
    """
    found = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    for name in (name for name, value in found.items() if _is_async(value)):
        bases = [base for base in kind.__mro__ if base.__module__.startswith(_OURS)]
        if all(_is_async(vars(base)[name]) for base in bases if name in vars(base)):
            continue
        fix = (
            f"derive from envkit.AsyncEnv and write `async def {_AWAITED[name]}`"
            if name in _AWAITED
            else "do what waits in on_areset and on_aturn of an envkit.AsyncEnv"
        )
        raise ContractError(
            f"{kind.__name__}.{name} must be a plain `def`, which nothing awaits, got `async def`: "
            f"{fix}"
        )


def _is_async(value: object) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)


def _given_task(options: object) -> Task | None:
    if options is None:
        return None
    if not isinstance(options, dict):
        raise ConfigurationError(f"reset() takes options={{'task': {{...}}}}, got {shown(options)}")
    given = cast("dict[object, object]", options)
    for key in given.keys() - {"task"}:
        meant = did_you_mean(str(key), ["task"])
        raise ConfigurationError(
            f"reset() takes only the option 'task', got options={{{key!r}: ...}}.{meant}"
        )
    task = given.get("task")
    if task is not None and not isinstance(task, dict):
        raise ConfigurationError(f"options['task'] must be a dict, got {type(task).__name__}")
    return cast("Task | None", task)
