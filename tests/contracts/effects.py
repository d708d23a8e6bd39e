"""What becomes of a failed episode in a trainer, measured in its own classes.

Each trainer's suite plays no episode: it takes the group of `failure_group`, sends it through the
adapter and the trainer's own advantages, and says what it found. Each trainer's findings stand in
`tests/contracts/failures/TRAINER.json`, which the table in `docs/recovery.md` is made of. With
ENVKIT_WRITE_DOCS=1 a suite writes its file before it compares.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import isclose
from pathlib import Path
from typing import Any, Final

from envkit.advantages import Baseline
from envkit.errors import FaultKind
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory
from envkit_conformance import shipped_recordings

FOLDER: Final = Path(__file__).parent / "failures"
_TOLERANCE: Final = 1e-3


def _fault(trajectory: Trajectory, where: FaultPlace, reason: StopReason) -> Trajectory:
    fault = FaultRecord(where=where, kind=FaultKind.PERMANENT, message="it fell over")
    return replace(trajectory, stop_reason=reason, fault=fault, reward=None)


def _at_reset(one: Trajectory) -> Trajectory:
    empty = replace(one, segments=(), turns=(), messages=())
    return _fault(empty, FaultPlace.RESET, StopReason.ENV_FAULT)


def _at_first_reply(one: Trajectory) -> Trajectory:
    prompt = replace(one, segments=one.segments[:1], turns=(), messages=one.messages[:1])
    return _fault(prompt, FaultPlace.GENERATE, StopReason.ENGINE_FAULT)


def _in_step(one: Trajectory) -> Trajectory:
    return _fault(one, FaultPlace.STEP, StopReason.ENV_FAULT)


def _in_reply(one: Trajectory) -> Trajectory:
    return _fault(one, FaultPlace.GENERATE, StopReason.ENGINE_FAULT)


def _in_rewards(one: Trajectory) -> Trajectory:
    return _fault(one, FaultPlace.REWARDS, StopReason.ENV_FAULT)


def _aborted(one: Trajectory) -> Trajectory:
    return replace(one, stop_reason=StopReason.ABORTED, reward=None)


def _truncated(one: Trajectory) -> Trajectory:
    return replace(one, stop_reason=StopReason.RESPONSE_TOKENS)


FAILURES: Final[Mapping[str, Callable[[Trajectory], Trajectory]]] = {
    "a limit ends it (no failure)": _truncated,
    "the environment fails at reset": _at_reset,
    "the environment fails after replies": _in_step,
    "the engine fails at the first reply": _at_first_reply,
    "the engine fails later": _in_reply,
    "the reward cannot be computed": _in_rewards,
    "somebody stops it": _aborted,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a trainer made of a group of four whose last episode failed."""

    rows: int
    """Rows of the failed episode that reach the trainer's loss."""
    trained_tokens: int
    """Of them, those with mask 1."""
    centred: tuple[float, ...]
    """The other three's advantages without scaling, as the trainer computed them."""
    scaled: tuple[float, ...] | None
    """The same divided by a deviation; None if the trainer has no such setting."""


def failure_group(name: str) -> tuple[Trajectory, ...]:
    """Return a group of four text episodes, of which the last one failed as named."""
    known = {one.name: one.trajectory for one in shipped_recordings()}
    fine = [known["text"], known["tool_calls"], known["response_tokens_reply"]]
    members = [*fine, FAILURES[name](known["thinking_keep"])]
    return tuple(
        replace(one, group_id="g", episode_id=f"e{number}") for number, one in enumerate(members)
    )


def check_effects(trainer: str, effects: Mapping[str, Effect]) -> None:
    """Compare the effects of every failure with the documented ones, or write those.

    Args:
        trainer: Such as "slime".
        effects: By name of `FAILURES`, all of them.
    """
    assert list(effects) == list(FAILURES)
    found = {name: _words(name, effect) for name, effect in effects.items()}
    for name, words in found.items():
        if FAILURES[name] is not _truncated:
            assert words["trained_tokens"] == 0, (trainer, name)
            assert words["mean"] == "left out", (trainer, name, asdict(effects[name]))
    file = FOLDER / f"{trainer}.json"
    if os.environ.get("ENVKIT_WRITE_DOCS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
    documented = json.loads(file.read_text()) if file.exists() else None
    assert found == documented, f"{file} says something else; write it with ENVKIT_WRITE_DOCS=1"


def _words(name: str, effect: Effect) -> dict[str, Any]:
    rewards = [one.reward for one in failure_group(name)]
    baseline = Baseline.of(rewards)
    others = rewards[:3]

    def is_left_out(found: tuple[float, ...], *, is_scaled: bool) -> str:
        expected = [baseline.advantage(one, is_scaled=is_scaled) for one in others]
        pairs = zip(expected, found, strict=True)
        same = all(isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) for a, b in pairs)
        if FAILURES[name] is _truncated:
            return "counts" if same else "differs"
        return "left out" if same else "counts"

    return {
        "rows": effect.rows,
        "trained_tokens": effect.trained_tokens,
        "mean": is_left_out(effect.centred, is_scaled=False),
        "deviation": None if effect.scaled is None else is_left_out(effect.scaled, is_scaled=True),
    }


def effects_table() -> str:
    """Return the documented effects of all trainers as a table in Markdown."""
    files = sorted(FOLDER.glob("*.json"))
    found = {file.stem: json.loads(file.read_text()) for file in files}
    lines = [f"| failure | {' | '.join(found)} |", "| --- |" + " --- |" * len(found)]
    for name in FAILURES:
        cells = [_cell(effects[name]) for effects in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(words: Mapping[str, Any]) -> str:
    if words["trained_tokens"]:
        return f"trained, {words['mean']}"
    rows = {0: "no row", 1: "1 row, mask 0"}.get(words["rows"], f"{words['rows']} rows, mask 0")
    counts = [part for part in ("mean", "deviation") if words[part] == "counts"]
    return f"{rows}; in {' and '.join(counts)}" if counts else rows
