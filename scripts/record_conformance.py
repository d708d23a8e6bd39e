#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Record the conformance suite's trajectories by real rollouts with real chat templates.

    .venv/bin/python scripts/record_conformance.py [DIR]

DIR defaults to `adapters/envkit_conformance/recordings`. Needs the templates fetched by
`scripts/fetch_templates.py`. Every run writes the same tokens: replies are scripted,
log-probabilities are a function of id and position, and times are written as 0.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

import numpy as np  # noqa: E402
from conformance_agents import record_agent, write  # noqa: E402
from conformance_branches import record_tree, with_sub_agent  # noqa: E402
from fakes.envs import AdderEnv  # noqa: E402
from fakes.playing import play_one  # noqa: E402
from fakes.templates import image_processor, make_codec  # noqa: E402

from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn  # noqa: E402
from envkit.errors import EngineFault, EnvFault, FaultKind  # noqa: E402
from envkit.images import Image  # noqa: E402
from envkit.messages import Message, text_of  # noqa: E402
from envkit.rollout import (  # noqa: E402
    GenerateRequest,
    Generation,
    Interrupt,
    Limits,
    RetryBudget,
    Sampling,
    ScriptedEngine,
    resume,
)
from envkit.tasks import Task  # noqa: E402
from envkit.tokens import ChatCodec, Encoded  # noqa: E402
from envkit.trajectory import StopReason, Trajectory, check_trajectory  # noqa: E402
from envkit_conformance import load_recordings, save_recordings  # noqa: E402
from envkit_conformance.recordings import ABOUT_KEY, FILLER_KEY, NAME_KEY  # noqa: E402

TARGET = ROOT / "adapters" / "envkit_conformance" / "recordings"
NO_RETRIES = RetryBudget(
    max_env_retries_per_turn=0,
    max_env_retries_per_episode=0,
    max_engine_retries_per_turn=0,
    max_episode_restarts=0,
)
STEP_TIMEOUT_S = 3.0
"""Deadline in the episode with a hung step; enough for its first step on a busy machine."""


class Gallery(Env):
    """Images in several turns: one, two, none, one. Every turn has a reward."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, deterministic=True
    )
    system_prompt = "Say what you see.\nOne sentence."

    def __init__(
        self,
        *,
        turns: int = 4,
        max_turns: int = 6,
        side: int = 56,
        pictures: bool = True,
        fails_at: int | None = None,
        hangs_at: int | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns)
        self._turns, self._side, self._has_pictures = turns, side, pictures
        self._fails_at, self._hangs_at = fails_at, hangs_at

    def on_reset(self, task: Task) -> Turn:
        """Show the first image."""
        if self._fails_at == -1:
            raise EnvFault("the gallery is closed", kind=FaultKind.PERMANENT)
        return Turn("Room 0.\nWhat is here?", images=self._images_of(0))

    def on_turn(self, response_text: str) -> Turn:
        """Move to the next room."""
        if self._fails_at == self.turn:
            raise EnvFault("the lights went out", kind=FaultKind.PERMANENT)
        if self._hangs_at == self.turn:
            time.sleep(STEP_TIMEOUT_S + 1.0)
        room = self.turn + 1
        done = room >= self._turns
        reward = 0.25 * room - 0.125
        text = "Thank you." if done else f"Room {room}.\n\nAnd here?"
        return Turn(text, () if done else self._images_of(room), reward=reward, done=done)

    def _images_of(self, room: int) -> tuple[Image, ...]:
        if not self._has_pictures:
            return ()
        count = (1, 2, 0, 1, 1)[room % 5]
        return tuple(self._picture(10 * room + number) for number in range(count))

    def _picture(self, number: int) -> Image:
        """Draw three flat areas: small files, and no two images alike."""
        height, width = self._side, self._side + (self._side // 2) * (number % 2)
        pixels = np.full((height, width, 3), (40 + 9 * number, 200 - 3 * number, 90), np.uint8)
        pixels[: height // 2, : width // 3] = (250 - 4 * number, 30, 2 * number)
        pixels[height // 2 :, width // 2 :] = (20, 5 * number, 230)
        return Image.from_array(pixels)


class Interpreter(Gallery):
    """A gallery whose slow steps are the reply's fault."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, deterministic=True, on_step_timeout="truncate"
    )


