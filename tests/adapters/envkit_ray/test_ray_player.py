"""Workers that die, hang, refuse or differ, on a fake of Ray; `make contract-ray` has real Ray."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from fakes.agents import GuessEnv
from fakes.branching import Saved, Screens, branching_player
from fakes.envs import DotsEnv, EchoEnv, register_toys
from fakes.ray_cluster import FakeRay
from fakes.ray_players import scripted_player
from fakes.waiting import until

from envkit.env import Capabilities, Turn
from envkit.errors import (
    ConfigurationError,
    MissingDependencyError,
    RunFailedError,
    UnknownNameError,
)
from envkit.rollout import (
    AtTurns,
    EnvSource,
    EpisodeSpec,
    GroupStart,
    Interrupt,
    Player,
    Progress,
    RolloutConfig,
    Run,
    RunPlan,
    ScriptedEngine,
    delivered,
    play_tree,
)
from envkit.trajectory import StopReason, Trajectory, fork_before
from envkit_ray import RayPlayer, greeting
from envkit_ray import player as ray_player
from envkit_ray import worker as ray_worker
from envkit_ray import workers as ray_workers

ECHO = "toy-echo-v0"

DOTS = "toy-dots-v0"


@pytest.fixture(autouse=True)
def toys() -> None:
    register_toys()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ray_workers, "_RETRY_S", 0.01)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


def settings(workers: int = 2, **options: Any) -> RolloutConfig:
    return RolloutConfig.from_mapping({"workers": workers, "player_options": options})


@asynccontextmanager
async def playing(
    env_id: str = ECHO,
    config: RolloutConfig | None = None,
    *,
    make: Callable[..., Any] | None = None,
    model: str = "llama",
    latency_s: float = 0.0,
    **options: Any,
) -> AsyncGenerator[RayPlayer]:
    config = config or settings()
    alone = config.of_worker()
    make = make or partial(scripted_player, env_id, model=model, latency_s=latency_s, config=alone)
    player = RayPlayer(make, config, **options)
    try:
        yield player
    finally:
        await player.aclose()


async def played(player: RayPlayer, plan: RunPlan, **options: Any) -> list[Trajectory]:
    return [one async for one in delivered(Run(ECHO, player, plan, **options))]


def ledger(trajectories: list[Trajectory]) -> dict[Any, Any]:
    return {
        (one.metadata["group"], one.metadata["member"]): (one.train_ids(), one.seed, one.reward)
        for one in trajectories
    }


@pytest.mark.slow
async def test_run_plays_the_same_episodes_with_any_number_of_workers(
    ray: FakeRay,
) -> None:
    plan = RunPlan(episodes=12, group_size=3, concurrency=5)
    local = scripted_player(ECHO, config=RolloutConfig())
    expected = ledger([one async for one in delivered(Run(ECHO, local, plan))])
    await local.aclose()
    for count in (1, 3):
        async with playing(config=settings(count)) as player:
            assert ledger(await played(player, plan)) == expected
        assert not any(actor.running for actor in ray.actors)
    assert ray.shutdowns == 2
    assert {actor.options["num_cpus"] for actor in ray.actors} == {0.0}  # one machine's own


async def test_run_delivers_every_episode_once_although_workers_die(ray: FakeRay) -> None:
    async with playing(latency_s=0.02) as player:
        found: list[Trajectory] = []
        run = Run(ECHO, player, RunPlan(episodes=40, group_size=2, concurrency=8))
        async for one in delivered(run):
            found.append(one)
            if len(found) in (5, 15, 25):
                actor = ray.actors[len(found) % 2]
                actor.die()
                asyncio.get_running_loop().call_later(0.05, actor.come_back)
    keys = [(one.metadata["group"], one.metadata["member"]) for one in found]
    assert len(set(keys)) == len(keys) == 40
    assert len({one.episode_id for one in found}) == 40
    assert [one.fault for one in found if one.reward != 1.0] == []
    restarted = [one for one in found if one.env_restarts]
    assert player.lost_calls == sum(one.env_restarts for one in found) > 0
    assert all(one.episode_id.endswith(f"~{one.env_restarts}") for one in restarted)


async def test_play_waits_for_the_only_worker_instead_of_using_up_its_attempts(
    ray: FakeRay,
) -> None:
    async with playing(config=settings(1, max_attempts=2), latency_s=0.02) as player:
        await player.start()
        playing_now = asyncio.create_task(player.play(EnvSource(ECHO), EpisodeSpec(seed=3)))
        await until(lambda: ray.actors[0].running > 0)
        await asyncio.sleep(0.01)
        ray.actors[0].die()
        await until(lambda: player.availability.outage is not None)
        await asyncio.sleep(0.1)  # many refused greetings
        assert not playing_now.done()
        outage = player.availability.outage
        assert outage is not None
        assert (outage.what, outage.waiting) == ("Ray workers unavailable", 1)
        ray.actors[0].come_back()
        (one,) = await playing_now
        assert (one.reward, one.env_restarts) == (1.0, 1)
        assert player.availability.outage is None


async def test_play_gives_a_fault_when_the_worker_is_lost_too_often(ray: FakeRay) -> None:
    async with playing(config=settings(1, max_attempts=3), latency_s=5.0) as player:
        episode = asyncio.create_task(player.play(EnvSource(ECHO), EpisodeSpec(seed=3)))
        for life in range(1, 4):
            await until(lambda life=life: bool(ray.actors) and ray.actors[0].lives == life)
            await until(lambda: ray.actors[0].running > 0 and bool(ray.actors[0]._object._running))
            ray.actors[0].die()
            ray.actors[0].come_back()
        (one,) = await episode
    assert one.stop_reason is StopReason.ENV_FAULT
    assert one.fault is not None
    assert "lost 3 times" in one.fault.message
    assert one.reward is None


@pytest.mark.slow
async def test_play_gives_a_fault_when_no_worker_comes_back(ray: FakeRay) -> None:
    config = settings(1, start_timeout_s=2.0)  # a busy machine starts the first one late
    async with playing(config=config, latency_s=5.0) as player:
        episode = asyncio.create_task(player.play(EnvSource(ECHO)))
        await until(lambda: bool(ray.actors) and ray.actors[0].running > 0)
        await asyncio.sleep(0.05)
        ray.actors[0].die()
        (one,) = await episode
    assert one.fault is not None
    assert "none recovered in 2 s" in one.fault.message


async def test_worker_that_only_lost_its_connection_stops_the_episode_that_is_played_again(
    ray: FakeRay,
) -> None:
    async with playing(config=settings(1), latency_s=0.05) as player:
        episode = asyncio.create_task(player.play(EnvSource(ECHO), EpisodeSpec(seed=1)))
        await until(lambda: bool(ray.actors) and bool(ray.actors[0]._object._running))
        worker = ray.actors[0]._object
        (old,) = worker._running.values()
        ray.actors[0].lose_calls()
        (one,) = await episode
        assert one.env_restarts == 1
        assert old.cancelled()
        assert worker._running == {}


async def test_actor_that_ray_abandoned_is_replaced(ray: FakeRay) -> None:
    async with playing(config=settings(1), latency_s=0.02) as player:
        await player.play(EnvSource(ECHO))
        ray.kill(ray.actors[0])
        (one,) = await player.play(EnvSource(ECHO))
        assert one.reward == 1.0
        assert len(ray.actors) == 2


async def test_interrupt_brings_partial_episodes_back_and_a_run_resumes_them(
    ray: FakeRay,
) -> None:
    interrupt = Interrupt()
    plan = RunPlan(episodes=6, group_size=2, concurrency=6)
    async with playing(latency_s=30.0) as player:
        run = Run(ECHO, player, plan, interrupt=interrupt)
        await player.start()
        asyncio.get_running_loop().call_later(0.2, interrupt.fire)
        async with asyncio.timeout(120):
            partial_ones = [one async for one in delivered(run)]
    assert {one.stop_reason for one in partial_ones} == {StopReason.ABORTED}
    assert len(partial_ones) == 6
    unfinished = {one.metadata["group"] * 2 + one.metadata["member"]: one for one in partial_ones}
    async with playing() as player:
        rest = await played(player, plan, progress=Progress(unfinished=unfinished))
    assert {one.episode_id for one in rest} == {one.episode_id for one in partial_ones}
    assert all(one.reward == 1.0 for one in rest)


@pytest.mark.slow
async def test_interrupt_ends_a_run_whose_workers_are_all_lost(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envkit_ray import player as module

    monkeypatch.setattr(module, "_STOP_S", 0.1)
    interrupt = Interrupt(grace_s=0.1)
    async with playing(latency_s=30.0) as player:
        await player.start()
        run = Run(ECHO, player, RunPlan(episodes=4, concurrency=4), interrupt=interrupt)
        loop = asyncio.get_running_loop()
        for actor in ray.actors:
            loop.call_later(0.1, actor.die)
        loop.call_later(0.3, interrupt.fire)
        async with asyncio.timeout(120):
            found = [one async for one in delivered(run)]
    assert [one.stop_reason for one in found] == [StopReason.ABORTED] * 4


async def test_cancelled_play_is_cancelled_in_the_worker(ray: FakeRay) -> None:
    async with playing(config=settings(1), latency_s=30.0) as player:
        episode = asyncio.create_task(player.play(EnvSource(ECHO)))
        await until(lambda: bool(ray.actors) and bool(ray.actors[0]._object._running))
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        await until(lambda: not ray.actors[0]._object._running)


async def test_episodes_share_calls_of_a_worker(ray: FakeRay) -> None:
    async with playing(config=settings(1), latency_s=0.01) as player:
        found = await played(player, RunPlan(episodes=64, concurrency=16))
    assert len(found) == 64
    assert 0 < ray.actors[0].calls["exchange"] < 32


async def test_worker_tunes_its_collections_for_the_episodes_that_it_plays_at_once(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[int] = []

    def collecting(episodes: int, *, at_once: int) -> AbstractContextManager[None]:
        tuned.append(at_once)
        return nullcontext()

    monkeypatch.setattr(ray_worker, "_AT_ONCE", 4)
    monkeypatch.setattr(ray_worker, "collecting", collecting)
    async with playing(config=settings(1), latency_s=0.05) as player:
        assert len(await played(player, RunPlan(episodes=40, concurrency=20))) == 40
    assert tuned == [4, 4, 8, 16]


async def test_order_that_cannot_be_sent_faults_its_episode_alone(ray: FakeRay) -> None:
    broken = EpisodeSpec(seed=1, metadata={"unsendable": lambda: None})
    async with playing(config=settings(1)) as player:
        (fine,), (one,) = await asyncio.gather(
            player.play(EnvSource(ECHO), EpisodeSpec(seed=1)), player.play(EnvSource(ECHO), broken)
        )
    assert fine.reward == 1.0
    assert one.fault is not None
    assert re.search("pickle|local object", one.fault.message)  # the words of two Python versions


@pytest.mark.parametrize("keeps", [False, True])
async def test_tensors_travel_only_if_they_are_asked_for(ray: FakeRay, keeps: bool) -> None:
    config = settings(1)
    async with playing(DOTS, config, model="qwen2_5_vl", keeps_features=keeps) as player:
        (one,) = await player.play(EnvSource(DOTS), EpisodeSpec(seed=1))
    assert one.images()
    assert all(bool(part.features) is keeps for part in one.segments if part.images)


class _Drifting(EchoEnv):
    """Starts differently in every instance, which a group must not."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self._number = type(self).made

    def on_reset(self, task: Any) -> Any:
        return Turn(f"start {self._number}")


