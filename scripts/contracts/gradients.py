"""Compare the gradients of all trainers, each in its own environment.

    python scripts/contracts/gradients.py build/gradients          run all built environments
    python scripts/contracts/gradients.py build/gradients verl     run one of them

Then `envkit conformance --gradient --across build/gradients` compares the trainers with each other.
Exit status: 1 if a gradient differs without a known reason, else 0.
"""

import argparse
import importlib
import subprocess
import sys
import typing
import warnings
from pathlib import Path

from environment import ensure_environment, say
from recipes import RECIPES
from run import ROOT, variables

_MODULES = {
    "slime": ("envkit_slime", "envkit_miles"),
    "verl": ("envkit_verl",),
    "skyrl": ("envkit_skyrl",),
    "trl": ("envkit_trl",),
}


def main() -> int:
    """Run each trainer's suite in a process in its environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="folder for the gradients")
    parser.add_argument("names", nargs="*", default=[*_MODULES], metavar="TRAINER")
    parser.add_argument("--inside", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return _compare(options.inside, options.directory)
    failed = 0
    for name in options.names:
        recipe = RECIPES[name]
        python = ensure_environment(recipe)
        for module in _MODULES[name]:
            say(name, f"gradients of {module}")
            command = [str(python), __file__, str(options.directory), "--inside", module]
            done = subprocess.run(command, cwd=ROOT, env=variables(recipe), check=False)
            failed |= done.returncode
    return int(bool(failed))


def _compare(module: str, directory: Path) -> int:
    if sys.version_info < (3, 12):  # SkyRL's types need 3.12; pydantic warns on older versions
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    warnings.simplefilter("ignore")  # the trainers' own import warnings
    from envkit_conformance.gradient import Verdict, compare_paths, save_gradients

    failed = False
    for path in importlib.import_module(f"{module}.gradient").GRADIENTS:
        found = list(compare_paths([path]))
        for one in found:
            print(one, flush=True)  # noqa: T201
        save_gradients(found, directory, path.name)
        failed |= any(one.verdict is Verdict.FAIL for one in found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
