"""Output of commands: no control character of others, and readers that go away."""

import io
import json
import os
import pty
import re
import sys
import unicodedata
from pathlib import Path
from typing import IO, Any, ClassVar

import pytest
from fakes.command import Outcome, run_envkit, start_envkit
from fakes.matrix import share
from fakes.models import tiny_model_dir
from fakes.trajectories import Reply, build
from hypothesis import given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text

import envkit
from envkit.cli import console
from envkit.cli.console import note, printable, say
from envkit.cli.rich_console import PrintableConsole
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.tasks import Task
from envkit.tools import ToolSpec
from envkit.trajectory import StopReason, load, save, verify_file
from envkit.trajectory.storage import FILE_NAME

RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
SEQUENCES = "\x1b]0;renamed\x07 \x1b[2J\x1b[8m \x9b31m \x90q\x9c over\r\x1b[1A\b\b \u202egnp.exe"
EVERY = "".join(chr(code) for code in range(0x100) if unicodedata.category(chr(code)) == "Cc")
HOSTILE = f"HOSTILE {SEQUENCES} {EVERY} \u2066\u061c [bold red]markup[/] [/x] :bomb: END"
"""Without a newline between its first and last word, but for the one among EVERY."""
LONE = f"{HOSTILE} \ud83d \udfff END"


def assert_clean(outcome: Outcome) -> None:
    """Nothing raw came out, the text itself did, and its markup was not obeyed."""
    shown = outcome.out + outcome.err
    assert RAW.findall(shown) == []
    assert "HOSTILE" in shown
    assert "␛" in shown or r"\x1b" in shown


class HostileEnv(Env):
    """Says hostile things wherever an environment may speak, and fails as its argument says."""

    capabilities: ClassVar[Capabilities] = Capabilities(deterministic=True, replay_safe=True)
    speech: ClassVar[str] = HOSTILE

    def __init__(self, *, fails: str = "", **arguments: Any) -> None:
        super().__init__(max_turns=2, **arguments)
        if fails == "made":
            raise ConfigurationError(LONE)
        self._fails = fails
        self.system_prompt = self.speech
        schema = {"type": "object", "properties": {}}
        self.tools = (ToolSpec(name="look", description=self.speech, parameters=schema),)

    def oracle(self) -> Any:
        """Say something hostile."""

        def reply(_: PolicyContext) -> str:
            return HOSTILE

        return reply

    def on_reset(self, task: Task) -> Turn:
        """Speak."""
        return Turn(self.speech)

    def on_turn(self, response_text: str) -> Turn:
        """Speak, or fail."""
        if self._fails == "fault":
            raise EnvFault(HOSTILE, kind=FaultKind.PERMANENT)
        if self._fails == "bug":
            raise ValueError(HOSTILE)
        terms = {"[red]" + SEQUENCES: 1.0}
        info = {"parse_error": HOSTILE, "reward_terms": terms}
        return Turn(self.speech, reward=1.0, done=True, info=info)


