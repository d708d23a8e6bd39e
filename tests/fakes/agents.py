"""Toy environments with several agents: a dialogue, and talk that follows a random plan."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from fakes.codecs import text_codec
from fakes.envs import register_missing

from envkit.agents import MultiAgentEnv, by_role
from envkit.env import Capabilities, Policy, PolicyContext, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, GenerateRequest, RetryBudget, ScriptedEngine
from envkit.tasks import ListSource, Task

QUICK = Backoff(initial_s=0.0001, maximum_s=0.001)
BUDGET = RetryBudget(backoff=QUICK, max_env_retries_per_turn=3, max_env_retries_per_episode=12)
PROMISES = Capabilities(replay_safe=True, deterministic=True, thread_safe=True)


def slowly(request: GenerateRequest) -> float:
    """Give every reply a latency of 5 seconds."""
    del request
    return 5.0


class GuessEnv(MultiAgentEnv):
    """A dialogue: the asker asks the keeper about a number, until it names the number.

    The keeper is rewarded when the game is over, for an answer that was given long before.
    """

    capabilities: ClassVar[Capabilities] = PROMISES
    roles = ("asker", "keeper")

    def __init__(self, *, max_turns: int = 12, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.prompts = {"keeper": "You keep the number."}
        self.tasks = ListSource([{"number": number} for number in range(1, 9)])
        self._won = False

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        self._won = False
        return {"asker": Turn("Find the number from 1 to 8.")}

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        ((role, reply),) = replies.items()
        if reply is None:
            return {}
        if role == "keeper":
            return {"asker": Turn(f"The keeper says: {reply}")}
        number = self.task["number"]
        if reply.strip() == str(number):
            self._won = True
            return {"asker": Turn("Yes.", reward=1.0, done=True)}
        return {"keeper": Turn(f"The number is {number}. They say {reply[:20]!r}.")}

    def on_end(self) -> Mapping[str, float]:
        spoke = any(entry["role"] == "assistant" for entry in self.conversations.get("keeper", ()))
        return {"keeper": 0.5 if self._won else 0.25} if spoke else {}

    def oracle(self) -> Policy:
        def write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
            if role == "keeper":
                return f"it is {env.task['number']}"
            text = str(context.messages[-1]["content"])
            said = [word for word in text.replace("'", " ").split() if word[:1].isdigit()]
            return said[-1].rstrip("}].") if "keeper says" in text and said else "what is it?"

        return by_role(write)


def guess_engine() -> ScriptedEngine:
    """Return an engine that plays `GuessEnv` well."""
    return ScriptedEngine(text_codec(), GuessEnv().oracle())


class TalkEnv(MultiAgentEnv):
    """Who speaks, who ends and who is rewarded is drawn from the episode's seed.

    `heard` is what the environment was told, with every reply exactly as it came.
    """

    capabilities: ClassVar[Capabilities] = PROMISES

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        count: int = 3,
        rounds: int = 6,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=rounds, render_mode=render_mode)
        self.roles = tuple(f"role-{n}" for n in range(count))
        self.prompts = {self.roles[0]: "You begin."}
        self._plan = plan or FaultPlan()
        self._rng = random.Random(0)
        self.heard: list[dict[str, Any]] = []
        self._over: set[str] = set()
        self._spoken: set[str] = set()

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        self._rng = random.Random(int(self.np_random.integers(2**31)))
        self.heard, self._over, self._spoken = [], set(), set()
        first = self._rng.sample(self.roles, self._rng.randint(1, len(self.roles)))
        return {role: Turn(f"{role}, begin.") for role in first}

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        self.heard.append(dict(replies))
        key = self.step_key
        if key is not None:
            first = tuple(sorted(self.heard[0].items()))
            kind = self._plan.draw("world", first, key.turn, attempt=key.attempt)
            if kind is not None:
                raise EnvFault(f"injected {kind}", kind=FaultKind(kind))
        self._over |= {role for role, reply in replies.items() if reply is None}
        self._spoken |= {role for role, reply in replies.items() if reply is not None}
        turns: dict[str, Turn] = {}
        for role in self.roles:
            if role in self._over or self._rng.random() < 0.4:
                continue
            ends = role in self._spoken and self._rng.random() < 0.2
            reward = 0.25 if role in self._spoken else 0.0
            turns[role] = Turn(
                f"Round {len(self.heard)}.", reward=reward, done=ends, info={"heard": self.heard}
            )
            if ends:
                self._over.add(role)
        return turns

    def on_end(self) -> Mapping[str, float]:
        return {role: 0.125 * n for n, role in enumerate(self.roles) if role in self._spoken}


def register_agents() -> None:
    """Make `toy-guess-v0` known; a second call changes nothing."""
    register_missing({"toy-guess-v0": GuessEnv})


def speak(context: PolicyContext) -> str:
    """Policy: a reply that names its role and turn, of varying length."""
    env: Any = context.env
    return f"{env.role} says {context.turn} " + "word " * (context.seed % 5)
