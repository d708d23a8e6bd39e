"""OpenEnv's real package, or no test of this folder at all."""

import importlib.util

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("openenv") is None
):  # `make contract-openenv` provides an environment with it
    collect_ignore_glob.append("test_*.py")
