"""`envkit rollout` end to end, and how every kind of bad input ends."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.agents import register_agents
from fakes.command import run_envkit, start_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.hostile_runs import no_file_longer_than
from fakes.models import tiny_model_dir
from fakes.needs import TORCH
from fakes.viewer_page import Page

from envkit.env import Capabilities, Turn
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


class HangingEnv(EchoEnv):
    """Never answers the reply to one word."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def on_turn(self, response_text: str) -> Turn:
        if self.task["word"] == "gamma":
            time.sleep(3600)
        return super().on_turn(response_text)


class RecitalEnv(EchoEnv):
    """Asks for a text of more than a thousand tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_turns=1, **options)
        self.tasks = ListSource([{"word": " ".join(map(str, range(600)))}])


TOYS = {
    "toy-recital-v0": RecitalEnv,
    "toy-failing-v0": FailingEnv,
    "toy-hanging-v0": HangingEnv,
    "toy-wrong-reply-v0": WrongTypeEnv,
}


def register_all() -> None:
    """Register every environment that the tests here play, also in its own process."""
    register_toys(TOYS)
    register_agents()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    register_all()


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model_dir("qwen2_5_vl")


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
    words = Page(run / "report.html").unpack("vocabulary")
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
    assert run_envkit(*arguments).code == 0
    assert run_envkit(*arguments).code == 0
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


def test_quiet_rollout_shows_no_progress(model: Path) -> None:
    shown = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", model, "-n", 2, "--quiet"
    )
    assert shown.code == 0
    assert shown.err == ""


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


@pytest.mark.parametrize("command", ["verify", "report"])
def test_commands_on_a_missing_run_say_so(command: str) -> None:
    shown = run_envkit(command, "nowhere")
    assert shown.code == 1
    assert "there is no trajectory file 'nowhere'" in shown.last_error


def _start_rollout(env_id: str, *arguments: object) -> "subprocess.Popen[str]":
    before = f"from {__name__} import register_all\nregister_all()"
    return start_envkit("rollout", env_id, *arguments, before=before)


def _read_to(process: "subprocess.Popen[str]", start: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(start):
            return
    raise AssertionError(f"the process ended without a line that starts with {start!r}")


@pytest.mark.slow
def test_ctrl_c_keeps_finished_and_running_episodes(model: Path) -> None:
    with _start_rollout(
        "toy-echo-v0", "--model", model, "-n", 400, "--concurrency", 8, "--max-new-tokens", 12,
        "--out", "run",
    ) as process:  # fmt: skip
        _read_to(process, "40/400")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping" in err
    assert "all sound" in out
    kept = load("run")
    assert 40 <= len(kept) < 400
    assert {t.stop_reason for t in kept} == {StopReason.ENV_TRUNCATED, StopReason.ABORTED}
    assert all(t.reward is None for t in kept if t.stop_reason is StopReason.ABORTED)


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_an_env_that_hangs(model: Path) -> None:
    with _start_rollout(
        "toy-hanging-v0", "--policy", "oracle", "--model", model, "-n", 20, "--concurrency", 20,
        "--out", "run",
    ) as process:  # fmt: skip
        _read_to(process, "10/20")
        process.send_signal(signal.SIGINT)
        _read_to(process, "stopping")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    kept = load("run")
    finished = [t for t in kept if t.stop_reason is StopReason.TERMINATED]
    assert 10 <= len(finished) < 20
    assert all(t.reward == 1.0 for t in finished)
    assert {t.stop_reason for t in kept if t not in finished} == {StopReason.ABORTED}
    assert verify_file("run").is_sound


@pytest.mark.parametrize(
    "setting", ["sampling.max_new_tokens=x", "seed=abc", "limits.max_turns=1.5"]
)
def test_rollout_with_wrong_setting_plays_nothing(tmp_path: Path, setting: str) -> None:
    register_toys()
    out = tmp_path / "run"

    outcome = run_envkit(
        *("rollout", "toy-echo-v0", "--policy", "oracle", "-n", 2, "--quiet"),
        *("--model", tiny_model_dir("qwen2_5_vl"), "--out", out, "--set", setting),
    )

    assert outcome.code == 2
    assert outcome.last_error.startswith("envkit: error: ")
    assert setting.split(".")[-1].split("=")[0] in outcome.last_error
    assert not out.exists()
