"""The front end: its document, and its modules bundled into one script.

The bundled modules share one scope. Top-level names must therefore be unique across modules,
imports must not rename, and there must be no import cycles.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Final

from envkit.viewer.markup import safe_html

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:const|let|function|class)\b)", re.MULTILINE)
_NAME: Final = re.compile(
    r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+|\{[^}]*\}|\[[^\]]*\])",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The document without its data, which goes between `head` and `tail` with the script."""

    policy: str
    """The Content-Security-Policy, as in `head`."""
    head: str
    script: str
    """The script element."""
    tail: str


def shell(entry: str, *, title: str, styles: Iterable[str], sources: str) -> Shell:
    """Return the document of a front end; its policy allows only its own styles and script.

    Args:
        entry: Name of the entry module, without extension.
        title: Title of the document.
        styles: Names of its style sheets.
        sources: Other sources that the policy allows, such as "img-src data:".
    """
    style, script = "".join(map(asset, styles)), bundled(entry)
    policy = (
        f"default-src 'none'; {sources}; style-src '{policy_hash(style)}'; "
        f"script-src '{policy_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    head, tail = asset("single.html").split("<!-- data -->")
    return Shell(
        policy=policy,
        head=Template(head).substitute(policy=policy, style=style, title=safe_html(title)),
        script=f"<script>{script}</script>\n",
        tail=tail,
    )


def policy_hash(text: str) -> str:
    """Return the Content-Security-Policy source that allows exactly this style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def asset(name: str) -> str:
    """Return the text of a front-end file."""
    folder = resources.files("envkit.viewer").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def bundled(entry: str) -> str:
    """Return a module and all its imports as one classic script.

    A classic script runs at its place in the document, so the page renders before the browser has
    read the data after it; a module would wait for the whole file.

    Args:
        entry: Name of the module, without extension.

    Raises:
        ValueError: Two modules define the same top-level name, or there is an import cycle.
    """
    modules = dict(_ordered(entry, []))
    owners: dict[str, str] = {}
    for name, text in modules.items():
        for found in _NAME.findall(text):
            for top in re.findall(r"\w+", found):
                if owners.setdefault(top, name) != name:
                    raise ValueError(
                        f"bundled modules share a scope, so top-level names must be unique, got "
                        f"{top} in {owners[top]}.js and {name}.js; rename one"
                    )
    body = "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in modules.values())
    return f'(() => {{\n"use strict";\n{body}}})();'


def _ordered(name: str, above: list[str]) -> Iterator[tuple[str, str]]:
    """Yield modules after their imports; a module may be repeated."""
    if name in above:
        cycle = " -> ".join([*above, name])
        raise ValueError(f"bundled modules cannot have import cycles, got {cycle}")
    text = asset(f"{name}.js")
    for _, imported in _IMPORT.findall(text):
        yield from _ordered(imported, [*above, name])
    yield name, text
