"""An engine against a real server: one contract for SGLang and vLLM.

Run by `make contract-sglang` and `make contract-vllm`, which start the servers. The models are
tiny, so most replies mean nothing; ids, counts, log-probabilities and errors are real.
"""

import asyncio
from collections.abc import Sequence

import pytest
from fakes.models import tiny_model_dir
from fakes.real_servers import KINDS, PICTURES, Conversation, ask, until_idle

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout.engine import FinishReason, GenerateRequest, LogprobKind, Sampling
from envkit.tokens import ChatCodec, load_codec
from envkit_remote import RemoteEngine

# Sampling decodes with a cache and excludes banned ids; scoring runs over the whole text at once.
# In float32 on these models the two differ by up to 5.2e-5, nearly all of it from the bans.
LOGPROB_TOLERANCE = 2e-4


async def test_server_reports_its_health_and_limits(engine: RemoteEngine, server_kind: str) -> None:
    health = await engine.health()
    assert health.healthy, health.detail
    assert health.info is not None
    assert health.info.version == KINDS[server_kind].version
    assert health.info.context_length == 8192


async def test_every_turn_with_images_has_the_expanded_prompt_length(
    codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    talk = Conversation(codec, engine)
    cached: list[int] = []
    for turn, picture in enumerate(PICTURES):
        generation = await talk.turn(f"Picture {turn}, what is it?", [picture])
        assert generation.prompt_tokens == talk.replies[-1][0]
        cached.append(generation.cached_tokens)
    await talk.turn("And all of them?")
    block = KINDS[server_kind].cache_block
    for earlier, found in zip(talk.replies, cached[1:], strict=False):
        assert found >= earlier[0] // block * block
    assert max(cached) > 0  # the first prompt may be shorter than a block
    assert len(talk.train) - len(talk.wire) > 100


async def test_scoring_the_ledger_gives_the_sampled_logprobs(
    codec: ChatCodec, engine: RemoteEngine
) -> None:
    talk = Conversation(codec, engine)
    for turn, picture in enumerate(PICTURES[:2]):
        await talk.turn(f"Picture {turn}?", [picture])
    await talk.turn("No image now.")
    scored = await engine.score(talk.wire, talk.images)
    assert len(scored) == len(talk.train)
    for start, generation in talk.replies:
        again = scored[start : start + len(generation.logprobs)]
        assert again == pytest.approx(generation.logprobs, abs=LOGPROB_TOLERANCE)


async def test_images_change_what_the_model_samples(codec: ChatCodec, engine: RemoteEngine) -> None:
    values: list[float] = []
    for picture in PICTURES:
        encoded = codec.encode_prompt([message("user", "What?", [picture])])
        scored = await engine.score((*encoded.wire_ids, 100), [picture])
        assert len(scored) == len(encoded.train_ids) + 1
        values.append(scored[-1] or 0.0)
    assert len({round(value, 3) for value in values}) == 3


async def test_ids_that_retokenising_would_change_are_kept(
    codec: ChatCodec, engine: RemoteEngine
) -> None:
    encoded = codec.encode_prompt([message("user", "", [PICTURES[0]])])
    letters = [token for letter in " colour hello" for token in codec.encode_reply(letter)]
    ids = (*encoded.wire_ids, *letters)
    assert list(codec.encode_reply(" colour hello")) != letters
    request = GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=ids,
        images=[PICTURES[0]],
        train_length=len(encoded.train_ids) + len(letters),
        sampling=Sampling(max_new_tokens=2),
    )
    assert (await engine.generate(request)).prompt_tokens == request.train_length


async def test_stop_token_is_sampled_and_reported(engine: RemoteEngine, codec: ChatCodec) -> None:
    bias = {"logit_bias": {str(codec.stop_ids[0]): 1000.0}}
    generation = await engine.generate(ask([5, 6, 7], stop_ids=codec.stop_ids, extras=bias))
    assert generation.token_ids == (codec.stop_ids[0],)
    assert generation.finish_reason is FinishReason.STOP


async def test_streamed_reply_is_reported_on_the_way_and_equals_the_whole_one(
    engine: RemoteEngine, codec: ChatCodec
) -> None:
    reports: list[Sequence[int]] = []
    ids = codec.encode_prompt([message("user", "Go on.")]).wire_ids
    whole = await engine.generate(ask(ids, temperature=0.0, max_new_tokens=32))
    request = ask(ids, temperature=0.0, max_new_tokens=32)
    streamed = await engine.stream(request, reports.append)
    assert [one for report in reports for one in report] == list(streamed.token_ids)
    assert len(reports) > 1
    assert streamed.token_ids == whole.token_ids
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=LOGPROB_TOLERANCE)
    assert streamed.finish_reason is whole.finish_reason
    assert streamed.prompt_tokens == whole.prompt_tokens


