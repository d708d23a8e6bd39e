"""The pages of the package miniwob, as a site that the browser driver serves.

Only its folder of pages is used: its Python side needs Selenium and is never imported. Images in
styles are inlined: an image fetched when an icon first shows would be missing from one screenshot
and present in the next.
"""

import base64
import importlib.util
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from envkit.errors import ContractError, MissingDependencyError
from envkit_browser.driver import Site

_SCRIPT: Final = "envkit-page.js"
_HEAD: Final = re.compile(r"<head>", re.IGNORECASE)
_PICTURE: Final = re.compile(r"""url\(["']?([\w./-]+\.(png|gif))["']?\)""")


def page_path(name: str) -> str:
    """Return the path of a task's page in the site."""
    return f"miniwob/{name}.html"


@lru_cache(maxsize=1)
def miniwob_site() -> Site:
    """Return the pages, each with our script injected before its own.

    Raises:
        MissingDependencyError: The package miniwob is not installed.
        ContractError: It is installed, but has no pages where version 1.1.0 has them.
    """
    folder = _folder()
    tag = f'<head><script src="/{_SCRIPT}"></script>'
    script = files("envkit_browser.miniwob").joinpath("page.js").read_text(encoding="utf-8")
    pages: dict[str, str | bytes] = {_SCRIPT: script}
    for path in sorted((folder / "miniwob").glob("*.html")):
        pages[page_path(path.stem)] = _HEAD.sub(tag, _with_pictures(path), count=1)
    if len(pages) == 1:
        raise ContractError(f"the package miniwob must have pages in {str(folder)!r}, got none")
    for path in sorted(folder.rglob("*.css")):
        pages[path.relative_to(folder).as_posix()] = _with_pictures(path)
    return Site(pages, folder=folder)


def _with_pictures(path: Path) -> str:
    """Return a file with the images of its styles in place of their addresses."""

    def inlined(match: re.Match[str]) -> str:
        picture = path.parent / match.group(1)
        if not picture.is_file():
            return match.group(0)
        data = base64.b64encode(picture.read_bytes()).decode()
        return f'url("data:image/{match.group(2)};base64,{data}")'

    return _PICTURE.sub(inlined, path.read_text(encoding="utf-8"))


def _folder() -> Path:
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise MissingDependencyError.for_extra("MiniWoB++", "miniwob", "browser")
    return Path(found.origin).parent / "html"
