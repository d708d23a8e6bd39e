"""Environments for TRL's own tool loop (`GRPOTrainer(environment_factory=...)`).

TRL treats every public method as a tool, calls `reset` with all fields of a dataset row, and calls
`get_reward` once per rollout (trl/trainer/grpo_trainer.py, 1.16). It plays a batch in lock-step and
cannot end an episode; prefer `make_rollout_func` or `EnvGRPOTrainer`.
"""

import asyncio
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from envkit.async_env import AsyncEnv
from envkit.env import Env
from envkit.errors import ConfigurationError, EnvkitError, Fault, RunFailedError
from envkit.rollout.breaker import Admission, Breaker, BreakerSettings
from envkit.rollout.config import RolloutConfig
from envkit.rollout.host import AnyEnv
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.sources import EnvSource
from envkit.seeds import checked_seed, derive_seed
from envkit.tools import ToolSpec
from envkit.trajectory.stop import FaultPlace, FaultRecord
from envkit.turns import Observation
from envkit_trl.loop_thread import LoopThread
from envkit_trl.place import group_of, watch_generation
from envkit_trl.requests import canonical_prompt, row_request
from envkit_trl.rows import RewardedEnvironment, leave_out_faults
from envkit_trl.tool_methods import tool_method

CallRenderer = Callable[[str, Mapping[str, Any]], str]
"""Formats a call as a reply for the environment's parser."""
OVER: Final = "The episode is over. Reply without calling a tool."
FAILED: Final = "The environment failed. Reply without calling a tool."
REPLY_TOOL: Final = ToolSpec(
    name="reply",
    description="Send a reply to the environment and read its answer.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The reply."}},
        "required": ["text"],
    },
)
"""The tool for environments without their own tools."""


def hermes_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as Hermes and Qwen models do."""
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def environment_factory(
    env_id: str,
    *,
    seed: int = 0,
    render_call: CallRenderer = hermes_call,
    breaker: BreakerSettings | None = None,
    draw_tasks: bool = False,
    **env_kwargs: Any,  # noqa: ANN401  # of the environment
) -> "type[ToolEnvironment]":
    """Return a class whose instances are environments for TRL's tool loop.

    Each tool call is one step of the environment. An environment without tools gets one, `reply`.
    The text of a final reply without a call reaches the environment only through `final_reply`.

    Args:
        env_id: A registered environment.
        seed: Seed of the run. The members of a group start from the same seed.
        render_call: Formats a call as the environment parses it.
        breaker: When the next batch waits because all episodes fault, and when the training ends;
            None uses the defaults.
        draw_tasks: Let the environment draw its tasks although the dataset has other columns than
            prompts, which no episode reads.
        env_kwargs: Arguments of the environment.

    Raises:
        UnknownNameError: There is no such environment.
        ConfigurationError: A tool has a name that TRL would not offer to the model.
    """
    config = RolloutConfig(env_id=env_id, env_kwargs=env_kwargs, draw_tasks=draw_tasks)
    source = EpisodeRequest(env_id=env_id, env_kwargs=env_kwargs).factory()
    probe = source()
    tools: Sequence[ToolSpec] = cast(Env, probe.unwrapped).tools
    probe.close()
    body: dict[str, Any] = {
        "__doc__": f"{env_id} for TRL's tool loop; its public methods are the tools.",
        "_config": config,
        "_source": source,
        "_has_tools": bool(tools),
        "_run_seed": checked_seed(seed),
        "_batches": _Batches(breaker or BreakerSettings()),
        "_render_call": staticmethod(render_call),
    }
    body |= {spec.name: tool_method(spec) for spec in tools or (REPLY_TOOL,)}
    return type(_class_name(env_id), (ToolEnvironment,), body)


class ToolEnvironment(RewardedEnvironment):
    """One environment for TRL. Its public methods except these two are its tools."""

    _config: ClassVar[RolloutConfig]
    _source: ClassVar[EnvSource]
    _has_tools: ClassVar[bool]
    _run_seed: ClassVar[int]
    _batches: ClassVar["_Batches"]
    _render_call: ClassVar[CallRenderer]

    def __init__(self) -> None:
        leave_out_faults()
        watch_generation()
        self._env: AnyEnv | None = None
        self._reward = 0.0
        self._is_over = True
        self._fault: Exception | None = None
        self._is_counted = True

    def reset(self, **row: Any) -> str | list[dict[str, Any]]:  # noqa: ANN401  # of any dataset
        """Start the episode of a dataset row and return the first observation.

        Raises:
            ConfigurationError: The row names another environment, or no episode reads it.
            RunFailedError: Too many episodes failed in a row.
        """
        self._reward, self._is_over, self._fault, self._is_counted = 0.0, False, None, False
        request = row_request(row, self._config)
        if request.factory() != self._source:
            raise ConfigurationError(
                f"the row requests {request.factory()}, and this factory makes {self._source}; "
                "give TRL a dictionary of factories and a column 'environment'"
            )
        seed = request.seed
        batch = self._batches.of_reset(self)
        if seed is None:  # TRL passes no index, and the rows of several groups may be equal
            group = group_of(self)
            seed = derive_seed("group", self._run_seed, batch, group, canonical_prompt(row))
        options = None if request.task is None else {"task": request.task}
        observation: Observation | None = self._guarded(lambda: self._restart(seed, options))
        return FAILED if observation is None else _content(self._env_now(), observation)

    def get_reward(self) -> float | None:
        """Return the episode's reward so far; None after a fault, which TRL does not score.

        Raises:
            EnvkitError: The environment broke its contract; TRL hides that from a tool call.
            RunFailedError: Too many episodes failed in a row.
        """
        if not self._is_counted:  # `leave_out_faults` asks, too
            self._is_counted = True
            self._batches.note(self._fault)
        # TRL turns an exception of a tool call into text for the model, so it is raised here.
        if isinstance(self._fault, EnvkitError) and not isinstance(self._fault, Fault):
            raise self._fault
        return None if self._fault is not None else self._reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        """Play a tool call as the equivalent reply."""
        render = type(self)._render_call
        text = render(name, arguments) if self._has_tools else str(arguments.get("text", ""))
        return self._step(text)

    def _step(self, text: str) -> str | list[dict[str, Any]]:
        """Play a reply and return the next observation."""
        if self._fault is not None:
            return FAILED
        if self._is_over:
            return OVER
        observation = self._guarded(lambda: self._advance(text))
        return FAILED if observation is None else _content(self._env_now(), observation)

    def _restart(self, seed: int, options: dict[str, Any] | None) -> Observation:
        if self._env is None:
            self._env = self._source()
            weakref.finalize(self, _close, self._env)  # TRL never closes an environment
        env = self._env.unwrapped
        if isinstance(env, AsyncEnv):
            return _loop().run(env.areset(seed=seed, options=options)).observation
        return self._env.reset(seed=seed, options=options)[0]

    def _advance(self, text: str) -> Observation:
        outer = self._env_now()
        env = outer.unwrapped
        if isinstance(env, AsyncEnv):
            observation, reward, terminated, truncated, _ = _loop().run(env.astep(text))
        else:
            observation, reward, terminated, truncated, _ = outer.step(text)
        self._reward += float(reward)
        self._is_over = bool(terminated or truncated)
        return observation

    def _guarded(self, call: Callable[[], Observation]) -> Observation | None:
        """Call the environment; record a failure, because TRL would turn it into text."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # an environment's backend may raise anything
            self._fault = error
            self._env = None  # the next episode starts with a fresh one
            return None

    def _env_now(self) -> AnyEnv:
        if self._env is None:
            raise ConfigurationError("call reset() before a tool")
        return self._env