async def test_group_of_two_workers_must_start_from_one_observation(ray: FakeRay) -> None:
    start = GroupStart()
    spec = EpisodeSpec(seed=1, group_id="0", group_start=start)
    async with playing(latency_s=0.02) as player:
        both = await asyncio.gather(
            player.play(_Drifting, spec), player.play(_Drifting, replace(spec, member=1))
        )
    faults = [one.fault.message for (one,) in both if one.fault is not None]
    assert len(faults) == 1
    assert "a different observation" in faults[0]


async def test_cluster_of_a_trainer_is_used_and_left_alone(ray: FakeRay) -> None:
    ray.initialized = True
    async with playing() as player:
        await player.play(EnvSource(ECHO))
    assert (ray.joined, ray.shutdowns) == ([], 0)
    assert [actor.options["num_cpus"] for actor in ray.actors] == [0.0, 0.0]
    assert all(actor.is_killed for actor in ray.actors)


async def test_follow_reaches_every_worker_before_it_plays_and_after_each_change(
    ray: FakeRay,
) -> None:
    value = 7
    make = partial(_following_player, RolloutConfig())
    async with playing(make=make, follows=lambda: value) as player:
        await player.start()
        assert [actor._object._player.seen for actor in ray.actors] == [[7], [7]]
        value = 8
        await until(lambda: all(one._object._player.seen == [7, 8] for one in ray.actors))
        ray.actors[0].die()
        ray.actors[0].come_back()
        await player.play(EnvSource(ECHO))
        await until(lambda: ray.actors[0]._object._player is not None)
        assert ray.actors[0]._object._player.seen == [8]


