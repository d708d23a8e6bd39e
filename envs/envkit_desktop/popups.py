"""Dialogs that interrupt a task and must be dismissed."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from envkit_desktop.painter import text_width
from envkit_desktop.widgets import Button, Label, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Popup:
    """A dialog, and when it appears."""

    number: int
    after: int
    """Shown after this many actions."""
    title: str
    text: str
    buttons: tuple[str, ...]
    """Any of them closes the dialog."""

    PREFIX: ClassVar[str] = "popup"
    """Prefix of their windows' names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "buttons", tuple(self.buttons))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        return {**asdict(self), "buttons": list(self.buttons)}


def popup_window(popup: Popup, width: int, height: int, pixels: int) -> Window:
    """Return the dialog, in the middle of a screen of that size."""
    wide = [text_width(text, pixels) + 24 for text in popup.buttons]
    inner = max(text_width(popup.text, pixels) + 34, sum(wide) + 10 * len(wide) + 20, 220)
    window = Window(
        name=f"{Popup.PREFIX}{popup.number}",
        title=popup.title,
        width=inner,
        height=126,
        x=(width - inner) // 2,
        y=(height - 126) // 2,
        is_modal=True,
    )
    window.children.append(Label(text=popup.text, x=16, y=18, width=inner - 30, height=20))
    right = inner - 16
    for index, text in reversed(list(enumerate(popup.buttons))):
        right -= wide[index]
        window.children.append(
            Button(name=f"button{index}", text=text, x=right, y=60, width=wide[index], height=26)
        )
        right -= 10
    return window
