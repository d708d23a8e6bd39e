"""Answers of a server, right ones and every kind of wrong one."""

import asyncio
import copy
import json
import math
from typing import Any

import pytest
from fakes.remote_requests import ask
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EngineFault, Fault, FaultKind, LedgerFault
from envkit.rollout.engine import FinishReason, LogprobKind
from envkit_remote import ServerInfo, faults
from envkit_remote.prompt import check_prompt_ids, clamp_new_tokens
from envkit_remote.transport import Answer, Transport
from envkit_sglang.dialect import BAN_BIAS, SGLangDialect

DIALECT = SGLangDialect()
HTTP = Transport(
    "http://host", title="SGLang", headers={}, max_connections=1, connect_timeout_s=1.0
)
IDS = st.lists(st.integers(min_value=0, max_value=200_000), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
META_KEYS = (
    "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "weight_version",
    "output_token_logprobs", "queue_time",
)  # fmt: skip


def answer(ids: list[int], **meta: Any) -> dict[str, Any]:
    entries = [[-0.5 - index, token, None] for index, token in enumerate(ids)]
    return {
        "text": "ignored",
        "output_ids": list(ids),
        "meta_info": {
            "id": "server's name",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 11,
            "completion_tokens": len(ids),
            "cached_tokens": 4,
            "weight_version": "3",
            "output_token_logprobs": entries,
            "output_token_logprobs_length": len(ids),
            **meta,
        },
    }


def parse(body: dict[str, Any], train_length: int = 11) -> Any:
    return DIALECT.generation(body, train_length=train_length, rid="r")


@given(IDS)
def test_generation_has_exactly_the_ids_and_logprobs_of_the_answer(ids: list[int]) -> None:
    generation = parse(answer(ids))
    assert list(generation.token_ids) == ids
    assert list(generation.logprobs) == [-0.5 - index for index in range(len(ids))]
    assert (generation.prompt_tokens, generation.cached_tokens) == (11, 4)


@given(st.sampled_from(META_KEYS), JSON)
def test_odd_value_is_a_fault_or_a_sound_generation(key: str, value: object) -> None:
    body = answer([5, 6])
    body["meta_info"][key] = value
    try:
        generation = parse(body)
    except Fault:
        return
    assert len(generation.token_ids) == len(generation.logprobs) == 2
    assert all(map(math.isfinite, generation.logprobs))
    assert generation.queue_seconds >= 0


@given(JSON)
def test_any_body_is_an_object_with_meta_info_or_an_engine_fault(value: object) -> None:
    try:
        body = DIALECT.parse(Answer(status=200, body=json.dumps(value).encode()))
    except EngineFault:
        return
    assert isinstance(body["meta_info"], dict)


@given(st.binary(max_size=200), st.integers(min_value=201, max_value=599))
def test_any_error_body_makes_a_fault_with_the_status(body: bytes, status: int) -> None:
    answer = Answer(status=status, body=body)
    fault = faults.status_fault(HTTP, answer, DIALECT.advice)
    assert str(status) in str(fault)
    assert len(str(fault)) < 1200
    assert fault.retryable == (fault.kind is FaultKind.TRANSIENT)
    assert fault.is_unavailable == (status in (429, 502, 503, 504))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "unknown field"}', "unknown field"),
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"object": "error", "message": "busy", "code": 503}', "busy"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"", "(empty body)"),
        (b'["odd"]', "odd"),
    ],
)
def test_error_message_is_found_in_every_shape(body: bytes, message: str) -> None:
    assert message in faults.error_message(body)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ({"type": "stop", "matched": 2}, FinishReason.STOP),
        ({"type": "stop", "matched": "</a>"}, FinishReason.STOP),
        ({"type": "stop", "matched": [7, 8]}, FinishReason.STOP),
        ({"type": "stop"}, FinishReason.STOP),
        ({"type": "length", "length": 2}, FinishReason.LENGTH),
        ({"type": "abort", "message": "Aborted", "status_code": None}, FinishReason.ABORT),
    ],
)
def test_finish_reason_forms_are_understood(finish: dict[str, Any], reason: FinishReason) -> None:
    generation = parse(answer([5, 6], finish_reason=finish))
    assert generation.finish_reason is reason


def test_abort_with_a_status_is_a_fault_as_over_http() -> None:
    finish = {"type": "abort", "message": "queue full", "status_code": 503}
    with pytest.raises(EngineFault, match="queue full") as caught:
        parse(answer([], finish_reason=finish))
    assert caught.value.kind is FaultKind.TRANSIENT
    assert caught.value.is_unavailable


def test_queued_abort_needs_no_counts() -> None:
    body = answer([], finish_reason={"type": "abort", "message": "Abort in waiting queue"})
    del body["meta_info"]["prompt_tokens"], body["meta_info"]["cached_tokens"]
    generation = parse(body)
    assert generation.prompt_tokens is None
    assert generation.cached_tokens == 0


def test_missing_prompt_tokens_is_a_fault_otherwise() -> None:
    body = answer([5])
    del body["meta_info"]["prompt_tokens"]
    with pytest.raises(EngineFault, match="prompt_tokens"):
        parse(body)


