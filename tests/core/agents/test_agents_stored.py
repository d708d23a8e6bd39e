"""Stored episodes of several agents: the commands, the exports, the conformance suite, the docs."""

import json
from pathlib import Path

import pytest
from fakes.agents import GuessEnv
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.pages import python_blocks
from fakes.playing import collected

from envkit.agents import load_adjust, team_last, team_mean
from envkit.errors import ConfigurationError
from envkit.rollout import RolloutConfig, ScriptedEngine
from envkit.trajectory import TrajectoryWriter, load, verify_file
from envkit.viewer import write_report
from envkit_conformance import Verdict, load_adapters, load_recordings, run_suite
from envkit_exchange.trajectories import Selection, TrajectoryFormat, export_trajectories

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
    assert {one.verdict for one in outcomes} <= {Verdict.PASS, Verdict.REFUSED}
    assert any(one.verdict is Verdict.PASS for one in outcomes)


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
    assert run_envkit("export", "refine-v0", "--format", "slime", "-n", 2, "--out", rows).code == 0
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
