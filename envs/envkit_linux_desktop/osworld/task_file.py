"""Read OSWorld task files: which can be played here, and why the others cannot."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from envkit.errors import ConfigurationError
from envkit_linux_desktop.osworld import network, programs
from envkit_linux_desktop.osworld.evaluators import problem_of
from envkit_linux_desktop.osworld.files import FileFolder
from envkit_linux_desktop.osworld.programs import DEFAULT_APPLICATIONS, Application
from envkit_linux_desktop.osworld.refusal import Refusal, RefusalKind, RefusedError
from envkit_linux_desktop.osworld.setup import read_steps
from envkit_linux_desktop.osworld.sources import FolderFiles, Literal, Source, read_source
from envkit_linux_desktop.osworld.steps import PutFile, Step

INFEASIBLE: Final = "infeasible"
"""The evaluator of tasks that cannot be done: the agent must say so."""
MAX_BYTES: Final = 16 << 20
"""Maximum bytes that a grader reads of one document."""
_MAX_TASK_BYTES: Final = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Check:
    """One evaluator function with its two values."""

    function: str
    result: Source
    expected: Source | None
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OsworldTask:
    """A task that can be played here."""

    identity: str
    instruction: str
    setup: tuple[Step, ...]
    before_grading: tuple[Step, ...]
    checks: tuple[Check, ...]
    """Empty if the task is infeasible."""
    any_suffices: bool = False
    """Whether one check is enough (`conj: "or"`)."""

    @property
    def is_infeasible(self) -> bool:
        """Whether ending with a failure is the solution."""
        return not self.checks

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all files that the task needs."""
        steps = (*self.setup, *self.before_grading)
        put = [step.address for step in steps if isinstance(step, PutFile)]
        sources = [source for check in self.checks for source in (check.result, check.expected)]
        gold = [
            one for source in sources if isinstance(source, FolderFiles) for one in source.paths
        ]
        return tuple(dict.fromkeys((*put, *gold)))


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Task files, sorted into those that can be played and those that cannot."""

    tasks: tuple[OsworldTask, ...]
    refused: Mapping[str, Refusal] = field(default_factory=dict[str, Refusal])
    """Why, by the name of the file."""

    def reasons(self) -> Counter[str]:
        """Return how many tasks are refused for each reason."""
        return Counter(str(refusal) for refusal in self.refused.values())


def import_tasks(
    folder: str | Path,
    *,
    files: FileFolder | None = None,
    installed: Collection[Application] = DEFAULT_APPLICATIONS,
) -> Imported:
    """Read all task files in a folder and below it.

    Args:
        folder: Holds `*.json`, as OSWorld's `evaluation_examples/examples` does.
        files: Their files; a task with a missing one is refused. None skips that check.
        installed: Applications of the desktop.

    Raises:
        ConfigurationError: There is no such folder, or no task file in it.
    """
    tasks: list[OsworldTask] = []
    refused: dict[str, Refusal] = {}
    names: dict[str, str] = {}
    for name, path in _task_files(Path(folder)):
        try:
            task = read_task(_load(path), installed=installed)
            if (first := names.setdefault(task.identity, name)) != name:
                what = f"the id {task.identity!r:.60} is that of {first}"
                raise RefusedError(RefusalKind.SCHEMA, what)
            if files is not None:
                _check_documents(task, files)
            tasks.append(task)
        except RefusedError as error:
            refused[name] = error.refusal
    return Imported(tasks=tuple(tasks), refused=refused)


def read_task(
    document: object, *, installed: Collection[Application] = DEFAULT_APPLICATIONS
) -> OsworldTask:
    """Translate the content of a task file.

    Raises:
        RefusedError: It is not valid, or cannot be played here.
    """
    if not isinstance(document, dict):
        raise RefusedError(RefusalKind.SCHEMA, "a task must be an object")
    fields = cast(dict[str, Any], document)
    identity, instruction = fields.get("id"), fields.get("instruction")
    evaluator = fields.get("evaluator")
    if not (_is_text(identity) and _is_text(instruction)):
        raise RefusedError(RefusalKind.SCHEMA, "a task needs the texts 'id' and 'instruction'")
    if not isinstance(evaluator, dict):
        raise RefusedError(RefusalKind.SCHEMA, "a task needs the object 'evaluator'")
    related = fields.get("related_apps", [])
    if not isinstance(related, list):
        raise RefusedError(
            RefusalKind.SCHEMA, f"'related_apps' must be a list, got {related!r:.60}"
        )
    programs.check_related([str(name) for name in cast(list[object], related)])
    rules = cast(dict[str, Any], evaluator)
    conj = rules.get("conj", "and")
    if conj not in ("and", "or"):
        raise RefusedError(RefusalKind.SCHEMA, f"'conj' must be 'and' or 'or', got {conj!r}")
    task = OsworldTask(
        identity=identity,
        instruction=instruction,
        setup=read_steps(fields.get("config", []), installed),
        before_grading=read_steps(rules.get("postconfig", []), installed),
        checks=_checks(rules),
        any_suffices=conj == "or",
    )
    if not task.is_infeasible:  # its solution is to say so, with or without a network
        network.check_task(fields, instruction)
    return task


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that can be written to a file."""
    if not (isinstance(value, str) and value.strip()):
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _check_documents(task: OsworldTask, files: FileFolder) -> None:
    sizes = [files.size(address) for address in task.addresses]
    missing = sizes.count(None)
    if missing:
        raise RefusedError(RefusalKind.FILE, f"{missing} files are missing")
    if any(size > MAX_BYTES for size in sizes if size is not None):
        what = f"a document of more than {MAX_BYTES >> 20} MiB"
        raise RefusedError(RefusalKind.FILE, what)


