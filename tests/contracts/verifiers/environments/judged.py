"""Scored by a judge at an address where nobody listens, or by a function that fails."""

import time
from importlib import import_module
from typing import Any

from datasets import Dataset
from openai import AsyncOpenAI

vf: Any = import_module("verifiers")  # this folder has the library's name for type checkers


def load_environment(how: str = "judge") -> Any:
    dataset = Dataset.from_list([{"question": "Who?", "answer": "me"}])
    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    judge = vf.JudgeRubric(judge_client=None if how == "keyless" else client)

    async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        return float("yes" in await judge(prompt, completion, answer, state))

    def failing(completion: Any, **kwargs: Any) -> float:
        raise KeyError("no such column")

    def not_finite(completion: Any) -> float:
        return float("nan")

    def picky(completion: Any, answer: str) -> float:
        said = completion[-1]["content"]
        return float("nan") if said == "nan" else 1.0 / (said in ("", answer))

    def slow(completion: Any) -> float:
        time.sleep(0.5)
        return 1.0

    async def together(completions: list[Any], **kwargs: Any) -> list[float]:
        return [1.0 for _ in completions]

    judge.add_reward_func(judged)
    functions = {
        "fail": failing,
        "nan": not_finite,
        "slow": slow,
        "picky": picky,
        "group": together,
    }
    rubric = vf.Rubric(funcs=[functions[how]]) if how in functions else judge
    if how == "fail":
        fine = vf.Rubric(funcs=[lambda completion: 1.0])
        rubric = vf.RubricGroup([fine, rubric])
    if how in ("pool", "late"):
        rubric = vf.MathRubric(timeout_seconds=5 if how == "pool" else 0)
        if how == "pool":
            rubric.executor.shutdown()
    return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
