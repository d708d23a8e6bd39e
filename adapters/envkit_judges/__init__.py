"""Language models as judges: reward terms that another model scores.

    judge = Judge(Endpoint("http://127.0.0.1:8000/v1", model="judge-32b"))
    terms = judge.rubric(
        Criterion(name="correct", text="The answer agrees with the reference."),
        Criterion(name="brief", text="The answer has no needless sentence.", weight=0.2),
    )
    env = envkit.ToolEnv(tools, tasks, terms)

A judge answers in strict JSON. If it cannot be reached, the result is an `EnvFault` of kind GRADER,
never a reward of 0. If it gives no verdict on an answer, even when asked again, but gives one on an
answer that says nothing, the episode scores 0.
"""

from envkit_judges.calls import CallLimits, JudgeModel
from envkit_judges.endpoint import Endpoint
from envkit_judges.engine_model import EngineModel
from envkit_judges.judge import CacheStatistics, Judge
from envkit_judges.verdict import Criterion, Judgement, MalformedJudgement, read_verdict

__all__ = [
    "CacheStatistics",
    "CallLimits",
    "Criterion",
    "Endpoint",
    "EngineModel",
    "Judge",
    "JudgeModel",
    "Judgement",
    "MalformedJudgement",
    "read_verdict",
]
