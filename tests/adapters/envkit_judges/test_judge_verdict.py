"""Reading a judge's reply and a server's refusal: exactly, or with a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from envkit_chat import status_fault
from envkit_judges import Criterion, MalformedJudgement, read_verdict
from envkit_judges.verdict import schema_of

CRITERIA = (Criterion(name="a", text="A."), Criterion(name="b", text="B.", best=3))
GOOD = '{"reason": "so", "scores": {"a": 7, "b": 0}}'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "reason": st.text() | JSON,
        "scores": st.dictionaries(st.sampled_from("abc"), st.integers(-1, 11) | JSON),
        "more": JSON,
    },
)


@pytest.mark.parametrize("frame", ["{}", " \n{}\n", "```json\n{}\n```", "<think>8?</think>{}"])
def test_a_verdict_is_read(frame: str) -> None:
    verdict = read_verdict(frame.replace("{}", GOOD), CRITERIA)

    assert dict(verdict.scores) == {"a": 7, "b": 0}
    assert verdict.reason == "so"


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ("", "one JSON object and nothing else"),
        ("I give it a 7.", "one JSON object and nothing else"),
        (f"Here it is: {GOOD}", "one JSON object and nothing else"),
        (f"{GOOD} {GOOD}", "one JSON object and nothing else"),
        (GOOD[:-3], "one JSON object and nothing else"),
        ("[" * 100_000, "one JSON object and nothing else"),
        ("9" * 10_000, "one JSON object and nothing else"),
        (f"[{GOOD}]", "must be a JSON object"),
        ('{"reason": "so", "reason": "", "scores": {}}', "a key is repeated"),
        ('{"reason": "so", "scores": {"a": NaN, "b": 0}}', "NaN is not valid JSON"),
        ('{"scores": {"a": 7, "b": 0}}', r"lacks the keys \['reason'\]"),
        ('{"reason": "so", "scores": {"a": 7}}', r"lacks the keys \['b'\]"),
        ('{"reason": "so", "scores": {"a": 7, "b": 0, "c": 1}}', "unexpected keys"),
        ('{"reason": 1, "scores": {"a": 7, "b": 0}}', "'reason' must be a string"),
        ('{"reason": "so", "scores": [7, 0]}', "'scores' must be an object"),
        ('{"reason": "so", "scores": {"a": true, "b": 0}}', "must be a whole number"),
        ('{"reason": "so", "scores": {"a": 7.5, "b": 0}}', "must be a whole number"),
        ('{"reason": "so", "scores": {"a": "7", "b": 0}}', "must be a whole number"),
        ('{"reason": "so", "scores": {"a": -1, "b": 0}}', "must be 0 to 10"),
        ('{"reason": "so", "scores": {"a": 7, "b": 4}}', "must be 0 to 3"),
    ],
)
def test_anything_else_is_malformed(reply: str, sentence: str) -> None:
    with pytest.raises(MalformedJudgement, match=sentence):
        read_verdict(reply, CRITERIA)


@given(st.text() | JSON.map(json.dumps) | NEARLY.map(json.dumps))
@pytest.mark.slow
def test_reading_agrees_with_the_schema_that_servers_get(reply: str) -> None:
    try:
        verdict = read_verdict(reply, CRITERIA)
    except MalformedJudgement:
        try:
            value = json.loads(reply)
        except ValueError:
            return
        valid = Draft202012Validator(schema_of(CRITERIA)).is_valid(value)
        # JSON Schema counts 7.0 as an integer; a verdict does not.
        assert not valid or any(isinstance(score, float) for score in value["scores"].values())
        return
    assert Draft202012Validator(schema_of(CRITERIA)).is_valid(json.loads(reply))
    assert set(verdict.scores) == {"a", "b"}


@given(st.integers(0, 10), st.integers(0, 3), st.text())
def test_every_valid_verdict_survives(a: int, b: int, reason: str) -> None:
    reply = json.dumps({"scores": {"b": b, "a": a}, "reason": reason})

    verdict = read_verdict(reply, CRITERIA)

    assert (dict(verdict.scores), verdict.reason) == ({"a": a, "b": b}, reason)


@pytest.mark.parametrize(
    ("status", "code", "is_retryable"),
    [
        (400, None, False),
        (401, "invalid_api_key", False),
        (403, None, False),
        (404, "model_not_found", False),
        (408, None, True),
        (429, "rate_limit_exceeded", True),
        (429, "insufficient_quota", False),
        (500, None, True),
        (503, None, True),
        (529, None, True),
    ],
)
def test_a_status_is_worth_a_retry_or_not(
    status: int, code: str | None, is_retryable: bool
) -> None:
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()

    fault = status_fault(status, {"Retry-After": "1"}, body, advice={})

    assert fault.retryable is is_retryable
    assert fault.retry_after_s == (1.0 if is_retryable else None)


@given(st.integers(201, 599), st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_error_body_raises_and_none_shows_the_key(status: int, body: bytes) -> None:
    leaky: Any = json.dumps({"error": {"message": "bad key sk-123"}}).encode()

    assert str(status_fault(status, {}, body, advice={})).startswith(f"HTTP {status}")
    assert "sk-123" not in str(status_fault(status, {}, leaky, secret="sk-123", advice={}))