class Recorder(ScriptedEngine):
    """A scripted engine whose replies have log-probabilities and a weight version."""

    def __init__(
        self,
        codec: ChatCodec,
        policy: Policy,
        *,
        fails_at: int | None,
        latency: Callable[[GenerateRequest], float],
    ) -> None:
        super().__init__(codec, policy, latency=latency)
        self._fails_at = fails_at
        self.weight_version = "3"

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate the scripted reply; a resumed reply continues where it was cut."""
        if request.context is not None and request.context.turn == self._fails_at:
            raise EngineFault("the server is gone", kind=FaultKind.PERMANENT)
        made = await super().generate(request)
        place = len(request.wire_ids)
        logprobs = [logprob(token, place + n) for n, token in enumerate(made.token_ids)]
        return replace(made, logprobs=logprobs, weight_version=self.weight_version)


def logprob(token: int, position: int) -> float:
    """Return a number, exact in single precision, that is unlikely at any other position."""
    return -((token * 7919 + position * 104729) % 4093 + 1) / 512


def describe(context: PolicyContext) -> str:
    """Policy: text with blank lines, long enough to be cut anywhere."""
    return f"Room {context.turn}:\n\nI see three flat areas,\nand no picture frame at all."


def think(context: PolicyContext) -> str:
    """Policy: a thinking model's reply."""
    return f"<think>\nThis is room {context.turn}.\n</think>\n\nThree areas in room {context.turn}."


def work(context: PolicyContext) -> str:
    """Policy: a summary if requested, else a sentence that differs between forks."""
    if "Summarise" in text_of(context.messages[-1]):
        return f"So far I saw {context.turn} rooms."
    return f"Room {context.turn}, view {context.seed % 97}:\n\nthree flat areas."


def call_tool(context: PolicyContext) -> str:
    """Policy: a malformed call, a valid call, the sum."""
    a, b = context.task["a"], context.task["b"]
    if context.turn == 0:
        return '<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>'
    if context.turn == 1:
        return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
    return str(a + b)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One recording."""

    name: str
    about: str
    stop: StopReason
    env: Callable[[], Env] = Gallery
    template: str = "qwen2.5-vl"
    policy: Policy = describe
    history: str = "keep"
    """How the codec handles a template that rewrites earlier replies."""
    policy_history: Mapping[str, Any] | None = None
    """The rollout's history policy."""
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    engine_fails_at: int | None = None
    abort_at: int | None = None
    retries: RetryBudget = NO_RETRIES
    late_at: int | None = None
    """Turn after which the deadline passes, while its observation is encoded."""


def text_room(*, turns: int = 4) -> Callable[[], Env]:
    """Return a factory for a gallery without images."""
    return lambda: Gallery(pictures=False, turns=turns)


