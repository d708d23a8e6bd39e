"""The lists in pyproject.toml equal the folders, so that no plugin is forgotten in one of them."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from fakes.needs import TORCH
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHELVES = ("envs", "adapters")
PLUGINS = [
    folder.relative_to(ROOT).as_posix()
    for shelf in SHELVES
    for folder in sorted((ROOT / shelf).iterdir())
    if (folder / "__init__.py").is_file()
]
NAMES = sorted(Path(plugin).name for plugin in PLUGINS)


def package_of(entry_point: str) -> str:
    """Return the top package of a value such as `envkit_search.command:serve_search`."""
    return re.split("[.:]", entry_point)[0]


def test_wheel_contains_the_core_and_every_plugin() -> None:
    build = PROJECT["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {
        "only-include": ["envkit", *SHELVES],
        "sources": [*SHELVES],
    }
    assert build["dev-mode-dirs"] == [".", *SHELVES]


def test_plugin_folders_are_not_packages() -> None:
    """With an __init__.py they would shadow an installed package of the same name."""
    for shelf in SHELVES:
        assert not (ROOT / shelf / "__init__.py").exists()


def test_every_plugin_folder_is_named_envkit_and_is_typed() -> None:
    for plugin in PLUGINS:
        assert re.fullmatch(r"envkit_[a-z0-9_]+", Path(plugin).name)
        assert (ROOT / plugin / "py.typed").is_file(), plugin
    assert (ROOT / "envkit" / "py.typed").is_file()


def test_every_environment_folder_has_an_entry_point() -> None:
    groups: dict[str, dict[str, str]] = PROJECT["project"]["entry-points"]
    values = [*groups["envkit.envs"].values(), *groups["envkit.collections"].values()]
    envs = {Path(plugin).name for plugin in PLUGINS if plugin.startswith("envs/")}
    shared = {"envkit_actions", "envkit_sandbox"}
    # Adapters that bring environments.
    others = {"envkit_mcp", "envkit_openenv", "envkit_verifiers"}
    assert {package_of(value) for value in values} == envs - shared | others


@pytest.mark.parametrize(
    "group",
    ["checks", "collections", "endpoints", "engines", "envs", "players", "sinks"],
)
def test_entry_points_name_plugin_packages(group: str) -> None:
    for value in PROJECT["project"]["entry-points"][f"envkit.{group}"].values():
        assert package_of(value) in NAMES


def test_import_linter_knows_every_plugin() -> None:
    linter = PROJECT["tool"]["importlinter"]
    *plugins, core = linter["contracts"][0]["layers"]

    assert linter["root_packages"] == ["envkit", *NAMES]
    assert sorted(name for layer in plugins for name in layer.split(" | ")) == NAMES
    assert core == "envkit"


def test_import_linter_keeps_adapters_from_environments() -> None:
    contract = PROJECT["tool"]["importlinter"]["contracts"][1]
    engines = {
        "envkit_sglang",
        "envkit_transformers",
        "envkit_vllm",
    }  # of the environments' own layer
    envs = {path.name for path in (ROOT / "envs").iterdir() if path.name.startswith("envkit_")}

    assert set(contract["forbidden_modules"]) == envs
    assert set(contract["source_modules"]) == set(NAMES) - envs - engines


def test_all_extra_takes_every_other_one() -> None:
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    inside = everything.partition("[")[2].rstrip("]").split(",")

    trainers = {"skyrl", "trl", "verl"}  # they pin versions that some users do not want
    # A web framework, a service in another language, a stack of exporters, clients of services.
    heavy = {"harbor", "mcp", "openenv", "opentelemetry", "ray", "verifiers", "wandb"}
    compiled = {"reasoning-gym"}  # pip needs a C compiler for one of its dependencies
    ours = {"dev", "docs"}  # for working on envkit
    assert set(inside) == set(extras) - {"all"} - ours - trainers - heavy - compiled


def test_commands_name_functions_of_plugin_packages() -> None:
    for value in PROJECT["project"]["entry-points"]["envkit.commands"].values():
        _, _, function = value.partition(":")
        assert package_of(value) in NAMES
        assert function


@TORCH.mark
def test_pinned_versions_run_on_the_oldest_python_that_the_project_accepts() -> None:
    """Debian 12 has Python 3.11.2; a newer pip package may need 3.11.5 and then cannot install."""
    oldest = SpecifierSet(PROJECT["project"]["requires-python"])
    assert "3.11.0" in oldest
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {re.sub("[<=]=", "==", line.lower()) for line in lines if not line.startswith("#")}
    needs: dict[str, str] = {}
    for found in distributions():
        pin = f"{found.metadata['Name']}=={found.version}".lower()
        if pin in pins or pin.replace("_", "-") in pins:
            rules = found.metadata.get_all("Requires-Python") or [""]
            needs[pin] = rules[0]
    assert len(needs) > 150
    assert {pin: rule for pin, rule in needs.items() if "3.11.0" not in SpecifierSet(rule)} == {}


def test_lowest_environment_pins_the_lower_bounds_of_the_core() -> None:
    text = (ROOT / "scripts" / "contracts" / "lowest" / "requirements.txt").read_text()
    pins = {
        canonicalize_name(one.name): next(iter(one.specifier)).version
        for one in map(Requirement, re.findall(r"^[^#\s].*$", text, flags=re.M))
    }
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        (bound,) = requirement.specifier
        assert bound.operator == ">="
        pinned = pins[canonicalize_name(requirement.name)]
        assert Version(pinned) == Version(bound.version), f"{requirement}, pinned to {pinned}"
