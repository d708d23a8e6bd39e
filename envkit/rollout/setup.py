"""The components and settings of a rollout and of its episodes."""

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from envkit.agents.rewards import AdjustRewards
from envkit.errors import ConfigurationError, EnvFault, FaultKind, shown
from envkit.rollout.engine import Engine, LogprobKind, Sampling
from envkit.rollout.history import HistorySetting, check_codec
from envkit.rollout.limits import Limits, RetryBudget
from envkit.rollout.self_check import SelfCheck
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit.tokens.codec import ChatCodec

if TYPE_CHECKING:
    from envkit.rollout.host import EnvHost
    from envkit.rollout.interrupt import Interrupt
    from envkit.trajectory.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """Settings per role for environments with several agents."""

    engines: Mapping[str, Engine] = field(default_factory=dict[str, Engine])
    """Engines by role, with the same tokenizer and template as the rollout's own engine, which
    plays all other roles."""
    samplings: Mapping[str, Sampling] = field(default_factory=dict[str, Sampling])
    """Sampling by role; all other roles use the rollout's own."""
    adjust_rewards: AdjustRewards | None = None
    """None keeps the environment's rewards."""


class PlayAgent(Protocol):
    """Plays episodes with an agent that asks for the model's replies itself."""

    async def __call__(
        self,
        setup: "Setup",
        spec: "EpisodeSpec",
        host: "EnvHost",
        interrupt: "Interrupt",
    ) -> "tuple[Trajectory, ...]":
        """Play one episode; the arguments are those of `play_any`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The components and settings that all episodes of a rollout share."""

    engine: Engine
    codec: ChatCodec | None
    """None for an engine that returns text: its trajectories have no ledger."""
    limits: Limits
    retries: RetryBudget
    sampling: Sampling
    roles: RolePlan = field(default_factory=RolePlan)
    self_check: SelfCheck = field(default_factory=SelfCheck)
    history: HistorySetting = None
    """The history policy; None uses the environment's own setting."""
    agent: PlayAgent | None = None
    """Plays the episodes instead of the rollout loop; None uses the loop."""
    joint_retries: RetryBudget | None = None
    """For a role, the budget of its joint environment; None if there is one agent."""

    @property
    def policy_timeout_s(self) -> float | None:
        """Deadline of a call to a history policy. A role's policy never waits for its siblings."""
        return (self.joint_retries or self.retries).step_timeout_s

    def __post_init__(self) -> None:
        """Reject combinations that would record wrong numbers.

        Raises:
            ConfigurationError: The engine reports raw log-probabilities and the temperature is not
                1, there are token limits without a codec, or the history policy needs another
                codec.
        """
        counted = ("max_response_tokens", "max_sampled_tokens", "max_context_tokens")
        given = [name for name in counted if getattr(self.limits, name) is not None]
        if self.codec is None and given:
            raise ConfigurationError(
                f"limits.{given[0]} counts tokens, which needs the codec of a model: a chat "
                "endpoint supports limits.max_turns, limits.max_tokens_per_turn and "
                "limits.max_images"
            )
        check_codec(self.history, self.codec)
        for role in self.roles.engines.keys() | self.roles.samplings.keys():
            self.of_role(role)
        if not hasattr(self.engine, "logprob_kind"):  # a caller may pass anything
            raise ConfigurationError(
                f"an engine must be an envkit.rollout.Engine, got {shown(self.engine)}; "
                "ScriptedEngine(codec, policy) plays a policy"
            )
        if self.engine.logprob_kind is LogprobKind.RAW and self.sampling.temperature != 1.0:
            raise ConfigurationError(
                f"engine {self.engine.name!r} reports raw log-probabilities, which match "
                f"the sampled distribution only at temperature 1, got {self.sampling.temperature}; "
                "start the server with processed log-probabilities, or sample at temperature 1"
            )

    def of_role(self, role: str) -> "Setup":
        """Return the setup for one role.

        A role waits for its siblings, so its steps have no deadlines. The deadlines of the joint
        environment and of the episode apply to all roles together. Sampling seeds differ between
        roles.
        """
        sampling = self.roles.samplings.get(role, self.sampling)
        if sampling.seed is not None:
            sampling = replace(sampling, seed=derive_seed(sampling.seed, role))
        return replace(
            self,
            engine=self.roles.engines.get(role, self.engine),
            limits=replace(self.limits, episode_timeout_s=None),
            retries=replace(
                self.retries, step_timeout_s=None, reset_timeout_s=None, max_episode_restarts=0
            ),
            sampling=sampling,
            roles=RolePlan(),
            agent=None,
            joint_retries=self.retries,
        )


@dataclass(slots=True)
class GroupStart:
    """Proof that the members of a group start from the same state."""

    expected: str | None = None
    """Hash of the initial observation of the first member that started; None before that."""

    def compare(self, found: str) -> None:
        """Compare a member's initial observation with that of earlier members.

        Raises:
            EnvFault: They differ.
        """
        if self.expected is not None and found != self.expected:
            raise EnvFault(
                "a member of the group started from a different observation than its siblings, so "
                "their rewards cannot be compared; reset() must be a function of seed and task",
                kind=FaultKind.PERMANENT,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """One episode to play or to continue. By default, it draws a task and is outside any group."""

    env_id: str = ""
    """Name of the environment in the record; empty uses the environment's own."""
    seed: int = field(default_factory=lambda: secrets.randbits(31))
    """Seed of the environment."""
    task: Task | None = None
    """None draws one with the seed."""
    episode_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies the episode, also to the engine."""
    group_id: str | None = None
    """Shared by the episodes that a trainer compares."""
    group_start: GroupStart | None = None
    """Shared by a group's members, which must start from the same observation."""
    member: int = 0
    """Index in the group; makes sampling seeds differ between its members."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON data to store with the record."""
    limits: Limits | None = None
    """Replace the player's limits; None keeps them."""
    sampling: Sampling | None = None
    """Replaces the player's sampling; None keeps it."""
    earlier: "Trajectory | None" = None
    """An aborted trajectory to continue, which only the loop can have recorded (see `can_resume`);
    None starts the episode."""
    snapshots: dict[int, bytes] | None = None
    """Filled with the environment's state before each turn, by the number of replies that it has
    answered, if it supports snapshots. The engine's session stays open for forks, and the caller
    ends it with `Player.end_session`. None saves no states."""

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ConfigurationError: It is not an integer of at least 0.
        """
        object.__setattr__(self, "seed", checked_seed(self.seed))
