"""A session behind a running gateway, and its record."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fakes.agent_clients import ChatClient
from fakes.odd_engine import OddEngine, Write, assert_exact

from envkit.env import Env
from envkit.rollout.engine import Sampling
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits, RetryBudget
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit.turns import Turn as EnvTurn
from envkit_gateway import Gateway, Session, SessionLimits
from envkit_gateway.credit import Credit
from envkit_gateway.recording import AgentEnd, trajectory_of

CALL = (
    '<tool_call>\n{"name": "add", "arguments": {"b":  2.0, "a": 1, "c": "\\u00e9"}}\n</tool_call>'
)


def call_once(context: str) -> str:
    """Call the tool for each user message that has no result yet; otherwise answer."""
    tail = context.rsplit("<|im_start|>assistant", 2)[-2:][0]
    if '"add"' in context and "<tool_response>" not in tail:
        return f"<think>I think  hard \n</think>\n\nI will add.\n{CALL}"
    return "  It is done. \n"


class Silent(Env):
    """The environment of a session without one."""

    def on_reset(self, task: Task) -> EnvTurn:
        return EnvTurn("")


@dataclass
class Run:
    """A session and what its engine saw."""

    gateway: Gateway
    session: Session
    engine: Any
    """An `OddEngine`, or the given one."""

    def client(self, kind: Callable[..., Any], **options: Any) -> Any:
        return kind(self.gateway.url, self.session.key, **options)

    async def disconnected(self, *, choices: int = 1) -> ChatClient:
        """Return a client that left while the engine sampled its choices, which then end."""
        gate = self.engine.gate = asyncio.Event()
        client = ChatClient(self.gateway.url, self.session.key)
        client.user("one", None)
        body = client.body() if choices == 1 else {**client.body(), "n": choices}
        cut = asyncio.create_task(client.post(body))
        while len(self.engine.requests) < choices:
            await asyncio.sleep(0.01)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        await asyncio.sleep(0.05)
        gate.set()
        return client

    def trajectory(
        self, reward: float = 1.0, *, earlier: tuple[Credit, ...] = (), **options: Any
    ) -> Trajectory:
        """Return the sound record of the session."""
        outcome = AgentEnd(stop_reason=StopReason.TERMINATED, reward=reward, earlier=earlier)
        record = EpisodeRecord()
        trajectory = trajectory_of(self.session, outcome, record, **options)
        assert check_trajectory(trajectory) == ()
        assert_exact(trajectory, self.engine)
        sampled = sum(len(reply) for _, reply in self.engine.seen)
        assert trajectory.sampled_token_count == sampled
        untrained = trajectory.metadata["agent"]["untrained"].values()
        assert trajectory.trained_token_count == sampled - sum(untrained)
        trained = sum(sum(row.loss_mask) for row in trajectory.steps(merge=True))
        assert trained == trajectory.trained_token_count
        return trajectory


@asynccontextmanager
async def serving(
    write: Write = call_once,
    *,
    limits: Limits | None = None,
    session_limits: SessionLimits | None = None,
    faults: tuple[int, ...] = (),
    sampling: Sampling | None = None,
    codec: ChatCodec | None = None,
    engine: Any = None,
    retries: int = 0,
) -> AsyncGenerator[Run]:
    """Serve one session, by default with an odd engine and a vision model's template."""
    if codec is None:
        from fakes.codecs import vision_codec  # needs transformers

        codec = vision_codec()
    pool = WorkerPool()
    engine = engine or OddEngine(codec, write, faults=faults)
    setup = Setup(
        engine=engine,
        codec=codec,
        limits=limits or Limits(),
        retries=RetryBudget(max_engine_retries_per_turn=retries),
        sampling=sampling or Sampling(max_new_tokens=4096),
    )
    session = Session(
        setup, EpisodeSpec(env_id="agent", seed=0), pool, Interrupt(), env=Silent(),
        limits=session_limits,
    )  # fmt: skip
    try:
        async with Gateway().running() as gateway, gateway.serving(session):
            yield Run(gateway, session, engine)
    finally:
        pool.close()
