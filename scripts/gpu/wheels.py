"""Fill a folder with the wheels that `check.py` needs beside torch and transformers.

    python scripts/gpu/wheels.py build/wheels

All are pure Python except rpds-py, which jsonschema imports; `--python` selects the interpreter
that it must fit. Versions are those in constraints.txt.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "gymnasium",
    "farama-notifications",
    "cloudpickle",
    "typing-extensions",
    "jsonschema",
    "jsonschema-specifications",
    "attrs",
    "referencing",
    "rpds-py",
)
PLATFORMS: Final = ("any", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
LARGEST: Final = 30_000_000  # bytes; larger folders are awkward to carry to a machine


def main() -> int:
    """Download the wheels; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="default: 3.12")
    options = parser.parse_args()
    folder: Path = options.folder
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", options.python, "--dest", str(folder)]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    command += [word for name in PLATFORMS for word in ("--platform", name)]
    done = subprocess.run([*command, *PACKAGES], check=False)
    if done.returncode:
        return done.returncode
    wheels = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    sys.stdout.write(f"{len(wheels)} wheels, {size / 1e6:.1f} MB in {folder}\n")
    if size > LARGEST:
        sys.stderr.write(f"wheels must total at most {LARGEST / 1e6:.0f} MB; use an empty folder\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
