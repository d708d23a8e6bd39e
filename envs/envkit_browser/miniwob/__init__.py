"""MiniWoB++ in a real browser, as `computer-use-miniwob-v0` and, task by task, as `miniwob/...`."""

from envkit.collection import Collection
from envkit.registration import EnvSpec
from envkit_browser.miniwob.env import MiniwobEnv
from envkit_browser.miniwob.plans import PLANS
from envkit_browser.miniwob.scoring import Scoring
from envkit_browser.miniwob.source import MiniwobTasks
from envkit_browser.miniwob.tasks import EXCLUDED, PARTIAL, TASKS, Kind, TaskEntry

SPEC = EnvSpec(
    id="computer-use-miniwob-v0",
    entry_point="envkit_browser.miniwob:MiniwobEnv",
    description="Do MiniWoB++'s web tasks in a real browser by mouse and keyboard.",
    reward_threshold=1.0,
)
COLLECTION = Collection(
    entry_point="envkit_browser.miniwob:MiniwobEnv",
    argument="task",
    members=lambda: {f"{name}-v0": _description(entry) for name, entry in TASKS.items()},
    description="One web task of MiniWoB++ in a real browser.",
    reward_threshold=1.0,
)


def _description(entry: TaskEntry) -> str:
    return f"{entry.name.replace('-', ' ').capitalize()}: {entry.kind}, {entry.turns} replies."


__all__ = [
    "COLLECTION",
    "EXCLUDED",
    "PARTIAL",
    "PLANS",
    "SPEC",
    "TASKS",
    "Kind",
    "MiniwobEnv",
    "MiniwobTasks",
    "Scoring",
    "TaskEntry",
]