async def test_worker_lost_while_it_builds_an_environment_is_asked_again(ray: FakeRay) -> None:
    async with playing() as player:
        await player.start()
        for actor in ray.actors:
            actor.die()
        asking = asyncio.create_task(player.max_sessions(EnvSource(ECHO)))
        await asyncio.sleep(0.05)
        for actor in ray.actors:
            actor.come_back()
        assert await asking is None
        assert await player.roles_of(EnvSource(ECHO)) == ()


def _following_player(config: RolloutConfig) -> Player:
    class Following(Player):
        def follow(self, value: object) -> None:
            self.seen = [*getattr(self, "seen", []), value]

    base = scripted_player(ECHO, config=config)
    return Following(base.engine, base._setup.codec, config)


# ---- what is refused, before any episode starts


async def test_version_of_a_worker_must_be_this_process_s(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "version", lambda: "9.9")
    async with playing() as player:
        with pytest.raises(ConfigurationError, match=r"has envkit .* and this process has 9\.9"):
            await player.start()
    assert ray.shutdowns == 1


@pytest.mark.slow
async def test_workers_that_never_fit_end_in_an_error_that_counts_cpus(ray: FakeRay) -> None:
    ray.room = 1
    async with playing(config=settings(3, num_cpus=2, start_timeout_s=2.0)) as player:
        with pytest.raises(ConfigurationError, match="1 of 3 Ray workers started") as caught:
            await player.start()
    assert "Each reserves 2 CPUs, and 0 of the cluster's 4 are free" in str(caught.value)
    assert "player_options.num_cpus=0" in str(caught.value)


