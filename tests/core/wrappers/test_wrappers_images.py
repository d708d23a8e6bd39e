"""`BlankImage` and `SwapImage`: what the model sees changes, everything else stays."""

import re
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.command import run_envkit
from fakes.envs import DotsEnv, EchoEnv, register_missing, register_toys
from fakes.models import tiny_model_dir
from fakes.playing import play_one
from PIL import Image as PilImage

import envkit
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Observation, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, ContractError, EnvFault, FaultKind
from envkit.images import Image
from envkit.messages import Message, images_of, message
from envkit.rollout import Interrupt, Limits, RetryBudget, ScriptedEngine, play, resume
from envkit.rollout.host import AnyEnv
from envkit.trajectory import FaultPlace, StopReason, Trajectory, check_trajectory
from envkit.wrappers import BlankImage, SwapImage

Wrap = Callable[[AnyEnv], AnyEnv]
BOTH = pytest.mark.parametrize("wrap", [BlankImage, SwapImage], ids=["blank", "swap"])


def canary() -> Env:
    return envkit.make("canary-v0", turns=3)


def shown(trajectory: Trajectory) -> list[str]:
    """The images of the ledger, which is what the model saw."""
    return [image.sha256 for image in trajectory.images()]


async def played(
    env: AnyEnv | Callable[[], AnyEnv], policy: Policy | None = None, **options: Any
) -> Trajectory:
    codec = vision_codec()
    engine = ScriptedEngine(codec, policy or canary().oracle())
    return await play_one(env, engine, codec, seed=4, **options)


def says(text: str) -> Policy:
    return lambda _: text


@BOTH
async def test_the_model_sees_other_images_and_the_same_text(wrap: Wrap) -> None:
    plain = await played(canary())
    wrapped = await played(wrap(canary()))

    assert len(shown(wrapped)) == len(shown(plain)) == 3
    assert set(shown(wrapped)).isdisjoint(shown(plain))
    assert [m["role"] for m in wrapped.messages] == [m["role"] for m in plain.messages]
    assert wrapped.task == plain.task
    assert wrapped.reward == plain.reward == pytest.approx(1.0)
    assert [image.sha256 for image in images_of(wrapped.messages)] == shown(wrapped)
    assert check_trajectory(wrapped) == ()


async def test_blank_images_have_one_colour_and_the_size_of_the_true_ones() -> None:
    plain = await played(canary())
    blank = await played(BlankImage(canary(), grey=90))

    for true, seen in zip(plain.images(), blank.images(), strict=True):
        assert seen.size == true.size
        assert seen.mode == true.mode
        assert np.unique(seen.array()).tolist() == [90]


async def test_swapped_images_are_first_images_of_other_tasks() -> None:
    swapped = await played(SwapImage(canary()))
    again = await played(SwapImage(canary()))
    other = await played(SwapImage(canary(), seed=1))

    assert len(set(shown(swapped))) == 3  # three true images, three wrong ones
    assert shown(again) == shown(swapped)
    assert set(shown(other)).isdisjoint(shown(swapped))
    assert all(image.array().std() > 5 for image in swapped.images())  # images, not blanks


@BOTH
async def test_the_record_says_which_wrapper_it_was_made_with(wrap: Wrap) -> None:
    wrapped = await played(wrap(canary()))

    assert wrapped.reset_info["image_wrapper"] == ("blank" if wrap is BlankImage else "swap")
    assert wrapped.env_id == "canary-v0"


@BOTH
async def test_a_resumed_episode_shows_the_images_that_an_unbroken_one_shows(wrap: Wrap) -> None:
    unbroken = await played(wrap(canary()))
    interrupt = Interrupt()
    oracle = canary().oracle()

    def reply(context: PolicyContext) -> str:
        if context.turn == 1:
            interrupt.fire(StopReason.ABORTED)
        return oracle(context)

    first = await played(wrap(canary()), policy=reply, interrupt=interrupt)
    assert first.stop_reason is StopReason.ABORTED
    codec = vision_codec()
    whole = await resume(first, wrap(canary()), ScriptedEngine(codec, oracle), codec)

    assert shown(whole) == shown(unbroken)
    assert whole.train_ids() == unbroken.train_ids()


class CrashingDots(DotsEnv):
    """Its second step ever crashes, so that a rollout needs a fresh environment."""

    steps: ClassVar[int] = 0

    def on_turn(self, response_text: str) -> Turn:
        CrashingDots.steps += 1
        if CrashingDots.steps == 2:
            raise EnvFault("the backend is gone", kind=FaultKind.CRASHED)
        return super().on_turn(response_text)


@BOTH
async def test_a_fresh_environment_after_a_crash_is_wrapped_again(wrap: Wrap) -> None:
    register_missing({"toy-crashing-dots-v0": CrashingDots})
    CrashingDots.steps = 0
    oracle = DotsEnv().oracle()
    env = wrap(envkit.make("toy-crashing-dots-v0"))

    trajectory = await played(env, policy=oracle, retries=RetryBudget(max_env_retries_per_turn=2))

    assert trajectory.reward == 1.0
    assert trajectory.turns[1].env_retries == {"crashed": 1}
    truth = await played(DotsEnv(), policy=oracle)
    assert len(shown(trajectory)) == 3
    assert set(shown(trajectory)).isdisjoint(shown(truth))


