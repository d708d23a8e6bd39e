"""`envkit doctor`: what is installed, what answers, and whether images reach the model."""

import asyncio
import math
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_server import FakeSGLang
from fakes.sglang_worker import Script
from fakes.vllm_server import FakeVLLM
from hypothesis import given
from hypothesis import strategies as st

from envkit.cli.checks import Status
from envkit.cli.doctor import _flags
from envkit.cli.engines import Built, EngineChoice, build
from envkit.cli.vision import Probe, Verdict, difference, judge, look
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import load
from envkit_vllm import VLLMEngine


class BlankingEngine:
    """Shows its model a grey image whatever it is given, as a broken server might."""

    name = "blanking"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def generate(self, request: GenerateRequest) -> Generation:
        grey = [
            Image.from_array(np.full((i.size[1], i.size[0], 3), 127, dtype=np.uint8))
            for i in request.images
        ]
        return await self._inner.generate(replace(request, images=grey, features=()))

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    async def end_session(self, session_id: str) -> None:
        await self._inner.end_session(session_id)

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextmanager
def serving(model: Path, **settings: Any) -> Generator[str]:
    """Run the fake server of a model on its own thread, and give its address."""
    codec = load_codec(model)
    server = FakeSGLang(
        _answer(codec), image_token_id=codec.media_ids[0], eos_ids=codec.stop_ids[:1], **settings
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    try:
        loop.run_until_complete(server.start())
        thread.start()
        yield server.url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(server.stop())
        loop.close()


def _answer(codec: ChatCodec) -> Script:
    reply = list(codec.encode_reply("it says 2222"))
    return lambda _: reply


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model_dir("qwen2_5_vl")


def test_doctor_says_that_a_server_does_not_answer() -> None:
    shown = run_envkit("doctor", "--engine", "sglang", "--base-url", "http://127.0.0.1:9")
    assert shown.code == 1
    assert "no: answer sglang" in shown.out
    assert "the server at http://127.0.0.1:9 does not answer" in shown.out
    assert "matters  every episode with it would fault" in shown.out
    assert "fix      curl -i http://127.0.0.1:9/health" in shown.out


def test_doctor_says_that_a_model_folder_is_wrong(tmp_path: Path) -> None:
    shown = run_envkit("doctor", "--model", tmp_path)
    assert shown.code == 1
    assert "is not a model folder" in shown.out
    assert "fix      envkit doctor --model DIR_OR_NAME" in shown.out


@pytest.mark.slow
def test_vision_reaches_the_embedded_model(model: Path) -> None:
    shown = run_envkit("doctor", "--vision", "--model", model)
    assert shown.code == 0, shown.out
    assert "answers: 1 token" in shown.out
    assert "the image reaches the model: yes" in shown.out
    assert "the same image again: log-probabilities differ by 0" in shown.out


@pytest.mark.slow
def test_vision_does_not_reach_a_text_model() -> None:
    shown = run_envkit("doctor", "--vision", "--model", tiny_model_dir("llama"))
    assert shown.code == 1
    assert "the image reaches the model: no" in shown.out
    assert "does not support images" in shown.out
    assert "matters  the policy would be trained on images" in shown.out
    assert "--enable-multimodal" in shown.out


@pytest.mark.slow
def test_vision_check_fails_for_a_blanking_engine(model: Path) -> None:
    async def examine() -> Verdict:
        built = await build(EngineChoice(model=str(model)))
        try:
            broken = Built(engine=BlankingEngine(built.engine), codec=built.codec, model="")
            return await look(broken, seed=1)
        finally:
            await built.engine.aclose()

    verdict = asyncio.run(examine())
    assert not verdict.reaches
    assert any("changes nothing" in reason for reason in verdict.reasons)


@pytest.mark.slow
def test_vision_reaches_a_server(model: Path) -> None:
    with serving(model) as url:
        arguments = ["--engine", "sglang", "--base-url", url, "--model", model]
        shown = run_envkit("doctor", "--vision", *arguments)
    assert shown.code == 0, shown.out
    assert "answers: 1 token" in shown.out
    assert "the image reaches the model: yes" in shown.out


async def test_flags_of_a_server_are_listed_and_a_missing_one_says_what_to_start(
    model: Path,
) -> None:
    codec = load_codec(model)
    server = FakeVLLM(lambda _: [20], is_processed=False, has_details=False)
    async with server:
        engine = VLLMEngine(server.url)
        rows = {row.name: row for row in await _flags(Built(engine=engine, codec=codec, model=""))}
        await engine.aclose()
    assert rows["--enable-scale-out"].status is Status.OK
    missing = rows["--logprobs-mode processed_logprobs"]
    assert missing.status is Status.FAILED
    assert missing.fix == "start the server with --logprobs-mode processed_logprobs"
    assert rows["--enable-prompt-tokens-details"].status is Status.OFF


@pytest.mark.slow
def test_rollout_asks_a_server_for_its_model(model: Path, tmp_path: Path) -> None:
    with serving(model, model_path=str(model)) as url:
        shown = run_envkit(
            "rollout", "canary-v0", "--engine", "sglang", "--base-url", url, "-n", 2,
            "--out", tmp_path / "run",
        )  # fmt: skip
    assert shown.code == 0, shown.err
    assert "terminated 2" in shown.out


@pytest.mark.slow
def test_rollout_stops_after_32_faults_in_a_row(model: Path, tmp_path: Path) -> None:
    failures = FailurePlan(script=[None] * 9, rates={Failure.MISSING_LOGPROB: 1.0})
    with serving(model, failures=failures) as url:
        shown = run_envkit(
            "rollout", "canary-v0", "--engine", "sglang", "--base-url", url, "--model", model,
            "-n", 4000, "--concurrency", 2, "--out", tmp_path / "run",
        )  # fmt: skip
    assert shown.code == 1
    assert re.search(r"3[23] episodes in a row faulted", shown.err)  # two end at a time
    kept = load(tmp_path / "run")
    assert sum(not t.is_faulted for t in kept) >= 1
    assert len(kept) < 50


def test_a_server_of_a_model_missing_locally_needs_its_name(model: Path) -> None:
    with serving(model, model_path="/srv/elsewhere") as url:
        shown = run_envkit("rollout", "canary-v0", "--engine", "sglang", "--base-url", url)
    assert shown.code == 2
    assert "'/srv/elsewhere'" in shown.last_error
    assert "add --model" in shown.last_error


def _probe(logprobs: list[float], **changes: Any) -> Probe:
    whole = Probe(
        picture="x",
        expected_tokens=20,
        prompt_tokens=20,
        token_ids=tuple(range(len(logprobs))),
        logprobs=tuple(logprobs),
        reply="",
    )
    return replace(whole, **changes)


def _asked(same: list[list[float]], other: list[float], blank: list[float]) -> list[Probe]:
    none = _probe([-9.0], expected_tokens=5, prompt_tokens=5)
    return [*map(_probe, same), _probe(other), _probe(blank), none]


def test_judge_names_a_wrong_token_count() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[2] = replace(asked[2], prompt_tokens=6)
    verdict = judge(asked, code="K7MX")
    assert not verdict.reaches
    assert verdict.reasons == (
        "image x: the engine counted 6 prompt tokens, but the processor gives 20",
    )


def test_judge_says_when_the_engine_does_not_repeat_itself() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[1] = replace(asked[1], token_ids=(7,))
    verdict = judge(asked, code="K7MX")
    assert not verdict.reaches
    assert "deterministic inference" in verdict.reasons[0]


def test_judge_sees_that_the_model_reads_the_code() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[0] = replace(asked[0], reply="it is k7mx")
    assert judge(asked, code="K7MX").reads


@given(
    noise=st.floats(0.0, 0.05),
    signal=st.floats(0.0, 1.0),
)
def test_judge_believes_only_differences_above_the_noise(noise: float, signal: float) -> None:
    asked = _asked([[-1.0], [-1.0 - noise], [-1.0]], [-1.0 - signal], [-2.0])
    verdict = judge(asked, code="K7MX")
    measured = difference(asked[0], asked[1])
    heard = difference(asked[0], asked[3])
    assert verdict.reaches == (min(heard, 1.0) > 4 * measured + 1e-6)


@given(values=st.lists(st.floats(-20, 0), max_size=5))
def test_difference_is_zero_for_a_probe_and_itself_and_infinite_for_other_tokens(
    values: list[float],
) -> None:
    one = _probe(values)
    assert difference(one, one) == 0.0
    assert math.isinf(difference(one, replace(one, token_ids=(99,), logprobs=(0.0,))))