DONE, STOP = StopReason.TERMINATED, StopReason
SCENES = (
    Scene(
        name="text",
        about="three turns of text, each with a reward",
        stop=DONE,
        env=text_room(turns=3),
        template="qwen2.5",
    ),
    Scene(
        name="images",
        about="four turns with one, two, no and one image; Qwen2.5-VL",
        stop=DONE,
    ),
    Scene(
        name="images_qwen3_vl",
        about="the same turns with the template and the patches of Qwen3-VL",
        stop=DONE,
        env=lambda: Gallery(side=64),
        template="qwen3-vl",
    ),
    Scene(
        name="tool_calls",
        about="a call that does not parse, a good call with its answer, the final text",
        stop=DONE,
        env=AdderEnv,
        template="qwen3-2507",
        policy=call_tool,
    ),
    Scene(
        name="max_turns",
        about="ended by Limits.max_turns",
        stop=STOP.MAX_TURNS,
        limits=Limits(max_turns=2),
    ),
    Scene(
        name="env_truncated",
        about="ended by the environment's own turn limit",
        stop=STOP.ENV_TRUNCATED,
        env=lambda: Gallery(max_turns=2),
    ),
    Scene(
        name="turn_tokens",
        about="a reply of text cut by Limits.max_tokens_per_turn, without a stop token",
        stop=STOP.TURN_TOKENS,
        env=text_room(),
        template="qwen2.5",
        limits=Limits(max_tokens_per_turn=9),
    ),
    Scene(
        name="response_tokens",
        about="an observation that would overshoot Limits.max_response_tokens is not appended",
        stop=STOP.RESPONSE_TOKENS,
        limits=Limits(max_response_tokens=80),
    ),
    Scene(
        name="response_tokens_reply",
        about="the second reply is cut by Limits.max_response_tokens",
        stop=STOP.RESPONSE_TOKENS,
        env=text_room(),
        template="qwen2.5",
        limits=Limits(max_response_tokens=44),
    ),
    Scene(
        name="sampled_tokens",
        about="the second reply is cut by Limits.max_sampled_tokens",
        stop=STOP.SAMPLED_TOKENS,
        env=text_room(),
        template="qwen2.5",
        limits=Limits(max_sampled_tokens=30),
    ),
    Scene(
        name="context_tokens",
        about="ended by Limits.max_context_tokens, image placeholders counted expanded",
        stop=STOP.CONTEXT_TOKENS,
        limits=Limits(max_context_tokens=120),
    ),
    Scene(
        name="max_images",
        about="two more images would exceed Limits.max_images",
        stop=STOP.MAX_IMAGES,
        limits=Limits(max_images=2),
    ),
    Scene(
        name="episode_timeout",
        about="Limits.episode_timeout_s passed between the second turn and the third",
        stop=STOP.EPISODE_TIMEOUT,
        late_at=1,
    ),
    Scene(
        name="step_timeout",
        about="the second step passed its deadline, which this environment blames on the reply",
        stop=STOP.STEP_TIMEOUT,
        env=lambda: Interpreter(hangs_at=1),
        retries=replace(NO_RETRIES, step_timeout_s=STEP_TIMEOUT_S),
    ),
    Scene(
        name="reply_cut",
        about="replies cut by Sampling.max_new_tokens; the template's closing tokens have mask 0",
        stop=DONE,
        env=lambda: Gallery(turns=2),
        sampling=Sampling(max_new_tokens=7),
    ),
    Scene(
        name="env_fault_at_reset",
        about="the environment failed at its reset: no token at all",
        stop=STOP.ENV_FAULT,
        env=lambda: Gallery(fails_at=-1),
    ),
    Scene(
        name="env_fault_in_step",
        about="the environment failed in its second step: two replies, none trained",
        stop=STOP.ENV_FAULT,
        env=lambda: Gallery(fails_at=1),
    ),
    Scene(
        name="engine_fault_at_start",
        about="the engine failed at the first reply: a prompt with an image and no reply",
        stop=STOP.ENGINE_FAULT,
        engine_fails_at=0,
    ),
    Scene(
        name="engine_fault_later",
        about="the engine failed at the third reply: two replies, none trained",
        stop=STOP.ENGINE_FAULT,
        engine_fails_at=2,
    ),
    Scene(
        name="abort_resumed",
        about="aborted in the second reply and resumed with new weights: two segments, one turn",
        stop=DONE,
        abort_at=1,
    ),
    Scene(
        name="thinking_keep",
        about="a thinking model, history kept as sampled: one sequence",
        stop=DONE,
        env=text_room(turns=3),
        template="qwen3",
        policy=think,
    ),
    Scene(
        name="thinking_rerender",
        about="a thinking model, history rendered anew without its reasoning: several sequences",
        stop=DONE,
        env=text_room(turns=3),
        template="qwen3",
        policy=think,
        history="rerender",
    ),
    Scene(
        name="compaction",
        about="the history is summarised three times, each time by a reply that is trained",
        stop=DONE,
        env=text_room(turns=5),
        template="qwen3",
        policy=work,
        policy_history={"summarise": {"at_tokens": 75, "max_tokens": 24}},
    ),
    Scene(
        name="dropped_screenshot",
        about="old images become text once there are more than two; Qwen2.5-VL",
        stop=DONE,
        policy_history={"keep_last_images": {"keep": 1, "drop_at": 2}},
    ),
)


def fire_after(codec: ChatCodec, interrupt: Interrupt, *, turn: int) -> None:
    """Let the episode's deadline pass while the observation after a turn is encoded."""
    encode = codec.encode_observation

    def late(messages: Sequence[Message], **options: Any) -> Encoded:  # noqa: ANN401  # as the codec takes them
        if f"Room {turn + 1}." in text_of(messages[0]):
            interrupt.fire(StopReason.EPISODE_TIMEOUT)
        return encode(messages, **options)

    codec.encode_observation = late


