"""Episodes of several agents in runs: faults of all roles and that episode alone, and storage."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import BUDGET, GuessEnv, TalkEnv, guess_engine, slowly, speak
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.faults import FaultyEngine
from fakes.hostile_values import EXCEPTIONS, SURROGATE, BadMapping
from fakes.pages import python_blocks
from fakes.playing import collected, play_all, play_hostile, play_roles
from fakes.virtual_time import skip, skip_from_thread

from envkit.agents import load_adjust, team_last, team_mean
from envkit.env import Turn
from envkit.errors import ConfigurationError, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import (
    GenerateRequest,
    Limits,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
    collect,
    role_of,
)
from envkit.tasks import Task
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    StopReason,
    Trajectory,
    TrajectoryWriter,
    check_trajectory,
    load,
    verify_file,
)
from envkit.viewer import write_report
from envkit_conformance import ConformanceResult, load_adapters, load_recordings, run_suite
from envkit_exchange.trajectories import Selection, TrajectoryFormat, export_trajectories


def fault_of(played: Mapping[str, Trajectory]) -> FaultRecord:
    """Return the fault that all roles share; none has a reward or a trained token."""
    for one in played.values():
        assert one.reward is None
        assert not any(one.loss_mask())
        assert check_trajectory(one) == ()
    (fault,) = {one.fault for one in played.values()}
    assert fault is not None
    return fault


async def test_adjust_rewards_that_fails_is_a_grader_fault_of_all_roles() -> None:
    def broken(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
        raise RuntimeError("no judge")

    played = await play_roles(
        GuessEnv(), guess_engine(), text_codec(), seed=1, adjust_rewards=broken
    )

    assert fault_of(played).kind is FaultKind.GRADER


@pytest.mark.parametrize(
    "answer", [{"nobody": 1.0}, {"asker": float("nan")}, [1.0], {"asker": "1"}]
)
async def test_adjust_rewards_that_returns_no_rewards_is_a_grader_fault(answer: object) -> None:
    def return_answer(trajectories: Any) -> Any:
        return answer

    played = await play_roles(
        GuessEnv(), guess_engine(), text_codec(), seed=1, adjust_rewards=return_answer
    )

    assert set(played) == {"asker", "keeper"}
    fault = fault_of(played)
    assert (fault.where, fault.kind) == (FaultPlace.REWARDS, FaultKind.GRADER)
    assert "ContractError" in fault.message
    assert {one.stop_reason for one in played.values()} == {StopReason.ENV_FAULT}


@pytest.mark.parametrize("role", ["asker", "keeper"])
async def test_engine_fault_of_one_role_faults_every_sibling(role: str) -> None:
    codec = text_codec()
    broken = FaultyEngine(codec, speak, FaultPlan(1.0, kinds=["permanent"]))

    played = await play_roles(
        GuessEnv(), guess_engine(), codec, engines={role: broken}, seed=1, retries=BUDGET
    )

    assert repr(role) in fault_of(played).message
    assert {one.stop_reason for one in played.values()} == {StopReason.ENGINE_FAULT}


async def test_fault_of_the_joint_environment_faults_every_sibling() -> None:
    plan = FaultPlan(1.0, kinds=["permanent"])

    played = await play_roles(
        TalkEnv(plan), ScriptedEngine(text_codec(), speak), text_codec(), seed=2, retries=BUDGET
    )

    assert {one.stop_reason for one in played.values()} == {StopReason.ENV_FAULT}
    assert all(one.fault and "joint environment" in one.fault.message for one in played.values())
    assert all(check_trajectory(one) == () for one in played.values())


async def test_reset_that_faults_is_one_record_without_a_role() -> None:
    def build() -> GuessEnv:
        raise OSError("no room")

    (one,) = await play_all(build, guess_engine(), text_codec(), seed=1, retries=BUDGET)

    assert one.stop_reason is StopReason.ENV_FAULT
    assert one.fault is not None
    assert (one.fault.where, one.fault.kind) == (FaultPlace.BUILD, FaultKind.TRANSIENT)
    assert one.reward is None
    assert role_of(one) is None


async def test_hung_environment_is_a_timeout_of_the_joint_call() -> None:
    loop = asyncio.get_running_loop()

    class Hanging(GuessEnv):
        def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
            skip_from_thread(loop, 60)
            return {}

    retries = replace(BUDGET, step_timeout_s=60, max_env_retries_per_turn=0, max_episode_restarts=0)
    played = await play_roles(Hanging, guess_engine(), text_codec(), seed=1, retries=retries)

    assert played["asker"].fault is not None
    assert played["asker"].fault.kind == FaultKind.TIMEOUT


async def test_episode_timeout_that_cuts_a_reply_faults_every_role() -> None:
    codec = text_codec()

    def late(request: GenerateRequest) -> float:
        skip(60)
        return slowly(request)

    slow = ScriptedEngine(codec, GuessEnv().oracle(), latency=late)
    played = await asyncio.wait_for(
        play_roles(
            GuessEnv(),
            guess_engine(),
            codec,
            engines={"keeper": slow},
            seed=1,
            limits=Limits(episode_timeout_s=60),
        ),
        timeout=120,
    )

    assert set(played) == {"asker", "keeper"}
    assert fault_of(played).kind is FaultKind.TIMEOUT


EPISODES = 16
BAD = 5
NO_RETRY = RetryBudget(max_env_retries_per_turn=0, max_episode_restarts=0, step_timeout_s=5.0)


class HostileGuessEnv(GuessEnv):
    """A dialogue that misbehaves in one place, in the episode of one task."""

    def __init__(self, place: str, act: Callable[[], Any]) -> None:
        super().__init__()
        self._place, self._act = place, act

    def _at(self, place: str, normal: Callable[[], Any]) -> Any:
        is_bad = self._place == place and self.task.get("index") == BAD
        return self._act() if is_bad else normal()

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        normal = super().on_reset
        return self._at("on_reset", lambda: normal(task))

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        normal = super().on_replies
        return self._at("on_replies", lambda: normal(replies))

    def on_end(self) -> Mapping[str, float]:
        return self._at("on_end", super().on_end)


def exit_for_the_bad_one(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
    """Make rewards; end the process for one episode."""
    if any(one.task.get("index") == BAD for one in played.values()):
        raise SystemExit(0)
    return {role: one.reward or 0.0 for role, one in played.items()}


def nan_for_the_bad_one(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
    """Make rewards; one episode's are not numbers."""
    is_bad = any(one.task.get("index") == BAD for one in played.values())
    return {role: float("nan") if is_bad else one.reward or 0.0 for role, one in played.items()}


