"""The record of one episode: its ledger, its turns and how it ended.

Trainers and reports derive everything they need from the segments. Axes: T train ids of the
trajectory's sequence, K turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import Message, images_of
from envkit.reply import THOUGHTS, FinishReason, Reply
from envkit.tokens.encoded import Encoded, Tensors, join_features
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.projection import Row, placeholder_row, rows_of, with_reward
from envkit.trajectory.segment import Segment, SegmentKind, column_of
from envkit.trajectory.sequence import (
    Branch,
    Origin,
    TokenSequence,
    branch_history,
    sequences_of,
)
from envkit.trajectory.stop import FaultRecord, StopReason

TIME_PARTS: Final = ("queue", "generate", "env", "encode")
"""Parts of a turn's time."""
TAIL: Final = "tail"
"""Key of the metadata: how the tail of a batch cut the episode, "drop" or "park"."""
TIMES_PARKED: Final = "times_parked"
"""Key of the metadata: how many batches have parked the episode's group."""
STALE_TOKENS: Final = "stale_tokens"
"""Key of the metadata: number of tokens that are masked because their weights were too old."""
AGENT: Final = "agent"
"""Key of the metadata: what happened to the requests of an agent behind the gateway. `sequences`
counts its sequences by kind, `untrained` its sampled tokens with mask 0 by reason."""
REWARD_THRESHOLD: Final = "reward_threshold"
"""Key of the metadata: the reward threshold that was in force; absent if none was declared."""
UNADJUSTED: Final = "unadjusted_reward"
"""Key of the metadata: the environment's own reward, if `adjust_rewards` changed it."""
ROLE: Final = "role"
"""Key of `Trajectory.metadata`: the role that the trajectory belongs to. None for an episode of
several agents that ended before any role replied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One model reply and the environment's answer to it. Times are wall-clock seconds."""

    turn: int
    prompt_tokens: int
    """Context length of the turn, images expanded."""
    purpose: str | None = None
    """Purpose of a reply that did not go to the environment, such as "summary"; else None."""
    call: int | None = None
    """Place in the order in which the model was asked, counted from 0. None if that is `turn`: only
    an agent that asks in several conversations has another order."""
    cached_tokens: int = 0
    """Prompt tokens that the engine took from its prefix cache."""
    response_tokens: int = 0
    observation_tokens: int = 0
    """Train ids appended after the reply; 0 after the last one."""
    image_count: int = 0
    """New images in the observation after the reply."""
    image_bytes: int = 0
    """Size of their files, in the original format, or as PNG for drawn images."""
    neutralised: int | None = None
    """Texts of the observation with control tokens or characters that no tokenizer accepts."""
    queue_seconds: float = 0.0
    generate_seconds: float = 0.0
    env_seconds: float = 0.0
    encode_seconds: float = 0.0
    engine_retries: int = 0
    resamples: int = 0
    """Replies discarded because they did not parse (`resample_on_parse_error`)."""
    response_text: str = ""
    finish_reason: str = ""
    opened: str | None = None
    """`Reply.opened`: the mark with which the prompt opened a thought; None if it opened none."""
    parse_error: str | None = None
    """`info["parse_error"]` of the environment; None if the reply parsed."""
    weight_version: str | None = None
    clamped_logprobs: int = 0
    """Log-probabilities slightly above 0 that were set to 0: half-precision rounding."""
    observation_hash: str | None = None
    """Hash of the step's outcome, to compare with a replay; None if the step did not complete."""
    env_retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Failed attempts of this turn's step by `FaultKind`, all recovered."""
    tool_call: Mapping[str, Any] | None = None
    """`info["tool_call"]` of the environment; None without one."""
    reward: float | None = None
    """None if the step did not complete."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The environment's `info` of the step, deterministic JSON data."""
    sanity: SanityStatus | None = None
    """How the tokens of the observation after the reply compare with a full render; None if they
    were not compared."""

    @property
    def reply(self) -> Reply:
        """The reply as the environment took it."""
        return recorded_reply(self.response_text, self.finish_reason, self.opened)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per part of the turn, in the order of `TIME_PARTS`."""
        return {
            "queue": self.queue_seconds,
            "generate": self.generate_seconds,
            "env": self.env_seconds,
            "encode": self.encode_seconds,
        }

    def with_observation(self, encoded: Encoded, seconds: float) -> "TurnRecord":
        """Return the record with the observation that a resumed episode appends."""
        return replace(self, **observed(encoded), encode_seconds=self.encode_seconds + seconds)

    def without_observation(self) -> "TurnRecord":
        """Return the record as the last turn, with nothing appended after its reply."""
        return replace(self, observation_tokens=0, image_count=0, image_bytes=0, neutralised=None)


_FINISHES: Final = {str(one): one for one in FinishReason}


def recorded_reply(text: str, finish_reason: str, opened: str | None) -> Reply:
    """Return a reply from the fields of its turn. What another program wrote there is "stop"."""
    finish = _FINISHES.get(finish_reason, FinishReason.STOP)
    return Reply(text=text, finish=finish, opened=opened if opened and opened in THOUGHTS else "")


def observed(encoded: Encoded) -> dict[str, Any]:
    """Return a turn's fields for the observation that was appended after its reply."""
    return {
        "observation_tokens": len(encoded.train_ids),
        "image_count": len(encoded.images),
        "image_bytes": sum(len(image.encoded(image.file_format)) for image in encoded.images),
        "neutralised": encoded.neutralised or None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, finished, faulted or aborted."""

    episode_id: str
    env_id: str
    seed: int | None
    group_id: str | None = None
    """Shared by the episodes of one task that a trainer compares; None outside a group."""
    task: Mapping[str, Any]
    reward: float | None
    """Sum of the turns' rewards; None after a fault and for an aborted episode."""
    stop_reason: StopReason
    fault: FaultRecord | None = None
    reset_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    initial_observation_hash: str | None = None
    """Equal across a group, which proves that its members started from the same state."""
    env_restarts: int = 0
    """Restarts of the whole episode with a new environment, after unrecoverable steps."""
    duration_seconds: float = 0.0
    engine: str = ""
    env_snapshot: bytes | None = field(default=None, repr=False)
    """State of the environment at an abort, for `resume`; None if it has no snapshots."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON data that the caller stores with it."""
    segments: tuple[Segment, ...]
    branches: tuple[Branch, ...] = ()
    """Where sequences other than the first one start (see `sequences`)."""
    origin: Origin | None = None
    """The trajectory that this one was forked from; None for an episode that is not a fork."""
    turns: tuple[TurnRecord, ...]
    messages: tuple[Message, ...]
    """The conversation for people to read; it is never tokenized again."""

    @property
    def is_faulted(self) -> bool:
        """Whether an infrastructure fault ended the episode: no reward, no trained tokens."""
        return self.stop_reason.is_fault

    @property
    def has_ledger(self) -> bool:
        """Whether its tokens are recorded; False for chat endpoints and text dumps."""
        return bool(self.segments) or not self.turns

    @property
    def token_count(self) -> int:
        """Train ids of all segments, over every sequence."""
        return sum([segment.token_count for segment in self.segments])

    @property
    def image_count(self) -> int:
        """Number of images that the model saw, over every sequence of the ledger.

        Without a ledger, it counts the images in the messages before the last reply.
        """
        if self.has_ledger:
            return sum([len(segment.images) for segment in self.segments])
        spoken = [n for n, entry in enumerate(self.messages) if entry["role"] == "assistant"]
        return len(images_of(self.messages[: spoken[-1]])) if spoken else 0

    @property
    def trained_token_count(self) -> int:
        """Tokens with mask 1; 0 for a faulted episode."""
        if self.is_faulted:
            return 0
        return sum([segment.trained_token_count for segment in self.segments])

    @property
    def own_segments(self) -> tuple[Segment, ...]:
        """Segments without those of the trajectory that this one was forked from."""
        return self.segments if self.origin is None else self.segments[self.origin.segments :]

    @property
    def own_turns(self) -> tuple[TurnRecord, ...]:
        """Turns without those of the trajectory that this one was forked from."""
        return self.turns if self.origin is None else self.turns[self.origin.turns :]

    @property
    def step_count(self) -> int:
        """Replies that went to the environment, including those before a fork."""
        return sum([turn.purpose is None for turn in self.turns])

    @property
    def sampled_token_count(self) -> int:
        """Tokens that this episode itself sampled, summaries and masked tokens included."""
        own = self.own_segments
        return sum(segment.token_count for segment in own if segment.kind is SegmentKind.MODEL)

    @property
    def call_order(self) -> tuple[int, ...]:
        """Indices of the turns in the order in which the model was asked."""
        calls = [turn.turn if turn.call is None else turn.call for turn in self.turns]
        return tuple(sorted(range(len(calls)), key=calls.__getitem__))

    def train_ids(self) -> tuple[int, ...]:
        """Return the whole sequence, (T,), placeholders expanded."""
        return column_of(self._single(), "train_ids")

    def wire_ids(self) -> tuple[int, ...]:
        """Return the whole sequence with one placeholder per image."""
        return column_of(self._single(), "wire_ids")

    def loss_mask(self) -> tuple[int, ...]:
        """Return the loss mask, (T,) of 0 and 1; all 0 for a faulted trajectory."""
        if self.is_faulted:
            return (0,) * sum(segment.token_count for segment in self._single())
        return column_of(self._single(), "loss_mask")

    def logprobs(self) -> tuple[float, ...]:
        """Return log-probabilities of the sampled distribution, (T,); 0.0 where mask is 0."""
        return column_of(self._single(), "logprobs")

    def images(self) -> tuple[Image, ...]:
        """Return every image of the ledger, in the order of the placeholders."""
        return tuple(image for segment in self._single() for image in segment.images)

    def tensors(self) -> Tensors:
        """Return the processor's outputs for `images()`, concatenated once per key."""
        return join_features(f for segment in self._single() for f in segment.features)

    def sequences(self) -> tuple[TokenSequence, ...]:
        """Return the sequences, each a run of tokens in one context; usually one.

        Raises:
            LedgerFault: A branch does not fit the ledger.
        """
        shared = 0 if self.origin is None else self.origin.segments
        return sequences_of(self.segments, self.branches, shared=shared)

    def seen_at(self, turn: int) -> tuple[Message, ...]:
        """Return the conversation as the model saw it, up to the reply of a turn.

        Args:
            turn: Index of the reply. Messages that an earlier rewrite dropped are left out, if the
                rewrite was recorded.

        Raises:
            LedgerFault: A branch refers to a message that the trajectory does not have.
        """
        replies = [n for n, entry in enumerate(self.messages) if entry["role"] == "assistant"]
        end = replies[turn] + 1 if turn < len(replies) else len(self.messages)
        for branch in reversed(self.branches):
            if self.segments[branch.segment].turn <= turn and branch.history:
                rest = self.messages[branch.message_count or 0 : end]
                return (*branch_history(branch, self.messages), *rest)
        return self.messages[:end]

    def steps(self, *, merge: bool = False) -> tuple[Row, ...]:
        """Return training rows; none if the model sampled nothing (see `projection`).

        Args:
            merge: False gives one row per model turn, with everything before it as its prompt.
                True gives one row for each run of turns whose prompts extend each other exactly.

        Raises:
            ConfigurationError: The trajectory has no ledger.
        """
        self._require_ledger()
        reward = None if self.is_faulted else self.reward
        return rows_of(self.sequences(), reward, is_trained=not self.is_faulted, merge=merge)

    def _require_ledger(self) -> None:
        if not self.has_ledger:
            raise ConfigurationError(
                f"episode {self.episode_id} has no token ledger, since {self.engine!r} recorded "
                "only text, as chat endpoints and text dumps do. It can be evaluated but not "
                "trained on; play its task with an engine that returns token ids, such as sglang"
            )

    def _single(self) -> Sequence[Segment]:
        self._require_ledger()
        if len(self.sequences()) > 1:
            raise ConfigurationError(
                "this trajectory has more than one sequence, because its history was rewritten or "
                "branched; use steps(merge=True) instead"
            )
        return self.segments


def role_of(trajectory: Trajectory) -> str | None:
    """Return the role of a trajectory; None if the environment has one agent."""
    role = trajectory.metadata.get(ROLE)
    return role if isinstance(role, str) else None


def whole_row(trajectory: Trajectory, *, filler_id: int) -> Row:
    """Return the trajectory as one row.

    A trajectory in which the model sampled nothing becomes a placeholder: its prompt, if any, and
    one filler token with mask 0. A faulted one has mask 0 everywhere.

    Args:
        trajectory: Its sequences, if it has several, must train one row, or none.
        filler_id: A token id of the model's vocabulary for placeholders, such as the
            end-of-sequence token.

    Raises:
        ConfigurationError: It is more than one row; use `step_rows(merge=True)`.
    """
    *others, row = step_rows(trajectory, filler_id=filler_id, merge=True)
    if others and not trajectory.is_faulted:
        raise ConfigurationError(
            f"this trajectory is {len(others) + 1} training rows, because its history was "
            "rewritten or branched; use step_rows(merge=True)"
        )
    return row


def step_rows(trajectory: Trajectory, *, filler_id: int, merge: bool = False) -> tuple[Row, ...]:
    """Return the trajectory as at least one row; the last one is marked and carries the reward.

    Args:
        trajectory: Any trajectory; it may be faulted.
        filler_id: As for `whole_row`.
        merge: As for `Trajectory.steps`.
    """
    reward = None if trajectory.is_faulted else trajectory.reward
    rows = trajectory.steps(merge=merge)
    if rows:
        return rows
    sequences = trajectory.sequences()
    prompt = sequences[-1].segments if sequences else ()
    return (placeholder_row(prompt, reward, filler_id=filler_id),)


def call_rows(trajectory: Trajectory, *, filler_id: int) -> tuple[Row, ...]:
    """Return one row per turn, in the order in which the model was asked.

    Rewards of turns are then in order too, whatever sequences the turns belong to. The last row is
    marked and carries the trajectory's reward.

    Args:
        trajectory: Any trajectory; it may be faulted.
        filler_id: As for `whole_row`.
    """
    rows = step_rows(trajectory, filler_id=filler_id)
    places = {turn: place for place, turn in enumerate(trajectory.call_order)}
    ordered = sorted(rows, key=lambda row: places[row.turns[0]] if row.turns else 0)
    return with_reward(ordered, rows[-1].reward)