async def record(scene: Scene) -> Trajectory:
    """Play one scene and return its record without times."""
    images = image_processor(scene.template) if scene.template.endswith("-vl") else None
    codec = make_codec(scene.template, image_processor=images, history=scene.history)
    interrupt = Interrupt()

    def latency(request: GenerateRequest) -> float:
        context = request.context
        if context is None or context.turn != scene.abort_at or interrupt.reason is not None:
            return 0.0
        asyncio.get_running_loop().call_later(0.01, interrupt.fire)
        return 60.0

    if scene.late_at is not None:
        fire_after(codec, interrupt, turn=scene.late_at)
    engine = Recorder(codec, scene.policy, fails_at=scene.engine_fails_at, latency=latency)
    settings: dict[str, Any] = {
        "limits": scene.limits,
        "sampling": scene.sampling,
        "retries": scene.retries,
    }
    if scene.policy_history is not None:
        settings["history"] = scene.policy_history
    filler = codec.stop_ids[0]
    facts: Mapping[str, Any] = {NAME_KEY: scene.name, ABOUT_KEY: scene.about, FILLER_KEY: filler}
    made = await play_one(
        scene.env,
        engine,
        codec,
        seed=11,
        episode_id=scene.name,
        interrupt=interrupt,
        metadata=facts,
        **settings,
    )
    if scene.abort_at is not None:
        engine.weight_version = "4"
        made = await resume(made, scene.env, engine, codec, **settings)
    if made.stop_reason is not scene.stop:
        raise RuntimeError(f"{scene.name} ended by {made.stop_reason}: {made.fault}")
    if problems := check_trajectory(made):
        raise RuntimeError(f"{scene.name}: {problems}")
    env_id = "adder-v0" if scene.env is AdderEnv else "gallery-v0"
    return replace(without_times(made), env_id=env_id)


def without_times(made: Trajectory) -> Trajectory:
    """Return the trajectory with every time set to 0, so equal runs give equal files."""
    zero = {f"{name}_seconds": 0.0 for name in ("queue", "generate", "env", "encode")}
    turns = tuple(replace(turn, **zero) for turn in made.turns)
    fault = None if made.fault is None else replace(made.fault, traceback=None)
    return replace(made, turns=turns, duration_seconds=0.0, fault=fault)


async def record_branches() -> list[Trajectory]:
    """Play a tree of forks, and an episode with a sub-agent."""
    codec = make_codec("qwen2.5")
    engine = Recorder(codec, work, fails_at=None, latency=lambda _: 0.0)
    tree = await record_tree(text_room(turns=4), engine, codec)
    scene = Scene(name="main", about="", stop=DONE, env=text_room(turns=2), template="qwen2.5")
    main, other = await record(scene), await record(replace(scene, name="other", policy=work))
    made = [*map(without_times, tree), with_sub_agent(main, other, filler_id=codec.stop_ids[0])]
    for one in made:
        if problems := check_trajectory(one):
            raise RuntimeError(f"{one.metadata[NAME_KEY]}: {problems}")
    return [replace(one, env_id="gallery-v0") for one in made]


async def record_behind_gateway() -> Trajectory:
    """Play an agent that drives itself."""
    codec = make_codec("qwen2.5-vl", image_processor=image_processor("qwen2.5-vl"))
    engine = Recorder(codec, write, fails_at=None, latency=lambda _: 0.0)
    made = without_times(await record_agent(Gallery, engine, codec))
    if problems := check_trajectory(made):
        raise RuntimeError(f"agent: {problems}")
    return made


async def record_all() -> list[Trajectory]:
    """Play every scene in order."""
    scenes = [await record(scene) for scene in SCENES]
    return [*scenes, *await record_branches(), await record_behind_gateway()]


def main(target: Path) -> None:
    """Write the recordings and list them."""
    if target.is_dir():
        shutil.rmtree(target)
    save_recordings(asyncio.run(record_all()), target)
    for one in load_recordings(target):
        tokens = sum(segment.token_count for segment in one.trajectory.segments)
        images = sum(len(segment.images) for segment in one.trajectory.segments)
        print(f"{one.name:24} {tokens:5} tokens {images:2} images  {one.trajectory.stop_reason}")
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{size / 1000:.0f} kB in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