def raising(name: str) -> Callable[[], Any]:
    def act() -> Any:
        raise EXCEPTIONS[name]()

    return act


RAISED = ("exception", "system_exit_0", "keyboard_interrupt", "cancelled", "generator_exit", "mute")
ACTS: dict[str, tuple[str, Callable[[], Any]]] = {
    **{f"{place}_{name}": (place, raising(name))
       for place in ("on_reset", "on_replies", "on_end") for name in RAISED},
    "reset_none": ("on_reset", lambda: None),
    "reset_turn": ("on_reset", lambda: Turn("Begin.")),
    "reset_nobody": ("on_reset", dict),
    "reset_stranger": ("on_reset", lambda: {"judge": Turn("Begin.")}),
    "reset_text": ("on_reset", lambda: {"asker": "Begin."}),
    "reset_surrogate": ("on_reset", lambda: {"asker": Turn(SURROGATE)}),
    "replies_none": ("on_replies", lambda: None),
    "replies_list": ("on_replies", lambda: [Turn("Go on.")]),
    "replies_stranger": ("on_replies", lambda: {"judge": Turn("Go on.")}),
    "replies_number": ("on_replies", lambda: {"asker": 1.0}),
    "replies_mapping": ("on_replies", BadMapping),
    "end_none": ("on_end", lambda: None),
    "end_nan": ("on_end", lambda: {"keeper": float("nan")}),
    "end_text": ("on_end", lambda: {"keeper": "1.0"}),
    "end_stranger": ("on_end", lambda: {"judge": 1.0}),
    "end_huge": ("on_end", lambda: {"keeper": 10**400}),
}  # fmt: skip
MAY_BE_FINE = {"reset_nobody", "reset_surrogate"}


def play_run(build: Callable[[], GuessEnv], adjust: str | None = None) -> list[Trajectory]:
    """Play a run of dialogues; fail the test if it ends early."""
    codec = text_codec()
    return play_hostile(
        collect(
            build,
            guess_engine(),
            codec,
            episodes=EPISODES,
            concurrency=4,
            tasks=[{"number": 1 + n % 8, "index": n} for n in range(EPISODES)],
            config=RolloutConfig(retries=NO_RETRY, adjust_rewards=adjust),
        )
    )


def check_run(played: list[Trajectory], folder: Path, *, may_be_fine: bool) -> None:
    """All other dialogues are whole; the bad one has no reward in any of its roles."""
    by_group: dict[int, list[Trajectory]] = {}
    for one in played:
        by_group.setdefault(one.metadata["group"], []).append(one)
    assert set(by_group) == set(range(EPISODES))
    for number, roles in by_group.items():
        if number != BAD:
            assert sorted((one.metadata["role"], one.reward) for one in roles) == [
                ("asker", 1.0),
                ("keeper", 0.5),
            ]
        elif not may_be_fine:
            for one in roles:
                assert one.is_faulted
                assert one.reward is None
                assert one.trained_token_count == 0
                assert one.fault is not None
                assert one.fault.message.strip()
    with TrajectoryWriter(folder) as writer:
        for one in played:
            writer.write(one)
    report = verify_file(folder)
    assert report.is_sound, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_one_hostile_dialogue_costs_that_dialogue_alone(name: str, tmp_path: Path) -> None:
    place, act = ACTS[name]
    played = play_run(lambda: HostileGuessEnv(place, act))
    check_run(played, tmp_path / "run", may_be_fine=name in MAY_BE_FINE)


