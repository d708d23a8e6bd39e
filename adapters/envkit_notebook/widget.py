"""Base of the three widgets: front end, images, and event loop.

A front end's messages may arrive on another thread than the cells' (kernels with subshells), so all
work runs on the event loop that created the widget. It never blocks that loop.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final

import anywidget
import traitlets

from envkit.errors import ConfigurationError, EnvkitError
from envkit.images import Image
from envkit.text import utf8
from envkit.viewer.images import image_size

_HERE: Final = Path(__file__).parent
_LOGGER: Final = logging.getLogger(__name__)


class ImageStore:
    """Keeps the images of a widget: named by hash in the view, sent as bytes on request.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}
        self._lock = threading.Lock()

    def keep(self, image: Image) -> None:
        """Store an image under its hash."""
        with self._lock:
            self._images[image.sha256] = image

    def size(self, name: str) -> tuple[int, int] | None:
        """Return width and height of a stored image; None if it cannot be read."""
        with self._lock:
            image = self._images[name]
        return image_size(image)

    def png(self, name: str) -> bytes | None:
        """Return an image's PNG bytes; None if it is unknown or no longer readable."""
        with self._lock:
            image = self._images.get(name)
        if image is None:
            return None
        try:
            return image.png_bytes()
        except EnvkitError:
            return None


class EpisodeWidget(anywidget.AnyWidget):
    """An episode in a notebook. `view` is JSON data, which the front end shows as text."""

    _esm: ClassVar[Path] = _HERE / "widget.js"
    _css: ClassVar[Path] = _HERE / "widget.css"
    mode = traitlets.Unicode().tag(sync=True)
    view: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, mode: str, view: dict[str, Any]) -> None:
        super().__init__(mode=mode, view=view)
        self.store = ImageStore()
        self._loop = running_loop()
        self._working: set[asyncio.Task[None]] = set()
        self.on_msg(self._receive)

    async def act(self, wish: dict[str, Any]) -> None:
        """Handle a request of the front end.

        Args:
            wish: Foreign JSON data with the key "do".
        """
        raise NotImplementedError

    def complain(self, error: Exception) -> None:
        """Show an error."""
        self.view = {**self.view, "error": utf8(f"{type(error).__name__}: {error}")}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on the widget's loop, from any thread; its errors are shown."""
        guarded = self._guarded(work)
        if self._loop is None:
            threading.Thread(target=asyncio.run, args=(guarded,), daemon=True).start()
            return
        self._loop.call_soon_threadsafe(self._keep, guarded)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except EnvkitError as error:
            self.complain(error)
        except Exception as error:  # a plugin's bug: shown in the widget
            _LOGGER.exception("a widget's action failed")
            self.complain(error)

    def _receive(self, _: object, content: object, __: object) -> None:
        """Receive a message of the front end, on any thread."""
        wish = _as_wish(content)
        if wish.get("do") == "pictures":
            self._send_images(wish.get("names"))
        elif wish:
            self.spawn(self.act(wish))

    def _send_images(self, names: object) -> None:
        for name in _texts(names):
            png = self.store.png(name)
            self.send({"picture": name, "missing": png is None}, [] if png is None else [png])


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None outside one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def require_loop(what: str) -> None:
    """Require an event loop: a widget works between cells, on their loop.

    Raises:
        ConfigurationError: No event loop runs.
    """
    if running_loop() is None:
        raise ConfigurationError(
            f"{what} needs a running event loop, as every notebook has; got none"
        )


def text_in(wish: dict[str, Any], key: str) -> str:
    """Return a text of the front end's message; empty if it is not a text."""
    value = wish.get(key)
    return value if isinstance(value, str) else ""


def number_in(wish: dict[str, Any], key: str) -> int:
    """Return a whole number of the front end's message; 0 if it is not one."""
    value = wish.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _as_wish(content: object) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}  # pyright: ignore[reportUnknownVariableType]  # foreign JSON


def _texts(names: object) -> list[str]:
    listed: list[object] = names if isinstance(names, list) else []  # pyright: ignore[reportUnknownVariableType]  # foreign JSON
    return [name for name in listed if isinstance(name, str)]
