"""Draw the layers of envkit from its import rules into docs/images/architecture.svg.

    python scripts/docs/architecture.py            # write the image
    python scripts/docs/architecture.py --check    # fail if it is out of date

The layers are those that import-linter enforces (`tool.importlinter` in pyproject.toml); the
comment after a layer is its name.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DRAWING: Final = ROOT / "docs" / "images" / "architecture.svg"
WIDTH: Final = 900
_LABEL: Final = 170
_CHIP_HEIGHT: Final = 24
_GAP: Final = 6
_CHARACTER: Final = 7.0
_STYLE: Final = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #161a20; }
.name { font-weight: 600; font-size: 13px; }
.dim { fill: #5b6472; }
.layer { fill: #f6f7f9; stroke: #dde1e7; }
.plugin { fill: #e6edff; stroke: #c3d1f5; }
.chip { fill: #fff; stroke: #dde1e7; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebf0; } .dim { fill: #98a2b1; }
  .layer { fill: #181c22; stroke: #2a3039; } .plugin { fill: #1c2a49; stroke: #2d4272; }
  .chip { fill: #101317; stroke: #2a3039; }
}
"""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One row of the image."""

    name: str
    modules: tuple[str, ...]
    """Packages and modules, without the prefix `envkit.`."""
    is_plugin: bool


def layers() -> list[Layer]:
    """Return all layers, top to bottom: plugins, then the core."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    *plugins, _ = rules[0]["layers"]
    (core,) = (rule["layers"] for rule in rules if rule.get("containers") == ["envkit"])
    return [
        Layer(
            name=re.findall(rf'^    "{re.escape(row)}",  # (.+)$', text, re.M)[0],
            modules=tuple(re.split(r" [|:] ", row)),
            is_plugin=row in plugins,
        )
        for row in (*plugins, *core)
    ]


def lines_of(module: str) -> int:
    """Count the lines of Python in a package or module, named without `envkit.`."""
    places = [ROOT / shelf / module for shelf in ("envkit", "envs", "adapters")]
    files = [file for place in places if place.is_dir() for file in place.rglob("*.py")]
    single = ROOT / "envkit" / f"{module}.py"
    if single.is_file():
        files.append(single)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def draw(rows: list[Layer]) -> str:
    """Return the image as SVG."""
    body: list[str] = []
    top = 10
    for row in rows:
        chips, height = _chips(row, top)
        kind = "plugin" if row.is_plugin else "layer"
        size = sum(lines_of(module) for module in row.modules)
        body += [
            f'<rect class="{kind}" x="1" y="{top}" width="{WIDTH - 2}" height="{height}" rx="8"/>',
            f'<text class="name" x="14" y="{top + 22}">{escape(row.name)}</text>',
            f'<text class="dim" x="14" y="{top + 38}">{round(size, -2):,} lines</text>',
            *chips,
        ]
        top += height + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 2}" role="img" '
        f'aria-label="Layers of envkit; each imports only from those below it">'
        f"<style>{_STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _chips(row: Layer, top: int) -> tuple[list[str], int]:
    """Return the chips of a layer, and the height of the layer that holds them."""
    drawn: list[str] = []
    x, y = float(_LABEL + 20), top + 9
    for module in row.modules:
        width = len(module) * _CHARACTER + 16
        if x + width > WIDTH - 10:
            x, y = float(_LABEL + 20), y + _CHIP_HEIGHT + _GAP
        drawn += [
            f'<rect class="chip" x="{x:.0f}" y="{y}" width="{width:.0f}" '
            f'height="{_CHIP_HEIGHT}" rx="6"/>',
            f'<text x="{x + width / 2:.0f}" y="{y + 16}" text-anchor="middle">{module}</text>',
        ]
        x += width + _GAP
    return drawn, max(y + _CHIP_HEIGHT + 9 - top, 48)


def main() -> None:
    """Write the image, or compare it."""
    picture = draw(layers())
    if "--check" not in sys.argv[1:]:
        DRAWING.write_text(picture, encoding="utf-8")
        return
    shape = re.compile(r"[\d,]+ lines")  # sizes change with every commit; the layers do not
    if not DRAWING.is_file() or shape.sub("", DRAWING.read_text("utf-8")) != shape.sub("", picture):
        sys.exit("docs/images/architecture.svg is out of date: run scripts/docs/architecture.py")


if __name__ == "__main__":
    main()
