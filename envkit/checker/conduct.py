"""Rules about what an environment returns: Gymnasium's own, types, messages, tools, budgets."""

import json
import math
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, cast

from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from envkit.checker.problems import NOT_REPEATABLE, Problem, raised
from envkit.checker.under_test import LONGEST_EPISODE, CheckedEpisode, EnvUnderTest, Skip
from envkit.env import Env, Observation
from envkit.errors import EpisodeStateError
from envkit.images import Image
from envkit.marks import mark_problems
from envkit.messages import check_message, images_of
from envkit.tools import ToolSpec

INFO_KEYS: Final = frozenset({"turn", "tool_call", "parse_error", "reward_terms"})
_OBSERVATION_KEYS: Final = {"text", "images", "role"}

BAD_REPLIES: Final = (
    "",
    " \n\t",
    "I do not know.",
    "\x00 é 七 \U0001f642 </s> <|im_end|>",
    "<tool_call>",
    '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>',
    '<tool_call>{"name": [1], "arguments": "x"}</tool_call>',
    '<tool_call>[{"name": "x", "arguments": [1, NaN]}, 5]</tool_call>',
    r"\boxed{\frac{1}{",
    "9**9**9**9",
    "[" * 5_000,
    "word " * 5_000,
)
"""Replies that a model may write. None may raise, hang or break a later turn."""


def gymnasium_rule(subject: EnvUnderTest) -> Iterator[str | Problem]:
    """Check that Gymnasium's own checker passes without warnings."""
    env = subject.env
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Its render and close checks make more instances, which requires a spec.
        without_spec = env.spec is None
        try:
            gymnasium_check_env(env, skip_render_check=without_spec, skip_close_check=without_spec)
        except AssertionError as error:
            if not str(error).startswith("Deterministic "):
                raise
            yield Problem(text=str(error), cause=NOT_REPEATABLE, stops_rule=True)
    for warning in caught:
        if issubclass(warning.category, UserWarning | DeprecationWarning):
            yield str(warning.message)


def order_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that a step before reset or after the end raises EpisodeStateError."""
    env = subject.fresh()
    if subject.makes_new:
        yield from _must_refuse_step(env, "before the first reset")
    limit = min(env.max_turns, LONGEST_EPISODE)
    is_over = subject.play(lambda _: "", seed=subject.seed, env=env, max_turns=limit).ended
    if not is_over and env.max_turns > limit:
        raise Skip(f"empty replies end no episode within {limit} turns")
    if not is_over:
        yield f"the episode continues after max_turns={env.max_turns} turns"
        return
    yield from _must_refuse_step(env, "after the episode's end")


def _must_refuse_step(env: Env, when: str) -> Iterator[str]:
    try:
        env.step("")
    except EpisodeStateError:
        return
    except Exception as error:  # noqa: BLE001  # any other class is what the rule is about
        yield f"step() {when} must raise EpisodeStateError, got {error!r}"
    else:
        yield f"step() {when} must raise EpisodeStateError, but it returned"


def replies_rule(subject: EnvUnderTest) -> Iterator[str | Problem]:
    """Check that no reply raises and that every return value has the contract's type."""
    calls = [f'<tool_call>{{"name": "{spec.name}"}}</tool_call>' for spec in subject.env.tools]
    pending = deque([*BAD_REPLIES, *calls])
    seed = subject.seed
    while pending:
        episode = subject.begin(lambda _: pending.popleft(), seed=seed)
        while pending and not episode.ended:
            written = pending[0]
            try:
                episode.turn()
            except Exception as error:  # noqa: BLE001  # what an environment raises is its own
                yield raised(error, f"a reply must not raise: {written[:60]!r} raised ")
                break
        yield from episode_problems(episode, subject.env)
        seed += 1


def episode_problems(episode: CheckedEpisode, env: Env) -> Iterator[str]:
    """Yield problems in the values that an episode's calls returned."""
    yield from _moment_problems("reset()", env, episode.start.observation, episode.start.info, 0)
    for number, step in enumerate(episode.steps, start=1):
        where = f"step() {number}"
        yield from _moment_problems(where, env, step.observation, step.info, number)
        if not isinstance(step.reward, float) or not math.isfinite(step.reward):
            yield f"{where}: the reward must be a finite float, got {step.reward!r}"
        flags: dict[str, object] = {"terminated": step.terminated, "truncated": step.truncated}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                yield f"{where}: {name} must be a bool, got {flag!r}"
        if step.terminated and step.truncated:
            yield f"{where}: an episode ends by termination or truncation, not both"
        if number == env.max_turns and not (step.terminated or step.truncated):
            yield f"{where}: the episode must end at max_turns={env.max_turns}"


