"""The loop: what it records, where it ends, what it refuses."""

import asyncio
import itertools
import threading
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.faults import RawEngine, say_turn
from fakes.playing import collected
from fakes.virtual_time import skip
from fakes.waiting import until

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.images import Image
from envkit.rollout import (
    Backoff,
    FinishReason,
    GenerateRequest,
    Generation,
    Limits,
    RetryBudget,
    Sampling,
    ScriptedEngine,
    play,
)
from envkit.tasks import Task
from envkit.tokens import SanityStatus
from envkit.trajectory import SegmentKind, StopReason, Trajectory


class Talk(Env):
    """Answers until `ends` turns are over; images on request."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, snapshot=True, replay_safe=True, deterministic=True
    )
    system_prompt = "Be brief."

    def __init__(self, *, ends: int = 3, max_turns: int = 10, pictures: bool = False) -> None:
        super().__init__(max_turns=max_turns)
        self._ends, self._pictures = ends, pictures

    def on_reset(self, task: Task) -> Turn:
        return Turn("Begin.", images=self._images(0))

    def on_turn(self, response_text: str) -> Turn:
        number = self.turn + 1
        error = "say something" if "bad" in response_text else None
        return Turn(
            f"Answer {number}.",
            images=self._images(number),
            reward=0.25,
            done=number >= self._ends,
            info={"parse_error": error},
        )

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        return

    def _images(self, number: int) -> tuple[Image, ...]:
        if not self._pictures:
            return ()
        return (Image.from_array(np.full((56, 84, 3), 10 * number, np.uint8)),)


async def run(env: Env, policy: Any = say_turn, **options: Any) -> Trajectory:
    codec = vision_codec() if getattr(env, "_pictures", False) else text_codec()
    return await play(env, ScriptedEngine(codec, policy), codec, seed=3, **options)


async def test_play_records_prompt_replies_and_observations_in_order() -> None:
    trajectory = await run(Talk())
    kinds = [segment.kind.value for segment in trajectory.segments]
    assert kinds == ["prompt", "model", "observation", "model", "observation", "model"]
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 0.75
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.25, 0.25]


async def test_play_records_the_threshold_that_the_reset_declared() -> None:
    class Later(Talk):
        def on_reset(self, task: Task) -> Turn:
            self.default_threshold = -0.75
            return super().on_reset(task)

    assert (await run(Later())).metadata["reward_threshold"] == -0.75
    assert "reward_threshold" not in (await run(Talk())).metadata


async def test_play_masks_exactly_the_sampled_ids_invariant_2() -> None:
    sent: list[tuple[int, ...]] = []

    class Recording(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            generation = await super().generate(request)
            sent.append(tuple(generation.token_ids))
            return generation

    codec = text_codec()
    trajectory = await play(Talk(), Recording(codec, say_turn), codec, seed=3)
    model = [s.train_ids for s in trajectory.segments if s.kind is SegmentKind.MODEL]
    assert model == sent
    trained = [i for i, m in zip(trajectory.train_ids(), trajectory.loss_mask(), strict=True) if m]
    assert trained == [i for ids in sent for i in ids]


async def test_play_wire_prompt_of_each_turn_extends_the_last_invariant_4() -> None:
    prompts: list[tuple[int, ...]] = []

    class Recording(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            prompts.append(tuple(request.wire_ids))
            return await super().generate(request)

    codec = vision_codec()
    env = Talk(pictures=True)
    trajectory = await play(env, Recording(codec, say_turn), codec, seed=3)
    assert trajectory.fault is None
    for earlier, later in itertools.pairwise(prompts):
        assert later[: len(earlier)] == earlier


async def test_play_counts_images_alike_everywhere_invariant_5() -> None:
    requests: list[GenerateRequest] = []

    class Recording(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            requests.append(request)
            return await super().generate(request)

    codec = vision_codec()
    trajectory = await play(Talk(pictures=True), Recording(codec, say_turn), codec, seed=3)
    assert [len(request.images) for request in requests] == [1, 2, 3]
    for request in requests:
        pads = sum(request.wire_ids.count(pad) for pad in codec.media_ids)
        assert pads == len(request.images) == len(request.features)
    assert len(trajectory.tensors()["image_grid_thw"]) == len(trajectory.images()) == 3


async def test_play_keeps_every_column_one_length_invariant_1() -> None:
    trajectory = await run(Talk(pictures=True))
    ids, mask, logprobs = trajectory.train_ids(), trajectory.loss_mask(), trajectory.logprobs()
    assert len(ids) == len(mask) == len(logprobs)
    assert set(mask) == {0, 1}
    assert all(value == 0.0 for value, m in zip(logprobs, mask, strict=True) if not m)


async def test_play_ledger_equals_the_full_render_invariant_3() -> None:
    for env in (Talk(), Talk(pictures=True)):
        codec = vision_codec() if env._pictures else text_codec()
        trajectory = await play(env, ScriptedEngine(codec, say_turn), codec, seed=3)
        messages = list(trajectory.messages)
        while messages[-1]["role"] != "assistant":
            messages.pop()
        rendered = codec.encode_prompt(messages[:-1]).wire_ids
        assert tuple(trajectory.wire_ids()[: len(rendered)]) == rendered
        assert {turn.sanity for turn in trajectory.turns[:-1]} == {SanityStatus.EQUAL}


async def test_play_same_seed_and_replies_give_the_same_episode_invariant_7() -> None:
    first, second = await run(Talk(pictures=True)), await run(Talk(pictures=True))
    assert first.train_ids() == second.train_ids()
    assert [turn.observation_hash for turn in first.turns] == [
        turn.observation_hash for turn in second.turns
    ]
    assert [image.sha256 for image in first.images()] == [i.sha256 for i in second.images()]


async def test_play_closes_a_truncated_reply_and_continues() -> None:
    codec = text_codec()
    trajectory = await run(Talk(), sampling=Sampling(max_new_tokens=2))
    assert trajectory.stop_reason is StopReason.TERMINATED
    observation = trajectory.segments[2]
    assert observation.kind is SegmentKind.OBSERVATION
    assert observation.train_ids[0] in codec.stop_ids
    assert observation.loss_mask[0] == 0


async def test_play_ends_before_an_image_too_many() -> None:
    trajectory = await run(Talk(pictures=True), limits=Limits(max_images=2))
    assert trajectory.stop_reason is StopReason.MAX_IMAGES
    assert len(trajectory.images()) == 2


async def test_play_refuses_a_sampled_placeholder() -> None:
    codec = vision_codec()
    pad = codec.media_ids[0]

    class Dreamer(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            return Generation(
                token_ids=(pad,),
                logprobs=(-1.0,),
                finish_reason=FinishReason.LENGTH,
                prompt_tokens=request.train_length,
            )

    trajectory = await play(Talk(pictures=True), Dreamer(codec, say_turn), codec, seed=1)
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT


async def test_play_refuses_raw_logprobs_at_another_temperature() -> None:
    codec = text_codec()
    engine = RawEngine(codec, say_turn)
    with pytest.raises(ConfigurationError, match="temperature 1"):
        await play(Talk(), engine, codec, sampling=Sampling(temperature=0.5))
    assert (await play(Talk(), engine, codec)).fault is None


async def test_play_never_blocks_the_event_loop_invariant_11() -> None:
    begun, released = threading.Event(), threading.Event()

    class Slow(Talk):
        def on_turn(self, response_text: str) -> Turn:
            begun.set()
            assert released.wait(120), "the event loop, which is to release it, waits for this step"
            return super().on_turn(response_text)

    playing = asyncio.create_task(run(Slow(ends=2)))
    await until(begun.is_set)
    released.set()
    trajectory = await playing
    assert trajectory.fault is None, trajectory.fault


# ---- asynchronous environments in the loop: no thread, the same ledger, the same recovery


STEP_S = 60.0
"""A step that does not hang takes less on any machine."""


class Remote(AsyncEnv):
    """Three turns against a service that fails or hangs once, by plan."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)

    def __init__(self, trouble: str | None = None) -> None:
        super().__init__(max_turns=5)
        self._trouble = trouble
        self._said: list[str] = []
        self.closed = 0

    async def on_areset(self, task: Task) -> Turn:
        self._said = []
        return Turn("Connected.")

    async def on_aturn(self, response_text: str) -> Turn:
        assert self.step_key is not None
        await asyncio.sleep(0.001)
        first = self.step_key.attempt == 0
        if self.turn == 1 and first and self._trouble == "transient":
            raise EnvFault("the service is down", kind=FaultKind.TRANSIENT)
        if self.turn == 1 and first and self._trouble == "hang":
            skip(STEP_S)
            await asyncio.sleep(9 * STEP_S)
        self._said.append(response_text)
        done = len(self._said) == 3
        return Turn("Noted.", reward=float(done), done=done, info={"said": list(self._said)})

    async def aclose(self) -> None:
        self.closed += 1


