"""Grade the final files of a session out of the policy's reach.

The session is over and its processes are dead. Files are compared outside any sandbox. Commands and
tests run in a fresh sandbox with a copy of the final files, and test files that nothing in it can
change.

A test script in Harbor's format writes its reward. Harbor's Verifier reads `reward.json` if it is
there, else `reward.txt`, and ignores the script's exit status (harbor 0.26,
`harbor/verifier/verifier.py`). Unlike Harbor, a number alone in `reward.json` is a reward, and an
object must say which of its numbers is the reward.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from envkit.grading import Grade, UngradedError, finite_reward, settle
from envkit.tasks import Task
from envkit_terminal.bench_results import passed
from envkit_terminal.grader_sandbox import REWARD_FOLDER, TEST_FOLDER, FinalState
from envkit_terminal.session import Entry, TerminalSession
from envkit_terminal.tasks import absolute, entries, reward_range

_MAX_OUTPUT: Final = 512 * 1024
"""Bytes of each half of a test script's output, if its result is read from there."""


def grade(
    task: Task, outcome: FinalState | None, *, untouched: Callable[[], FinalState | None]
) -> Grade:
    """Return the product of all checks: 1.0 if every one holds.

    Args:
        task: The task with its checks.
        outcome: What the policy left; None if it is too large to be copied.
        untouched: Returns the same for a policy that does nothing.

    Raises:
        EnvFault: A sandbox failed, or a test script leaves no reward on untouched files either.
    """

    def score() -> float:
        left, product = _copied(outcome), 1.0
        for check in task["checks"]:
            product *= _check(check, left, task)
            if product == 0.0:
                break
        return finite_reward(product)

    def try_tests() -> None:
        left = _copied(untouched())
        for check in task["checks"]:
            if check["type"] == "tests":
                _tests(check, left, task)

    how = None if outcome is None else (outcome.limits, outcome.test_seconds)
    return settle(score, untouched=try_tests, grader=f"terminal {how}", task=task)


def _copied(outcome: FinalState | None) -> FinalState:
    if outcome is None:
        raise UngradedError("the final files are too many or too large")
    return outcome


def _check(check: Mapping[str, Any], outcome: FinalState, task: Task) -> float:
    files = outcome.files
    match check["type"]:
        case "file":
            found = files.get(absolute(check["path"]))
            return float(_text(found) == str(check["text"]).rstrip("\n"))
        case "absent":
            return float(_is_absent(absolute(check["path"]), outcome))
        case "mode":
            found = files.get(absolute(check["path"]))
            if found is None or found.link is not None or found.special:
                return 0.0
            return float(found.mode == check["mode"])
        case "run":
            return _run(check, outcome)
        case _:
            return _tests(check, outcome, task)


def _text(entry: Entry | None) -> str | None:
    """Return a file's text without trailing newlines; None if there is no such text file."""
    if entry is None or entry.data is None:
        return None
    try:
        return entry.data.decode().rstrip("\n")
    except UnicodeDecodeError:
        return None


def _is_absent(path: str, outcome: FinalState) -> bool:
    """Return whether it is certain that nothing is at a path.

    Whatever is there counts, even if it cannot be read. A link on the way is not followed, and
    could lead to it, so nothing is certain below one.
    """
    if path in outcome.files:
        return False
    parents = path.split("/")
    above = ("/".join(parents[:count]) for count in range(2, len(parents)))
    return not any(one in outcome.files and outcome.files[one].link is not None for one in above)


def _test_files(check: Mapping[str, Any]) -> dict[str, bytes]:
    given = {f"{TEST_FOLDER}/{name}": value for name, value in check.get("files", {}).items()}
    return {path: one.data for path, one in entries(given).items() if one.data is not None}


def _run(check: Mapping[str, Any], outcome: FinalState) -> float:
    """Compare a command's output; the comparison runs outside the sandbox.

    The command runs what the policy wrote, so one that does not end is wrong.
    """
    with outcome.fresh(_test_files(check), has_own_home=False) as session:
        done = session.run(check["command"], seconds=float(check.get("seconds", 30.0)))
    is_right = done.output.rstrip("\n") == str(check["output"]).rstrip("\n")
    return float(is_right and not done.timed_out and done.code == check.get("code", 0))


def _tests(check: Mapping[str, Any], outcome: FinalState, task: Task) -> float:
    """Run a test script and return its reward.

    Raises:
        UngradedError: It did not end, or left no reward.
    """
    seconds = float(check.get("seconds", outcome.test_seconds))
    command: str = check["command"]
    if check.get("reads_pytest"):
        command = f"PYTEST_ADDOPTS=-rA {command}"  # lists passed tests, too
        limits = replace(outcome.limits, output_head=_MAX_OUTPUT, output_tail=_MAX_OUTPUT)
        outcome = replace(outcome, limits=limits)
    with outcome.fresh(_test_files(check), has_own_home=True) as session:
        done = session.run(command, seconds=seconds)
        if done.timed_out:
            raise UngradedError(f"the test script did not end within {seconds:g} s")
        if done.limit is not None:
            raise UngradedError(f"the test script exceeded the limit of {done.limit}")
        if check.get("reads_reward"):
            key, within = task.get("reward_key"), reward_range(task)
            try:
                return read_reward(session, key=key, within=within)
            except UngradedError as error:
                printed = done.output[-200:]
                raise UngradedError(f"{error}. It printed {printed!r}") from error
        if done.is_new_shell:
            raise UngradedError("the shell that ran the test script was killed")
        if check.get("reads_pytest"):
            return passed(done.output, code=done.code, cut=done.cut)
        return float(done.code == 0)


_JSON, _TEXT = "reward.json", "reward.txt"
_KEY: Final = "reward"


def read_reward(
    session: TerminalSession, *, key: str | None, within: tuple[float, float] | None
) -> float:
    """End all processes and return the reward.

    Args:
        session: Where the script has ended.
        key: The key of the reward in an object, besides "reward"; None without another.
        within: The range that the task declares; None means any finite number.

    Raises:
        UngradedError: There is no reward.
        EnvFault: The sandbox is gone.
    """
    found, text = session.read(REWARD_FOLDER, _JSON, _TEXT)
    if found.exists:
        return reward_of(_JSON, found.data, key=key, within=within)
    if text.exists:
        return reward_of(_TEXT, text.data, key=key, within=within)
    raise UngradedError(f"the test script wrote no {REWARD_FOLDER}/{_TEXT} or {_JSON}")


def reward_of(
    name: str, data: bytes | None, *, key: str | None, within: tuple[float, float] | None
) -> float:
    """Return the reward in a file.

    Args:
        name: "reward.json" or "reward.txt".
        data: Its bytes; None if it cannot be read.
        key: As for `read_reward`.
        within: As for `read_reward`.

    Raises:
        UngradedError: It holds no reward.
    """
    if data is None:
        raise UngradedError(f"{name} must be a regular file of at most 1 MiB that can be read")
    try:
        text = data.decode()
        value: Any = _number(json.loads(text), key) if name == _JSON else float(text)
    except (ValueError, RecursionError) as error:
        raise UngradedError(f"the test script wrote {data[:80]!r} to {name}: {error}") from error
    return finite_reward(value, within=within)


def _number(value: object, key: str | None) -> object:
    if not isinstance(value, dict):
        return value
    fields = cast(Mapping[str, object], value)
    for name in (key, _KEY):
        if name is not None and name in fields:
            return fields[name]
    raise ValueError(
        f"an object must have the key {_KEY!r} or one that the task declares as 'reward_key', "
        f"got {sorted(fields)[:8]}"
    )
