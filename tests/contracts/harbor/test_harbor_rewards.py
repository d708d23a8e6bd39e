"""Reward files as the worker reads them, beside Harbor's own Verifier on the same files."""

import asyncio
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fakes.harbor_tasks import write_task
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.task import Task
from harbor.models.trial.error_policy import ERROR_POLICIES
from harbor.models.trial.paths import TrialPaths
from harbor.verifier.verifier import Verifier

from envkit.grading import UngradedError
from envkit_harbor.faults import RETRIED, UNREWARDED
from envkit_harbor.session import Session, Settings

TEXT, JSON = "reward.txt", "reward.json"
FILES: dict[str, dict[str, bytes]] = {
    "none": {},
    "one": {TEXT: b"1\n"},
    "blanks around": {TEXT: b" 0.5 "},
    "negative": {TEXT: b"-3"},
    "underscore": {TEXT: b"1_0"},
    "no bytes": {TEXT: b""},
    "only blanks": {TEXT: b" \n"},
    "word": {TEXT: b"yes"},
    "two lines": {TEXT: b"1\n0\n"},
    "byte order mark": {TEXT: b"\xef\xbb\xbf1"},
    "bad UTF-8": {TEXT: b"\xff1"},
    "nan": {TEXT: b"nan"},
    "too large": {TEXT: b"1e400"},
    "object": {JSON: b'{"reward": 1}'},
    "two keys": {JSON: b'{"reward": 1, "a": 0.5}'},
    "another key": {JSON: b'{"acc": 1}'},
    "no key": {JSON: b"{}"},
    "true": {JSON: b'{"reward": true}'},
    "bare integer": {JSON: b"1"},
    "bare float": {JSON: b"0.25"},
    "list": {JSON: b"[1]"},
    "empty list": {JSON: b"[]"},
    "null": {JSON: b"null"},
    "string": {JSON: b'"1"'},
    "nested": {JSON: b'{"reward": {"a": 1}}'},
    "text in it": {JSON: b'{"reward": "1"}'},
    "not a number": {JSON: b'{"reward": NaN}'},
    "not JSON": {JSON: b"{reward: 1}"},
    "no bytes of JSON": {JSON: b""},
    "both": {TEXT: b"0", JSON: b'{"reward": 1}'},
    "broken JSON beside text": {TEXT: b"1", JSON: b"{"},
}


class FilesEnvironment(BaseEnvironment):
    """A container of which only the reward files matter."""

    def __init__(self, files: dict[str, bytes], **kwargs: Any) -> None:
        self.files = files
        super().__init__(**kwargs)

    @staticmethod
    def type() -> str:
        return "files"

    def _validate_definition(self) -> None: ...

    async def start(self, force_build: bool) -> None: ...

    async def stop(self, delete: bool) -> None: ...

    async def upload_file(self, source_path: Any, target_path: str) -> None: ...

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None: ...

    async def download_file(self, source_path: str, target_path: Any) -> None: ...

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        for name, data in self.files.items():
            Path(target_dir, name).write_bytes(data)

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return ExecResult(return_code=0)


def harbors_own(folder: Path, files: dict[str, bytes], trial: Path) -> dict[str, float] | str:
    """Return the rewards that Harbor's Verifier reads, or the name of its error."""
    task, paths = Task(folder), TrialPaths(trial)
    paths.mkdir()
    env = FilesEnvironment(
        files,
        environment_dir=task.paths.environment_dir,
        environment_name="files",
        session_id="files",
        trial_paths=paths,
        task_env_config=task.config.environment,
    )
    try:
        return dict(asyncio.run(Verifier(task, paths, env).verify()).rewards or {})
    except Exception as error:  # noqa: BLE001  # its name is the result
        return type(error).__name__


def test_pinned_version_of_harbor_is_the_tested_one() -> None:
    assert version("harbor") == "0.26.0"


def test_every_reward_file_is_read_as_harbor_reads_it(
    tasks: Path, tmp_path: Path, make_env: Callable[..., Any]
) -> None:
    names = list(FILES)
    copy = "cp /tests/files/$(cat /app/case)/* /logs/verifier/ 2>/dev/null"
    folder = write_task(tasks, test=copy)
    for number, name in enumerate(names):
        (folder / "tests/files" / str(number)).mkdir(parents=True)
        for file, data in FILES[name].items():
            (folder / "tests/files" / str(number) / file).write_bytes(data)
    env = make_env()
    found: dict[str, Any] = {}
    expected: dict[str, Any] = {}

    with Session.start(env.tasks.folder_of({"name": "hello"}), Settings()) as session:
        for number, name in enumerate(names):
            session.run(f"echo {number} > /app/case", seconds=20)
            try:
                found[name] = session.grade()
            except UngradedError as error:
                found[name] = re.findall(r"no reward: (\w+)", str(error))[0]
            expected[name] = harbors_own(folder, FILES[name], tmp_path / f"trial-{number}")
            shutil.rmtree(tmp_path / f"trial-{number}")

    assert found == expected
    assert expected["underscore"] == {"reward": 10.0}
    assert expected["no key"] == {}
    assert expected["bare integer"] == "ValidationError"
    assert expected["broken JSON beside text"] == "VerifierOutputParseError"


def test_errors_are_retried_as_harbor_retries_them() -> None:
    ungraded = {
        name
        for name, policy in ERROR_POLICIES.items()
        if policy.should_retry and not policy.should_grade
    }
    assert set(RETRIED) == ungraded
    for name in UNREWARDED:
        policy = ERROR_POLICIES[name]
        assert (policy.should_retry, policy.has_valid_reward) == (False, False)
