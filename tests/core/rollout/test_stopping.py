"""Ids past the end of a reply are the engine's fault, and never trained."""

import asyncio
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World, say_turn
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EngineFault
from envkit.faults import FaultPlan
from envkit.rollout import (
    FinishReason,
    GenerateRequest,
    Generation,
    RetryBudget,
    Sampling,
    ScriptedEngine,
    play,
)
from envkit.rollout.stopping import check_end
from envkit.trajectory import StopReason

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
