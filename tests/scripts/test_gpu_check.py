"""The script that checks the embedded engine on a GPU, in its small form on this CPU."""

import importlib.util
import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fakes import needs
from fakes.processes import run_python

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu" / "check.py"
pytestmark = [pytest.mark.slow, needs.TORCH.mark]

BROKEN = """
import asyncio

def fail(figures, *, device, small):
    figures["measured"] = 1
    raise ValueError("no such shape")

def hang(figures, *, device, small):
    figures["measured"] = 2
    asyncio.run(asyncio.sleep(60))

def succeed(figures, *, device, small):
    figures["device"] = device
"""


def test_gpu_check_runs_every_part_small_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "made" / "gpu.json"
    run_python(SCRIPT, "--small", "--out", out)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["small"] is True
    assert found["device"] == "cpu"
    assert {"card", "torch", "transformers", "python", "commit"} <= set(found)
    parts = found["parts"]
    assert list(parts) == ["exact", "seeing", "learning", "speed"]

    for dtype, limit in (("float32", 1e-4), ("bfloat16", 0.1)):
        for name, figures in parts["exact"][dtype].items():
            assert 0 < figures["mean_difference"] <= figures["largest_difference"] < limit, name
            assert figures["distinct_tokens"] > 5
    greedy = parts["exact"]["float32"]["greedy"]
    assert greedy["same_ids"] == greedy["tokens"] == 36

    seen = parts["seeing"]["cpu"]["rewards"]
    assert seen["images"] > 0.9
    assert seen["blank"] == seen["swapped"] == 0.0
    assert set(parts["seeing"]["changed_rewards"].values()) == {0}

    learned = parts["learning"]
    assert learned["steps"] == len(learned["rewards"]) == 3
    assert learned["largest_mismatch"] < 1e-4
    for rewards in (learned["before"], learned["after"]):
        assert list(rewards) == ["images", "blank", "swapped"]
        assert all(0 <= reward <= 1 for reward in rewards.values())
    assert learned["before"]["images"] > learned["before"]["blank"]

    speed = parts["speed"]
    assert speed["same_first_replies"] == speed["same_conversations"] == 3
    assert speed["engine"]["tokens_per_second"] == 4 * speed["engine"]["turns_per_second"]
    assert speed["generate"]["seconds"] > 0


def test_gpu_check_records_a_part_that_fails_or_hangs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    check: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    (tmp_path / "gpu_broken_parts.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"absent": "gpu_no_module:run", "fail": "", "hang": "", "succeed": "", "skipped": ""}
    shares = {"hang": 0.01}  # of a budget that even a stalled machine keeps in the other parts
    parts = {
        name: (at or f"gpu_broken_parts:{name}", shares.get(name, 0.3))
        for name, at in names.items()
    }
    monkeypatch.setattr(check, "PARTS", parts)
    out = tmp_path / "gpu.json"
    options = Namespace(only=list(names), skip=["skipped"], seconds=60.0, small=True, out=out)

    assert check.run_parts(options, time.monotonic()) == 1

    found = json.loads(out.read_text(encoding="utf-8"))["parts"]
    assert list(found) == ["absent", "fail", "hang", "succeed"]
    assert found["absent"]["error"] == "ModuleNotFoundError: No module named 'gpu_no_module'"
    assert found["fail"]["error"] == "ValueError: no such shape"
    assert found["fail"]["measured"] == 1
    assert found["hang"]["error"].startswith("over budget: ")
    assert found["hang"]["measured"] == 2
    assert "error" not in found["succeed"]
    assert found["succeed"]["device"] == "cpu"


def test_gpu_check_needs_wheels_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--wheels", str(tmp_path), "--out", str(tmp_path / "x.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"--wheels must name a folder with wheels, got none in {tmp_path}" in done.stderr
