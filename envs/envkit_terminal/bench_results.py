"""Read whether the tests of a Terminal-Bench folder passed.

Terminal-Bench ignores the exit code of `run-tests.sh`, which may end in any command. It reads the
summary that pytest prints with `-rA`, and all tests in it must have passed (terminal-bench 0.2.18,
`terminal_bench/parsers/pytest_parser.py`). Stricter than there: a test must have passed, no line
may be lost, and the script must exit with 0, since a program that kills pytest could print a
summary of its own.
"""

import re
from typing import Final

from envkit.grading import UngradedError

_SUMMARY: Final = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_PASSED: Final = frozenset({"PASSED", "XFAIL", "SKIPPED"})
_STATUSES: Final = _PASSED | {"FAILED", "ERROR", "XPASS", "UNKNOWN"}
_PREPARING: Final = re.compile(r"(?:cd|echo|export|mkdir|set)\b|[A-Za-z_]\w*=\S*$")
_ERREXIT: Final = re.compile(r"set\s+(?:-o\s+errexit|-[a-z]*e)|#!.*\s-[a-z]*e")
_UNCLEAR: Final = re.compile(
    r"[;|`()!]|(?<!\$)\{|&|<<"  # several commands in one line, or a status that is turned round
    r"|\b(?:if|for|while|until|case|function|trap|exit|return|exec|eval|bash|sh|source)\b|^\.\s"
)

_HIDING: Final = re.compile(r"(?:^|[^2>&-])>>?\s*[^&\s>]|&>|--no-summary|-p\s*no:terminal")
"""What keeps the summary out of a script's output; standard error may go anywhere."""


def passed(output: str, *, code: int, cut: int) -> float:
    """Return 1.0 if pytest's summary says that all tests passed, else 0.0.

    Args:
        output: What the test script printed.
        code: Its exit code.
        cut: Bytes that the output lacks.

    Raises:
        UngradedError: There is no summary, or a part of the output is lost.
    """
    if cut:
        raise UngradedError(f"the test script printed too much: {cut} bytes are lost")
    parts = _SUMMARY.split(output, maxsplit=1)
    if len(parts) < 2:
        raise UngradedError(f"the test script printed no summary of pytest, got {output[-200:]!r}")
    words = (line.split(maxsplit=1) for line in parts[1].splitlines())
    found = {pair[0].strip(":") for pair in words if len(pair) == 2} & _STATUSES
    return float("PASSED" in found and found <= _PASSED and code == 0)


def runs_pytest(script: str) -> bool:
    """Return whether a test script names pytest outside its comments."""
    return any("pytest" in line for line in _code(script))


def hides_summary(script: str) -> bool:
    """Return whether a line of a script keeps pytest's summary out of the output."""
    return any("pytest" in line and _HIDING.search(line) for line in _code(script))


def exit_code_decides(script: str) -> bool:
    """Return whether a script that runs no pytest surely fails if one of its tests does.

    It does if its last command is its only test, or if `set -e` stops it at the first failure; a
    script with branches, pipes or other scripts is not understood.
    """
    stops = any(_ERREXIT.match(line) for line in script.splitlines()[:3])
    lines = [line.split("&&") for line in _code(script)]
    tests: list[int] = []
    for number, parts in enumerate(lines):
        *before, last = (part.strip() for part in parts)
        # `set -e` ignores a failure before `&&`.
        if _UNCLEAR.search(" ".join(parts)) or not all(map(_PREPARING.match, before)):
            return False
        if not _PREPARING.match(last):
            tests.append(number)
    return bool(tests) and (stops or tests == [len(lines) - 1])


def _code(script: str) -> list[str]:
    lines = (line.strip() for line in script.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
