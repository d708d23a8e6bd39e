"""The widgets of the desktop, and how a tree of them is written as JSON data."""

from enum import Enum
from typing import Any, Final

from envkit_desktop.widgets.buttons import Button, Check, Radio
from envkit_desktop.widgets.choices import Dropdown, ListBox, Tabs
from envkit_desktop.widgets.fields import TextArea, TextField
from envkit_desktop.widgets.labels import Icon, Label, Panel, Progress
from envkit_desktop.widgets.menus import Menu, MenuBar
from envkit_desktop.widgets.ranges import Slider, Spinner
from envkit_desktop.widgets.scrolling import ScrollPane
from envkit_desktop.widgets.tables import Table
from envkit_desktop.widgets.widget import Host, Widget, as_tuples, state_names, walk
from envkit_desktop.widgets.window import Hold, Window

__all__ = [
    "Button",
    "Check",
    "Dropdown",
    "Hold",
    "Host",
    "Icon",
    "Label",
    "ListBox",
    "Menu",
    "MenuBar",
    "Panel",
    "Progress",
    "Radio",
    "ScrollPane",
    "Slider",
    "Spinner",
    "Table",
    "Tabs",
    "TextArea",
    "TextField",
    "Widget",
    "Window",
    "from_json",
    "to_json",
    "walk",
]

_KINDS: Final[dict[str, type[Widget]]] = {
    kind.__name__: kind
    for kind in (
        Button, Check, Dropdown, Icon, Label, ListBox, MenuBar, Panel, Progress, Radio, ScrollPane,
        Slider, Spinner, Table, Tabs, TextArea, TextField, Window,
    )
}  # fmt: skip


def to_json(widget: Widget) -> dict[str, Any]:
    """Return the widget and all below it as JSON data."""
    fields = {name: getattr(widget, name) for name in state_names(type(widget))}
    plain = {name: item.value if isinstance(item, Enum) else item for name, item in fields.items()}
    return {
        "kind": type(widget).__name__,
        **plain,
        "children": [to_json(child) for child in widget.children],
    }


def from_json(data: dict[str, Any]) -> Widget:
    """Return the widget that `to_json` wrote."""
    fields = {
        name: as_tuples(value) for name, value in data.items() if name not in ("kind", "children")
    }
    if "hold" in fields:
        fields["hold"] = Hold(fields["hold"])
    children = [from_json(child) for child in data["children"]]
    return _KINDS[data["kind"]](**fields, children=children)
