"""The check of an engine's answer: each rule at its limit."""

import asyncio
import math
import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World, say_turn
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EngineFault, LedgerFault
from envkit.faults import FaultPlan
from envkit.rollout import RetryBudget, ScriptedEngine, play
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, Sampling
from envkit.rollout.generation import checked
from envkit.rollout.stopping import check_end
from envkit.trajectory import StopReason
from envkit.trajectory.segment import LOGPROB_SLACK

VOCABULARY, PROMPT, BANNED = 100, 7, 50
COUNTS = 1 << 62
"""Exclusive upper bound of counts."""
EXTRAS_BYTES = 268_435_456
EXTRAS_DEPTH = 32
INTEGER_BITS = 128
NUMBER_BYTES = 8
REQUEST = GenerateRequest(
    request_id="r",
    session_id="s",
    wire_ids=(1,) * PROMPT,
    images=(),
    train_length=PROMPT,
    sampling=Sampling(banned_ids=(BANNED,)),
)


def answer(**fields: Any) -> Generation:
    sound = Generation(
        token_ids=(3, 4),
        logprobs=(-0.5, -0.25),
        finish_reason=FinishReason.STOP,
        prompt_tokens=PROMPT,
        cached_tokens=5,
        weight_version="7",
        queue_seconds=0.5,
    )
    return replace(sound, **fields)


def read(**fields: Any) -> Generation:
    return checked(answer(**fields), REQUEST, engine="e", vocabulary_size=VOCABULARY)[0]


def text_read(**fields: Any) -> Generation:
    given = {"text": "yes", "text_tokens": 2, "token_ids": (), "logprobs": (), **fields}
    generation, clamped = checked(answer(**given), REQUEST, engine="e", vocabulary_size=None)
    assert clamped == 0
    return generation


def must_return(what: str) -> str:
    return f"engine 'e' must return {what}, got "


