"""`envkit certify`: one report, whatever the environment does."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit, start_envkit
from fakes.matrix import share
from fakes.mutants import MUTANTS
from fakes.sweep import missed, sweep

from envkit.checker import check_env
from envkit.errors import ContractError
from envkit_certify.certified import Plan
from envkit_certify.lines import CertificateLine, CertifyReport, Verdict
from envkit_certify.page import write_page
from envkit_certify.process import FreshProcess
from envkit_certify.target import resolve
from envkit_certify.worker import LINES, line_of, open_subject

BUILT_IN = ("canary-v0", "geo3k-v0", "search-v0", "computer-use-v0", "refine-v0")
FILE = """
import json, os, re, sys, time
import numpy as np
import PIL.Image
import envkit
from envkit.certification_hooks import CertificationHooks
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tasks import ListSource

class Good(envkit.Env):
    capabilities = envkit.Capabilities(deterministic=True, replay_safe=True)
    tasks = ListSource([{"n": 100 + n} for n in range(500)])

    def on_reset(self, task):
        print("a word on standard output")
        return envkit.Turn(f"What is {task['n']} doubled?")

    def on_turn(self, response_text):
        right = self.reply.final.strip() == str(2 * self.task["n"])
        return envkit.Turn("Done.", reward=float(right), done=True)

    def oracle(self):
        return lambda context: str(2 * context.task["n"])

class Exits(Good):
    def on_turn(self, response_text):
        sys.exit(4)

class Dies(Good):
    def on_turn(self, response_text):
        os._exit(5) if len(response_text) > 100_000 else None
        return super().on_turn(response_text)

class Hangs(Good):
    def on_turn(self, response_text):
        time.sleep(60 * (len(response_text) > 100_000))
        return super().on_turn(response_text)

class HangsWhenMade(Good):
    def __init__(self):
        time.sleep(60)

class Slow(Good):
    def on_turn(self, response_text):
        time.sleep(60 * (len(response_text) > 100_000))
        return super().on_turn(response_text)

class Opens(Good):
    def __init__(self):
        super().__init__(max_turns=4)

    def on_reset(self, task):
        self.is_open = False
        return super().on_reset(task)

    def on_turn(self, response_text):
        if self.is_open:
            return super().on_turn(response_text)
        self.is_open = response_text == "open"
        return envkit.Turn("Say open first.")

    def oracle(self):
        def reply(context):
            if context.turn and not self.is_open:
                raise RuntimeError("it did not open")
            return str(2 * context.task["n"]) if context.turn else "open"
        return reply

class RaisesInItsOracle(Opens):
    def oracle(self):
        def reply(context):
            raise RuntimeError("there is no way")
        return reply

class NeedsAProgram(Good):
    def on_reset(self, task):
        raise MissingDependencyError("a page needs the program real-browser")

class LosesItsServer(Good):
    def on_turn(self, response_text):
        if len(response_text) > 2:
            return super().on_turn(response_text)
        raise envkit.EnvFault("the server is gone")

class PaysForPlaying(Good):
    def on_turn(self, response_text):
        return envkit.Turn("Go on.", reward=9.0, done=True)

    def oracle(self):
        raise ConfigurationError("nobody knows how to play this")

class StatesItsBest(PaysForPlaying):
    def certification_hooks(self):
        return CertificationHooks(best_return=500.0)

class ShowsGrey(PaysForPlaying):
    def on_reset(self, task):
        grey = envkit.Image.from_pil(PIL.Image.new("RGB", (64, 64), "grey"))
        return envkit.Turn("Look.", images=(grey,))

class AcceptsAnyImage(ShowsGrey):
    def certification_hooks(self):
        return CertificationHooks(best_return=500.0, shows=lambda task, images: True)

class CannotSave(Good):
    capabilities = envkit.Capabilities(snapshot=True)

class WantsMore(Good):
    default_threshold = 2.0

class SaysItFailed(Good):
    def on_turn(self, response_text):
        turn = super().on_turn(response_text)
        return envkit.Turn(turn.text, reward=turn.reward, done=True, info={"is_success": False})

class ScoresInNumpy(Good):
    def step(self, action):
        return super().step(action)._replace(reward=np.float32(1.0))

class SharesItsTask(Good):
    def on_reset(self, task):
        Good.shown = task["n"]
        return super().on_reset(task)

    def on_turn(self, response_text):
        right = response_text.strip() == str(2 * Good.shown)
        return envkit.Turn("Done.", reward=float(right), done=True)

