"""Deltas against full renders, for every fetched template."""

from typing import Any

import pytest
from fakes.budget import examples
from fakes.matrix import share
from fakes.templates import CHATML_SPECS, OTHER_SPECS, SPECS
from fakes.templates_checks import (
    check_append_only_ledger,
    check_deltas,
    check_rewriting_has_a_witness,
)
from hypothesis import given, settings
from hypothesis import strategies as st

CHATML, OTHERS = ([spec.name for spec in specs] for specs in (CHATML_SPECS, OTHER_SPECS))


@pytest.mark.parametrize("name", [*CHATML, *share(OTHERS, of=3)])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_codec_delta_equals_the_full_render_invariant_3(name: str, data: Any) -> None:
    check_deltas(name, data)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if not spec.rewrites])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_codec_ledger_is_append_only_where_the_audit_says_invariant_4(name: str, data: Any) -> None:
    check_append_only_ledger(name, data)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.rewrites])
def test_audit_says_that_history_is_rewritten_only_where_it_is(name: str) -> None:
    check_rewriting_has_a_witness(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_codec_equals_the_full_render_at_length(name: str, data: Any) -> None:
    check_deltas(name, data)
    if not SPECS[name].rewrites:
        check_append_only_ledger(name, data)