class _Batches:
    """Counts TRL's batches by resets: each batch resets the first instance exactly once.

    A batch is played in lock-step, so it waits for a backend as a whole.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._seen: set[int] = set()
        self._number = 0
        self._breaker = Breaker(settings)
        self._admission: Admission | None = None
        """Of the current batch; None before the first."""

    def of_reset(self, instance: object) -> int:
        """Return the number of the batch that is resetting an instance.

        Raises:
            RunFailedError: No further batch may start.
        """
        if self._admission is None:
            self._admission = _loop().run(self._next(None))
        # TRL passes no number of a batch.
        elif id(instance) in self._seen:
            self._seen.clear()
            self._number += 1
            self._admission = _loop().run(self._next(self._admission))
        self._seen.add(id(instance))
        return self._number

    def note(self, error: Exception | None) -> None:
        """Count an episode.

        Args:
            error: What failed; None if the episode ended well.

        Raises:
            RunFailedError: No further episode may start.
        """
        fault = None if error is None else FaultRecord.of(FaultPlace.STEP, error)
        _loop().run(self._note(fault))

    async def _next(self, admission: Admission | None) -> Admission:
        if admission is not None:
            self._breaker.leave(admission)
        return await self._breaker.enter(Interrupt())

    async def _note(self, fault: FaultRecord | None) -> None:
        failure = self._breaker.note(fault, self._admission or Admission())
        if failure is not None:
            raise RunFailedError(failure)


def final_reply(
    completions: Sequence[Any],
    environments: Sequence[Any],
    **_: object,
) -> list[None]:
    """Play the last reply of each rollout, for environments with plain-text answers.

    Name it in GRPOTrainer's `reward_funcs`: it runs before `get_reward` and scores nothing itself;
    the environments' rewards then include the answer. Rollouts that ended in a tool call, or whose
    episode is over, are unchanged.
    """
    for completion, environment in zip(completions, environments, strict=True):
        text = _last_text(completion)
        if text is not None and isinstance(environment, ToolEnvironment):
            played: Any = (
                environment  # `_step` is private, because TRL treats public names as tools
            )
            played._step(text)
    return [None] * len(completions)


def _last_text(completion: Any) -> str | None:  # noqa: ANN401  # TRL's messages
    last = completion[-1] if completion else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _content(env: AnyEnv, observation: Observation) -> str | list[dict[str, Any]]:
    """Return a message's content in TRL's form: a string, or blocks with PIL images."""
    content = cast(Env, env.unwrapped).format_observation(observation)["content"]
    if isinstance(content, str):
        return content
    return [
        {"type": "image", "image": part["image"].pil()} if part["type"] == "image" else dict(part)
        for part in content
    ]


def _close(env: AnyEnv) -> None:
    inner = env.unwrapped
    if isinstance(inner, AsyncEnv):
        asyncio.run(inner.aclose())
    else:
        env.close()


_threads: list[LoopThread] = []


def _loop() -> LoopThread:
    """Return the one thread that asynchronous environments run on."""
    if not _threads:
        _threads.append(LoopThread("envkit-trl-tools"))
    return _threads[0]


def _class_name(env_id: str) -> str:
    return "".join(part.capitalize() for part in env_id.replace("/", "-").split("-"))
