"""Screens on which things are dragged."""

import random
from dataclasses import replace
from itertools import permutations, product

from envkit_visual.answers import at
from envkit_visual.screens import screen
from envkit_visual.screens.screen import DRAGS, Gesture, Kind, Screen, Verb, Widget
from envkit_visual.world import Record

_FILES = (
    *("mars", "moon", "math", "mail", "maps", "menu", "plan", "plot", "poem", "post"),
    *("bill", "bank", "book", "boat", "song", "sort", "sums", "tax", "team", "trip"),
)
_FOLDERS = ("Work", "Home", "Old", "New", "Temp", "Misc", "Keep")
_COLUMNS, _ROWS = 4, 5
_SPOTS = tuple(f"{x}, {y}" for x in (120, 280, 450, 610) for y in (100, 290, 480, 670))


class DragState(Record):
    """Icons by the cells of the desktop, and a note."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    cells: tuple[int, ...]
    """Of the files, then of the folders."""
    note: tuple[tuple[int, int], ...]
    """Indices of files and of the folders they belong into."""
    moved: tuple[int, ...] = ()
    """Files that are in their folders."""
    is_note_left: bool


class Drag(Screen[DragState]):
    """Drag files to folders as a note says.

    The picture shows a desktop with files, yellow folders and a note. Drag every file on the note
    onto its folder, in any order. Leave the other files alone.
    """

    actions = DRAGS
    difficulty = ("number of files to drag", 2, 4, 6, 8)
    verbs = (Verb.DRAG,)
    missed = "There is no file where the drag starts."
    options = tuple(f"drag {start} to {end}" for start, end in permutations(_SPOTS, 2))

    def create(self, rng: random.Random, size: int) -> DragState:
        """Draw names and places, and what belongs where."""
        files = tuple(rng.sample(_FILES, size + 3))
        folders = tuple(rng.sample(_FOLDERS, 3 + size // 3))
        cells = tuple(rng.sample(range(_COLUMNS * _ROWS), len(files) + len(folders)))
        listed = rng.sample(range(len(files)), size)
        note = tuple((index, rng.randrange(len(folders))) for index in listed)
        left = rng.random() < 0.5
        return DragState(files=files, folders=folders, cells=cells, note=note, is_note_left=left)

    def widgets(self, state: DragState) -> list[Widget]:
        """Return the note and the icons."""
        note_left, left = (8, 142) if state.is_note_left else (314, 8)
        lines = [f"{state.files[file]} to {state.folders[folder]}" for file, folder in state.note]
        found = screen.card(note_left, 10, 126, "Note", lines)
        names = [*state.files, *state.folders]
        for index, (name, cell) in enumerate(zip(names, state.cells, strict=True)):
            if index in state.moved:
                continue
            x, y = left + 74.0 * (cell % _COLUMNS) + 8, 86.0 * (cell // _COLUMNS) + 18
            kind = Kind.FILE if index < len(state.files) else Kind.FOLDER
            found.append(Widget(kind=kind, box=(x, y, x + 60, y + 52), text=name, key=str(index)))
        return found

    def use(self, state: DragState, widget: Widget, gesture: Gesture) -> tuple[DragState, str]:
        """Drag a file."""
        if widget.kind is not Kind.FILE:
            return state, self.missed
        folder = screen.hit(self.widgets(state), gesture.end)
        if folder is None or folder.kind is not Kind.FOLDER:
            return state, "There is no folder where the drag ends."
        file = int(widget.key)
        if (file, int(folder.key) - len(state.files)) not in state.note:
            return state, "That file does not belong there; it stays."
        return replace(state, moved=(*state.moved, file)), "Moved."

    def progress(self, state: DragState) -> float:
        """Return the share of files that are moved."""
        return len(state.moved) / len(state.note)

    def plan(self, state: DragState) -> list[str]:
        """Drag each file that is left."""
        spots, left = self.spots(state), (pair for pair in state.note if pair[0] not in state.moved)
        count = len(state.files)
        return [f"drag {spots[str(one)]} to {spots[str(count + other)]}" for one, other in left]


_NAMES = ("Bass", "Treble", "Light", "Speed", "Zoom", "Heat", "Depth", "Focus")
_MOVES = tuple(product((175, 380, 450, 585, 655, 860), (300, 450, 600), (250, 520, 740)))


class Slider(Record):
    """A slider with whole values."""

    name: str
    left: int
    width: int
    low: int
    high: int
    value: int
    goal: int

    def x(self, value: int) -> float:
        """Return the place of a value."""
        return self.left + self.width * (value - self.low) / (self.high - self.low)

    def nearest(self, x: float) -> int:
        """Return the value at a place."""
        value = self.low + round((x - self.left) * (self.high - self.low) / self.width)
        return min(max(value, self.low), self.high)


class SliderState(Record):
    """Sliders from top to bottom."""

    sliders: tuple[Slider, ...]
    card: tuple[int, ...]
    """The order of the sliders on the card."""
    is_card_below: bool


class Sliders(Screen[SliderState]):
    """Drag sliders to the values on a card.

    The picture shows sliders and a card with their goals. Drag the handle of each slider to its
    goal. The value of a slider is shown at its right.
    """

    actions = DRAGS
    name = "slider"
    difficulty = ("highest minus lowest value of a slider", 10, 25, 60, 120)
    verbs = (Verb.DRAG,)
    missed = "There is no handle where the drag starts."
    options = tuple(f"drag {x}, {y} to {end}, {y}" for y, x, end in _MOVES)

    def create(self, rng: random.Random, size: int) -> SliderState:
        """Draw ranges, values and goals."""
        sliders: list[Slider] = []
        for name in rng.sample(_NAMES, 3):
            low, width = rng.randint(0, 40), rng.randint(240, 280)
            value, goal = rng.sample(range(low, low + size + 1), 2)
            place = {"left": rng.randint(84, 376 - width), "width": width}
            ends = {"low": low, "high": low + size}
            sliders.append(Slider(name=name, value=value, goal=goal, **place, **ends))
        card, is_card_below = tuple(rng.sample(range(3), 3)), rng.random() < 0.5
        return SliderState(sliders=tuple(sliders), card=card, is_card_below=is_card_below)

    def widgets(self, state: SliderState) -> list[Widget]:
        """Return the sliders and the card."""
        top, card_top = (12, 324) if state.is_card_below else (136, 12)
        goals = [f"{state.sliders[at].name}: {state.sliders[at].goal}" for at in state.card]
        found = [
            *screen.card(10, card_top, 230, "Goals", goals),
            screen.window(10, top, 428, 300, "Settings"),
        ]
        for index, slider in enumerate(state.sliders):
            y, x = top + 66.0 + 92 * index, slider.x(slider.value)
            right = slider.left + slider.width
            found += [
                screen.label(18, y, slider.name),
                screen.label(396, y, str(slider.value)),
                screen.label(slider.left - 8, y + 26, str(slider.low)),
                screen.label(right - 8, y + 26, str(slider.high)),
                Widget(kind=Kind.TRACK, box=(slider.left, y - 3, right, y + 3)),
                Widget(kind=Kind.HANDLE, box=(x - 7, y - 13, x + 7, y + 13), key=str(index)),
            ]
        return found

    def use(self, state: SliderState, widget: Widget, gesture: Gesture) -> tuple[SliderState, str]:
        """Drag a handle."""
        sliders, index = list(state.sliders), int(widget.key)
        sliders[index] = replace(sliders[index], value=sliders[index].nearest(gesture.end[0]))
        return replace(state, sliders=tuple(sliders)), "Dragged."

    def progress(self, state: SliderState) -> float:
        """Return the share of sliders at their goals."""
        right = [slider.value == slider.goal for slider in state.sliders]
        return sum(right) / len(right)

    def plan(self, state: SliderState) -> list[str]:
        """Drag each handle that is not at its goal."""
        handles = [one.center for one in self.widgets(state) if one.key]
        return [
            f"drag {at((x, y))} to {at((slider.x(slider.goal), y))}"
            for (x, y), slider in zip(handles, state.sliders, strict=True)
            if slider.value != slider.goal
        ]
