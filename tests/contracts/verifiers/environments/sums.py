"""Procedural questions of reasoning-gym, one turn."""

from importlib import import_module
from typing import Any

import reasoning_gym

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers
gym: Any = reasoning_gym


class SumsData(vf.TaskData):
    entry: dict[str, Any]


class SumsTask(vf.Task[SumsData]):
    @vf.reward
    async def correct(self, trace: Any) -> float:
        answer = gym.utils.extract_answer(trace.last_reply)
        name = self.data.entry["metadata"]["source_dataset"]
        return float(gym.get_score_answer_fn(name)(answer, self.data.entry))

    @vf.metric
    async def has_tags(self, trace: Any) -> float:
        return float("<answer>" in trace.last_reply)


class SumsConfig(vf.TasksetConfig):
    gym: str = "chain_sum"
    seed: int = 0
    size: int = 20


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> list[Any]:
        system = gym.utils.SYSTEM_PROMPTS["default"]
        entries = gym.create_dataset(self.config.gym, size=self.config.size, seed=self.config.seed)
        return [
            SumsTask(SumsData(prompt=entry["question"], system_prompt=system, entry=entry))
            for entry in entries
        ]


__all__ = ["SumsTaskset"]
