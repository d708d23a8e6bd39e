"""Built-in environments with one planted defect each, as a table.

`fakes.mutants:NAME` is a class that `envkit certify` takes; `MUTANTS` lists the names.
"""

import base64
import os
import random
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.env import Env, Policy, Reset, Step
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.tasks import Task, TaskSource
from envkit_canary import CanaryEnv
from envkit_computer_use import ComputerUseEnv
from envkit_geo3k import Geo3kEnv
from envkit_search import SearchEnv

Base = type[Env]
Defect = Callable[[Base], Base]


class Remembered:
    """A task source that draws each task once for all mutants."""

    tasks: Final[dict[tuple[str, int], Task]] = {}

    def __init__(self, name: str, source: TaskSource | None) -> None:
        assert source is not None  # as of all built-in environments
        self.name, self.source, self.size = name, source, source.size

    def task(self, index: int) -> Task:
        key = self.name, index
        if key not in self.tasks:
            self.tasks[key] = self.source.task(index)
        return deepcopy(self.tasks[key])


class Geo3k(Geo3kEnv):
    """geo3k-v0, quicker to reset."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tasks = Remembered("geo3k", self.tasks)


class Desktop(ComputerUseEnv):
    """computer-use-v0 with short tasks."""

    def __init__(self, **options: Any) -> None:
        options = {"level": 1, "max_turns": 12, **options}
        super().__init__(**options)
        self.tasks = Remembered("desktop", self.tasks)


BASES: Final[dict[str, Base]] = {
    "canary": CanaryEnv,
    "geo3k": Geo3k,
    "search": SearchEnv,
    "desktop": Desktop,
}


def _mixed(base: Base, **members: Any) -> Base:
    return cast(Base, type(f"Bad{base.__name__}", (base,), members))


def stepping(change: Callable[[Any, str, Step], Step]) -> Defect:
    """Change what steps return."""

    def defect(base: Base) -> Base:
        def step(self: Env, action: str) -> Step:
            return change(self, action, Step(*base.step(self, action)))

        return _mixed(base, step=step)

    return defect


def starting(change: Callable[[Any, Reset], Reset]) -> Defect:
    """Change what resets return."""

    def defect(base: Base) -> Base:
        def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
            return change(self, Reset(*base.reset(self, seed=seed, options=options)))

        return _mixed(base, reset=reset)

    return defect


def saying(change: Callable[[Any, str], str]) -> Defect:
    """Change the text of the first observation."""

    def changed(env: Env, start: Reset) -> Reset:
        seen = start.observation
        return start._replace(observation={**seen, "text": change(env, seen["text"])})

    return starting(changed)


def showing(change: Callable[[Any, Image], Image]) -> Defect:
    """Change every picture."""

    def shown(env: Env, moment: Any) -> Any:
        seen = moment.observation
        images = tuple(change(env, image) for image in seen["images"])
        return moment._replace(observation={**seen, "images": images})

    def defect(base: Base) -> Base:
        stepped = stepping(lambda env, _, step: shown(env, step))(base)
        return starting(shown)(stepped)

    return defect


def paying(rule: Callable[[Any, str, Step], float]) -> Defect:
    """Add a reward."""
    return stepping(
        lambda env, text, step: step._replace(reward=step.reward + rule(env, text, step))
    )


def telling(**fields: Callable[[Any], object]) -> Defect:
    """Add to the info of resets and steps."""

    def told(env: Env, moment: Any) -> Any:
        return moment._replace(info={**moment.info, **{k: f(env) for k, f in fields.items()}})

    def defect(base: Base) -> Base:
        return starting(told)(stepping(lambda env, _, step: told(env, step))(base))

    return defect


def gold(env: Env) -> str:
    """Return the running task's answer."""
    task = env.task
    if "codes" in task:
        return str(task["codes"][min(env.turn, len(task["codes"]) - 1)])
    return str(task["answer"] if "answer" in task else task["answers"][0])


def drawing(change: Callable[[Any, Task], None]) -> Defect:
    """Change every task after it is drawn."""

    def defect(base: Base) -> Base:
        def choose(self: Env, options: dict[str, Any] | None) -> Task:
            task = base._choose_task(self, options)  # pyright: ignore[reportPrivateUsage]
            change(self, task)
            return task

        return _mixed(base, _choose_task=choose)

    return defect