class Boxed(Good):
    def read(self, text):
        found = re.search(r"Action: submit\\[(.*)\\]", text, re.S)
        return None if found is None else found.group(1)

    def is_right(self, answer, right):
        return answer == right

    def on_turn(self, response_text):
        answer = self.read(self.reply.final)
        is_right = answer is not None and self.is_right(answer, str(2 * self.task["n"]))
        return envkit.Turn("Done.", reward=float(is_right), done=True)

    def oracle(self):
        return lambda context: f"Action: submit[{2 * context.task['n']}]"

class BoxedEmpty(Boxed):
    def is_right(self, answer, right):
        return answer in ("", right)

class BoxedPattern(Boxed):
    def is_right(self, answer, right):
        try:
            return re.fullmatch(answer, right) is not None
        except re.error:
            return False

class BoxedAmong(Boxed):
    def is_right(self, answer, right):
        return right in answer.split(", ")

class BoxedStart(Boxed):
    def is_right(self, answer, right):
        return bool(answer) and right.startswith(answer)

class BoxedRaises(Boxed):
    def is_right(self, answer, right):
        return float(answer or 0) == int(right)

class Called(Boxed):
    def read(self, text):
        try:
            return json.loads(text)["arguments"]["answer"]
        except (ValueError, TypeError, KeyError):
            return None

    def oracle(self):
        return lambda context: json.dumps(
            {"name": "submit", "arguments": {"answer": str(2 * context.task["n"])}}
        )

class CalledWithNull(Called):
    def read(self, text):
        answer = super().read(text)
        return str(2 * self.task["n"]) if answer is None and '"answer": null' in text else answer

class FirstOfFour(Good):
    tasks = ListSource([{"n": n, "answer": f"word{100 + n * 7919 % 500}"} for n in range(500)])
    first = 0

    def on_reset(self, task):
        n, right = task["n"], task["answer"]
        words = [f"word{100 + (n * 31 + 71 * k) % 500}" for k in range(1, 4)]
        words.insert(self.first if self.first >= 0 else n * 31 % 4, right)
        lines = "\\n".join(f"({letter}) {word}" for letter, word in zip("ABCD", words))
        return envkit.Turn(f"Which word fits {n}?\\n{lines}")

    def on_turn(self, response_text):
        right = self.reply.final.strip() == self.task["answer"]
        return envkit.Turn("Done.", reward=float(right), done=True)

    def oracle(self):
        return lambda context: context.task["answer"]

class AnyOfFour(FirstOfFour):
    first = -1

