"""Import task folders of Harbor and Terminal-Bench that need no image build."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError, MissingDependencyError
from envkit_terminal import dockerfile
from envkit_terminal.bench_results import exit_code_decides, hides_summary, runs_pytest
from envkit_terminal.dockerfile import Image, RefusedError
from envkit_terminal.tasks import check_reward, check_seconds


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Task folders, split into playable and refused ones."""

    tasks: tuple[dict[str, Any], ...]
    """For `TerminalEnv(tasks=...)`."""
    refused: Mapping[str, str]
    """Reason for each refused folder, by name."""
    advice: str | None = None
    """How the refused folders of Harbor can be played in their images; None if there are none."""

    def reasons(self) -> Counter[str]:
        """Return how many folders are refused for each reason."""
        return Counter(self.refused.values())


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a kind of folder keeps its scripts."""

    script: str
    """The tests."""
    solution: str


_HARBOR: Final = _Layout(script="tests/test.sh", solution="solution/solve.sh")
_BENCH: Final = _Layout(script="run-tests.sh", solution="solution.sh")


def import_folders(root: str | Path, *, has_pytest: bool = False) -> Imported:
    """Read all task folders in a folder.

    Args:
        root: Each subfolder is a task, with `task.toml` (Harbor) or `task.yaml` (Terminal-Bench).
        has_pytest: Whether Debian's Python has pytest (`apt-get install python3-pytest`). Otherwise
            tasks whose tests run it are refused.

    Raises:
        ConfigurationError: There is no task folder.
        MissingDependencyError: A `task.yaml` is there and PyYAML is not installed.
    """
    root = Path(root)
    names = ("task.toml", "task.yaml")
    folders = sorted({path.parent for name in names for path in root.rglob(name)})
    if not folders:
        raise ConfigurationError(f"{str(root)!r} holds no task.toml or task.yaml")
    tasks: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for folder in folders:
        try:
            tasks.append(read_folder(folder, has_pytest=has_pytest))
        except RefusedError as error:
            refused[folder.relative_to(root).as_posix()] = str(error)
    of_harbor = any((root / name / "task.toml").exists() for name in refused)
    return Imported(
        tasks=tuple(tasks), refused=refused, advice=_advice(root) if of_harbor else None
    )


def _advice(folder: Path) -> str:
    return (
        "harbor-v0 plays folders of Harbor in containers: "
        f'envkit.make("harbor-v0", tasks={str(folder)!r})'
    )


def read_folder(folder: str | Path, *, has_pytest: bool = False) -> dict[str, Any]:
    """Return the task of one folder.

    Args:
        folder: The task's folder.
        has_pytest: As for `import_folders`.

    Raises:
        RefusedError: It is not valid, or needs something that sessions lack.
        MissingDependencyError: It has a `task.yaml` and PyYAML is not installed.
    """
    folder = Path(folder)
    try:
        return _read(folder, has_pytest=has_pytest)
    except RefusedError as error:
        if (folder / "task.toml").exists():
            error.add_note(_advice(folder))
        raise


def _read(folder: Path, *, has_pytest: bool) -> dict[str, Any]:
    try:
        if (folder / "task.toml").exists():
            return _harbor(folder, has_pytest=has_pytest)
        return _terminal_bench(folder, has_pytest=has_pytest)
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"a file that cannot be read ({type(error).__name__})") from error


def _harbor(folder: Path, *, has_pytest: bool) -> dict[str, Any]:
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RefusedError("a task.toml that is not valid TOML") from error
    environment, verifier = _table(config, "environment"), _table(config, "verifier")
    _check_environment(folder, environment, verifier)
    image = dockerfile.read_image(folder / "environment")
    if isinstance(environment.get("workdir"), str):
        image.folder = dockerfile.inside(image, environment["workdir"])
    image.environment |= _texts(environment.get("env", {}))
    return _task(
        folder,
        image,
        _HARBOR,
        goal=(folder / "instruction.md").read_text(encoding="utf-8"),
        tests=dockerfile.read_files(folder / "tests"),
        seconds=verifier.get("timeout_sec"),
        has_pytest=has_pytest,
    ) | _reward(_table(config, "metadata"))


def _reward(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a task says about its reward, in the table that Harbor leaves to its author."""
    found = {key: metadata[key] for key in ("reward_key", "reward_range") if key in metadata}
    try:
        check_reward(found)
    except DatasetError as error:
        raise RefusedError(f"metadata that is not valid: {error}") from error
    return found


