"""Runs whose turns carry `info["marks"]`, on images with known pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fakes.trajectories import Context, Reply, build
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.images import Image
from envkit.messages import message
from envkit.trajectory import REWARD_THRESHOLD, Origin, SegmentKind, StopReason, Trajectory

SIZE = (672, 448)
CLICK = (409, 257)
"""Where the first turn of every episode clicks."""
EVERY_MARK: tuple[dict[str, Any], ...] = (
    {"kind": "click", "x": 40, "y": 30},
    {"kind": "double_click", "x": 120, "y": 60},
    {"kind": "move", "x": 200, "y": 30},
    {"kind": "click", "x": 640, "y": 430, "button": "right", "keys": ["ctrl"]},
    {"kind": "drag", "path": [[60, 200], [200, 260], [300, 200]]},
    {"kind": "scroll", "x": 500, "y": 100, "dx": 0, "dy": 3},
    {"kind": "type", "text": "Quarterly\nreport", "x": 300, "y": 330},
    {"kind": "key", "keys": ["ctrl", "s"]},
    {"kind": "box", "box": [380, 150, 480, 220], "label": "zoom"},
    {"kind": "click", "x": 900, "y": -20, "ok": False, "note": "outside the screen"},
    {"kind": "wait", "seconds": 2},
    {"kind": "answer", "text": "42"},
    {"kind": "somersault", "x": 20, "y": 420},
)


def screenshot(number: int) -> Image:
    """Return an image of a desktop with one window, of `SIZE`."""
    picture = PilImage.new("RGB", SIZE, (90 + 20 * (number % 4), 146, 138))
    pen = ImageDraw.Draw(picture)
    left, top = 60 + 25 * (number % 6), 60 + 15 * (number % 4)
    pen.rectangle((left, top, left + 380, top + 230), fill="white", outline="black")
    pen.rectangle((left, top, left + 380, top + 24), fill=(30, 60, 110))
    pen.text((left + 10, top + 4), f"Visits {number}", fill="white", font_size=14)
    for line in range(6):
        pen.text((left + 14, top + 40 + 28 * line), f"row {line + 1}", fill="black", font_size=14)
    x, y = CLICK
    pen.rectangle((x - 22, y - 11, x + 22, y + 11), fill=(220, 220, 220), outline="black")
    pen.text((x - 10, y - 9), "OK", fill="black", font_size=14)
    return Image.from_pil(picture)


def marked(
    marks: Sequence[Sequence[Mapping[str, Any]]],
    *,
    rewards: Sequence[float],
    task: str = "Open the row with the largest value of Visits by a double click.",
    **values: Any,
) -> Trajectory:
    """Return an episode that sees a new image before each reply.

    Args:
        marks: Those of each turn.
        rewards: One for each turn.
        task: What was asked.
        **values: Other fields of the trajectory.
    """
    count = len(marks)
    shots = [screenshot(n) for n in range(count + 1)]
    replies = [
        Reply(
            ids=tuple(range(100, 112)),
            logprobs=tuple(-0.35 * n for n in range(12)),
            text=f'I go on. [{{"action": "click", "x": {n}}}]',
            reward=rewards[n],
            observation=Context(images=(shots[n + 1],)) if n + 1 < count else None,
        )
        for n in range(count)
    ]
    plain = build(replies, prompt=Context(images=(shots[0],)), **values)
    infos = [
        {"turn": n + 1, "marks": list(marks[n]), "reward_terms": {"task": rewards[n]}}
        for n in range(count)
    ]
    turns = tuple(replace(turn, info=infos[n]) for n, turn in enumerate(plain.turns))
    messages = [message("system", "You use a computer by mouse and keyboard.")]
    for n, reply in enumerate(replies):
        said = f"Task: {task}" if n == 0 else "Done."
        messages += [message("user", said, (shots[n],)), message("assistant", reply.text)]
    messages.append(message("user", "The task is over.", (shots[count],)))
    return replace(plain, turns=turns, messages=tuple(messages))


def click(x: float, y: float) -> dict[str, Any]:
    """Return the mark of a plain click."""
    return {"kind": "click", "x": x, "y": y}


def grouped_run(groups: int = 3, members: int = 4) -> list[Trajectory]:
    """Return groups of marked episodes: the first has equal rewards, the others mixed ones."""
    found: list[Trajectory] = []
    for group in range(groups):
        for member in range(members):
            solved = float(group > 0 and (member + group) % 3 == 0)
            turns = 2 + (member + group) % 3
            between = [[click(100 + 9 * n + member, 90)] for n in range(turns - 2)]
            end = {"kind": "terminate", "status": "success"}
            last = [{"kind": "type", "text": f"row {group}"}, end]
            found.append(
                marked(
                    [[click(*CLICK)], *between, last],
                    rewards=[0.0] * (turns - 1) + [solved],
                    task=f"Open row {group} with the largest value of Visits.",
                    episode_id=f"episode-{group}-{member}",
                    group_id=f"g{group}",
                    seed=group,
                    metadata={"member": member, REWARD_THRESHOLD: 1.0},
                    stop_reason=StopReason.MAX_TURNS if turns == 4 else StopReason.TERMINATED,
                    duration_seconds=1.0 + member,
                )
            )
    return found


def rewritten() -> Trajectory:
    """Return an episode of four turns whose third was sampled from a re-rendered history."""
    turns = [[click(*CLICK)], [click(100, 90)], [{"kind": "type", "text": "row 1"}], []]
    one = marked(turns, rewards=[0.0, 0.0, 0.0, 1.0], episode_id="rewritten", seed=9)
    segments = [
        replace(segment, kind=SegmentKind.PROMPT)
        if segment.turn == 2 and segment.kind is SegmentKind.OBSERVATION
        else segment
        for segment in one.segments
    ]
    return replace(one, segments=tuple(segments))


def forked_run(**values: Any) -> list[Trajectory]:
    """Return a tree of three leaves: one forked before turn 2, and from that one before turn 4.

    Args:
        **values: Other fields of all leaves.
    """
    fields: dict[str, Any] = {"group_id": "tree", "seed": 4, **values}
    leaves = [
        marked([[click(100 + 9 * n, 90)] for n in xs], rewards=[*[0.0] * (len(xs) - 1), reward],
               episode_id=name, **fields)
        for name, xs, reward in (
            ("trunk", (0, 1, 2), 0.0), ("fork", (0, 5, 6, 7), 1.0), ("twig", (0, 5, 6, 8), 0.5))
    ]  # fmt: skip
    return [leaves[0], *(_fork(leaf, parent, turns) for leaf, parent, turns in
                         ((leaves[1], "trunk", 1), (leaves[2], "fork", 3)))]  # fmt: skip


def _fork(leaf: Trajectory, parent: str, turns: int) -> Trajectory:
    cut = next(n for n, one in enumerate(leaf.segments)
               if one.kind is SegmentKind.MODEL and one.turn == turns)  # fmt: skip
    shared = tuple(one.as_context() for one in leaf.segments[:cut])
    origin = Origin(episode_id=parent, segments=cut, turns=turns, root="trunk")
    return replace(leaf, segments=(*shared, *leaf.segments[cut:]), origin=origin)
