"""What holds for every remote engine: requests, checks, faults, deadlines, aborts, clean-up."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest
from fakes.remote_engines import KINDS, SEEING, RemoteKind
from fakes.remote_requests import BLUE, PAD, RED, RED_TOKENS, ask, reply
from fakes.sglang_failures import Failure, FailurePlan
from fakes.virtual_time import outlast, skip
from fakes.waiting import until

from envkit.errors import ConfigurationError, ContractError, EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import FinishReason, LogprobKind

NAME = "a" * 32
"""The id of `ask`'s request."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> RemoteKind:
    """Each kind of server in turn."""
    return KINDS[request.param]


async def test_generate_returns_ids_and_logprobs_with_the_stop_token(kind: RemoteKind) -> None:
    async with kind.serving() as (_, engine):
        generation = await engine.generate(ask())
    assert generation.token_ids == (20, 21, 22, 2)
    assert len(generation.logprobs) == 4
    assert all(value < 0 for value in generation.logprobs)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.prompt_tokens == 3
    assert generation.weight_version == "default"
    assert engine.logprob_kind is LogprobKind.SAMPLED


async def test_most_probable_tokens_come_in_descending_order(kind: RemoteKind) -> None:
    async with kind.serving() as (_, engine):
        found = (await engine.generate(replace(ask(), top_logprobs=3))).top_logprobs
    assert [len(row) for row in found] == [3] * 4
    assert all(list(row) == sorted(row, key=lambda one: -one[1]) for row in found)


async def test_names_of_requests_are_new_and_of_one_width_for_every_attempt(
    kind: RemoteKind,
) -> None:
    async with kind.serving() as (server, engine):
        for _ in range(3):
            await engine.generate(ask())
        names = [body[kind.id_key] for body in kind.sent(server)]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {32}


async def test_stop_strings_and_stop_ids_end_a_reply_inside_the_ledger(kind: RemoteKind) -> None:
    async with kind.serving() as (_, engine):
        assert (await engine.generate(ask(stop=("<21>",)))).token_ids == (20, 21)
        assert (await engine.generate(ask(stop_ids=(20,)))).token_ids == (20,)


async def test_length_is_reported_when_the_budget_ends_the_reply(kind: RemoteKind) -> None:
    async with kind.serving() as (_, engine):
        generation = await engine.generate(ask(max_new_tokens=2))
    assert generation.token_ids == (20, 21)
    assert generation.finish_reason is FinishReason.LENGTH


async def test_budget_is_clamped_to_the_context_the_server_reports(kind: RemoteKind) -> None:
    async with kind.serving(context_length=10) as (server, engine):
        await engine.generate(ask(max_new_tokens=500))
        assert kind.sent(server)[-1]["sampling_params"][kind.budget_key] == 7
        with pytest.raises(EngineFault, match="max_context_tokens=10") as caught:
            await engine.generate(ask((5,) * 10))
        assert len(kind.sent(server)) == 1
    assert caught.value.kind is FaultKind.PERMANENT


@pytest.mark.parametrize(
    ("ids", "images"),
    [((4, PAD, 5), (RED, BLUE)), ((4, 5), (RED,)), ((4, PAD), ()), ((PAD,) * 6, (RED,))],
    ids=["surplus image", "no placeholder", "no image", "expanded ids"],
)
async def test_ids_that_do_not_match_the_images_are_never_sent(
    kind: RemoteKind, ids: tuple[int, ...], images: tuple[Image, ...]
) -> None:
    async with kind.serving(options=SEEING, **SEEING) as (server, engine):
        with pytest.raises(LedgerFault, match="one placeholder"):
            await engine.generate(ask(ids, images))
        assert not kind.sent(server)


@pytest.mark.parametrize("bad", [-1, 100])
async def test_ids_outside_the_vocabulary_are_never_sent(kind: RemoteKind, bad: int) -> None:
    size = {"vocabulary_size": 100}
    async with kind.serving(options=size, **size) as (server, engine):
        with pytest.raises(LedgerFault, match="tokenizer of the served model"):
            await engine.generate(ask((4, bad)))
        assert not kind.sent(server)


async def test_other_prompt_length_is_a_ledger_fault(kind: RemoteKind) -> None:
    async with kind.serving() as (_, engine):
        with pytest.raises(LedgerFault, match="prompt of 3 tokens, the ledger has 4") as caught:
            await engine.generate(ask(length=4))
    assert not caught.value.retryable


async def test_unknown_extra_is_a_configuration_error_that_names_it(kind: RemoteKind) -> None:
    async with kind.serving() as (server, engine):
        with pytest.raises(ConfigurationError, match=r"got \['max_tokens'\]"):
            await engine.generate(ask(extras={"max_tokens": 3}))
        assert all(map(kind.is_probe, kind.sent(server)))


