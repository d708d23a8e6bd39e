"""The front end: its document, and its modules as one script.

The modules share one scope there, so a name stands for one thing at the top of all of them, imports
name what they take without renaming it, and no two modules import each other.
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
    """The document without its data, which stands between `head` and `tail` with the script."""

    policy: str
    """What the page may load and run, as in `head`."""
    head: str
    script: str
    """An element."""
    tail: str


def shell(entry: str, *, title: str, styles: Iterable[str], sources: str) -> Shell:
    """Return the document of a front end: only its own style and script apply.

    Args:
        entry: Name of its first module, without its ending.
        title: Of the document.
        styles: Names of its style sheets.
        sources: What the policy allows besides style and script, such as "img-src data:".
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
    """Return the source of a Content-Security-Policy that allows exactly this style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def asset(name: str) -> str:
    """Return the text of a file of the front end."""
    folder = resources.files("envkit.viewer").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")


def bundled(entry: str) -> str:
    """Return a module and all it imports as one classic script.

    A classic script runs where it stands in the document, so the page is drawn before the data
    after it is read; a module would wait for the whole file.

    Args:
        entry: Name of the module, without its ending.

    Raises:
        ValueError: Two modules have the same name at their top, or import each other.
    """
    modules = dict(_ordered(entry, []))
    owners: dict[str, str] = {}
    for name, text in modules.items():
        for found in _NAME.findall(text):
            for top in re.findall(r"\w+", found):
                if owners.setdefault(top, name) != name:
                    raise ValueError(
                        f"the modules of one script share a scope, so a name must be at the top of "
                        f"one of them, got {top} in {owners[top]}.js and {name}.js; rename one"
                    )
    body = "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in modules.values())
    return f'(() => {{\n"use strict";\n{body}}})();'


def _ordered(name: str, above: list[str]) -> Iterator[tuple[str, str]]:
    """Yield modules so that each follows what it imports; one may come more than once."""
    if name in above:
        raise ValueError(f"modules must not import each other, got {' -> '.join([*above, name])}")
    text = asset(f"{name}.js")
    for _, imported in _IMPORT.findall(text):
        yield from _ordered(imported, [*above, name])
    yield name, text