@pytest.mark.parametrize("adjust", ["exit_for_the_bad_one", "nan_for_the_bad_one"])
def test_rewards_that_cannot_be_adjusted_cost_their_episode_alone(
    adjust: str, tmp_path: Path
) -> None:
    played = play_run(GuessEnv, f"{__name__}:{adjust}")
    check_run(played, tmp_path / "run", may_be_fine=False)


def test_dialogues_without_an_attack_are_whole(tmp_path: Path) -> None:
    played = play_run(lambda: HostileGuessEnv("nowhere", lambda: None))
    assert len(played) == 2 * EPISODES
    assert all(one.reward is not None for one in played)
    check_run(played, tmp_path / "run", may_be_fine=True)


DOCS = Path(__file__).parents[3] / "docs" / "agents.md"


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    engine = ScriptedEngine(text_codec(), GuessEnv().oracle())
    with TrajectoryWriter(tmp_path / "run") as writer:
        async for one in collected(GuessEnv, engine, text_codec(), episodes=4, group_size=2):
            writer.write(one)
    return tmp_path / "run"


def test_report_shows_whose_trajectory_it_is(run: Path) -> None:
    write_report(run, run / "report.html")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "keeper: The number is" in page
    assert "asker: Find the number" in page


def test_adapters_deliver_every_role_as_it_was_recorded(run: Path) -> None:
    recordings = load_recordings(run)
    (core,) = load_adapters(["core"])
    outcomes = run_suite(core.members, recordings)
    assert len(recordings) == 8
    assert {one.verdict for one in outcomes} <= {ConformanceResult.PASS, ConformanceResult.REFUSED}
    assert any(one.verdict is ConformanceResult.PASS for one in outcomes)


@pytest.mark.parametrize("kind", [TrajectoryFormat.SFT, TrajectoryFormat.PARQUET])
def test_exported_rows_name_role_and_rollout(run: Path, kind: TrajectoryFormat) -> None:
    out = run / "rows.jsonl"
    tally = export_trajectories(run, out, kind, Selection())
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert tally.rows == len(rows) == 8
    assert {row["role"] for row in rows} == {"asker", "keeper"}
    assert len({row["rollout_id"] for row in rows}) == 4
    assert {(row["role"], row["reward"]) for row in rows} == {("asker", 1.0), ("keeper", 0.5)}


def test_records_survive_the_file(run: Path) -> None:
    stored = load(run / "trajectories.jsonl")
    assert verify_file(run).is_sound
    assert {one.metadata["role"] for one in stored} == {"asker", "keeper"}


@pytest.mark.slow
def test_commands_play_list_and_export_several_agents(tmp_path: Path) -> None:
    out = tmp_path / "run"
    played = run_envkit(
        "rollout", "refine-v0", "--policy", "noisy-oracle", "-n", 4, "--group", 2, "-q",
        "--max-new-tokens", 200, "--out", out, "--json",
    )  # fmt: skip
    assert played.code == 0
    assert json.loads(played.out)["is_sound"]
    facts = json.loads(run_envkit("info", "refine-v0", "--json").out)
    assert facts["roles"][-1] == "selector"
    assert "refine-v0" in run_envkit("list").out
    rows = tmp_path / "tasks.jsonl"
    done = run_envkit("export", "refine-v0", "--format", "slime", "--rows", 2, "--out", rows)
    assert done.code == 0
    assert len(rows.read_text(encoding="utf-8").splitlines()) == 2


def test_adjust_rewards_is_named_in_a_configuration() -> None:
    plan = RolloutConfig.from_mapping({"adjust_rewards": "team_mean"}).role_plan()
    assert plan.adjust_rewards is team_mean
    assert load_adjust("envkit.agents:team_last") is team_last
    assert RolloutConfig().role_plan().adjust_rewards is None


@pytest.mark.parametrize("place", ["team", "nowhere:at_all", "json:nothing", "json:__name__", 3])
def test_adjust_rewards_that_is_not_a_function_is_refused(place: object) -> None:
    with pytest.raises(ConfigurationError, match="adjust_rewards"):
        RolloutConfig.from_mapping({"adjust_rewards": place})


def test_docs_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {"__name__": "docs"}
    for block in python_blocks(DOCS):
        exec(compile(block, "agents.md", "exec"), scope)
    assert "keeper 0.5" in capsys.readouterr().out
