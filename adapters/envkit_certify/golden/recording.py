"""Play scripted policies and record the environment's outputs."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, cast

from envkit.checker.conduct import BAD_REPLIES
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ContractError
from envkit.messages import Message, message
from envkit.registration import make
from envkit.reply import Reply
from envkit.seeds import checked_seed
from envkit.turns import Observation, Step

FORMAT: Final = 1
"""Version of the file format; any other is refused."""
_LONGEST_EPISODE: Final = 16
_LONGEST_REPLY: Final = 200

Progress = Callable[[int, int], None]
"""Called with the number of played episodes and the total."""
Say = Callable[[PolicyContext], Any]
"""Returns a text, or `Reply.to_wire()` for a reply that was cut."""


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
    env = make(env_id, disable_env_checker=True, **dict(kwargs or {}))
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
    return plain(
        {
            "format": FORMAT,
            "env_id": env_id,
            "kwargs": dict(kwargs or {}),
            "made_with": {name: version(name) for name in ("pillow", "numpy")},
            "tasks": tasks,
            "episodes": episodes,
        }
    )


def plain(data: Any) -> Any:  # noqa: ANN401  # any JSON data
    """Round-trip the data through JSON, so both sides of a comparison have the same types."""
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


def play(env: Env, seed: int, policy: Say, task: Any = None) -> dict[str, Any]:  # noqa: ANN401  # any JSON data
    """Play one episode and return it as data. If `task` is None, the seed draws the task.

    A reply is a text, or `Reply.to_wire()` for one that was cut.
    """
    observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    drawn = plain(env.task)
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
        said = Reply.from_wire(policy(context))
        cast(Env, env.unwrapped).announce(said)
        step = Step(*env.step(said.text))
        messages += [message("assistant", said.text), env.format_observation(step.observation)]
        turns.append({"reply": said.to_wire(), **_answer(env, step)})
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
    """Return what the model sees, with images as size and hash."""
    images = [
        {"sha256": image.sha256, "width": image.size[0], "height": image.size[1]}
        for image in observation["images"]
    ]
    role = env.format_observation(observation)["role"]
    return {"text": observation["text"], "images": images, "role": role}
