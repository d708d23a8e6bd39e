"""Plans for tasks that are solved by pressing the right thing."""

import re
from collections.abc import Iterator

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page


def only_button(page: Page) -> Iterator[Action]:
    """Press the only button."""
    yield moves.press(page, page.one("button"))


def named_button(page: Page) -> Iterator[Action]:
    """Press a button with the name quoted in the goal; several may have it."""
    wanted = [button for button in page.all("button") if button.text == page.quoted()[0]]
    button = next((found for found in wanted if found.point is not None), wanted[0])
    yield from moves.reach_and_press(page, button)


def numbered_button(page: Page) -> Iterator[Action]:
    """Press button ONE or TWO, which may overlap."""
    yield _press_or_tab(page, page.with_text("button", page.asked(r"button (\w+)\.")))


def button_sequence(page: Page) -> Iterator[Action]:
    """Press button ONE, then button TWO."""
    names = ("ONE", "TWO")
    pressed = sum(moves.is_pressing(action) for action in page.performed)
    yield _press_or_tab(page, page.with_text("button", names[min(pressed, 1)]))


def _press_or_tab(page: Page, button: Element) -> Action:
    """Press a button, by keyboard if another one covers it."""
    if button.point is not None:
        return moves.press(page, button)
    return moves.key("enter") if button.focused else moves.key("tab")


def close_dialog(page: Page) -> Iterator[Action]:
    """Press the cross of the dialog."""
    yield moves.press(page, page.one(".ui-dialog-titlebar-close"))


def dialog_button(page: Page) -> Iterator[Action]:
    """Press the dialog's button that the goal quotes; x is the cross."""
    name = page.quoted()[0]
    if name == "x":
        yield from close_dialog(page)
    else:
        yield moves.press(page, page.with_text(".ui-dialog button", name))


def link(page: Page) -> Iterator[Action]:
    """Press the link that the goal quotes."""
    yield moves.press(page, page.with_text(".alink", page.quoted()[0]))


def numbered_tab(page: Page) -> Iterator[Action]:
    """Press the tab of the goal."""
    yield moves.press(page, page.with_text("#area ul a", page.asked(r"(Tab #\d)")))


def link_in_tabs(page: Page) -> Iterator[Action]:
    """Open the tab that holds the link, and press the link."""
    name = page.quoted()[0]
    for wanted in page.all(".alink"):
        if wanted.text != name:
            continue
        panel = next(found for found in page.ancestors(wanted) if found.id.startswith("tabs-"))
        if not panel.is_shown:
            tabs = page.all("#area ul a")
            yield moves.press(
                page, next(tab for tab in tabs if tab.attributes["href"] == f"#{panel.id}")
            )
        yield from moves.reach_and_press(page, wanted)
    # A variant empties the second tab: opening it counts as finding a missing link.
    yield moves.press(page, page.all("#area ul a")[1])


def open_section(page: Page) -> Iterator[Action]:
    """Open the section, then press Submit."""
    if not page.one(".ui-accordion-content").is_shown:
        yield moves.press(page, page.one("h3"))
    yield from moves.submit(page)


def link_in_sections(page: Page) -> Iterator[Action]:
    """Open the section that holds the link, and press the link."""
    name = page.quoted()[0]
    wanted = page.with_text(".alink", name)
    panel = next(
        found for found in page.ancestors(wanted) if "ui-accordion-content" in found.classes
    )
    if not panel.is_shown:
        header = page.before(panel)
        yield from moves.reach_and_press(page, header)
    yield from moves.reach_and_press(page, wanted)


def widget(page: Page) -> Iterator[Action]:
    """Press a widget of the kind that the goal quotes."""
    kind = page.quoted()[0]
    for found in page.all(".widget *"):
        if found.attributes.get("data-type") == kind and found.point is not None:
            yield moves.press(page, found)


def focus_field(page: Page) -> Iterator[Action]:
    """Click into the only field, or the n-th field named by the goal."""
    place = re.search(r"(\d)\w\w input", page.goal)
    fields = page.all("#area input")
    yield moves.press(page, fields[int(place.group(1)) - 1 if place else 0])


def color(page: Page) -> Iterator[Action]:
    """Press the box of the color."""
    name = page.asked(r"Click on the (\w+) colored")
    boxes = [box for box in page.all("#area .color") if box.attributes["data-color"] == name]
    yield moves.press(page, boxes[0])


def shades(page: Page) -> Iterator[Action]:
    """Select the shades of the color and submit."""
    name = page.asked(r"shades of (\w+)")
    for span in page.all("#area span"):
        if ("selected" in span.classes) != (span.attributes["data-color"] == name):
            yield moves.press(page, span)
    yield from moves.submit(page)


def ascending(page: Page) -> Iterator[Action]:
    """Press the numbers in order; after the first press they are blank, in page order."""
    numbers = page.all("svg text")
    if numbers:
        yield moves.press(page, page.with_text("svg text", "1"))
    yield moves.press(page, page.all("svg rect")[0])


def tree(page: Page) -> Iterator[Action]:
    """Open the folders on the way and press the file or folder."""
    name = page.quoted()[0]
    wanted = next(span for span in page.all("#tree span") if span.text == name)
    hidden = [
        found for found in page.ancestors(wanted) if found.tag == "li" and _is_closed(page, found)
    ]
    closed = hidden[-1] if hidden else None
    target = wanted if closed is None else page.one("span", closed)
    yield from moves.reach_and_press(page, target)


def _is_closed(page: Page, entry: Element) -> bool:
    """Return whether an entry is a folder whose list is hidden."""
    inner = page.first("ul", entry)
    return inner is not None and not inner.is_shown


def menu_path(page: Page) -> Iterator[Action]:
    """Move along the path of menu items and press the last."""
    path = page.asked(r"Select (.*)").split(">")
    items = [page.with_text("#menu li div", name) for name in path]
    yield from _through_menu(page, items)


def _through_menu(page: Page, items: list[Element]) -> Iterator[Action]:
    """Press the last item if it is shown, or open what hides it."""
    *parents, wanted = items
    if wanted.is_shown:
        yield moves.press(page, wanted)
    for parent in reversed(parents):
        if parent.is_shown:  # a press on it would count as a choice
            yield moves.point_at(page, parent)


def icon_menu(page: Page) -> Iterator[Action]:
    """Open the menu and press the item with the name, or with the icon that the bar shows."""
    if not page.one("#menu").is_shown:
        yield moves.press(page, page.one("#open-menu"))
    names = page.quoted()[1:]
    if names:
        wanted = page.with_text("#menu li div", names[0])
    else:
        names = [name for drawn in page.bar for name in drawn.classes]
        icon = next(name for name in names if name.startswith("ui-icon-"))
        wanted = page.parent(page.one(f"#menu .{icon}"))
    above = [page.one("div", found) for found in page.ancestors(wanted) if found.tag == "li"]
    yield from _through_menu(page, [*reversed(above[1:]), wanted])


def coordinate(page: Page) -> Iterator[Action]:
    """Press the grid point named by the goal."""
    place = page.asked(r"(\(.*\))")
    yield moves.press(page, next(dot for dot in page.all("circle") if dot.id == place))
