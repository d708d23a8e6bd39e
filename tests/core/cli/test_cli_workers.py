"""`--workers` and `--ray` of the commands that play, on a fake of Ray."""

import json
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.ray_cluster import FakeRay

from envkit import plugins
from envkit.cli import remote
from envkit.trajectory import load, verify_file

PLAYED = ("toy-echo-v0", "--policy", "oracle", "--quiet")


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_toys()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # pyright: ignore[reportArgumentType]
    point = EntryPoint(name="ray", value="envkit_ray:RayPlayer", group=remote.GROUP)

    def found(*, group: str) -> EntryPoints:
        return EntryPoints([point]) if group == remote.GROUP else entry_points(group=group)

    monkeypatch.setattr(plugins, "entry_points", found)
    return fake


def ledgers(folder: Path) -> dict[Any, Any]:
    return {
        (one.metadata["group"], one.metadata["member"]): (one.train_ids(), one.reward)
        for one in load(folder)
    }


def test_rollout_with_workers_writes_the_run_of_one_process(ray: FakeRay) -> None:
    model = ("--model", tiny_model_dir("llama"))
    run_envkit("rollout", *PLAYED, *model, "-n", 8, "--group", 2, "--out", "here")
    options = ("-n", 8, "--group", 2, "--out", "there", "--workers", 2)
    outcome = run_envkit("rollout", *PLAYED, *model, *options)
    assert outcome.code == 0, outcome.err
    assert ledgers(Path("there")) == ledgers(Path("here"))
    assert verify_file(Path("there")).problems == ()
    assert len(ray.actors) == 2
    assert ray.shutdowns == 1


def test_resume_takes_other_workers_than_the_run_had(ray: FakeRay) -> None:
    model = ("--model", tiny_model_dir("llama"))
    run_envkit("rollout", *PLAYED, *model, "-n", 6, "--out", "run", "--workers", 3)
    recorded = json.loads(Path("run/run.json").read_text())
    assert recorded["settings"]["config"]["workers"] == 3
    lines = Path("run/trajectories.jsonl").read_text().splitlines(keepends=True)
    Path("run/trajectories.jsonl").write_text("".join(lines[:2]))
    outcome = run_envkit("rollout", "--resume", "run", "--quiet", "--workers", 0)
    assert outcome.code == 0, outcome.err
    assert len(ray.actors) == 3  # those of the first part
    assert len(ledgers(Path("run"))) == 6


def test_eval_with_workers_counts_what_one_process_counts(ray: FakeRay) -> None:
    model = ("--model", tiny_model_dir("llama"))
    shared = ("eval", *PLAYED, *model, "-n", 4, "--json")
    here, there = (
        json.loads(run_envkit(*shared, "--out", name, *more).out)
        for name, more in (("here", ()), ("there", ("--workers", 2)))
    )
    keys = ("env_id", "episodes", "faulted", "reward", "success", "turns", "reply_tokens")
    first, second = (
        [[line[key] for key in keys] for line in one["lines"]] for one in (here, there)
    )
    assert first == second
    assert first[0][:3] == ["toy-echo-v0", 4, 0]
    assert ray.shutdowns == 1


@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_ray_without_workers_is_refused(command: str) -> None:
    outcome = run_envkit(command, "toy-echo-v0", "--policy", "oracle", "--ray", "auto")
    assert outcome.code == 2
    assert "add --workers N" in outcome.err


def test_workers_without_ray_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    model = ("--model", tiny_model_dir("llama"))
    outcome = run_envkit("rollout", *PLAYED, *model, "--workers", 2)
    assert outcome.code != 0
    assert "pip install 'envkit-rl[ray]'" in outcome.err
    assert not Path("runs").exists()


def test_address_without_a_cluster_leaves_no_run(ray: FakeRay) -> None:
    model = ("--model", tiny_model_dir("llama"))
    where = ("--workers", 2, "--ray", "127.0.0.1:9")
    outcome = run_envkit("rollout", *PLAYED, *model, *where, "--out", "run")
    assert outcome.code != 0
    assert "ray start --head" in outcome.err
    assert not Path("run").exists()
    assert ray.joined == []
