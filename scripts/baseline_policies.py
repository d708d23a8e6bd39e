"""Policies that need no model, for `scripts/baselines.py`.

They learn from the oracle's episodes on other tasks. An environment without an oracle is learned
from its policy "random".
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import envkit
from envkit.agents import MultiAgentEnv, RoleEnv
from envkit.builtin_models import model_source
from envkit.certification_hooks import StatesHooks
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ConfigurationError
from envkit.messages import Message, text_of
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.tokens import load_codec
from envkit_certify.policies import most_similar

LESSONS: Final = 500
"""Episodes on other tasks that the policies learn from."""
FEWER_LESSONS: Final[Mapping[str, int]] = {
    "geo3k-": 200,
    "computer-use-v": 32,
    "reasoning_gym/futoshiki-": 16,
    "reasoning_gym/knight_swap-": 8,
    "reasoning_gym/": 64,
    "gymnasium/": 24,
    "terminal-": 16,
    "computer-use-miniwob-": 48,
    "computer-use-page-": 8,
    "computer-use-linux-": 6,
}
"""The same by start of the id, for environments that are slow or play long episodes."""
MOST_ANSWERS: Final = 32
"""Answers that one reply gives at once."""
CUT_AT: Final = 64
"""`--max-new-tokens` of the column "cut"."""
_FILLER: Final = "~"
"""One token of the default model, however often it is repeated."""
_LONGEST: Final = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """A reply at one turn of a task."""

    text: str
    """Text of the environment so far."""
    reply: str
    task: str


# ---- the policies


def empty(_: PolicyContext) -> str:
    """Return an empty reply."""
    return ""


def constant(context: PolicyContext) -> str:
    """Return the oracle's most frequent reply at this turn of other tasks."""
    replies = Counter(lesson.reply for lesson in _lessons_at(context))
    return replies.most_common(1)[0][0] if replies else ""


