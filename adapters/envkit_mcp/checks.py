"""Checks of a task: its answer, its files, and what a server's tool says at the end.

| check | passes if |
| --- | --- |
| `{"answer": TEXT}` | the last line of the final reply is TEXT; case, spaces and a final period are ignored |
| `{"file": PATH, "equals": TEXT}` | the file holds exactly that, apart from spaces at its ends |
| `{"file": PATH, "contains": TEXT}` | the file holds that |
| `{"file": PATH, "absent": true}` | nothing has that path: no file, folder, link or pipe |
| `{"call": {"server", "tool", "arguments"}, "contains": TEXT}` | the tool's text holds that; also `equals` |
"""  # noqa: E501

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, cast

from envkit.errors import DatasetError
from envkit.grading import UngradedError
from envkit.images import Image
from envkit.rewards import RewardContext
from envkit.threads.workers import DeadlineError
from envkit_mcp.declaration import FOLDER
from envkit_mcp.results import LethalCallError, ToolCallError
from envkit_mcp.tools import McpTools

_SUBJECTS: Final = ("answer", "file", "call")
_RULES: Final = ("equals", "contains", "absent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a task. Exactly one of `answer`, `file` and `tool` is set."""

    answer: str | None = None
    file: str | None = None
    server: str = ""
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    equals: str | None = None
    contains: str | None = None

    async def passes(self, answer: str, servers: McpTools) -> bool:
        """Return whether it passes.

        Raises:
            UngradedError: A server ended or hung at the check's call, twice.
            EnvFault: A server failed.
        """
        if self.answer is not None:
            return _last_line(answer) == _plain(self.answer)
        if self.tool is not None:
            return self._accepts(await self._ask(servers))
        folder = servers.folder
        if self.equals is None and self.contains is None:
            return folder is not None and folder.lacks(self.file or "")
        found = None if folder is None else folder.read(self.file or "")
        return self._accepts(found)

    async def _ask(self, servers: McpTools) -> str | None:
        assert self.tool is not None
        try:
            parts = await servers.call(
                self.server, self.tool, _placed(dict(self.arguments), servers)
            )
        except (LethalCallError, DeadlineError) as error:
            raise UngradedError(f"the check by {self.tool!r} got no answer: {error}") from error
        except ToolCallError:
            return None
        return "\n".join(part for part in parts if not isinstance(part, Image))

    def _accepts(self, text: str | None) -> bool:
        if text is None:
            return False
        if self.equals is not None:
            return text.strip() == self.equals.strip()
        return cast(str, self.contains) in text


def read_checks(task: Mapping[str, Any], servers: Sequence[str]) -> tuple[Check, ...]:
    """Return a task's checks.

    Args:
        task: The task; without `checks` it has none.
        servers: Names of the servers.

    Raises:
        DatasetError: A check is not one of the table above.
    """
    given: object = task.get("checks", [])
    if not isinstance(given, list):
        raise DatasetError(f"a task's checks must be a list, got {type(given).__name__}")
    return tuple(_check(entry, servers) for entry in cast("list[object]", given))


def count(passed: Sequence[bool]) -> dict[str, Any]:
    """Return the facts about the checks for a reward."""
    return {"checks_passed": sum(passed), "checks": len(passed)}


def all_pass(context: RewardContext) -> float:
    """Return 1.0 if every check of the task passes; the default reward of `mcp-v0`."""
    total = context.info.get("checks", 0)
    return float(total > 0 and context.info.get("checks_passed") == total)


def _check(entry: object, servers: Sequence[str]) -> Check:
    if not isinstance(entry, Mapping):
        raise _refusal("must be a mapping", entry)
    fields = cast("Mapping[str, Any]", entry)
    subjects = [name for name in _SUBJECTS if name in fields]
    rules = [name for name in _RULES if name in fields]
    wanted = 0 if subjects == ["answer"] else 1
    if len(subjects) != 1 or len(rules) != wanted or len(fields) != 1 + wanted:
        raise _refusal("must have one of answer, file and call, and one rule if not answer", entry)
    texts = [fields[name] for name in (*subjects, *rules) if name not in ("call", "absent")]
    if not all(isinstance(text, str) and text for text in texts) or (
        "absent" in fields and (fields["absent"] is not True or "file" not in fields)
    ):
        raise _refusal("must have non-empty texts, and `absent: true` only for a file", entry)
    path = PurePosixPath(str(fields.get("file", "")))
    if path.is_absolute() or ".." in path.parts:
        raise _refusal("must have a path inside the episode's folder", entry)
    rule: dict[str, Any] = {name: fields[name] for name in rules if name != "absent"}
    if "call" not in fields:
        return Check(**{subjects[0]: fields[subjects[0]]}, **rule)
    return _call_check(fields["call"], rule, servers)


def _call_check(call: Any, rule: Mapping[str, Any], servers: Sequence[str]) -> Check:  # noqa: ANN401
    known: Callable[[object], bool] = lambda value: isinstance(value, str)  # noqa: E731
    if (
        not isinstance(call, Mapping)
        or call.get("server") not in servers
        or not known(call.get("tool"))
        or not isinstance(call.get("arguments", {}), Mapping)
    ):
        raise _refusal(f"call needs server, one of {list(servers)}, tool and arguments", call)
    fields = cast("Mapping[str, Any]", call)
    return Check(
        server=fields["server"],
        tool=fields["tool"],
        arguments=fields.get("arguments", {}),
        **rule,
    )


def _placed(value: Any, servers: McpTools) -> Any:  # noqa: ANN401  # JSON data
    """Replace `{folder}` in the texts of arguments."""
    if isinstance(value, str) and servers.folder is not None:
        return value.replace(FOLDER, str(servers.folder.files))
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _placed(entry, servers) for key, entry in items}
    if isinstance(value, list):
        return [_placed(entry, servers) for entry in cast("list[Any]", value)]
    return value


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _plain(lines[-1]) if lines else ""


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


def _refusal(rule: str, entry: object) -> DatasetError:
    return DatasetError(f"a check of a task {rule}, got {entry!r:.200}")
