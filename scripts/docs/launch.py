"""Write the commands of examples/geo3k into the trainers' pages, so that they cannot differ.

    python scripts/docs/launch.py            write
    python scripts/docs/launch.py --check    exit with 1 if a page differs

A page marks a bash block with `<!-- launch: FOLDER/run_small.sh -->`. The block becomes the exports
and the final command of that script, which runs with recorders in place of programs.
"""

import re
import shlex
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.launch import start  # noqa: E402

PAGES = ROOT / "docs" / "trainers"
MARKED = re.compile(r"(^ *)<!-- launch: (\S+) -->\n *```bash\n.*?^ *```$", re.DOTALL | re.MULTILINE)
WIDTH = 130
OUT = "runs/geo3k"


def main() -> int:
    """Write or check the pages; return the exit status."""
    different = 0
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        written = MARKED.sub(lambda found: _block(found[1], found[2]), text)
        if written == text:
            continue
        different += 1
        if "--check" in sys.argv[1:]:
            line = f"{page.name} differs from examples/geo3k: run python scripts/docs/launch.py\n"
            sys.stderr.write(line)
        else:
            page.write_text(written, encoding="utf-8")
    return int(different > 0 and "--check" in sys.argv[1:])


def _block(indent: str, script: str) -> str:
    lines = [f"<!-- launch: {script} -->", "```bash", *commands(script), "```"]
    return "\n".join(indent + line if line else "" for line in lines)


def commands(script: str) -> list[str]:
    """Return the lines of a script's commands, with `runs/geo3k` as its output folder."""
    with tempfile.TemporaryDirectory() as folder:
        launch = start(script, Path(folder))
        found = [["envkit", *words] for words in launch.exports]
        found = [*sorted(found, reverse=True), ["python", *launch.words]]
        prefix = str(launch.folder.resolve())
    lines: list[str] = []
    for words in found:
        # verl's workers resolve this path in their own folders.
        words = [word.replace(f"config_path={prefix}", f"config_path=$PWD/{OUT}") for word in words]
        lines += _wrapped([word.replace(prefix, OUT) for word in words])
    return lines


def _wrapped(words: list[str]) -> list[str]:
    """Return a command in lines; the flags of `python -m MODULE` begin on the second."""
    lines, line = list[str](), ""
    for number, word in enumerate(words):
        quoted = _quoted(word)
        is_full = len(line) + len(quoted) > WIDTH or (words[0] == "python" and number == 3)
        if line and is_full:
            lines.append(line + " \\")
            line = " "
        line += (" " if line else "") + quoted
    return [*lines, line]


def _quoted(word: str) -> str:
    """Quote as people do: a list stays readable."""
    return f'"{word}"' if re.search(r"['\[\]$]", word) else shlex.quote(word)


if __name__ == "__main__":
    sys.exit(main())
