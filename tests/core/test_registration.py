"""Ids: registering, listing without imports, making, other distributions, and what is wrong."""

import json
import os
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
from fakes import envs as toys
from fakes.envs import EchoEnv, register_toys
from fakes.processes import run_python
from gymnasium.envs.registration import EnvSpec as GymSpec

import envkit
from envkit import plugins
from envkit.env import Env
from envkit.errors import ConfigurationError, ContractError, UnknownNameError
from envkit.registration import EnvSpec

NO_SPEC = {"not": "a spec"}
SPEC = EnvSpec(
    id="plug-v1",
    entry_point="fakes.envs:EchoEnv",
    description="Repeat the word.",
    kwargs={"max_turns": 7},
)
WRONG_ID = EnvSpec(id="other-v1", entry_point="fakes.envs:EchoEnv")
GONE = EnvSpec(id="plug-v1", entry_point="fakes.envs:GoneEnv")
FOREIGN = EnvSpec(id="plug-v1", entry_point="gymnasium.envs.classic_control:CartPoleEnv")


class Owner:
    """The one attribute of a distribution that is read."""

    def __init__(self, name: str) -> None:
        self.name = name


def entry(value: str, owner: str = "envkit-plug", name: str = "plug-v1") -> EntryPoint:
    point = EntryPoint(name=name, value=value, group="envkit.envs")
    vars(point)["dist"] = Owner(owner)
    return point


