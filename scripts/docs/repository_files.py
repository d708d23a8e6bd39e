"""Add to the site the files outside docs/ that pages link to.

Pages use links that work on GitHub: `../examples/README.md`, `../benchmarks/engine.py`. MkDocs only
knows docs/, so this hook adds each such file as a page under `repository/` (source text in a code
block, images unchanged) and points the links there. A broken link is unchanged, and the strict
build rejects it.
"""

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

_LINK: Final = re.compile(r"(\]\()((?:\.\./)*[\w][^)\s#]*)(#[^)\s]*)?(\))")
_CODE: Final = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_FOLDER: Final = "repository"
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "bash"}
"""File types shown as text; others are copied."""


def on_config(config: Any) -> Any:  # noqa: ANN401  # MkDocs calls it
    """Set the repository link from the package metadata, if it has one."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    hook = tomllib.loads(text)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    config.repo_url = hook["repository"] or None
    return config


def on_files(files: Files, *, config: Any) -> Files:  # noqa: ANN401  # MkDocs calls it
    """Add every file that a page links to, and every file that those link to."""
    root = Path(config.config_file_path).parent
    docs = posixpath.relpath(config.docs_dir, root)
    waiting = [(f"{docs}/{file.src_uri}", _text(file)) for file in files.documentation_pages()]
    while waiting:
        place, text = waiting.pop()
        for target in _targets(place, text):
            uri = _uri(target)
            path = root / target
            if target.startswith(f"{docs}/") or uri in files.src_uris or not path.is_file():
                continue
            added = _added(config, target, path)
            files.append(added)
            if path.suffix == ".md":
                waiting.append((target, _text(added)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ANN401  # MkDocs calls it
    """Point links from or to files outside docs/ to pages of the site."""
    docs = posixpath.relpath(config.docs_dir, Path(config.config_file_path).parent)
    uri = page.file.src_uri
    _rank(page.meta, uri)
    is_added = uri.startswith(f"{_FOLDER}/")
    place = uri.removeprefix(f"{_FOLDER}/") if is_added else f"{docs}/{uri}"

    def pointed(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[2]))
        there = target[len(docs) + 1 :] if target.startswith(f"{docs}/") else _uri(target)
        if there not in files.src_uris:
            return found[0]
        link = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        return f"{found[1]}{link}{found[3] or ''}{found[4]}"

    return "".join(
        part if number % 2 else _LINK.sub(pointed, part)
        for number, part in enumerate(_CODE.split(markdown))
    )


def _rank(meta: dict[str, Any], uri: str) -> None:
    """Rank reader pages above single names in search, and exclude source text."""
    if uri.startswith(f"{_FOLDER}/"):
        meta["search"] = {"exclude": True}
    elif uri.startswith("reference/"):
        meta["search"] = {"boost": 0.2}


def _targets(place: str, text: str) -> Iterator[str]:
    for prose in _CODE.split(text)[::2]:
        for found in _LINK.finditer(prose):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(place), found[2]))


def _uri(target: str) -> str:
    """Return the site address of a file outside docs/."""
    shown = Path(target).suffix in _LANGUAGES
    return f"{_FOLDER}/{target}.md" if shown else f"{_FOLDER}/{target}"


def _added(config: Any, target: str, path: Path) -> File:  # noqa: ANN401  # MkDocs' own
    language = _LANGUAGES.get(path.suffix)
    if language is None:
        return File.generated(config, _uri(target), abs_src_path=str(path))
    text = path.read_text(encoding="utf-8")
    return File.generated(
        config, _uri(target), content=f"# {target}\n\n````{language}\n{text}\n````\n"
    )


def _text(file: File) -> str:
    return file.content_string
