"""Settings of the whole test run, made before torch is imported."""

import contextlib
import importlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spin-waiting threads starve a shared machine
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Before a command calls gc.freeze: behind it hypothesis takes the random generators of a plugin for
# lost, and a run without a property test would end in its warning.
with contextlib.suppress(ImportError):
    importlib.import_module("hypothesis")