HostileEnv.__doc__ = f"Say {HOSTILE}"


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    if "hostile-v0" not in envkit.registry():
        envkit.register("hostile-v0", HostileEnv, description=HOSTILE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model, environment, faults and names are hostile."""
    replies = (Reply(text=HOSTILE, observation_text=HOSTILE, parse_error=HOSTILE),)
    named: dict[str, Any] = {"env_id": HOSTILE, "task": {HOSTILE: HOSTILE}, "engine": HOSTILE}
    trajectories = [
        build(replies, episode_id=HOSTILE, **named),
        build(replies, episode_id=HOSTILE + "2", stop_reason=StopReason.ENV_FAULT, **named),
    ]
    folder = tmp_path_factory.mktemp("hostile")
    save(trajectories, folder / FILE_NAME)
    return folder


@given(st.text() | st.text(st.characters(max_codepoint=0x2070)))
def test_printable_text_moves_no_cursor(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert RAW.findall(shown) == []
    assert printable(shown) == shown
    shown.encode("utf-8")


def test_printable_text_keeps_letters_of_every_script() -> None:
    text = "Grüße, مرحبا, 你好, 🎉\n\tend"
    assert printable(text) == text
    assert printable("\x1b[2J\x07\x9b") == "␛[2J␇\N{REPLACEMENT CHARACTER}"


@given(st.text())
def test_console_functions_write_nothing_raw(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        console.say(text)
        console.note(text)
        console.table(("a", text), [(text, 1)])
        console.say_json({text: [text]})
        console.note_traceback(ValueError(text))
    assert RAW.findall(out.getvalue() + err.getvalue()) == []


def test_json_stays_the_same_data(capsys: pytest.CaptureFixture[str]) -> None:
    console.say_json({"text": LONE})
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"text": LONE}


def test_table_keeps_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(("id", "text"), [("a", "first\r\nall sound\x85x\u2028y"), ("b", "2")])
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("is_terminal", [True, False])
def test_rich_console_writes_only_its_own_sequences(is_terminal: bool) -> None:
    file = io.StringIO()
    drawn = PrintableConsole(file=file, force_terminal=is_terminal, width=200)
    grid = Table(title=LONE)
    grid.add_column(LONE)
    grid.add_row(LONE)
    for thing in (LONE, Text(LONE), grid):
        drawn.print(thing)
    with Live(Text(LONE), console=drawn, auto_refresh=False) as live:
        live.console.print(LONE, soft_wrap=True)
        live.update(Text(LONE), refresh=True)
    own = r"\x1b\[[0-9;?]*[mhlAKJ]|\r"
    shown = re.sub(own, "", file.getvalue()) if is_terminal else file.getvalue()
    assert RAW.findall(shown) == []
    assert "renamed" in shown
    assert "[bold red]markup[/] [/x] :bomb:" in shown


@pytest.mark.parametrize("command", [["view"], ["verify"]])
def test_stored_run_is_shown_without_control_characters(run: Path, command: list[str]) -> None:
    outcome = run_envkit(*command, run)
    assert RAW.findall(outcome.out + outcome.err) == []
    if command == ["view"]:
        assert_clean(outcome)
        assert "[bold red]markup[/]" in outcome.out
        assert "\ud83d" not in outcome.out


def test_file_that_is_not_sound_is_reported_without_control_characters(
    run: Path, tmp_path: Path
) -> None:
    lines = (run / FILE_NAME).read_text().splitlines()
    row = json.loads(lines[0])
    row["reward"] = 7.0
    (tmp_path / FILE_NAME).write_text(json.dumps(row) + "\n" + HOSTILE.replace("\n", " ") + "\n")
    outcome = run_envkit("verify", tmp_path)
    assert outcome.code == 1
    assert RAW.findall(outcome.out + outcome.err) == []
    for command in (["report"], ["view"], ["export", "--format", "sft", "--out", tmp_path / "r"]):
        outcome = run_envkit(command[0], tmp_path, *command[1:])
        assert RAW.findall(outcome.out + outcome.err) == []


def test_list_and_info_describe_without_control_characters() -> None:
    assert_clean(run_envkit("list"))
    assert_clean(run_envkit("info", "hostile-v0"))
    listed = run_envkit("list", "--json")
    assert RAW.findall(listed.out) == []
    assert HOSTILE in [row["description"] for row in json.loads(listed.out)]


def test_play_shows_prompt_tools_and_observations_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostileEnv, "speech", LONE)
    outcome = run_envkit("play", "hostile-v0", "--seed", 1, typed="reply\n\n")
    assert_clean(outcome)
    assert all(mark in outcome.out for mark in ("[system] HOSTILE", "[tool] look: H", "[user] H"))
    assert "not understood: HOSTILE" in outcome.err


@pytest.mark.parametrize("fails", ["", "fault", "bug"])
def test_rollout_ends_without_control_characters(fails: str, tmp_path: Path) -> None:
    arguments = ["--env-kwargs", f"fails={fails}"] if fails else []
    outcome = run_envkit(
        "rollout", "hostile-v0", "--policy", "oracle", "-n", 2, "--out", tmp_path, *arguments
    )
    assert RAW.findall(outcome.out + outcome.err) == []
    if fails:
        assert_clean(outcome)


@pytest.mark.parametrize(
    "command",
    [
        ["info", "hostile-v0", "--env-kwargs", "fails=made"],
        ["rollout", "hostile-v0", "--env-kwargs", "fails=made", "--policy", "oracle"],
        ["golden", "hostile-v0", "--env-kwargs", "fails=made"],
    ],
)
def test_error_is_printed_without_control_characters(command: list[Any], tmp_path: Path) -> None:
    if command[0] == "golden":
        command = [*command, "--out", tmp_path / "golden.json"]
    outcome = run_envkit(*command)
    assert outcome.code != 0
    assert_clean(outcome)


def test_certify_prints_evidence_without_control_characters(tmp_path: Path) -> None:
    raises = f"    def on_reset(self, task):\n        raise ValueError({HOSTILE!r})"
    text = f"class Bad(envkit.Env):\n{raises}"
    path = tmp_path / "bad.py"
    path.write_text(f"import envkit\n\n{text}\n", encoding="utf-8")
    outcome = run_envkit("certify", f"{path}:Bad", "--only", "contract", "--only", "replies")
    assert outcome.code == 1
    assert_clean(outcome)


def test_audit_prints_a_template_without_control_characters(tmp_path: Path) -> None:
    outcome = run_envkit("audit", tmp_path / SEQUENCES.replace("/", ""))
    assert outcome.code == 2
    assert RAW.findall(outcome.out + outcome.err) == []
    assert "renamed" in outcome.err


def test_doctor_shows_an_unknown_answer_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from envkit.cli import checks

    def machine() -> dict[str, str]:
        return {"system": HOSTILE}

    monkeypatch.setattr(checks, "machine", machine)
    assert_clean(run_envkit("doctor"))


def test_import_names_a_broken_dump_without_control_characters(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    dump.write_text(json.dumps({HOSTILE: HOSTILE}) + "\n")
    outcome = run_envkit("import", dump, "--from", "verl", "--out", tmp_path / "run")
    assert outcome.code == 1
    assert RAW.findall(outcome.out + outcome.err) == []


@pytest.mark.slow
def test_traceback_warning_and_log_line_hold_no_control_characters() -> None:
    before = (
        "import logging, threading, warnings\n"
        "from fakes.printable import fail\n"
        "import envkit.cli.app as app\n"
        "app.app.command('fail')(fail)\n"
    )
    process = start_envkit("fail", before=before)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert RAW.findall(err) == []
    for what in ("warned ␛", "logged ␛", "in a thread ␛", "ValueError: raised ␛", "noted ␛"):
        assert what in err


BEFORE = "from fakes.envs import register_toys\nregister_toys()"


@pytest.mark.parametrize(
    ("lines", "closed"),
    share([(2, ("stderr",)), (0, ("stdout",)), (0, ("stdout", "stderr"))], of=3),
)
def test_rollout_goes_on_when_nobody_reads_its_output(
    tmp_path: Path, lines: int, closed: tuple[str, ...]
) -> None:
    process = start_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 40, "--concurrency", 1, "--out", tmp_path / "run", before=BEFORE,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(lines):
        process.stderr.readline()
    for name in closed:
        getattr(process, name).close()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(load(tmp_path / "run")) == 40
    assert verify_file(tmp_path / "run").is_sound
    if "stdout" not in closed:
        assert "all sound" in out


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> IO[str]:
    """Standard error and output as a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_lines_without_a_reader_are_dropped(broken: IO[str]) -> None:
    for _ in range(3):
        say("a result")
        note("a note")
    broken.close()  # would raise if anything were left to write


def test_drawing_without_a_reader_is_dropped(broken: IO[str]) -> None:
    console = PrintableConsole(stderr=True, force_terminal=True)
    for _ in range(3):
        console.print("a bar")
    broken.close()


def test_lines_to_a_terminal_that_went_away_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    os.close(ours)
    for _ in range(3):
        note("a note")
    stream.close()


def test_drawing_to_a_terminal_that_went_away_is_dropped() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", buffering=1) as stream:
        os.close(ours)
        console = PrintableConsole(file=stream, force_terminal=True)
        for _ in range(3):
            console.print("a bar")


def test_output_to_a_full_disk_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space left"):
            say("a result")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
