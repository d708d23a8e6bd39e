"""The files that a page may load, served under a fake origin.

Nothing listens on a port. The driver answers the browser's requests itself; every request for
another origin fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from envkit.errors import ConfigurationError

ORIGIN: Final = "https://task.invalid"
"""Origin of the files. RFC 2606 reserves this name, so it never exists."""
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".htm": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
    ".xml": "application/xml",
    ".csv": "text/csv; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An answer to a request of the page."""

    status: int
    content_type: str
    body: bytes


class Site:
    """Files by path, from memory and from a folder; memory wins."""

    def __init__(
        self, files: Mapping[str, str | bytes] | None = None, *, folder: str | Path | None = None
    ) -> None:
        """Name the files.

        Args:
            files: Path such as "index.html" or "css/style.css" -> content.
            folder: Folder whose files are served too; links that leave it are not followed.

        Raises:
            ConfigurationError: There is no such folder.
        """
        self._files = {
            path.lstrip("/"): text.encode() if isinstance(text, str) else bytes(text)
            for path, text in (files or {}).items()
        }
        self._folder = None if folder is None else Path(folder).resolve()
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigurationError(f"a site's folder must exist, got {str(folder)!r}")

    @staticmethod
    def owns(url: str) -> bool:
        """Return whether an address belongs to the fake origin."""
        return url == ORIGIN or url.startswith(f"{ORIGIN}/")

    def has(self, path: str) -> bool:
        """Return whether the site has a file at a path."""
        return self.serve(f"{ORIGIN}/{path.lstrip('/')}").status == 200

    def serve(self, url: str) -> Served:
        """Return the file at an address of the origin, or a 404."""
        path = unquote(urlsplit(url).path).lstrip("/")
        if not path or path.endswith("/"):
            path += "index.html"
        body = self._files.get(path)
        if body is None:
            body = self._read(path)
        if body is None:
            return Served(status=404, content_type="text/plain", body=b"not found")
        kind = _TYPES.get(Path(path).suffix.lower(), "application/octet-stream")
        return Served(status=200, content_type=kind, body=body)

    def _read(self, path: str) -> bytes | None:
        if self._folder is None or "\0" in path:
            return None
        file = (self._folder / path).resolve()
        try:
            if file.is_relative_to(self._folder) and file.is_file():
                self._files[path] = file.read_bytes()
        except OSError:
            return None
        return self._files.get(path)