class Foreign:
    """A number of another library, such as a tensor of one element."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value

    def __float__(self) -> float:
        return self._value


class Index:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


class Text(str):
    """A text of another library."""

    __slots__ = ()


def test_answer_that_is_plain_comes_back_equal() -> None:
    assert checked(answer(), REQUEST, engine="e", vocabulary_size=VOCABULARY) == (answer(), 0)
    empty = answer(weight_version=None, cached_tokens=0, queue_seconds=0.0)
    assert read(weight_version=None, cached_tokens=0, queue_seconds=0.0) == empty


def test_answer_that_is_plain_is_not_copied() -> None:
    sound = answer()
    found = read(token_ids=sound.token_ids, logprobs=sound.logprobs)
    assert found.token_ids is sound.token_ids
    assert found.logprobs is sound.logprobs


def test_answer_of_another_type_names_the_engine_and_the_type() -> None:
    with pytest.raises(EngineFault, match=r"engine 'e' must return a Generation, got .*dict"):
        checked({}, REQUEST, engine="e", vocabulary_size=VOCABULARY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", [3, 4]),
        ("token_ids", np.array([3, 4], np.int32)),
        ("token_ids", (np.int64(3), 4)),
        ("token_ids", (Index(3), 4)),
        ("logprobs", [-0.5, -0.25]),
        ("logprobs", np.array([-0.5, -0.25], np.float32)),
        ("logprobs", (np.float32(-0.5), Foreign(-0.25))),
        ("finish_reason", "stop"),
        ("finish_reason", Text("stop")),
        ("prompt_tokens", np.int64(PROMPT)),
        ("cached_tokens", np.int32(5)),
        ("cached_tokens", Index(5)),
        ("queue_seconds", np.float32(0.5)),
        ("queue_seconds", Foreign(0.5)),
        ("extras", MappingProxyType({})),
    ],
)
def test_answer_of_foreign_numbers_comes_back_in_plain_types(field: str, value: Any) -> None:
    found, plain = getattr(read(**{field: value}), field), getattr(answer(), field)
    assert found == plain
    assert type(found) is type(plain)
    if isinstance(plain, tuple):
        assert list(map(type, found)) == list(map(type, plain))


def test_answer_keeps_its_extras_in_a_mapping_of_its_own() -> None:
    extras = {"a": [1, "b"]}
    found = read(extras=extras).extras
    assert found == extras
    assert found is not extras
    assert read().extras == {}


@pytest.mark.parametrize(
    "value", ["34", b"\3\4", bytearray(b"\3\4"), {3: 1, 4: 2}, {3, 4}, 7, None]
)
def test_column_is_a_sequence_of_numbers(value: Any) -> None:
    with pytest.raises(EngineFault, match=must_return("integers as token_ids")):
        read(token_ids=value)
    with pytest.raises(EngineFault, match=must_return("numbers as logprobs")):
        read(logprobs=value)


@pytest.mark.parametrize("entry", [True, np.bool_(True), "3", b"3", None, [3]])
def test_column_refuses_entries_of_another_type(entry: Any) -> None:
    with pytest.raises(EngineFault, match=must_return("integers as token_ids")):
        read(token_ids=(3, entry))
    with pytest.raises(EngineFault, match=must_return("numbers as logprobs")):
        read(logprobs=(-0.5, entry))


def test_column_has_one_axis() -> None:
    with pytest.raises(EngineFault, match=must_return("integers as token_ids")):
        read(token_ids=np.array([[3], [4]]))
    with pytest.raises(EngineFault, match=must_return("numbers as logprobs")):
        read(logprobs=np.array([[-0.5], [-0.25]]))


def test_token_ids_are_integers() -> None:
    with pytest.raises(EngineFault, match=must_return("integers as token_ids")):
        read(token_ids=(3.0, 4.0))


@given(first=at_limit(VOCABULARY) | st.just(-1), last=at_limit(VOCABULARY) | st.just(-1))
def test_sampled_ids_are_those_of_the_vocabulary(first: int, last: int) -> None:
    bad = [token for token in (first, last) if not 0 <= token < VOCABULARY]
    if not bad:
        assert read(token_ids=(first, last)).token_ids == (first, last)
        return
    with pytest.raises(LedgerFault, match=rf"below 100, got int: {min(bad)}\b|got int: {max(bad)}"):
        read(token_ids=(first, last))


def test_sampled_ids_of_media_placeholders_are_refused() -> None:
    with pytest.raises(LedgerFault, match=rf"media placeholders \[{BANNED}\]"):
        read(token_ids=(3, BANNED))


@pytest.mark.parametrize("logprobs", [(-0.5,), (-0.5, -0.5, -0.5), ()])
def test_logprobs_are_as_many_as_the_ids(logprobs: tuple[float, ...]) -> None:
    with pytest.raises(LedgerFault, match="one log-probability for each token, got 2 ids and"):
        read(logprobs=logprobs)


@pytest.mark.parametrize(
    ("value", "clamped"),
    [(-1e308, 0), (-1.5, 0), (-0.0, 0), (0.0, 0), (5e-324, 1), (LOGPROB_SLACK, 1)],
)
@pytest.mark.parametrize("place", [0, 1])
def test_logprob_above_zero_by_rounding_is_clamped(value: float, clamped: int, place: int) -> None:
    column = [-1e308, -1e308]
    column[place] = value
    found = checked(answer(logprobs=column), REQUEST, engine="e", vocabulary_size=VOCABULARY)
    assert found[1] == clamped
    assert found[0].logprobs == tuple(min(one, 0.0) for one in column)


@pytest.mark.parametrize(
    "value", [math.nextafter(LOGPROB_SLACK, 1), 0.5, math.inf, -math.inf, math.nan]
)
@pytest.mark.parametrize("place", [0, 1])
def test_logprob_beyond_the_rounding_is_refused(value: float, place: int) -> None:
    column = [0.0, 0.0]
    column[place] = value
    with pytest.raises(LedgerFault, match=f"at most 0 .*, got {value!r}"):
        read(logprobs=column)


@pytest.mark.parametrize("value", [None, "done", ["stop"], b"stop", 1])
def test_finish_reason_is_one_of_three(value: Any) -> None:
    for reason in FinishReason:
        assert read(finish_reason=reason).finish_reason is reason
    with pytest.raises(EngineFault, match=must_return("a FinishReason as finish_reason")):
        read(finish_reason=value)


@pytest.mark.parametrize("found", [0, PROMPT - 1, PROMPT + 1, None])
def test_prompt_is_the_ledgers(found: int | None) -> None:
    with pytest.raises(LedgerFault, match=f"saw a prompt of {found} tokens, but the ledger has 7"):
        read(prompt_tokens=found)


@pytest.mark.parametrize("found", [0, PROMPT - 1, PROMPT + 1])
def test_prompt_of_an_aborted_request_may_be_missing_but_must_not_differ(found: int) -> None:
    assert read(finish_reason="abort", prompt_tokens=None).prompt_tokens is None
    assert read(finish_reason="abort").prompt_tokens == PROMPT
    with pytest.raises(LedgerFault, match=f"saw a prompt of {found} tokens"):
        read(finish_reason="abort", prompt_tokens=found)


@pytest.mark.parametrize("reason", FinishReason)
def test_reply_without_a_token_is_an_abort(reason: FinishReason) -> None:
    if reason is FinishReason.ABORT:
        assert read(token_ids=(), logprobs=(), finish_reason=reason).token_ids == ()
        return
    with pytest.raises(LedgerFault, match="no token and no abort"):
        read(token_ids=(), logprobs=(), finish_reason=reason)


@pytest.mark.parametrize("value", [0, 1, COUNTS - 1])
def test_count_is_kept_up_to_its_limit(value: int) -> None:
    assert read(cached_tokens=value).cached_tokens == value
    assert text_read(text_tokens=value, prompt_tokens=value) == answer(
        text="yes", text_tokens=value, token_ids=(), logprobs=(), prompt_tokens=value
    )


@pytest.mark.parametrize("value", [-1, COUNTS, COUNTS + 1, True, 1.0, "1", None])
def test_count_beyond_its_limit_is_refused(value: Any) -> None:
    with pytest.raises(EngineFault, match=must_return("a count as cached_tokens")):
        read(cached_tokens=value)
    with pytest.raises(EngineFault, match=must_return("a count as cached_tokens")):
        text_read(cached_tokens=value)
    with pytest.raises(EngineFault, match=must_return("a count as text_tokens")):
        text_read(text_tokens=value)
    if value is not None:
        with pytest.raises(EngineFault, match=must_return("a count as prompt_tokens")):
            read(prompt_tokens=value)
        with pytest.raises(EngineFault, match=must_return("a count as prompt_tokens")):
            text_read(prompt_tokens=value)


@pytest.mark.parametrize("value", [0.0, 5e-324, 1.0, 1.7976931348623157e308])
def test_queue_seconds_are_kept_if_they_are_finite(value: float) -> None:
    assert read(queue_seconds=value).queue_seconds == value
    assert text_read(queue_seconds=value).queue_seconds == value


@pytest.mark.parametrize(
    "value", [-5e-324, -1.0, math.inf, -math.inf, math.nan, 10**400, True, "1", None]
)
def test_queue_seconds_that_are_not_a_duration_are_refused(value: Any) -> None:
    with pytest.raises(
        EngineFault, match=must_return("a finite number of at least 0 as queue_seconds")
    ):
        read(queue_seconds=value)
    with pytest.raises(
        EngineFault, match=must_return("a finite number of at least 0 as queue_seconds")
    ):
        text_read(queue_seconds=value)


@pytest.mark.parametrize("value", [3, True, b"7", ["7"]])
def test_weight_version_is_text_or_none(value: Any) -> None:
    assert text_read(weight_version=None).weight_version is None
    assert text_read().weight_version == "7"
    with pytest.raises(EngineFault, match=must_return("a str or None as weight_version")):
        read(weight_version=value)
    with pytest.raises(EngineFault, match=must_return("a str or None as weight_version")):
        text_read(weight_version=value)


def test_text_belongs_to_a_rollout_without_a_codec() -> None:
    with pytest.raises(EngineFault, match="play it without a codec"):
        read(text="yes")
    with pytest.raises(EngineFault, match="pass the codec of its model"):
        text_read(text=None)


def test_text_reply_comes_back_in_plain_types() -> None:
    found = text_read(text=Text("yes"), extras={"a": 1}, prompt_tokens=3)
    assert found == answer(
        text="yes", text_tokens=2, token_ids=(), logprobs=(), extras={"a": 1}, prompt_tokens=3
    )
    assert type(found.text) is str
    assert text_read(prompt_tokens=None).prompt_tokens == 0


def test_text_of_an_aborted_request_may_be_missing() -> None:
    assert text_read(text=None, finish_reason="abort").text is None
    assert text_read(finish_reason="abort").text == "yes"


@pytest.mark.parametrize("value", [b"yes", 1, ["yes"]])
def test_text_is_a_string(value: Any) -> None:
    for reason in ("stop", "abort"):
        with pytest.raises(EngineFault, match=must_return("a string as text")):
            text_read(text=value, finish_reason=reason)


@pytest.mark.parametrize("value", [None, [1], "ab"])
def test_extras_are_a_mapping(value: Any) -> None:
    with pytest.raises(EngineFault, match=must_return("a mapping as extras")):
        read(extras=value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -1.5, math.nan, "", "a", "\u00e9", b"x", bytearray(b"x"), [], {}),
        *(2**INTEGER_BITS - 1, 1 - 2**INTEGER_BITS, (1, 2), [None, True, 0.5], [[1], {"b": "c"}]),
        *(np.int64(1), np.float32(1), np.bool_(True), np.zeros((2, 2)), {"\u00e9": 1}),
    ],
)
def test_extras_that_a_record_can_store_are_kept(value: Any) -> None:
    assert read(extras={"a": value}).extras["a"] is value
    assert text_read(extras={"a": value}).extras["a"] is value


@pytest.mark.parametrize(
    "value",
    [
        *(object(), {1}, 1j, "\ud800", "a\ud800", 2**INTEGER_BITS, -(2**INTEGER_BITS)),
        *([None, object()], [0.5, "\ud800"], {1: 2}, {"b": 1, 2: 3}, {"\ud800": 1}),
        np.array([None]),
    ],
)
def test_extras_that_a_record_cannot_store_are_refused(value: Any) -> None:
    with pytest.raises(EngineFault, match="extras of engine 'e' cannot be stored: got"):
        read(extras={"a": value})
    with pytest.raises(EngineFault, match="extras of engine 'e' cannot be stored: got"):
        text_read(extras={"a": value})


def deep(levels: int, inmost: Any) -> dict[str, Any]:
    """Return mappings inside each other; the last one holds `inmost`."""
    found = {"in": inmost}
    for _ in range(levels - 1):
        found = {"in": found}
    return found


@pytest.mark.parametrize("inmost", [1, [], {}, [0.5], [None, True, 0.5], np.zeros(3), "text"])
def test_extras_are_kept_up_to_their_depth(inmost: Any) -> None:
    extras = deep(EXTRAS_DEPTH, inmost)
    assert read(extras=extras).extras == extras
    with pytest.raises(EngineFault, match="nested deeper than 32 levels"):
        read(extras=deep(EXTRAS_DEPTH + 1, inmost))


@pytest.mark.parametrize("inmost", [[1], {"b": None}, ["text"]])
def test_extras_count_a_container_of_other_values_as_a_level(inmost: Any) -> None:
    assert read(extras=deep(EXTRAS_DEPTH - 1, inmost)).extras
    with pytest.raises(EngineFault, match="nested deeper than 32 levels"):
        read(extras=deep(EXTRAS_DEPTH, inmost))


@pytest.mark.parametrize(
    ("rest", "size"),
    [
        (b"", 0),
        ("four", 4),
        (1.5, NUMBER_BYTES),
        (None, NUMBER_BYTES),
        (7, NUMBER_BYTES),
        (np.int8(7), NUMBER_BYTES),
        ([0.5, None, True], 3 * NUMBER_BYTES),
        ([0.5, 7], 4 * NUMBER_BYTES),
        ({"bc": "def"}, 5),
        (bytearray(6), 6),
        (np.zeros(5, np.float16), 10),
    ],
)
def test_extras_are_kept_up_to_their_size(rest: Any, size: int) -> None:
    names = len("a") + len("z")
    room = EXTRAS_BYTES - names - size
    for order in (("a", "z"), ("z", "a")):
        parts = {"a": bytes(room), "z": rest}
        assert read(extras={name: parts[name] for name in order}).extras["z"] is rest
        parts = {"a": bytes(room + 1), "z": rest}
        with pytest.raises(EngineFault, match="larger than 256 MiB"):
            read(extras={name: parts[name] for name in order})


def top_read(value: Any) -> Any:
    request = replace(REQUEST, top_logprobs=2)
    answered = answer(top_logprobs=value)
    return checked(answered, request, engine="e", vocabulary_size=VOCABULARY)[0].top_logprobs


def test_most_probable_tokens_are_plain_pairs_for_each_token() -> None:
    rows = [[(np.int64(3), np.float32(-0.5)), (4, Foreign(-1.0))], []]
    assert top_read(rows) == (((3, -0.5), (4, -1.0)), ())
    assert read(top_logprobs=rows).top_logprobs == ()


@pytest.mark.parametrize("value", [5, [[(3.5, -0.5)], []], [[(3, "a")], []], [[3], []]])
def test_most_probable_tokens_that_are_no_pairs_are_refused(value: Any) -> None:
    rule = must_return("pairs of an id and a number as top_logprobs")
    with pytest.raises(EngineFault, match=f"^{re.escape(f'{rule}{value!r}'[:60])}"):
        top_read(value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_most_probable_tokens_are_refused_unless_there_is_a_row_for_each_token(count: int) -> None:
    value = [[(3, -0.5)]] * count
    rule = must_return("top_logprobs for each of 2 tokens")
    with pytest.raises(EngineFault, match=f"^{re.escape(f'{rule}{value!r}'[:60])}"):
        top_read(value)


# ---- ids past the end of a reply are the engine's fault, and never trained


STOP = 9
CODEC = text_codec()


def is_accepted(ids: Any, sampling: Sampling, **options: Any) -> bool:
    try:
        check_end(ids, sampling, engine="e", **options)
    except EngineFault:
        return False
    return True


@given(length=at_limit(8))
def test_more_ids_than_asked_for_are_a_fault(length: int) -> None:
    assert is_accepted((1,) * length, Sampling(max_new_tokens=8)) == (length <= 8)


@given(place=st.integers(0, 12), length=st.integers(1, 12), least=at_limit(6))
def test_only_the_last_id_is_a_stop_token_unless_a_minimum_length_was_asked_for(
    place: int, length: int, least: int
) -> None:
    ids = [STOP if n == place else 1 for n in range(length)]
    is_past = place < length - 1

    assert is_accepted(ids, Sampling(stop_ids=(STOP,))) != is_past
    assert is_accepted(ids, Sampling(stop_ids=(STOP,), extras={"ignore_eos": True}))
    assert is_accepted(ids, Sampling(stop_ids=(STOP,), extras={"ignore_eos": False})) != is_past
    for key in ("min_tokens", "min_new_tokens"):
        found = is_accepted(ids, Sampling(stop_ids=(STOP,), extras={key: least}))
        assert found == (not is_past or place + 1 < least)


def test_ids_after_the_token_in_which_a_stop_string_ends_are_a_fault() -> None:
    ids = CODEC.encode_text("look <search>q</search> and more")
    stop = Sampling(stop=("</nothing>", "</search>"))
    ends = [n for n in range(len(ids)) if "</search>" in CODEC.decode_all(ids[: n + 1])]

    for count in range(1, len(ids) + 1):
        is_past = count - 1 > ends[0]
        assert is_accepted(ids[:count], stop, decode=CODEC.decode_all) != is_past, count
    assert is_accepted(ids, Sampling(stop=("</nothing>",)), decode=CODEC.decode_all)
    late = Sampling(stop=("</search>",), extras={"min_tokens": len(ids)})
    assert is_accepted(ids, late, decode=CODEC.decode_all)


def test_text_after_the_stop_string_in_its_last_token_is_data() -> None:
    pieces = {1: "a<", 2: "/b> and", 3: " more"}

    def decode(ids: Any) -> str:
        return "".join(pieces[one] for one in ids)

    assert is_accepted((1, 2), Sampling(stop=("</b>",)), decode=decode)
    assert not is_accepted((1, 2, 3), Sampling(stop=("</b>",)), decode=decode)


class LateEngine(ScriptedEngine):
    """Returns more ids than the scripted reply has."""

    def __init__(self, more: str, **options: Any) -> None:
        super().__init__(CODEC, say_turn, **options)
        self._more = more

    async def generate(self, request: GenerateRequest) -> Any:
        found = await super().generate(request)
        more = CODEC.encode_reply(self._more)
        return Generation(
            token_ids=(*found.token_ids, *more),
            logprobs=(-0.1,) * (len(found.token_ids) + len(more)),
            finish_reason=FinishReason.STOP,
            prompt_tokens=found.prompt_tokens,
        )


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(stop=("turn",), stop_ids=(0,))])
def test_a_rollout_trains_nothing_of_a_reply_past_its_end(sampling: Sampling) -> None:
    def build() -> CountingEnv:
        return CountingEnv(World(), FaultPlan(0.0))

    once = RetryBudget(max_engine_retries_per_turn=0, engine_unavailable_s=0)
    engine = LateEngine(" user: turn")
    trajectory = asyncio.run(play(build, engine, CODEC, sampling=sampling, retries=once, seed=5))

    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert sum(trajectory.loss_mask()) == 0
    assert trajectory.reward is None


@given(st.integers(1, 30))
def test_a_scripted_engine_stops_where_a_real_one_does(limit: int) -> None:
    seen: list[str] = []

    def policy(context: Any) -> str:
        return "turn <search>q</search> more <|im_end|> and more"

    def build() -> CountingEnv:
        return CountingEnv(World(), FaultPlan(0.0))

    for stop in ((), ("</search>",)):
        sampling = Sampling(stop=stop, max_new_tokens=limit)
        trajectory = asyncio.run(
            play(build, ScriptedEngine(CODEC, policy), CODEC, sampling=sampling, seed=5)
        )
        assert trajectory.fault is None
        seen.append(trajectory.turns[0].response_text)
    assert seen[0].startswith(seen[1])
