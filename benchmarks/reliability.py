"""Check that runs survive faults, kills, bad disks, hours, and thousands of concurrent episodes.

Each part prints its figures and targets; `--json` stores them. By default all parts run at the
sizes quoted in the documentation, which takes about two hours:

    python benchmarks/reliability.py --campaign --turns 20000
    python benchmarks/reliability.py --kill --signals --runs 5
    python benchmarks/reliability.py --soak --minutes 1 --settle-minutes 0.25
    python benchmarks/reliability.py --isolated --isolated-episodes 200
    python benchmarks/reliability.py --trouble --trouble-runs 1
    python benchmarks/reliability.py --long
    python benchmarks/reliability.py --wide --at-once 2048 --mean-s 1
    python benchmarks/reliability.py --loop

The environments and engines of these files count losses and duplicates, independently of envkit.
"""

import asyncio
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import loop
from harness import quiet, run, sized
from reliability_campaign import campaign
from reliability_isolation import isolated_kills
from reliability_kills import SIGNALS, kill_runs
from reliability_load import soak, wide
from reliability_long import long_episode
from reliability_trouble import troubled_runs

from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

PARTS = ("campaign", "kill", "signals", "trouble", "isolated", "long", "soak", "wide", "loop")
Check = tuple[str, Callable[[dict[str, Any]], bool]]
Played = tuple[str, dict[str, Any], tuple[Check, ...]]


def zero(*names: str) -> tuple[Check, ...]:
    """Return checks that figures are 0."""
    return tuple((f"{name} = 0", lambda figures, name=name: figures[name] == 0) for name in names)


NOTHING_LOST = zero("lost", "doubled", "faults_with_reward_or_mask", "wrong_rewards")
RESUMED = zero(
    "announced_lost", "unsound", "resume_failed", "missing", "doubled", "unsound_after",
)  # fmt: skip
KILLED: tuple[Check, ...] = (
    ("finished_lost <= 16 a run", lambda figures: figures["finished_lost"] <= 16 * figures["runs"]),
    *RESUMED,
)
SIGNALLED: tuple[Check, ...] = (
    *zero("finished_lost"),
    ("unfinished_stored > 0", lambda figures: figures["unfinished_stored"] > 0),
    *RESUMED,
)
TROUBLED = (*RESUMED, *zero("finished_lost", "played_again", "tracebacks", "wrong_exits"))
TROUBLES = ("slow_disk", "clock_back", "full_disk", "read_only_disk", "two_resume")
CONTAINED: tuple[Check, ...] = (
    *NOTHING_LOST,
    ("workers_killed > 0", lambda figures: figures["workers_killed"] > 0),
    ("supervisors_killed > 0", lambda figures: figures["supervisors_killed"] > 0),
    *zero("faults_untyped", "processes_left"),
    (
        "descriptors flat",
        lambda figures: figures["descriptors_after"] <= figures["descriptors_before"] + 4,
    ),
    ("rss_growth <= 3%", lambda figures: figures["rss_growth"] <= 0.03),
)
WHOLE: tuple[Check, ...] = (("nothing wrong", lambda figures: not figures["wrong"]),)
FLAT: tuple[Check, ...] = (
    ("episodes > 0", lambda figures: figures["episodes"] > 0),
    ("rss_growth <= 3%", lambda figures: figures["rss_growth"] <= 0.03),
    (
        "unwritten_most <= concurrency",
        lambda figures: figures["unwritten_most"] <= figures["concurrency"],
    ),
    *(
        (
            f"{name} flat",
            lambda figures, name=name: (
                figures[f"{name}_end"] <= 1.1 * figures[f"{name}_settled"] + 8
            ),
        )
        for name in ("threads", "tasks", "descriptors")
    ),
    (
        "tasks_most <= 3 an episode",
        lambda figures: figures["tasks_most"] <= 3 * figures["concurrency"] + 16,
    ),
    (
        "descriptors_most <= 1 an episode",
        lambda figures: figures["descriptors_most"] <= figures["concurrency"] + 64,
    ),
)
QUICK: tuple[Check, ...] = (
    *zero("faulted"),
    ("ratio <= 1.2", lambda figures: figures["ratio"] <= 1.2),
    ("unwritten_most <= 64", lambda figures: figures["unwritten_most"] <= 64),
)
CHEAP: tuple[Check, ...] = (("overhead_us <= 195", lambda figures: figures["overhead_us"] <= 195),)


