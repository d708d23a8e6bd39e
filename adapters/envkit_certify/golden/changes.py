"""Replay golden episodes and report differences."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.env import Env, PolicyContext
from envkit.errors import EnvkitError
from envkit_certify.golden.files import line
from envkit_certify.golden.recording import Progress, plain, play

_EXCERPT: Final = 60
_SETTINGS: Final = ("system_prompt", "tools", "max_turns")
"""Facts shared by most episodes; their changes are reported without naming an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference from the recording."""

    where: str
    """Where it is, such as "oracle, seed 3, turn 2: reward"."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.where}: {_excerpt(self.before, self.after)}"


def changes(
    golden: Mapping[str, Any],
    *,
    make: Callable[[], Env] | None = None,
    progress: Progress | None = None,
) -> list[Change]:
    """Replay a golden file and return the differences, in order.

    If a seed now draws another task, the episode is replayed with the recorded task as well, so a
    changed draw cannot hide a changed game. Only the first difference among an episode's turns is
    reported, since later ones follow from it.

    Args:
        golden: What `record` returned.
        make: Makes the environment; None makes the recorded one.
        progress: As for `record`.
    """
    found: list[Change] = []
    env = _recorded(golden) if make is None else make()
    try:
        for number, episode in enumerate(golden["episodes"], start=1):
            for change in _episode_changes(env, episode, golden["tasks"][str(episode["seed"])]):
                known = [other.where for other in found]
                if change.where not in known:
                    found.append(change)
            if progress is not None:
                progress(number, len(golden["episodes"]))
    finally:
        env.close()
    return found


def _recorded(golden: Mapping[str, Any]) -> Env:
    from envkit.registration import make

    return make(golden["env_id"], disable_env_checker=True, **golden["kwargs"])


def _episode_changes(env: Env, episode: Mapping[str, Any], task: Any) -> Iterator[Change]:  # noqa: ANN401  # any JSON data
    seed = episode["seed"]
    again = _replayed(env, episode, None)
    if isinstance(again, Change):
        yield again
        return
    if line(again["task"]) != line(task):
        yield from _differences(f"task of seed {seed}", task, again["task"])
        again = _replayed(env, episode, task or None)
        if isinstance(again, Change):
            yield again
            return
    where = f"{episode['policy']}, seed {seed}"
    before, after = episode["start"], again["start"]
    for key in _SETTINGS:
        yield from _differences(key, before[key], after[key])
    rest = [key for key in before if key not in _SETTINGS]
    for key in rest:
        yield from _differences(f"{where}, start: {key}", before[key], after[key])
    for number, (old, new) in enumerate(zip(episode["turns"], again["turns"], strict=False), 1):
        found = [
            change
            for key in old
            for change in _differences(f"{where}, turn {number}: {key}", old[key], new[key])
        ]
        yield from found
        if found:
            return


def _replayed(env: Env, episode: Mapping[str, Any], task: Any) -> dict[str, Any] | Change:  # noqa: ANN401  # any JSON data
    """Play the recorded replies; a reply that raises or comes after the end is a change."""
    replies = [turn["reply"] for turn in episode["turns"]]
    where = f"{episode['policy']}, seed {episode['seed']}"

    def said(context: PolicyContext) -> Any:  # noqa: ANN401  # a text, or a reply that was cut
        if context.turn >= len(replies):
            raise EnvkitError(f"the episode continues after its {len(replies)} recorded turns")
        return replies[context.turn]

    try:
        return plain(play(env, episode["seed"], said, task))
    except Exception as error:  # noqa: BLE001  # whatever a changed environment raises is the finding
        return Change(where=where, before="no exception", after=f"{type(error).__name__}: {error}")


def _differences(where: str, before: Any, after: Any) -> Iterator[Change]:  # noqa: ANN401  # any JSON data
    """Yield the leaves that differ, or a whole value if its type or length changed."""
    if line(before) == line(after):  # not ==, which equates true, 1 and 1.0
        return
    if isinstance(before, dict) and isinstance(after, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        for key in [*old, *(key for key in new if key not in old)]:
            missing = "(missing)"
            yield from _differences(f"{where}.{key}", old.get(key, missing), new.get(key, missing))
        return
    if isinstance(before, list) and isinstance(after, list):
        olds, news = cast("list[Any]", before), cast("list[Any]", after)
        if len(olds) == len(news):
            for number, (old, new) in enumerate(zip(olds, news, strict=True)):
                yield from _differences(f"{where}[{number}]", old, new)
            return
    yield Change(where=where, before=before, after=after)


def _excerpt(before: Any, after: Any) -> str:  # noqa: ANN401  # any JSON data
    """Return excerpts of both values, starting shortly before the first difference."""
    old, new = (v if isinstance(v, str) else json.dumps(v) for v in (before, after))
    pairs = enumerate(zip(old, new, strict=False))
    same = next((n for n, (left, right) in pairs if left != right), min(len(old), len(new)))
    start = max(0, same - 20)
    parts = [repr(text[start : start + _EXCERPT]) for text in (old, new)]
    return f"{parts[0]} became {parts[1]}" + (f" (from character {start})" if start else "")
