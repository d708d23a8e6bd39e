"""Golden trajectories: recorded episodes that must replay byte for byte.

A `-v0` means that the same seed, task and replies give the same observations, images, rewards and
info. A golden file holds such episodes with their replies, so a replay needs no policy and any
difference comes from the environment. Images are kept by the hash of their pixels.

The file is JSON with one line per task and episode, for readable diffs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from envkit.checker.conduct import BAD_REPLIES
from envkit.checker.under_test import CheckedEpisode, excerpts, oracle_of
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ContractError, EnvkitError, StorageError
from envkit.files import replace_file
from envkit.open_files import open_regular
from envkit.registration import make as make_env
from envkit.reply import Reply
from envkit.seeds import checked_seed
from envkit.turns import Observation

_FORMAT: Final = 1
"""Version of the file format; any other is refused."""
_LONGEST_EPISODE: Final = 16
_LONGEST_REPLY: Final = 200
_SETTINGS: Final = ("system_prompt", "tools", "max_turns")
"""Facts shared by most episodes; their changes are reported without naming an episode."""

Progress = Callable[[int, int], None]
"""Called with the number of played episodes and the total."""


def record(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = range(6),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play scripted policies and return the golden file's contents as JSON data.

    The policies are the oracle (if there is one), a mix of oracle and bad replies, and bad replies
    alone.

    Args:
        env_id: A registered environment.
        kwargs: Arguments of its constructor.
        seeds: Played by every policy.
        progress: Called after each episode.

    Raises:
        ContractError: The environment does not declare `deterministic`.
    """
    env = make_env(env_id, disable_env_checker=True, **dict(kwargs or {}))
    try:
        if not env.capabilities.deterministic:
            raise ContractError(
                f"{env_id} does not declare capabilities.deterministic, so it cannot have golden "
                "files"
            )
        policies = _policies(env)
        total = len(policies) * len(seeds)
        tasks: dict[str, Any] = {}
        episodes: list[dict[str, Any]] = []
        for name, policy in policies.items():
            for seed in map(checked_seed, seeds):
                episode = play(env, seed, policy)
                tasks[str(seed)] = episode.pop("task")
                episodes.append({"policy": name, **episode})
                if progress is not None:
                    progress(len(episodes), total)
    finally:
        env.close()
    return _plain(
        {
            "format": _FORMAT,
            "env_id": env_id,
            "kwargs": dict(kwargs or {}),
            "made_with": {name: version(name) for name in ("pillow", "numpy")},
            "tasks": tasks,
            "episodes": episodes,
        }
    )


def load(path: str | Path) -> dict[str, Any]:
    """Read a golden file.

    Raises:
        StorageError: It cannot be read, or is not a golden file of this format.
    """
    try:
        with open_regular(Path(path)) as stream:
            content: object = json.loads(stream.read())
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read the golden file {str(path)!r}: {error}") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    keys = {"env_id", "kwargs", "tasks", "episodes"}
    if found.get("format") != _FORMAT or not keys <= set(found):
        raise StorageError(
            f"{str(path)!r} is not a golden file of format {_FORMAT}; record it with "
            "`envkit golden`"
        )
    return found


