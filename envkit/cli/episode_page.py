"""One recorded episode as text for a terminal, with the content and order of the browser's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from envkit.cli.images import ImageStyle, half_blocks, sixels
from envkit.cli.run_page import print_grid
from envkit.errors import ImageError, StorageError
from envkit.images import Image
from envkit.viewer import turn_text
from envkit.viewer.episodes import ShownEpisode
from envkit.viewer.wording import clipped, number, signed, stop_words

_WIDEST_IMAGE: Final = 64
"""Maximum width of an image in columns."""
_LONGEST: Final = 400
"""Characters shown of a message in a rewritten history."""


def print_episode(
    episode: ShownEpisode, console: Console, *, style: ImageStyle, parent: int | None, skip: bool
) -> None:
    """Print an episode: its outcome, then each turn's observation, reply and facts.

    Args:
        episode: Model text is shown unchanged, except control characters, which could move the
            cursor or worse.
        console: The console to print to, for foreign text.
        style: How to show images; resolve AUTO first.
        parent: Number of the episode that it was forked from; None if it is not a fork or the run
            does not have it.
        skip: Leave out the parent's turns.
    """
    data, row = episode.data, episode.row
    page = _Page(console, style, {image.sha256: image for image in episode.images})
    console.print(Rule(Text(f"episode {row.number}: {clipped(data['title'])}"), style="bold"))
    console.print(Text(" · ".join(turn_text.episode_facts(data, row.turns)), style="bold"))
    for text in turn_text.warnings(data):
        console.print(Text(text, style="red"))
    is_cut = skip and parent is not None
    if row.parent is not None:
        name = row.parent if parent is None else str(parent)
        console.print(Text(_origin(row.shared, name, is_cut=is_cut), style="dim"))
    first = row.shared if is_cut else 0
    shown = 0
    for sequence in data["sequences"]:
        is_start = sequence["parent"] is not None or sequence["prompt"] is not None
        for turn in sequence["turns"]:
            shown += 1
            if shown > first:
                page.print_turn(shown, turn, sequence if is_start else None)
                is_start = False
    page.print_end(data)


def _origin(shared: int, parent: str, *, is_cut: bool) -> str:
    fork = f"Forked from episode {parent} at turn {shared + 1}."
    if not shared:
        return fork
    are = "Turn 1 is" if shared == 1 else f"Turns 1 to {shared} are"
    return f"{fork} {are} {'shown there' if is_cut else 'the same as there'}."


@dataclass(frozen=True, slots=True)
class _Page:
    """Prints the turns of one episode."""

    console: Console
    style: ImageStyle
    images: Mapping[str, Image]

    def print_turn(
        self, place: int, turn: Mapping[str, Any], start: Mapping[str, Any] | None
    ) -> None:
        """Print a turn; `start` is the sequence that begins there."""
        line = Text(f"turn {place}  ", style="bold")
        line.append(turn_text.summary(turn), style="magenta")
        if turn.get("reward"):
            line.append(f"  {signed(turn['reward'])}", style="bold")
        self.console.print()
        self.console.print(line)
        if start is not None:
            self._print_start(start)
        fresh = [name for entry in turn["heard"] for name in entry["images"]]
        for name in fresh:
            self._print_image(name)
        if turn["shown"] and not fresh:
            self._say("same image as before", "dim")
        self._print_messages(turn["heard"])
        self._print_reply(turn)
        print_grid(self.console, turn_text.turn_facts(turn), styles=("dim", "dim"))

    def print_end(self, data: Mapping[str, Any]) -> None:
        """Print how the episode ended, and its identifiers."""
        self.console.print()
        end = f"End: {stop_words(data['stop'])}  reward {number(data['reward'])}"
        self.console.print(Text(end, style="bold"))
        final = data["sequences"][-1]["final"]
        for entry in final:
            for name in entry["images"]:
                self._print_image(name)
        self._print_messages(final)
        print_grid(self.console, turn_text.identity(data), styles=("dim", "dim"))

    def _print_start(self, sequence: Mapping[str, Any]) -> None:
        for text in turn_text.rewritten(sequence):
            self._say(text, "yellow")
        lines = turn_text.history_lines(sequence["prompt"] or {"history": ()})
        if rows := [(who, clipped(text, _LONGEST)) for who, text in lines]:
            self._say("The model saw from then on:", "yellow")
            print_grid(self.console, rows, styles=("yellow", "dim"))

    def _print_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for entry in messages:
            if entry["text"].strip():
                is_system = entry["role"] == "system"
                self._say(turn_text.role_words(entry["role"]), "dim" if is_system else "cyan")
                self._say(entry["text"], "dim" if is_system else "")

    def _print_reply(self, turn: Mapping[str, Any]) -> None:
        self._say(turn_text.speaker(turn), "green")
        if turn["thought"].strip():
            self._say(turn["thought"])
        heading = turn_text.summary(turn)
        if len(turn["words"]) > 1 or heading not in turn["words"]:
            for text in turn["words"]:
                self._say(f"→ {text}", "bold magenta")
        if not turn["thought"].strip() and not turn["words"]:
            self._say("(empty reply)", "dim")
        if turn.get("parse_error") is not None:
            self._say(f"Not understood: {turn['parse_error']}", "yellow")
        if turn["words"] and turn["thought"] != turn["reply"]:
            self._say(f"raw  {turn['reply']}", "dim")
        for name in turn["images"]:
            self._print_image(name)

    def _print_image(self, name: str) -> None:
        image, console = self.images[name], self.console
        try:
            size = f"{image.size[0]}x{image.size[1]}"
            columns = min(console.width, _WIDEST_IMAGE)
            if self.style is ImageStyle.BLOCKS:
                console.print(half_blocks(image, columns), end="")
            elif self.style is ImageStyle.SIXEL:
                console.file.write(sixels(image, columns) + "\n")
        except (ImageError, StorageError) as error:
            self._say(f"[image missing: {error}]", "red")
            return
        self._say(f"[image {size} {name[:12]}]", "dim")

    def _say(self, text: str, style: str = "") -> None:
        print_grid(self.console, [(text,)], styles=(style,))
