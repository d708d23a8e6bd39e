"""Real agents' packages, or no test of this folder at all."""

import importlib.util

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("langgraph") is None
):  # `make contract-clients` has an environment with it
    collect_ignore_glob.append("test_*.py")
