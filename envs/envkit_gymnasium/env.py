"""Wrap any gymnasium.Env as an environment for language models."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

import gymnasium
import numpy as np

from envkit import ranges
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Env, Policy, PolicyContext, Step, Turn
from envkit.errors import ConfigurationError, DatasetError
from envkit.images import Image
from envkit.marks import MAX_MARKS, clip
from envkit.seeds import derive_seed
from envkit.success import IS_SUCCESS, OWN_REWARD, finite, reaches
from envkit.tasks import Task
from envkit.twins import FEEDBACK
from envkit_gymnasium import inner
from envkit_gymnasium.ansi import show_ansi
from envkit_gymnasium.inner import View, foreign
from envkit_gymnasium.names import STATE_NAMES, action_names_of, class_key
from envkit_gymnasium.replies import TOOL, ActionReader
from envkit_gymnasium.sentences import (
    describe_space,
    fitted,
    holds_picture,
    is_picture,
    picture,
    show_value,
    stacked,
    strings_in,
)
from envkit_gymnasium.solution import best_actions
from envkit_gymnasium.values import plain_json

_DEFAULT_TURNS: Final = 200
_GymEnv = gymnasium.Env[Any, Any]


def random_actions() -> Policy:
    """Return a policy that samples the action space, seeded by the context's seed and turn."""

    def reply(context: PolicyContext) -> str:
        seed = derive_seed("random actions", context.seed, context.turn)
        return _played_env(context).random_reply(seed)

    return reply


def _played_env(context: PolicyContext) -> "GymnasiumEnv":
    env = context.env.unwrapped
    if not isinstance(env, GymnasiumEnv):
        raise ConfigurationError(f"this policy plays GymnasiumEnv, got {env!r:.80}")
    return env


class SeedTasks:
    """Endless tasks: `{"seed": n}`, the seed for the inner environment's reset."""

    size: int | None = None
    """None: there is a task for every index."""

    def task(self, index: int) -> Task:
        """Return the task at this index."""
        return {"seed": derive_seed("gymnasium", index)}


def seed_of(task: Task) -> int:
    """Return a task's seed.

    Raises:
        DatasetError: It has none.
    """
    seed = task.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise DatasetError(f"a task must have an integer 'seed' of 0 or more, got {seed!r:.80}")
    return seed