def raising(when: Callable[[Any, str], bool], error: BaseException) -> Defect:
    """Raise for some replies."""

    def defect(base: Base) -> Base:
        def step(self: Env, action: str) -> Step:
            if when(self, action):
                raise error
            return base.step(self, action)

        return _mixed(base, step=step)

    return defect


def _blank(_: Env, image: Image) -> Image:
    return Image.from_pil(image.pil().point(lambda _: 255))


def _noisy(_: Env, image: Image) -> Image:
    picture = image.pil().copy()
    picture.putpixel((random.randrange(picture.width), 0), (random.randrange(256), 0, 0))
    return Image.from_pil(picture)


_FIRST: Final[dict[str, Image]] = {}


def _same(env: Env, image: Image) -> Image:
    return _FIRST.setdefault(type(env).__name__, image)


def _set_answer(env: Env, task: Task, answer: str) -> None:
    if "codes" in task:
        task["codes"] = [answer for _ in task["codes"]]
    elif "answers" in task:
        task["answers"] = [answer]
    else:
        task["answer"] = answer
    del env


_CODES: Final = ("A3F7", "K9M2", "T4X8")
_NAMES: Final = ("Torvald", "Mirelle", "Askeland")


def _skewed(env: Env, task: Task) -> None:
    """Give most tasks the same answer."""
    if env.np_random.random() < 0.7:
        _set_answer(env, task, "K9M2" if "codes" in task else "53")


def _few(env: Env, task: Task) -> None:
    """Draw the answer from six."""
    _set_answer(env, task, str(31 + int(env.np_random.integers(4))))


def _by_kind(env: Env, task: Task) -> None:
    """Let the first words of the question decide the answer."""
    _set_answer(env, task, _NAMES[sum(task["question"][:24].encode()) % 3])


def _feedback(env: Any, _: str, step: Step) -> Step:
    text = f"{step.observation['text']} (expected {gold(env)})"
    return step._replace(observation={**step.observation, "text": text})


def _unsolvable(env: Any, _: str, step: Step) -> Step:
    return step._replace(reward=0.0) if env.task_number % 4 == 0 else step


def _numbered(base: Base) -> Base:
    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        self.task_number = seed or 0
        return base.reset(self, seed=seed, options=options)

    return stepping(_unsolvable)(_mixed(base, reset=reset))


def _secret(base: Base) -> Base:
    """Draw the answer apart from the task, at each reset, and have no oracle."""

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        self.secret = str(random.randrange(10**6))
        return start

    def paid(env: Any, text: str, step: Step) -> Step:
        return step._replace(reward=float(env.secret in text))

    def no_oracle(_: Env) -> Policy:
        raise ConfigurationError("no oracle")

    return stepping(paid)(_mixed(base, reset=reset, oracle=no_oracle))


