"""An environment of another distribution: built, installed, and made by id."""

import os
from pathlib import Path

import pytest
from fakes.processes import run_python

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


def install(name: str, folder: Path, target: Path) -> None:
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
    install("envkit-coin", tmp_path, tmp_path / "site")

    assert run(SCRIPT, tmp_path / "site", tmp_path).strip() == "envkit/coin-v1"

    install("other-coin", tmp_path, tmp_path / "more")
    both = Path(f"{tmp_path / 'site'}{os.pathsep}{tmp_path / 'more'}")
    printed = run(CONFLICT, both, tmp_path).splitlines()
    assert len(printed) == 2
    assert all("more than one distribution: envkit-coin, other-coin" in line for line in printed)
