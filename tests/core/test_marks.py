"""The contract of `info["marks"]`: what is refused, the words, and rescaling."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.marks import (
    MAX_MARKS,
    MAX_TEXT_BYTES,
    actions_in,
    clip,
    mark_problems,
    scale_marks,
    words,
)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ({"kind": "click", "x": 409, "y": 257}, "click 409, 257"),
        ({"kind": "click", "x": 1, "y": 2, "button": "right"}, "right click 1, 2"),
        ({"kind": "click", "x": 1, "y": 2, "keys": ["ctrl"]}, "click 1, 2 with ctrl"),
        ({"kind": "double_click", "x": 1, "y": 2.5}, "double click 1, 2.5"),
        ({"kind": "drag", "path": [[1, 2], [3, 4]]}, "drag 1, 2 \u2192 3, 4"),
        ({"kind": "scroll", "x": 5, "y": 6, "dx": 0, "dy": -120}, "scroll up 120 at 5, 6"),
        ({"kind": "type", "text": "a\nb", "x": 1, "y": 2}, "type \u201ca\u23ceb\u201d"),
        ({"kind": "key", "keys": ["ctrl", "c"]}, "press ctrl + c"),
        ({"kind": "box", "box": [1, 2, 3, 4], "label": "zoom"}, "zoom 1, 2, 3, 4"),
        ({"kind": "answer", "text": "12"}, "answer \u201c12\u201d"),
        ({"kind": "terminate", "status": "failure"}, "terminate: failure"),
        ({"kind": "wait", "seconds": 2}, "wait 2 s"),
        ({"kind": "call", "label": "search", "text": "who"}, "search \u201cwho\u201d"),
        ({"kind": "pinch_out", "x": 3, "y": 4}, "pinch out 3, 4"),
        ({"kind": "click", "x": 1, "y": 2, "ok": False}, "click 1, 2 (no effect)"),
        ({"kind": "wait", "seconds": 1, "ok": False, "note": "late"}, "wait 1 s (late)"),
        ({"kind": "wait", "seconds": 1, "agent": "b"}, "b: wait 1 s"),
    ],
)
def test_words_say_a_mark_on_one_line(mark: dict[str, Any], said: str) -> None:
    assert list(mark_problems([mark])) == []
    assert words(mark) == said


@pytest.mark.parametrize(
    ("marks", "rule"),
    [
        (None, "must be a list"),
        ([3], "must be a dict"),
        ([{}], "must name its 'kind'"),
        ([{"kind": "click", "x": 1}], "must have the keys ['y']"),
        ([{"kind": "tap", "x": 1}], "must have 'x' and 'y', or neither"),
        ([{"kind": "click", "x": "1", "y": 2}], "['x'] must be a finite number"),
        ([{"kind": "click", "x": True, "y": 2}], "['x'] must be a finite number"),
        ([{"kind": "click", "x": float("nan"), "y": 2}], "['x'] must be a finite number"),
        ([{"kind": "drag", "path": []}], "['path'] must be"),
        ([{"kind": "drag", "path": [[1]]}], "['path'] must be"),
        ([{"kind": "box", "box": [3, 0, 1, 1]}], "['box'] must be"),
        ([{"kind": "key", "keys": "ctrl"}], "['keys'] must be"),
        ([{"kind": "wait", "seconds": -1}], "['seconds'] must be"),
        ([{"kind": "tap", "image": -1}], "['image'] must be"),
        ([{"kind": "tap", "ok": 1}], "['ok'] must be"),
        ([{"kind": "tap", "note": "why"}], "has a 'note'"),
        ([{"kind": "type", "text": "\u00e9" * MAX_TEXT_BYTES}], "at most 4096 bytes"),
        ([{"kind": "tap"}] * (MAX_MARKS + 1), "at most 64 marks"),
    ],
)
def test_wrong_marks_are_named_with_the_rule(marks: object, rule: str) -> None:
    assert rule in "\n".join(mark_problems(marks))


@given(st.text(), st.integers(3, 50))
def test_clip_keeps_a_text_within_its_bytes(text: str, most: int) -> None:
    kept = clip(text, most)
    assert len(kept.encode("utf-8", "replace")) <= most
    assert kept == text or kept.endswith("...")


def test_scaled_marks_keep_their_shape_and_leave_the_originals() -> None:
    marks = [
        {"kind": "click", "x": 10, "y": 20},
        {"kind": "drag", "path": [[1, 2], [3, 4]]},
        {"kind": "box", "box": [0, 0, 10, 10], "label": "zoom"},
        {"kind": "answer", "text": "x"},
    ]
    assert scale_marks(marks, 0.5, 2) == [
        {"kind": "click", "x": 5, "y": 40},
        {"kind": "drag", "path": [[0.5, 4], [1.5, 8]]},
        {"kind": "box", "box": [0, 0, 5, 20], "label": "zoom"},
        {"kind": "answer", "text": "x"},
    ]
    assert marks[0]["x"] == 10
    with pytest.raises(ConfigurationError, match="above 0, got 0"):
        scale_marks(marks, 0)


@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids=["large", "unprintable"])
def test_number_beyond_floats_is_a_problem_and_raises_nothing(value: int) -> None:
    mark = {"kind": "click", "x": value, "y": 1}
    (problem,) = mark_problems([mark])
    assert "must be a finite number of pixels" in problem
    assert actions_in({"marks": [mark]}) == ["unreadable mark"]


def test_deep_data_in_an_unknown_key_raises_nothing() -> None:
    deep: Any = "end"
    for _ in range(50_000):
        deep = [deep]
    assert actions_in({"marks": [{"kind": "dance", "steps": deep}]}) == ["dance"]
