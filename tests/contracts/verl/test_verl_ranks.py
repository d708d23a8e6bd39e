"""verl's real training engine over two data-parallel ranks, against the plain formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.gradients import Policy
from fakes.gradients.suite import measure, plain_gradient
from fakes.verl_ranks import CASES, SETS, rank
from torch.multiprocessing.spawn import spawn


def test_verl_engine_computes_the_plain_gradient_on_two_ranks(tmp_path: Path) -> None:
    """Advantages, padding, token counts over ranks and the averaged gradient are all verl's own."""
    model: Any = Policy().model
    model.save_pretrained(tmp_path / "model")
    spawn(rank, args=(2, str(tmp_path)), nprocs=2)
    found = np.load(tmp_path / "found.npz")
    assert len(found) == len(SETS) * len(CASES) - 1
    for case in CASES:
        for name in SETS:
            key = f"{name}|{case.name}"
            if key in found:
                cosine, ratio = measure(found[key], plain_gradient(name, case))
                assert (cosine, ratio) == pytest.approx((1.0, 1.0), abs=1e-4), key
                assert cosine > 1 - 1e-6, key