def tell(part: str, figures: dict[str, Any], checks: tuple[Check, ...]) -> bool:
    """Print a part's figures and failed checks; return whether all passed."""
    print(f"{part}:")
    for name, value in figures.items():
        print(f"  {name}: {value:.3f}" if isinstance(value, float) else f"  {name}: {value}")
    failed = [text for text, holds in checks if not holds(figures)]
    print(f"  FAILED: {', '.join(failed)}" if failed else "  all as wanted", flush=True)
    return not failed


def undisturbed(options: Namespace, codec: ChatCodec) -> Iterator[Played]:
    """Play the requested parts in this process; yield name, figures and checks of each."""
    if options.loop:
        yield "loop", loop.turn_cost(codec, options.loop_episodes), CHEAP
    if options.campaign:
        sizes = {name: getattr(options, name) for name in ("turns", "rate", "concurrency")}
        yield "campaign", asyncio.run(campaign(codec, **sizes)), NOTHING_LOST
    if options.long:
        vision, turns = load_codec(str(builtin_model_dir())), options.long_turns
        images = long_episode(vision, turns=turns, images=True)
        yield "long_images", asyncio.run(images), WHOLE
        text = long_episode(codec, turns=turns // 5, words=6_700)
        yield "long_text", asyncio.run(text), WHOLE
    if options.wide:
        played = wide(codec, episodes=options.at_once, mean_s=options.mean_s)
        yield "wide", asyncio.run(played), QUICK
    if options.soak:
        lasted = soak(
            codec,
            seconds=60 * options.minutes,
            settle_s=60 * options.settle_minutes,
            concurrency=options.concurrency,
            mean_s=options.soak_mean_s,
        )
        yield "soak", asyncio.run(lasted), FLAT


def disturbed(options: Namespace, codec: ChatCodec, model: str) -> Iterator[Played]:
    """Play the requested parts that end or hinder processes; yield as `undisturbed` does."""
    sizes: dict[str, Any] = {"episodes": options.episodes, "model": model}
    wanted = options.kinds.split(",") if options.kinds else [*SIGNALS, *TROUBLES]
    signals = [kind for kind in SIGNALS if kind != "kill" and kind in wanted]
    for kind in ["kill"] * options.kill + signals * options.signals:
        checks = KILLED if kind == "kill" else SIGNALLED
        yield kind, kill_runs(kind, runs=options.runs, **sizes), checks
    for kind in [kind for kind in TROUBLES if kind in wanted] * options.trouble:
        yield kind, troubled_runs(kind, runs=options.trouble_runs, **sizes), TROUBLED
    if options.isolated:
        killed = isolated_kills(
            codec, episodes=options.isolated_episodes, concurrency=32, every_s=options.kill_every_s
        )
        yield "isolated", asyncio.run(killed), CONTAINED


def measure(**chosen: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401  # the options below
    """Run the requested parts, or all, and return the figures of each."""
    if not any(chosen[part] for part in PARTS):
        chosen.update(dict.fromkeys(PARTS, True))
    options = Namespace(**chosen)
    model = options.model or str(builtin_model_dir("builtin-text"))
    codec = load_codec(model)
    played = chain(undisturbed(options, codec), disturbed(options, codec, model))
    return {part: {**found, "ok": tell(part, found, checks)} for part, found, checks in played}


if __name__ == "__main__":
    results = run(
        measure,
        show=quiet,
        **{part: {"action": "store_true", "help": "run this part"} for part in PARTS},
        model={"help": "folder of a tokenizer (default: the built-in model)"},
        turns=sized(1_000_000, 240, "scripted turns of the campaign"),
        rate={"default": 0.2, "help": "fraction of calls that fail in the campaign"},
        concurrency=sized(256, 16, "concurrent episodes in campaign and soak"),
        kinds=sized(None, "term,full_disk", "signals and troubles, if not all"),
        runs=sized(100, 1, "runs per signal"),
        episodes=sized(400, 100, "episodes of a run that is killed"),
        trouble_runs=sized(10, 1, "runs per kind of trouble"),
        isolated_episodes=sized(2_000, 40, "episodes in killed worker processes"),
        kill_every_s=sized(0.05, 0.2, "mean seconds between two such kills"),
        long_turns=sized(500, 10, "turns of the single long episodes; a fifth of it with text"),
        minutes=sized(30.0, 0.05, "length of the soak"),
        settle_minutes=sized(5.0, 0.02, "minutes before memory is compared"),
        soak_mean_s=sized(0.2, 0.02, "mean seconds of a reply in the soak"),
        loop_episodes=sized(300, 4, "episodes of a run that measures the CPU time of a turn"),
        at_once=sized(16_384, 16, "concurrent episodes in the wide run"),
        mean_s=sized(4.0, 0.05, "mean seconds of a reply in the wide run"),
    )
    raise SystemExit(0 if all(figures["ok"] for figures in results.values()) else 1)