def save(golden: Mapping[str, Any], path: str | Path) -> None:
    """Write a golden file atomically, one line per task and episode.

    Raises:
        StorageError: It cannot be written.
    """
    head = {key: golden[key] for key in ("format", "env_id", "kwargs", "made_with")}
    tasks = ",\n".join(f"{json.dumps(key)}: {_line(task)}" for key, task in golden["tasks"].items())
    episodes = ",\n".join(_line(episode) for episode in golden["episodes"])
    body = f'{_line(head)[:-1]},\n"tasks": {{\n{tasks}\n}},\n"episodes": [\n{episodes}\n]}}\n'
    replace_file(Path(path), body.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference from the recording."""

    where: str
    """Where it is, such as "oracle, seed 3, turn 2: reward"."""
    before: Any
    after: Any

    def __str__(self) -> str:
        old, new = (v if isinstance(v, str) else json.dumps(v) for v in (self.before, self.after))
        return f"{self.where}: {excerpts(old, new)}"


def changes(golden: Mapping[str, Any], *, make: Callable[[], Env] | None = None) -> list[Change]:
    """Replay a golden file and return the differences, in order.

    If a seed now draws another task, the episode is replayed with the recorded task as well, so a
    changed draw cannot hide a changed game. Only the first difference among an episode's turns is
    reported, since later ones follow from it.

    Args:
        golden: What `record` returned.
        make: Makes the environment; None makes the recorded one.
    """
    found: dict[str, Change] = {}
    if make is None:
        env = make_env(golden["env_id"], disable_env_checker=True, **golden["kwargs"])
    else:
        env = make()
    try:
        for episode in golden["episodes"]:
            for change in _episode_changes(env, episode, golden["tasks"][str(episode["seed"])]):
                found.setdefault(change.where, change)
    finally:
        env.close()
    return list(found.values())


def play(
    env: Env,
    seed: int,
    policy: Callable[[PolicyContext], Any],
    task: Any = None,  # noqa: ANN401  # any JSON data
) -> dict[str, Any]:
    """Play one episode and return it as data. If `task` is None, the seed draws the task.

    A reply is a text, or `Reply.to_wire()` for one that was cut.
    """
    said: list[Reply] = []

    def reply(context: PolicyContext) -> Reply:
        said.append(Reply.from_wire(policy(context)))
        return said[-1]

    player = CheckedEpisode(env, reply, seed=seed, task=task)
    start = {
        **_seen(env, player.start.observation),
        "info": player.start.info,
        "system_prompt": env.system_prompt,
        "tools": [spec.to_json() for spec in env.tools],
        "max_turns": env.max_turns,
    }
    turns: list[dict[str, Any]] = []
    while not player.ended and len(turns) < _LONGEST_EPISODE:
        step = player.turn()
        turns.append(
            {
                "reply": said[-1].to_wire(),
                **_seen(env, step.observation),
                "reward": step.reward,
                "terminated": step.terminated,
                "truncated": step.truncated,
                "info": step.info,
            }
        )
    return {"seed": seed, "task": player.task, "start": start, "turns": turns}


def _policies(env: Env) -> dict[str, Policy]:
    bad = [reply[:_LONGEST_REPLY] for reply in BAD_REPLIES]

    def misbehaves(context: PolicyContext) -> str:
        return bad[(context.seed + context.turn) % len(bad)]

    oracle = oracle_of(env)
    if oracle is None:
        return {"bad replies": misbehaves}

    def stumbles(context: PolicyContext) -> str:
        is_good = (context.seed + context.turn) % 2
        return oracle(context) if is_good else misbehaves(context)

    return {"oracle": oracle, "oracle and bad replies": stumbles, "bad replies": misbehaves}


def _seen(env: Env, observation: Observation) -> dict[str, Any]:
    """Return what the model sees, with images as size and hash."""
    images = [
        {"sha256": image.sha256, "width": image.size[0], "height": image.size[1]}
        for image in observation["images"]
    ]
    role = env.format_observation(observation)["role"]
    return {"text": observation["text"], "images": images, "role": role}


def _episode_changes(env: Env, episode: Mapping[str, Any], task: Any) -> Iterator[Change]:  # noqa: ANN401  # any JSON data
    seed = episode["seed"]
    again = _replayed(env, episode, None)
    if isinstance(again, Change):
        yield again
        return
    if _line(again["task"]) != _line(task):
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
        return _plain(play(env, episode["seed"], said, task))
    except Exception as error:  # noqa: BLE001  # whatever a changed environment raises is the finding
        return Change(where=where, before="no exception", after=f"{type(error).__name__}: {error}")


def _differences(where: str, before: Any, after: Any) -> Iterator[Change]:  # noqa: ANN401  # any JSON data
    """Yield the leaves that differ, or a whole value if its type or length changed."""
    if _line(before) == _line(after):  # not ==, which equates true, 1 and 1.0
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


def _plain(data: Any) -> Any:  # noqa: ANN401  # any JSON data
    """Round-trip the data through JSON, so both sides of a comparison have the same types."""
    return json.loads(json.dumps(data))


def _line(data: Any) -> str:  # noqa: ANN401  # any JSON data
    """Return data as one line; equal data gives equal lines."""
    return json.dumps(data, sort_keys=True, ensure_ascii=True)
