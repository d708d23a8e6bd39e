"""A package that `envkit new` writes works as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.command import run_envkit

from envkit.errors import ConfigurationError, StorageError
from envkit.scaffold import PackageName, write_package


@pytest.mark.parametrize(
    ("name", "module", "class_name"),
    [("maze", "maze", "MazeEnv"), ("count-dots-2", "count_dots_2", "CountDots2Env")],
)
def test_name_has_all_forms(name: str, module: str, class_name: str) -> None:
    package = PackageName(name=name)
    assert (package.module, package.class_name, package.env_id) == (
        module,
        class_name,
        f"{name}-v0",
    )


@pytest.mark.parametrize(
    "name",
    ["", "Maze", "my maze", "my_maze", "-maze", "maze-", "2d", "../up", "a--b", "class", "ä"],
)
def test_name_that_is_not_a_package_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="lowercase letters"):
        PackageName(name=name)


@pytest.mark.parametrize("name", ["json", "numpy", "envkit", "canary"])
def test_name_that_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        write_package(PackageName(name=name), tmp_path)
    assert not list(tmp_path.iterdir())


def test_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "maze-walk").mkdir()
    with pytest.raises(StorageError, match="exists"):
        write_package(PackageName(name="maze-walk"), tmp_path)
    assert not list((tmp_path / "maze-walk").iterdir())


def test_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_package(PackageName(name="maze-walk"), tmp_path / "file")


def test_new_command_says_what_to_do_next(tmp_path: Path) -> None:
    result = run_envkit("new", "maze-walk", "--into", tmp_path)
    assert result.code == 0
    assert "envkit certify maze-walk-v0 --only contract" in result.out
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {
        "maze-walk/pyproject.toml",
        "maze-walk/README.md",
        "maze-walk/.gitignore",
        "maze-walk/.github/workflows/ci.yml",
        "maze-walk/maze_walk/__init__.py",
        "maze-walk/maze_walk/env.py",
        "maze-walk/maze_walk/py.typed",
        "maze-walk/tests/test_maze_walk.py",
    }
    texts = [(tmp_path / path).read_text(encoding="utf-8") for path in written]
    assert not any("$module" in text or "$name" in text or "$env_id" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maze-walk", "a1"])
def test_package_passes_its_own_tests_and_checks(name: str, tmp_path: Path) -> None:
    write_package(PackageName(name=name), tmp_path)
    root, site = tmp_path / name, tmp_path / "site"
    install = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    _run([*install, "--target", str(site), "."], root, site)
    _run(["pytest", "-q", "-p", "no:cacheprovider"], root, site)
    _run(["ruff", "check"], root, site)
    _run(["ruff", "format", "--check"], root, site)
    _run(["pyright", "--pythonpath", sys.executable], root, site)
    command = f"from envkit.cli import main; main(['certify', '{name}-v0', '--only', 'contract'])"
    assert "pass" in _run(["-c", command], root, site)


def _run(arguments: list[str], root: Path, site: Path) -> str:
    module = [] if arguments[0] == "-c" else ["-m"]
    done = subprocess.run(
        [sys.executable, *module, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
