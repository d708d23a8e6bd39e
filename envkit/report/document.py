"""One HTML file that needs no network, no server and no other file.

Content of a rollout is foreign: it is escaped in the static part, and reaches the script only as
data. The page's policy lets only its own script and style run and loads no address at all.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from envkit.files import replace_file
from envkit.report.episodes import Episode
from envkit.report.markup import safe_html, safe_json
from envkit.report.pictures import Pictures
from envkit.trajectory.image_folder import ImageFolder

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


class Document:
    """Collects what one page holds, and writes it."""

    def __init__(self, page: str) -> None:
        """Start a page.

        Args:
            page: "report" or "diff": the name of its own HTML and of its own script.
        """
        self._page = page
        self._blocks: list[tuple[str, str]] = []
        self._pictures = Pictures()
        self._token_ids: set[int] = set()
        self.notes: list[str] = []
        """Shown at the top of the page."""

    def add_episode(self, name: str, episode: Episode, folder: ImageFolder | None) -> None:
        """Put in an episode.

        Args:
            name: How the script finds its data.
            episode: What to show.
            folder: Where the files of its pictures are; None for pictures in memory.
        """
        self._blocks.append((f"data-{name}", episode.packed))
        self._pictures.keep(episode.images, folder)
        self._token_ids |= episode.token_ids

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
            fields: HTML for the places of the page's templates.
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
        head, tail = _asset("page.html").split("<!-- data -->")
        # First of all: a picture left out is a note in the head.
        images = list(self._pictures.blocks(IMAGE_BUDGET_BYTES, self.notes))
        content = Template(_asset(f"{self._page}.html")).substitute(
            fields, notes=_notes(self.notes)
        )
        yield Template(head).substitute(fields, policy=policy, style=style, content=content)
        # The list and the script stand before the episodes: they work while the rest is read.
        yield _block("index", "application/json", safe_json(index))
        yield f"<script>{script}</script>\n"
        vocabulary = None if decode is None else {i: decode([i]) for i in sorted(self._token_ids)}
        yield _block("vocabulary", "application/json", safe_json(vocabulary))
        for name, packed in self._blocks:
            yield _block(name, "text/plain", packed)
        for sha256, uri in images:
            yield _block(f"image-{sha256}", "text/plain", uri)
        yield tail


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
