"""The folder of an evaluation, as the viewer reads it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fakes.marked_runs import grouped_run

from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME

VARIANTS = ("none", "blank-image")


def estimate(mean: float, **more: float) -> dict[str, Any]:
    return {"mean": mean, "interval": {"low": mean - 0.2, "high": mean + 0.2}, **more}


def line(env_id: str, mean: float) -> dict[str, Any]:
    return {
        **{"env_id": env_id, "tag": None, "value": None, "tasks": 3, "episodes": 12, "faulted": 0},
        **{"success": estimate(mean), "reward": estimate(mean), "pass_at": {"1": estimate(mean)}},
        **{"turns": 2.0, "seconds": 1.0},
    }


def write_evaluation_folder(folder: Path, variants: Sequence[str] = VARIANTS) -> Path:
    """Write runs and an `eval.json` that compares each variant with the first."""
    env_id = grouped_run(groups=1)[0].env_id
    names = {variant: f"world-{variant}" for variant in variants}
    for name in names.values():
        save(grouped_run(groups=3), folder / name / FILE_NAME)
    difference = {
        **{"env_id": env_id, "unpaired": 1, "better": 0, "worse": 2, "tied": 1, "p_value": 0.0004},
        **{"success": estimate(-0.4, seeds=3), "reward": estimate(-0.5, seeds=3)},
        **{"turns": estimate(0.0, seeds=3), "reply_tokens": estimate(2.0, seeds=3)},
    }
    first, *others = variants
    document = {
        **{"schema": 2, "counting": {}, "is_complete": True, "runs": dict.fromkeys(names.values())},
        "lines": [line(f"{env_id} {one}", 0.3 + 0.2 * n) for n, one in enumerate(variants)],
        "variants": [
            {"first": first, "first_run": names[first], "variant": one, "run": names[one],
             "difference": difference}
            for one in others
        ],
    }  # fmt: skip
    (folder / "eval.json").write_text(json.dumps(document))
    return folder