async def test_raw_logprobs_are_refused_where_temperature_matters(kind: RemoteKind) -> None:
    async with kind.serving(**dict[str, Any](kind.raw)) as (server, engine):
        with pytest.raises(EngineFault, match=kind.raw_advice) as caught:
            await engine.generate(ask(temperature=0.7))
        assert (await engine.generate(ask(temperature=1.0))).token_ids
        unchecked = kind.engine(server.url, check_logprobs=False)
        assert (await unchecked.generate(ask(temperature=0.7))).token_ids
        await unchecked.aclose()
    assert caught.value.kind is FaultKind.PERMANENT


async def test_kind_of_logprobs_is_asked_once(kind: RemoteKind) -> None:
    async with kind.serving() as (server, engine):
        requests = [ask(name=f"{number:032x}", temperature=0.5) for number in range(10)]
        await asyncio.gather(*map(engine.generate, requests))
        assert sum(map(kind.is_probe, kind.sent(server))) == 1


async def test_score_gives_back_the_logprobs_of_sampling(kind: RemoteKind) -> None:
    async with kind.serving(options=SEEING, **SEEING) as (_, engine):
        sampled = await engine.generate(ask((4, PAD, 5), [RED], length=2 + RED_TOKENS))
        scored = await engine.score((4, PAD, 5, *sampled.token_ids), [RED])
    assert len(scored) == 2 + RED_TOKENS + 4
    assert scored[0] is None
    assert scored[-4:] == sampled.logprobs


async def test_second_request_of_the_same_id_is_a_contract_error(kind: RemoteKind) -> None:
    async with kind.serving(first_token_s=30) as (server, engine):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: kind.running(server) == 1)
        with pytest.raises(ContractError, match="already running"):
            await engine.generate(ask())
        skip(30)
        assert (await running).token_ids


# ---- faults


@pytest.mark.parametrize(
    ("failure", "fault", "is_unavailable"),
    [
        (Failure.UNAVAILABLE, FaultKind.TRANSIENT, True),
        (Failure.BAD_GATEWAY, FaultKind.TRANSIENT, True),
        (Failure.GATEWAY_TIMEOUT, FaultKind.TRANSIENT, True),
        (Failure.RESET, FaultKind.CRASHED, True),
        (Failure.INTERNAL, None, False),
    ],
)
async def test_failure_of_a_request_is_typed_and_sent_once(
    kind: RemoteKind, failure: Failure, fault: FaultKind | None, is_unavailable: bool
) -> None:
    expected = kind.internal if fault is None else (fault.value, True)
    async with kind.serving(failures=[failure]) as (server, engine):
        with pytest.raises(EngineFault) as caught:
            await engine.generate(ask())
        assert (await engine.generate(ask())).token_ids == (20, 21, 22, 2)
        first, second = (body[kind.id_key] for body in kind.sent(server))
    assert first != second
    assert (caught.value.kind.value, caught.value.retryable) == expected
    assert caught.value.is_unavailable is is_unavailable


async def test_fault_says_what_the_server_said(kind: RemoteKind) -> None:
    async with kind.serving(failures=[Failure.UNAVAILABLE]) as (_, engine):
        with pytest.raises(EngineFault, match="answered 503: injected"):
            await engine.generate(ask())


async def test_bad_request_is_never_retried(kind: RemoteKind) -> None:
    async with kind.serving() as (server, engine):
        with pytest.raises(EngineFault, match="top_p must be in") as caught:
            await engine.generate(ask(top_p=2.0))
        assert len([one for one in kind.sent(server) if not kind.is_probe(one)]) == 1
    assert caught.value.kind is FaultKind.PERMANENT
    assert not caught.value.retryable


async def test_unreachable_server_is_one_clear_fault(kind: RemoteKind) -> None:
    async with kind.serving() as (server, _):
        url = server.url
    engine = kind.engine(url)
    with pytest.raises(EngineFault, match="server could be reached") as caught:
        await engine.generate(ask())
    assert url in str(caught.value)
    assert "Check that it is running" in str(caught.value)
    assert caught.value.kind is FaultKind.TRANSIENT
    health = await engine.health()
    assert not health.healthy
    assert url in health.detail
    with pytest.raises(EngineFault, match="could be reached"):
        await engine.server_info()
    await engine.aclose()


async def test_server_that_stops_between_requests_is_unavailable_until_it_returns(
    kind: RemoteKind,
) -> None:
    # Whether the client notices the closed connection first depends on the version of Python.
    async with kind.serving() as (server, engine):
        await engine.generate(ask())
        await engine.probe()
        await server.stop()
        with pytest.raises(EngineFault, match="probably crashed or was stopped") as caught:
            await engine.generate(ask())
        with pytest.raises(EngineFault, match="probably crashed or was stopped"):
            await engine.probe()
        await server.start()
        await engine.probe()
        assert (await engine.generate(ask())).token_ids
    assert caught.value.retryable
    assert caught.value.is_unavailable


