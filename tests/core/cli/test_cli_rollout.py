"""`envkit rollout` end to end, on workers too, and how every kind of bad input ends."""

import json
import shutil
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import register_agents
from fakes.command import run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.hostile_runs import no_file_longer_than
from fakes.needs import TORCH
from fakes.ray_cluster import FakeRay
from fakes.viewer_page import Page

from envkit import plugins
from envkit.cli import remote
from envkit.cli.trained_on import describe_training, trained_on
from envkit.env import Turn
from envkit.errors import EnvFault, FaultKind
from envkit.tasks import ListSource
from envkit.text import counted
from envkit.trajectory import StopReason, load, verify_file


class FailingEnv(EchoEnv):
    """Faults in every episode, or in those of one word."""

    def __init__(self, *, word: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._word = word

    def on_turn(self, response_text: str) -> Turn:
        if self._word in (None, self.task["word"]):
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        return super().on_turn(response_text)


class WrongTypeEnv(EchoEnv):
    """Breaks its contract for one word."""

    def on_turn(self, response_text: str) -> Turn:
        return "right" if self.task["word"] == "gamma" else super().on_turn(response_text)  # type: ignore[return-value]


class RecitalEnv(EchoEnv):
    """Asks for a text of more than a thousand tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_turns=1, **options)
        self.tasks = ListSource([{"word": " ".join(map(str, range(600)))}])


TOYS = {
    "toy-recital-v0": RecitalEnv,
    "toy-failing-v0": FailingEnv,
    "toy-wrong-reply-v0": WrongTypeEnv,
}


def register_all() -> None:
    """Register every environment that the tests here play, also in its own process."""
    register_toys(TOYS)
    register_agents()


@pytest.fixture(autouse=True)
def _registered(toys_here: Path) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_all()


def test_rollout_of_a_policy_leaves_a_sound_run(model: Path) -> None:
    shown = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "--model", model, "-n", 4, "--group", 2,
        "--out", "run",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    run = Path("run")
    for name in ("trajectories.jsonl", "metrics.json", "report.html"):
        assert str(run / name) in shown.out
        assert (run / name).stat().st_size > 0
    words = Page(run / "report.html").unpack("vocabulary-0")["vocabulary"]
    assert "<|im_end|>" in words.values()  # tokens are text, the stop token too
    assert "all sound" in shown.out
    assert "mean 1.000" in shown.out
    assert shown.err.splitlines()[-1].startswith("4/4 episodes: reward 1.000")
    played = load(run)
    assert [t.reward for t in played] == [1.0] * 4
    assert len({t.group_id for t in played}) == 2
    assert json.loads((run / "metrics.json").read_text())["episodes"] == 4


def test_rollout_repeats_itself_and_never_overwrites_by_itself(model: Path) -> None:
    arguments = ["rollout", "toy-echo-v0", "--policy", "oracle", "--model", model, "-n", 2, "-q"]
    for _ in range(2):
        shown = run_envkit(*arguments)
        assert (shown.code, shown.err) == (0, "")
    folders = sorted(path.name for path in Path("runs").iterdir())
    assert folders == ["toy-echo-v0-oracle-seed0", "toy-echo-v0-oracle-seed0-2"]
    first, second = (load(Path("runs") / folder) for folder in folders)
    assert sorted(t.train_ids() for t in first) == sorted(t.train_ids() for t in second)
    taken = run_envkit(*arguments, "--out", f"runs/{folders[0]}")
    assert taken.code == 1
    assert "--overwrite" in taken.last_error
    assert run_envkit(*arguments, "--out", f"runs/{folders[0]}", "--overwrite").code == 0
    assert len(load(Path("runs") / folders[0])) == 2


def test_rollout_writes_only_json_to_standard_output(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-adder-v0", "--policy", "oracle", "--model", model, "-n", 3, "--json",
        "--out", "run",
    )  # fmt: skip
    answer = json.loads(shown.out)
    assert answer["is_sound"] is True
    assert answer["metrics"]["reward/mean"] == 1.0
    assert Path(answer["files"]["report"]).is_file()


def test_progress_counts_episodes_of_several_agents_also_after_a_resume(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-guess-v0", "--policy", "oracle", "--model", model, "-n", 4, "--out", "run",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert len(load("run")) == 8
    lines = [line for line in shown.err.splitlines() if "/4 episodes" in line]
    assert [line.split(":")[0] for line in lines] == [f"{n}/4 episodes" for n in range(1, 5)]
    assert lines[-1].endswith(", 4 terminated")
    file = Path("run/trajectories.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:6]))
    resumed = run_envkit("rollout", "--resume", "run")
    assert resumed.code == 0, resumed.err
    assert resumed.err.splitlines()[-1].startswith("4/4 episodes")


@pytest.mark.parametrize("limit", [None, 8])
def test_replies_of_a_policy_are_cut_only_on_request(model: Path, limit: int | None) -> None:
    options = () if limit is None else ("--max-new-tokens", limit)
    shown = run_envkit(
        "rollout", "toy-recital-v0", "--policy", "oracle", "--model", model, "-n", 1, *options,
        "--out", "run",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    (played,) = load("run")
    (turn,) = played.turns
    if limit is None:
        assert turn.response_tokens > 1000
        assert (turn.finish_reason, played.reward) == ("stop", 1.0)
    else:
        assert turn.response_tokens == limit
        assert (turn.finish_reason, played.reward) == ("length", 0.0)


@TORCH.mark
def test_rollout_with_the_embedded_engine_and_limits(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-dots-v0", "--model", model, "-n", 3, "--max-new-tokens", 4,
        "--max-turns", 2, "--temperature", 0.7, "--set", "sampling.top_p=0.9", "--out", "run",
        "--env-kwargs", "size=28", "--concurrency", 2,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    for trajectory in load("run"):
        assert trajectory.stop_reason is StopReason.MAX_TURNS
        assert trajectory.engine == "transformers"
        assert all(turn.response_tokens <= 4 for turn in trajectory.turns)
        assert len(trajectory.images()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy-eco-v0"], "Did you mean 'toy-echo-v0'?"),
        (["toy-echo-v0", "--engine", "transformer"], "Did you mean 'transformers'?"),
        (["toy-echo-v0", "--policy", "orakel"], "Did you mean 'oracle'?"),
        (["toy-echo-v0", "-n", "3", "--group", "2"], "multiple of the group size (--group)"),
        (["toy-echo-v0", "--policy", "oracle", "--engine", "sglang"], "needs no engine"),
        (["toy-echo-v0", "--engine", "sglang"], "add --base-url"),
        (["toy-echo-v0", "--base-url", "http://127.0.0.1:9"], "drop --base-url"),
        (["toy-echo-v0", "--engine", "sglang", "--base-url", "localhost"], "http://127.0.0.1"),
        (["toy-echo-v0", "--model", "/no/such/folder"], "no model folder '/no/such/folder'"),
        (["toy-echo-v0", "--model", "empty"], "is not a model folder"),
        (["toy-echo-v0", "--policy", "oracle", "--model", "empty"], "is not a model folder"),
        (["geo3k-v0", "--env-kwargs", "levle=3"], "levle"),
        (["toy-echo-v0", "--set", "retries.step_timeout_s=0"], "step_timeout_s must be positive"),
        (["toy-echo-v0", "--set", "sampling.max_new_tokens=x"], "max_new_tokens"),
        (["toy-echo-v0", "--set", "seed=abc"], "seed"),
    ],
)
def test_rollout_ends_bad_input_in_one_clear_line(arguments: list[str], message: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    Path("broken.jsonl").write_text('{"problem": "x"}\nnot json\n')
    shown = run_envkit("rollout", *arguments, "--quiet")
    assert shown.code == 2
    assert shown.err.startswith("envkit: error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy-echo-v0", "--out", "file"], "must be a folder"),
        (["geo3k-v0", "--env-kwargs", "data=broken.jsonl"], "broken.jsonl"),
        (["geo3k-v0", "--env-kwargs", "data=nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_rollout_calls_an_unusable_file_an_error_and_not_wrong_usage(
    arguments: list[str], message: str
) -> None:
    Path("file").write_text("x")
    Path("broken.jsonl").write_text("{")
    shown = run_envkit("rollout", *arguments, "-n", 1, "--quiet")
    assert shown.code == 1
    assert message in shown.last_error


def test_rollout_says_that_a_server_does_not_answer(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-echo-v0", "--engine", "sglang", "--base-url", "http://127.0.0.1:9",
        "--model", model,
    )  # fmt: skip
    assert shown.code == 1
    assert "http://127.0.0.1:9 does not answer" in shown.last_error
    assert not Path("runs").exists()


def test_rollout_refuses_a_template_that_cannot_be_exact(model: Path) -> None:
    folder = Path("shouting")
    folder.mkdir()
    for source in model.iterdir():
        (folder / source.name).symlink_to(source)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] | upper | reverse }}{% endfor %}"
    )
    shown = run_envkit("rollout", "toy-echo-v0", "--policy", "oracle", "--model", folder, "-q")
    assert shown.code == 1
    assert "template" in shown.last_error
    audited = run_envkit("audit", folder)
    assert audited.code == 1


def test_rollout_in_which_every_episode_faults_exits_with_three(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-failing-v0", "--policy", "oracle", "--model", model, "-n", 3, "--out", "run"
    )
    assert shown.code == 3
    assert "3 x step: permanent: the backend is gone" in shown.err
    assert all(t.is_faulted and t.reward is None for t in load("run"))
    assert verify_file("run").is_sound


def test_rollout_reports_single_faults_and_continues(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-failing-v0", "--env-kwargs", "word=gamma", "--policy", "oracle",
        "--model", model, "-n", 12, "--out", "run",
    )  # fmt: skip
    assert shown.code == 0
    faulted = [t for t in load("run") if t.is_faulted]
    assert 0 < len(faulted) < 12
    assert f"{len(faulted)} of 12 episodes faulted:" in shown.err


def test_rollout_drops_the_groups_of_faulted_episodes_on_request(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-failing-v0", "--env-kwargs", "word=gamma", "--policy", "oracle",
        "--model", model, "-n", 40, "--group", 2, "--on-fault", "drop_group", "--out", "run",
    )  # fmt: skip
    assert shown.code == 0
    kept = load("run")
    assert 0 < len(kept) < 40
    assert not any(t.is_faulted for t in kept)
    assert f"{40 - len(kept)} episodes were dropped" in shown.err


def test_rollout_counts_an_episode_whose_env_breaks_its_contract(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-wrong-reply-v0", "--policy", "oracle", "--model", model, "-n", 24,
        "--concurrency", 1, "--out", "run",
    )  # fmt: skip
    assert shown.code == 0
    assert "must return envkit.Turn(text, images=(), ...), got str" in shown.err
    kept = load("run")
    assert len(kept) == 24
    assert 0 < sum(one.is_faulted for one in kept) < 24
    assert verify_file("run").is_sound


def test_rollout_on_a_full_disk_keeps_what_was_finished(model: Path) -> None:
    arguments = ["rollout", "canary-v0", "--policy", "oracle", "--model", model, "-n", 40]
    with no_file_longer_than(60_000):
        shown = run_envkit(*arguments, "--out", "run", "--quiet")
    assert shown.code == 1
    assert shown.err.count("\n") == 1
    assert "free some space" in shown.last_error
    kept = load("run")
    assert 0 < len(kept) < 40
    parts = sum(one.stop_reason is StopReason.ABORTED for one in kept)
    said = f"run keeps {counted(len(kept) - parts, 'finished trajectory')}"
    assert (f"{said} and {parts} unfinished" if parts else said) in shown.last_error
    assert verify_file("run").is_sound
    assert not (Path("run") / "report.html").exists()


def test_verify_finds_a_changed_ledger_and_report_uses_the_given_path(model: Path) -> None:
    arguments = ["rollout", "toy-echo-v0", "--policy", "oracle", "--model", model, "-n", 2]
    run_envkit(*arguments, "--out", "run", "-q")
    assert run_envkit("verify", "run").code == 0
    assert json.loads(run_envkit("verify", "run", "--json").out)["trajectories"] == 2
    page = run_envkit("report", "run", "--out", "page.html")
    assert page.out.strip() == "page.html"
    assert Path("page.html").stat().st_size > 1000
    file = Path("run/trajectories.jsonl")
    text = file.read_text()
    file.write_text(text.replace('"reward":1.0', '"reward":2.0', 1))
    changed = run_envkit("verify", "run")
    assert changed.code == 1
    assert "problem" in changed.out


@pytest.mark.parametrize("command", ["verify", "report", "view"])
def test_commands_on_a_missing_run_say_so(command: str) -> None:
    shown = run_envkit(command, "nowhere")
    assert shown.code == 1
    assert "there is no trajectory file 'nowhere'" in shown.last_error


PLAYED = ("toy-echo-v0", "--policy", "oracle", "--quiet")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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


def test_rollout_with_workers_writes_the_run_of_one_process(model: Path, ray: FakeRay) -> None:
    run_envkit("rollout", *PLAYED, "--model", model, "-n", 8, "--group", 2, "--out", "here")
    options = ("-n", 8, "--group", 2, "--out", "there", "--workers", 2)
    outcome = run_envkit("rollout", *PLAYED, "--model", model, *options)
    assert outcome.code == 0, outcome.err
    assert ledgers(Path("there")) == ledgers(Path("here"))
    assert verify_file(Path("there")).problems == ()
    words = [json.loads(Path(f"{one}/vocabulary.json").read_text()) for one in ("here", "there")]
    assert words[0] == words[1]
    assert len(ray.actors) == 2
    assert ray.shutdowns == 1


def test_resume_takes_other_workers_than_the_run_had(model: Path, ray: FakeRay) -> None:
    run_envkit("rollout", *PLAYED, "--model", model, "-n", 6, "--out", "run", "--workers", 3)
    recorded = json.loads(Path("run/run.json").read_text())
    assert recorded["settings"]["config"]["workers"] == 3
    lines = Path("run/trajectories.jsonl").read_text().splitlines(keepends=True)
    Path("run/trajectories.jsonl").write_text("".join(lines[:2]))
    outcome = run_envkit("rollout", "--resume", "run", "--quiet", "--workers", 0)
    assert outcome.code == 0, outcome.err
    assert len(ray.actors) == 3  # those of the first part
    assert len(ledgers(Path("run"))) == 6


def test_eval_with_workers_counts_what_one_process_counts(model: Path, ray: FakeRay) -> None:
    shared = ("eval", *PLAYED, "--model", model, "-n", 4, "--json")
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


def test_workers_without_ray_are_named_with_their_extra(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = run_envkit("rollout", *PLAYED, "--model", model, "--workers", 2)
    assert outcome.code != 0
    assert "pip install 'envkit-rl[ray]'" in outcome.err
    assert not Path("runs").exists()


def test_address_without_a_cluster_leaves_no_run(model: Path, ray: FakeRay) -> None:
    where = ("--workers", 2, "--ray", "127.0.0.1:9")
    outcome = run_envkit("rollout", *PLAYED, "--model", model, *where, "--out", "run")
    assert outcome.code != 0
    assert "ray start --head" in outcome.err
    assert not Path("run").exists()
    assert ray.joined == []


def configured(tmp_path: Path, content: str) -> str:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    "content", ["[]", "{", '"x"', "{}", '{"trained_on": ["canary-v0"]}', '{"trained_on": null}']
)
def test_config_without_a_mapping_says_nothing(tmp_path: Path, content: str) -> None:
    assert trained_on(configured(tmp_path, content)) == {}
    assert describe_training(str(tmp_path), "canary-v0") is None


def test_hub_name_says_nothing() -> None:
    assert trained_on("nobody/nothing") == {}


def test_training_is_described_and_another_environment_is_warned_of(tmp_path: Path) -> None:
    model = configured(tmp_path, '{"trained_on": {"a-v0": "level 1", "b-v0": "all"}}')
    assert describe_training(model, "a-v0") == "the model was trained on a-v0: level 1"
    warning = describe_training(model, "c-v0")
    assert warning is not None
    assert "warning: the model was trained on a-v0, b-v0, not on c-v0" in warning


@pytest.mark.parametrize("policy", [None, "oracle"])
@pytest.mark.slow
def test_rollout_warns_of_a_model_but_not_of_a_policy(
    model: Path, tmp_path: Path, policy: str | None
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["trained_on"] = {"other-v0": "everything"}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    chosen = ["--policy", policy] if policy else ["--max-new-tokens", 2]
    shown = run_envkit(
        "rollout", "canary-v0", "--model", copy, "-n", 1, "--out", tmp_path / "run", *chosen
    )
    assert shown.code == 0
    assert ("trained on other-v0, not on canary-v0" in shown.err) == (policy is None)
