"""Secrets stay out of the folder of a run, its messages and its records."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit

import envkit
from envkit.env import Turn
from envkit.errors import ConfigurationError
from envkit.rollout.request import read_requests
from envkit.rollout.run_settings import changed_settings
from envkit.secrets import HIDDEN
from envkit.trajectory.storage import load
from envkit_canary.env import CanaryEnv

KEY = "sk-live-0123456789abcdef"
RUN = Path("run")
seen: list[Mapping[str, Any]] = []


class KeyedEnv(CanaryEnv):
    """Takes a key, and fails with it in the message if asked to."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tokenizer: str = "plain",
        is_broken: bool = False,
        max_turns: int = 8,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        seen.append({"api_key": api_key, "headers": headers})
        self._key, self._is_broken, self._tokenizer = api_key, is_broken, tokenizer

    def on_turn(self, response_text: str) -> Turn:
        if self._is_broken:
            raise RuntimeError(f"http://me:{self._key}@host/v1 answered 500 to {self._key}")
        return super().on_turn(response_text)


@pytest.fixture(autouse=True)
def _keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    envkit.register("keyed-v0", KeyedEnv)
    seen.clear()


def rollout(*more: object) -> Outcome:
    return run_envkit(
        "rollout", "keyed-v0", "--policy", "oracle", "-n", 2, "--out", RUN, *more, "--quiet"
    )


def resume(*more: object) -> Outcome:
    (RUN / "trajectories.jsonl").write_bytes(b"")
    seen.clear()
    return run_envkit("rollout", "--resume", RUN, *more, "--quiet")


def arguments() -> dict[str, Any]:
    return json.loads((RUN / "run.json").read_text())["settings"]["config"]["env_kwargs"]


def check_clean(*shown: Outcome) -> None:
    for path in RUN.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    for one in shown:
        assert KEY not in one.out + one.err


def test_literal_secret_is_not_written_and_asked_for_again() -> None:
    shown = rollout("--env-kwargs", f"api_key={KEY}", "--env-kwargs", "tokenizer=plain")
    assert shown.code == 0, shown.err
    assert seen[0]["api_key"] == KEY
    assert arguments() == {"api_key": HIDDEN, "tokenizer": "plain"}
    refused = resume()
    assert refused.code == 2
    assert "config.env_kwargs.api_key" in refused.err
    again = resume("--env-kwargs", f"api_key={KEY}")
    assert again.code == 0, again.err
    assert {one["api_key"] for one in seen} == {KEY}
    assert len(load(RUN)) == 2
    check_clean(shown, refused, again)


