"""Grade the final files of a session out of the policy's reach.

The session is over and its processes are dead. Files are compared outside any sandbox. Commands and
tests run in a fresh sandbox with a copy of the final files, and test files that nothing in it can
change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.errors import EnvFault, FaultKind
from envkit_terminal.session import Entry, Limits, TerminalSession
from envkit_terminal.tasks import absolute, entries

REWARD_FOLDER: Final = "/logs/verifier"
"""Where test scripts in Harbor's format write `reward.txt` or `reward.json`."""
_TEST_SECONDS: Final = 120.0
_LONG: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A session's final files, and how to start another sandbox like it."""

    files: Mapping[str, Entry]
    limits: Limits
    folders: Sequence[str]
    folder: str
    environment: Mapping[str, str]

    def fresh(self, tests: Mapping[str, bytes]) -> TerminalSession:
        """Start a sandbox with a copy of the final files."""
        session = TerminalSession(
            limits=self.limits,
            folders=[*self.folders, REWARD_FOLDER],
            folder=self.folder,
            read_only=tests,
            environment=self.environment,
        ).start()
        session.put(self.files)
        return session


def grade(checks: Sequence[Mapping[str, Any]], outcome: Outcome) -> float:
    """Return the product of all checks: 1.0 if every one holds.

    Raises:
        EnvFault: A sandbox failed, or a test script left no result.
    """
    score = 1.0
    for check in checks:
        score *= _check(check, outcome)
        if score == 0.0:
            break
    return score


def _check(check: Mapping[str, Any], outcome: Outcome) -> float:
    match check["type"]:
        case "file":
            found = outcome.files.get(absolute(check["path"]))
            return float(_text(found) == str(check["text"]).rstrip("\n"))
        case "absent":
            return float(absolute(check["path"]) not in outcome.files)
        case "mode":
            found = outcome.files.get(absolute(check["path"]))
            return float(found is not None and found.link is None and found.mode == check["mode"])
        case "run":
            return _run(check, outcome)
        case _:
            return _tests(check, outcome)


def _text(entry: Entry | None) -> str | None:
    """Return a file's text without trailing newlines; None if there is no such text file."""
    if entry is None or entry.data is None:
        return None
    try:
        return entry.data.decode().rstrip("\n")
    except UnicodeDecodeError:
        return None


def _test_files(check: Mapping[str, Any]) -> dict[str, bytes]:
    found = entries({f"/tests/{name}": value for name, value in check.get("files", {}).items()})
    return {path: one.data for path, one in found.items() if one.data is not None}


def _run(check: Mapping[str, Any], outcome: Outcome) -> float:
    """Compare a command's output; the comparison runs outside the sandbox."""
    with outcome.fresh(_test_files(check)) as session:
        done = session.run(check["command"], seconds=float(check.get("seconds", 30.0)))
    is_right = done.output.rstrip("\n") == str(check["output"]).rstrip("\n")
    return float(is_right and not done.timed_out and done.code == check.get("code", 0))


def _tests(check: Mapping[str, Any], outcome: Outcome) -> float:
    seconds = float(check.get("seconds", _TEST_SECONDS))
    with outcome.fresh(_test_files(check)) as session:
        done = session.run(check["command"], seconds=seconds)
        if done.timed_out or done.limit is not None:
            return 0.0
        if not check.get("reads_reward"):
            return float(done.code == 0)
        left = session.snapshot()
    return _reward({} if left is None else left, done.output)


def _reward(left: Mapping[str, Entry], output: str) -> float:
    for name in ("reward.txt", "reward.json"):
        text = _text(left.get(f"{REWARD_FOLDER}/{name}"))
        if text is None:
            continue
        try:
            value: Any = json.loads(text[:_LONG])
            if isinstance(value, dict):
                value = cast(dict[str, Any], value)["reward"]
            return min(max(float(value), 0.0), 1.0)
        except (ValueError, TypeError, KeyError) as error:
            raise EnvFault(
                f"the test script wrote {text[:80]!r} to {name}, which is not a reward",
                kind=FaultKind.GRADER,
            ) from error
    raise EnvFault(
        f"the test script wrote no {REWARD_FOLDER}/reward.txt; it printed {output[-300:]!r}",
        kind=FaultKind.GRADER,
    )
