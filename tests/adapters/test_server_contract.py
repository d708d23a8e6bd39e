"""An engine, forks and chat endpoints against a real server: one contract for SGLang and vLLM.

Run by `make contract-sglang` and `make contract-vllm`, which start the servers. The models are
tiny, so most replies mean nothing; ids, counts, log-probabilities and errors are real.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import pytest
from fakes.branching import IMAGES, Screens
from fakes.envs import DotsEnv, EchoEnv
from fakes.models import tiny_model_dir
from fakes.real_servers import KINDS, PICTURES, Conversation, ask, until_idle

from envkit.env import Env
from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout import AtTurns, EpisodeSpec, Limits, Player, RolloutConfig, play_tree
from envkit.rollout.engine import FinishReason, GenerateRequest, LogprobKind, Sampling
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit_chat import ChatEngine
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
    generation = await asyncio.wait_for(running, 120)
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


class LongScreens(Screens):
    """Says enough before its first screen to fill several blocks of a cache."""

    system_prompt = "Look at every screen and describe it. " * 60


def make_player(
    engine: RemoteEngine, codec: ChatCodec, history: str | Mapping[str, Any] = "keep"
) -> Player:
    # An untrained model samples ids beyond its tokenizer's, which no ledger takes.
    bias = {"logit_bias": {"700": 1000.0}}
    sampling = {"max_new_tokens": 12, "seed": 5, "extras": bias}
    settings = {"history": history, "sampling": sampling}
    return Player(engine, codec, RolloutConfig.from_mapping(settings))


def whole_blocks(tokens: int, kind: str) -> int:
    """Return how many of so many tokens the server's cache can hold."""
    block = KINDS[kind].cache_block
    return tokens // block * block


@pytest.mark.parametrize("images", [False, True])
async def test_fork_takes_all_it_shares_from_the_servers_cache(
    images: bool, codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    player = make_player(engine, codec)
    leaves = await play_tree(
        lambda: LongScreens(max_turns=4, images=images),
        player,
        branching=AtTurns(turns=(1, 3)),
        spec=EpisodeSpec(seed=7 + images),
    )
    await player.aclose()
    assert [leaf.fault for leaf in leaves] == [None] * 4
    found: list[tuple[int, int]] = []
    for leaf in leaves[1:]:
        assert check_trajectory(leaf) == ()
        first = leaf.own_turns[0]
        found.append((first.cached_tokens, first.prompt_tokens))
    for cached, prompt in found:  # a server computes at least the last token of a prompt
        assert prompt > cached >= whole_blocks(prompt - 1, server_kind) > 400


async def test_rewritten_history_takes_what_is_left_of_it_from_the_servers_cache(
    codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    player = make_player(engine, codec, IMAGES)
    (trajectory,) = await player.play(LongScreens(images=True), EpisodeSpec(seed=9))
    await player.aclose()
    assert trajectory.fault is None, trajectory.fault
    assert check_trajectory(trajectory) == ()
    found = list(shared_beginnings(trajectory))
    assert len(found) >= 2
    for cached, shared, prompt in found:
        assert prompt > cached >= whole_blocks(shared, server_kind) > 300


def shared_beginnings(trajectory: Trajectory) -> list[tuple[int, int, int]]:
    """Return cached tokens, shared tokens and prompt of each first turn after a rewrite."""
    found: list[tuple[int, int, int]] = []
    for earlier, later in zip(trajectory.sequences(), trajectory.sequences()[1:], strict=False):
        pairs = zip(earlier.train_ids(), later.train_ids(), strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        turn = trajectory.turns[later.own[0].turn]
        found.append((turn.cached_tokens, shared, turn.prompt_tokens))
    return found


async def played(url: str, model: str, env: Env, **sampling: object) -> Trajectory:
    config = RolloutConfig(
        limits=Limits(max_turns=2), sampling={"max_new_tokens": 8, "temperature": 0.0, **sampling}
    )
    player = Player(ChatEngine(f"{url}/v1", model=model, timeout_s=120), None, config)
    try:
        (one,) = await player.play(env, EpisodeSpec(seed=1))
    finally:
        await player.aclose()
        await player.engine.aclose()
    return one


@pytest.mark.parametrize("env_class", [EchoEnv, DotsEnv])
async def test_real_server_plays_text_and_images(
    server_url: str, server_model: str, env_class: type[Env]
) -> None:
    one = await played(server_url, server_model, env_class())
    assert one.fault is None, one.fault
    assert not one.has_ledger
    assert not check_trajectory(one)
    for turn in one.turns:
        assert turn.prompt_tokens > 10
        assert 1 <= turn.response_tokens <= 8
        assert turn.finish_reason in ("stop", "length")
    first, second = one.turns[0], one.turns[1]
    assert second.prompt_tokens > first.prompt_tokens


async def test_real_server_refuses_an_unknown_path(server_url: str, server_model: str) -> None:
    with pytest.raises(ConfigurationError, match="HTTP 404"):
        await played(f"{server_url}/wrong", server_model, EchoEnv())


async def test_real_server_faults_a_setting_that_it_refuses(
    server_url: str, server_model: str
) -> None:
    one = await played(
        server_url, server_model, EchoEnv(), top_p=1.0, extras={"logit_bias": {"900000": 1}}
    )
    assert one.stop_reason is StopReason.ENGINE_FAULT
    assert one.fault is not None
    assert "HTTP 4" in one.fault.message
