"""Golden trajectories: recorded episodes that must play again, byte by byte.

A `-v0` means that the same seed, task and replies give the same observations, pictures, rewards and
info. A golden file holds such episodes with the replies written out, so that a replay needs no
policy: what differs is the environment. Pictures are kept by the hash of their pixels.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from envkit.checker.conduct import BAD_REPLIES
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ContractError, EnvkitError, StorageError
from envkit.messages import Message, message
from envkit.registration import make
from envkit.turns import Observation, Step

FORMAT: Final = 1
_LONGEST_EPISODE: Final = 16
_LONGEST_REPLY: Final = 200
_EXCERPT: Final = 60
_NO_TASK: Final = "(drawn)"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is not as it was recorded."""

    where: str
    """Such as "oracle, seed 3, turn 2: reward"."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.where}: {_excerpt(self.before, self.after)}"


def record(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = range(6),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play scripted policies and return the golden file's content as JSON data.

    The policies: the oracle, where there is one; one that alternates it with bad replies; and one
    of bad replies alone.

    Args:
        env_id: A registered environment.
        kwargs: Arguments of its constructor.
        seeds: Each policy plays all of them.
        progress: Gets the number of episodes that were played, and of all.

    Raises:
        ContractError: The environment does not declare `deterministic`.
    """
    env = make(env_id, disable_env_checker=True, **dict(kwargs or {}))
    try:
        if not env.capabilities.deterministic:
            raise ContractError(
                f"{env_id} does not declare capabilities.deterministic, so nothing can be golden"
            )
        policies = _policies(env)
        total = len(policies) * len(seeds)
        tasks: dict[str, Any] = {}
        episodes: list[dict[str, Any]] = []
        for name, policy in policies.items():
            for seed in seeds:
                episode = _play(env, seed, policy)
                tasks[str(seed)] = episode.pop("task")
                episodes.append({"policy": name, **episode})
                if progress is not None:
                    progress(len(episodes), total)
    finally:
        env.close()
    return _plain(
        {
            "format": FORMAT,
            "env_id": env_id,
            "kwargs": dict(kwargs or {}),
            "made_with": {name: version(name) for name in ("pillow", "numpy")},
            "tasks": tasks,
            "episodes": episodes,
        }
    )


def changes(golden: Mapping[str, Any], *, progress: Progress | None = None) -> list[Change]:
    """Replay a golden file and return what is not as it was, in order.

    An episode whose seed draws another task is played with the recorded task too, so that a changed
    draw does not hide a changed game. Only the first difference of an episode's turns is told, as
    later ones follow from it.

    Args:
        golden: What `record` returned.
        progress: As for `record`.
    """
    found: list[Change] = []
    env = make(golden["env_id"], disable_env_checker=True, **golden["kwargs"])
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


def load(path: str | Path) -> dict[str, Any]:
    """Read a golden file.

    Raises:
        StorageError: It cannot be read, or is no golden file of this format.
    """
    try:
        content: object = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read the golden file {str(path)!r}: {error}") from error
    found = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if found.get("format") != FORMAT or not {"env_id", "kwargs", "tasks", "episodes"} <= set(found):
        raise StorageError(
            f"{str(path)!r} is no golden file of format {FORMAT}; record it with `envkit golden`"
        )
    return found


def save(golden: Mapping[str, Any], path: str | Path) -> None:
    """Write a golden file, whole or not at all, one line for each task and episode.

    Raises:
        StorageError: It cannot be written.
    """
    from envkit.trajectory.files import replace_file

    head = {key: golden[key] for key in ("format", "env_id", "kwargs", "made_with")}
    tasks = ",\n".join(f"{json.dumps(key)}: {_line(task)}" for key, task in golden["tasks"].items())
    episodes = ",\n".join(_line(episode) for episode in golden["episodes"])
    body = f'{_line(head)[:-1]},\n"tasks": {{\n{tasks}\n}},\n"episodes": [\n{episodes}\n]}}\n'
    replace_file(Path(path), body.encode())


def _line(data: Any) -> str:  # noqa: ANN401  # any JSON data
    return json.dumps(data, sort_keys=True, ensure_ascii=True)