def _ignores_seed(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        del seed
        return base.reset(self, seed=random.randrange(2**31), options=options)

    return _mixed(base, reset=reset)


def _ignores_task(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        del options
        return base.reset(self, seed=seed)

    def drawn(self: Env, options: dict[str, Any] | None) -> Task:
        task = base._choose_task(self, options)  # pyright: ignore[reportPrivateUsage]
        task.pop("look", None)
        return task

    return _mixed(base, reset=reset, _choose_task=drawn)


def _counting(base: Base) -> Base:
    """Say which episode of the process it is."""
    count = [0]

    def counted(_: Env, text: str) -> str:
        count[0] += 1
        return f"{text} (episode {count[0]})"

    return saying(counted)(base)


def _carrying(base: Base) -> Base:
    """Carry what was said into the next episode."""

    def step(self: Any, action: str) -> Step:
        self.last = action[:20]
        return base.step(self, action)

    def said(env: Any, text: str) -> str:
        return f"{text} {getattr(env, 'last', '')}"

    return saying(said)(_mixed(base, step=step))


def _image_list(_: Env, start: Reset) -> Reset:
    seen = cast(Any, start.observation)
    return start._replace(observation={**seen, "images": list(seen["images"])})


def _no_role(_: Env, start: Reset) -> Reset:
    seen = cast(Any, start.observation)
    return start._replace(observation={k: v for k, v in seen.items() if k != "role"})


def _without(key: str) -> Callable[[Any, str, Step], Step]:
    return lambda _, __, step: step._replace(info={k: v for k, v in step.info.items() if k != key})


def _endless(base: Base) -> Base:
    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        self._running = True
        return found

    return _mixed(base, step=step)


def _short(base: Base) -> Base:
    def made(self: Env, **options: Any) -> None:
        base.__init__(self, max_turns=2, **options)

    return _mixed(base, __init__=made)


def _told_by_tool(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        first, *rest = self.tools
        self.tools = (
            type(first)(
                name=first.name, description=f"Submit {gold(self)}.", parameters=first.parameters
            ),
            *rest,
        )
        return start

    return _mixed(base, reset=reset)


def _told_by_system(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        self.system_prompt = f"You answer questions. Expected: {gold(self)}"
        return start

    return _mixed(base, reset=reset)


def _twice_the_tool(base: Base) -> Base:
    def made(self: Env, **options: Any) -> None:
        base.__init__(self, **options)
        self.tools = (*self.tools, self.tools[0])

    return _mixed(base, __init__=made)


def _forgets(base: Base) -> Base:
    """Leave the author's state out of snapshots."""

    def get_state(self: Env) -> dict[str, Any]:
        state = base.get_state(self)
        return {
            key: type(value)() if isinstance(value, int | list) else value
            for key, value in state.items()
        }

    return _mixed(base, get_state=get_state)


def _no_images(base: Base) -> Base:
    def format_observation(self: Env, observation: Any) -> Any:
        return base.format_observation(self, cast(Any, {**observation, "images": ()}))

    return _mixed(base, format_observation=format_observation)


def _rendered(base: Base) -> Base:
    def render(self: Env) -> Any:
        shown = base.render(self)
        return f"{shown}\nanswer: {gold(self)}" if isinstance(shown, str) else shown

    return _mixed(base, render=render)


def _near(env: Any, text: str, step: Step) -> float:
    """Pay a number that is 1% off."""
    boxed = text.rpartition("boxed{")[2].rstrip("}")
    try:
        return float(step.reward == 0 and abs(float(boxed) / float(gold(env)) - 1) < 0.02)
    except (ValueError, ZeroDivisionError):
        return 0.0


def _other_picture(base: Base) -> Base:
    """Show the picture of another task, which only who reads pictures can notice."""

    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        other = Reset(*base.reset(self, seed=None if seed is None else seed + 1))
        start = Reset(*base.reset(self, seed=seed, options=options))
        return start._replace(
            observation={**start.observation, "images": other.observation["images"]}
        )

    return _mixed(base, reset=reset)


def _anything(task: Task, answer: str) -> float:
    del task, answer
    return 1.0


def _grades_loosely(base: Base) -> Base:
    def audit_hooks(self: Any) -> Any:
        from dataclasses import replace

        hooks = base.audit_hooks(self)  # pyright: ignore[reportAttributeAccessIssue]
        return replace(hooks, grade=_anything)

    return _mixed(base, audit_hooks=audit_hooks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A defect, and the environments that get it."""

    name: str
    defect: Defect
    bases: Sequence[str]


def _row(name: str, bases: str, defect: Defect) -> Row:
    return Row(name=name, defect=defect, bases=bases.split())


ROWS: Final = (
    # rewards
    _row("pays_nothing_said", "canary geo3k search", paying(lambda _, t, __: float(not t.strip()))),
    _row(
        "pays_parse_errors",
        "canary geo3k",
        paying(lambda _, __, s: 0.5 * (s.info["parse_error"] is not None)),
    ),
    _row(
        "pays_any_end",
        "canary search desktop",
        paying(lambda _, __, s: float(s.terminated or s.truncated)),
    ),
    _row(
        "pays_the_prompt_back",
        "canary geo3k search",
        paying(lambda e, t, __: float(e.task.get("question", "Which code")[:20] in t)),
    ),
    _row("pays_every_turn", "geo3k search desktop", paying(lambda _, __, ___: 0.1)),
    _row(
        "pays_every_tool_call",
        "geo3k",
        paying(lambda _, __, s: 0.3 * (s.info["tool_call"] is not None)),
    ),
    _row("pays_length", "canary search", paying(lambda _, t, __: float(len(t) > 5000))),
    _row("pays_a_digit", "canary geo3k", paying(lambda _, t, __: float("4" in t and len(t) < 20))),
    _row(
        "pays_an_answer_among_many",
        "geo3k",
        paying(lambda e, t, s: float(s.reward == 0 and gold(e) in t.split())),
    ),
    _row("pays_near_misses", "geo3k", paying(_near)),
    _row("pays_repeated_searches", "search", paying(lambda _, t, __: 0.4 * ("<search>" in t))),
    _row("pays_broken_calls", "geo3k search", paying(lambda _, t, __: float("no_such_tool" in t))),
    _row(
        "turns_rewards_around",
        "canary search",
        stepping(lambda _, __, s: s._replace(reward=-s.reward)),
    ),
    _row("pays_no_number", "canary", stepping(lambda _, __, s: s._replace(reward=float("nan")))),
    _row(
        "pays_a_string",
        "search",
        stepping(lambda _, __, s: s._replace(reward=cast(Any, "1.0" if s.reward else "0"))),
    ),
    _row("grades_loosely", "canary geo3k", _grades_loosely),
    # determinism
    _row("redraws_a_secret", "canary search", _secret),
    _row("ignores_the_seed", "canary geo3k search", _ignores_seed),
    _row("ignores_the_task", "canary", _ignores_task),
    _row("tells_the_time", "canary search", telling(now=lambda _: time.perf_counter())),
    _row("counts_episodes", "canary geo3k", _counting),
    _row("carries_over", "canary search", _carrying),
    _row(
        "depends_on_hashes", "canary geo3k search", saying(lambda _, t: f"{t} [{hash(t) % 1000}]")
    ),
    _row("depends_on_the_process", "search desktop", saying(lambda _, t: f"{t} [{os.getpid()}]")),
    _row("orders_a_set", "geo3k", saying(lambda _, t: f"{t} {' '.join(set('abcdefghij'))}")),
    _row("draws_noise", "canary", showing(_noisy)),
    _row(
        "flips_rewards",
        "canary search",
        stepping(lambda _, __, s: s._replace(reward=float(random.random() < 0.5))),
    ),
    # contract
    _row("raises_for_nothing", "canary", raising(lambda _, t: not t, ValueError("empty"))),
    _row(
        "raises_for_much",
        "canary search",
        raising(lambda _, t: len(t) > 100_000, MemoryError("too long")),
    ),
    _row("raises_for_digits", "geo3k", raising(lambda _, t: "{7}" in t, KeyError("7"))),
    _row(
        "exits_for_unknown_tools", "geo3k", raising(lambda _, t: "no_such_tool" in t, SystemExit(3))
    ),
    _row("goes_on_for_ever", "canary", _endless),
    _row(
        "ends_twice",
        "geo3k",
        stepping(
            lambda _, __, s: s._replace(
                truncated=s.terminated or s.truncated, terminated=s.terminated
            )
        ),
    ),
    _row("keeps_a_set_in_info", "canary", telling(found=lambda _: {1, 2})),
    _row("drops_a_key_of_info", "search", stepping(_without("parse_error"))),
    _row("lists_images", "canary", starting(_image_list)),
    _row("leaves_out_the_role", "search", starting(_no_role)),
    _row("has_a_tool_twice", "geo3k", _twice_the_tool),
    _row("forgets_in_snapshots", "search geo3k", _forgets),
    _row("formats_no_images", "canary geo3k", _no_images),
    # tasks
    _row("cannot_be_solved_always", "canary geo3k search desktop", _numbered),
    _row("ends_too_early", "desktop", _short),
    _row("asks_for_few_answers", "geo3k", drawing(_few)),
    _row("asks_mostly_for_one", "canary geo3k search", drawing(_skewed)),
    _row("answers_follow_from_the_text", "search geo3k", drawing(_by_kind)),
    # leaks
    _row("tells_in_info", "canary geo3k search", telling(target=gold)),
    _row("tells_in_the_text", "canary geo3k search", saying(lambda e, t: f"{t} (hint: {gold(e)})")),
    _row("tells_backwards", "canary search", saying(lambda e, t: f"{t} #{gold(e)[::-1]}")),
    _row(
        "tells_in_base64",
        "search canary",
        telling(key=lambda e: base64.b64encode(gold(e).encode()).decode()),
    ),
    _row("tells_in_a_tool", "geo3k", _told_by_tool),
    _row("tells_in_the_system_prompt", "search geo3k", _told_by_system),
    _row("tells_after_a_mistake", "geo3k search", stepping(_feedback)),
    _row("tells_when_rendered", "search", _rendered),
    # pictures
    _row("shows_nothing", "canary geo3k desktop", showing(_blank)),
    _row("shows_the_same", "canary", showing(_same)),
    _row("shows_another_task", "canary geo3k", _other_picture),
)

MUTANTS: Final[dict[str, Base]] = {
    f"{row.name}_{base}": row.defect(BASES[base]) for row in ROWS for base in row.bases
}
globals().update(MUTANTS)
