"""Players of slime's Ray workers, with slime's bookkeeping for every request.

The trainer's process keeps its state: the abort flag fires the interrupt, which reaches the
workers. There are no trace spans of single requests, because their sinks are in the trainer's
process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory
from envkit_slime.engine import Call, GenerateState, SlimeEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecipe:
    """A picklable recipe for a worker's player."""

    base_url: str
    engine: Mapping[str, Any]
    """Arguments of `SlimeEngine`."""
    processor: Any
    """The trainer's processor, or its tokenizer for a text model."""
    codec: Mapping[str, Any]
    """Further arguments of `ChatCodec`."""
    config: RolloutConfig
    """Without workers."""
    wants_experts: bool

    def __call__(self) -> Player:
        """Return the player of this process."""
        engine = SlimeEngine(self.base_url, **self.engine)
        codec = ChatCodec(self.processor, **self.codec)
        return WorkerPlayer(engine, codec, self.config, wants_experts=self.wants_experts)


class WorkerPlayer(Player):
    """A player that tells the engine each request's sample, as `roll` does."""

    def __init__(
        self, engine: SlimeEngine, codec: ChatCodec, config: RolloutConfig, *, wants_experts: bool
    ) -> None:
        """Make a player.

        Args:
            engine: Reads the call of each sample.
            codec: As for `Player`.
            config: As for `Player`.
            wants_experts: Whether the run replays the routing of experts.
        """
        super().__init__(engine, codec, config)
        self._wants_experts = wants_experts

    async def play_spec(
        self, env: AnyEnv | EnvFactory, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        """Play or continue the episode of a sample, as `Player.play_spec`."""
        call = Call(
            state=_WorkerState(interrupt),
            interrupt=interrupt,
            wants_experts=self._wants_experts,
            wants_top_p=wants_top_p(spec.sampling),
        )
        if spec.earlier is not None:
            call.take_over(spec.earlier)
        with call.current():
            return await super().play_spec(env, spec, interrupt)


def wants_top_p(sampling: Sampling | None) -> bool:
    """Return whether a request needs the ids that top-p kept."""
    custom: Any = None if sampling is None else sampling.extras.get("custom_params")
    return "return_top_p_token_ids" in (custom or ())


class _WorkerState(GenerateState):
    """The trainer's abort flag in a worker, set by the interrupt."""

    tokenizer = processor = None

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt

    @property
    def aborted(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the trainer has enough samples."""
        return self._interrupt.reason is not None