def _checks(rules: dict[str, Any]) -> tuple[Check, ...]:
    function = rules.get("func")
    if function == INFEASIBLE:
        return ()
    if isinstance(function, str):
        names, count = [function], 1
    else:
        names = cast(list[Any], function) if isinstance(function, list) else []
        count = len(names)
    if not names or not all(isinstance(name, str) for name in names):
        raise RefusedError(RefusalKind.SCHEMA, "'func' must be a name or a list of names")
    columns = [
        _column(rules.get(key), count, is_list=isinstance(function, list), key=key)
        for key in ("result", "expected", "options")
    ]
    return tuple(_check(*row) for row in zip(names, *columns, strict=True))


def _column(value: object, count: int, *, is_list: bool, key: str) -> list[Any]:
    """Return one value per function."""
    if not is_list:
        return [value]
    if value is None:
        return [None] * count
    values = cast(list[Any], value) if isinstance(value, list) else []
    if isinstance(value, dict) and key == "options":
        return [cast(Any, value)] * count
    if len(values) != count:
        raise RefusedError(RefusalKind.SCHEMA, f"{key!r} must have one entry per function")
    return values


def _check(function: str, result: object, expected: object, options: object) -> Check:
    if function == INFEASIBLE:
        raise RefusedError(RefusalKind.SCHEMA, "'infeasible' among other functions")
    if not isinstance(options, dict | None):
        raise RefusedError(RefusalKind.SCHEMA, f"'options' must be an object, got {options!r:.60}")
    limits = cast(dict[str, Any], options or {})
    gold = None if expected in (None, {}) else read_source(expected)
    literal = gold.value if isinstance(gold, Literal) else None
    has_gold = gold is not None and not isinstance(gold, Literal)
    # The function first: it says more than the getter about what is missing.
    try:
        problem = problem_of(function, literal, limits, has_gold=has_gold)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(RefusalKind.SCHEMA, f"the rules of {function!r}") from error
    if problem is not None:
        raise RefusedError(RefusalKind.FUNCTION, problem)
    return Check(function=function, result=read_source(result), expected=gold, options=limits)


def _task_files(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {str(folder)!r} of OSWorld task files")
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise ConfigurationError(f"{str(folder)!r} holds no task files (*.json)")
    for path in paths:
        yield path.relative_to(folder).as_posix(), path


def _load(path: Path) -> object:
    if not path.is_file():
        raise RefusedError(RefusalKind.SCHEMA, "not a regular file")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TASK_BYTES + 1)
        if len(data) > _MAX_TASK_BYTES:
            what = f"a file of more than {_MAX_TASK_BYTES >> 20} MiB"
            raise RefusedError(RefusalKind.SCHEMA, what)
        return json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(RefusalKind.SCHEMA, "not valid JSON") from error