def install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setitem(sys.modules, "plug_specs", sys.modules[__name__])

    def listed(*, group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(plugins, "entry_points", listed)


def test_registered_class_is_made_by_both_libraries() -> None:
    envkit.register("mine-v3", EchoEnv, description="Mine.", kwargs={"max_turns": 4})

    ours = envkit.make("mine-v3")
    theirs = gymnasium.make("envkit/mine-v3", max_turns=5)

    assert type(ours) is EchoEnv
    assert ours.max_turns == 4
    assert isinstance(theirs.unwrapped, EchoEnv)
    assert theirs.unwrapped.max_turns == 5
    assert envkit.spec("mine-v3").description == "Mine."
    assert envkit.registry()["mine-v3"].entry_point == "fakes.envs:EchoEnv"


@pytest.mark.parametrize("wanted", ["mine", "envkit/mine", "mine-v12", "envkit/mine-v12"])
def test_unversioned_id_is_the_latest_version(wanted: str) -> None:
    for version in (2, 12, 9):
        envkit.register(f"mine-v{version}", "fakes.envs:EchoEnv", kwargs={"max_turns": version})

    assert envkit.make(wanted).max_turns == 12
    assert envkit.make("mine-v2").max_turns == 2


def test_specs_are_json_and_rebuild_the_environment() -> None:
    register_toys()
    for env in (envkit.make("toy-dots-v0", rounds=2), gymnasium.make("envkit/toy-dots-v0")):
        assert env.spec is not None
        text = env.spec.to_json()
        again = gymnasium.make(GymSpec.from_json(text), disable_env_checker=True)
        assert json.loads(text)["id"] == "envkit/toy-dots-v0"
        assert isinstance(again.unwrapped, toys.DotsEnv)


def test_checker_wraps_only_when_asked() -> None:
    register_toys()

    assert type(envkit.make("toy-echo-v0")) is EchoEnv
    checked = envkit.make("toy-echo-v0", disable_env_checker=False)
    assert type(checked) is gymnasium.wrappers.PassiveEnvChecker
    assert isinstance(checked.unwrapped, Env)


def test_class_that_cannot_be_named_works_in_this_process() -> None:
    class Local(EchoEnv):
        pass

    envkit.register("local-v0", Local)

    assert type(envkit.make("local-v0")) is Local
    assert isinstance(gymnasium.make("envkit/local-v0").unwrapped, Local)


CELL = """
class CellEnv(EchoEnv):
    system_prompt = {prompt!r}

envkit.register("cell-v0", CellEnv, kwargs={{"max_turns": {turns}}})
"""


@pytest.mark.parametrize("module", ["__main__", "plug_cells"])
def test_registering_a_class_again_replaces_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = types.ModuleType(module)
    vars(cells).update(envkit=envkit, EchoEnv=EchoEnv)
    monkeypatch.setitem(sys.modules, module, cells)
    for prompt, turns in (("first", 2), ("second", 5)):
        exec(CELL.format(prompt=prompt, turns=turns), vars(cells))  # as a notebook does

    made = envkit.make("cell-v0")
    assert (made.system_prompt, made.max_turns) == ("second", 5)
    assert envkit.registry()["cell-v0"].kwargs == {"max_turns": 5}
    assert gymnasium.make("envkit/cell-v0").unwrapped.max_turns == 5  # pyright: ignore[reportAttributeAccessIssue]


def test_registering_a_function_again_replaces_it() -> None:
    def built(turns: int) -> Callable[[], EchoEnv]:
        return lambda: EchoEnv(max_turns=turns)

    for turns in (2, 5):
        envkit.register("built-v0", built(turns))

    assert envkit.make("built-v0").max_turns == 5


def test_environment_registered_with_gymnasium_is_known() -> None:
    gymnasium.register("envkit/direct-v0", "fakes.envs:EchoEnv", kwargs={"max_turns": 2})

    assert envkit.registry()["direct-v0"].entry_point == "fakes.envs:EchoEnv"
    assert envkit.make("direct").max_turns == 2


@pytest.mark.parametrize("wanted", ["toy-ecko-v0", "toy-echo-v7", "toy echo", "else/toy-echo-v0"])
def test_unknown_id_suggests_the_nearest(wanted: str) -> None:
    register_toys()

    with pytest.raises(UnknownNameError) as caught:
        envkit.make(wanted)

    assert str(caught.value).startswith(f"no environment {wanted!r} is registered.")
    assert "'toy-echo-v0'" in str(caught.value)


def test_empty_id_gets_the_list_of_registered_ones() -> None:
    register_toys()

    with pytest.raises(
        UnknownNameError, match=r"^no environment '' is registered. Registered: \['"
    ):
        envkit.make("")


@pytest.mark.parametrize(
    ("env_id", "entry_point", "part"),
    [
        ("two words", EchoEnv, "must look like 'name-v0'"),
        ("else/x-v0", EchoEnv, "must look like 'name-v0'"),
        (5, EchoEnv, "must look like 'name-v0', got 5"),
        ("x-v0", "fakes.envs", "must be 'module:Class', got 'fakes.envs'"),
        ("x-v0", 5, "must be 'module:Class' or a class, got 5"),
        (
            "toy-echo-v0",
            toys.DotsEnv,
            "already registered as fakes.envs:EchoEnv, got fakes.envs:DotsEnv",
        ),
        ("canary-v0", EchoEnv, "already registered by 'envkit-rl' as envkit_canary"),
        ("toy-echo", EchoEnv, "cannot register environment 'toy-echo'"),
    ],
)
def test_wrong_registration_is_refused(env_id: Any, entry_point: Any, part: str) -> None:
    register_toys()

    with pytest.raises(ConfigurationError) as caught:
        envkit.register(env_id, entry_point)

    assert part in str(caught.value)


def test_arguments_that_no_spec_can_carry_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="kwargs must be JSON data"):
        envkit.register("x-v0", EchoEnv, kwargs={"rows": object()})
    assert "x-v0" not in envkit.registry()


def test_wrong_arguments_are_refused() -> None:
    register_toys()
    envkit.register("toy-mix-v0", "envkit.wrappers.mixture:MixEnv")

    with pytest.raises(ConfigurationError, match="pass max_turns"):
        envkit.make("toy-echo-v0", max_episode_steps=3)
    with pytest.raises(
        ConfigurationError,
        match=r"it takes no argument 'round'\. Did you mean 'rounds'\? It takes max_turns, render_",
    ):
        envkit.make("toy-dots-v0", round=3)
    with pytest.raises(ConfigurationError, match=r"missing 1 required .* 'members'"):
        envkit.make("toy-mix-v0")
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        envkit.make("toy-dots-v0", max_turns=0)