async def test_player_that_cannot_be_made_in_a_worker_says_so(ray: FakeRay) -> None:
    config = RolloutConfig()
    async with playing(make=partial(scripted_player, "nope-v0", config=config)) as player:
        with pytest.raises(UnknownNameError, match="nope-v0") as caught:
            await player.start()
    assert "raised by the Ray worker on" in caught.value.__notes__[0]


async def test_environment_that_a_worker_lacks_is_named_before_the_run(ray: FakeRay) -> None:
    async with playing() as player:
        with pytest.raises(UnknownNameError, match="nope-v0") as caught:
            await Run("nope-v0", player, RunPlan(episodes=2)).play(_ignore)
    assert "every node needs the same packages" in caught.value.__notes__[0]


async def _ignore(_: object) -> None:
    raise AssertionError("nothing may be delivered")


async def test_first_episodes_that_all_fail_end_the_run(ray: FakeRay) -> None:
    async with playing() as player:
        with pytest.raises(RunFailedError, match="failed in the same way"):
            await Run(_Broken, player, RunPlan(episodes=64, concurrency=8)).play(_take)


async def _take(_: object) -> None:
    """Deliver nowhere."""


class _Broken(EchoEnv):
    def on_reset(self, task: Any) -> Any:
        raise KeyError("no such thing")


async def test_ray_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[ray\]'"):
        RayPlayer(partial(scripted_player, ECHO, config=RolloutConfig()), settings())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "cannot be joined: .*ray start --head"),
        ("head-node", "HOST:PORT"),
        ("127.0.0.1:port", "HOST:PORT"),
    ],
)
async def test_address_without_a_cluster_is_refused(
    ray: FakeRay, address: str, reason: str
) -> None:
    async with playing(config=settings(address=address)) as player:
        with pytest.raises(ConfigurationError, match=reason):
            await player.start()
    assert ray.joined == []


