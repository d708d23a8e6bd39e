"""Harnesses named in one word: what is checked before the first episode, and what they run."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.agent_runs import ASK, played

from envkit.cli.play_options import PlayOptions
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit_gateway import AgentSettings
from envkit_gateway.harnesses import HARNESSES

# It answers with what it was given, after one request.
STAND_IN = f"#!{sys.executable}\n{ASK}\nprint(*sys.argv[1:], sys.stdin.read(), sep='|')\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of programs, which alone is searched."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _absent(_module: str) -> None:
    """Find no module."""


@pytest.mark.parametrize("name", HARNESSES)
def test_missing_harness_says_how_to_install_it(
    name: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit_gateway.harnesses.find_spec", _absent)
    with pytest.raises(MissingDependencyError, match=re.escape(HARNESSES[name].install)):
        AgentSettings.read(name)


@pytest.mark.parametrize("name", HARNESSES)
def test_harness_is_named_by_the_option_and_the_setting(name: str) -> None:
    for agent in (name, f"{name} --model a:b"):
        options = PlayOptions(agent=agent, settings=["agent.command=true"])
        assert options.rollout_config(env_id="canary-v0").agent == {"harness": agent}


def test_page_names_every_harness_and_its_install() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    for name, harness in HARNESSES.items():
        assert f"| `{name}` | `{harness.install}` |" in page


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("claudecode", "Did you mean 'claude-code'"),
        ("", "neither module:function nor a known harness"),
        ("codex 'a", "No closing quotation"),
        ({"harness": "codex", "command": "true"}, "one of function, command and harness"),
    ],
)
def test_wrong_harness_is_refused(setting: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AgentSettings.read(setting)


async def test_harness_gets_its_arguments_and_the_task(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (programs / "claude").write_text(STAND_IN)
    (programs / "claude").chmod(0o755)
    found = await played("claude-code --max-turns 5 --append-system-prompt 'a: b'")

    output = found.turns[-1].info["agent_output"]["stdout"]
    *arguments, task = output.split("|")
    assert arguments[-4:] == ["--max-turns", "5", "--append-system-prompt", "a: b"]
    assert task.strip().endswith("The images of the task: image-1.png")
