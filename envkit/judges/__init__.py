"""Language models as judges: reward terms whose scores another model gives.

    judge = Judge(Endpoint("http://127.0.0.1:8000/v1", model="judge-32b"))
    terms = judge.rubric(
        Criterion(name="correct", text="The answer agrees with the reference."),
        Criterion(name="brief", text="The answer has no needless sentence.", weight=0.2),
    )
    env = envkit.ToolEnv(tools, tasks, terms)

A judge answers in a strict JSON form. One that does not, even when asked again, or that cannot be
reached, is an `EnvFault` of kind GRADER, never a reward of 0.
"""

from envkit.chat import CallFailure
from envkit.judges.cache import CacheStatistics
from envkit.judges.calls import CallLimits
from envkit.judges.endpoint import Endpoint
from envkit.judges.engine_model import EngineModel
from envkit.judges.judge import Judge
from envkit.judges.model import JudgeModel
from envkit.judges.verdict import Criterion, MalformedVerdict, Verdict, read_verdict

__all__ = [
    "CacheStatistics",
    "CallFailure",
    "CallLimits",
    "Criterion",
    "Endpoint",
    "EngineModel",
    "Judge",
    "JudgeModel",
    "MalformedVerdict",
    "Verdict",
    "read_verdict",
]
