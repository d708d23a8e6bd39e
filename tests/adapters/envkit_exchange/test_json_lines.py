"""Rows as JSON lines: what a line may hold, and how it is written."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envkit.errors import StorageError
from envkit_exchange.tables import write_table


def test_json_lines_are_ascii_and_hold_any_number_of_any_type(tmp_path: Path) -> None:
    rows = [
        {"text": "Straße\u2028\ud800", "ids": [0, 2**80], "logprobs": (-1e-07, np.float64(0.5))},
        {"text": "plain", "ids": [], "logprobs": [-0.1, -0.0, 1]},
    ]
    write_table(rows, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_bytes()
    assert lines.isascii()
    found = [json.loads(line) for line in lines.splitlines()]
    assert found == [{**row, "logprobs": list(row["logprobs"])} for row in rows]
    assert math.copysign(1, found[1]["logprobs"][1]) == -1


@pytest.mark.parametrize(
    "value", [math.nan, [0.5, math.inf], [[1, -math.inf]], b"bytes", [{1, 2}], {"a": np.int64(1)}]
)
def test_json_lines_take_nothing_that_json_cannot_hold(value: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a row is not valid JSON: .*; write \.parquet instead"):
        write_table([{"value": value}], tmp_path / "rows.jsonl")
    assert not [*tmp_path.iterdir()]
