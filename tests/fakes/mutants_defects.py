"""Defects to plant in environments, for `fakes.mutants`."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final, cast

from envkit.env import Env, Policy, Reset, Step
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.tasks import Task, TaskSource
from envkit_canary import CanaryEnv
from envkit_desktop import ComputerUseEnv
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


def mixed(base: Base, **members: Any) -> Base:
    return cast(Base, type(f"Bad{base.__name__}", (base,), members))


def stepping(change: Callable[[Any, str, Step], Step]) -> Defect:
    """Change what steps return."""

    def defect(base: Base) -> Base:
        def step(self: Env, action: str) -> Step:
            return change(self, action, Step(*base.step(self, action)))

        return mixed(base, step=step)

    return defect


def starting(change: Callable[[Any, Reset], Reset]) -> Defect:
    """Change what resets return."""

    def defect(base: Base) -> Base:
        def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
            return change(self, Reset(*base.reset(self, seed=seed, options=options)))

        return mixed(base, reset=reset)

    return defect


def saying(change: Callable[[Any, str], str]) -> Defect:
    """Change the text of the first observation."""

    def changed(env: Env, start: Reset) -> Reset:
        seen = start.observation
        return start._replace(observation={**seen, "text": change(env, seen["text"])})

    return starting(changed)


def showing(change: Callable[[Any, Image], Image]) -> Defect:
    """Change every image."""

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

        return mixed(base, _choose_task=choose)

    return defect


def raising(when: Callable[[Any, str], bool], error: BaseException) -> Defect:
    """Raise for some replies."""

    def defect(base: Base) -> Base:
        def step(self: Env, action: str) -> Step:
            if when(self, action):
                raise error
            return base.step(self, action)

        return mixed(base, step=step)

    return defect


def blank(_: Env, image: Image) -> Image:
    return Image.from_pil(image.pil().point(lambda _: 255))


def noisy(_: Env, image: Image) -> Image:
    picture = image.pil().copy()
    picture.putpixel((random.randrange(picture.width), 0), (random.randrange(256), 0, 0))
    return Image.from_pil(picture)


_FIRST: Final[dict[str, Image]] = {}


def same(env: Env, image: Image) -> Image:
    return _FIRST.setdefault(type(env).__name__, image)


def _set_answer(env: Env, task: Task, answer: str) -> None:
    if "codes" in task:
        task["codes"] = [answer for _ in task["codes"]]
    elif "answers" in task:
        task["answers"] = [answer]
    else:
        task["answer"] = answer
    del env


_NAMES: Final = ("Torvald", "Mirelle", "Askeland")


def skewed(env: Env, task: Task) -> None:
    """Give most tasks the same answer."""
    if env.np_random.random() < 0.7:
        _set_answer(env, task, "K9M2" if "codes" in task else "53")


def few(env: Env, task: Task) -> None:
    """Draw the answer from six."""
    _set_answer(env, task, str(31 + int(env.np_random.integers(4))))


def by_kind(env: Env, task: Task) -> None:
    """Let the first words of the question decide the answer."""
    _set_answer(env, task, _NAMES[sum(task["question"][:24].encode()) % 3])


def feedback(env: Any, _: str, step: Step) -> Step:
    text = f"{step.observation['text']} (expected {gold(env)})"
    return step._replace(observation={**step.observation, "text": text})


def _unsolvable(env: Any, _: str, step: Step) -> Step:
    return step._replace(reward=0.0) if env.task_number % 4 == 0 else step


def numbered(base: Base) -> Base:
    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        self.task_number = seed or 0
        return base.reset(self, seed=seed, options=options)

    return stepping(_unsolvable)(mixed(base, reset=reset))


def secret(base: Base) -> Base:
    """Draw the answer apart from the task, at each reset, and have no oracle."""

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        self.secret = str(random.randrange(10**6))
        return start

    def paid(env: Any, text: str, step: Step) -> Step:
        return step._replace(reward=float(env.secret in text))

    def no_oracle(_: Env) -> Policy:
        raise ConfigurationError("no oracle")

    return stepping(paid)(mixed(base, reset=reset, oracle=no_oracle))


def ignores_seed(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        del seed
        return base.reset(self, seed=random.randrange(2**31), options=options)

    return mixed(base, reset=reset)


def ignores_task(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        del options
        return base.reset(self, seed=seed)

    def drawn(self: Env, options: dict[str, Any] | None) -> Task:
        task = base._choose_task(self, options)  # pyright: ignore[reportPrivateUsage]
        task.pop("look", None)
        return task

    return mixed(base, reset=reset, _choose_task=drawn)


def counting(base: Base) -> Base:
    """Say which episode of the process it is."""
    count = [0]

    def counted(_: Env, text: str) -> str:
        count[0] += 1
        return f"{text} (episode {count[0]})"

    return saying(counted)(base)


def carrying(base: Base) -> Base:
    """Carry what was said into the next episode."""

    def step(self: Any, action: str) -> Step:
        self.last = action[:20]
        return base.step(self, action)

    def said(env: Any, text: str) -> str:
        return f"{text} {getattr(env, 'last', '')}"

    return saying(said)(mixed(base, step=step))


def image_list(_: Env, start: Reset) -> Reset:
    seen = cast(Any, start.observation)
    return start._replace(observation={**seen, "images": list(seen["images"])})


def no_role(_: Env, start: Reset) -> Reset:
    seen = cast(Any, start.observation)
    return start._replace(observation={k: v for k, v in seen.items() if k != "role"})


def without(key: str) -> Callable[[Any, str, Step], Step]:
    return lambda _, __, step: step._replace(info={k: v for k, v in step.info.items() if k != key})


def endless(base: Base) -> Base:
    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        self._running = True
        return found

    return mixed(base, step=step)


def short(base: Base) -> Base:
    def made(self: Env, **options: Any) -> None:
        base.__init__(self, max_turns=2, **options)

    return mixed(base, __init__=made)


def told_by_tool(base: Base) -> Base:
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

    return mixed(base, reset=reset)


def told_by_system(base: Base) -> Base:
    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        self.system_prompt = f"You answer questions. Expected: {gold(self)}"
        return start

    return mixed(base, reset=reset)


def twice_the_tool(base: Base) -> Base:
    def made(self: Env, **options: Any) -> None:
        base.__init__(self, **options)
        self.tools = (*self.tools, self.tools[0])

    return mixed(base, __init__=made)


def forgets(base: Base) -> Base:
    """Leave the author's state out of snapshots."""

    def get_state(self: Env) -> dict[str, Any]:
        state = base.get_state(self)
        return {
            key: type(value)() if isinstance(value, int | list) else value
            for key, value in state.items()
        }

    return mixed(base, get_state=get_state)


