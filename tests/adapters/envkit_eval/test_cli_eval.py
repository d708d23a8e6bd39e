"""`envkit eval` end to end: figures, faults, Ctrl-C and resume, comparisons, and bad input."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.command import Outcome, run_envkit, start_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.models import tiny_model_dir

from envkit.env import Turn
from envkit.errors import EnvFault, FaultKind
from envkit.registration import register
from envkit.trajectory import StopReason, load, verify_file


class FlakyEnv(EchoEnv):
    """Faults in the episodes of some words."""

    def __init__(self, *, words: str = "gamma", **options: Any) -> None:
        super().__init__(**options)
        self._words = words

    def on_turn(self, response_text: str) -> Turn:
        if self.task["word"] in self._words:
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        return super().on_turn(response_text)


class SlowEnv(EchoEnv):
    """Takes half a second for each reply."""

    def on_turn(self, response_text: str) -> Turn:
        time.sleep(0.5)
        return super().on_turn(response_text)


def register_all() -> None:
    """Register every environment that the tests here play, also in its own process."""
    register_toys({"toy-flaky-v0": FlakyEnv, "toy-slow-v0": SlowEnv})
    if "envkit/toy-open-v0" not in gymnasium.registry:
        register("toy-open-v0", EchoEnv)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    register_all()


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model_dir("qwen2_5_vl")


def evaluate(model: Path, *arguments: object, out: str = "out", policy: str = "oracle") -> Any:
    return run_envkit(
        "eval", *arguments, "--policy", policy, "--model", model, "--out", out, "-q",
    )  # fmt: skip


def lines(out: str = "out") -> list[dict[str, Any]]:
    return json.loads((Path(out) / "eval.json").read_text())["lines"]


def test_evaluation_leaves_a_run_for_each_environment_and_their_figures(model: Path) -> None:
    shown = evaluate(model, "toy-echo-v0", "toy-adder-v0", "-n", 10, "--group", 2)
    assert shown.code == 0, shown.err
    assert "100.0% [47.8, 100.0]" in shown.out  # the exact bound of five tasks
    for name in ("toy-echo-v0", "toy-adder-v0"):
        assert len(load(Path("out") / name)) == 10
        assert verify_file(Path("out") / name).is_sound
        assert (Path("out") / name / "report.html").is_file()
    whole = lines()
    assert [line["env_id"] for line in whole] == ["toy-echo-v0", "toy-adder-v0"]
    assert [(line["tasks"], line["episodes"], line["turns"]) for line in whole] == [
        (5, 10, 1.0), (5, 10, 2.0),
    ]  # fmt: skip
    assert list(whole[0]["pass_at"]) == ["1", "2"]


def test_same_seed_gives_the_same_tasks_and_only_json_on_standard_output(model: Path) -> None:
    first = evaluate(model, "toy-echo-v0", "-n", 6, "--json")
    again = evaluate(model, "toy-echo-v0", "-n", 6, "--json", out="again")
    assert json.loads(first.out)["lines"][0]["success"]["mean"] == 1.0
    assert json.loads(again.out)["is_complete"] is True
    tasks = [sorted(t.task["word"] for t in load(f"{out}/toy-echo-v0")) for out in ("out", "again")]
    assert tasks[0] == tasks[1]


def test_faults_are_reported_left_out_and_bounded(model: Path) -> None:
    shown = evaluate(model, "toy-flaky-v0", "-n", 24, "--on-fault", "retry")
    faulted = sum(one.is_faulted for one in load("out/toy-flaky-v0"))
    assert 0 < faulted < 24
    assert shown.code == 1
    assert f"{faulted} of 24 episodes faulted, more than --max-faults 0.05 allows" in shown.err
    health = shown.out.splitlines()[0]
    assert "% of sampled tokens trained, " in health
    share = float(health.rpartition(", ")[2].removesuffix("% of episodes faulted"))
    assert share == pytest.approx(100 * faulted / 24, abs=0.05)
    (line,) = lines()
    assert (line["faulted"], line["episodes"]) == (faulted, 24 - faulted)
    assert line["success"]["mean"] == 1.0
    patient = run_envkit("eval", "--resume", "out", "--max-faults", 0.9, "-q")
    assert patient.code == 0, patient.err
    assert lines()[0]["faulted"] == faulted


def test_without_a_threshold_the_mean_reward_is_the_result(model: Path) -> None:
    shown = evaluate(model, "toy-open-v0", "-n", 12, "--group", 2)
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.split())
    assert "100.0%" not in said
    assert "1.000 [" in said
    assert "toy-open-v0: success is undefined, because no reward threshold is declared" in said
    assert "register the environment with reward_threshold=REWARD" in said
    (line,) = lines()
    assert (line["success"], line["pass_at"], line["undeclared"]) == (None, {}, 12)
    assert (line["reward"]["mean"], line["reward"]["tasks"]) == (1.0, 6)

    recounted = run_envkit("eval", "--resume", "out", "-q", "--reward-threshold", 1)
    assert "success is undefined" not in recounted.out
    assert (lines()[0]["success"]["mean"], lines()[0]["undeclared"]) == (1.0, 0)
    declared = ("--env-kwargs", "reward_threshold=1.5")
    assert evaluate(model, "toy-open-v0", "-n", 6, *declared, out="strict").code == 0
    assert lines("strict")[0]["success"]["mean"] == 0.0
    shown = run_envkit("eval", "strict", "strict", "--paired", "--reward-threshold", 1)
    assert "success is undefined" not in shown.out
    paired = run_envkit("eval", "strict", "out", "--paired")
    assert paired.code == 2  # other arguments
    itself = run_envkit("eval", "out", "out", "--paired")
    assert "toy-open-v0: success is undefined" in " ".join(itself.out.split())


@pytest.mark.parametrize("command", ["eval", "filter"])
def test_threshold_that_is_not_a_number_is_refused(command: str) -> None:
    where = ("run", "--out", "kept.jsonl") if command == "filter" else ("toy-echo-v0",)
    shown = run_envkit(command, *where, "--reward-threshold", "nan")
    assert shown.code == 2
    assert "reward_threshold must be a finite number" in shown.last_error


def test_evaluation_of_nothing_but_faults_says_so(model: Path) -> None:
    every = "words=alpha beta gamma delta épsilon 七"
    shown = evaluate(model, "toy-flaky-v0", "-n", 4, "--env-kwargs", every)
    assert shown.code in (1, 3)
    assert "the backend is gone" in shown.err
    assert lines()[0]["success"] is None


def test_evaluation_whose_run_stopped_itself_is_not_complete(model: Path) -> None:
    every = "words=alpha beta gamma delta épsilon 七"
    shown = evaluate(model, "toy-flaky-v0", "-n", 48, "--env-kwargs", every)
    assert shown.code == 1
    assert "in the same way" in shown.err
    assert "complete the evaluation with: envkit eval --resume out" in shown.err
    assert json.loads(Path("out/eval.json").read_bytes())["is_complete"] is False


def test_prices_give_the_cost_of_the_tokens_that_were_counted(model: Path) -> None:
    Path("prices.toml").write_text(f'["{model}"]\ninput = 3.0\noutput = 15.0\n')
    shown = evaluate(model, "toy-echo-v0", "-n", 5, "--prices", "prices.toml")
    assert shown.code == 0, shown.err
    turns = [turn for one in load("out/toy-echo-v0") for turn in one.turns]
    expected = sum(3 * turn.prompt_tokens + 15 * turn.response_tokens for turn in turns) / 1e6
    assert lines()[0]["cost"] == pytest.approx(expected)
    assert "in total" in shown.out


@pytest.mark.slow
def test_interrupted_evaluation_keeps_its_episodes_and_continues(model: Path) -> None:
    before = f"from {__name__} import register_all\nregister_all()"
    process = start_envkit(
        "eval", "toy-echo-v0", "toy-slow-v0", "toy-adder-v0", "--policy", "oracle", "--model",
        model, "-n", 6, "--concurrency", 1, "--out", "out", before=before,
    )  # fmt: skip
    file = Path("out/toy-slow-v0/trajectories.jsonl")
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 130, err
    assert "complete the evaluation with: envkit eval --resume out" in err
    assert "rollout --resume" not in err
    assert "toy-echo-v0" in out
    begun = {one.episode_id for one in load("out/toy-slow-v0") if one.reward is not None}
    assert 2 <= len(begun) < 6
    assert not Path("out/toy-adder-v0").exists()
    shown = run_envkit("eval", "--resume", "out", "-q", "--json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert found["is_complete"] is True
    assert [(line["env_id"], line["episodes"]) for line in found["lines"]] == [
        ("toy-echo-v0", 6), ("toy-slow-v0", 6), ("toy-adder-v0", 6),
    ]  # fmt: skip
    assert begun <= {one.episode_id for one in load("out/toy-slow-v0")}
    assert all(one.stop_reason is StopReason.TERMINATED for one in load("out/toy-slow-v0"))


def test_two_evaluations_are_compared_and_runs_of_rollout_too(model: Path) -> None:
    for out, policy in (("a", "oracle"), ("b", "oracle")):
        assert evaluate(model, "toy-echo-v0", "-n", 6, out=out, policy=policy).code == 0
    shown = run_envkit("eval", "a", "b", "--paired")
    assert shown.code == 0, shown.err
    assert "McNemar's exact test" in shown.out
    played = run_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", model, "-n", 6, "--out", "c"
    )
    assert played.code == 0
    assert run_envkit("eval", "a", "c", "--paired").code == 0
    found = json.loads(run_envkit("eval", "a", "c", "--paired", "--json").out)
    assert found["differences"][0]["success"]["mean"] == 0.0


def test_comparison_counts_a_repeated_episode_once(model: Path) -> None:
    for out in ("a", "b"):
        assert evaluate(model, "toy-echo-v0", "-n", 6, out=out).code == 0
    before = run_envkit("eval", "a", "b", "--paired", "--json").out
    (file,) = Path("b").glob("*/trajectories.jsonl")
    lines = file.read_bytes()
    file.write_bytes(lines + lines.splitlines(keepends=True)[0])

    assert run_envkit("eval", "a", "b", "--paired", "--json").out == before


def test_comparison_of_other_arguments_or_seeds_is_refused(model: Path) -> None:
    assert evaluate(model, "toy-echo-v0", "-n", 5, out="a").code == 0
    other = ("--env-kwargs", "max_turns=2")
    assert evaluate(model, "toy-echo-v0", "-n", 5, *other, out="b").code == 0
    assert evaluate(model, "toy-echo-v0", "-n", 5, "--seed", 1, out="c").code == 0
    arguments = run_envkit("eval", "a", "b", "--paired")
    assert arguments.code == 2
    assert "max_turns of toy-echo-v0 is not set and 2" in arguments.last_error
    seeds = run_envkit("eval", "a", "c", "--paired")
    assert seeds.code == 2
    assert "of toy-echo-v0 is only in a, of 5 and 5 tasks" in seeds.last_error


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "name an environment"),
        (("toy-ehco-v0", "--policy", "oracle"), 2, "Did you mean 'toy-echo-v0'?"),
        (("toy-echo-v0", "toy-echo-v0", "--policy", "oracle"), 2, "is named twice"),
        (("toy-echo-v0", "toy-adder-v0", "--policy", "oracel"), 2, "Did you mean 'oracle'?"),
        (
            ("toy-echo-v0", "--pass-at", "3", "--group", "2"),
            2,
            "got k=3 with 2: raise --group to 3",
        ),
        (("toy-echo-v0", "--on-fault", "drop_group"), 2, "would hide faulted episodes"),
        (("toy-echo-v0", "--prices", "none.toml"), 2, "cannot read the prices none.toml"),
        (("toy-echo-v0", "--chat", "http://127.0.0.1:1/v1"), 2, "--chat needs --model"),
        (("toy-echo-v0", "--chat", "127.0.0.1/v1", "--model", "m"), 2, "must begin with http://"),
        (
            ("toy-echo-v0", "--chat", "http://x/v1", "--model", "m", "--policy", "oracle"),
            2,
            "replaces an engine: drop --policy",
        ),
        (("toy-echo-v0", "--key-env", "KEY"), 2, "add --chat URL"),
        (("toy-echo-v0", "--paired"), 2, "--paired compares two runs"),
        (("a", "b", "--paired", "--seed", "0"), 2, "--paired plays nothing: drop --seed"),
        (("nowhere", "neither", "--paired"), 1, "there is no trajectory file 'nowhere'"),
        (("--resume", "nowhere"), 1, "is not the folder of an evaluation"),
        (("toy-echo-v0", "--resume", "nowhere", "--group", "2"), 2, "drop ID, --group"),
        ((".",), 2, "is a folder, not an environment"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: tuple[str, ...], code: int, words: str) -> None:
    shown = run_envkit("eval", *arguments)
    assert shown.code == code, shown.err
    assert words in " ".join(shown.err.replace("│", " ").split())
    assert not [*Path().rglob("*.json*")]


def test_folder_with_an_evaluation_is_not_overwritten_by_itself(model: Path) -> None:
    assert evaluate(model, "toy-echo-v0", "-n", 5).code == 0
    taken = evaluate(model, "toy-echo-v0", "-n", 5)
    assert taken.code == 1
    assert "--overwrite" in taken.last_error
    assert evaluate(model, "toy-echo-v0", "-n", 6, "--overwrite").code == 0
    assert lines()[0]["tasks"] == 6


def test_the_same_command_starts_completes_and_recounts_an_evaluation(model: Path) -> None:
    def again(*options: object) -> Outcome:
        return evaluate(
            model,
            "toy-echo-v0",
            "toy-adder-v0",
            "-n",
            12,
            "--group",
            2,
            "--resume-or-start",
            *options,
        )

    assert again().code == 0
    rows = Path("out/toy-echo-v0/trajectories.jsonl")
    kept = b"".join(rows.read_bytes().splitlines(keepends=True)[:5])
    rows.write_bytes(kept)
    shutil.rmtree("out/toy-adder-v0")
    assert again("--concurrency", 2).code == 0
    assert rows.read_bytes().startswith(kept)
    assert [(line["env_id"], line["episodes"]) for line in lines()] == [
        ("toy-echo-v0", 12), ("toy-adder-v0", 12),
    ]  # fmt: skip
    stored = rows.read_bytes()
    assert again("--pass-at", 2).code == 0
    assert rows.read_bytes() == stored
    assert list(lines()[0]["pass_at"]) == ["2"]

    for options, says in (
        (("--seed", 5), "toy-adder-v0.config.seed is 0, got 5"),
        (("toy-slow-v0",), "toy-slow-v0.env_id is None, got 'toy-slow-v0'"),
        (("--overwrite",), "drop one"),
    ):
        shown = again(*options)
        assert shown.code == 2
        assert says in shown.last_error
    assert rows.read_bytes() == stored
    assert "add --out" in run_envkit("eval", "toy-echo-v0", "--resume-or-start").last_error


def test_evaluation_without_its_long_episodes_is_refused(model: Path) -> None:
    shown = evaluate(model, "toy-echo-v0", "-n", 5, "--set", "tail.then=drop")
    assert shown.code == 2
    assert "remove it" in shown.last_error


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "envkit": "0"}', "\0"])
def test_damaged_evaluation_is_refused(text: str) -> None:
    Path("out").mkdir()
    Path("out/eval.json").write_text(text)
    shown = run_envkit("eval", "--resume", "out")
    assert shown.code == 1
    assert "out/eval.json" in shown.last_error
