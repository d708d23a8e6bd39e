"""Screens of buttons, menus, fields and lists."""

import math
import random
from dataclasses import replace
from itertools import permutations

from envkit.seeds import derive_seed
from envkit_visual.screens import screen
from envkit_visual.screens.screen import CLICKS, Gesture, Kind, Screen, Verb, Widget
from envkit_visual.search import shared
from envkit_visual.world import Record

_WORDS = (
    *("Save", "Send", "Sort", "Copy", "Cut", "Open", "Print", "Paste", "Find", "Mark", "Move"),
    *("Undo", "Redo", "Zoom", "Lock", "Link", "Load", "Edit"),
)
_WIDE, _HIGH = 52.0, 17.0


class TargetState(Record):
    """Buttons and the one to click on."""

    labels: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    """Top left corners."""
    target: int
    clicked: str | None = None
    """Key of what was clicked on, empty for the background; None before."""


class Target(Screen[TargetState]):
    """Click on a small button among many.

    The picture shows a screen with buttons. Click on the one that is asked for.
    """

    difficulty = ("number of buttons", 6, 20, 42, 70)
    is_multi_turn = False
    chance = 0.015

    def create(self, rng: random.Random, size: int) -> TargetState:
        """Scatter buttons over the cells of a grid."""
        columns = math.ceil(math.sqrt(size * 0.7))
        wide, high = 420 / columns, 396 / math.ceil(size / columns)
        corners = ((18 + wide * (k % columns), 44 + high * (k // columns)) for k in range(size))
        places = [
            (round(x + rng.random() * (wide - _WIDE - 5)), round(y + rng.random() * (high - 23)))
            for x, y in corners
        ]
        labels = rng.sample([f"{word} {digit}" for word in _WORDS for digit in range(1, 8)], size)
        return TargetState(labels=tuple(labels), places=tuple(places), target=rng.randrange(size))

    def widgets(self, state: TargetState) -> list[Widget]:
        """Return the window and its buttons."""
        found = [screen.window(8, 8, 432, 432, "Tools")]
        for index, (name, (x, y)) in enumerate(zip(state.labels, state.places, strict=True)):
            box, is_on = (x, y, x + _WIDE, y + _HIGH), state.clicked == str(index)
            found.append(screen.button(box, name, str(index), is_on=is_on, size=12))
        return found

    def do(self, state: TargetState, gesture: Gesture) -> tuple[TargetState, str]:
        """Click."""
        found = screen.hit(self.widgets(state), gesture.start)
        return replace(state, clicked="" if found is None else found.key), "Clicked."

    def ask(self, state: TargetState) -> str:
        """Name the button."""
        return f'Click on "{state.labels[state.target]}".'

    def progress(self, state: TargetState) -> float:
        """Return whether the right button was clicked on."""
        return float(state.clicked == str(state.target))

    def is_over(self, state: TargetState) -> bool:
        """Return whether anything was clicked on."""
        return state.clicked is not None

    def plan(self, state: TargetState) -> list[str]:
        """Click on the center of the button."""
        return [] if self.is_over(state) else [f"click {self.spots(state)[str(state.target)]}"]


_KEYS = "0123456789"
_BACK = "<"


class KeypadState(Record):
    """A code, what was entered, and where the keys are."""

    code: str
    entered: str = ""
    orders: tuple[str, ...]
    """Orders of the keys, which follow each other with every press."""
    presses: int = 0
    left: int
    top: int
    is_code_below: bool


class Keypad(Screen[KeypadState]):
    """Enter a code on a keypad whose keys change places.

    The picture shows a screen with a code and a keypad. Enter the code, digit by digit. The key <
    takes back the last digit. All keys change places after every press.
    """

    difficulty = ("digits of the code", 3, 5, 8, 12)
    missed = "There is no key."

    def create(self, rng: random.Random, size: int) -> KeypadState:
        """Draw a code and orders of the keys."""
        keys, code = _KEYS + _BACK, "".join(rng.choice(_KEYS) for _ in range(size))
        orders = tuple("".join(rng.sample(keys, len(keys))) for _ in range(7))
        left, top, is_below = rng.randint(20, 200), rng.randint(20, 70), rng.random() < 0.5
        return KeypadState(code=code, orders=orders, left=left, top=top, is_code_below=is_below)

    def widgets(self, state: KeypadState) -> list[Widget]:
        """Return the code and the keypad."""
        left, top = state.left, state.top + (0 if state.is_code_below else 70)
        code_top = top + 275 if state.is_code_below else top - 70
        display = (left + 12, top + 32, left + 198, top + 64)
        field = Widget(kind=Kind.FIELD, box=display, text=state.entered, size=18)
        keypad = [screen.window(left, top, 210, 262, "Keypad"), field]
        for index, key in enumerate(state.orders[state.presses % len(state.orders)]):
            x, y = left + 14 + 64 * (index % 3), top + 76 + 45 * (index // 3)
            keypad.append(screen.button((x, y, x + 52, y + 36), key, key, size=18))
        return screen.card(left, code_top, 210, "Code", [state.code], 20) + keypad

    def use(self, state: KeypadState, widget: Widget, gesture: Gesture) -> tuple[KeypadState, str]:
        """Press a key."""
        entered = state.entered[:-1]
        if widget.key != _BACK:
            if len(state.entered) == len(state.code):
                return state, "The display is full."
            entered = state.entered + widget.key
        return replace(state, entered=entered, presses=state.presses + 1), "Pressed."

    def progress(self, state: KeypadState) -> float:
        """Return the share of the code that is entered."""
        return shared(state.entered, state.code) / len(state.code)

    def plan(self, state: KeypadState) -> list[str]:
        """Take back wrong digits, then enter the missing ones."""
        right = shared(state.entered, state.code)
        keys = _BACK * (len(state.entered) - right) + state.code[right:]
        shown = (replace(state, presses=state.presses + index) for index in range(len(keys)))
        return [f"click {self.spots(one)[key]}" for one, key in zip(shown, keys, strict=True)]


_NAMES = (
    *("File", "Files", "Edit", "View", "Views", "Page", "Pages", "Text", "Test", "Line", "Lines"),
    *("Link", "Links", "List", "Lists", "Sort", "Short", "Font", "Form", "Forms", "Role", "Rule"),
)
_MENU_WIDE, _MENU_HIGH = 70.0, 20.0
Path = tuple[int, ...]


class MenuState(Record):
    """Menus that are drawn from a seed, and which of them are open."""

    seed: int
    path: Path
    """Indices of the item to choose, and of the items above it."""
    open: Path = ()
    """Indices of the items whose menus are open; of the path's length after the last click."""
    left: int
    top: int


class Menu(Screen[MenuState]):
    """Choose an item of a nested menu.

    The picture shows a window with a menu. A click on an item with an arrow opens its menu to the
    right. Follow the path that is asked for, and click on its last item. A click on another item
    without an arrow loses.
    """

    difficulty = ("length of the path", 3, 4, 5, 6)
    missed = "There is no item."

    def create(self, rng: random.Random, size: int) -> MenuState:
        """Draw a seed and a path."""
        seed, path = rng.getrandbits(48), list[int]()
        for _ in range(size):
            path.append(rng.randrange(len(_menu(seed, path)[0])))
        left, top = rng.randint(4, 14), rng.randint(6, 130)
        return MenuState(seed=seed, path=tuple(path), left=left, top=top)

    def widgets(self, state: MenuState) -> list[Widget]:
        """Return the window and the open menus."""
        left, top = state.left, state.top
        found = [screen.window(left, top, 430, 306, "Editor")]
        for depth in range(min(len(state.open) + 1, len(state.path))):
            names, shift = _menu(state.seed, state.open[:depth])
            x, y = left + 5 + _MENU_WIDE * depth, top + 30.0 + shift
            panel = (x - 1, y - 2, x + _MENU_WIDE - 3, y + _MENU_HIGH * len(names) + 2)
            found.append(Widget(kind=Kind.PANEL, box=panel))
            for index, name in enumerate(names):
                path, place = (*state.open[:depth], index), y + _MENU_HIGH * index
                box = (x, place, x + _MENU_WIDE - 4, place + _MENU_HIGH)
                is_on = state.open[: depth + 1] == path
                text = name if depth == len(state.path) - 1 else f"{name} ▸"
                key = _key(path)
                found.append(Widget(kind=Kind.ITEM, box=box, text=text, key=key, is_on=is_on))
        return found

    def use(self, state: MenuState, widget: Widget, gesture: Gesture) -> tuple[MenuState, str]:
        """Click on an item."""
        return replace(state, open=tuple(map(int, widget.key.split()))), "Clicked."

    def ask(self, state: MenuState) -> str:
        """Name the path."""
        steps = (_menu(state.seed, state.path[:at])[0][k] for at, k in enumerate(state.path))
        return f"Choose {' > '.join(steps)}."

    def is_over(self, state: MenuState) -> bool:
        """Return whether any item without a menu was chosen."""
        return len(state.open) == len(state.path)

    def progress(self, state: MenuState) -> float:
        """Return the share of the path that is open."""
        return shared(state.open, state.path) / len(state.path)

    def plan(self, state: MenuState) -> list[str]:
        """Click on the rest of the path."""
        if self.is_over(state):
            return []
        steps = range(shared(state.open, state.path), len(state.path))
        menus = ((replace(state, open=state.path[:at]), state.path[: at + 1]) for at in steps)
        return [f"click {self.spots(menu)[_key(path)]}" for menu, path in menus]


def _menu(seed: int, path: Path | list[int]) -> tuple[list[str], int]:
    """Return the items of a menu, and how far down it is drawn."""
    rng = random.Random(derive_seed("menu", seed, *path))
    return rng.sample(_NAMES, rng.randint(7, 10)), rng.randint(0, 66)


def _key(path: Path) -> str:
    return " ".join(map(str, path))


_FORM_WORDS = (
    *("Oslo", "Lima", "Cairo", "Delhi", "Quito", "Anna", "Boris", "Chloe", "David", "Emma"),
    *("Maple", "Cedar", "Tulip", "Amber", "Coral"),
)
_TEXTS = ("Name", "City", "Team", "Room", "Code", "Phone", "Badge", "Desk")
_PICKS = {
    "Size": ("S", "M", "L"),
    "Way": ("Air", "Sea", "Rail"),
    "Pay": ("Cash", "Card", "Bill"),
    "Seat": ("Back", "Mid", "Front"),
}
_CHECKS = ("News", "Gift", "Meal", "Hotel")
_KINDS = (*(Kind.FIELD, Kind.FIELD, Kind.RADIO, Kind.CHECK),) * 2
_YES_NO = ("yes", "no")
_ROW = 39
SAVE = "save"


class Entry(Record):
    """A row of the form."""

    name: str
    kind: Kind
    goal: str
    value: str


class FormState(Record):
    """The form and the card."""

    entries: tuple[Entry, ...]
    card: tuple[tuple[str, str], ...]
    """Names and values, with two that the form does not have."""
    focus: int = -1
    """Index of the text field with the focus."""
    is_saved: bool = False
    is_card_left: bool
    top: int


class Form(Screen[FormState]):
    """Fill in a form with the values on a card, and save it.

    The picture shows a form and a card. Fill in the form with the values on the card, in which yes
    means a tick, then click on Save. Click on a text field before you type. Typing replaces its
    text; capital letters matter.
    """

    actions = f"{CLICKS}; or type TEXT"
    difficulty = ("number of fields", 2, 4, 6, 8)
    verbs = (Verb.CLICK, Verb.TYPE)

    def create(self, rng: random.Random, size: int) -> FormState:
        """Draw fields and values."""
        texts, picks = rng.sample(_TEXTS, len(_TEXTS)), rng.sample(sorted(_PICKS), len(_PICKS))
        checks = rng.sample(_CHECKS, len(_CHECKS))
        rows: list[Entry] = []
        for kind in (*_KINDS[:size], Kind.FIELD, Kind.CHECK):
            value = ""
            if kind is Kind.FIELD:
                name, goal = texts.pop(), f"{rng.choice(_FORM_WORDS)} {rng.randint(10, 99)}"
            elif kind is Kind.RADIO:
                name = picks.pop()
                goal = rng.choice(_PICKS[name])
            else:
                name, goal, value = checks.pop(), rng.choice(_YES_NO), rng.choice(_YES_NO)
            rows.append(Entry(name=name, kind=kind, goal=goal, value=value))
        entries, goals = rng.sample(rows[:size], size), [(row.name, row.goal) for row in rows]
        card, is_left = tuple(rng.sample(goals, len(goals))), rng.random() < 0.5
        top = rng.randint(4, 384 - _ROW * size)
        return FormState(entries=tuple(entries), card=card, is_card_left=is_left, top=top)

    def widgets(self, state: FormState) -> list[Widget]:
        """Return the card and the form."""
        card_left, left = (6, 158) if state.is_card_left else (292, 6)
        top, bottom = state.top, state.top + 58 + _ROW * len(state.entries)
        lines = [f"{name}: {value}" for name, value in state.card]
        form = screen.window(left, top, 282, bottom - top, "Form")
        found = [*screen.card(card_left, 10, 148, "Card", lines), form]
        for index, entry in enumerate(state.entries):
            y = top + 28 + _ROW * index
            found.append(screen.label(left + 10, y + 14, entry.name))
            found += _inputs(entry, str(index), left + 76, y, is_focused=state.focus == index)
        save = (left + 180, bottom - 29, left + 272, bottom - 5)
        return [*found, screen.button(save, "Save", SAVE, size=14)]

    def do(self, state: FormState, gesture: Gesture) -> tuple[FormState, str]:
        """Type, or click."""
        if gesture.verb is not Verb.TYPE:
            return super().do(state, gesture)
        if state.focus < 0:
            return state, "No text field has the focus."
        return _filled(state, state.focus, gesture.text), "Typed."

    def use(self, state: FormState, widget: Widget, gesture: Gesture) -> tuple[FormState, str]:
        """Click on a widget."""
        if widget.key == SAVE:
            if all(entry.value == entry.goal for entry in state.entries):
                return replace(state, is_saved=True), "Saved."
            return state, "Not saved: the form differs from the card."
        index, _, option = widget.key.partition(" ")
        if widget.kind is Kind.FIELD:
            return replace(state, focus=int(index)), "Clicked."
        value = option or _YES_NO[widget.is_on]
        return _filled(replace(state, focus=-1), int(index), value), "Clicked."

    def is_solved(self, state: FormState) -> bool:
        """Return whether the form is saved."""
        return state.is_saved

    def progress(self, state: FormState) -> float:
        """Return the share of right fields, and of the click on Save."""
        right = sum(entry.value == entry.goal for entry in state.entries)
        return (right + state.is_saved) / (len(state.entries) + 1)

    def plan(self, state: FormState) -> list[str]:
        """Fill in what is wrong, the field with the focus first."""
        if state.is_saved:
            return []
        spots, moves = self.spots(state), list[str]()
        wrong = [k for k, entry in enumerate(state.entries) if entry.value != entry.goal]
        for index in sorted(wrong, key=lambda index: index != state.focus):
            entry = state.entries[index]
            key = f"{index} {entry.goal}" if entry.kind is Kind.RADIO else str(index)
            if index != state.focus:
                moves.append(f"click {spots[key]}")
            if entry.kind is Kind.FIELD:
                moves.append(f"type {entry.goal}")
        return [*moves, f"click {spots[SAVE]}"]


def _inputs(entry: Entry, key: str, left: float, top: float, *, is_focused: bool) -> list[Widget]:
    """Return what a row of the form is filled in with."""
    kind, value, bottom = entry.kind, entry.value, top + 28
    if kind is Kind.RADIO:
        boxes = [(x, top, x + 66, bottom) for x in (left, left + 68, left + 136)]
        return [
            Widget(kind=kind, box=box, text=name, key=f"{key} {name}", is_on=value == name)
            for name, box in zip(_PICKS[entry.name], boxes, strict=True)
        ]
    if kind is Kind.CHECK:
        box = (left, top, left + 60, bottom)
        return [Widget(kind=kind, box=box, key=key, is_on=value == "yes")]
    text = value if len(value) <= 14 else f"{value[:13]}…"
    box = (left, top, left + 196, bottom)
    return [Widget(kind=kind, box=box, text=text, key=key, is_on=is_focused, size=14)]


def _filled(state: FormState, index: int, value: str) -> FormState:
    entries = list(state.entries)
    entries[index] = replace(entries[index], value=value)
    return replace(state, entries=tuple(entries))


_FIRST = (
    *("Ada", "Alan", "Ana", "Anna", "Ben", "Bert", "Carl", "Carla", "Dan", "Dana", "Emil", "Emma"),
    *("Finn", "Gina", "Hans", "Ivan", "Jana", "Jon", "Karl", "Lena", "Mia", "Mira", "Nils", "Nina"),
    *("Olga", "Otto", "Paul", "Rosa", "Sam", "Tina"),
)
_LAST = ("Berg", "Bergen", "Lind", "Linden", "Moor", "Moore", "Stein", "Steiner", "Wolf", "Wolff")
_BUTTONS = tuple(permutations(("Call", "Mail", "Edit")))
_SHOWN = 12
_MOST = 20
"""Rows of one scroll."""


class ScrollState(Record):
    """A sorted list, of which twelve rows are shown."""

    names: tuple[str, ...]
    orders: tuple[int, ...]
    """Of the buttons of each row."""
    target: int
    button: str
    offset: int
    """The first row that is shown."""
    clicked: str | None = None
    """Name and button that were clicked on."""


class Scroll(Screen[ScrollState]):
    """Scroll to a row of a sorted list and click on one of its buttons.

    The picture shows twelve rows of a list that is sorted by name. Scroll to the person that is
    asked for, and click on the button that is asked for. A click on any other button loses.
    """

    actions = f"scroll down N or scroll up N, where N is 1 to 20 rows; or {CLICKS}"
    difficulty = ("rows of the list", 60, 100, 160, 240)
    missed = "There is no button."
    chance = 0.02
    verbs = (Verb.CLICK, Verb.SCROLL)
    options = (
        *(f"scroll {way} {rows}" for way in ("down", "up") for rows in (20, 10)),
        *(f"click {x}, {y}" for x in (500, 665, 825) for y in range(120, 960, 145)),
    )

    def create(self, rng: random.Random, size: int) -> ScrollState:
        """Draw names and a row that is not shown."""
        firsts = rng.sample(_FIRST, size // 10 + 2)  # of all of them, a name tells its row
        people = [f"{first} {last}" for first in firsts for last in _LAST]
        offset = rng.randrange(size - _SHOWN + 1)
        hidden = [row for row in range(size) if not offset - 2 <= row < offset + _SHOWN + 2]
        names = tuple(sorted(rng.sample(people, size)))
        orders = tuple(rng.randrange(len(_BUTTONS)) for _ in range(size))
        target, button = rng.choice(hidden), rng.choice(_BUTTONS[0])
        return ScrollState(names=names, orders=orders, target=target, button=button, offset=offset)

    def widgets(self, state: ScrollState) -> list[Widget]:
        """Return the rows that are shown, and the scroll bar."""
        found = [screen.window(10, 10, 428, 428, "People")]
        for row in range(_SHOWN):
            index, y = state.offset + row, 42 + 32.5 * row
            name = state.names[index]
            found.append(screen.label(24, y + 11, name))
            for at, text in enumerate(_BUTTONS[state.orders[index]]):
                x = 196 + 72 * at
                found.append(screen.button((x, y, x + 60, y + 22), text, f"{name}, {text}"))
        top, room = 40, 390 * state.offset / len(state.names)
        bar = (422, top + room, 432, top + room + 390 * _SHOWN / len(state.names))
        return [*found, Widget(kind=Kind.BAR, box=bar)]

    def do(self, state: ScrollState, gesture: Gesture) -> tuple[ScrollState, str]:
        """Scroll, or click."""
        if gesture.verb is not Verb.SCROLL:
            return super().do(state, gesture)
        rows = min(max(gesture.rows, -_MOST), _MOST)
        offset = min(max(state.offset + rows, 0), len(state.names) - _SHOWN)
        is_cut = offset != state.offset + gesture.rows
        text = "Scrolled less: a scroll ends after 20 rows or at the end of the list."
        return replace(state, offset=offset), text if is_cut else "Scrolled."

    def use(self, state: ScrollState, widget: Widget, gesture: Gesture) -> tuple[ScrollState, str]:
        """Click on a button."""
        return replace(state, clicked=widget.key), "Clicked."

    def ask(self, state: ScrollState) -> str:
        """Name the person and the button."""
        return f'Click on "{state.button}" of {state.names[state.target]}.'

    def is_over(self, state: ScrollState) -> bool:
        """Return whether any button was clicked on."""
        return state.clicked is not None

    def progress(self, state: ScrollState) -> float:
        """Return 0.5 where the row is shown, 1 where it is solved."""
        return 1.0 if state.clicked == _wanted(state) else 0.5 * (_missing(state) == 0)

    def plan(self, state: ScrollState) -> list[str]:
        """Scroll until the row is shown, and click."""
        if self.is_over(state):
            return []
        missing = _missing(state)
        whole, rest = divmod(abs(missing), _MOST)
        way = "down" if missing > 0 else "up"
        moves = [f"scroll {way} {rows}" for rows in [_MOST] * whole + [rest] * (rest > 0)]
        spots = self.spots(replace(state, offset=state.offset + missing))
        return [*moves, f"click {spots[_wanted(state)]}"]


def _wanted(state: ScrollState) -> str:
    return f"{state.names[state.target]}, {state.button}"


def _missing(state: ScrollState) -> int:
    """Return by how many rows one must scroll down, at least."""
    last = state.offset + _SHOWN - 1
    return min(0, state.target - state.offset) or max(0, state.target - last)
