"""The example that learns: everything that the long run does, in two steps."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from fakes.grpo_trainer import prepare

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore")]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(("options", "prefix"), [([], ""), (["--half"], "half-")])
def test_trl_example_trains_and_evaluates_with_and_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], prefix: str
) -> None:
    prepare()
    script = EXAMPLES / "learn_canary_trl.py"
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    figures = json.loads((tmp_path / f"{prefix}canary-seed0.json").read_text())
    assert figures["changed"] == figures["tensors"] > 0
    assert len(figures["rewards"]) == len(figures["mismatch"]) == 2
    assert all(largest < 1e-4 for largest, _ in figures["mismatch"])
    assert set(figures["end"]) == {"images", "blank", "swapped"}
    assert "<svg" in (tmp_path / "canary.svg").read_text()
