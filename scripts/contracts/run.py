"""Run a project's contract tests with its real classes, in a dedicated environment.

    python scripts/contracts/run.py trl                    build if needed, then test
    python scripts/contracts/run.py verl -- -k images -x   pass options, or files, to pytest
    python scripts/contracts/run.py skyrl --build-only
    python scripts/contracts/run.py lowest                 the core's tests, lowest dependencies
    python scripts/contracts/run.py clients --client NAME  one client, in its own environment

slime is not on a package index: name a checkout of its repository in SLIME_SRC; MILES_SRC names one
of miles instead of the released package. The clients' tests also run the agents from npm, if npm
can install them; ENVKIT_AGENT_PROGRAMS names a folder that has them. ENVKIT_MCP_PROGRAMS does the
same for the servers and clients of mcp's tests. TRL trains a browser-use agent
if the clients' environment exists. `--client` writes what the client did to
`scripts/contracts/clients/results`; `python scripts/docs/clients.py` makes the page of it.

Exit status: 0 passed, 1 tests failed, 3 the environment could not be built (not a failure of
envkit's adapter), 130 interrupted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from environment import EnvironmentBuildError, Recipe, ensure_environment, say
from matrix import MATRIX
from programs import MCP_PACKAGES, ensure_programs
from recipes import CLIENTS, LOWEST, MCP, RECIPES, TESTED, TRL
from testing import EXIT_TESTS, ROOT, run_tests

TESTS_TIMEOUT_S = 20 * 60
EXIT_ENVIRONMENT, EXIT_INTERRUPTED = 3, 130
PROGRAMS = "ENVKIT_AGENT_PROGRAMS"
MCP_PROGRAMS = "ENVKIT_MCP_PROGRAMS"
NOTES, RESULTS = "ENVKIT_CLIENT_NOTES", ROOT / "scripts" / "contracts" / "clients" / "results"
BROWSER_USE = "ENVKIT_BROWSER_USE_PYTHON"
# The tests of the rollout take as long as all others, and use no package that the others do not.
# Exports and sinks need their extras.
CORE_OPTIONS = (
    *("--ignore=tests/core/rollout", "--ignore=tests/core/cli/test_cli_export.py"),
    "--ignore=tests/core/cli/test_cli_sinks.py",
    *("-m", "not slow", "--hypothesis-profile", "fast"),
    *("-W", "ignore::DeprecationWarning"),  # of old packages, about new ones below them
)
OPEN_CONNECTIONS = ("-p", "no:unraisableexception")
"""Some clients leave their connections to the end of the process."""
IMPORT_FOLDERS = (".", "envs", "adapters", "tests")
TINY_MODELS = """
from fakes.models import TinyKind, tiny_model_dir
for kind in TinyKind:
    tiny_model_dir(kind)