def no_images(base: Base) -> Base:
    def format_observation(self: Env, observation: Any) -> Any:
        return base.format_observation(self, cast(Any, {**observation, "images": ()}))

    return mixed(base, format_observation=format_observation)


def rendered(base: Base) -> Base:
    def render(self: Env) -> Any:
        shown = base.render(self)
        return f"{shown}\nanswer: {gold(self)}" if isinstance(shown, str) else shown

    return mixed(base, render=render)


def near(env: Any, text: str, step: Step) -> float:
    """Pay a number that is 1% off."""
    boxed = text.rpartition("boxed{")[2].rstrip("}")
    try:
        return float(step.reward == 0 and abs(float(boxed) / float(gold(env)) - 1) < 0.02)
    except (ValueError, ZeroDivisionError):
        return 0.0


def other_image(base: Base) -> Base:
    """Show the image of another task, which only who reads images can notice."""

    def reset(self: Env, *, seed: int | None = None, options: Any = None) -> Reset:
        other = Reset(*base.reset(self, seed=None if seed is None else seed + 1))
        start = Reset(*base.reset(self, seed=seed, options=options))
        return start._replace(
            observation={**start.observation, "images": other.observation["images"]}
        )

    return mixed(base, reset=reset)


def _anything(task: Task, answer: str) -> float:
    del task, answer
    return 1.0


def grades_loosely(base: Base) -> Base:
    def certification_hooks(self: Any) -> Any:
        from dataclasses import replace

        hooks = base.certification_hooks(self)  # pyright: ignore[reportAttributeAccessIssue]
        return replace(hooks, grade=_anything)

    return mixed(base, certification_hooks=certification_hooks)
