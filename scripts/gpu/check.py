"""Check the embedded engine on a GPU, without installing envkit.

    python scripts/gpu/wheels.py build/wheels       # on a machine with a package index
    python scripts/gpu/check.py --wheels build/wheels --out build/gpu.json

The machine needs a checkout, Python 3.12, torch, transformers, pillow and the folder of wheels. The
JSON is written after each part. `--small` runs every part in tiny sizes on a CPU.
"""

import argparse
import gc
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 240.0
"""Default budget of all parts together."""
PARTS: Final = {
    "exact": ("parts_engine:compare_exactly", 0.2),
    "seeing": ("parts_canary:see", 0.15),
    "learning": ("parts_canary:learn", 0.3),
    "speed": ("parts_engine:compare_speed", 0.35),
}
"""In order: function and share of the budget. Later parts get the time that a part leaves."""

Figures = dict[str, Any]


class OverBudgetError(KeyboardInterrupt):
    """A part ran past its budget.

    A KeyboardInterrupt, because asyncio catches every other exception that a signal raises.
    """


def find_packages(wheels: Path | None, unpacked: Path) -> None:
    """Make the checkout importable, and the wheels where the machine lacks a package.

    Raises:
        SystemExit: The folder holds no wheel.
    """
    folders = ("scripts/gpu", "examples", "adapters", "envs", "")
    sys.path[:0] = [str(ROOT / name) for name in folders]
    if wheels is None:
        return
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise SystemExit(f"--wheels must name a folder with wheels, got none in {wheels}")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    sys.path.append(str(unpacked))


def machine() -> Figures:
    """Return what the figures depend on."""
    import torch
    import transformers

    has_card = torch.cuda.is_available()
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "card": torch.cuda.get_device_name(0) if has_card else None,
        "device": "cuda" if has_card else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit.stdout.strip() or None,
    }


def run_part(name: str, figures: Figures, *, device: str, small: bool, budget: float) -> bool:
    """Run a part within its budget in seconds; return whether it completed.

    A part fills its figures as it measures them, so that one cut short keeps what it has.
    """

    def stop(number: int, frame: object) -> None:
        raise OverBudgetError

    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(budget, 0.001))
            # Imported here: an import that fails must not cost the other parts.
            module, function = PARTS[name][0].split(":")
            getattr(importlib.import_module(module), function)(figures, device=device, small=small)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except OverBudgetError:
        figures["error"] = (
            f"over budget: stopped after {max(budget, 0):.0f} s; raise it with --seconds"
        )
    except Exception as error:  # noqa: BLE001  # a failed part must not cost the others
        traceback.print_exc()
        figures["error"] = f"{type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGALRM, before)
        figures["seconds"] = time.monotonic() - begun
    return "error" not in figures


def run_parts(options: argparse.Namespace, begun: float) -> int:
    """Run the chosen parts and write the JSON after each; returns the exit status."""
    import torch

    found: Figures = {"small": options.small, **machine(), "parts": {}}
    if options.small:
        torch.set_num_threads(1)
        found["device"] = "cpu"
    chosen = [name for name in PARTS if name in options.only and name not in options.skip]
    failed = False
    for number, name in enumerate(chosen):
        left = options.seconds - (time.monotonic() - begun)
        budget = left * PARTS[name][1] / sum(PARTS[later][1] for later in chosen[number:])
        figures: Figures = {}
        found["parts"][name] = figures
        fine = run_part(name, figures, device=found["device"], small=options.small, budget=budget)
        failed = failed or not fine
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {json.dumps(figures)}\n")
        sys.stdout.flush()
        gc.collect()
        if found["device"] == "cuda":
            torch.cuda.empty_cache()
    return int(failed)


def main() -> int:
    """Parse the options and run the parts; returns the exit status."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="default: gpu.json")
    parser.add_argument("--wheels", type=Path, help="folder that wheels.py filled")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--skip", nargs="+", choices=list(PARTS), default=[])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="budget of all parts")
    parser.add_argument("--small", action="store_true", help="tiny sizes on a CPU")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        find_packages(options.wheels, Path(unpacked))
        return run_parts(options, begun)


if __name__ == "__main__":
    sys.exit(main())
