"""One recorded episode as text for a terminal."""

import json
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from envkit.cli.pictures import PictureStyle, half_blocks, sixels
from envkit.errors import StorageError
from envkit.images import Image
from envkit.messages import Message
from envkit.trajectory.trajectory import Trajectory

_ROLES: Final = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_ALLOWED: Final = "\n\t"
_DIRECTIONS: Final = frozenset((0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
"""Marks that turn the reading direction of whatever follows them."""
_WIDEST_PICTURE: Final = 64
"""Columns; a larger terminal leaves the rest free."""


def print_episode(
    trajectory: Trajectory, console: Console, *, title: str, style: PictureStyle
) -> None:
    """Print an episode: how it ended, what was said, and what each turn took.

    Args:
        trajectory: What to show. What its model said is shown as it is, but for control
            characters, which could move the cursor or worse.
        console: Where it goes.
        title: What to call the episode.
        style: Of pictures; AUTO must be resolved before.
    """
    console.print(Rule(Text(plain(f"{title}: {trajectory.episode_id}")), style="bold"))
    for line in _facts(trajectory):
        console.print(line)
    reply = 0
    for entry in trajectory.messages:
        console.print()
        _print_message(entry, console, style)
        if entry["role"] == "assistant" and reply < len(trajectory.turns):
            console.print(_turn(trajectory, reply))
            reply += 1


def plain(text: str) -> str:
    """Return text without control characters; each becomes a picture of itself."""
    return "".join(
        character
        if character in _ALLOWED or not _is_control(character)
        else (chr(0x2400 + ord(character)) if ord(character) < 32 else "�")
        for character in text
    )


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 32 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in _DIRECTIONS


def _facts(trajectory: Trajectory) -> Iterator[Text]:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    yield Text(
        plain(
            f"{trajectory.env_id}  seed {trajectory.seed}  reward {reward}  "
            f"{trajectory.stop_reason.value}  {len(trajectory.turns)} turns  "
            f"{trajectory.token_count:,} tokens, {trajectory.trained_token_count:,} trained  "
            f"{trajectory.duration_seconds:.2f} s"
        ),
        style="bold",
    )
    yield Text(plain("task " + _json(trajectory.task)), style="dim")
    fault = trajectory.fault
    if fault is not None:
        yield Text(plain(f"fault in {fault.where} ({fault.kind}): {fault.message}"), style="red")


def _print_message(entry: Message, console: Console, style: PictureStyle) -> None:
    role, content = entry["role"], entry["content"]
    console.print(Text(f"[{role}]", style=f"bold {_ROLES.get(role, '')}"))
    if isinstance(content, str):
        console.print(Text(plain(content)))
        return
    for part in content:
        if part["type"] == "image":
            _print_image(part["image"], console, style)
        else:
            console.print(Text(plain(part["text"])))


def _print_image(image: Image, console: Console, style: PictureStyle) -> None:
    try:
        size = f"{image.size[0]}x{image.size[1]}"
        columns = min(console.width, _WIDEST_PICTURE)
        if style is PictureStyle.BLOCKS:
            console.print(half_blocks(image, columns), end="")
        elif style is PictureStyle.SIXEL:
            console.file.write(sixels(image, columns) + "\n")
    except StorageError as error:
        console.print(Text(plain(f"[image missing: {error}]"), style="red"))
        return
    console.print(Text(f"[image {size} {image.sha256[:12]}]", style="dim"))


def _turn(trajectory: Trajectory, number: int) -> Text:
    turn = trajectory.turns[number]
    parts = [
        f"turn {turn.turn}",
        f"{turn.prompt_tokens:,} + {turn.response_tokens:,} tokens",
        turn.finish_reason,
        "  ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in turn.seconds.items()),
    ]
    if turn.reward:
        parts.append(f"reward {turn.reward:g}")
    if turn.env_retries or turn.engine_retries:
        parts.append(f"retries {dict(turn.env_retries)} {turn.engine_retries}")
    line = Text(plain("  " + "; ".join(parts)), style="dim")
    if turn.parse_error is not None:
        line.append(plain(f"\n  not understood: {turn.parse_error}"), style="yellow")
    return line


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 400 else text[:400] + " ..."