def _moment_problems(
    where: str, env: Env, observation: Observation, info: object, turn: int
) -> Iterator[str]:
    wrong = list(_observation_problems(observation))
    yield from (f"{where}: {problem}" for problem in [*wrong, *_info_problems(info, turn)])
    if wrong:
        return
    if observation not in env.observation_space:
        yield f"{where}: the observation is not in observation_space"
    try:
        entry = check_message(
            env.format_observation(observation), source=f"{type(env).__name__}.format_observation"
        )
    except Exception as error:  # noqa: BLE001  # format_observation is the author's code
        yield f"{where}: {error}"
        return
    if images_of([entry]) != observation["images"]:
        yield f"{where}: format_observation must keep the observation's images, in their order"


def _observation_problems(observation: object) -> Iterator[str]:
    seen = repr(observation)[:80]
    if not isinstance(observation, dict) or observation.keys() != _OBSERVATION_KEYS:
        yield f"an observation must be a dict of text, images and role, got {seen}"
        return
    fields = cast(dict[str, object], observation)
    if not isinstance(fields["text"], str):
        yield f"text must be a str, got {type(fields['text']).__name__}"
    if fields["role"] not in ("user", "tool"):
        yield f"role must be 'user' or 'tool', got {fields['role']!r}"
    images = fields["images"]
    if not isinstance(images, tuple):
        yield f"images must be a tuple, got {type(images).__name__}"
        return
    for image in cast(tuple[object, ...], images):
        if not isinstance(image, Image):
            yield f"images must contain envkit.Image, got {type(image).__name__}"


def _info_problems(info: object, turn: int) -> Iterator[str]:
    if not isinstance(info, dict):
        yield f"info must be a dict, got {type(info).__name__}"
        return
    fields = cast(dict[str, Any], info)
    try:
        if json.loads(json.dumps(fields, allow_nan=False)) != fields:
            yield "info must survive JSON unchanged: string keys, and lists instead of tuples"
    except (TypeError, ValueError) as error:
        yield f"info must be JSON data: {error}"
    if missing := sorted(INFO_KEYS - fields.keys()):
        yield f"info must have the keys {missing}"
        return
    if fields["turn"] != turn:
        yield f"info['turn'] must be {turn}, got {fields['turn']!r}"
    for key, kinds in (("tool_call", dict), ("parse_error", str), ("reward_terms", dict)):
        value = fields[key]
        if not isinstance(value, kinds) and (value is not None or key == "reward_terms"):
            yield f"info[{key!r}] must be a {kinds.__name__}, got {value!r}"
    if "marks" in fields:
        yield from mark_problems(fields["marks"])


def tools_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that every tool's schema is valid, survives JSON and validates arguments."""
    tools = subject.env.tools
    if not tools:
        raise Skip("it has no tools")
    names = [spec.name for spec in tools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two tools are named {name!r}"
    for spec in tools:
        back = ToolSpec.from_json(json.loads(json.dumps(spec.to_json())))
        if back != spec:
            yield f"tool {spec.name!r} changes when written to JSON and read back"
        arguments: dict[str, Any] = {"no_such_argument": 1}
        if back.validate(arguments) != spec.validate(arguments):
            yield f"tool {spec.name!r} validates differently after JSON"


def tasks_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that tasks are JSON data and that the same index gives the same task."""
    source = subject.env.tasks
    if source is None:
        raise Skip("it has no task source")
    last = 2**40 if source.size is None else source.size - 1
    for index in sorted({0, last // 2, last}):
        first, second = (json.dumps(source.task(index), sort_keys=True) for _ in range(2))
        if first != second:
            yield f"task {index} differs when it is read twice"


def budget_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that no observation exceeds the given budgets."""
    max_pixels, max_tokens = subject.max_pixels, subject.max_tokens
    if max_pixels is None and max_tokens is None:
        raise Skip("no budget was given")
    if max_tokens is not None and subject.codec is None:
        yield "max_observation_tokens needs codec="
    episode = subject.play(lambda _: "", seed=subject.seed)
    moments = [episode.start.observation, *(step.observation for step in episode.steps)]
    for number, observation in enumerate(moments):
        pixels = sum(image.size[0] * image.size[1] for image in observation["images"])
        if max_pixels is not None and pixels > max_pixels:
            yield f"observation {number} has {pixels} pixels; the budget is {max_pixels}"
        if max_tokens is None or subject.codec is None:
            continue
        entry = subject.codec.readable(subject.env.format_observation(observation))
        encoded = subject.codec.encode_observation([entry], sampled_ids=(), previous_images=0)
        tokens = len(encoded.train_ids)
        if tokens > max_tokens:
            yield f"observation {number} has {tokens} tokens; the budget is {max_tokens}"
