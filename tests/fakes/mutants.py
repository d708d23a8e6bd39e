"""Built-in environments with one planted defect each, as a table.

`fakes.mutants:NAME` is a class that `envkit certify` takes; `MUTANTS` lists the names.
"""

import base64
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from fakes.mutants_defects import (
    BASES,
    Base,
    Defect,
    Desktop,
    Geo3k,
    blank,
    by_kind,
    carrying,
    counting,
    drawing,
    endless,
    feedback,
    few,
    forgets,
    gold,
    grades_loosely,
    ignores_seed,
    ignores_task,
    image_list,
    near,
    no_images,
    no_role,
    noisy,
    numbered,
    other_image,
    paying,
    raising,
    rendered,
    same,
    saying,
    secret,
    short,
    showing,
    skewed,
    starting,
    stepping,
    telling,
    told_by_system,
    told_by_tool,
    twice_the_tool,
    without,
)
from fakes.mutants_subtle import SUBTLE

__all__ = ["MUTANTS", "ROWS", "Desktop", "Geo3k"]


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
    _row("pays_near_misses", "geo3k", paying(near)),
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
    _row("grades_loosely", "canary geo3k", grades_loosely),
    # determinism
    _row("redraws_a_secret", "canary search", secret),
    _row("ignores_the_seed", "canary geo3k search", ignores_seed),
    _row("ignores_the_task", "canary", ignores_task),
    _row("tells_the_time", "canary search", telling(now=lambda _: time.perf_counter())),
    _row("counts_episodes", "canary geo3k", counting),
    _row("carries_over", "canary search", carrying),
    _row(
        "depends_on_hashes", "canary geo3k search", saying(lambda _, t: f"{t} [{hash(t) % 1000}]")
    ),
    _row("depends_on_the_process", "search desktop", saying(lambda _, t: f"{t} [{os.getpid()}]")),
    _row("orders_a_set", "geo3k", saying(lambda _, t: f"{t} {' '.join(set('abcdefghij'))}")),
    _row("draws_noise", "canary", showing(noisy)),
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
    _row("goes_on_for_ever", "canary", endless),
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
    _row("drops_a_key_of_info", "search", stepping(without("parse_error"))),
    _row("lists_images", "canary", starting(image_list)),
    _row("leaves_out_the_role", "search", starting(no_role)),
    _row("has_a_tool_twice", "geo3k", twice_the_tool),
    _row("forgets_in_snapshots", "search geo3k", forgets),
    _row("formats_no_images", "canary geo3k", no_images),
    # tasks
    _row("cannot_be_solved_always", "canary geo3k search desktop", numbered),
    _row("ends_too_early", "desktop", short),
    _row("asks_for_few_answers", "geo3k", drawing(few)),
    _row("asks_mostly_for_one", "canary geo3k search", drawing(skewed)),
    _row("answers_follow_from_the_text", "search geo3k", drawing(by_kind)),
    # leaks
    _row("tells_in_info", "canary geo3k search", telling(target=gold)),
    _row("tells_in_the_text", "canary geo3k search", saying(lambda e, t: f"{t} (hint: {gold(e)})")),
    _row("tells_backwards", "canary search", saying(lambda e, t: f"{t} #{gold(e)[::-1]}")),
    _row(
        "tells_in_base64",
        "search canary",
        telling(key=lambda e: base64.b64encode(gold(e).encode()).decode()),
    ),
    _row("tells_in_a_tool", "geo3k", told_by_tool),
    _row("tells_in_the_system_prompt", "search geo3k", told_by_system),
    _row("tells_after_a_mistake", "geo3k search", stepping(feedback)),
    _row("tells_when_rendered", "search", rendered),
    # images
    _row("shows_nothing", "canary geo3k desktop", showing(blank)),
    _row("shows_the_same", "canary", showing(same)),
    _row("shows_another_task", "canary geo3k", other_image),
    *(_row(*entry) for entry in SUBTLE),
)

MUTANTS: Final[dict[str, Base]] = {
    f"{row.name}_{base}": row.defect(BASES[base]) for row in ROWS for base in row.bases
}
globals().update(MUTANTS)
