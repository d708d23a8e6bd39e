"""Run the tests marked `sglang` or `vllm` against real servers on this machine's CPU.

    python scripts/servers/contract.py sglang               every model
    python scripts/servers/contract.py vllm --arch qwen3_vl -- -k images
    python scripts/servers/contract.py vllm --serve         start a server and keep it until Ctrl-C

Exit status: 0 passed, 1 tests failed, 3 the environment could not be built, 4 a server did not
start, 130 interrupted. 3 and 4 are not failures of envkit's client.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "contracts"))

from environment import (  # noqa: E402
    EnvironmentBuildError,
    cache_root,
    ensure_environment,
    say,
    tail,
)
from server import SERVERS, Server, ServerStartError, running_server  # noqa: E402
from testing import EXIT_TESTS, run_tests  # noqa: E402

TESTS = "tests/adapters"
"""Tests of a real server that need no trainer."""
SEEING = "seeing"
"""The built-in model, which is trained, so its greedy replies are meaningful."""
ARCHITECTURES = ("qwen2_5_vl", "qwen3_vl", SEEING)
TESTS_TIMEOUT_S = 15 * 60
EXIT_ENVIRONMENT, EXIT_SERVER, EXIT_INTERRUPTED = 3, 4, 130
IMPORT_FOLDERS = (".", "envs", "adapters", "tests")

_MODEL = "import sys; from fakes.models import tiny_model_dir; print(tiny_model_dir(sys.argv[1]))"


def main() -> int:
    """Build, start, test and stop; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--arch", choices=ARCHITECTURES, action="append", help="default: all")
    parser.add_argument("--serve", action="store_true", help="start a server and wait for Ctrl-C")
    parser.add_argument("--build-only", action="store_true", help="only build the environment")
    parser.epilog = "Arguments after -- are passed to pytest."
    own, passed = sys.argv[1:], list[str]()
    if "--" in own:  # argparse accepts no list of positionals after an option
        own, passed = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own, argparse.Namespace(pytest_arguments=passed))
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    name = options.server
    try:
        return _run(SERVERS[name], options)
    except EnvironmentBuildError as error:
        say(name, f"the environment could not be built: {error}")
        return EXIT_ENVIRONMENT
    except ServerStartError as error:
        say(name, f"a server did not start: {error}")
        return EXIT_SERVER
    except KeyboardInterrupt:
        say(name, "interrupted")
        return EXIT_INTERRUPTED
    finally:
        say(name, f"{time.monotonic() - started:.0f} s in total")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(server: Server, options: argparse.Namespace) -> int:
    ensure_environment(server.recipe)
    if options.build_only:
        return 0
    failed: list[str] = []
    for architecture in options.arch or ARCHITECTURES:
        model = model_folder(architecture)
        log = cache_root() / "logs" / f"{server.name}-{architecture}.log"
        with running_server(server, model, log) as url:
            if options.serve:
                _serve(server, url, model)
                return 0
            once = "same_greedy or bare_server"  # with a single model, to compare or restart
            chosen = ["-k", once if architecture == SEEING else "not bare_server"]
            if _test(server, url, model, [*chosen, *options.pytest_arguments]) != 0:
                failed.append(architecture)
                end = tail(log, 30)
                say(server.name, f"{architecture}: the end of the server's log {log}:\n{end}")
    say(server.name, f"failed: {failed}" if failed else "all passed")
    return EXIT_TESTS if failed else 0


def model_folder(architecture: str) -> Path:
    """Return a small model's folder, created on first use."""
    if architecture == SEEING:
        return ROOT / "adapters" / "envkit_transformers" / "models" / SEEING
    done = subprocess.run(
        [sys.executable, "-c", _MODEL, architecture],
        capture_output=True, text=True, env=_variables(), check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerStartError(f"no {architecture} model could be made:\n{done.stderr[-2000:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def _variables() -> dict[str, str]:
    """Return environment variables that make the checkout's packages importable."""
    folders = os.pathsep.join(str(ROOT / folder) for folder in IMPORT_FOLDERS)
    return {**os.environ, "PYTHONPATH": folders}


def _tested(server: Server, url: str, model: Path) -> dict[str, str]:
    """Return the variables that tell the tests about a running server."""
    name = server.name.upper()
    python = server.recipe.folder() / "bin" / "python"
    return {
        f"ENVKIT_{name}_URL": url,
        f"ENVKIT_{name}_MODEL": str(model),
        f"ENVKIT_{name}_PYTHON": str(python),
    }


def _serve(server: Server, url: str, model: Path) -> None:
    named = " ".join(f"{key}={value}" for key, value in _tested(server, url, model).items())
    say(server.name, "serving until Ctrl-C; the tests run against it with")
    say(server.name, f"  {named} pytest -m {server.name} {TESTS}")
    while True:
        time.sleep(3600)


def _test(server: Server, url: str, model: Path, arguments: list[str]) -> int:
    say(server.name, f"tests: {model.name}")
    return run_tests(
        server.name,
        sys.executable,
        TESTS,
        arguments,
        variables={**_variables(), **_tested(server, url, model)},
        timeout_s=TESTS_TIMEOUT_S,
    )


if __name__ == "__main__":
    sys.exit(main())
