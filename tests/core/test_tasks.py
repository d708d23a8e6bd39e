"""Task sources: rows by index, and the draw."""

import numpy as np
import pytest

from envkit.errors import ConfigurationError, DatasetError
from envkit.tasks import ENDLESS_INDEX_LIMIT, ListSource, Task, TaskSource, draw_index


class Endless:
    size = None

    def task(self, index: int) -> Task:
        return {"index": index}


def test_list_source_gives_deep_copies() -> None:
    source = ListSource([{"points": [1, 2]}])

    source.task(0)["points"].append(3)

    assert source.task(0) == {"points": [1, 2]}
    assert isinstance(source, TaskSource)


def test_list_source_refuses_no_rows_and_wrong_indices() -> None:
    with pytest.raises(DatasetError, match="at least one row"):
        ListSource([])
    for index in (-1, 1):
        with pytest.raises(ConfigurationError, match=f"from 0 to 0, got {index}"):
            ListSource([{}]).task(index)


def test_draw_covers_a_sized_source_and_repeats_by_seed() -> None:
    source = ListSource([{"n": n} for n in range(5)])
    rng = np.random.default_rng(3)

    assert {draw_index(source, rng) for _ in range(200)} == {0, 1, 2, 3, 4}
    first, second = (draw_index(source, np.random.default_rng(7)) for _ in range(2))
    assert first == second


def test_draw_from_an_endless_source_survives_a_float() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_index(Endless(), rng) for _ in range(100)]

    assert len(set(drawn)) == 100
    assert all(0 <= index < ENDLESS_INDEX_LIMIT and int(float(index)) == index for index in drawn)
