"""Random histories: every sampled token keeps one owner through rewrites, forks and resumes."""

from collections import Counter

import pytest
from fakes.budget import examples
from fakes.history_campaign import OPERATIONS, run_family
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(1_000_000, 2**31), operations=st.integers(5, 40))
def test_history_keeps_one_owner_for_each_token(seed: int, operations: int) -> None:
    run_family(seed, Counter(), operations)


@pytest.mark.slow
def test_history_keeps_one_owner_over_many_families() -> None:
    counts: Counter[str] = Counter()
    for seed in range(300):
        run_family(seed, counts)
    assert all(counts[name] for name in OPERATIONS)
    assert sum(counts[name] for name in OPERATIONS) >= 12_000
