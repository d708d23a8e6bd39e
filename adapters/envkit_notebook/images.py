"""The images of a view: named by hash in the JSON, sent as bytes on request."""

import threading
from typing import Any

from envkit.errors import EnvkitError
from envkit.images import Image
from envkit.messages import Message
from envkit.text import utf8
from envkit.viewer.images import image_size
from envkit.viewer.turn_text import role_words


class ImageStore:
    """Keeps the images of a widget. Thread-safe."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}
        self._lock = threading.Lock()

    def keep(self, image: Image) -> str:
        """Store an image and return its name."""
        with self._lock:
            self._images[image.sha256] = image
        return image.sha256

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

    def message_view(self, entry: Message) -> dict[str, Any]:
        """Return a message as JSON data: who said it, its images by name and size, then its text.

        The front end reserves the size before the bytes arrive, so that no button moves away from
        under the mouse.
        """
        content = entry["content"]
        parts: list[dict[str, Any]] = []
        if isinstance(content, str):
            parts.append({"text": utf8(content)})
        else:
            for part in content:
                if part["type"] == "image":
                    image = part["image"]
                    parts.append({"image": self.keep(image), "size": image_size(image)})
                else:
                    parts.append({"text": utf8(part["text"])})
        parts.sort(key=lambda part: "text" in part)
        return {"role": entry["role"], "who": role_words(entry["role"]), "parts": parts}
