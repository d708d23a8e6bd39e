"""Worker processes for environments, which may hang, exit or print without harm.

A worker reads requests from standard input and answers on standard output, one JSON line each.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import IO, Any, Final

from envkit.checker.under_test import CheckedEpisode
from envkit.env import Env
from envkit.errors import EnvFault, MissingDependencyError, describe
from envkit.plugins import load_policy
from envkit_certify import blind, conduct, figures, showing, state, useless
from envkit_certify.certified import CertifiedEnv, Plan
from envkit_certify.lines import CertificateLine, Verdict, not_run
from envkit_certify.process import FreshProcess, Script
from envkit_certify.target import resolve

LINES: Final[MappingProxyType[str, Callable[[CertifiedEnv], CertificateLine]]] = MappingProxyType(
    {
        "contract": conduct.contract,
        "determinism": conduct.determinism,
        "state": state.state,
        "oracle": conduct.oracle,
        "replies": conduct.replies,
        "payloads": useless.payloads,
        "tools": conduct.tools,
        "constants": blind.constants,
        "scorer": blind.scorer,
        "text only": blind.text_only,
        "images": showing.images,
        "leaks": showing.leaks,
        "graders": blind.graders,
        "golden": figures.golden,
        "speed": figures.speed,
        "memory": figures.memory,
    }
)
"""Every line of the report, in order."""


def replay(target: str, kwargs: Mapping[str, Any], script: Script) -> list[list[str]]:
    """Play a script on a new instance and return the rows of each episode."""
    env = resolve(target, kwargs)()
    try:
        return [_rows(env, **entry) for entry in script]
    finally:
        env.close()


def _rows(env: Env, seed: int, replies: list[str]) -> list[str]:
    player = CheckedEpisode(env, lambda context: replies[context.turn], seed=seed)
    return player.play(len(replies)).rows()


def open_subject(plan: Plan, replays: FreshProcess) -> CertifiedEnv:
    """Build the environment of a plan.

    Raises:
        EnvkitError: It cannot be built, or a policy cannot be loaded.
    """
    policies = {place: load_policy(place) for place in plan.policies}
    return CertifiedEnv(plan, resolve(plan.target, plan.kwargs), replays, policies)


def line_of(subject: CertifiedEnv, name: str) -> CertificateLine:
    """Return a line of the report. It fails if the environment raises or exits.

    The line is not run if something the environment needs, such as a browser, is missing.
    """
    try:
        return not_run(name, subject.unplayable) if subject.unplayable else LINES[name](subject)
    except KeyboardInterrupt:
        raise
    except (MissingDependencyError, EnvFault) as error:
        return not_run(name, describe(error)[:500])
    except SystemExit as error:
        problem = f"the environment called sys.exit({error.code!r})"
    except BaseException as error:  # noqa: BLE001  # foreign code
        problem = describe(error)[:500]
    return failed(name, problem)


def failed(name: str, problem: str) -> CertificateLine:
    """Return a line that could not be finished."""
    return CertificateLine(
        name=name, verdict=Verdict.FAIL, detail="not finished", evidence=(problem,)
    )


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep what an environment prints out of the answers
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for text in requests:
        request = json.loads(text)
        try:
            _answer(request, answers)
        except BaseException as error:  # noqa: BLE001  # told to who asked
            _write(answers, {"error": describe(error), "kind": type(error).__name__})


def _answer(request: dict[str, Any], answers: IO[str]) -> None:
    if "rows" in request:
        _write(answers, {"rows": replay(**request["rows"])})
        return
    plan = Plan(**request["plan"])
    with FreshProcess() as replays:
        subject = open_subject(plan, replays)
        _write(answers, {"is_open": True})
        for name in request["lines"]:
            _write(answers, {"line": line_of(subject, name).to_json()})
        subject.close()


def _write(answers: IO[str], data: dict[str, Any]) -> None:
    answers.write(json.dumps(data) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.modules["envkit_certify.worker"] = sys.modules["__main__"]
    main()
