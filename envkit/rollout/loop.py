"""The one rollout loop: an environment, an engine, a codec, and the record of what they did.

Every engine and every trainer goes through `play`. The order of events in a turn:

1. limits are checked (see `limits.py` for the order);
2. the engine samples; its ids go into the ledger as they came;
3. the reply is decoded and the environment steps, off the event loop, under the retry budget;
4. the reward is recorded; the episode ends if the environment says so or a limit is reached;
5. the observation is encoded as a delta and appended.

An infrastructure failure becomes a faulted trajectory: no reward, no trained token.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envkit.env import Env, Observation, PolicyContext, Step
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    EnvFault,
    Fault,
    FaultKind,
    LedgerFault,
    TemplateError,
)
from envkit.messages import Message, check_message, message
from envkit.rollout.engine import (
    Engine,
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
    Sampling,
)
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits, observation_stop, room_for_reply
from envkit.rollout.outcome import observation_hash, step_hash
from envkit.rollout.recovery import EpisodeLostError, RecoveringEnv
from envkit.rollout.retries import RetryBudget
from envkit.rollout.scribe import Scribe, TurnClock
from envkit.rollout.workers import WorkerPool
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.tokens import ChatCodec, Encoded
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
