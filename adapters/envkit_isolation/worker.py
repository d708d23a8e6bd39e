"""The worker: a process with one environment that answers calls one at a time.

It runs in a fork of its supervisor, or in a new interpreter if forking is unsafe. Its channel is a
separate socket, so output that the environment prints cannot corrupt an answer.
"""

import ctypes
import faulthandler
import json
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

import gymnasium
import numpy as np

from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ConfigurationError, ContractError, UnknownNameError, shown
from envkit.messages import message
from envkit.registration import NAMESPACE, AnyEnv, make, register
from envkit.reply import Reply
from envkit.rollout.boundary import checked_step, hook
from envkit.success import with_own_reward
from envkit.turns import Observation, StepKey, Turn
from envkit_isolation.frames import Connection, Frame
from envkit_isolation.values import error_out, observation_of, reset_out

if TYPE_CHECKING:
    from envkit.agents import MultiAgentEnv

CHANNEL_FD: Final = 3
"""File descriptor of a worker's channel."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_RESET_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def run_worker(supervisor: int) -> None:
    """Answer calls until the channel closes, then exit the process.

    Args:
        supervisor: Process id of the supervisor; the worker dies with it.
    """
    code = 1
    try:
        _settle(supervisor)
        _serve(socket.socket(fileno=CHANNEL_FD))
        code = 0
    except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's code
        traceback.print_exc()
    finally:
        os._exit(code)


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _settle(supervisor: int) -> None:
    """Tie the process to its supervisor and isolate it from other processes."""
    # Inherited from the supervisor, whose loop this pipe wakes.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It died before the line above: its death signal will not come.
    if os.getppid() != supervisor:
        os._exit(1)
    become_subreaper()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory runs out, the kernel kills a worker, not the run
    faulthandler.enable(file=2, all_threads=False)


def _serve(channel: socket.socket) -> None:
    def read(length: int) -> bytes:
        data = channel.recv(length)
        if not data:
            os._exit(0)  # the caller is gone
        return data

    connection = Connection(channel)
    served: ServedEnv | None = None
    own_id = os.getpid()
    while True:
        call = connection.receive(read)
        where = call.data["call"]
        try:
            if served is None:
                served = ServedEnv(_build(call))
                where = "hello"
            answer = served.answer(where, call)
            _leave_if_forked(own_id)
            connection.send(answer)
        except BaseException as error:  # noqa: BLE001  # also SystemExit: the caller hears of it
            _leave_if_forked(own_id)
            name = "building the environment" if served is None else f"{served.name}.{where}"
            connection.send(Frame({"error": error_out(error, name)}))
        if where == "close":
            return


def _leave_if_forked(worker: int) -> None:
    """Exit in a child that the environment forked."""
    # It would answer the caller as well.
    if os.getpid() != worker:
        os._exit(0)


def _build(call: Frame) -> AnyEnv:
    data = call.data
    # The supervisor may be older than what the caller has set since.
    os.environ.clear()
    os.environ.update(data["environ"])
    sys.path[:] = data["path"]
    os.chdir(data["directory"])
    np.random.seed()  # the legacy generator, whose state forks share
    if data["memory_mb"] is not None:
        _limit_memory(data["memory_mb"])
    for entry in data["registered"]:
        # The supervisor may have imported the package that registers it.
        if f"{NAMESPACE}/{entry['id']}" not in gymnasium.registry:
            register(**entry)
    if data["env_id"] is not None:
        env: AnyEnv = make(data["env_id"], **json.loads(data["arguments"]))
    else:
        env = pickle.loads(call.blob)()  # the caller's own factory
    if not isinstance(env.unwrapped, Env):
        raise ContractError(f"a rollout needs an envkit.Env, got {type(env.unwrapped).__name__}")
    return env


def _limit_memory(megabytes: int) -> None:
    """Limit the address space to current use plus the given amount."""
    used = 0
    # Imports have reserved address space that the environment never uses.
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + megabytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class ServedEnv:
    """An environment and the state its caller already has."""

    def __init__(self, outer: AnyEnv) -> None:
        """Take an environment, possibly in wrappers."""
        self._outer, self._env = outer, cast(Env, outer.unwrapped)
        self.name = type(self._env).__name__
        self._joint = _joint_in(self._env)
        self._policies: dict[str, Policy] = {}
        self._told: object = None
        self._calls: dict[str, Callable[[Frame], Frame]] = {
            "hello": self._hello,
            "reset": self._reset,
            "step": self._step,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "format_observation": self._format,
            "shorten": self._shorten,
            "find_policy": self._find_policy,
            "reply": self._reply,
            "close": self._close,
        }

    def answer(self, name: str, call: Frame) -> Frame:
        """Make a call and return its answer."""
        return self._calls[name](call)

    def _hello(self, call: Frame) -> Frame:
        env = self._env
        spec = getattr(self._outer, "spec", None)
        policies: Mapping[str, Any] = getattr(env, "policies", {})
        return Frame(
            {
                "name": self.name,
                "pid": os.getpid(),
                "spec_id": None if spec is None else str(spec.id),
                "spec_threshold": None if spec is None else spec.reward_threshold,
                "capabilities": asdict(env.capabilities),
                "policies": [str(name) for name in policies],
                "agents": self._joint is not None,
                "state": self._state(),
            }
        )

    def _reset(self, call: Frame) -> Frame:
        value: Any = self._outer.reset(seed=call.data["seed"], options=call.data["options"])
        data = reset_out(value, f"{self.name}.reset")
        data |= {"state": self._state(), "task": self._env.task}
        return Frame(data | self._formatted(data["observation"]))

    def _step(self, call: Frame) -> Frame:
        key = call.data["key"]
        self._env.step_key = None if key is None else StepKey(*key)
        reply = Reply.from_wire(call.data["reply"])
        self._env.announce(reply)
        step = checked_step(self._outer.step(reply.text), self.name)
        data = step._asdict()
        if self._outer is not self._env:
            data["info"] = with_own_reward(step.info, step.reward, self._env.own_reward)
        # Most steps change none of it, so it is not sent with each.
        if self._facts() != self._told:
            data["state"] = self._state()
        return Frame(data | self._formatted(step.observation))

    def _snapshot(self, call: Frame) -> Frame:
        value: Any = self._env.snapshot()
        if not isinstance(value, bytes):
            raise ContractError(
                f"{self.name}.snapshot must return bytes, got {type(value).__name__}"
            )
        return Frame({}, value)

    def _restore(self, call: Frame) -> Frame:
        self._env.restore(call.blob)
        return Frame({"state": self._state(), "task": self._env.task})

    def _format(self, call: Frame) -> Frame:
        observation = observation_of(call.data["observation"], "the caller")
        return Frame({"message": self._hook("format_observation")(observation)})

    def _shorten(self, call: Frame) -> Frame:
        observation = observation_of(call.data["observation"], "the caller")
        shorter = self._hook("shorten")(observation, call.data["tokens"])
        if shorter is not None:
            shorter = observation_of(shorter, f"{self.name}.shorten")
        return Frame({"observation": shorter})

    def _formatted(self, observation: Observation) -> dict[str, Any]:
        """Return the chat message of a new observation, so that the caller need not ask for it."""
        try:
            return {"message": self._hook("format_observation")(observation)}
        except BaseException as error:  # noqa: BLE001  # raised where the caller asks
            return {"message_error": error_out(error, f"{self.name}.format_observation")}

    def _find_policy(self, call: Frame) -> Frame:
        self._policy(call.data["name"])
        return Frame({})

    def _reply(self, call: Frame) -> Frame:
        data, env, joint = call.data, self._env, self._joint
        if data["role"] is not None and joint is not None:
            from envkit.agents import RoleEnv  # loaded already: see _joint_in

            env = RoleEnv(data["role"], Turn(""), joint_env=lambda: joint, exchange=_never)
        text: Any = self._policy(data["name"])(
            PolicyContext(
                env=env,
                task=data["task"],
                turn=data["turn"],
                messages=data["messages"],
                seed=data["seed"],
            )
        )
        if not isinstance(text, str):
            raise ContractError(
                f"policy {data['name']!r} must return a str, got {type(text).__name__}"
            )
        return Frame({"text": text})

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            offer: Mapping[str, Callable[[], Policy]] = getattr(self._env, "policies", {})
            known = {"oracle": self._env.oracle, **offer}
            if name not in known:
                raise UnknownNameError.suggest("policy", name, known)
            self._policies[name] = known[name]()
        return self._policies[name]

    def _close(self, call: Frame) -> Frame:
        self._outer.close()
        return Frame({})

    def _hook(self, name: str) -> Any:  # noqa: ANN401  # the environment's method or a wrapper's
        return hook(self._env, self._outer, name)

    def _facts(self) -> object:
        return self._env.system_prompt, self._env.tools, self._env.max_turns

    def _state(self) -> dict[str, Any]:
        """Return the environment's description of itself, which a reset may change."""
        env = self._env
        self._told = self._facts()
        state: dict[str, Any] = {
            "system_prompt": _spoken(env.system_prompt),
            "max_turns": int(env.max_turns),
            "tools": [tool.to_json() for tool in env.tools],
            "history": _setting(env.history_policy, self.name),
            "reward_threshold": env.reward_threshold,
        }
        if self._joint is not None:
            state["roles"] = {
                role: {
                    "prompt": _spoken(self._joint.system_prompt_of(role)),
                    "tools": [tool.to_json() for tool in self._joint.tools_of(role)],
                    "history": _setting(self._joint.history_policy_of(role), self.name),
                }
                for role in self._joint.roles
            }
        return state


def _spoken(prompt: str | None) -> object:
    """Return a system prompt as a message, which marks the trusted parts."""
    return message("system", prompt) if isinstance(prompt, str) else prompt


def _setting(policy: object, name: str) -> object:
    """Return a history policy as JSON data."""
    if isinstance(policy, Mapping):
        return dict(cast("Mapping[str, Any]", policy))
    if policy is not None and not isinstance(policy, str):
        raise ContractError(
            f"{name}.history_policy must be a name, a mapping or None, got {shown(policy)}"
        )
    return policy


def _joint_in(env: Env) -> "MultiAgentEnv | None":
    """Return the environment if it has several agents."""
    if "envkit.agents" not in sys.modules:  # not imported, so no subclass can exist
        return None
    from envkit.agents import MultiAgentEnv

    return env if isinstance(env, MultiAgentEnv) else None


async def _never(reply: Reply) -> Any:  # noqa: ANN401  # the signature of an exchange
    raise ConfigurationError("a scripted policy must not play its environment")
