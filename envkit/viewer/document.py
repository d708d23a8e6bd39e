"""One self-contained HTML file, which needs no network, server or other file.

Rollout content is untrusted and reaches the script only as data. The page's policy allows only its
own script and style, and no URL.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envkit.files import replace_file
from envkit.images import Image
from envkit.trajectory.image_folder import ImageFolder
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.bundle import shell
from envkit.viewer.episodes import Checked, shown_episode
from envkit.viewer.images import Pictures
from envkit.viewer.markup import pack, safe_json
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.search import Piece, search_pieces
from envkit.viewer.token_texts import TokenTexts

IMAGE_BUDGET_BYTES = 48 * 1024 * 1024
"""Maximum base64 characters of image data in one file; other images are links to `images/`."""
SHOWN_NOTES: Final = 12


@dataclass(frozen=True, slots=True)
class Home:
    """A front end of single files."""

    entry: str
    """Name of its entry module, without extension."""
    styles: tuple[str, ...]
    """Names of its style sheets."""


RUNS: Final = Home("single", ("style.css",))
"""One run, or two and what changed between them."""
EVALUATION: Final = Home("evaluated", ("style.css", "runs.css"))
"""An evaluation and its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One episode as the file holds it."""

    packed: str
    """Its data, as from `pack`."""
    pieces: list[Piece]
    """Its searchable texts."""
    images: tuple[Image, ...]
    token_ids: frozenset[int]

    @classmethod
    def of(
        cls, trajectory: Trajectory, checked: Checked, row: EpisodeRow, folder: ImageFolder | None
    ) -> "Page":
        """Return the page of a trajectory.

        Args:
            trajectory: The episode.
            checked: What its check found.
            row: Its row.
            folder: Folder of its image files; None for images in memory.

        Raises:
            StorageError: JSON cannot represent a free-form part.
        """
        found = shown_episode(trajectory, checked, row, folder=folder)
        images = found.images
        if folder is not None:  # images in memory must not be kept until the file is written
            images = tuple(folder.read(image.sha256) for image in images)
        return cls(
            packed=pack(found.data),
            pieces=search_pieces(trajectory),
            images=images,
            token_ids=found.token_ids,
        )


class Document:
    """Collects the runs of one file and writes it."""

    def __init__(self) -> None:
        """Start with no runs."""
        self._blocks: list[tuple[str, str]] = []
        self._searched: list[list[tuple[int, list[Piece]]]] = []
        self._pictures = Pictures()
        self._token_ids: list[set[int]] = []
        self.size = 0
        """Characters of the episodes so far, without images."""
        self.notes: list[str] = []
        """What the file leaves out."""

    def start_run(self) -> set[int]:
        """Start a run, to which the next episodes belong; return the ids that they will use."""
        self._searched.append([])
        self._token_ids.append(set())
        return self._token_ids[-1]

    def add_episode(self, number: int, page: Page, folder: ImageFolder | None) -> None:
        """Add an episode to the current run.

        Args:
            number: Its line in the file, from 1.
            page: The episode to show.
            folder: Folder of its image files; None for images in memory.
        """
        self._blocks.append((f"episode-{len(self._searched) - 1}-{number}", page.packed))
        self.size += len(page.packed)
        self._searched[-1].append((number, page.pieces))
        self._pictures.keep(page.images, folder)
        self._token_ids[-1].update(page.token_ids)

    def write(
        self,
        target: str | os.PathLike[str],
        *,
        title: str,
        index: dict[str, Any],
        texts: Sequence[TokenTexts],
        home: Home = RUNS,
    ) -> Path:
        """Write the file atomically.

        Args:
            target: The file.
            title: Title of the document.
            index: JSON data of the runs and of their comparison.
            texts: The texts of each run's token ids.
            home: The front end that shows them.

        Raises:
            StorageError: The file cannot be written; an existing one is unchanged.
        """
        path = Path(target)
        pieces = self._pieces(title, index, texts, home)
        replace_file(path, (piece.encode("utf-8", "replace") for piece in pieces))
        return path

    def _pieces(
        self, title: str, index: dict[str, Any], texts: Sequence[TokenTexts], home: Home
    ) -> Iterator[str]:
        page = shell(home.entry, title=title, styles=home.styles, sources="img-src data: blob:")
        # Images come first, because an image left out adds a note to the index.
        images = list(self._pictures.blocks(IMAGE_BUDGET_BYTES, self.notes))
        yield page.head
        notes = _shortened(self.notes)
        yield _block("index", "application/json", safe_json({**index, "notes": notes}))
        # The script comes before the episodes, so it renders while the browser reads the rest.
        yield page.script
        for number, searched in enumerate(self._searched):
            yield _block(f"search-{number}", "text/plain", pack(searched))
        for number, one in enumerate(texts):
            yield _block(f"vocabulary-{number}", "text/plain", pack(one.data()))
        for name, packed in self._blocks:
            yield _block(name, "text/plain", packed)
        for sha256, content in images:
            yield _block(f"image-{sha256}", "text/plain", content)
        yield page.tail


def _shortened(notes: Sequence[str]) -> list[str]:
    shown = list(notes[:SHOWN_NOTES])
    if len(notes) > SHOWN_NOTES:
        shown.append(f"And {len(notes) - SHOWN_NOTES} more of these.")
    return shown


def _block(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>\n'