def _plain(data: Any) -> Any:  # noqa: ANN401  # any JSON data
    """Return the data as a file gives it back, so that what is compared is of one kind."""
    return json.loads(json.dumps(data))


def _policies(env: Env) -> dict[str, Policy]:
    bad = [reply[:_LONGEST_REPLY] for reply in BAD_REPLIES]

    def misbehaves(context: PolicyContext) -> str:
        return bad[(context.seed + context.turn) % len(bad)]

    if type(env).oracle is Env.oracle:
        return {"bad replies": misbehaves}
    oracle = env.oracle()

    def stumbles(context: PolicyContext) -> str:
        is_good = (context.seed + context.turn) % 2
        return oracle(context) if is_good else misbehaves(context)

    return {"oracle": oracle, "oracle and bad replies": stumbles, "bad replies": misbehaves}


def _play(env: Env, seed: int, policy: Policy, task: Any = None) -> dict[str, Any]:  # noqa: ANN401  # any JSON data
    """Play one episode and return it as data."""
    observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    drawn = _plain(env.task)
    start = {
        **_seen(env, observation),
        "info": info,
        "system_prompt": env.system_prompt,
        "tools": [spec.to_json() for spec in env.tools],
        "max_turns": env.max_turns,
    }
    messages: list[Message] = [env.format_observation(observation)]
    turns: list[dict[str, Any]] = []
    while len(turns) < _LONGEST_EPISODE:
        context = PolicyContext(
            env=env, task=env.task, turn=len(turns), messages=tuple(messages), seed=seed
        )
        reply = policy(context)
        step = Step(*env.step(reply))
        messages += [message("assistant", reply), env.format_observation(step.observation)]
        turns.append({"reply": reply, **_answer(env, step)})
        if step.terminated or step.truncated:
            break
    return {"seed": seed, "task": drawn, "start": start, "turns": turns}


def _answer(env: Env, step: Step) -> dict[str, Any]:
    return {
        **_seen(env, step.observation),
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "info": step.info,
    }


def _seen(env: Env, observation: Observation) -> dict[str, Any]:
    """Return what the model sees, its pictures by size and hash."""
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
    if again["task"] != task:
        yield from _differences(f"task of seed {seed}", task, again["task"])
        again = _replayed(env, episode, task or None)
        if isinstance(again, Change):
            yield again
            return
    where = f"{episode['policy']}, seed {seed}"
    before, after = episode["start"], again["start"]
    for key in ("system_prompt", "tools", "max_turns"):  # the same in most episodes: told once
        yield from _differences(key, before[key], after[key])
    rest = [key for key in before if key not in ("system_prompt", "tools", "max_turns")]
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
    """Play the recorded replies; a reply that raises or comes behind the end is a change."""
    replies = [turn["reply"] for turn in episode["turns"]]
    where = f"{episode['policy']}, seed {episode['seed']}"

    def said(context: PolicyContext) -> str:
        if context.turn >= len(replies):
            raise EnvkitError(f"the episode goes on after its {len(replies)} recorded turns")
        return replies[context.turn]

    try:
        return _plain(_play(env, episode["seed"], said, task))
    except Exception as error:  # noqa: BLE001  # whatever a changed environment raises is the finding
        return Change(where=where, before="no exception", after=f"{type(error).__name__}: {error}")


def _differences(where: str, before: Any, after: Any) -> Iterator[Change]:  # noqa: ANN401  # any JSON data
    """Yield the leaves that differ, or a whole value whose kind or length changed."""
    if before == after:
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
    """Return both values, from shortly before the place where they begin to differ."""
    old, new = (v if isinstance(v, str) else json.dumps(v) for v in (before, after))
    pairs = enumerate(zip(old, new, strict=False))
    same = next((n for n, (left, right) in pairs if left != right), min(len(old), len(new)))
    start = max(0, same - 20)
    parts = [repr(text[start : start + _EXCERPT]) for text in (old, new)]
    return f"{parts[0]} became {parts[1]}" + (f" (from character {start})" if start else "")