class AsyncImages(AsyncEnv):
    """Shows an image of the task's brightness, asynchronously."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)

    def __init__(self, *, max_turns: int = 2, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    async def on_areset(self, task: Any) -> Turn:
        brightness = int(self.np_random.integers(200, 250))
        self.task["brightness"] = brightness
        return Turn("Look.", images=(_flat(brightness),))

    async def on_aturn(self, response_text: str) -> Turn:
        return Turn("Done.", reward=1.0, done=True)


def _flat(brightness: int) -> Image:
    return Image.from_pil(PilImage.new("RGB", (28, 28), (brightness, 0, 0)))


@BOTH
async def test_images_of_an_asynchronous_environment_are_replaced_too(wrap: Wrap) -> None:
    plain = await played(AsyncImages, policy=says("ok"))
    wrapped = await played(lambda: wrap(AsyncImages()), policy=says("ok"))

    assert wrapped.reward == 1.0
    assert set(shown(wrapped)).isdisjoint(shown(plain))


class DecoratingEnv(DotsEnv):
    """Adds its own image where it formats an observation."""

    def format_observation(self, observation: Observation) -> Message:
        return message("user", observation["text"], (*observation["images"], _flat(self.dots)))


@BOTH
async def test_images_that_the_environment_adds_to_its_message_are_replaced_too(
    wrap: Wrap,
) -> None:
    plain = await played(DecoratingEnv(), policy=DotsEnv().oracle())
    wrapped = await played(wrap(DecoratingEnv()), policy=DotsEnv().oracle())

    assert len(shown(wrapped)) == len(shown(plain)) == 6
    assert set(shown(wrapped)).isdisjoint(shown(plain))


class ShorteningEnv(DotsEnv):
    """Shortens an observation to the last of its images and one of its own."""

    def on_turn(self, response_text: str) -> Turn:
        return Turn("long " * 400, images=(_flat(1),))

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return {**observation, "text": "short", "images": (*observation["images"], _flat(2))}


async def test_images_of_a_shortened_observation_are_replaced_too() -> None:
    limits = Limits(max_response_tokens=120, max_turns=2)
    trajectory = await played(BlankImage(ShorteningEnv(size=28)), policy=says("3"), limits=limits)

    assert trajectory.turns[0].image_count == 2
    assert all(np.unique(image.array()).tolist() == [128] for image in trajectory.images())


class OneImageEnv(DotsEnv):
    """Shows the same image in every task."""

    def on_reset(self, task: Any) -> Turn:
        return Turn("What is this?", images=(_flat(7),))


async def test_swapping_says_when_there_is_no_other_image() -> None:
    trajectory = await played(SwapImage(OneImageEnv()), policy=says("3"))
    assert trajectory.fault is not None
    assert trajectory.fault.where is FaultPlace.RESET
    assert re.search(r"no other image .* use BlankImage", trajectory.fault.message)


class LonelyEnv(DotsEnv):
    capabilities: ClassVar[Capabilities] = Capabilities(max_sessions=1)


def test_swapping_refuses_an_environment_of_one_session() -> None:
    with pytest.raises(ConfigurationError, match="max_sessions=1"):
        SwapImage(LonelyEnv())


def test_wrappers_refuse_a_non_envkit_environment() -> None:
    with pytest.raises(ContractError, match=r"wraps an envkit\.Env, got CartPoleEnv"):
        BlankImage(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_brightness_is_a_byte() -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 255, got 256"):
        BlankImage(canary(), grey=256)


def test_a_grey_image_stays_grey() -> None:
    picture = Image.from_array(np.arange(64, dtype=np.uint8).reshape(8, 8))

    assert BlankImage(canary()).replace(picture, 0).mode == "L"


@BOTH
def test_the_promises_of_the_wrapped_environment_stay(wrap: Wrap) -> None:
    """Same seed and replies: same observations, info and image bytes; and Gymnasium agrees."""
    env, again = wrap(canary()), wrap(canary())
    first = [env.reset(seed=9), *(env.step("K7MX") for _ in range(3))]
    second = [again.reset(seed=9), *(again.step("K7MX") for _ in range(3))]

    assert first == second
    assert env.reset(seed=9) == first[0]
    assert envkit.check_env(env).passed
    env.close()
    again.close()


async def test_text_only_environments_stay_as_they_are() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, EchoEnv().oracle())

    trajectory = await play(BlankImage(EchoEnv()), engine, codec, seed=1)

    assert trajectory.reward == 1.0
    assert trajectory.images() == ()


def test_rollout_says_when_a_wrapper_changed_nothing(tmp_path: Any) -> None:
    register_toys()
    outcome = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("llama"),
        "-n", 2, "--out", tmp_path / "run", "-q", "--wrap", "blank-image",
    )  # fmt: skip

    assert outcome.code == 1
    assert outcome.last_error == (
        "--wrap blank-image changed nothing: no episode of toy-echo-v0 showed an image"
    )
