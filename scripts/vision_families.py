#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its table
"""Compare the codec with the real processors of vision-language families.

    .venv/bin/python scripts/vision_families.py [--write] [--seeds 2] [FAMILY ...]

Every family plays conversations of several turns with images of mixed sizes. At every turn, the
ledger's ids and tensors must equal the family processor's output for the whole conversation. Prints
a table and fails if anything differs; --write also writes the table to the documentation.

Some classes need torchvision and num2words. They are downloaded to a folder of the test cache (25
MB) that only this process uses. torchvision's CUDA library does not load next to a CPU build of
torch, so this script declares the two operators that its import needs.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "concepts" / "vision-families.md"
START, END = "<!-- families: begin -->", "<!-- families: end -->"
PACKAGES = ("torchvision==0.28.0", "num2words==0.5.14")  # torchvision goes with torch 2.13
_HEAD = """\
| family | processor | checked | expansion | joined |
| --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one family."""

    name: str
    processor: str
    exact: int = 0
    wrong: str = ""
    refused: str = ""
    expansion: str = ""
    joined: str = ""

    def row(self) -> str:
        """Return the table's row."""
        verdict = f"{self.exact} of {self.exact} exact"
        if self.wrong:
            verdict = f"**wrong**: {self.wrong}"
        elif self.refused:
            verdict = f"refused: {self.refused}"
        cells = (self.name, self.processor, verdict, self.expansion, self.joined)
        return f"| {' | '.join(cell or '-' for cell in cells)} |"


def packages_folder() -> Path:
    """Return the folder with this script's own packages, filling it if needed."""
    given = os.environ.get("ENVKIT_TEST_CACHE")
    base = given or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/envkit"
    folder = Path(base).expanduser() / "vision-packages-1"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as building:
            target = Path(building) / "packages"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--target", str(target), *PACKAGES], check=True, timeout=600)
            if not folder.is_dir():
                target.rename(folder)
    return folder


def import_torchvision() -> None:
    """Make torchvision importable next to any build of torch."""
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(packages_folder()))
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import_torchvision.library = library  # type: ignore[attr-defined]  # it lives as long as this
    importlib.import_module("torchvision")


def results(names: Sequence[str], seeds: int) -> Iterator[Result]:
    """Yield the result of each family."""
    from fakes.families import BY_NAME, FAMILIES, REMOTE

    for family in [BY_NAME[name] for name in names if name in BY_NAME] or FAMILIES:
        yield _result(family, seeds)
    if not names or REMOTE in names:
        yield _remote(REMOTE)


def _result(family: Any, seeds: int) -> Result:  # noqa: ANN401  # of tests/fakes
    from fakes.families import build, save
    from fakes.families_oracle import compare, conversations

    from envkit.tokens import load_codec

    processor = build(family)
    exact = 0
    with tempfile.TemporaryDirectory() as folder:
        save(family, Path(folder))
        for seed in range(seeds):
            codec = load_codec(folder, lazy_features=bool(seed % 2))
            outcome = compare(codec, processor, conversations(seed))
            exact += outcome.exact
            if outcome.wrong or outcome.refused:
                return Result(
                    name=family.name,
                    processor=family.processor,
                    wrong=outcome.wrong,
                    refused="" if outcome.wrong else _short(outcome.refused),
                )
    rules = codec.image_rules()
    return Result(
        name=family.name,
        processor=family.processor,
        exact=exact,
        expansion=str(rules.expansion),
        joined=", ".join(f"`{key}` {rule}" for key, rule in rules.joining.rules.items()),
    )


def _remote(name: str) -> Result:
    from fakes.families import save_remote
    from fakes.families_oracle import conversations

    from envkit.errors import TemplateError
    from envkit.tokens import load_codec

    with tempfile.TemporaryDirectory() as folder:
        codec = load_codec(save_remote(Path(folder)))
        try:
            codec.encode_prompt(conversations(0)[0][:1])
        except TemplateError as error:
            if "cannot be loaded" in str(error):
                return Result(
                    name=name,
                    processor="its own code",
                    refused="the processor is code in the model's repository",
                )
    return Result(name=name, processor="its own code", wrong="not refused")


def _short(reason: str) -> str:
    """Return a reason for the table, without the processor's name and the shapes."""
    said = reason.partition("is not supported: ")[2] or reason
    return said.partition(", got")[0].replace("|", "/")


def table(rows: Sequence[Result]) -> str:
    """Return the table with a line of counts."""
    exact = sum(not row.wrong and not row.refused for row in rows)
    wrong = sum(bool(row.wrong) for row in rows)
    refused = sum(bool(row.refused) for row in rows)
    lines = "".join(f"{row.row()}\n" for row in rows)
    return f"{_HEAD}{lines}\n{exact} exact, {wrong} wrong, {refused} refused.\n"


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--write", action="store_true", help="write the table to the documentation")
    parser.add_argument("--seeds", type=int, default=2, help="sets of conversations per family")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import_torchvision()
    started = time.monotonic()
    rows = list(results(options.families, options.seeds))
    text = table(rows)
    print(text)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        head, rest = page.split(START)
        PAGE.write_text(f"{head}{START}\n{text}{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())