"""
"""Makes the models of tests; they stay in the cache."""


def main() -> int:
    """Build, test and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=TESTED)
    parser.add_argument("--client", choices=MATRIX, help="with clients: only this one")
    parser.add_argument("--build-only", action="store_true", help="only build the environment")
    parser.add_argument("pytest_arguments", nargs="*", help="passed to pytest, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    recipe: Recipe = RECIPES[options.name]
    try:
        if options.client is not None:
            if recipe is not CLIENTS:
                parser.error("--client goes with clients")
            return run_client(options.client, options.pytest_arguments)
        python = ensure_environment(recipe)
        programs = _programs(recipe)
        if options.build_only:
            return 0
        if not recipe.has_torch:
            make_models(recipe)
        run = run_core if recipe is LOWEST else run_project
        status = run(recipe, str(python), options.pytest_arguments, programs)
        return EXIT_TESTS if status else 0
    except EnvironmentBuildError as error:
        say(recipe.name, f"the environment could not be built: {error}")
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        say(recipe.name, "interrupted")
        return EXIT_INTERRUPTED


def make_models(recipe: Recipe) -> None:
    """Make the tests' models with this interpreter, for an environment that has no torch.

    Raises:
        EnvironmentBuildError: One could not be made.
    """
    command = [sys.executable, "-c", TINY_MODELS]
    done = subprocess.run(
        command, env=variables(recipe), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise EnvironmentBuildError(f"no models for its tests:\n{done.stderr[-2000:]}")


def run_project(
    recipe: Recipe, python: str, arguments: Sequence[str], programs: Mapping[str, str]
) -> int:
    """Run the tests of a project's folder and return pytest's status."""
    project = recipe.name.partition("-")[0]  # one may have several environments
    return run_tests(
        project,
        python,
        f"tests/contracts/{project}",
        arguments,
        variables={**variables(recipe), **programs},
        timeout_s=TESTS_TIMEOUT_S,
    )


def run_client(name: str, arguments: Sequence[str]) -> int:
    """Run the tests of one client of the matrix, write what it did, and return the exit status.

    Raises:
        EnvironmentBuildError: Its environment could not be built.
    """
    client = MATRIX[name]
    recipe = client.recipe(name)
    python = ensure_environment(recipe)
    found = variables(recipe)
    if client.module is None:
        folder = ensure_programs(f"client-{name}", client.packages)
        if folder is None:
            raise EnvironmentBuildError("npm could not install it")
        found[PROGRAMS] = str(folder)
    tests = [f"tests/contracts/clients/{one}" for one in client.tests]
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes.json")
        status = run_tests(
            CLIENTS.name,
            str(python),
            "tests/contracts/clients",
            [*OPEN_CONNECTIONS, *tests, *arguments],
            variables={**found, NOTES: str(notes)},
            timeout_s=TESTS_TIMEOUT_S,
        )
        if status == 0 and not arguments and notes.exists():
            result = {"packages": client.packages, "notes": json.loads(notes.read_text())}
            text = json.dumps(result, indent=1) + "\n"
            (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    return EXIT_TESTS if status else 0


def run_core(
    recipe: Recipe, python: str, arguments: Sequence[str], _programs: Mapping[str, str]
) -> int:
    """Run the core's tests beside the metadata of an installation; return pytest's status."""
    with tempfile.TemporaryDirectory() as folder:
        # A wheel without code: Python finds the entry points of a zip file on its path.
        write = f"import hatchling.build as b; print(b.build_editable({folder!r}))"
        wheel = subprocess.check_output([python, "-c", write], cwd=ROOT, text=True).split()[-1]
        found = variables(recipe)
        found["PYTHONPATH"] += os.pathsep + str(Path(folder, wheel))
        return run_tests(
            recipe.name,
            python,
            "tests/core",
            [*CORE_OPTIONS, *arguments],
            variables=found,
            timeout_s=TESTS_TIMEOUT_S,
        )


def _programs(recipe: Recipe) -> dict[str, str]:
    """Return variables that name programs from npm, or an interpreter with browser-use."""
    python = CLIENTS.folder() / "bin" / "python"
    if recipe is TRL and python.exists():
        return {BROWSER_USE: str(python)}
    if recipe is MCP and MCP_PROGRAMS not in os.environ:
        found = ensure_programs(recipe.name, MCP_PACKAGES)
        return {} if found is None else {MCP_PROGRAMS: str(found)}
    if recipe is not CLIENTS or PROGRAMS in os.environ:
        return {}
    folder = ensure_programs(recipe.name)
    return {} if folder is None else {PROGRAMS: str(folder)}


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def variables(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables of a process in a project's environment."""
    folders = [str(ROOT / folder) for folder in IMPORT_FOLDERS]
    if recipe.name == "slime":  # a checkout of miles shadows the released one
        checkouts = (os.environ.get(name) for name in ("SLIME_SRC", "MILES_SRC"))
        folders += [str(Path(checkout).resolve()) for checkout in checkouts if checkout]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        **dict(recipe.variables),
    }


if __name__ == "__main__":
    sys.exit(main())
