"""The front end's modules as one script.

The modules share one scope there, so a name stands for one thing at the top of all of them, imports
name what they take without renaming it, and no two modules import each other.
"""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Final

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:const|let|function|class)\b)", re.MULTILINE)
_NAME: Final = re.compile(
    r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+|\{[^}]*\}|\[[^\]]*\])",
    re.MULTILINE,
)


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