@pytest.mark.parametrize("written", [KEY, "env:SERVER_KEY"])
def test_secret_of_a_variable_is_a_reference(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    given = ["--env-kwargs", f'headers={{"Authorization": "Bearer {KEY}", "X-Key": "{written}"}}']
    shown = rollout("--env-kwargs", f"api_key={written}", *given)
    assert shown.code == 0, shown.err
    known = {"Authorization": "Bearer {env:SERVER_KEY}", "X-Key": "env:SERVER_KEY"}
    assert arguments() == {"api_key": "env:SERVER_KEY", "headers": known}
    refused = resume()
    assert refused.code == 2
    assert "env:SERVER_KEY" in refused.err
    again = resume("--trust", "env:SERVER_KEY")
    assert again.code == 0, again.err
    headers = {"Authorization": f"Bearer {KEY}", "X-Key": KEY}
    assert seen[-1] == {"api_key": KEY, "headers": headers}
    monkeypatch.delenv("SERVER_KEY")
    unset = resume("--trust", "env:SERVER_KEY")
    assert unset.code == 2
    assert "SERVER_KEY" in unset.err
    check_clean(shown, refused, again, unset)


def test_same_command_completes_a_run_with_a_secret() -> None:
    given = ("--env-kwargs", f"api_key={KEY}", "--resume-or-start")
    assert rollout(*given).code == 0
    (RUN / "trajectories.jsonl").write_bytes(b"")
    again = rollout(*given)
    assert again.code == 0, again.err
    assert len(load(RUN)) == 2
    check_clean(again)


@pytest.mark.parametrize("written", [KEY, "env:SERVER_KEY"])
def test_faults_reports_and_messages_show_no_secret(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if written != KEY:
        monkeypatch.setenv("SERVER_KEY", KEY)
    shown = rollout(
        "--env-kwargs", f"api_key={written}", "--env-kwargs", "is_broken=true",
        "--set", "retries.max_env_retries_per_turn=0",
    )  # fmt: skip
    assert shown.code == 3, shown.err
    fault = load(RUN)[0].fault
    assert fault is not None
    assert "@host/v1 answered 500" in fault.message
    assert "500" in shown.err
    check_clean(shown)


def test_error_of_a_wrong_argument_shows_no_secret() -> None:
    shown = rollout("--env-kwargs", f"api_key={KEY}", "--env-kwargs", "unknown=1")
    assert shown.code == 2
    check_clean(shown)


def test_settings_given_to_sinks_hold_no_secret() -> None:
    pytest.importorskip("pyarrow")
    shown = rollout("--env-kwargs", f"api_key={KEY}", f"--sink=parquet={RUN}/rows.parquet")
    assert shown.code == 0, shown.err
    check_clean(shown)


def test_folder_of_a_python_run_holds_no_secret() -> None:
    from envkit.rollout.run_folder import RunFolder

    settings = {"group_size": 1, "service": {"password": KEY}, "max_tokens": 5}
    with RunFolder.create(RUN, settings):
        pass
    check_clean()
    with RunFolder.resume(RUN, settings) as folder:
        assert folder.settings["max_tokens"] == 5


STANDARD_ERROR = """
import logging, sys, threading, warnings
from envkit.cli import console
console.make_standard_error_printable()
key = sys.argv[1]
def fail():
    raise RuntimeError(f"thread {key}")
console.note(f"note {key}")
warnings.warn(f"warning {key}")
logging.getLogger("any").warning("log line %s", key)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""


def test_every_line_of_standard_error_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    command = [sys.executable, "-c", STANDARD_ERROR, KEY]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert KEY not in shown
    assert all(f"{start} " in shown for start in ("note", "warning", "log line", "thread"))


def test_error_of_an_argument_of_another_type_shows_no_secret() -> None:
    with pytest.raises(ConfigurationError, match="api_key=") as caught:
        envkit.make("keyed-v0", api_key=KEY, max_turns=[1])
    assert KEY not in str(caught.value)


def test_error_about_tasks_with_other_arguments_shows_no_secret(tmp_path: Path) -> None:
    rows = [
        {"envkit": json.dumps({"env_id": "keyed-v0", "env_kwargs": {"api_key": key}})}
        for key in (KEY, KEY[::-1])
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ConfigurationError, match="same env_kwargs") as caught:
        read_requests(path, "keyed-v0")
    assert KEY not in str(caught.value)
    assert KEY[::-1] not in str(caught.value)


def test_changed_settings_do_not_compare_secrets() -> None:
    settings = [{"a": {"api_key": value}, "n": 1} for value in (HIDDEN, "env:SERVER_KEY")]
    assert changed_settings(*settings) == []
    assert changed_settings(settings[0], {**settings[1], "n": 2}) == ["n is 1, got 2"]


def test_option_that_differs_from_a_run_is_shown_without_secret() -> None:
    assert rollout().code == 0
    refused = resume("--env-kwargs", 'headers={"X-Api-Key": "abc1234"}')
    assert refused.code == 2
    assert "headers" in refused.err
    assert "abc1234" not in refused.err


@pytest.mark.parametrize("way", ["option", "config"])
def test_every_option_and_config_file_may_name_a_variable(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    monkeypatch.setenv("PLAYER", "oracle")
    given = {"env_id": "keyed-v0", "env_kwargs": {"api_key": "env:SERVER_KEY"}}
    (tmp_path / "config.json").write_text(json.dumps(given))
    more = {
        "option": ("keyed-v0", "--env-kwargs", "api_key=env:SERVER_KEY"),
        "config": ("--config", "config.json"),
    }[way]
    shown = run_envkit("rollout", *more, "--policy", "env:PLAYER", "-n", 1, "--out", RUN, "--quiet")
    assert shown.code == 0, shown.err
    assert seen[-1]["api_key"] == KEY
    check_clean(shown)


def test_resume_reads_a_repeated_secret_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollout("--env-kwargs", f"api_key={KEY}").code == 0
    monkeypatch.setenv("SERVER_KEY", KEY)
    again = resume("--env-kwargs", "api_key=env:SERVER_KEY")
    assert again.code == 0, again.err
    assert {one["api_key"] for one in seen} == {KEY}
    check_clean(again)


def test_exported_and_filtered_tasks_hold_no_secret() -> None:
    given = ("--env-kwargs", f"api_key={KEY}", "--env-kwargs", "max_turns=3")
    assert rollout(*given).code == 0
    out = RUN / "tasks.jsonl"
    exported = run_envkit(
        "export", "keyed-v0", "--format", "jsonl", "--rows", 1, *given, "--out", out
    )
    assert exported.code == 0, exported.err
    kept = run_envkit(
        "filter", RUN, "--out", RUN / "kept.jsonl", "--above", -1, "--below", 2,
        "--reward-threshold", 1, "--quiet",
    )  # fmt: skip
    assert kept.code == 0, kept.err
    for path in (out, RUN / "kept.jsonl"):
        request = json.loads(json.loads(path.read_text().splitlines()[0])["envkit"])
        assert request["env_kwargs"] == {"max_turns": 3}
    check_clean(exported, kept)
