"""envkit's environments for SkyRL's own generator, as skyrl-gym environments.

The contract is `BaseTextEnv` of skyrl-gym 0.4.0 (skyrl_gym/envs/base_text_env.py). SkyRL's
generator calls an environment from many threads, gives up a whole batch when one fails, and never
closes the one that failed; `SkyRLEnv` keeps a thread for what needs one, repeats a failed step
where the environment can be replayed, and closes what it gives up.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from envkit.env import Env, Step
from envkit.errors import ConfigurationError, EnvFault, EnvkitError, EpisodeStateError
from envkit.messages import Message, images_of, text_of
from envkit.rollout.boundary import checked_step
from envkit.rollout.host import AnyEnv
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit_skyrl.contract import CONTRACT

CONTRACT.check()

import skyrl_gym  # noqa: E402  # after the check
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: E402
from skyrl_gym.envs.registration import registry  # noqa: E402

T = TypeVar("T")
_ENTRY_POINT: Final = "envkit_skyrl.gym_env:SkyRLEnv"
_TOOLS_HEAD: Final = "You may call these tools, each given by its JSON schema:"


def register(
    env_id: str, *, name: str | None = None, env_kwargs: Mapping[str, Any] | None = None
) -> str:
    """Make an envkit environment known to skyrl-gym in this process; a second call is fine.

    SkyRL's generator runs in a Ray task, so this must be called there; `envkit_skyrl.main` does.

    Args:
        env_id: As for `envkit.make`.
        name: The `env_class` of dataset rows; None takes `env_id`.
        env_kwargs: Arguments of the environment.

    Returns:
        The name.

    Raises:
        ConfigurationError: skyrl-gym has another environment of that name.
    """
    name = name or env_id
    kwargs = {"env_id": env_id, "env_kwargs": dict(env_kwargs or {})}
    known = registry.get(name)
    if known is not None:
        if known.entry_point == _ENTRY_POINT and known.kwargs == kwargs:
            return name
        raise ConfigurationError(
            f"skyrl-gym has another environment {name!r} already; pass name= to register "
            f"{env_id!r} under its own"
        )
    skyrl_gym.register(id=name, entry_point=_ENTRY_POINT, kwargs=kwargs)
    return name


class SkyRLEnv(BaseTextEnv):
    """One envkit environment behind skyrl-gym's interface."""

    def __init__(
        self,
        env_config: Any = None,  # noqa: ANN401  # SkyRL's per-class section, not used
        extras: Mapping[str, Any] | None = None,
        *,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        max_replays: int = 2,
    ) -> None:
        """Read what to play; the environment is built by `init`, off the event loop.

        Args:
            env_config: Ignored.
            extras: The dataset row's columns, with the request under `ENVKIT_COLUMN`, and SkyRL's
                `max_turns`.
            env_id: What rows leave out.
            env_kwargs: Of that environment.
            max_replays: How often an episode is rebuilt after a failed step, where the environment
                says that a replay is safe.

        Raises:
            ConfigurationError: The row cannot be read, or names no environment.
        """
        super().__init__()
        extras = extras or {}
        default = None
        if env_id is not None:
            default = EpisodeRequest(env_id=env_id, env_kwargs=dict(env_kwargs or {}))
        self._request = EpisodeRequest.from_column(extras.get(ENVKIT_COLUMN), default=default)
        limit = extras.get("max_turns")
        self.max_turns = None if limit is None else int(limit)
        self._max_replays = max_replays
        self._outer: AnyEnv | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._seed = 0
        self._replies: list[str] = []
        self._reward = 0.0
        self._parse_errors = 0

    def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # noqa: ANN401
        """Start the episode and return its messages; the dataset's prompt is not sent.

        Raises:
            EnvFault: The environment cannot be built or started.
        """
        own = self._request.seed
        # Equal in a group, whose members differ in nothing that an environment of SkyRL is told.
        self._seed = (
            derive_seed("group", self._request.to_column(), json.dumps(prompt, default=str))
            if own is None
            else own
        )
        _, reset = self._run(self._begin)
        env = self._env
        messages = [_plain(env.format_observation(reset.observation))]
        system = "\n\n".join(filter(None, (env.system_prompt, _tool_text(env))))
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return messages, dict(reset.info)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play one reply. Nothing is observed after the end: a trailing message hides the reward.

        Raises:
            EnvFault: The environment failed and could not be rebuilt. SkyRL's generator then gives
                the batch up; envkit's own generator does not.
            EpisodeStateError: Before `init`.
        """
        if self._outer is None:
            raise EpisodeStateError("call init() before step()")
        step = self._run(lambda: self._step(action))
        self.turns += 1
        self._replies.append(action)
        self._reward += step.reward
        self._parse_errors += step.info.get("parse_error") is not None
        cut = self.max_turns is not None and self.turns >= self.max_turns
        done = step.terminated or step.truncated or cut
        return BaseTextEnvStepOutput(
            observations=[] if done else [_plain(self._env.format_observation(step.observation))],
            reward=step.reward,
            done=done,
            metadata=dict(step.info),
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return what SkyRL averages over episodes as `environment/<name>`."""
        return {
            "reward": self._reward,
            "turns": self.turns,
            "parse_errors": self._parse_errors,
        }

    def close(self) -> None:
        """Close the environment and end its thread; closing twice is fine."""
        outer, self._outer = self._outer, None
        if outer is not None:
            self._run(outer.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    @property
    def _env(self) -> Env:
        if self._outer is None:
            raise EpisodeStateError("the episode has not begun, or is closed")
        env = self._outer.unwrapped
        if not isinstance(env, Env):
            raise ConfigurationError(f"expected an envkit.Env, got {type(env).__name__}")
        return env

    def _begin(self) -> tuple[AnyEnv, Any]:
        """Build an environment and reset it; called on the thread that it stays on."""
        outer = self._request.factory()()
        self._outer = outer
        options = None if self._request.task is None else {"task": self._request.task}
        return outer, outer.reset(seed=self._seed, options=options)

    def _step(self, action: str) -> Step:
        """Play a reply; after a failure rebuild the episode, where it can be, and play it again."""
        replays = self._max_replays if self._env.capabilities.replay_safe else 0
        for attempt in range(replays + 1):
            try:
                outer = self._rebuilt() if attempt else self._outer
                if outer is None:
                    raise EpisodeStateError("the environment is closed")
                found = outer.step(action)
                return checked_step(tuple(found), self._request.env_id)
            except Exception as error:
                contract = isinstance(error, EnvkitError) and not isinstance(error, EnvFault)
                if attempt < replays and not contract:
                    continue
                self._discard()
                if contract:
                    raise
                raise EnvFault(
                    f"{self._request.env_id} failed in turn {self.turns}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        raise EpisodeStateError("no attempt was made")  # the range above is never empty

    def _rebuilt(self) -> AnyEnv:
        """Return a fresh environment that stands where the last one failed."""
        self._discard()
        outer, _ = self._begin()
        for reply in self._replies:
            outer.step(reply)
        return outer

    def _discard(self) -> None:
        """Close an environment that failed; SkyRL's generator never would."""
        outer, self._outer = self._outer, None
        if outer is not None:
            with contextlib.suppress(Exception):  # what is thrown away may fail to close
                outer.close()

    def _run(self, function: Callable[[], T]) -> T:
        """Run on the episode's thread, unless the environment may run on any."""
        if self._outer is not None and self._env.capabilities.thread_safe:
            return function()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="envkit-skyrl")
        return self._thread.submit(function).result()


def _plain(entry: Message) -> dict[str, Any]:
    """Return a message as SkyRL's generators send it: text, or OpenAI's content parts."""
    images = images_of([entry])
    if not images:
        return {"role": entry["role"], "content": text_of(entry)}
    content = entry["content"]
    parts: list[dict[str, Any]] = []
    for part in [] if isinstance(content, str) else content:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
        else:
            parts.append({"type": "image_url", "image_url": {"url": part["image"].data_uri()}})
    return {"role": entry["role"], "content": parts}


def _tool_text(env: Env) -> str:
    """Return the tools as text: SkyRL's generator offers none to the chat template."""
    if not env.tools:
        return ""
    schemas = [json.dumps(tool.to_json(), ensure_ascii=False) for tool in env.tools]
    call = 'Call one as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
    return "\n".join((_TOOLS_HEAD, *schemas, call))
