"""Proxies of environments that run in a worker process."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, cast

from gymnasium.envs.registration import EnvSpec as GymSpec

from envkit.agents import MultiAgentEnv, RoleEnv
from envkit.env import Capabilities, Env, Policy, PolicyContext
from envkit.errors import ConfigurationError, ContractError
from envkit.messages import Message, check_message, text_of
from envkit.seeds import checked_seed
from envkit.success import checked_threshold, own_reward
from envkit.tools import ToolSpec
from envkit.turns import Observation, Reset, Step
from envkit_isolation.frames import Frame, FrameError
from envkit_isolation.process import WorkerProcess
from envkit_isolation.values import error_in, observation_of

_REPLY_S: Final = 10.0
"""Timeout of a scripted reply; the rollout's event loop waits for it."""


class IsolatedEnv(Env):
    """An environment in a worker process. It behaves as it does there, except for its policies.

    Calls block only the calling thread. Another thread may call `close`, which kills the worker
    and ends a hanging call.
    """

    def __init__(self, worker: WorkerProcess, *, rebuild: Callable[..., Env]) -> None:
        """Copy the worker's description of its environment.

        Args:
            worker: A worker that has built its environment.
            rebuild: Starts another worker like it.
        """
        told = worker.hello.data
        super().__init__()
        self._worker = worker
        self._formatted: tuple[Observation, Frame] | None = None
        """The latest observation, and the answer that carried it and its message."""
        self.capabilities = _capabilities(told["capabilities"])  # type: ignore[misc]  # each worker's own
        self.policies: Mapping[str, Callable[[], Policy]] = {
            str(name): partial(self._policy, str(name)) for name in told["policies"]
        }
        self._take_state(told["state"])
        if told["spec_id"] is not None:
            # A rollout rebuilds an environment from its spec, which must be isolated as well.
            self.spec = GymSpec(
                id=str(told["spec_id"]),
                entry_point=rebuild,
                reward_threshold=checked_threshold(told["spec_threshold"]),
                order_enforce=False,
            )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # only reached where nothing is found
        """Reject access to an attribute that exists only in the worker.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"{name!r} of the environment is in its worker process; this proxy has only what a "
            "rollout needs. Get a scripted policy from the isolated environment: isolated(...)()"
            ".oracle() or .policies"
        )

    @property
    def pid(self) -> int | None:
        """The process id of the worker."""
        return self._worker.pid

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode in the worker."""
        seed = None if seed is None else checked_seed(seed)
        call = {"call": "reset", "seed": seed, "options": options}
        answer = self._worker.call(Frame(call, starts_episode=True))
        observation, info = self._observed(answer)
        with self._reading():
            self._take_state(answer.data["state"])
            self.task = _mapping(answer.data["task"])
        return Reset(observation, info)

    def step(self, action: str) -> Step:
        """Play one reply in the worker."""
        key = None if self.step_key is None else list(self.step_key)
        answer = self._call({"call": "step", "reply": self._take(action).to_wire(), "key": key})
        observation, info = self._observed(answer)
        data = answer.data
        with self._reading():
            reward, flags = data["reward"], (data["terminated"], data["truncated"])
            if type(reward) is not float or not all(type(flag) is bool for flag in flags):
                raise FrameError(f"a reward of {reward!r:.40} and flags {flags!r:.80}")
            if "state" in data:
                self._take_state(data["state"])
        self.own_reward = own_reward(info, reward)
        return Step(observation, reward, *flags, info)

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message built by the environment or its wrappers."""
        if self._formatted is not None and self._formatted[0] is observation:
            answer = self._formatted[1]
        else:
            answer = self._call({"call": "format_observation", "observation": observation})
        if "message_error" in answer.data:
            raise error_in(answer.data["message_error"])
        with self._reading():
            return answer.data["message"]

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form built by the environment or its wrappers, or None."""
        call = {"call": "shorten", "observation": observation, "tokens": int(tokens)}
        answer = self._call(call)
        with self._reading():
            shorter = answer.data["observation"]
            return None if shorter is None else observation_of(shorter, "a worker", FrameError)

    def snapshot(self) -> bytes:
        """Return the environment's state."""
        return self._call({"call": "snapshot"}).blob

    def restore(self, data: bytes) -> None:
        """Restore a state that `snapshot` returned."""
        answer = self._worker.call(Frame({"call": "restore"}, data))
        with self._reading():
            self._take_state(answer.data["state"])
            self.task = _mapping(answer.data["task"])

    def oracle(self) -> Policy:
        """Return a policy backed by the environment's oracle in the worker."""
        return self._policy("oracle")

    def close(self) -> None:
        """Close the environment, kill the worker and wait for it to exit."""
        self._worker.close()

    def kill(self) -> None:
        """Kill the worker without waiting; a running call fails. Callable from any thread."""
        self._worker.kill()

    def scripted_reply(self, name: str, context: PolicyContext, role: str | None = None) -> str:
        """Return the reply of a scripted policy that runs in the worker."""
        call = {
            "call": "reply",
            "name": name,
            "role": role,
            "task": context.task,
            "turn": context.turn,
            "seed": context.seed,
            "messages": list(context.messages),
        }
        answer = self._worker.call(Frame(call), timeout_s=_REPLY_S)
        text: object = answer.data.get("text")
        if not isinstance(text, str):
            raise self._worker.broken(FrameError(f"a reply of {text!r:.80}"))
        return text

    def _policy(self, name: str) -> Policy:
        self._call({"call": "find_policy", "name": name})
        return partial(_reply, name)

    def _call(self, data: dict[str, Any]) -> Frame:
        return self._worker.call(Frame(data))

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Turn an error in reading an answer into a fault; the worker is then unusable.

        Raises:
            EnvFault: The answer does not fit the call.
        """
        try:
            yield
        except (FrameError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._worker.broken(error) from error

    def _observed(self, answer: Frame) -> tuple[Observation, dict[str, Any]]:
        with self._reading():
            observation = observation_of(answer.data["observation"], "a worker", FrameError)
            self._formatted = (observation, answer)
            return observation, _mapping(answer.data["info"])

    def _take_state(self, state: Any) -> None:  # noqa: ANN401  # from a process that may send anything
        prompt, turns = _prompt(state["system_prompt"]), state["max_turns"]
        if type(turns) is not int or turns < 1:
            raise FrameError(f"max_turns {turns!r:.40}")
        self.system_prompt, self.max_turns = prompt, turns
        self.tools = _tools(state["tools"])
        self.history_policy = state["history"]  # type: ignore[misc]  # each worker's own
        self.default_threshold = checked_threshold(state["reward_threshold"])


class IsolatedMultiAgentEnv(IsolatedEnv, MultiAgentEnv):
    """An environment with several agents in a worker process.

    `conversations` and `addressed` stay empty: code that needs them, such as a scripted policy,
    runs in the worker.
    """

    def tools_of(self, role: str) -> tuple[ToolSpec, ...]:
        """Return the tools of a role."""
        return self._role_tools.get(role, self.tools)

    def history_policy_of(self, role: str) -> str | Mapping[str, Any] | None:
        """Return the history policy of a role."""
        return self._role_histories.get(role, self.history_policy)

    def _take_state(self, state: Any) -> None:  # noqa: ANN401  # as above
        super()._take_state(state)
        roles: Mapping[str, Any] = _mapping(state["roles"])
        self.roles = tuple(roles)
        self.prompts = {
            role: prompt
            for role, told in roles.items()
            if (prompt := _prompt(told["prompt"])) is not None
        }
        self._role_tools = {role: _tools(told["tools"]) for role, told in roles.items()}
        self._role_histories = {role: told["history"] for role, told in roles.items()}


def _prompt(told: Any) -> str | None:  # noqa: ANN401  # from a process that may send anything
    if told is None:
        return None
    try:
        return text_of(check_message(told, source="a worker"))
    except ContractError as error:
        raise FrameError(f"system prompt {told!r:.80}") from error


def _reply(name: str, context: PolicyContext) -> str:
    env: Any = context.env.unwrapped
    role = None
    if isinstance(env, RoleEnv):
        env, role = env.joint_env, env.role
    if not isinstance(env, IsolatedEnv):
        raise ConfigurationError(
            f"policy {name!r} belongs to an isolated environment, got {type(env).__name__}"
        )
    return env.scripted_reply(name, context, role)


def _capabilities(told: Any) -> Capabilities:  # noqa: ANN401  # from a process that may send anything
    """Return the capabilities the environment declares, except for where its calls run."""
    defaults = Capabilities()
    found: dict[str, Any] = {}
    for entry in fields(Capabilities):
        value: object = told[entry.name]
        default: object = getattr(defaults, entry.name)
        if type(value) is not type(default) and not (default is None and type(value) is int):
            raise FrameError(f"capability {entry.name} is {value!r:.80}")
        found[entry.name] = value
    # Calls only wait for the worker, on any thread.
    return replace(Capabilities(**found), thread_safe=True, compute_bound=False)


def _tools(told: Any) -> tuple[ToolSpec, ...]:  # noqa: ANN401  # as above
    return tuple(ToolSpec.from_json(schema) for schema in told)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FrameError(f"not a JSON object: {value!r:.80}")
    return cast("dict[str, Any]", value)