async def run_remote(trouble: str | None, built: list[Remote]) -> Trajectory:
    def build() -> Remote:
        built.append(Remote(trouble))
        return built[-1]

    codec = text_codec()
    budget = RetryBudget(step_timeout_s=STEP_S, backoff=Backoff(initial_s=0.001))
    return await play(build, ScriptedEngine(codec, say_turn), codec, seed=1, retries=budget)


async def test_play_awaits_an_async_environment_and_closes_it() -> None:
    built: list[Remote] = []
    trajectory = await run_remote(None, built)
    assert trajectory.reward == 1.0
    assert [env.closed for env in built] == [1]


async def test_play_replays_an_async_environment_after_a_fault() -> None:
    for trouble, environments in (("transient", 1), ("hang", 2)):
        built: list[Remote] = []
        trajectory = await run_remote(trouble, built)
        assert trajectory.stop_reason is StopReason.TERMINATED, trajectory.fault
        replies = [turn.response_text for turn in trajectory.turns]
        assert trajectory.turns[-1].info["said"] == replies
        assert sum(trajectory.turns[1].env_retries.values()) == 1
        assert len(built) == environments
        assert all(env.closed == 1 for env in built)


@pytest.mark.slow
async def test_collect_plays_thousands_of_async_episodes_at_once() -> None:
    codec = text_codec()
    stops: Counter[Any] = Counter()
    engine = ScriptedEngine(codec, say_turn, latency=lambda request: 0.05)
    async for trajectory in collected(Remote, engine, codec, episodes=1000, concurrency=1000):
        stops[trajectory.stop_reason] += 1
    assert stops == {StopReason.TERMINATED: 1000}
