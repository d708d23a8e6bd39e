"""What the scripted customer of `dialogue-v0` understands."""

from pathlib import Path

import pytest
from fakes.budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit_dialogue.hearing import Act, hear

HERE = Path(__file__).parent
ROWS = [line.split("\t") for line in (HERE / "heard.tsv").read_text().splitlines()]
"""Acts, joined by "+", and a sentence. Another person than the reader's author wrote them."""
MORE = [line.split("\t") for line in (HERE / "phrased.tsv").read_text().splitlines()]
"""The same by the reader's author."""


def acts_of(text: str) -> set[str]:
    return {act.value for act in hear(text)}


@pytest.mark.parametrize("rows", [ROWS, MORE], ids=["heard", "phrased"])
def test_at_least_95_percent_of_the_listed_sentences_are_understood(rows: list[list[str]]) -> None:
    wrong = [(acts, text) for acts, text in rows if acts_of(text) != set(acts.split("+"))]
    assert len(rows) >= 200
    assert len(wrong) <= 0.05 * len(rows), wrong


@pytest.mark.parametrize(
    ("text", "acts"),
    [
        ("How is the weather where you live?", {Act.CHAT}),
        ("May or June order?", {Act.ORDER}),
        ("refund, where should that go", {Act.REFUND}),
        ("Is it OK if I keep the number of your picture frame order?", set[Act]()),
        ("I can not find your account without the email.", set[Act]()),
        ("The new address is saved. Anything else?", {Act.DONE, Act.ELSE}),
        ("I see the crack in the photo, thank you.", set[Act]()),
        ("", set[Act]()),
    ],
)
def test_sentences_that_were_once_misread(text: str, acts: set[Act]) -> None:
    facts = {Act.EMAIL, Act.NAME, Act.ADDRESS, Act.PICTURE, Act.REFUND, Act.ITEM}
    if acts:
        assert set(hear(text)) == acts
    else:
        assert not set(hear(text)) & facts


def test_marks_and_case_do_not_matter() -> None:
    for acts, text in ROWS[:60]:
        assert acts_of(text.upper()) == acts_of(text)
        assert acts_of(text.replace("'", "\u2019")) == acts_of(text), acts


@settings(max_examples=examples(50), deadline=None)
@given(st.text(max_size=100))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert len(set(hear(text))) == len(hear(text))


def test_a_huge_message_is_read_in_its_first_part() -> None:
    assert hear("What is your name? " + "x " * 1_000_000) == (Act.NAME,)
    assert hear(", " * 1_000_000) == (Act.CHAT,)
