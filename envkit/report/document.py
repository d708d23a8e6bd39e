"""One HTML file that needs no network, no server and no other file.

Content of a rollout is foreign: it is escaped in the static part, and reaches the script only as
data. The page's policy lets only its own script and style run and loads no address at all.
"""

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from envkit.errors import ImageError, StorageError
from envkit.images import Image
from envkit.trajectory.files import replace_file

Decode = Callable[[Sequence[int]], str]

IMAGE_BUDGET_BYTES = 48 * 1024 * 1024
"""Most picture data in one page, as it stands there; what is beyond it is linked to `images/`
beside the file."""
_SHOWN_NOTES: Final = 12
_SCRIPTS: Final = (
    "dom",
    "list",
    "keys",
    "viewer",
    "tokens",
    "episode",
    "picture",
    "actions",
)
"""What every page's script starts with, in this order."""
_COMPRESSION: Final = 6


class Document:
    """Collects what one page holds, and writes it."""

    def __init__(self, page: str) -> None:
        """Start a page.

        Args:
            page: "report" or "diff": the name of its HTML and of its own script.
        """
        self._page = page
        self._blocks: list[tuple[str, str]] = []
        self._images: dict[str, Image] = {}
        self._token_ids: set[int] = set()
        self.notes: list[str] = []
        """Shown at the top of the page."""

    def add_episode(
        self, name: str, packed: str, images: Sequence[Image], token_ids: frozenset[int]
    ) -> None:
        """Put in the data of an episode; a picture that is here already is not taken twice.

        Args:
            name: How the script finds it.
            packed: What `pack` returned.
            images: Of the episode.
            token_ids: Whose text the page may show.
        """
        self._blocks.append((name, packed))
        self._images.update((image.sha256, image) for image in images)
        self._token_ids |= token_ids

    def write(
        self,
        target: str | os.PathLike[str],
        fields: Mapping[str, str],
        index: object,
        decode: Decode | None,
    ) -> Path:
        """Write the page, whole or not at all.

        Args:
            target: The file.
            fields: HTML for the places of the page's template.
            index: JSON data of the page's list.
            decode: Turns token ids into text; None leaves ids.

        Raises:
            StorageError: It cannot be written; one that was there stays as it was.
        """
        path = Path(target)
        pieces = self._pieces(fields, index, decode)
        replace_file(path, (piece.encode("utf-8", "replace") for piece in pieces))
        return path

    def _pieces(
        self, fields: Mapping[str, str], index: object, decode: Decode | None
    ) -> Iterator[str]:
        style = _asset("style.css")
        script = "\n".join(_asset(f"{name}.js") for name in (*_SCRIPTS, self._page))
        policy = (
            f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
            f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
        )
        head, tail = _asset(f"{self._page}.html").split("<!-- data -->")
        images = list(self._image_blocks())  # first: a picture left out is a note in the head
        yield Template(head).substitute(
            fields,
            policy=policy,
            style=style,
            notes=_notes(self.notes),
            dialogs=_asset("dialogs.html"),
        )
        # The list and the script stand before the episodes: they work while the rest is read.
        yield _block("index", "application/json", safe_json(index))
        yield f"<script>{script}</script>\n"
        vocabulary = None if decode is None else {i: decode([i]) for i in sorted(self._token_ids)}
        yield _block("vocabulary", "application/json", safe_json(vocabulary))
        for name, packed in self._blocks:
            yield _block(name, "text/plain", packed)
        yield from images
        yield tail

    def _image_blocks(self) -> Iterator[str]:
        budget, skipped = IMAGE_BUDGET_BYTES, 0
        while self._images:  # each is let go once it is written: decoded pictures are large
            sha256 = next(iter(self._images))
            try:
                uri = self._images.pop(sha256).data_uri()
            except (ImageError, StorageError) as error:
                self.notes.append(f"A picture is missing: {error}")
                continue
            if budget < len(uri):
                skipped += 1
                continue
            budget -= len(uri)
            yield _block(f"image-{sha256}", "text/plain", uri)
        if skipped:
            self.notes.append(
                f"{skipped} pictures are not in this file because it would grow too large; they "
                "are linked to the folder images/ beside it."
            )


def pack(data: object) -> str:
    """Return JSON data compressed and in base64, for `unpack` of the page's script."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    packed = zlib.compress(text.encode("ascii"), _COMPRESSION)
    return base64.b64encode(packed).decode("ascii")


def safe_json(data: object) -> str:
    """Return JSON in which nothing can end a script element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def safe_html(text: str) -> str:
    """Return text for HTML; lone surrogates, which UTF-8 cannot hold, become question marks."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _notes(notes: Sequence[str]) -> str:
    shown = list(notes[:_SHOWN_NOTES])
    if len(notes) > _SHOWN_NOTES:
        shown.append(f"And {len(notes) - _SHOWN_NOTES} more of these.")
    return "".join(f'<p class="note">{safe_html(note)}</p>' for note in shown)


def _asset(name: str) -> str:
    folder = resources.files("envkit.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _block(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>\n'
