"""One recorded episode as text for a terminal."""

import json
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from envkit.cli.console import printable
from envkit.cli.pictures import ImageStyle, half_blocks, sixels
from envkit.errors import StorageError
from envkit.images import Image
from envkit.marks import actions_in
from envkit.messages import Message
from envkit.trajectory.trajectory import Trajectory

_ROLES: Final = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_IMAGE_COLUMNS: Final = 64
"""Maximum width of an image."""


def print_episode(
    trajectory: Trajectory, console: Console, *, title: str, style: ImageStyle
) -> None:
    """Print an episode: its outcome, its messages, and the cost of each turn.

    Args:
        trajectory: The episode. Model text is shown unchanged, except control characters, which
            could move the cursor or worse.
        console: The console to print to.
        title: Title of the page.
        style: How to show images; resolve AUTO first.
    """
    console.print(Rule(Text(printable(f"{title}: {trajectory.episode_id}")), style="bold"))
    for line in _facts(trajectory):
        console.print(line)
    reply = 0
    for entry in trajectory.messages:
        console.print()
        has_turn = entry["role"] == "assistant" and reply < len(trajectory.turns)
        if has_turn and (actions := actions_in(trajectory.turns[reply].info)):
            line = "  " + " \u00b7 ".join(actions)
            console.print(Text(printable(line), style="bold magenta"))
        _print_message(entry, console, style)
        if has_turn:
            console.print(_turn(trajectory, reply))
            reply += 1


def _facts(trajectory: Trajectory) -> Iterator[Text]:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    yield Text(
        printable(
            f"{trajectory.env_id}  seed {trajectory.seed}  reward {reward}  "
            f"{trajectory.stop_reason.value}  {len(trajectory.turns)} turns  "
            f"{trajectory.token_count:,} tokens, {trajectory.trained_token_count:,} trained  "
            f"{trajectory.duration_seconds:.2f} s"
        ),
        style="bold",
    )
    yield Text(printable("task " + _json(trajectory.task)), style="dim")
    fault = trajectory.fault
    if fault is not None:
        yield Text(
            printable(f"fault in {fault.where} ({fault.kind}): {fault.message}"), style="red"
        )


def _print_message(entry: Message, console: Console, style: ImageStyle) -> None:
    role, content = entry["role"], entry["content"]
    console.print(Text(printable(f"[{role}]"), style=f"bold {_ROLES.get(role, '')}"))
    if isinstance(content, str):
        console.print(Text(printable(content)))
        return
    for part in content:
        if part["type"] == "image":
            _print_image(part["image"], console, style)
        else:
            console.print(Text(printable(part["text"])))


def _print_image(image: Image, console: Console, style: ImageStyle) -> None:
    try:
        size = f"{image.size[0]}x{image.size[1]}"
        columns = min(console.width, _IMAGE_COLUMNS)
        if style is ImageStyle.BLOCKS:
            console.print(half_blocks(image, columns), end="")
        elif style is ImageStyle.SIXEL:
            console.file.write(sixels(image, columns) + "\n")
    except StorageError as error:
        console.print(Text(printable(f"[image missing: {error}]"), style="red"))
        return
    console.print(Text(f"[image {size} {image.sha256[:12]}]", style="dim"))


def _turn(trajectory: Trajectory, number: int) -> Text:
    turn = trajectory.turns[number]
    parts = [
        f"turn {turn.turn + 1}",
        *([f"reward {turn.reward:g}"] if turn.reward else []),
        f"{turn.prompt_tokens:,} + {turn.response_tokens:,} tokens",
        turn.finish_reason,
        "  ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in turn.seconds.items()),
    ]
    if turn.env_retries or turn.engine_retries:
        parts.append(f"retries {dict(turn.env_retries)} {turn.engine_retries}")
    line = Text(printable("  " + "; ".join(parts)), style="dim")
    if turn.parse_error is not None:
        line.append(printable(f"\n  not understood: {turn.parse_error}"), style="yellow")
    return line


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 400 else text[:400] + " ..."
