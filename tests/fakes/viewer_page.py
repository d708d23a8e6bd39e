"""A single file as a browser splits it: elements, attributes and data blocks."""

import base64
import json
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """The elements, attributes and script blocks of a single file, as a browser splits them."""

    def __init__(self, file: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self.code: dict[str, str] = {}
        self.text = ""
        self._open: str | None = None
        self.feed(file.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag in ("script", "style"):
            self._open = values.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            self.text += data
        elif self._open in ("script", "style"):
            self.code[self._open] = data
        else:
            self.blocks[self._open] = self.blocks.get(self._open, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def index(self) -> dict[str, Any]:
        """The runs and their comparison."""
        return json.loads(self.blocks["index"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The episodes of the first run, or the pairs of two, a mapping for each."""
        table = self.index["diff"] or self.index["runs"][0]
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    @property
    def notes(self) -> str:
        """Everything that the file says is not as it should be."""
        notes = [*self.index["notes"], *(self.index["diff"] or {"notes": []})["notes"]]
        return "\n".join([*notes, *(note for run in self.index["runs"] for note in run["notes"])])

    def episode(self, number: int, *, run: int = 0, **options: Any) -> dict[str, Any]:
        """The data of an episode by its line, from 1."""
        return self.unpack(f"episode-{run}-{number}", **options)

    def turns(self, number: int) -> list[dict[str, Any]]:
        """The turns of an episode of the first run."""
        return self.episode(number)["sequences"][0]["turns"]

    def unpack(self, name: str, **options: Any) -> Any:
        """The data of a compressed block."""
        return json.loads(zlib.decompress(base64.b64decode(self.blocks[name])), **options)
