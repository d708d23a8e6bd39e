"""Run slime's contract tests against a real SGLang server behind its router, on a CPU.

    SLIME_SRC=... python scripts/contracts/slime/real_server.py [--arch qwen3_vl] [-- options]

Builds both environments if needed. Exit status as for scripts/contracts/run.py, or 4 if the server
did not start.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts" / "servers"), str(ROOT / "scripts" / "contracts")]

from contract import ARCHITECTURES, model_folder  # noqa: E402  # beside this script's folder
from environment import cache_root, ensure_environment, say  # noqa: E402
from recipes import SLIME  # noqa: E402
from server import SGLANG, ServerStartError, running_router, running_server  # noqa: E402

EXIT_SERVER = 4


def main() -> int:
    """Start the server, run the tests that need it, stop it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", choices=ARCHITECTURES[:2], default=ARCHITECTURES[0])
    parser.add_argument("pytest_arguments", nargs="*", help="passed to pytest, after --")
    options = parser.parse_args()
    model = model_folder(options.arch)
    logs = cache_root() / "logs"
    try:
        with (
            running_server(SGLANG, model, logs / f"sglang-slime-{options.arch}.log") as worker,
            # To abort, slime asks the router for the list of servers.
            running_router(ensure_environment(SLIME), worker, logs / "sglang-router.log") as url,
        ):
            tests = "tests/contracts/slime/test_slime_real_server.py"
            command = [sys.executable, str(ROOT / "scripts" / "contracts" / "run.py"), "slime"]
            return subprocess.run(
                [*command, "--", tests, "-k", "real_server", *options.pytest_arguments],
                env={**os.environ, "ENVKIT_SGLANG_URL": url, "ENVKIT_SGLANG_MODEL": str(model)},
                check=False,
            ).returncode
    except ServerStartError as error:
        say("slime", f"the server did not start: {error}")
        return EXIT_SERVER


if __name__ == "__main__":
    sys.exit(main())
