"""The real packages of Gymnasium's worlds, or no test of this folder at all."""

import importlib.util

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("minigrid") is None:  # `make contract-worlds` provides them
    collect_ignore_glob.append("test_*.py")