async def test_banned_id_is_never_sampled(engine: RemoteEngine) -> None:
    favourite = {"logit_bias": {"700": 1000.0}}
    free = await engine.generate(ask([5, 6, 7], max_new_tokens=3, extras=favourite))
    banned = await engine.generate(
        ask([5, 6, 7], max_new_tokens=3, extras=favourite, banned_ids=(700,))
    )
    assert free.token_ids == (700, 700, 700)
    assert 700 not in banned.token_ids


async def test_stop_string_keeps_its_tokens(engine: RemoteEngine, codec: ChatCodec) -> None:
    word = codec.encode_reply(" end")[0]
    generation = await engine.generate(
        ask([5, 6], max_new_tokens=9, stop=("end",), extras={"logit_bias": {str(word): 1000.0}})
    )
    assert generation.token_ids == (word,)


async def test_logprobs_are_of_the_sampled_distribution(engine: RemoteEngine) -> None:
    """A temperature other than 1 makes the engine ask the server, which must say SAMPLED."""
    hot = await engine.generate(ask([5, 6, 7], max_new_tokens=8, temperature=2.0))
    scored = await engine.score((5, 6, 7, *hot.token_ids))
    differences = [
        abs(ours - (theirs or 0.0)) for ours, theirs in zip(hot.logprobs, scored[3:], strict=True)
    ]
    assert engine.logprob_kind is LogprobKind.SAMPLED
    assert max(differences) > 0.05


async def test_budget_is_clamped_to_the_servers_context(engine: RemoteEngine) -> None:
    generation = await engine.generate(
        ask([5] * 8170, max_new_tokens=10**6, extras={"ignore_eos": True})
    )
    assert generation.finish_reason is FinishReason.LENGTH
    assert 1 <= len(generation.token_ids) <= 22
    with pytest.raises(EngineFault, match="max_context_tokens=8192"):
        await engine.generate(ask([5] * 8192))


async def test_refused_request_is_permanent_and_says_why(engine: RemoteEngine) -> None:
    with pytest.raises(EngineFault, match="top_p") as caught:
        await engine.generate(ask([5, 6], top_p=7.0))
    assert caught.value.kind is FaultKind.PERMANENT


async def test_aborted_request_returns_its_tokens(
    engine: RemoteEngine, server_kind: str, server_url: str
) -> None:
    endless = {"ignore_eos": True}
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], max_new_tokens=6000, extras=endless))
    )
    await asyncio.sleep(1.0)
    await engine.abort(f"{0:032x}")
    generation = await asyncio.wait_for(running, 30)
    assert generation.finish_reason is FinishReason.ABORT
    assert 0 < len(generation.token_ids) < 6000
    assert generation.prompt_tokens == 3
    await until_idle(server_kind, server_url)


async def test_cancelled_request_is_freed(
    engine: RemoteEngine, server_kind: str, server_url: str
) -> None:
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], max_new_tokens=6000, extras={"ignore_eos": True}))
    )
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_idle(server_kind, server_url)


async def test_mismatched_images_are_refused_before_sending(
    engine: RemoteEngine, codec: ChatCodec
) -> None:
    encoded = codec.encode_prompt([message("user", "What?", [PICTURES[0]])])
    for images in ((PICTURES[0], PICTURES[1]), ()):
        request = GenerateRequest(
            request_id="f" * 32,
            session_id="session",
            wire_ids=encoded.wire_ids,
            images=images,
            train_length=len(encoded.train_ids),
            sampling=Sampling(),
        )
        with pytest.raises(LedgerFault, match="one placeholder"):
            await engine.generate(request)


async def test_check_before_a_run_takes_the_right_model_and_refuses_another(
    engine: RemoteEngine, codec: ChatCodec
) -> None:
    await engine.check(codec, Sampling(temperature=0.7))
    other = load_codec(tiny_model_dir("qwen3"))
    if other.encode_text("Zürich 12") != codec.encode_text("Zürich 12"):
        with pytest.raises(ConfigurationError, match="another tokenizer"):
            await engine.check(other, Sampling())
    with pytest.raises(ConfigurationError, match="top_p"):
        await engine.check(codec, Sampling(top_p=7.0))