@pytest.mark.parametrize(
    ("output_ids", "meta"),
    [
        ([5, 6, 9], {}),
        (None, {}),
        ([5, 6], {"completion_tokens": 3}),
        ([5, 6], {"prompt_tokens": 12}),
        ([5, 6], {"output_token_logprobs": [[-0.5, 5, None]]}),
        ([5, 6], {"output_token_logprobs": [[math.nan, 5, None], [-1.0, 6, None]]}),
        ([5, 6], {"output_token_logprobs": [[-math.inf, 5, None], [-1.0, 6, None]]}),
    ],
)
def test_contradiction_is_a_ledger_fault(output_ids: object, meta: dict[str, Any]) -> None:
    body = {**answer([5, 6], **meta), "output_ids": output_ids}
    with pytest.raises(LedgerFault):
        parse(body)


def test_optional_facts_pass_through_and_times_do_not() -> None:
    facts = {
        "spec_verify_ct": 3,
        "routed_experts": "AAAA",
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        "dp_rank": None,
        "queue_time": 0.25,
        "response_sent_to_client_ts": 1.0,
    }
    generation = parse(answer([5, 6], **facts))
    assert dict(generation.extras) == {
        "rid": "r",
        "spec_verify_ct": 3,
        "routed_experts": "AAAA",
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
    }
    assert generation.queue_seconds == 0.25


def compare(theirs: list[int] | None, wire: list[int], pad: int | None) -> bool:
    return check_prompt_ids(theirs, wire, image_token_id=pad, hint="")


@given(IDS, st.lists(st.integers(min_value=1, max_value=9), max_size=4))
def test_expanded_prompt_equals_its_wire_form_and_any_change_is_found(
    ids: list[int], counts: list[int]
) -> None:
    pad = 300_000
    wire = [token for _ in counts for token in (*ids, 1, pad)] + [7]
    expanded = [
        token for count in counts for token in (*ids, 1, *[pad] * count)
    ] + [7]  # fmt: skip
    assert compare(expanded, wire, pad)
    changed = copy.copy(expanded)
    changed[-1] = 8
    with pytest.raises(LedgerFault):
        compare(changed, wire, pad)
    with pytest.raises(LedgerFault):
        compare([*expanded, 7], wire, pad)


def test_prompt_ids_are_compared_without_run_lengths_where_the_placeholder_is_unknown() -> None:
    expanded = [5, 9, 9, 9, 6, 7]
    assert compare(expanded, [5, 9, 6, 7], None)
    with pytest.raises(LedgerFault, match="changed the prompt"):
        compare(expanded, [5, 9, 6, 8], None)


def test_prompt_ids_that_the_server_did_not_return_are_not_compared() -> None:
    assert not compare(None, [1], None)


def test_input_logprobs_start_with_none() -> None:
    body = answer([], input_token_logprobs=[[None, 1, None], [-1.5, 2, None]])
    assert DIALECT.prompt_logprobs(body) == (None, -1.5)
    with pytest.raises(EngineFault, match="input_token_logprobs"):
        DIALECT.prompt_logprobs(answer([]))


def test_most_probable_tokens_are_pairs_in_descending_order() -> None:
    top = [[[-2.0, 8, None], [-1.0, 9, "x"]], [[-0.5, 7, None]]]
    found = parse(answer([8, 7], output_top_logprobs=top)).top_logprobs
    assert found == (((9, -1.0), (8, -2.0)), ((7, -0.5),))
    assert parse(answer([8])).top_logprobs == ()
    for broken in ("x", [None], [[["a", 1, None]]]):
        with pytest.raises(EngineFault, match="output_top_logprobs"):
            parse(answer([8], output_top_logprobs=broken))


def info_of(body: bytes) -> ServerInfo:
    async def fetch(path: str) -> bytes:
        assert path == "/server_info"
        return body

    return asyncio.run(DIALECT.fetch_info(fetch))


def test_server_info_is_read_from_both_layouts() -> None:
    flat = {"version": "0.5.23", "context_length": 99, "max_req_input_len": 93}
    nested = {"context_length": None, "scheduler_info": {"max_req_input_len": 93}}
    assert info_of(json.dumps(flat).encode()).max_prompt_length == 93
    older = info_of(json.dumps(nested).encode())
    assert older.max_prompt_length == 93
    assert older.context_length is None
    for broken in (b"<html>", b"[]"):
        with pytest.raises(EngineFault, match="/server_info"):
            info_of(broken)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([-10.0, -10.001], LogprobKind.SAMPLED),
        ([-1.0, -9.0], LogprobKind.RAW),
        ([-1.0], None),
    ],
)
def test_probe_detects_the_kind_of_logprobs(values: list[float], kind: LogprobKind | None) -> None:
    top = [[[value, index, None] for index, value in enumerate(values)]]
    body = {"meta_info": {"output_top_logprobs": top}}
    assert DIALECT.probed_kind(json.dumps(body).encode()) is kind
    assert DIALECT.probed_kind(b"{}") is None


@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.none() | st.integers(1, 600),
)
def test_clamped_budget_always_fits(requested: int, prompt: int, context: int | None) -> None:
    try:
        allowed = clamp_new_tokens(requested, prompt_length=prompt, context_length=context)
    except EngineFault:
        assert context is not None
        assert prompt >= context
        return
    assert 1 <= allowed <= requested
    assert context is None or prompt + allowed <= context


def test_bans_join_a_callers_own_biases() -> None:
    request = ask(banned_ids=(3,), extras={"logit_bias": {"4": 1.5}})
    fields = DIALECT.generate_fields(request, max_new_tokens=5, with_prompt_ids=False)
    assert fields["sampling_params"]["logit_bias"] == {"4": 1.5, "3": BAN_BIAS}
