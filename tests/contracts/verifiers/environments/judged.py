"""Scored by a judge at an address where nobody listens, or by a function that fails."""

import asyncio
import time
from importlib import import_module
from typing import Any

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers


class JudgedTaskConfig(vf.TaskConfig):
    how: str = "judge"


class JudgedData(vf.TaskData):
    answer: str


class JudgedTask(vf.Task[JudgedData, vf.State, JudgedTaskConfig]):
    @vf.reward
    async def judged(self, trace: Any) -> float:
        said = trace.last_reply
        match self.config.how:
            case "judge":
                config = vf.JudgeConfig(
                    model="m", base_url="http://127.0.0.1:9/v1", api_key_var="K"
                )
                return float("yes" in (await vf.Judge(config).complete(said)).text)
            case "fail":
                raise KeyError("no such column")
            case "nan":
                return float("nan")
            case "picky":
                return float("nan") if said == "nan" else 1.0 / (said in ("", self.data.answer))
            case "slow":
                time.sleep(0.5)
            case "late":
                await asyncio.sleep(60)
            case _:
                pass
        return 1.0

    async def finalize(self, trace: Any) -> None:
        if self.config.how == "finalize" and trace.last_reply != self.data.answer:
            raise OSError("no such file")


class JudgedConfig(vf.TasksetConfig):
    task: JudgedTaskConfig = JudgedTaskConfig()
    scoring_s: float | None = None


class JudgedEnv(vf.SingleAgentEnv):
    async def finalize(self, task: Any, episode: Any) -> None:
        if task.config.how == "crosswise":
            raise ZeroDivisionError("nothing to compare")


class JudgedTaskset(vf.Taskset[JudgedTask, JudgedConfig]):
    def load(self) -> list[Any]:
        timeout = vf.TaskTimeout(scoring=self.config.scoring_s)
        data = JudgedData(prompt="Who?", answer="me", timeout=timeout)
        return [JudgedTask(data, self.config.task)]


__all__ = ["JudgedEnv", "JudgedTaskset"]
