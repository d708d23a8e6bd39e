"""Actions as models write them."""

import random
from typing import Any

import pytest

from envkit.reply import Reply
from envkit_visual.catalogue import WORLDS
from envkit_visual.replies import ActionForm, read_action


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("<action>up</action>", "up"),
        ("<action>up</action> or <action>left</action>", "left"),
        ("<action>up</action> </action>", "up"),
        ("<action>up</action> <action>left", "up"),
        ("<action>I write <action>up</action>", "up"),
        ("<action>\n up,\n left </action>", "up, left"),
        ("<action>B.</action>", "B"),
        ("<action>`B3 star`</action>", "B3 star"),
        ('<action>"4:07"</action>', "4:07"),
        ("<action>**36.5**</action>", "36.5"),
        ("<action>A \u22123</action>", "A -3"),
        ("<action>(3, 1)</action>", "3, 1"),
    ],
)
def test_last_action_is_read_without_what_is_around_it(reply: str, text: str) -> None:
    written = read_action(Reply(text=reply), ActionForm.TAGS)
    assert (written.text, written.error) == (text, None)


@pytest.mark.parametrize(
    "reply", ["", "up", "<action>up", "</action>up<action>", "<action>.</action>"]
)
def test_reply_without_an_action_is_refused(reply: str) -> None:
    assert read_action(Reply(text=reply), ActionForm.TAGS).error is not None


def test_many_tags_are_read_once() -> None:
    """A pattern took 12 seconds for a tenth of this."""
    assert read_action(Reply(text="<action>" * 125_000), ActionForm.TAGS).error is not None


@pytest.mark.parametrize(
    "name", ["hanoi", "pegs", "rush", "sudoku", "colour", "tune", "tint", "stack", "pairs"]
)
def test_two_parts_of_an_action_may_have_a_comma_between_them(name: str) -> None:
    world: Any = WORLDS[name]()
    state = world.create(random.Random(1), world.levels[0])
    action = world.plan(state)[0]
    outcome = world.act(state, action)
    assert outcome.error is None
    assert world.act(state, action.replace(" ", ", ")) == outcome
