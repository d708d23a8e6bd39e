"""Check whether a trainer release still has the names that envkit's adapter and pages rely on.

    python scripts/contracts/moved.py                    the newest release of every trainer
    python scripts/contracts/moved.py verl               the newest release of one
    python scripts/contracts/moved.py verl 0.9.0         a specific release
    python scripts/contracts/moved.py slime ../slime     a checkout

A release is downloaded without its dependencies and only read. Names are those of the adapter's
contract, flags and settings of the launch files, and paths of the trainer's examples on its page.
A wheel has no examples, and flags of slime and miles need a checkout. Exit status: 0 if everything
is where it is expected, 1 if something moved, 3 if a release could not be downloaded.
"""

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from environment import say
from run import IMPORT_FOLDERS, ROOT

_ON_THE_INDEX = {"verl": "verl", "skyrl": "skyrl", "trl": "trl", "miles": "miles-rl"}
"""Package names of the trainers; slime has none."""
_COMMENT_OR_EXPORT = re.compile(
    r"^ *#.*|^.*\bgrep\b.*|^ *envkit export(?:.*\\\n)*.*|--sglang-\S+", re.MULTILINE
)
_FLAG_OR_KEY = re.compile(r"(?<=\s)--([a-z][\w-]+)|(?<=[\s\"])(?!envkit)[a-z][\w.]*\.(\w+)=")
_ELSEWHERE = {
    *("envkit", "tasks", "eval_tasks"),  # of our own train.py
    *("multi_gpu", "num_processes", "mixed_precision"),  # of accelerate
    *("adam_beta1", "adam_beta2", "run_name", "save_total_limit", "weight_decay"),  # transformers
}
"""Options of the launch files that are not the trainer's."""


def main() -> int:
    """Check each trainer and print moved names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=[*_ON_THE_INDEX, "slime"])
    parser.add_argument("release", nargs="?", help="a version, or the folder of a checkout")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / folder) for folder in IMPORT_FOLDERS]
    status = 0
    for name in [options.name] if options.name else _ON_THE_INDEX:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = _source(name, options.release, Path(folder))
            except (subprocess.CalledProcessError, OSError) as error:
                say(name, f"no release could be read: {error}")
                status = 3
                continue
            status = max(status, _check(name, *found))
    return status


def _check(name: str, root: Path, release: str) -> int:
    contract = importlib.import_module(f"envkit_{name}.contract").CONTRACT
    moved = contract.moved(root)
    for line in moved:
        say(name, line)
    say(name, f"{release}: {len(moved)} names moved (tested: {contract.tested})")
    unknown = [*_settings(name, root), *_examples(name, root)]
    for line in unknown:
        say(name, line)
    return int(bool(moved or unknown))


def _settings(name: str, root: Path) -> list[str]:
    """Return flags and settings of the launch files that no file of the release has."""
    is_checkout = (root.parent / "examples").is_dir()
    if name in ("slime", "miles") and not is_checkout:
        return []
    known = {
        word
        for file in (root.parent if is_checkout else root).rglob("*")
        if file.suffix in (".py", ".yaml", ".sh") and file.is_file()
        for word in re.findall(r"[a-z][\w-]*", file.read_text(errors="replace"))
    }
    is_later = name == "slime" and "megatron-to-hf-mode" not in known
    found: list[str] = []
    for script in sorted(
        (ROOT / "examples/geo3k" / (f"{name}_head" if is_later else name)).glob("*.sh")
    ):
        text = _COMMENT_OR_EXPORT.sub("", script.read_text(encoding="utf-8"))
        names = {flag or key for flag, key in _FLAG_OR_KEY.findall(text)} - _ELSEWHERE
        found += [f"{script.name} sets {one!r}, which is gone" for one in sorted(names - known)]
    return found


def _examples(name: str, root: Path) -> list[str]:
    """Return paths of the trainer's examples on its page that a checkout lacks."""
    if not (root.parent / "examples").is_dir():
        return []
    page = (ROOT / "docs" / "trainers" / f"{name}.md").read_text(encoding="utf-8")
    ours = {path.name for path in (ROOT / "examples").iterdir()}
    paths = {one.rstrip(".") for one in re.findall(r"\bexamples/[\w./-]+", page)}
    wanted = {one for one in paths if one.split("/")[1] not in ours}
    return [
        f"the page names {one}, which is gone"
        for one in sorted(wanted)
        if not (root.parent / one).exists()
    ]


def _source(name: str, release: str | None, folder: Path) -> tuple[Path, str]:
    """Return the package's folder and display name."""
    if release is not None and Path(release).is_dir():
        return Path(release) / name, release
    if name not in _ON_THE_INDEX:
        raise OSError("it is not on a package index; give the folder of a checkout")
    wanted = _ON_THE_INDEX[name] + (f"=={release}" if release else "")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--pre"]
    if not release:
        command.remove("--pre")
    command += ["--only-binary", ":all:", "--ignore-requires-python", "-d", str(folder), wanted]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / name, wheel.name


if __name__ == "__main__":
    sys.exit(main())