Unrelated = dict
number = 3
"""


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:  # pyright: ignore[reportUnusedFunction]  # used by name
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def lines_of(*arguments: Any) -> tuple[int, dict[str, dict[str, Any]]]:
    outcome = run_envkit("certify", *arguments, "-n", 6, "--json")
    assert outcome.out, outcome.err
    return outcome.code, {line["name"]: line for line in json.loads(outcome.out)["lines"]}


def in_process(target: str, name: str, episodes: int = 12) -> CertificateLine:
    """Return one line, in this process."""
    with FreshProcess() as replays:
        subject = open_subject(Plan(target=target, episodes=episodes), replays)
        line = line_of(subject, name)
        subject.close()
    return line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CannotSave", "snapshot"),
        ("WantsMore", "oracle"),
        ("SaysItFailed", "oracle"),
        ("ScoresInNumpy", "replies"),
        ("SharesItsTask", "independence"),
        ("Good", None),
    ],
)
def test_contract_fails_whenever_check_env_does(name: str, said: str | None, file: Path) -> None:
    line = in_process(f"{file}:{name}", "contract")
    make = resolve(f"{file}:{name}", {})

    if said is None:
        check_env(make(), factory=make)
        assert line.verdict is Verdict.PASS
        assert any("no reward threshold is declared" in entry for entry in line.evidence)
        return
    with pytest.raises(ContractError) as caught:
        check_env(make(), factory=make)
    assert line.verdict is Verdict.FAIL
    assert any(entry.startswith(f"{said}: ") for entry in line.evidence)
    assert all(f"  - {entry}" in str(caught.value) for entry in line.evidence[:1])


@pytest.mark.parametrize(
    ("name", "said"),
    share(
        [
            ("Boxed", None),
            ("Called", None),
            ("BoxedEmpty", "nothing: ''"),
            ("BoxedPattern", "wildcard: '.*'"),
            ("BoxedAmong", "the right one between two others, by comma"),
            ("BoxedStart", "the first half of the right answer"),
            ("BoxedRaises", "makes it raise: ValueError"),
            ("CalledWithNull", "empty value: 'null'"),
        ],
        of=3,
    ),
)
def test_payloads_reach_a_grader_behind_its_form(name: str, said: str | None, file: Path) -> None:
    line = in_process(f"{file}:{name}", "payloads")

    assert (line.verdict is Verdict.FAIL) == (said is not None), line.evidence
    assert said is None or any(said in entry for entry in line.evidence), line.evidence


def test_leaks_find_an_answer_by_its_place(file: Path) -> None:
    first, anywhere = (
        in_process(f"{file}:{name}", "leaks", 40) for name in ("FirstOfFour", "AnyOfFour")
    )

    assert any("number 1 of the options" in entry for entry in first.evidence)
    assert anywhere.verdict is Verdict.PASS, anywhere.evidence


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ignores_max_turns_canary", "state"),
        ("writes_into_the_task_canary", "state"),
        ("keeps_to_a_thread_canary", "state"),
        ("pays_by_the_date_canary", "state"),
        ("notes_snapshots_canary", "state"),
        ("tells_in_a_png_canary", "leaks"),
        ("grades_cut_replies_canary", "payloads"),
        ("claims_success_canary", "payloads"),
        ("shows_another_task_canary", "images"),
        ("pays_parse_errors_canary", "replies"),
        ("redraws_a_secret_canary", "determinism"),
        ("tells_backwards_canary", "leaks"),
    ],
)
def test_line_finds_the_defect_that_it_looks_for(name: str, line: str) -> None:
    found = in_process(f"fakes.mutants:{name}", line)

    assert found.verdict is Verdict.FAIL
    assert in_process("canary-v0", line).verdict is Verdict.PASS


def test_certify_passes_a_good_class_in_a_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    code, lines = lines_of(f"{file}:Good", "--out", out)

    assert code == 0, lines
    assert list(lines) == list(LINES)
    assert {name for name, line in lines.items() if line["verdict"] == "pass"} >= {
        "contract",
        "determinism",
        "oracle",
        "replies",
        "constants",
        "text only",
    }
    assert lines["tools"]["detail"] == "it has no tools"
    assert "of 1 policy, 6 episodes each" in lines["text only"]["detail"]
    assert lines["speed"]["value"] > 0
    assert "determinism" in out.read_text()


def test_certify_writes_its_report_as_json_too(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "report.json"
    _, lines = lines_of(f"{file}:Good", "--only", "contract", "--out", out)
    written = json.loads(out.read_text())
    assert written["target"] == f"{file}:Good"
    assert {line["name"]: line for line in written["lines"]} == lines


_NOT_USAGE = ("{file}:Unrelated", "{file}:number", "{folder}/dies.py:Env")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("{file}:Missing", "has no class 'Missing'"),
        ("{file}:Unrelated", "must be a subclass of envkit.Env, got dict"),
        ("{file}:number", "must be a subclass of envkit.Env, got int"),
        ("{folder}/nothing.py:Env", "no file"),
        ("{folder}/broken.py:Env", "cannot import"),
        ("{folder}/exits.py:Env", "SystemExit: 3"),
        ("{folder}/dies.py:Env", "exit code 7"),
        ("no_such_module:Env", "No module named 'no_such_module'"),
        ("canary-v00", "canary-v0"),
        (":Env", "expected module:Class"),
    ],
)
@pytest.mark.slow
def test_certify_refuses_a_non_environment_in_one_line(
    target: str, said: str, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "dies.py").write_text("import os\nos._exit(7)\n")
    outcome = run_envkit("certify", target.format(file=file, folder=tmp_path))

    assert outcome.code == (1 if target in _NOT_USAGE else 2)
    assert said in outcome.last_error
    assert outcome.out == ""


def test_oracle_that_gives_up_on_changed_replies_is_no_finding(file: Path) -> None:
    code, lines = lines_of(f"{file}:Opens", "--only", "replies", "--only", "oracle")
    assert (code, lines["replies"]["verdict"]) == (0, "pass"), lines
    code, lines = lines_of(f"{file}:RaisesInItsOracle", "--only", "oracle")
    assert (code, lines["oracle"]["verdict"]) == (1, "fail")


@pytest.mark.slow
def test_certify_refuses_a_class_that_hangs_when_it_is_made(file: Path) -> None:
    outcome = run_envkit("certify", f"{file}:HangsWhenMade", "--time-limit", 3)

    assert outcome.code == 1
    assert "it hangs" in outcome.last_error


@pytest.mark.parametrize(
    ("name", "said"), [("Dies", "exit code 5"), ("Hangs", "no answer within 4 seconds")]
)
@pytest.mark.slow
def test_certify_keeps_other_lines_if_one_dies_or_hangs(name: str, said: str, file: Path) -> None:
    chosen = ("contract", "oracle", "replies", "constants")
    options = [part for line in chosen for part in ("--only", line)]
    code, lines = lines_of(f"{file}:{name}", *options, "--time-limit", 4)

    assert code == 1
    assert [lines[line]["verdict"] for line in chosen] == ["pass", "pass", "fail", "pass"]
    assert said in lines["replies"]["evidence"][0]


def test_certify_fails_every_line_in_which_the_environment_exits(file: Path) -> None:
    code, lines = lines_of(f"{file}:Exits", "--only", "contract", "--only", "oracle")

    assert code == 1
    assert "sys.exit(4)" in lines["oracle"]["evidence"][0]
    assert lines["contract"]["verdict"] == "fail"


def test_certify_finishes_the_lines_of_an_environment_that_always_raises(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import envkit\nclass Bad(envkit.Env):\n    pass\n")
    code, lines = lines_of(f"{path}:Bad")

    assert code == 1
    assert list(lines) == list(LINES)
    assert "must define on_reset" in lines["contract"]["evidence"][0]


def test_certify_says_once_what_is_missing_and_passes_nothing(file: Path) -> None:
    outcome = run_envkit("certify", f"{file}:NeedsAProgram", "-n", 6)

    assert outcome.code == 1
    assert outcome.out.count("real-browser") == 1
    assert f"{len(LINES)} of {len(LINES)} lines not run" in outcome.out


def test_certify_runs_no_line_without_its_server(file: Path) -> None:
    code, lines = lines_of(f"{file}:LosesItsServer")

    assert code == 1
    assert lines["oracle"]["verdict"] == "pass"
    assert lines["determinism"]["verdict"] == "not run"
    assert "the server is gone" in lines["determinism"]["evidence"][0]


@pytest.mark.parametrize(
    ("name", "verdict"), [("PaysForPlaying", "fail"), ("StatesItsBest", "pass")]
)
def test_certify_takes_the_best_return_that_a_hook_states(
    name: str, verdict: str, file: Path
) -> None:
    _, lines = lines_of(f"{file}:{name}", "--only", "constants", "--only", "replies")

    assert {line["verdict"] for line in lines.values()} == {verdict}


@pytest.mark.parametrize(
    ("name", "said"),
    [("ShowsGrey", "has a single colour"), ("AcceptsAnyImage", "accepts a blank image")],
)
def test_certify_judges_images_without_an_oracle(name: str, said: str, file: Path) -> None:
    _, lines = lines_of(f"{file}:{name}", "--only", "images")

    assert lines["images"]["verdict"] == "fail"
    assert any(said in problem for problem in lines["images"]["evidence"])


@pytest.mark.slow
def test_certify_prints_the_lines_so_far_after_ctrl_c(file: Path) -> None:
    process = start_envkit("certify", f"{file}:Slow", "--only", "contract", "--only", "replies")
    assert process.stderr is not None
    told = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)

    assert told == "contract: pass\n"
    assert process.returncode == 130, err
    assert "stopped; results so far:" in err
    assert "contract  pass" in out
    assert "replies" not in out


def test_certify_plays_a_policy_by_its_place() -> None:
    options = ("canary-v0", "-n", 3, "--only", "constants")
    place = "fakes.faults:say_turn"

    assert run_envkit("certify", *options, "--policy", place).code == 0
    for wrong, said in (
        ("fakes.faults:nothing", "cannot import the policy"),
        ("here", "takes MODULE:NAME"),
    ):
        outcome = run_envkit("certify", *options, "--policy", wrong)
        assert outcome.code == 2
        assert said in outcome.last_error


def test_certify_suggests_the_line_that_was_meant() -> None:
    assert "determinism" in run_envkit("certify", "canary-v0", "--only", "determinsm").last_error


def test_page_escapes_what_an_environment_said(tmp_path: Path) -> None:
    line = CertificateLine(name="leaks", verdict=Verdict.FAIL, detail="<b>", evidence=("<script>",))
    report = CertifyReport(target="<i>", episodes=2, seed=0, lines=(line,), is_complete=True)
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()

    assert CertificateLine.from_json(line.to_json()) == line
    assert "&lt;script&gt;" in page
    assert "<script" not in page


@pytest.mark.slow
def test_certify_finds_95_percent_of_the_planted_defects() -> None:
    unseen = missed([f"fakes.mutants:{name}" for name in MUTANTS], episodes=12)

    assert len(MUTANTS) >= 50
    assert len(unseen) <= 0.05 * len(MUTANTS), unseen


@pytest.mark.slow
def test_certify_fails_no_built_in_environment() -> None:
    assert {name: lines for name, lines in sweep(BUILT_IN).items() if lines} == {}
