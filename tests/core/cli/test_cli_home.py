"""The user's home in paths: options, arguments, settings, and files of settings and tools."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit

from envkit.cli.options import parse_env_kwargs
from envkit.errors import ConfigurationError
from envkit.files import expanded
from envkit.rollout import RolloutConfig
from envkit.rollout.config import read_settings, with_overrides
from envkit.toolset import load_tools

TOOL = '''
import envkit

@envkit.tool
def double(n: int) -> int:
    """
    Double a number.

    Args:
        n: The number.
    """
    return 2 * n
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a home, and another folder to work in."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def test_options_and_arguments_name_the_home(home: Path) -> None:
    pytest.importorskip("pyarrow")  # of one of the commands
    play = ("rollout", "canary-v0", "--policy", "oracle", "-n", 2, "--quiet")
    runs: tuple[tuple[object, ...], ...] = (
        (*play, "--out=~/run"),
        (*play, "--out", "~/other", "--sink=parquet=~/rows.parquet"),
        ("verify", "~/run"),
        ("report", "~/run", "--out=~/report.html"),
        ("export", "~/run", "--out=~/rows.jsonl", "--format=sft"),
        ("merge", "--help"),
        ("golden", "canary-v0", "--out=~/golden.json"),
        ("certify", "canary-v0", "-n", 2, "--only", "constants", "--golden=~/golden.json"),
        ("play", "canary-v0", "--out=~/pictures"),
        ("new", "coin-v0", "--into=~/mine"),
    )
    for arguments in runs:
        done = run_envkit(*arguments)
        assert done.code == 0, (arguments, done.err)
        assert os.listdir() in ([], ["runs"]), (arguments, os.listdir())

    assert {"run", "other", "report.html", "golden.json"} <= set(os.listdir(home))


def test_file_of_settings_and_set_name_the_home(home: Path) -> None:
    (home / "settings.json").write_text(
        json.dumps({
            "env_kwargs": {"folder": "~/pages", "tasks": [{"start": "~/stays"}]},
            "agent": {"command": ["~/bin/agent", "--x"]},
            "sampling": {"stop": ["~/"]},
            "template_kwargs": {"text": "~/stays"},
        })
    )  # fmt: skip

    read = read_settings(Path("~/settings.json"))
    data = with_overrides(read, ["engine.model=~/model", "env_kwargs.more=~/rows", "history=~/h:f"])

    assert data["env_kwargs"] == {
        "folder": f"{home}/pages",
        "tasks": [{"start": "~/stays"}],
        "more": f"{home}/rows",
    }
    assert data["agent"]["command"] == [f"{home}/bin/agent", "--x"]
    assert (data["engine"], data["history"]) == ({"model": f"{home}/model"}, f"{home}/h:f")
    assert (data["sampling"], data["template_kwargs"]) == (
        {"stop": ["~/"]},
        {"text": "~/stays"},
    )
    config = RolloutConfig.from_mapping({"env_kwargs": {"data": "~/rows.jsonl"}})  # of a trainer
    assert config.env_kwargs == {"data": f"{home}/rows.jsonl"}


def test_arguments_of_environments_name_the_home(home: Path) -> None:
    given = parse_env_kwargs(["data=~/rows.jsonl", "backend=tantivy:~/index", 'x="~/q"', "n=3"])

    assert given == {
        "data": f"{home}/rows.jsonl",
        "backend": f"tantivy:{home}/index",
        "x": f"{home}/q",
        "n": 3,
    }
    (home / "pages.jsonl").write_text("")
    shown = run_envkit("info", "computer-use-page-v0", "--env-kwargs", "tasks=~/pages.jsonl")
    assert f"{home}/pages.jsonl" in shown.err


def test_run_records_the_whole_path_and_resumes(home: Path) -> None:
    arguments = ("--policy", "oracle", "--quiet")
    films = "--wrap=record-episode:folder=~/films"
    done = run_envkit("rollout", "canary-v0", "-n", 1, *arguments, films, "--out=~/run")
    assert done.code == 0, done.err
    assert (home / "films").is_dir()
    assert "~" not in (home / "run" / "run.json").read_text()
    again = run_envkit("rollout", "--resume=~/run", "--quiet", films)
    assert again.code == 0, again.err
    assert os.listdir() == []


def test_tools_of_the_home_are_read(home: Path) -> None:
    (home / "tools.py").write_text(TOOL)
    Path("set.json").write_text('{"tools": ["~/tools.py:double"]}')

    assert load_tools("~/tools.py").specs[0].name == "double"
    assert load_tools("set.json").specs[0].name == "double"


@pytest.mark.parametrize(
    "text", ["", "a~", "x/~/y", "./~", "~x y", "~/a"[1:], "approx ~5", "~5%", "--x=~/y", "~no-one~"]
)
def test_other_texts_stay(text: str, home: Path) -> None:
    assert expanded(text) == text


def test_unknown_users_home_stays(home: Path) -> None:
    assert expanded("~no-such-user/x") == "~no-such-user/x"
    assert expanded("~") == str(home)


def test_user_without_a_home_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: Any) -> Any:
        return path

    monkeypatch.setattr(os.path, "expanduser", unknown)

    with pytest.raises(ConfigurationError, match="no home folder: set HOME"):
        expanded("~/x")
    done = run_envkit("verify", "~/run")
    assert done.code == 2
    assert "no home folder" in done.err
