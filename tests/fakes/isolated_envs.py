"""Environments that do harm when a reply asks for it; imported by worker processes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import gymnasium

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Observation, Step, Turn
from envkit.errors import ConfigurationError, ContractError, DatasetError, EnvFault, FaultKind
from envkit.images import Image
from envkit.messages import Message
from envkit.registration import make
from envkit.tasks import Task
from envkit.wrappers import RescaleReward
from envkit.wrappers.mixture import MixEnv


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


def _sleepers(count: int) -> list[int]:
    """Fork children that sleep: in the group, in sessions of their own, and as orphans."""
    pids: list[int] = []
    for index in range(count):
        read, write = os.pipe()
        if os.fork() == 0:
            if index % 3 == 1:
                os.setsid()
            if index % 3 == 2 and os.fork() != 0:
                os._exit(0)
            os.write(write, str(os.getpid()).encode())
            time.sleep(60)
            os._exit(0)
        pids.append(int(os.read(read, 20)))
        os.close(read)
        os.close(write)
    return pids


def _raise(error: BaseException) -> NoReturn:
    raise error


def _exhaust() -> list[bytearray]:
    return [bytearray(16 * 1024 * 1024) for _ in range(4000)]


def _say_and_exit() -> None:
    sys.stderr.write("last words on stderr\n")
    os._exit(7)


HARM: dict[str, Callable[[], Any]] = {
    "exit": lambda: os._exit(0),
    "say and exit": _say_and_exit,
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": _exhaust,
    "hang": lambda: time.sleep(600),
    "junk": lambda: os.write(3, b"junk" * 1000),
    "close descriptors": lambda: os.closerange(3, 100),
    "sys.exit": lambda: sys.exit(0),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "error": lambda: _raise(ValueError("a \ud800 bug")),
    "unreadable": lambda: _raise(Unreadable()),
    "refused": lambda: _raise(ConnectionRefusedError("nobody there")),
    "pipe": lambda: _raise(BrokenPipeError("its own pipe")),
    "late": lambda: _raise(TimeoutError("too late")),
    "fault": lambda: _raise(EnvFault("a judge", kind=FaultKind.GRADER, retryable=True)),
    "configuration": lambda: _raise(ConfigurationError("a wrong setting")),
    "contract": lambda: _raise(ContractError("not a turn")),
    "dataset": lambda: _raise(DatasetError("a broken row")),
}


class Harmful(Env):
    """Does what the reply says and repeats it otherwise."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=True, deterministic=True)
    system_prompt = "Repeat."

    def __init__(self, *, max_turns: int = 50) -> None:
        super().__init__(max_turns=max_turns)
        self.said: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        sys.stdout.write("printed by reset\n")
        self.said = []
        return Turn(f"task {task.get('name')}")

    def on_turn(self, response_text: str) -> Turn:
        info: dict[str, Any] = {"key": None if self.step_key is None else list(self.step_key)}
        if response_text == "fork":
            info["pids"] = _sleepers(21)
        elif response_text == "fork bomb":
            _sleepers(270)
            time.sleep(600)
        elif response_text == "print":
            sys.__stdout__.write("x" * 200_000)  # type: ignore[union-attr]
            os.write(1, b"ekw1 and more")
            subprocess.run(["echo", "a child's output"], check=True)
        elif response_text == "bad info":
            info["object"] = object()
        elif response_text in HARM:
            HARM[response_text]()
        self.said.append(response_text)
        return Turn(" ".join(self.said), reward=0.25, info=info)

    def step(self, action: str) -> Step:
        if action == "bad reward":
            return super().step(action)._replace(reward=float("nan"))
        if action == "bad huge reward":
            return super().step(action)._replace(reward=10**400)
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {"said": self.said}

    def set_state(self, state: dict[str, Any]) -> None:
        self.said = state["said"]


class Dying(Env):
    """Its constructor ends the process."""

    def __init__(self) -> None:
        super().__init__()
        os._exit(3)


class Stuck(Env):
    """Its constructor hangs."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(600)


class Formatting(Env):
    """Makes its own messages, and shortens."""

    def __init__(self) -> None:
        super().__init__(max_turns=9)

    def on_reset(self, task: Task) -> Turn:
        self.system_prompt = "Set by reset."
        return Turn("start", images=[_dot(1), _dot(2), _dot(1)])

    def on_turn(self, response_text: str) -> Turn:
        dot = _dot(len(response_text))
        return Turn(response_text, images=[dot], info={"drawn": [dot, {"last": dot}]})

    def format_observation(self, observation: Observation) -> Message:
        if observation["text"] == "raise":
            raise EnvFault("cannot be formatted", kind=FaultKind.TRANSIENT)
        parts: list[Any] = [{"type": "text", "text": f"<{observation['text']}>"}]
        parts += [{"type": "image", "image": image} for image in observation["images"]]
        return {"role": "user", "content": parts}

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        if tokens < 3:
            return None
        return {**observation, "text": observation["text"][:tokens], "images": ()}


class Waiting(AsyncEnv):
    """Asynchronous hooks."""

    async def on_areset(self, task: Task) -> Turn:
        return Turn("async start")

    async def on_aturn(self, response_text: str) -> Turn:
        return Turn("async end", reward=1.0, done=True)


class Doubled(gymnasium.Wrapper[Observation, str, Observation, str]):
    """Doubles rewards and adds a mark to messages."""

    def step(self, action: str) -> Any:
        return cast(Step, self.env.step(action))._replace(reward=0.5)

    def format_observation(self, observation: Observation) -> Message:
        return {"role": "user", "content": observation["text"] + "!"}


class DiesOnce(gymnasium.Wrapper[Observation, str, Observation, str]):
    """Ends the process in the second step, after it was applied, unless a file says that it did."""

    def __init__(self, env: Any, mark: str) -> None:
        super().__init__(env)
        self.mark = Path(mark)

    def step(self, action: str) -> Any:
        step = cast(Step, self.env.step(action))
        if step.info["turn"] == 2 and not self.mark.exists():
            self.mark.write_text(str(os.getpid()))
            os._exit(0)
        return step


def dies_once(env_id: str, mark: str) -> Any:
    return DiesOnce(make(env_id), mark)


def wrapped() -> Any:
    return Doubled(Harmful())


def _dot(side: int) -> Image:
    import numpy as np

    return Image.from_array(np.full((side, side, 3), 7 * side, dtype=np.uint8))


def unpaid_canary() -> gymnasium.Env[Observation, str]:
    """An environment whose wrapper pays nothing."""
    return RescaleReward(make("canary-v0", turns=2), scale=0.0)


def picky_mixture() -> gymnasium.Env[Observation, str]:
    """A mixture whose members have different thresholds."""
    members = [
        {"id": "canary-v0", "name": "half", "kwargs": {"turns": 2, "reward_threshold": 0.5}},
        {"id": "canary-v0", "name": "whole", "kwargs": {"turns": 2}},
    ]
    return MixEnv(members)
