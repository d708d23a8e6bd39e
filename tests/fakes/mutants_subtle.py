"""Defects that only a reply in the right form, a code, or an odd way of playing can show."""

import base64
import codecs
import hashlib
import io
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from fakes.mutants_defects import (
    Base,
    Defect,
    gold,
    mixed,
    paying,
    saying,
    showing,
    stepping,
    telling,
)
from PIL.PngImagePlugin import PngInfo

from envkit.env import Env, Reset, Step
from envkit.images import Image
from envkit_certify.codes import MORSE

_FORM: Final = re.compile(r"\\boxed\{(.*)\}|<answer>(.*)</answer>", re.DOTALL)


def answered(rule: Callable[[str, str], object]) -> Defect:
    """Pay for an answer, given in the right form, by a rule about it and the right one."""

    def paid(env: Any, text: str, step: Step) -> float:
        found = _FORM.search(text)
        if found is None:
            return 0.0
        answer = found.group(1) if found.group(2) is None else found.group(2)
        return float(step.reward == 0 and bool(rule(answer, env.asked)))

    def remembering(base: Base) -> Base:
        """Keep the answer, because a step moves on."""

        def step(self: Any, action: str) -> Step:
            self.asked = gold(self) if self._running else ""
            return base.step(self, action)

        return mixed(base, step=step)

    return lambda base: paying(paid)(remembering(base))


def matches(answer: str, right: str) -> bool:
    """Read an answer as a pattern."""
    try:
        return re.fullmatch(answer, right) is not None
    except re.error:
        return False


def is_nan(answer: str, _: str) -> bool:
    try:
        return not float(answer) < 1e308
    except ValueError:
        return False


def of_a_list(answer: str, right: str) -> bool:
    return right in re.split(r"[,\n]\s*", answer)


def cut(env: Any, text: str, step: Step) -> float:
    """Pay for an answer in a reply that was cut."""
    return float(env.reply.is_cut and env.asked in text)


def grades_cut(base: Base) -> Base:
    return paying(cut)(_asking(base))


def _asking(base: Base) -> Base:
    def step(self: Any, action: str) -> Step:
        self.asked = gold(self) if self._running else ""
        return base.step(self, action)

    return mixed(base, step=step)


def thought(env: Any, text: str, step: Step) -> float:
    """Pay for an answer in a thought."""
    return float(step.reward == 0 and env.asked in env.reply.thinking)


def reads_thoughts(base: Base) -> Base:
    return paying(thought)(_asking(base))


def acrostic(env: Any, text: str) -> str:
    return text + "\n" + "\n".join(f"{letter}..." for letter in gold(env))


def morse(env: Any, text: str) -> str:
    return text + " " + " ".join(MORSE.get(letter.lower(), "") for letter in gold(env))


