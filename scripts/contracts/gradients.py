"""Compare the gradients of all trainers, each in its own environment.

    python scripts/contracts/gradients.py build/gradients            run all, then compare them
    python scripts/contracts/gradients.py build/gradients verl       run one of them
    python scripts/contracts/gradients.py build/gradients --across   compare what the folder holds

The tables compare each trainer with the plain formula; the last one compares the trainers with each
other. Exit status: 1 if a gradient differs without a known reason, else 0.
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
    "slime": ("of_slime", "of_miles"),
    "verl": ("of_verl",),
    "skyrl": ("of_skyrl",),
    "trl": ("of_trl",),
}
_ACROSS = "across"


def main() -> int:
    """Run each trainer's suite in a process in its environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="folder for the gradients")
    parser.add_argument("names", nargs="*", default=[*_MODULES], metavar="TRAINER")
    parser.add_argument("--across", action="store_true", help="run nothing, only compare")
    parser.add_argument("--inside", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.names:
        if name not in _MODULES:
            parser.error(f"TRAINER must be one of {', '.join(_MODULES)}, got {name!r}")
    if options.inside:
        return _inside(options.inside, options.directory)
    failed = False
    for name in () if options.across else options.names:
        for module in _MODULES[name]:
            failed |= _run(name, module, options.directory)
    failed |= _run(options.names[-1], _ACROSS, options.directory)
    return int(failed)


def _run(name: str, module: str, directory: Path) -> bool:
    """Run a part of this script in a trainer's environment; return whether it failed."""
    recipe = RECIPES[name]
    python = ensure_environment(recipe)
    say(name, "gradients " + module.replace("_", " "))
    command = [str(python), __file__, str(directory), "--inside", module]
    return bool(subprocess.run(command, cwd=ROOT, env=variables(recipe), check=False).returncode)


def _inside(module: str, directory: Path) -> int:
    if sys.version_info < (3, 12):  # SkyRL's types need 3.12; pydantic warns on older versions
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    warnings.simplefilter("ignore")  # the trainers' own import warnings
    from fakes.gradients import Verdict, compare_paths, load_gradients, save_gradients
    from fakes.gradients.table import show, show_across

    if module == _ACROSS:
        show_across(load_gradients(directory))
        return 0
    failed = False
    for path in importlib.import_module(f"fakes.gradients.{module}").GRADIENTS:
        found = list(compare_paths([path]))
        show(found)
        save_gradients(found, directory, path.name)
        failed |= any(one.verdict is Verdict.FAIL for one in found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
