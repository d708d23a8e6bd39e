"""Environments that do to the conversation what a ledger of tokens cannot follow."""

import asyncio
from importlib import import_module
from typing import Any

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers


class TwistingTaskConfig(vf.TaskConfig):
    how: str = "plain"


class TwistingTask(vf.Task[vf.TaskData, vf.State, TwistingTaskConfig]):
    @vf.intercept
    def replaced(self, response: vf.Response) -> Any:  # pyright: ignore[reportInvalidTypeForm]
        if self.config.how != "reply":
            return None
        message = vf.AssistantMessage(content="Blocked")
        return response.model_copy(update={"message": message})

    @vf.intercept
    def shouted(self, request: vf.Request) -> Any:  # pyright: ignore[reportInvalidTypeForm]
        if self.config.how != "request":
            return None
        last = request.messages[-1]
        loud = last.model_copy(update={"content": last.content.upper()})
        return request.model_copy(update={"messages": [*request.messages[:-1], loud]})

    @vf.stop
    async def said_stop(self, trace: vf.Trace) -> bool:  # pyright: ignore[reportInvalidTypeForm]
        return trace.num_turns > 0 and "stop" in trace.last_reply

    async def setup(self, trace: Any) -> None:
        if self.config.how == "setup":
            raise FileNotFoundError("no board")

    @vf.reward
    async def nothing(self, trace: Any) -> float:
        return 0.5


class TwistingConfig(vf.TasksetConfig):
    task: TwistingTaskConfig = TwistingTaskConfig()


class TwistingEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()  # pyright: ignore[reportInvalidTypeForm]
    other: vf.AgentConfig = vf.AgentConfig(  # pyright: ignore[reportInvalidTypeForm]
        client=vf.EvalClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="K"), model="m"
    )


class TwistingEnv(vf.Env[TwistingEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        if task.config.how == "both":
            await asyncio.gather(self.talk(task, agents.player), self.talk(task, agents.player))
        elif task.config.how == "other":
            await agents.other.run(task)
        elif task.config.how != "nobody":
            await self.talk(task, agents.player)

    async def talk(self, task: Any, agent: Any) -> None:
        async with agent.interaction(task) as talk:
            await talk.turn()
            await talk.turn("And then?")


class TwistingTaskset(vf.Taskset[TwistingTask, TwistingConfig]):
    def load(self) -> list[Any]:
        messages: Any = "What now?"
        if self.config.task.how == "few":
            roles = ("user", "assistant", "user")
            messages = [{"role": role, "content": role} for role in roles]
        return [TwistingTask(vf.TaskData(prompt=messages), self.config.task)]


__all__ = ["TwistingEnv", "TwistingTaskset"]