class GymnasiumEnv(Env):
    """Play any `gymnasium.Env`: its actions by text or tool calls, its state as text or images.

    Task: `{"seed": 7}`, given to the inner environment's reset; `"options"` is passed on too.
    Observation: depends on the view: text from the "ansi" rendering, an image from the "rgb_array"
        rendering, or the observation in words; images in an observation are shown as images.
    Action: calls of the tool `act`, or actions in `<action>` tags; several in one reply if allowed.
    Reward: the sum over the turn's inner steps, plus `termination_reward` at termination.
        `info["return"]` is the episode's sum so far.
    Episode end: terminates and truncates as the inner environment does; `max_turns` replies
        truncate. After an unreadable reply nothing is played and the observation says why.
    Success: the inner environment's `is_success`, or its reward threshold. If doing nothing reaches
        the threshold, only an episode that was played to its end can succeed.
    Chance: depends on the environment.
    Source: Gymnasium, https://gymnasium.farama.org, and any package that registers environments
        with it.
    """

    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {"random": random_actions}
    threshold_is_mean: ClassVar[bool] = True
    marks_feedback: ClassVar[bool] = True

    def __init__(
        self,
        *,
        env: str | Callable[..., _GymEnv] = "FrozenLake-v1",
        env_kwargs: Mapping[str, Any] | None = None,
        view: str = View.AUTO,
        with_state: bool = False,
        min_side: int = 448,
        max_side: int = 1024,
        action_form: str = "tool",
        action_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        call_format: str = "auto",
        actions_per_turn: int = 1,
        frame_skip: int = 1,
        instructions: str | None = None,
        show_reward: bool = True,
        termination_reward: float = 0.0,
        is_repeatable: bool | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Create the inner environment.

        Args:
            env: Its Gymnasium id, `module:Id` to import a module first, or a function that creates
                it from `render_mode` and `env_kwargs`.
            env_kwargs: Its arguments, including `max_episode_steps`.
            view: A `View`.
            with_state: Also describe the observation if the view is a rendering.
            min_side: Pixels; a smaller picture is enlarged by a whole factor to about this size.
            max_side: Pixels; a larger picture is scaled down.
            action_form: An `ActionForm`: "tool" or "tags".
            action_names: Names of a Discrete space's actions; None uses those that Gymnasium or the
                environment's package gives; an empty list uses no names.
            state_names: Names of the observation's entries; None as for `action_names`.
            call_format: How calls are written, a `ToolCallFormat`.
            actions_per_turn: Maximum actions per reply.
            frame_skip: Times each action is repeated.
            instructions: The rules, for the system prompt; None uses the documentation of the inner
                environment's class.
            show_reward: Show the model its rewards.
            termination_reward: Added when the inner environment terminates.
            is_repeatable: Promises that a seed and the same actions give the same episode; the
                environment then declares itself deterministic and safe to replay. None makes that
                promise for environments of Gymnasium and of a few checked packages (ale-py,
                highway-env, MiniGrid, ViZDoom) that are not marked nondeterministic.
            max_turns: Replies before truncation; None uses the inner environment's step limit, or
                200 if it has none.
            render_mode: As for `envkit.Env`; applies to the transcript, not the inner environment.

        Raises:
            ConfigurationError: An argument is wrong, or the environment cannot be created or
                rendered.
            MissingDependencyError: The inner environment needs a package that is not installed.
        """
        ranges.at_least(
            1,
            actions_per_turn=actions_per_turn,
            frame_skip=frame_skip,
            min_side=min_side,
            max_side=max_side,
        )
        self._sides = {"min_side": min_side, "max_side": max_side}
        self._view = inner.choose_view(env, dict(env_kwargs or {}), view)
        self._inner = inner.make_inner(env, dict(env_kwargs or {}), self._view)
        limit = getattr(self._inner.spec, "max_episode_steps", None)
        self._has_limit = limit is not None
        turns = (limit or _DEFAULT_TURNS) if max_turns is None else max_turns
        super().__init__(max_turns=turns, render_mode=render_mode)
        known = class_key(self._inner.unwrapped) or ""
        if action_names is None:
            action_names = self._known_names(action_names_of(self._inner.unwrapped))
        self._state_names = STATE_NAMES.get(known, ()) if state_names is None else state_names
        self._reader = ActionReader(
            self._inner.action_space,
            form=action_form,
            names=action_names,
            most=actions_per_turn,
            call_format=call_format,
        )
        self.tools = self._reader.tools
        self.tasks = SeedTasks()
        self.default_threshold = finite(getattr(self._inner.spec, "reward_threshold", None))
        self._with_state, self._frame_skip = with_state, frame_skip
        self._show_reward, self._bonus = show_reward, float(termination_reward)
        if is_repeatable or (is_repeatable is None and inner.is_known_repeatable(self._inner)):
            self.capabilities = Capabilities(replay_safe=True, deterministic=True)  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by what is inside
        if instructions is None:
            has_names = bool(action_names)
            instructions = inner.rules_of(self._inner, env_kwargs or {}, has_names=has_names)
        self.system_prompt = "\n\n".join(
            filter(None, [instructions, self._reader.describe(), self._seen()])
        )
        self._return = self._own_return = 0.0
        self._is_over = self._is_cut = self._has_missed = False
        self._replies = 0
        self._is_closed = False
        self._state: Any = None

    def on_reset(self, task: Task) -> Turn:
        """Reset the inner environment with the task's seed.

        Raises:
            DatasetError: The task has no seed, or its options are not an object.
            EnvFault: The inner environment failed.
        """
        seed, options = seed_of(task), task.get("options")
        if options is not None and not isinstance(options, dict):
            raise DatasetError(f"'options' of a task must be an object, got {options!r:.80}")
        with foreign("reset", self._inner):
            state, inner_info = self._inner.reset(seed=seed, options=options)
        self._inner.action_space.seed(seed)
        self._return = self._own_return = 0.0
        self._is_over = self._is_cut = self._has_missed = False
        self._replies = 0
        text, images = self._look(state)
        return Turn(
            text, images=images, info=self._report(inner.stable(inner_info, self._inner), 0)
        )

    def on_turn(self, response_text: str) -> Turn:
        """Play the reply's actions.

        Raises:
            EnvFault: The inner environment failed.
        """
        self._replies += 1
        actions = self._reader.read(self.reply)
        if actions.error is not None:
            self._has_missed = True
            said = f"Nothing was played: {actions.error}. {self._reader.describe()}"
            info = {"parse_error": actions.error, "tool_call": actions.call, FEEDBACK: said}
            return Turn(said, info={**info, **self._report({}, 0)})
        played = self._play(actions.values)
        self._return += played.reward
        self._own_return += played.reward - played.bonus
        self._is_over = played.is_over
        text, images = self._look(played.state)
        parts = (self._score(played.reward), self._ending(played.is_over))
        feedback = "\n\n".join(filter(None, parts))
        info = self._report(played.info, played.steps)
        if played.bonus:
            info[OWN_REWARD] = played.reward - played.bonus
        terms = {"env": played.reward}
        return Turn(
            "\n\n".join(filter(None, (text, feedback))),
            images=images,
            reward=played.reward,
            done=played.is_over,
            info={
                **info,
                "tool_call": actions.call,
                FEEDBACK: feedback,
                "reward_terms": terms,
                "marks": [
                    {"kind": "call", "label": TOOL, "text": clip(self._reader.say(value))}
                    for value in actions.values[: min(played.steps, MAX_MARKS)]
                ],
            },
        )

    def step(self, action: str) -> Step:
        """Play one reply; truncation of the inner environment truncates here too.

        Raises:
            EpisodeStateError: Before `reset`, or after the episode ended.
        """
        played = super().step(action)
        if not self._is_cut or played.terminated:
            return played
        self._running = False
        return played._replace(truncated=True)

    def close(self) -> None:
        """Close the inner environment; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._inner.close()

    def oracle(self) -> Policy:
        """Return an optimal policy, for environments with a deterministic transition table.

        These are Gymnasium's toy environments with public transitions, if they are deterministic.

        Raises:
            ConfigurationError: The inner environment has no such table, or its best play earns
                nothing; `termination_reward` can change that.
        """
        if self._frame_skip > 1:
            raise ConfigurationError("the oracle plays single steps: set frame_skip=1")
        actions = best_actions(self._inner.unwrapped, termination_reward=self._bonus)

        def answer(context: PolicyContext) -> str:
            return self._reader.write(actions[_played_env(context).table_state])

        return answer

    def certification_hooks(self) -> CertificationHooks:
        """Return the inner environment's reward threshold, if registered."""
        threshold: float | None = getattr(self._inner.spec, "reward_threshold", None)
        return CertificationHooks(best_return=threshold)

    @property
    def has_text_twin(self) -> bool:
        """Whether pictures are shown of a state that words can describe."""
        return self._view is View.RGB_ARRAY and not holds_picture(self._inner.observation_space)

    def text_twin(self) -> str:
        """Return the observation in words."""
        space = self._inner.observation_space
        return show_value(space, self._state, names=self._state_names)[0]

    def random_reply(self, seed: int) -> str:
        """Return a reply that plays a random action drawn with the seed."""
        space = copy.deepcopy(self._inner.action_space)  # the space's own generator stays untouched
        space.seed(seed % 2**31)
        return self._reader.write(space.sample())

    @property
    def table_state(self) -> int:
        """The state's number if the inner environment has a table of states, else None."""
        table: Any = self._inner.unwrapped
        return int(table.s)

    def _play(self, actions: Sequence[Any]) -> "_Played":
        state, inner_info = None, {}
        reward, steps, is_over = 0.0, 0, False
        for action in actions:
            for _ in range(self._frame_skip):
                if is_over or self._is_cut:
                    break
                with foreign("step", self._inner):
                    state, gained, ended, cut, inner_info = self._inner.step(action)
                reward += float(gained)
                steps += 1
                is_over, self._is_cut = bool(ended), bool(cut) and not ended
        bonus = self._bonus if is_over else 0.0
        return _Played(state, reward + bonus, bonus, steps, is_over, inner_info)

    def _report(self, inner_info: Mapping[str, Any], steps: int) -> dict[str, Any]:
        parts = _json_parts(inner_info)
        verdict = {IS_SUCCESS: parts[IS_SUCCESS]} if IS_SUCCESS in parts else self._verdict()
        return {"steps": steps, "return": self._return, "env_info": parts, **verdict}

    def _verdict(self) -> dict[str, bool]:
        """Return whether the task is solved so far, if doing nothing reaches the threshold.

        Otherwise the threshold alone decides. An inner environment without a step limit ends after
        `max_turns` replies, each of which must have been played.
        """
        threshold = self.reward_threshold
        if threshold is None or threshold > 0:
            return {}
        is_last = self._replies >= self.max_turns
        is_played_out = is_last and not self._has_limit and not self._has_missed
        is_whole = self._is_over or self._is_cut or is_played_out
        return {IS_SUCCESS: is_whole and reaches(self._own_return, threshold)}

    def _score(self, reward: float) -> str:
        return f"Reward: {reward:g}, {self._return:g} so far." if self._show_reward else ""

    def _ending(self, is_over: bool) -> str:
        if is_over:
            return "The episode is over."
        return "The episode reached its step limit." if self._is_cut else ""

    def _known_names(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names if they fit: a wrapper or an argument may change the actions."""
        space = self._inner.action_space
        fits = isinstance(space, gymnasium.spaces.Discrete) and int(space.n) == len(names)
        return names if fits else ()

    def _seen(self) -> str:
        """Describe what an observation shows, for the system prompt."""
        parts = {
            View.ANSI: "After each reply you see a drawing in text.",
            View.RGB_ARRAY: "After each reply you see a picture.",
            View.STATE: "",
        }[self._view]
        if self._view is not View.STATE and not self._with_state:
            return parts
        space = self._inner.observation_space
        state = f"The state that you see is {describe_space(space, self._state_names)}."
        return f"{parts} {state}".strip()

    def _look(self, state: Any) -> tuple[str, list[Image]]:  # noqa: ANN401  # any observation
        """Return the observation that the model gets."""
        self._state = state
        texts: list[str] = []
        images: list[Image] = []
        if self._view is not View.STATE:
            with foreign("render", self._inner):
                drawn: Any = self._inner.render()
            if isinstance(drawn, np.ndarray):
                images.append(picture(drawn.astype(np.uint8, copy=False)))
            elif drawn is not None:
                texts.append(show_ansi(str(drawn)))
        if self._view is View.STATE or self._with_state:
            space = self._inner.observation_space
            text, more = show_value(space, state, names=self._state_names)
            if not (is_picture(space) or stacked(space)):  # the pictures are all there is to say
                texts.append(text if self._state_names or more else f"State: {text}")
            images += more
        elif images:  # a mission varies from episode to episode, and no picture shows it
            texts.append(strings_in(state))
        images = [fitted(image, **self._sides) for image in images]
        return "\n\n".join(filter(None, texts)), images


class _Played(NamedTuple):
    """Result of the actions of one reply."""

    state: Any
    """The last observation."""
    reward: float
    """Sum of rewards, including the bonus."""
    bonus: float
    """`termination_reward`, if the inner environment terminated."""
    steps: int
    is_over: bool
    info: Mapping[str, Any]
    """Info of the last step."""


def _json_parts(inner_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that have a JSON form; others are dropped."""
    kept: dict[str, Any] = {}
    for key, value in inner_info.items():
        with suppress(TypeError):
            kept[str(key)] = plain_json(value)
    return kept