async def test_address_is_refused_where_ray_runs_already(ray: FakeRay) -> None:
    ray.initialized = True
    async with playing(config=settings(address="auto")) as player:
        with pytest.raises(ConfigurationError, match="drop the address"):
            await player.start()
    assert ray.shutdowns == 0


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ({"workers": 2, "player_options": {"adress": "auto"}}, "Did you mean 'address'"),
        ({"workers": 2, "player_options": {"num_cpus": -1}}, "num_cpus must be at least 0"),
        ({"workers": 2, "player_options": {"max_attempts": 0}}, "max_attempts must be at least 1"),
        ({"workers": 2, "player_options": {"start_timeout_s": "soon"}}, "must be a finite number"),
        (
            {"workers": 2, "player_options": {"address": "ray://head:10001"}},
            "a node of the cluster",
        ),
        ({"player_options": {"address": "auto"}}, "workers must be"),
        ({"workers": -1}, "workers must be"),
        ({"workers": "two"}, "an integer"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    ray: FakeRay, mapping: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RayPlayer(_following_player, RolloutConfig.from_mapping(mapping))  # pyright: ignore[reportArgumentType]


async def test_built_environment_and_local_function_are_refused(ray: FakeRay) -> None:
    async with playing() as player:
        with pytest.raises(ConfigurationError, match="already built"):
            await player.play(DotsEnv())
        with pytest.raises(ConfigurationError, match="must be a function of a module"):
            await player.play(lambda: DotsEnv(rounds=1))
    with pytest.raises(ConfigurationError, match="make_player must be a function of a module"):
        RayPlayer(lambda: None, settings())  # pyright: ignore[reportArgumentType]


async def test_player_of_this_process_refuses_workers() -> None:
    base = scripted_player(ECHO, config=RolloutConfig())
    engine: ScriptedEngine = base.engine  # pyright: ignore[reportAssignmentType]
    with pytest.raises(ConfigurationError, match="cannot start workers, got workers=2"):
        Player(engine, None, RolloutConfig(workers=2))
    await base.aclose()


@pytest.mark.parametrize("env", [Screens, Saved])
async def test_tree_is_forked_by_workers(ray: FakeRay, env: type[Screens]) -> None:
    make = partial(branching_player, RolloutConfig())
    branching = AtTurns(turns=(1, 3))
    async with playing(make=make) as player:
        leaves = await play_tree(env, player, branching=branching, spec=EpisodeSpec(seed=7))
    local = branching_player(RolloutConfig())
    expected = await play_tree(env, local, branching=branching, spec=EpisodeSpec(seed=7))
    await local.aclose()
    assert [leaf.fault for leaf in leaves] == [None] * 4
    assert [leaf.train_ids() for leaf in leaves] == [leaf.train_ids() for leaf in expected]
    assert [leaf.loss_mask() for leaf in leaves] == [leaf.loss_mask() for leaf in expected]


@pytest.mark.slow
async def test_tree_continues_if_a_worker_dies(ray: FakeRay) -> None:
    make = partial(branching_player, RolloutConfig(), latency_s=0.03)
    async with playing(make=make) as player:
        await player.start()
        growing = asyncio.create_task(
            play_tree(
                Screens,
                player,
                branching=AtTurns(turns=(1, 2, 3)),
                spec=EpisodeSpec(seed=7, episode_id="tree"),
            )
        )
        for _ in range(2):
            await asyncio.sleep(0.15)
            await until(lambda: any(actor.running for actor in ray.actors))
            actor = next(actor for actor in ray.actors if actor.running)
            actor.die()
            asyncio.get_running_loop().call_later(0.05, actor.come_back)
        leaves = await growing
    assert player.lost_calls > 0
    assert [leaf.fault for leaf in leaves] == [None] * 8
    owned = sum(sum(leaf.loss_mask()) for leaf in leaves)
    assert owned == sum(leaf.sampled_token_count for leaf in leaves)


async def test_interrupted_resume_without_a_worker_keeps_the_trajectory(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_player, "_STOP_S", 0.1)
    interrupt = Interrupt(grace_s=0.1)
    async with playing(make=partial(branching_player, RolloutConfig())) as player:
        (trunk,) = await player.play(Screens, EpisodeSpec(seed=7))
        fork = fork_before(trunk, 2, episode_id="fork")
        for actor in ray.actors:
            actor.die()
        asyncio.get_running_loop().call_later(0.1, interrupt.fire)
        async with asyncio.timeout(120):
            (leaf,) = await player.resume(fork, Screens, interrupt=interrupt)
        for actor in ray.actors:
            actor.come_back()
        assert leaf.stop_reason is StopReason.ABORTED
        assert leaf.origin == fork.origin
        (whole,) = await player.resume(leaf, Screens)
    assert whole.fault is None
    assert whole.train_ids()[: fork.token_count] == fork.train_ids()


class Fixed(Screens):
    """Can be neither saved nor replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)


@pytest.mark.parametrize(("env", "why"), [(GuessEnv, "one agent"), (Fixed, "neither snapshot")])
async def test_environment_that_workers_cannot_fork_is_refused(
    ray: FakeRay, env: Any, why: str
) -> None:
    async with playing(make=partial(branching_player, RolloutConfig())) as player:
        with pytest.raises(ConfigurationError, match=why):
            await play_tree(env, player, branching=AtTurns(turns=(1,)))