def test_error_within_a_constructor_is_not_an_argument_error() -> None:
    class BrokenEnv(EchoEnv):
        def __init__(self, *, level: int = 1) -> None:
            super().__init__(max_turns=level + cast(int, None))

    envkit.register("broken-v0", BrokenEnv)

    with pytest.raises(TypeError, match="unsupported operand"):
        envkit.make("broken-v0", level=2)


def test_plugin_is_listed_without_its_import_and_made_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, entry("plug_specs:SPEC"))
    listed = envkit.registry()["plug-v1"]

    assert (listed.entry_point, listed.distribution) == ("plug_specs:SPEC", "envkit-plug")
    assert listed.description == ""
    assert envkit.make("plug").max_turns == 7
    assert envkit.make("plug-v1", max_turns=2).max_turns == 2
    lazy = gymnasium.make("envkit/plug-v1", max_turns=3)
    assert isinstance(lazy.unwrapped, EchoEnv)
    assert lazy.unwrapped.max_turns == 3
    known = envkit.spec("plug")
    assert (known.description, known.distribution) == ("Repeat the word.", "envkit-plug")
    assert envkit.registry()["plug-v1"] == known


def test_plugin_installed_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(UnknownNameError):
        envkit.make("plug-v1")

    install(monkeypatch, entry("plug_specs:SPEC"))

    assert envkit.make("plug-v1").max_turns == 7


def test_plugin_that_is_uninstalled_is_unknown_and_can_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, entry("plug_specs:SPEC"))
    assert "plug-v1" in envkit.registry()
    install(monkeypatch)
    assert "plug-v1" not in envkit.registry()
    with pytest.raises(UnknownNameError, match="plug-v1"):
        envkit.make("plug-v1")
    install(monkeypatch, entry("plug_specs:SPEC"))
    assert envkit.make("plug-v1").max_turns == 7


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("no_such_module:SPEC", r"fails to import: ModuleNotFoundError"),
        ("plug_specs:NO_SUCH", r"fails to import: AttributeError"),
        ("plug_specs:NO_SPEC", r"must be an envkit\.EnvSpec or a class, got dict"),
        ("plug_specs:WRONG_ID", r"must have that id, got 'other-v1'"),
        ("plug_specs:GONE", r"cannot be imported from 'fakes\.envs:GoneEnv'"),
        ("plug_specs:FOREIGN", r"must be an envkit\.Env, got CartPoleEnv"),
    ],
)
def test_broken_plugin_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch, value: str, part: str
) -> None:
    install(monkeypatch, entry(value))

    assert "plug-v1" in envkit.registry()
    for make in (lambda: envkit.make("plug-v1"), lambda: gymnasium.make("envkit/plug-v1")):
        with pytest.raises(ContractError, match=part) as caught:
            make()
        assert "plug-v1" in str(caught.value)
        if value != "plug_specs:FOREIGN":
            assert "envkit-plug" in str(caught.value)


def test_two_owners_of_one_id_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, entry("plug_specs:SPEC", "first"), entry("plug_specs:SPEC", "second"))

    assert envkit.registry()["plug-v1"].distribution == "first, second"
    for make in (envkit.make, envkit.spec):
        with pytest.raises(ContractError, match="more than one distribution: first, second"):
            make("plug-v1")


def test_malformed_plugin_id_warns_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, entry("x:Y", name="two words"), entry("plug_specs:SPEC"))

    with pytest.warns(UserWarning, match="envkit-plug: environment 'two words'"):
        listed = envkit.registry()

    assert "plug-v1" in listed
    assert "two words" not in listed


