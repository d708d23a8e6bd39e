"""A plugin or a user's module that fails while it is imported, in every way that Python has."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.matrix import share

import envkit
from envkit.agents import load_adjust
from envkit.errors import ConfigurationError, ContractError, MissingDependencyError
from envkit.plugins import load_named, load_plugin, load_policy
from envkit.rollout.history import history_policy
from envkit.toolset import load_tools
from envkit_conformance import load_adapters
from envkit_gateway.agents import AgentSettings

_WAYS = {
    "sys.exit": "import sys; sys.exit(0)",
    "sys.exit with a text": "import sys; sys.exit('no license')",
    "exit": "raise SystemExit",
    "like Ctrl-C": "class Stop(KeyboardInterrupt): pass\nraise Stop",
    "generator": "raise GeneratorExit",
    "cancelled": "import asyncio; raise asyncio.CancelledError",
    "own base": "class Odd(BaseException):\n    def __str__(self): raise Odd\nraise Odd",
    "syntax": "def (",
    "recursion": "def f(): f()\nf()",
    "runtime": "1 / 0",
    "warning": "raise DeprecationWarning('old')",
    "no such name": "",
    "our own error": "from envkit.errors import *; raise ConfigurationError('not here')",
}
_GROUPS = ("envs", "collections", "engines", "sinks", "commands", "checks", "projections", "agents")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that installs a distribution whose module has this text."""

    def write(text: str, value: str = "sickly:thing") -> None:
        info = tmp_path / "sickly_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sickly-plugin\nVersion: 1.0\n")
        names = {"envs": "sick-v0"}
        lines = [f"[envkit.{group}]\n{names.get(group, 'sick')} = {value}" for group in _GROUPS]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (tmp_path / "sickly.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "sickly", raising=False)

    return write


@pytest.mark.parametrize("way", share(_WAYS, of=4))  # the last test of this file takes all
def test_plugin_that_fails_costs_only_itself_and_is_named(
    way: str, install: Callable[[str], None]
) -> None:
    install(_WAYS[way])

    listed = run_envkit("list", "--json")
    rows = {row["id"]: row["description"] for row in json.loads(listed.out)}
    assert listed.code == 0
    assert "cannot be imported" in rows["sick-v0"]
    assert "sickly" in rows["sick-v0"]
    assert rows["canary-v0"]
    found = json.loads(run_envkit("doctor", "--json").out)["checks"]
    sick = [check for check in found if check["name"].startswith("sick")]
    assert {(check["area"], check["status"]) for check in sick} == {
        ("environment", "no"),
        ("engine", "no"),
        ("plugin", "no"),
    }
    assert any(check["name"] == "canary-v0" and check["status"] == "ok" for check in found)
    assert run_envkit("--help").code == 0
    for arguments in (("list", "sick"), ("sick",), ("info", "sick-v0")):
        done = run_envkit(*arguments)
        assert done.code == 1
        assert "sick" in done.err
        assert len(done.err.splitlines()) == 1
    assert any(one.missing and one.name == "sick" for one in load_adapters())
    for load in (
        lambda: envkit.make("sick-v0"),
        lambda: gymnasium.make("envkit/sick-v0"),
        lambda: envkit.make("sick/any-v0"),
        lambda: load_plugin("envkit.sinks", "sick", kind="sink"),
        lambda: load_adapters(("sick",)),
    ):
        with pytest.raises(ContractError, match="sick"):
            load()


@pytest.mark.parametrize("value", ["", "sickly", "sickly:", "not a name", "1:2", "sickly:a.b.c"])
def test_plugin_with_a_malformed_entry_point_costs_only_itself(
    value: str, install: Callable[..., None]
) -> None:
    install("", value)

    assert run_envkit("list").code == 0
    assert run_envkit("--help").code == 0
    assert run_envkit("sick").code == 1
    with pytest.raises(ContractError, match="sick-v0"):
        envkit.make("sick-v0")


def test_plugin_that_ctrl_c_interrupts_ends_the_command(install: Callable[[str], None]) -> None:
    install("raise KeyboardInterrupt")

    assert run_envkit("list").code == 130


def test_plugin_without_its_package_says_how_to_install_it(install: Callable[[str], None]) -> None:
    install("from envkit.errors import *\nraise MissingDependencyError.for_extra('a', 'b', 'c')")

    with pytest.raises(MissingDependencyError, match="pip install"):
        envkit.make("sick-v0")


@pytest.mark.parametrize("way", _WAYS)
def test_users_module_that_fails_is_named(
    way: str, install: Callable[[str], None], tmp_path: Path
) -> None:
    install(_WAYS[way])

    loads: tuple[Callable[[], Any], ...] = (
        lambda: load_named("sickly:thing", "the thing"),
        lambda: load_policy("sickly:thing"),
        lambda: load_adjust("sickly:thing"),
        lambda: history_policy("sickly:thing"),
        lambda: AgentSettings(function="sickly:thing").load(),
        lambda: load_tools(tmp_path / "sickly.py"),
    )
    for load in loads:
        with pytest.raises(ConfigurationError, match="sickly"):
            load()
