"""A player that plays many episodes for a trainer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.envs import EchoEnv, register_toys
from fakes.models import tiny_model_dir

from envkit.env import Capabilities, PolicyContext
from envkit.errors import ConfigurationError, FaultKind, UnknownNameError
from envkit.registration import register
from envkit.rollout import (
    EnvSource,
    EpisodeRequest,
    EpisodeSpec,
    Interrupt,
    Limits,
    Player,
    Sampling,
    ScriptedEngine,
    play_through,
)
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.tokens import load_codec
from envkit.trajectory import StopReason, Trajectory, whole_row


class LoneEnv(EchoEnv):
    """Allows two sessions at a time, and notes who is built and closed."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        replay_safe=True, snapshot=True, deterministic=True, thread_safe=True, max_sessions=2
    )
    built: ClassVar[list["LoneEnv"]] = []

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.is_closed = False
        self.built.append(self)

    def close(self) -> None:
        self.is_closed = True
        super().close()


LONE = EnvSource("toy-lone-v0")


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_toys()
    register("toy-lone-v0", LoneEnv)
    LoneEnv.built.clear()


@pytest.fixture
async def player() -> AsyncGenerator[Player]:
    engine = ScriptedEngine(text_codec(), lambda context: str(context.task["word"]))
    made = Player(engine, text_codec())
    yield made
    await made.aclose()


async def test_player_uses_environments_again(player: Player) -> None:
    for seed in range(5):
        (trajectory,) = await player.play(LONE, EpisodeSpec(seed=seed))
        assert trajectory.reward == 1.0
        assert trajectory.env_id == "toy-lone-v0"
    assert len(LoneEnv.built) == 1


async def test_player_obeys_the_sessions_that_an_environment_allows(player: Player) -> None:
    specs = [EpisodeSpec(seed=seed) for seed in range(12)]
    done = await asyncio.gather(*(player.play(LONE, spec) for spec in specs))
    assert len(LoneEnv.built) <= 2
    assert {one.stop_reason for played in done for one in played} == {StopReason.TERMINATED}


async def test_player_closes_what_it_keeps(player: Player) -> None:
    await asyncio.gather(*(player.play(LONE, EpisodeSpec(seed=seed)) for seed in range(4)))
    await player.aclose()
    await player.aclose()
    assert LoneEnv.built
    assert all(env.is_closed for env in LoneEnv.built)


async def test_player_leaves_an_environment_of_the_caller_open(player: Player) -> None:
    env = LoneEnv()
    await player.play(env)
    await player.aclose()
    assert not env.is_closed
    env.close()


async def test_player_names_an_unknown_environment(player: Player) -> None:
    for _ in range(2):
        with pytest.raises(UnknownNameError, match="toy-lone-v0"):
            await player.play(EnvSource("toy-lon-v0"))


async def test_player_takes_limits_for_one_episode() -> None:
    made = Player(ScriptedEngine(text_codec(), lambda _: "wrong"), text_codec())
    try:
        (short,) = await made.play(LONE, EpisodeSpec(limits=Limits(max_turns=1)))
        assert short.stop_reason is StopReason.MAX_TURNS
        (whole,) = await made.play(LONE)
        assert len(whole.turns) == 3
    finally:
        await made.aclose()


async def test_player_resumes_an_aborted_episode_with_images() -> None:
    interrupt = Interrupt()

    def policy(context: PolicyContext) -> str:
        if context.turn == 1:
            interrupt.fire()
        return str(context.env.unwrapped.dots)  # pyright: ignore[reportAttributeAccessIssue]

    source = EnvSource("toy-dots-v0")
    made = Player(ScriptedEngine(vision_codec(), policy), vision_codec())
    try:
        (whole,) = await made.play(source, EpisodeSpec(seed=5), interrupt=Interrupt())
        interrupt = Interrupt()
        (part,) = await made.play(source, EpisodeSpec(seed=5), interrupt=interrupt)
        assert part.stop_reason is StopReason.ABORTED
        assert whole.stop_reason is StopReason.TERMINATED
        (again,) = await made.resume(part, source)
    finally:
        await made.aclose()
    first, second = whole_row(whole, filler_id=0), whole_row(again, filler_id=0)
    assert (first.response_ids, first.loss_mask) == (second.response_ids, second.loss_mask)
    assert first.images == second.images
    assert {key: value.tobytes() for key, value in first.tensors.items()} == {
        key: value.tobytes() for key, value in second.tensors.items()
    }


async def test_player_refuses_to_resume_what_was_not_aborted(player: Player) -> None:
    (finished,) = await player.play(LONE)
    with pytest.raises(ConfigurationError, match="aborted"):
        await player.resume(finished, LONE)


class Restless(Player):
    """A player whose server aborts the first requests, as while it gets new weights."""

    aborts = 0
    resumed = 0

    async def play_spec(
        self, env: AnyEnv | EnvFactory, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        if self.aborts:
            self.aborts -= 1
            interrupt.fire()
        self.resumed += spec.earlier is not None
        return await super().play_spec(env, spec, interrupt)


@pytest.fixture
async def restless() -> AsyncGenerator[Restless]:
    engine = ScriptedEngine(text_codec(), lambda context: str(context.task["word"]))
    made = Restless(engine, text_codec())
    yield made
    await made.aclose()


async def test_play_through_resumes_past_the_aborts_of_a_server(restless: Restless) -> None:
    spec = EpisodeSpec(seed=3, sampling=Sampling(max_new_tokens=1))
    restless.aborts = 2
    (played,), aborts = await play_through(restless, LONE, spec, max_aborts=2)
    assert (aborts, restless.resumed) == (2, 2)
    (alone,) = await restless.play(LONE, spec)
    assert played.stop_reason is alone.stop_reason
    assert played.turns[0].response_tokens == 1, "a resumed episode keeps its own sampling"
    assert whole_row(played, filler_id=0) == whole_row(alone, filler_id=0)


async def test_play_through_fails_with_a_transient_fault(restless: Restless) -> None:
    restless.aborts = 9
    (played,), aborts = await play_through(restless, LONE, EpisodeSpec(seed=3), max_aborts=1)
    assert (played.stop_reason, aborts) == (StopReason.ENGINE_FAULT, 2)
    assert played.reward is None
    assert played.fault is not None
    assert played.fault.kind is FaultKind.TRANSIENT


async def test_play_through_returns_what_the_caller_stopped(restless: Restless) -> None:
    restless.aborts = 9
    (played,), aborts = await play_through(
        restless, LONE, EpisodeSpec(seed=3), max_aborts=4, is_stopped=lambda: True
    )
    assert (played.stop_reason, aborts) == (StopReason.ABORTED, 0)


class _Careless(EchoEnv):
    def __init__(self, *, level: int, **options: Any) -> None:
        super().__init__(**options)
        self.level = str(level) + 1  # type: ignore[operator]


def test_player_reports_type_error_inside_a_constructor_as_fault() -> None:
    register("careless-settings-v0", entry_point=_Careless)

    async def play() -> Any:
        codec = load_codec(tiny_model_dir("qwen2_5_vl"))
        player = Player(ScriptedEngine(codec, lambda context: "ok"), codec)
        source = EpisodeRequest(env_id="careless-settings-v0", env_kwargs={"level": 3}).factory()
        try:
            return (await player.play(source))[0]
        finally:
            await player.aclose()

    played = asyncio.run(play())
    assert (played.stop_reason, played.reward) == (StopReason.ENV_FAULT, None)