async def test_request_without_an_answer_times_out_and_is_aborted(kind: RemoteKind) -> None:
    options = {"timeout_s": 60}
    async with kind.serving(failures=[Failure.HANG], options=options) as (server, engine):
        with pytest.raises(EngineFault, match=r"no answer in 60 s") as caught:
            await outlast(engine.generate(ask()), 60, begun=lambda: kind.sent(server))
        await until(lambda: len(kind.aborted(server)) == 1)
        assert kind.aborted(server) == [kind.sent(server)[0][kind.id_key]]
    assert caught.value.kind is FaultKind.TIMEOUT


# ---- aborts and clean-up


async def test_abort_of_a_running_request_keeps_its_tokens(kind: RemoteKind) -> None:
    async with kind.serving(token_s=30) as (server, engine):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: kind.running(server) == 1)
        await engine.abort(NAME)
        generation = await asyncio.wait_for(running, 120)
        assert kind.aborted(server) == [kind.sent(server)[-1][kind.id_key]]
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == (20,)
    assert len(generation.logprobs) == 1
    assert generation.prompt_tokens == 3


async def test_abort_that_the_server_ignores_ends_after_the_grace(kind: RemoteKind) -> None:
    options = {"abort_grace_s": 0.1}
    async with kind.serving(failures=[Failure.HANG], options=options) as (server, engine):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: len(kind.sent(server)) == 1)
        await engine.abort(NAME)
        generation = await asyncio.wait_for(running, 120)
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == ()
    assert generation.prompt_tokens is None


async def test_abort_does_not_wait_for_a_free_connection(kind: RemoteKind) -> None:
    async with kind.serving(first_token_s=30, options={"max_connections": 1}) as (server, engine):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: kind.running(server) == 1)
        await engine.abort(NAME)
        generation = await asyncio.wait_for(running, 120)
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.prompt_tokens == 3


async def test_abort_of_an_unknown_request_is_ignored(kind: RemoteKind) -> None:
    async with kind.serving() as (server, engine):
        await engine.abort("unknown")
        await engine.end_session("unknown")
        assert not kind.aborted(server)


async def test_cancelled_request_is_freed_on_the_server(kind: RemoteKind) -> None:
    async with kind.serving(first_token_s=30) as (server, engine):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: kind.running(server) == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: kind.running(server) == 0)
        await until(lambda: len(kind.aborted(server)) == 1)


async def test_engine_leaves_no_task_and_no_connection(kind: RemoteKind) -> None:
    before = asyncio.all_tasks()
    plan = FailurePlan(seed=3, rates={Failure.RESET: 0.2, Failure.UNAVAILABLE: 0.2})
    async with kind.fake(reply, failures=plan, first_token_s=0.01) as server:
        engine = kind.engine(server.url, max_connections=8)
        requests = [ask(name=f"{number:032x}") for number in range(60)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in requests]
        await asyncio.sleep(0.05)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.aclose()
        await until(lambda: kind.running(server) == 0)
    kept = [result for result in results if not isinstance(result, BaseException)]
    assert all(generation.token_ids == (20, 21, 22, 2) for generation in kept)
    assert len(kept) >= 10
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    gc.collect()  # an unclosed connection would warn here, and warnings are errors


def test_engine_works_in_one_event_loop_after_another(kind: RemoteKind) -> None:
    engine = kind.engine("http://127.0.0.1:1")

    async def fail() -> None:
        with pytest.raises(EngineFault, match="could be reached"):
            await engine.generate(ask())

    asyncio.run(fail())
    asyncio.run(fail())
    asyncio.run(engine.aclose())
    gc.collect()


async def test_many_requests_share_a_bounded_pool(kind: RemoteKind) -> None:
    options = {"max_connections": 4}
    async with kind.serving(first_token_s=0.05, options=options) as (server, engine):
        requests = [ask(name=f"{number:032x}") for number in range(12)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in requests]
        await asyncio.sleep(0.03)
        assert kind.running(server) <= 4
        generations = await asyncio.gather(*tasks)
    assert all(generation.token_ids for generation in generations)


async def test_health_reports_version_and_context(kind: RemoteKind) -> None:
    async with kind.serving() as (server, engine):
        health = await engine.health()
        assert health.healthy
        assert kind.version in health.detail
        assert health.info is not None
        assert (health.info.version, health.info.context_length) == (kind.version, 8192)
        assert health.info.model
        server.is_healthy = False
        sick = await engine.health()
    assert not sick.healthy
    assert "503" in sick.detail


@pytest.mark.parametrize(
    "url", ["127.0.0.1:3000", "ftp://host", "http://", "http://host/v1", "http://host:port"]
)
def test_bad_address_is_a_configuration_error(kind: RemoteKind, url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        kind.engine(url)


@pytest.mark.parametrize("option", ["timeout_s", "max_connections"])
def test_bad_number_is_a_configuration_error(kind: RemoteKind, option: str) -> None:
    settings: dict[str, Any] = {option: 0}
    with pytest.raises(ConfigurationError, match=option):
        kind.engine("http://host", **settings)
