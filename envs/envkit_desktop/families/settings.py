"""Tasks with settings: check boxes, radio buttons, sliders, numbers and tabs."""

import random
from collections.abc import Iterator
from typing import Any

from envkit_actions.action import Action
from envkit_desktop import moves, widgets
from envkit_desktop.desktop import Desktop
from envkit_desktop.families.family import Data, Form, SubmittedTask, is_feasible, or_fail
from envkit_desktop.families.words import GOODS, LEVELS_OF, OPTIONS, listed
from envkit_desktop.layout import LINE, MARGIN, buttons, clutter, frame, label, place, widest
from envkit_desktop.moves import Control, Value
from envkit_desktop.painter import text_width


class ToggleChecks(Form):
    """Tick exactly the named boxes; at high levels they are in a scroll pane."""

    name = "toggle_checks"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw boxes, some ticked already, and which of them must be ticked at the end."""
        count = (4, 6, 8, 12, 16)[level - 1]
        texts = rng.sample(OPTIONS, count)
        wanted = sorted(rng.sample(texts, (1, 2, 3, 4, 5)[level - 1]), key=texts.index)
        ticked = rng.sample(texts, min(level, 3)) if level > 1 else []
        while {*ticked} == {*wanted}:
            ticked = rng.sample(texts, min(level, 3))
        return {
            "goal": f"Tick {listed(wanted)}. Untick every other box. Then press OK.",
            "texts": texts,
            "wanted": wanted,
            "ticked": ticked,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with one box per row."""
        texts: list[str] = data["texts"]
        shown = min(len(texts), 7)
        window = frame(desk, rng, "main", "Options", 300, shown * LINE + 74)
        parent: Any = window
        if len(texts) > shown:
            parent = widgets.ScrollPane(name="pane", content=len(texts) * LINE + 8)
            place(window, parent, MARGIN, 8, 276, shown * LINE + 8)
        width = widest(texts, desk.type_pixels) + 22
        for index, text in enumerate(texts):
            box = widgets.Check(name=text, text=text, checked=text in data["ticked"])
            place(parent, box, MARGIN, 6 + index * LINE, width, 22)
        self.finish(desk, window, data, rng)

    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield each box and whether it must be ticked."""
        for text in data["texts"]:
            yield widgets.Check, text, text in data["wanted"]


_QUESTIONS = (
    ("Transport", ("Bus", "Train", "Bicycle", "On foot")),
    ("Breakfast", ("Bread", "Porridge", "Fruit", "Nothing")),
    ("Season", ("Spring", "Summer", "Autumn", "Winter")),
    ("Drink", ("Tea", "Coffee", "Water", "Juice")),
    ("Reading", ("Paper", "Tablet", "Phone", "Audio")),
    ("Sport", ("Running", "Swimming", "Chess", "None")),
)


class AnswerSurvey(SubmittedTask):
    """Choose one radio button in each of several groups."""

    name = "answer_survey"
    submit = "Send"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw questions and their answers; some must stay empty."""
        questions = rng.sample(_QUESTIONS, (2, 3, 4, 5, 6)[level - 1])
        answers = {title: rng.choice(options) for title, options in questions}
        if level >= 4:
            answers.pop(rng.choice(sorted(answers)))
        said = listed([f"{title}: {answer}" for title, answer in answers.items()])
        rest = " Leave the others empty." if len(answers) < len(questions) else ""
        return {
            "goal": f"Fill in the survey: {said}.{rest} Then press Send.",
            "questions": [[title, list(options)] for title, options in questions],
            "answers": answers,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with one group per row."""
        questions = data["questions"]
        titles = [title for title, _ in questions]
        left = widest(titles, desk.type_pixels) + 2 * MARGIN
        width = widest([option for _, options in questions for option in options], desk.type_pixels)
        window = frame(
            desk, rng, "main", "Survey", left + 4 * (width + 34), len(questions) * 38 + 60
        )
        for row, (title, options) in enumerate(questions):
            label(window, title, MARGIN, 8 + row * 38, desk.type_pixels)
            for column, option in enumerate(options):
                radio = widgets.Radio(name=f"{title}/{option}", text=option, group=title)
                place(window, radio, left + column * (width + 32), 8 + row * 38, width + 24)
        self.finish(desk, window, data, rng)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each question whether its answer is right, and whether it was sent."""
        reached: list[bool] = []
        for title, options in data["questions"]:
            chosen = [
                o for o in options if desk.find(widgets.Radio, "main", f"{title}/{o}").checked
            ]
            wanted = data["answers"].get(title)
            reached.append(chosen == ([] if wanted is None else [wanted]))
        return [*reached, self.sent(desk)]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Choose each answer, then send."""
        for title, answer in data["answers"].items():
            yield from moves.check(desk, desk.find(widgets.Radio, "main", f"{title}/{answer}"))
        yield from self.press_submit(desk)


class SetSliders(Form):
    """Set sliders to given numbers."""

    name = "set_sliders"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw sliders and targets; the steps get finer with the level."""
        names = rng.sample(LEVELS_OF, (1, 2, 4, 5, 6)[level - 1])
        step = (10, 5, 5, 2, 1)[level - 1]
        targets: dict[str, int] = {}
        for name in rng.sample(names, (1, 1, 2, 3, 4)[level - 1]):
            targets[name] = rng.choice([v for v in range(0, 101, step) if v != 50])
        said = listed([f"{name} to {value}" for name, value in targets.items()])
        return {
            "goal": f"Set {said}. Leave everything else as it is. Then press OK.",
            "names": names,
            "step": step,
            "targets": targets,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with one slider per row."""
        names: list[str] = data["names"]
        left = widest(names, desk.type_pixels) + 2 * MARGIN
        window = frame(desk, rng, "main", "Adjust", left + 270, len(names) * 34 + 60)
        for row, name in enumerate(names):
            label(window, name, MARGIN, 8 + row * 34, desk.type_pixels)
            slider = widgets.Slider(name=name, value=50, step=data["step"])
            place(window, slider, left, 8 + row * 34, 256)
        self.finish(desk, window, data, rng)

    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield each slider and its number."""
        for name in data["names"]:
            yield widgets.Slider, name, data["targets"].get(name, 50)


class OrderGoods(Form):
    """Set how many of each article to order."""

    name = "order_goods"
    submit = "Order"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw articles and quantities; some carts are not empty at the start."""
        names = rng.sample(GOODS, (2, 3, 5, 8, 12)[level - 1])
        wanted = {n: rng.randint(1, 60) for n in rng.sample(names, (1, 2, 3, 4, 5)[level - 1])}
        feasible = is_feasible(rng, level)
        missing = [] if feasible else [rng.choice(list(wanted))]
        start = {n: rng.randint(1, 9) for n in rng.sample(names, level - 1) if n not in missing}
        said = listed([f"{count} {name}" for name, count in wanted.items()])
        return {
            "goal": f"Order {said}. Set everything else to 0. Then press Order.{or_fail(level)}",
            "names": [name for name in names if name not in missing],
            "feasible": feasible,
            "wanted": wanted,
            "start": start,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the articles in two columns."""
        names: list[str] = data["names"]
        left, rows = widest(names, desk.type_pixels) + MARGIN, -(-len(names) // 2)
        width = left + 90
        window = frame(desk, rng, "main", "Order", 2 * width + MARGIN, rows * 34 + 60)
        for index, name in enumerate(names):
            x, y = MARGIN + index // rows * width, 8 + index % rows * 34
            label(window, name, x, y, desk.type_pixels)
            spinner = widgets.Spinner(name=name, value=data["start"].get(name, 0))
            place(window, spinner, x + left, y, 60)
        self.finish(desk, window, data, rng)

    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield each article and its quantity."""
        for name in data["names"]:
            yield widgets.Spinner, name, data["wanted"].get(name, 0)


_PAGES = (
    (
        "General",
        ("Language", ("English", "German", "Spanish", "Turkish")),
        ("Show tips", "Auto save"),
    ),
    ("Display", ("Theme", ("Light", "Dark", "Contrast", "System")), ("Large icons", "Animations")),
    ("Network", ("Connection", ("Cable", "Wireless", "Mobile", "None")), ("Use proxy", "Roaming")),
    (
        "Privacy",
        ("Location", ("Never", "While used", "Always", "Ask")),
        ("Send reports", "Cookies"),
    ),
    ("Sound", ("Output", ("Speakers", "Headphones", "Television", "Mute")), ("Beeps", "Echo")),
)


class ChangeSettings(Form):
    """Change settings on different tabs."""

    name = "change_settings"
    submit = "Apply"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw pages and the changes to make on some of them."""
        pages = rng.sample(_PAGES, (2, 3, 4, 5, 5)[level - 1])
        wanted: dict[str, str | bool] = {}
        for _, (title, options), boxes in rng.sample(pages, (1, 1, 2, 3, 4)[level - 1]):
            wanted[title] = rng.choice(options[1:])
            if level >= 3:
                wanted[rng.choice(boxes)] = True
        said = [
            f"turn {name} on" if value is True else f"set {name} to {value}"
            for name, value in wanted.items()
        ]
        return {
            "goal": f"In Settings, {listed(said)}. Leave everything else as it is. "
            "Then press Apply.",
            "pages": [[t, [n, list(o)], list(b)] for t, (n, o), b in pages],
            "wanted": wanted,
            "clutter": max(0, level - 2),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the tabs."""
        pages, pixels = data["pages"], desk.type_pixels
        titles = tuple(page[0] for page in pages)
        tab_width = widest(titles, pixels) + 16
        width = max(330, tab_width * len(titles) + 2 * MARGIN)
        window = frame(desk, rng, "main", "Settings", width, 230)
        tabs = widgets.Tabs(name="tabs", titles=titles, tab_width=tab_width)
        place(window, tabs, MARGIN, 8, width - 2 * MARGIN, 172)
        for index, (_, (name, options), boxes) in enumerate(pages):
            _fill_page(tabs.page(index), name, options, boxes, pixels)
        buttons(window, ("Apply", "Cancel"), pixels)
        clutter(desk, rng, data["clutter"], above=int(data["clutter"] > 2))

    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield each setting of each page."""
        for _, (name, options), boxes in data["pages"]:
            yield widgets.Dropdown, name, data["wanted"].get(name, options[0])
            for box in boxes:
                yield widgets.Check, box, box in data["wanted"]


def _fill_page(
    page: widgets.Panel, name: str, options: list[str], boxes: list[str], pixels: int
) -> None:
    page.children.append(
        widgets.Label(text=name, x=14, y=16, width=text_width(name, pixels) + 2, height=24)
    )
    dropdown = widgets.Dropdown(name=name, options=tuple(options), selected=0)
    place(page, dropdown, 28 + text_width(name, pixels), 16, widest(options, pixels) + 60)
    for row, box in enumerate(boxes):
        check = widgets.Check(name=box, text=box)
        place(page, check, 14, 56 + row * LINE, text_width(box, pixels) + 22)
