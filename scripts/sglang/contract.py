"""Run the tests marked `sglang` against real SGLang servers on this machine's CPU.

    python scripts/sglang/contract.py                       both model families
    python scripts/sglang/contract.py --arch qwen3_vl -- -k images
    python scripts/sglang/contract.py --serve               start a server and keep it until Ctrl-C

Exit status: 0 passed, 1 tests failed, 3 the environment could not be built, 4 a server did not
start, 130 interrupted. 3 and 4 say nothing about envkit's client.
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

from environment import EnvironmentBuildError, cache_root, ensure_environment, tail  # noqa: E402
from recipes import SGLANG  # noqa: E402
from server import ServerStartError, running_server, say  # noqa: E402

ARCHITECTURES = ("qwen2_5_vl", "qwen3_vl")
TESTS_TIMEOUT_S = 15 * 60
EXIT_TESTS, EXIT_ENVIRONMENT, EXIT_SERVER, EXIT_INTERRUPTED = 1, 3, 4, 130

_MODEL = "import sys; from fakes.models import tiny_model_dir; print(tiny_model_dir(sys.argv[1]))"


def main() -> int:
    """Build, start, test, stop; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", choices=ARCHITECTURES, action="append", help="default: both")
    parser.add_argument("--serve", action="store_true", help="start a server and wait for Ctrl-C")
    parser.add_argument("--build-only", action="store_true", help="only build the environment")
    parser.add_argument("pytest_arguments", nargs="*", help="passed to pytest, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    try:
        return _run(options)
    except EnvironmentBuildError as error:
        say(f"the environment could not be built: {error}")
        return EXIT_ENVIRONMENT
    except ServerStartError as error:
        say(f"a server did not start: {error}")
        return EXIT_SERVER
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    finally:
        say(f"{time.monotonic() - started:.0f} s in all")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    python = ensure_environment(SGLANG)
    if options.build_only:
        return 0
    failed: list[str] = []
    for architecture in options.arch or ARCHITECTURES:
        model = model_folder(architecture)
        log = cache_root() / "logs" / f"sglang-{architecture}.log"
        with running_server(python, model, log) as url:
            if options.serve:
                _serve(url, model)
                return 0
            if _test(url, model, options.pytest_arguments) != 0:
                failed.append(architecture)
                say(f"{architecture}: the end of the server's log {log}:\n{tail(log, 30)}")
    say(f"failed: {failed}" if failed else "all passed")
    return EXIT_TESTS if failed else 0


def model_folder(architecture: str) -> Path:
    """Return a tiny model's folder, made on first use."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", _MODEL, architecture],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerStartError(f"no {architecture} model could be made:\n{done.stderr[-2000:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def _serve(url: str, model: Path) -> None:
    say("serving until Ctrl-C; the tests run against it with")
    say(f"  ENVKIT_SGLANG_URL={url} ENVKIT_SGLANG_MODEL={model} pytest -m sglang tests")
    while True:
        time.sleep(3600)


def _test(url: str, model: Path, arguments: list[str]) -> int:
    say(f"tests: {model.name}")
    started = time.monotonic()
    environment = {
        **os.environ,
        "ENVKIT_SGLANG_URL": url,
        "ENVKIT_SGLANG_MODEL": str(model),
    }
    command = [sys.executable, "-m", "pytest", "-m", "sglang", "tests", "--durations=5", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        status = process.wait(TESTS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        say(f"tests: not finished after {TESTS_TIMEOUT_S} s")
        status = EXIT_TESTS
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    say(f"tests: {time.monotonic() - started:.0f} s, status {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
