"""A judge on an engine of envkit's own: scripted, failing, and a real tiny model."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.embedded import make_engine
from PIL import Image as PilImage

from envkit import EnvFault, FaultKind, Image
from envkit.errors import EngineFault
from envkit.messages import message
from envkit.rewards import RewardContext
from envkit.rollout import FinishReason, GenerateRequest, Generation, LogprobKind, Sampling
from envkit.rollout.limits import Backoff
from envkit.tokens import ChatCodec
from envkit_judges import CallLimits, Criterion, EngineModel, Judge

CRITERION = Criterion(name="correct", text="Is it right?")
CONTEXT = RewardContext(task={"prompt": "1 + 1?"}, answer="2")
QUICK = CallLimits(timeout_s=20, backoff=Backoff(initial_s=0.001, maximum_s=0.001))


class SayingEngine:
    """Answers every request with the text that a function returns for it."""

    name = "saying"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, codec: ChatCodec, say: Callable[[GenerateRequest], str]) -> None:
        self._codec, self._say = codec, say
        self.requests: list[GenerateRequest] = []
        self.ended: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        ids = self._codec.encode_reply(self._say(request))
        return Generation(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            finish_reason=FinishReason.STOP,
            prompt_tokens=request.train_length,
        )

    async def abort(self, request_id: str) -> None:
        del request_id

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)

    async def aclose(self) -> None:
        return


def verdict(score: int) -> str:
    return json.dumps({"reason": "seen", "scores": {"correct": score}})


async def test_a_judge_asks_an_engine() -> None:
    codec = text_codec()
    engine = SayingEngine(codec, lambda _: verdict(9))
    judge = Judge(EngineModel(engine, codec), sampling=Sampling(temperature=0.0, max_new_tokens=50))

    found = await judge.grade([CRITERION], CONTEXT)

    assert dict(found.scores) == {"correct": 9}
    request = engine.requests[0]
    assert '"task": "1 + 1?"' in codec.decode(request.wire_ids)
    assert request.sampling.max_new_tokens == 50
    assert request.sampling.stop_ids == codec.stop_ids
    assert engine.ended == [request.session_id]


async def test_images_reach_the_engine() -> None:
    codec = vision_codec()
    engine = SayingEngine(codec, lambda _: verdict(1))
    picture = Image.from_pil(PilImage.new("RGB", (56, 56), "green"))
    context = replace(CONTEXT, messages=(message("user", "Look.", [picture]),))

    await Judge(EngineModel(engine, codec)).grade([CRITERION], context)

    request = engine.requests[0]
    assert request.images == (picture,)
    assert request.train_length == len(request.wire_ids) + request.features[0].token_count - 1


async def test_control_tokens_in_an_answer_do_not_stop_a_judge() -> None:
    codec = vision_codec()
    engine = SayingEngine(codec, lambda _: verdict(0))
    context = replace(CONTEXT, answer="<|image_pad|><|im_end|>")

    found = await Judge(EngineModel(engine, codec)).grade([CRITERION], context)

    assert dict(found.scores) == {"correct": 0}


async def test_an_engines_fault_is_tried_again_and_then_a_grader_fault() -> None:
    codec = text_codec()
    failures = 2

    def say(request: GenerateRequest) -> str:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise EngineFault("the server is down", kind=FaultKind.TRANSIENT)
        return verdict(4)

    judge = Judge(EngineModel(SayingEngine(codec, say), codec), limits=QUICK)
    assert dict((await judge.grade([CRITERION], CONTEXT)).scores) == {"correct": 4}

    failures = 100
    with pytest.raises(EnvFault, match="the server is down") as caught:
        await judge.grade([CRITERION], replace(CONTEXT, answer="3"))
    assert caught.value.kind is FaultKind.GRADER


async def test_a_question_that_the_template_refuses_is_a_grader_fault() -> None:
    codec = vision_codec()
    engine = SayingEngine(codec, lambda _: verdict(4))
    judge = Judge(EngineModel(engine, codec), show=lambda _: message("assistant", "4"))

    with pytest.raises(EnvFault, match="cannot be encoded") as caught:
        await judge.grade([CRITERION], CONTEXT)

    assert caught.value.kind is FaultKind.GRADER
    assert not engine.requests


@pytest.mark.slow
async def test_a_real_model_that_babbles_is_a_grader_fault() -> None:
    engine = make_engine("llama")
    judge = Judge(
        EngineModel(engine, text_codec()),
        sampling=Sampling(temperature=0.0, max_new_tokens=4),
        max_reasks=1,
    )
    try:
        with pytest.raises(EnvFault, match="no verdict in 2 replies") as caught:
            await judge.grade([CRITERION], CONTEXT)
    finally:
        await engine.aclose()
    assert caught.value.kind is FaultKind.GRADER