def cut(context: PolicyContext) -> str:
    """Return the oracle's reply, shifted so that `CUT_AT` tokens end in its middle."""
    right = _own_reply(context)
    return _FILLER * (CUT_AT - _tokens(right) // 2) + right


def half(context: PolicyContext) -> str:
    """Return the first half of the oracle's reply, for a player that can say that it was cut."""
    right = _own_reply(context)
    return right[: len(right) // 2]


def all_answers(context: PolicyContext) -> str:
    """Return all answers in one reply.

    They are the environment's own choices, or else the replies to other tasks, merged if they have
    a common form. Where the first reply ends the episode, the right one is among them.
    """
    hooks = _hooks(context)
    if hooks is not None and hooks.choices is not None:
        return "\n".join(hooks.reply(choice) for choice in hooks.choices(context.task))
    lessons = _lessons_at(context)
    replies = list(dict.fromkeys(lesson.reply for lesson in lessons))[: MOST_ANSWERS - 1]
    if _is_single_turn(context):
        right = _own_reply(context)
        place = derive_seed("all answers", context.seed) % (len(replies) + 1)
        replies = [one for one in replies if one != right]
        replies.insert(place, right)
    return _merged(replies)


def repeating(context: PolicyContext) -> str:
    """Return the oracle's first reply to one other task at every turn."""
    return _drawn(_lessons_at(context, turn=0), context.seed)


def random_reply(context: PolicyContext) -> str:
    """Return a reply of the environment's random policy, or else a reply to another task."""
    own = getattr(context.env.unwrapped, "policies", {})
    if "random" in own:
        return own["random"]()(context)
    return _drawn(_lessons_at(context), context.seed, context.turn)


def text_only(context: PolicyContext) -> str:
    """Return the oracle's reply at this turn of the other task with the most similar text."""
    return _finder(_lessons_at(context))(_said(context.messages)) or ""


def teacher_of(env: Env) -> Callable[[], Policy] | None:
    """Return the factory of the policy that lessons show: the oracle, or else "random"."""
    try:
        env.oracle()
    except ConfigurationError:
        return getattr(env, "policies", {}).get("random")
    return env.oracle


# ---- their parts


@cache
def _finder(lessons: tuple[Lesson, ...]) -> Callable[[str], str | None]:
    return most_similar([(lesson.text, lesson.reply) for lesson in lessons])


def _drawn(lessons: Sequence[Lesson], *seed: int) -> str:
    replies = sorted(lesson.reply for lesson in lessons)
    return replies[derive_seed("random reply", *seed) % len(replies)] if replies else ""


def _said(messages: Iterable[Message]) -> str:
    """Return the environment's text so far."""
    return "\n".join(text_of(one) for one in messages if one["role"] not in ("system", "assistant"))


def _merged(replies: Sequence[str]) -> str:
    """Return replies as one, with what they all begin and end with only once."""
    start = _common_start(replies)
    end = _common_start([one[len(start) :][::-1] for one in replies])[::-1]
    if not start or not end:
        return "\n".join(replies)
    return start + ", ".join(one[len(start) : len(one) - len(end)] for one in replies) + end


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts, default=""), max(texts, default="")
    for length, (left, right) in enumerate(zip(first, last, strict=False)):
        if left != right:
            return first[:length]
    return first


@cache
def _codec() -> Any:  # noqa: ANN401  # a ChatCodec
    return load_codec(model_source(None), lazy_features=True)


def _tokens(text: str) -> int:
    return len(_codec().encode_reply(text)) - 1  # without the end of the turn


def _own_reply(context: PolicyContext) -> str:
    """Return the teacher's reply to the context's own task."""
    teacher = _teacher(*_made_as(context))
    return "" if teacher is None else teacher(context)


@cache
def _teacher(env_id: str, arguments: str) -> Policy | None:
    made: Any = envkit.make(env_id, **json.loads(arguments)).unwrapped
    make = teacher_of(made)
    return None if make is None else make()


def _hooks(context: PolicyContext) -> Any:  # noqa: ANN401  # CertificationHooks or None
    env: Any = context.env.unwrapped
    return env.certification_hooks() if isinstance(env, StatesHooks) else None


def _made_as(context: PolicyContext) -> tuple[str, str]:
    """Return the id and the arguments, as JSON, of the context's environment."""
    env: Any = context.env.unwrapped
    spec: Any = (env.joint_env if isinstance(env, RoleEnv) else env).spec
    return spec.id, json.dumps(spec.kwargs, sort_keys=True, default=str)


# ---- the lessons


def _lessons_at(context: PolicyContext, turn: int | None = None) -> tuple[Lesson, ...]:
    """Return the lessons at a turn of other tasks; None is the context's turn."""
    turns = _turns(context)
    at = min(context.turn if turn is None else turn, len(turns) - 1)
    return _of_others(turns[at], _task_text(context.task))


def _is_single_turn(context: PolicyContext) -> bool:
    return len(_turns(context)) == 1 and not isinstance(context.env.unwrapped, RoleEnv)


def _turns(context: PolicyContext) -> Sequence[tuple[Lesson, ...]]:
    env: Any = context.env.unwrapped
    role = env.role if isinstance(env, RoleEnv) else None
    # asynchronous environments must not run inside a running event loop
    with ThreadPoolExecutor(1) as thread:
        learned = thread.submit(_learned, *_made_as(context)).result()
    return learned.get(role, [()])


@cache
def _of_others(lessons: tuple[Lesson, ...], task: str) -> tuple[Lesson, ...]:
    others = tuple(lesson for lesson in lessons if lesson.task != task)
    return lessons if len(others) == len(lessons) else others


def _task_text(task: Task) -> str:
    return json.dumps(task, sort_keys=True, default=str)


@cache
def _learned(env_id: str, arguments: str) -> dict[str | None, list[tuple[Lesson, ...]]]:
    """Return the lessons by role and turn."""
    made: Any = envkit.make(env_id, **json.loads(arguments)).unwrapped
    env: Env = made
    teacher = teacher_of(env)
    found: defaultdict[str | None, defaultdict[int, list[Lesson]]]
    found = defaultdict(lambda: defaultdict(list))
    fewer = (count for start, count in FEWER_LESSONS.items() if env_id.startswith(start))
    for number in range(next(fewer, LESSONS)):
        if teacher is None:
            break
        seed = derive_seed("baselines lesson", number)
        for role, turn, lesson in _episode(env, teacher(), seed):
            found[role][turn].append(lesson)
    env.close()
    return {role: [tuple(turns[n]) for n in sorted(turns)] for role, turns in found.items()}


def _episode(env: Env, teacher: Policy, seed: int) -> Iterator[tuple[str | None, int, Lesson]]:
    observation, _ = env.reset(seed=seed)
    task = _task_text(env.task)
    spoken: Counter[str | None] = Counter()
    messages = [env.format_observation(observation)]
    for turn in range(_LONGEST):
        text = teacher(
            PolicyContext(env=env, task=env.task, turn=turn, messages=messages, seed=seed)
        )
        heard: Mapping[str | None, Sequence[Message]] = {None: messages}
        if isinstance(env, MultiAgentEnv):
            heard = {**env.conversations}
        replies: dict[str | None, str] = {None: text} if None in heard else json.loads(text)
        for role, reply in replies.items():
            yield role, spoken[role], Lesson(text=_said(heard[role]), reply=reply, task=task)
            spoken[role] += 1
        step = env.step(text)
        messages.append(env.format_observation(step[0]))
        if step[2] or step[3]:
            return
