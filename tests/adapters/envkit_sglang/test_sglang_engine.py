"""The SGLang engine against a strict fake server, also while it restarts: what SGLang alone does.

`envkit_remote/test_remote_engine.py` holds what every remote engine does.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World
from fakes.playing import collected
from fakes.remote_engines import KINDS
from fakes.remote_requests import BLUE, BLUE_TOKENS, PAD, RED, RED_TOKENS, ask, reply
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_hostile import good, hostile_server, http
from fakes.sglang_model import Family
from fakes.sglang_server import FakeSGLang
from fakes.virtual_time import outlast, skip
from fakes.waiting import until
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, EngineFault, Fault, FaultKind, LedgerFault
from envkit.faults import FaultPlan
from envkit.images import Image
from envkit.rollout import Backoff, RetryBudget, play
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation
from envkit_sglang import SGLangEngine, create_engine


def one_token(_width: int, _height: int) -> int:
    return 1


SGLANG = KINDS["sglang"]


async def one(server: FakeSGLang, request: GenerateRequest, **options: Any) -> Generation:
    engine = SGLangEngine(server.url, image_token_id=PAD, **options)
    try:
        return await engine.generate(request)
    finally:
        await engine.aclose()


async def test_request_sends_ids_images_budget_and_routing_key_and_never_text() -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        await one(
            server,
            replace(
                ask((4, PAD, 5), [RED], length=2 + RED_TOKENS, max_new_tokens=7, top_k=5),
                top_logprobs=3,
            ),
        )
        logged = server.log[0]
    body = logged.payload
    assert body["input_ids"] == [4, PAD, 5]
    assert body["image_data"] == [RED.data_uri()]
    assert "text" not in body
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 3)
    assert logged.headers["X-SMG-Routing-Key"] == "episode-1"
    assert len(body["rid"]) == 32
    assert body["sampling_params"] == {
        "max_new_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 5,
        "skip_special_tokens": False,
    }


async def test_server_without_facts_is_asked_once_and_still_used() -> None:
    async with FakeSGLang(reply, has_server_info=False) as server:
        engine = SGLangEngine(server.url)
        await asyncio.gather(*(engine.generate(ask(name=f"{n:032x}")) for n in range(20)))
        await engine.aclose()
        assert server.payloads()[0]["sampling_params"]["max_new_tokens"] == 512
        assert server.info_requests == 1


async def test_banned_ids_cannot_be_sampled() -> None:
    async with FakeSGLang(lambda _: [20, PAD, 21]) as server:
        generation = await one(server, ask(banned_ids=(PAD,)))
    assert generation.token_ids == (20, 21, 2)


async def test_images_expand_on_the_server_and_the_prefix_cache_grows() -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        engine = SGLangEngine(server.url, image_token_id=PAD)
        first = await engine.generate(ask((4, PAD, 5), [RED], length=2 + RED_TOKENS))
        ids = (4, PAD, 5, *first.token_ids, 6, PAD, 7)
        length = 2 + RED_TOKENS + 4 + 2 + BLUE_TOKENS
        second = await engine.generate(ask(ids, [RED, BLUE], length=length))
        await engine.aclose()
    assert first.prompt_tokens == 2 + RED_TOKENS
    assert second.prompt_tokens == length
    assert first.cached_tokens == 0
    assert second.cached_tokens == 2 + RED_TOKENS + 3
    assert second.extras["image_tokens"] == RED_TOKENS + BLUE_TOKENS


async def test_retokenised_prompt_is_found_although_its_length_is_right() -> None:
    async with FakeSGLang(reply) as server:
        server.changed_prompt = [4, 99, 6]
        with pytest.raises(LedgerFault, match="changed the prompt at token 1"):
            await one(server, ask())
        assert (await one(server, ask(), compare_prompts=0)).prompt_tokens == 3


async def test_prompt_ids_are_asked_for_the_first_requests_only() -> None:
    async with FakeSGLang(reply) as server:
        engine = SGLangEngine(server.url, compare_prompts=2)
        for _ in range(4):
            await engine.generate(ask())
        await engine.aclose()
        asked = [bool(body.get("return_prompt_token_ids")) for body in server.payloads()]
    assert asked == [True, True, False, False]


async def test_extras_reach_the_right_place_of_the_body_and_results_come_back() -> None:
    async with FakeSGLang(reply, routed_experts=(2, 2)) as server:
        extras = {"min_p": 0.1, "return_routed_experts": True, "priority": 3}
        generation = await one(server, ask(extras=extras))
        body = server.payloads()[0]
    assert body["sampling_params"]["min_p"] == 0.1
    assert body["priority"] == 3
    assert generation.extras["routed_experts"]
    assert generation.extras["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


async def test_weight_version_changes_are_reported() -> None:
    async with FakeSGLang(reply) as server:
        server.settings.weight_version = "7"
        assert (await one(server, ask())).weight_version == "7"


async def test_large_images_are_encoded_off_the_event_loop() -> None:
    noise = PilImage.effect_noise((1200, 1200), 90)
    pictures = [Image.from_pil(noise.rotate(90 * turn)) for turn in range(3)]
    waits: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            waits.append(loop.time() - before)

    async with FakeSGLang(reply, image_token_id=PAD, count_image_tokens=one_token) as server:
        watcher = asyncio.create_task(watch())
        engine = SGLangEngine(server.url, image_token_id=PAD)
        generation = await engine.generate(ask((PAD, PAD, PAD), pictures))
        await engine.aclose()
        watcher.cancel()
        sent = server.payloads()[0]["image_data"]
    assert generation.prompt_tokens == 3
    assert sent == [picture.data_uri() for picture in pictures]
    assert len(waits) > 5  # the loop kept running while images were encoded


def test_create_engine_reads_the_models_config(tmp_path: Any) -> None:
    config = {"image_token_id": 7, "text_config": {"vocab_size": 50}, "vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = create_engine(tmp_path, base_url="http://host:1/", timeout_s=5)
    assert engine.base_url == "http://host:1"
    assert engine.name == "sglang"
    with pytest.raises(LedgerFault, match=r"\(7\)"):
        asyncio.run(engine.generate(ask((7, 7), [RED])))
    with pytest.raises(LedgerFault, match="below 50"):
        asyncio.run(engine.generate(ask((50,))))


def test_create_engine_refuses_a_folder_without_a_config(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        create_engine(tmp_path, base_url="http://host:1")


async def test_create_engine_without_a_model_checks_no_counts() -> None:
    async with FakeSGLang(reply, failures=FailurePlan(script=[Failure.SLOW])) as server:
        engine = create_engine(base_url=server.url)
        assert (await engine.generate(ask())).prompt_tokens == 3
        await engine.aclose()


async def test_slow_answer_is_not_a_failure() -> None:
    async with SGLANG.serving(failures=[Failure.SLOW]) as (_, engine):
        assert (await engine.generate(ask())).token_ids == (20, 21, 22, 2)


async def test_answer_that_breaks_off_is_a_crash_of_the_server() -> None:
    async with SGLANG.serving(failures=[Failure.RESET_MID_BODY]) as (_, engine):
        with pytest.raises(EngineFault) as caught:
            await engine.generate(ask())
    assert (caught.value.kind, caught.value.is_unavailable) == (FaultKind.CRASHED, True)


@pytest.mark.parametrize("failure", [Failure.WRONG_PROMPT_TOKENS, Failure.MISSING_LOGPROB])
async def test_answer_that_contradicts_itself_is_a_ledger_fault(failure: Failure) -> None:
    async with SGLANG.serving(failures=[failure]) as (_, engine):
        with pytest.raises(LedgerFault):
            await engine.generate(ask())


async def test_server_that_comes_back_with_another_model_is_refused() -> None:
    async with SGLANG.serving() as (server, engine):
        await engine.generate(ask())
        await server.stop()
        with pytest.raises(EngineFault, match="probably crashed or was stopped"):
            await engine.generate(ask())
        server.settings.served_model_name = "another"
        await server.start()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="came back as another model, 'another'"):
                await engine.generate(ask())
        server.settings.served_model_name = "fake"
        assert (await engine.generate(ask())).token_ids


async def test_out_of_vocabulary_id_that_slips_through_is_a_crash_and_not_a_hang() -> None:
    async with SGLANG.serving(vocabulary_size=5) as (_, engine):
        with pytest.raises(EngineFault) as caught:
            await engine.generate(ask())
    assert caught.value.kind is FaultKind.CRASHED


async def test_paused_server_times_out() -> None:
    async with SGLANG.serving(options={"timeout_s": 60}) as (server, engine):
        async with aiohttp.ClientSession() as session:
            await session.post(f"{server.url}/pause_generation", json={"mode": "abort"})
            with pytest.raises(EngineFault, match="paused") as caught:
                await outlast(engine.generate(ask()), 60, begun=server.payloads)
            await session.post(f"{server.url}/continue_generation", json={})
        assert (await engine.generate(ask())).token_ids
    assert caught.value.kind is FaultKind.TIMEOUT


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        (Family.QWEN2_5_VL, FaultKind.TIMEOUT),
        (Family.QWEN3_VL, FaultKind.PERMANENT),
        (Family.RETOKENISES, LedgerFault),
    ],
)
async def test_expanded_placeholders_are_a_typed_fault(
    family: Family, fault: FaultKind | type[LedgerFault]
) -> None:
    serving = SGLANG.serving(family=family, image_token_id=PAD, options={"timeout_s": 60})
    async with serving as (server, engine):
        hung = engine.generate(ask((4, *[PAD] * RED_TOKENS), [RED]))
        seconds = 60 if fault is FaultKind.TIMEOUT else 0
        with pytest.raises(Fault) as caught:
            await outlast(hung, seconds, begun=server.payloads)
        if isinstance(fault, FaultKind):
            assert (type(caught.value), caught.value.kind) == (EngineFault, fault)
            assert (await engine.generate(ask())).prompt_tokens == 3
        else:
            assert isinstance(caught.value, fault)


async def test_abort_of_a_queued_request_has_no_tokens_and_no_prompt_count() -> None:
    async with SGLANG.serving(max_running=1, first_token_s=30) as (server, engine):
        first = asyncio.create_task(engine.generate(ask(name="c" * 32)))
        await until(lambda: server.worker.running == 1)
        second = asyncio.create_task(engine.generate(ask(name="d" * 32)))
        await until(lambda: server.worker.waiting == 1)
        await engine.abort("d" * 32)
        queued = await second
        server.settings.first_token_s = 0.0
        skip(30)
        assert (await first).finish_reason is FinishReason.STOP
        assert (await engine.generate(ask())).token_ids
    assert queued.finish_reason is FinishReason.ABORT
    assert queued.token_ids == ()
    assert queued.prompt_tokens is None


PATIENT = RetryBudget(backoff=Backoff(initial_s=0.02, maximum_s=0.05))


def build() -> CountingEnv:
    return CountingEnv(World(), FaultPlan(0.0))


class CountedEngine(SGLangEngine):
    """Counts what is sent while the server is down."""

    is_down = False
    requests = 0
    probes = 0
    running = 0
    most_probes_at_once = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests += self.is_down
        return await super().generate(request)

    async def probe(self) -> None:
        self.probes += self.is_down
        self.running += 1
        self.most_probes_at_once = max(self.most_probes_at_once, self.running)
        try:
            await super().probe()
        finally:
            self.running -= 1


async def restart(server: FakeSGLang, engine: CountedEngine, *, after: int) -> float:
    """Restart the server after so many requests; return the seconds that it was away."""
    while len(server.payloads()) < after:
        await asyncio.sleep(0.005)
    now = asyncio.get_running_loop().time
    engine.is_down, stopped = True, now()
    await server.stop()
    await asyncio.sleep(0.5)
    await server.start()
    engine.is_down = False
    return now() - stopped


@pytest.mark.parametrize("episodes", [64, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_server_restart_faults_no_running_episode(episodes: int) -> None:
    async with FakeSGLang(reply, token_s=0.002, context_length=8192) as server:
        engine = CountedEngine(server.url)
        restarting = asyncio.create_task(restart(server, engine, after=episodes + episodes // 6))
        trajectories = [
            trajectory
            async for trajectory in collected(
                build,
                engine,
                text_codec(),
                episodes=episodes,
                concurrency=episodes,
                retries=PATIENT,
            )
        ]
        down_s = await restarting
        await engine.aclose()
    assert [one.reward for one in trajectories] == [1.0] * episodes
    assert all(one.fault is None and one.env_restarts == 0 for one in trajectories)
    assert engine.requests <= episodes  # on their way when the server went down; no episode twice
    assert 1 <= engine.probes <= down_s / 0.016 + 10  # one prober, 16 ms apart at least
    assert engine.most_probes_at_once == 1
    assert sum(turn.engine_retries for one in trajectories for turn in one.turns) > 0


async def test_server_that_asks_for_time_gets_it() -> None:
    moments: list[float] = []

    def busy_twice(request: dict[str, Any]) -> bytes:
        moments.append(asyncio.get_running_loop().time())
        if len(moments) <= 2:
            return http(b"{}", status="429 Busy", headers="Retry-After-Ms: 200\r\n")
        return http(json.dumps(good(request)).encode())

    async with hostile_server(busy_twice) as url:
        engine = SGLangEngine(url)
        trajectory = await play(build, engine, text_codec(), retries=PATIENT, seed=5)
        await engine.aclose()
    assert trajectory.reward == 1.0
    assert trajectory.turns[0].engine_retries == 2
    assert trajectory.turns[0].queue_seconds >= 0.4
    assert min(moments[1] - moments[0], moments[2] - moments[1]) >= 0.2


async def test_failure_of_one_request_is_retried_by_the_rollout_and_counted() -> None:
    served = 0

    def fails_once(request: dict[str, Any]) -> bytes:
        nonlocal served
        served += 1
        if served == 2:
            return http(b"oops", status="500 Internal Server Error")
        return http(json.dumps(good(request)).encode())

    async with hostile_server(fails_once) as url:
        engine = SGLangEngine(url)
        trajectory = await play(build, engine, text_codec(), retries=PATIENT, seed=5)
        await engine.aclose()
    assert trajectory.reward == 1.0
    assert [turn.engine_retries for turn in trajectory.turns] == [0, 1, 0]
    assert served == 4
