"""The datasets library, or no test of this folder at all."""

import importlib.util

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("datasets") is None
):  # `make contract-readers-oldest` provides an environment with it
    collect_ignore_glob.append("test_*.py")
