"""Check whether a trainer release still has the names that envkit's adapter relies on.

    python scripts/contracts/moved.py                    the newest release of every trainer
    python scripts/contracts/moved.py verl               the newest release of one
    python scripts/contracts/moved.py verl 0.9.0         a specific release
    python scripts/contracts/moved.py slime ../slime     a checkout

A release is downloaded without its dependencies and only read. Exit status: 0 if everything is
where the adapters expect it, 1 if something moved, 3 if a release could not be downloaded.
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from environment import say
from run import IMPORT_FOLDERS, ROOT

_ON_THE_INDEX = {"verl": "verl", "skyrl": "skyrl", "trl": "trl", "miles": "miles-rl"}
"""Package names of the trainers; slime has none."""


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
    return int(bool(moved))


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