def in_halves(env: Any) -> list[str]:
    right = gold(env)
    return [right[: len(right) // 2], right[len(right) // 2 :]]


def in_png(env: Any, image: Image) -> Image:
    """Write the answer beside the pixels."""
    said, file = PngInfo(), io.BytesIO()
    said.add_text("note", gold(env))
    image.pil().save(file, "PNG", pnginfo=said)
    return Image.from_pil(image.pil(), png=file.getvalue())


def in_pixels(env: Any, image: Image) -> Image:
    picture = image.pil().convert("RGB")
    for at, letter in enumerate(gold(env)[:12]):
        picture.putpixel((at, 0), (ord(letter) & 127, 0, 0))
    return Image.from_pil(picture)


def keeps_tasks(base: Base) -> Base:
    """Write into the task that the caller gave."""

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        start = base.reset(self, seed=seed, options=options)
        if options and options.get("task"):
            options["task"]["played"] = True
        return Reset(*start)

    return mixed(base, reset=reset)


def shares_info(base: Base) -> Base:
    """Return a list that the next step changes."""

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        start = Reset(*base.reset(self, seed=seed, options=options))
        self.said = []
        return start._replace(info={**start.info, "said": self.said})

    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        self.said.append(len(action))
        return found._replace(info={**found.info, "said": self.said})

    return mixed(base, reset=reset, step=step, get_state=base.get_state)


def ignores_limit(base: Base) -> Base:
    def made(self: Env, **options: Any) -> None:
        options.pop("max_turns", None)
        base.__init__(self, **options)

    return mixed(base, __init__=made)


def goes_on_when_solved(base: Base) -> Base:
    """Take replies after an episode that was solved."""

    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        self._running = self._running or (found.terminated and found.reward > 0)
        return found

    return mixed(base, step=step)


def ends_at_limit(env: Any, _: str, step: Step) -> Step:
    return step._replace(terminated=step.terminated or step.truncated, truncated=False)


def by_date(env: Any, _: str, step: Step) -> Step:
    return step._replace(reward=step.reward * (1 + int(time.time() / 1e7) % 2))


def of_a_thread(base: Base) -> Base:
    """Keep the episode with the thread that began it."""

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        self.thread = threading.get_ident()
        return Reset(*base.reset(self, seed=seed, options=options))

    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        same = self.thread == threading.get_ident()
        return found if same else found._replace(reward=0.0)

    return mixed(base, reset=reset, step=step)


def notes_snapshots(base: Base) -> Base:
    """Change an episode by saving it."""

    def snapshot(self: Any) -> bytes:
        self.saved = getattr(self, "saved", 0) + 1
        return base.snapshot(self)

    def reset(self: Any, *, seed: int | None = None, options: Any = None) -> Reset:
        self.saved = 0
        return Reset(*base.reset(self, seed=seed, options=options))

    def step(self: Any, action: str) -> Step:
        found = Step(*base.step(self, action))
        return found._replace(info={**found.info, "saved": bool(self.saved)})

    return mixed(base, snapshot=snapshot, reset=reset, step=step)


def rot13(env: Any) -> str:
    return codecs.encode(gold(env), "rot13")


def one_more(env: Any) -> str:
    right = gold(env)
    return str(int(right) + 1) if right.isdigit() else right[::-1]


def digest(env: Any) -> str:
    return hashlib.sha256(gold(env).encode()).hexdigest()


def wrapped(env: Any) -> str:
    """Return the answer within JSON in base64."""
    return base64.b64encode(json.dumps({"id": 7, "a": gold(env)}).encode()).decode()


def numpy_reward(_: Any, __: str, step: Step) -> Step:
    return step._replace(reward=cast(Any, np.float32(step.reward)))


SUBTLE: Final[tuple[tuple[str, str, Defect], ...]] = (
    ("accepts_an_empty_answer", "geo3k search", answered(lambda a, _: not a.strip())),
    ("accepts_patterns", "geo3k", answered(matches)),
    ("accepts_beginnings", "geo3k", answered(lambda a, g: bool(a) and g.startswith(a))),
    ("accepts_parts", "geo3k", answered(lambda a, g: bool(a) and a in g)),
    ("accepts_what_holds_it", "geo3k search", answered(lambda a, g: g in a)),
    ("accepts_lists", "geo3k", answered(of_a_list)),
    ("accepts_any_order", "search", answered(lambda a, g: sorted(a) == sorted(g))),
    ("accepts_no_number", "geo3k", answered(is_nan)),
    ("grades_cut_replies", "canary", grades_cut),
    ("reads_thoughts", "canary", reads_thoughts),
    ("tells_in_rot13", "canary", telling(key=rot13)),
    ("tells_a_digest", "canary", telling(check=digest)),
    ("tells_in_wrapped_base64", "canary", telling(state=wrapped)),
    ("tells_one_more", "geo3k", telling(count=one_more)),
    ("tells_in_two_halves", "canary", telling(parts=in_halves)),
    ("tells_by_first_letters", "canary", saying(acrostic)),
    ("tells_in_morse", "canary", saying(morse)),
    ("tells_in_a_png", "canary", showing(in_png)),
    ("tells_in_pixels", "canary", showing(in_pixels)),
    ("writes_into_the_task", "canary", keeps_tasks),
    ("shares_its_info", "canary", shares_info),
    ("ignores_max_turns", "canary", ignores_limit),
    ("goes_on_when_solved", "geo3k", goes_on_when_solved),
    ("calls_a_limit_an_end", "search", stepping(ends_at_limit)),
    ("pays_by_the_date", "canary", stepping(by_date)),
    ("keeps_to_a_thread", "canary", of_a_thread),
    ("notes_snapshots", "canary", notes_snapshots),
    ("claims_success", "canary", telling(is_success=lambda _: True)),
    ("pays_in_numpy", "canary", stepping(numpy_reward)),
)
"""Names, bases and defects."""