def _check_environment(
    folder: Path, environment: Mapping[str, Any], verifier: Mapping[str, Any]
) -> None:
    reasons = {
        "a task of several steps": (folder / "steps").exists(),
        "a prebuilt image": environment.get("docker_image"),
        "a GPU": environment.get("gpus"),
        "MCP servers": environment.get("mcp_servers"),
        "several containers": (folder / "environment/docker-compose.yaml").exists(),
        "an image for its tests": verifier.get("environment_mode") == "separate",
        "no tests/test.sh": not (folder / "tests/test.sh").exists(),
    }
    for reason, applies in reasons.items():
        if applies:
            raise RefusedError(reason)


def _terminal_bench(folder: Path, *, has_pytest: bool) -> dict[str, Any]:
    config = _read_yaml(folder / "task.yaml")
    if not isinstance(config.get("instruction"), str):
        raise RefusedError("no 'instruction' in task.yaml")
    compose = folder / "docker-compose.yaml"
    if compose.exists() and set(_table(_read_yaml(compose), "services")) != {"client"}:
        raise RefusedError("several containers")
    if not (folder / "run-tests.sh").exists():
        raise RefusedError("no run-tests.sh")
    parser = config.get("parser_name", "pytest")
    if parser != "pytest":
        raise RefusedError(f"results for the parser {parser!r:.40}")
    image = dockerfile.read_image(folder)
    image.environment.setdefault("TEST_DIR", "/tests")
    tests = dockerfile.read_files(folder / "tests") if (folder / "tests").is_dir() else {}
    script = (folder / "run-tests.sh").read_text(encoding="utf-8")
    if not runs_pytest(script) and not exit_code_decides(script):
        raise RefusedError(
            "a run-tests.sh that runs no pytest and whose exit code can hide a failed test"
        )
    if hides_summary(script):
        raise RefusedError("a run-tests.sh that keeps pytest's summary out of its output")
    return _task(
        folder,
        image,
        _BENCH,
        goal=config["instruction"],
        tests={**tests, "run-tests.sh": dockerfile.as_value(folder / "run-tests.sh")},
        seconds=config.get("max_test_timeout_sec"),
        has_pytest=has_pytest,
    )


def _task(
    folder: Path,
    image: Image,
    layout: _Layout,
    *,
    goal: str,
    tests: dict[str, Any],
    seconds: object,
    has_pytest: bool,
) -> dict[str, Any]:
    if not goal.strip():
        raise RefusedError("an empty instruction")
    path, solution = folder / layout.script, folder / layout.solution
    text = path.read_text(encoding="utf-8")
    dockerfile.check_network(text, "the test script")
    if runs_pytest(text) and not has_pytest:
        raise RefusedError("tests that run pytest")
    allowed = {} if seconds is None else {"seconds": seconds}
    try:
        check_seconds(allowed)
    except DatasetError as error:
        raise RefusedError(f"a timeout_sec of {seconds!r:.60}") from error
    check = {
        "type": "tests",
        # As Harbor runs it, unless the kernel would not know how.
        "command": f"{'' if text.startswith('#!') else 'bash '}/tests/{path.name}",
        "files": tests,
        **allowed,
        # How the result is read: from Harbor's file, from pytest's summary, or the exit code.
        "reads_reward": layout is _HARBOR,
        "reads_pytest": layout is _BENCH and runs_pytest(text),
    }
    return {
        "name": folder.name,
        "goal": goal.strip(),
        "files": image.files,
        "folders": image.folders,
        "folder": image.folder,
        "setup": image.setup,
        "environment": image.environment,
        "checks": [check],
        "solution": [solution.read_text(encoding="utf-8")] if solution.exists() else [],
    }


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise MissingDependencyError.for_extra("task.yaml", "PyYAML", "yaml") from error
    try:
        read: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RefusedError(f"a {path.name} that is not valid YAML") from error
    if not isinstance(read, dict):
        raise RefusedError(f"a {path.name} that is not a mapping")
    return cast(dict[str, Any], read)


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value: Any = config.get(key, {})
    if not isinstance(value, dict):
        raise RefusedError(f"{key!r} must be a table")
    return cast(dict[str, Any], value)


def _texts(values: object) -> dict[str, str]:
    if not isinstance(values, dict):
        raise RefusedError("'env' must be a table")
    found = cast(dict[str, Any], values)
    if any("$" in str(value) for value in found.values()):
        raise RefusedError("variables of the host")
    return {name: str(value) for name, value in found.items()}