def test_first_party_plugins_are_made_by_gymnasium_after_import_envkit_alone() -> None:
    code = (
        "import sys, gymnasium, envkit\n"
        "assert not [m for m in sys.modules if m.startswith('envkit_')], 'a plugin was imported'\n"
        "env = gymnasium.make('envkit/geo3k-v0')\n"
        "assert isinstance(env.unwrapped, envkit.Env)\n"
        "print(env.spec.to_json())"
    )
    assert json.loads(run_python("-W", "error", "-c", code))["kwargs"] == {"plugin": "geo3k-v0"}


PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.2"

[project.entry-points."envkit.envs"]
"coin-v1" = "envkit_coin:SPEC"

[tool.hatch.build.targets.wheel]
packages = ["envkit_coin"]
"""

PACKAGE = '''
import envkit

SPEC = envkit.EnvSpec(
    id="coin-v1",
    entry_point="envkit_coin:CoinEnv",
    description="Call the coin.",
    kwargs={"max_turns": 2},
)


class CoinEnv(envkit.Env):
    """Say heads or tails."""

    def on_reset(self, task):
        self._side = ("heads", "tails")[self.np_random.integers(2)]
        return envkit.Turn("Heads or tails?")

    def on_turn(self, response_text):
        right = response_text.strip() == self._side
        return envkit.Turn(self._side, reward=float(right), done=True)
'''

SCRIPT = """
import sys
import gymnasium
import envkit

listed = envkit.registry()["coin-v1"]
assert (listed.entry_point, listed.distribution) == ("envkit_coin:SPEC", "envkit-coin"), listed
assert "envkit_coin" not in sys.modules, "listing imported the plugin"

ours = envkit.make("coin")
theirs = gymnasium.make("envkit/coin-v1", max_turns=1)
assert type(ours).__name__ == "CoinEnv"
assert (ours.max_turns, theirs.unwrapped.max_turns) == (2, 1)
for env in (ours, theirs):
    env.reset(seed=1)
    assert env.step("heads")[2] is True
assert envkit.spec("coin-v1").description == "Call the coin."
assert "geo3k-v0" in envkit.registry()
print(envkit.check_env(ours).name)
"""

CONFLICT = """
import gymnasium
import envkit

assert envkit.registry()["coin-v1"].distribution == "envkit-coin, other-coin"
for make in (lambda: envkit.make("coin-v1"), lambda: gymnasium.make("envkit/coin-v1")):
    try:
        make()
    except envkit.errors.ContractError as error:
        print(error)
"""


def install_wheel(name: str, folder: Path, target: Path) -> None:
    """Build a wheel of the distribution and install it into `target`, without the network."""
    source = folder / name
    (source / "envkit_coin").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    (source / "envkit_coin" / "__init__.py").write_text(PACKAGE)
    run_python("-m", "build", "--wheel", "--no-isolation", "-o", folder / "dist", source)
    wheel = next((folder / "dist").glob(f"{name.replace('-', '_')}-*.whl"))
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run_python(*pip, "--disable-pip-version-check", "--target", target, wheel)


def run(code: str, target: Path, folder: Path) -> str:
    variables = {**os.environ, "PYTHONPATH": str(target)}
    return run_python("-W", "error", "-c", code, cwd=folder, env=variables)


@pytest.mark.slow
def test_environment_of_another_distribution_is_made_by_id(tmp_path: Path) -> None:
    install_wheel("envkit-coin", tmp_path, tmp_path / "site")

    assert run(SCRIPT, tmp_path / "site", tmp_path).strip() == "envkit/coin-v1"

    install_wheel("other-coin", tmp_path, tmp_path / "more")
    both = Path(f"{tmp_path / 'site'}{os.pathsep}{tmp_path / 'more'}")
    printed = run(CONFLICT, both, tmp_path).splitlines()
    assert len(printed) == 2
    assert all("more than one distribution: envkit-coin, other-coin" in line for line in printed)
