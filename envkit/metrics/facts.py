"""Facts about one episode for the metrics, stored as plain data in a trainer's sample."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, cast

from msgspec import Struct, field
from msgspec.structs import asdict

from envkit.errors import ConfigurationError, LedgerFault
from envkit.grading import UNGRADED
from envkit.success import finite
from envkit.tokens.sanity import LONG_IDS, SanityStatus
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.success import success_of
from envkit.trajectory.trajectory import (
    AGENT,
    STALE_TOKENS,
    TAIL,
    TIME_PARTS,
    TIMES_PARKED,
    Trajectory,
    TurnRecord,
    role_of,
)

_FAULTS: Final = frozenset(one.value for one in StopReason if one.is_fault)
_TRUNCATIONS: Final = frozenset(one.value for one in StopReason if one.is_truncation)
_SECONDS: Final = {part: attrgetter(f"{part}_seconds") for part in TIME_PARTS}


class EpisodeFacts(Struct, frozen=True, kw_only=True):
    """Numbers about one episode, without tokens, texts or images.

    A struct, because creating a frozen dataclass of so many fields takes six times as long, and a
    run has one per episode.
    """

    env_id: str = ""
    role: str | None = None
    """Role in an environment with several agents."""
    group_id: str | None = None
    stop_reason: str
    """A `StopReason`."""
    fault: Mapping[str, str] | None = None
    """`where`, `kind` and `message`; None without a fault."""
    reward: float | None = None
    """None after a fault or an abort."""
    success: bool | None = None
    """Whether it solved its task; None if that is undefined (see `success_of`)."""
    reward_terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Reward terms from `info["reward_terms"]`, each summed over turns."""
    is_ungraded: bool = False
    """Whether its reward is 0 because the grader failed on what the policy left."""
    turns: int = 0
    """Replies that reached the environment. For a fork, this, tool calls and parse errors include
    the turns before it. Tokens, images, times and retries are its own."""
    sequences: int = 1
    """Contexts in which the model sampled."""
    rewrites: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many sequences started, by the branch's reason."""
    agent_sequences: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sequences of an agent behind the gateway by kind: "main", "sub-agent", "side"."""
    agent_untrained: Mapping[str, int] = field(default_factory=dict[str, int])
    """Its sampled tokens with mask 0, by reason: "side", "lost", "superseded"."""
    agent_unenforced: Mapping[str, int] = field(default_factory=dict[str, int])
    """Its requests that asked for what no engine enforces, by setting, such as "tool_choice"."""
    speakers: Mapping[str, int] = field(default_factory=dict[str, int])
    """Observations after a reply by who wrote them, where `info["speaker"]` says so."""
    tool_calls: int = 0
    parse_errors: int = 0
    images: int = 0
    image_bytes: int = 0
    prompt_length: int | None = None
    """Tokens of the first prompt, images expanded; None without one."""
    response_tokens: int = 0
    """Sampled tokens."""
    observation_tokens: int = 0
    observations: int = 0
    """Observations after a reply that were appended, each of which may be compared with a full
    render."""
    trained_tokens: int = 0
    stale_tokens: int = 0
    """Sampled tokens masked because their weights were too old."""
    prompt_tokens: int = 0
    """Tokens of all turns' contexts."""
    cached_tokens: int = 0
    """Context tokens served from a prefix cache."""
    clamped_logprobs: int = 0
    neutralised: int = 0
    sanity: Mapping[str, int] = field(default_factory=dict[str, int])
    long_observations: int = 0
    """The observations in conversations above `LONG_IDS`."""
    long_checked: int = 0
    """Those of them that were compared."""
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Retries by `FaultKind`, and "engine", "resample" and "restart"."""
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Durations by part of `TIME_PARTS`, one per turn."""
    duration_seconds: float = 0.0
    weight_versions: tuple[str, ...] = ()
    """Distinct versions of the weights that sampled."""
    tail: str | None = None
    """How the batch's tail ended it, "drop" or "park"; None for an episode of the batch."""
    times_parked: int = 0
    """Number of earlier batches that parked it."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> "EpisodeFacts":
        """Return the facts of a trajectory."""
        turns, fault = trajectory.own_turns, trajectory.fault
        has_ledger, metadata = trajectory.has_ledger, trajectory.metadata
        sampled = observed = observations = images = 0
        for segment in trajectory.own_segments:
            images += len(segment.images)
            if segment.kind is SegmentKind.MODEL:
                sampled += segment.token_count
            elif segment.kind is SegmentKind.OBSERVATION:
                observed += segment.token_count
                observations += 1
        long = _long(trajectory)
        return cls(
            env_id=trajectory.env_id,
            role=role_of(trajectory),
            group_id=trajectory.group_id,
            stop_reason=trajectory.stop_reason.value,
            fault=None
            if fault is None
            else {"where": fault.where.value, "kind": fault.kind.value, "message": fault.message},
            reward=trajectory.reward,
            success=success_of(trajectory),
            reward_terms=reward_terms(trajectory),
            is_ungraded=any(turn.info.get(UNGRADED) for turn in trajectory.turns),
            turns=trajectory.step_count,
            sequences=_sequences(trajectory),
            rewrites=_rewrites(trajectory),
            agent_sequences=_agent_counts(trajectory, "sequences"),
            agent_untrained=_agent_counts(trajectory, "untrained"),
            agent_unenforced=_agent_counts(trajectory, "unenforced"),
            speakers=_speakers(trajectory.turns),
            tool_calls=sum([turn.tool_call is not None for turn in trajectory.turns]),
            parse_errors=sum([turn.parse_error is not None for turn in trajectory.turns]),
            images=images if has_ledger else trajectory.image_count,
            image_bytes=sum([turn.image_bytes for turn in turns]),
            prompt_length=_prompt_length(trajectory),
            response_tokens=sampled
            if has_ledger
            else sum([turn.response_tokens for turn in turns]),
            observation_tokens=observed,
            observations=observations,
            trained_tokens=trajectory.trained_token_count,
            stale_tokens=_whole(metadata, STALE_TOKENS),
            prompt_tokens=sum([turn.prompt_tokens for turn in turns]),
            cached_tokens=sum([min(turn.cached_tokens, turn.prompt_tokens) for turn in turns]),
            clamped_logprobs=sum([turn.clamped_logprobs for turn in turns]),
            neutralised=sum([turn.neutralised or 0 for turn in turns]),
            sanity=_sanity(turns),
            long_observations=len(long),
            long_checked=sum([one not in (None, SanityStatus.UNCHECKED) for one in long]),
            retries=_retries(trajectory),
            seconds=_seconds(turns),
            duration_seconds=trajectory.duration_seconds,
            weight_versions=tuple(
                dict.fromkeys(
                    [turn.weight_version for turn in turns if turn.weight_version is not None]
                )
            ),
            tail=tail if isinstance(tail := metadata.get(TAIL), str) else None,
            times_parked=_whole(metadata, TIMES_PARKED),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "EpisodeFacts":
        """Read the result of `to_json`; unknown keys are ignored.

        Raises:
            ConfigurationError: The data is not facts, or has an unknown stop reason.
        """
        known = set(cls.__struct_fields__)
        try:
            StopReason(data["stop_reason"])
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                f"facts of an episode must have a known stop_reason, got {dict(data)!r:.80}"
            ) from error
        return cls(**{key: value for key, value in data.items() if key in known})

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @property
    def is_faulted(self) -> bool:
        """Whether infrastructure ended the episode."""
        return self.stop_reason in _FAULTS

    @property
    def is_aborted(self) -> bool:
        """Whether it was aborted."""
        return self.stop_reason == StopReason.ABORTED.value

    @property
    def is_truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.stop_reason in _TRUNCATIONS


def _sanity(turns: Sequence[TurnRecord]) -> dict[str, int]:
    found: dict[str, int] = {}
    for turn in turns:
        if turn.sanity is not None:
            found[turn.sanity.value] = found.get(turn.sanity.value, 0) + 1
    return found


def _retries(trajectory: Trajectory) -> dict[str, int]:
    found: Counter[str] = Counter()
    if trajectory.env_restarts:
        found["restart"] = trajectory.env_restarts
    for turn in trajectory.own_turns:
        if turn.env_retries:
            found.update(turn.env_retries)
        if turn.engine_retries:
            found["engine"] += turn.engine_retries
        if turn.resamples:
            found["resample"] += turn.resamples
    return {kind: count for kind, count in found.items() if count}


def _seconds(turns: Sequence[TurnRecord]) -> dict[str, tuple[float, ...]]:
    if not turns:
        return {}
    return {part: tuple(map(seconds, turns)) for part, seconds in _SECONDS.items()}


def _speakers(turns: Sequence[TurnRecord]) -> dict[str, int]:
    given: list[Any] = [turn.info.get("speaker") for turn in turns]
    return dict(Counter(speaker for speaker in given if isinstance(speaker, str)))


def _sequences(trajectory: Trajectory) -> int:
    """Return the number of contexts in which the episode's own tokens were sampled, at least 1."""
    if not trajectory.branches:
        return 1
    try:
        sequences = trajectory.sequences()
    except LedgerFault:  # an invalid tree, which verify reports
        return 1 + len(trajectory.branches)
    return max(1, sum(any(one.kind is SegmentKind.MODEL for one in each.own) for each in sequences))


def _long(trajectory: Trajectory) -> list[SanityStatus | None]:
    """Return how each observation in a long conversation compared; None if it was not compared."""
    if trajectory.token_count <= LONG_IDS:
        return []
    first = 0 if trajectory.origin is None else trajectory.origin.segments
    after = {turn.turn + 1: turn.sanity for turn in trajectory.turns}
    found: list[SanityStatus | None] = []
    length = 0
    for place, segment in enumerate(trajectory.segments):
        if segment.kind is SegmentKind.PROMPT:
            length = 0
        elif segment.kind is SegmentKind.OBSERVATION and length > LONG_IDS and place >= first:
            found.append(after.get(segment.turn))
        length += len(segment.array("wire_ids"))
    return found


def _rewrites(trajectory: Trajectory) -> dict[str, int]:
    if not trajectory.branches:
        return {}
    first = 0 if trajectory.origin is None else trajectory.origin.segments
    return dict(Counter(one.reason for one in trajectory.branches if one.segment >= first))


def _whole(metadata: Mapping[str, Any], name: str) -> int:
    """Return a number of the metadata, which may come from anybody; 0 for anything else."""
    value = metadata.get(name, 0)
    return value if type(value) is int else 0


def _agent_counts(trajectory: Trajectory, name: str) -> dict[str, int]:
    about: Any = trajectory.metadata.get(AGENT)
    found: Any = cast("dict[str, Any]", about).get(name) if isinstance(about, dict) else None
    if not isinstance(found, dict):
        return {}
    counts = cast("dict[object, object]", found)
    return {
        str(key): value
        for key, value in counts.items()
        if isinstance(value, int) and finite(value) is not None
    }


def _prompt_length(trajectory: Trajectory) -> int | None:
    if trajectory.segments:
        return trajectory.segments[0].token_count
    return None if trajectory.has_ledger else trajectory.turns[0].prompt_tokens


def reward_terms(trajectory: Trajectory) -> dict[str, float]:
    """Return the sums of the finite reward terms that an environment reported, by name."""
    terms: dict[str, float] = {}
    for turn in trajectory.turns:
        for name, value in turn_terms(turn).items():
            terms[name] = terms.get(name, 0.0) + value
    return terms


def turn_terms(turn: TurnRecord) -> dict[str, float]:
    """Return the finite reward terms of one turn, by name; anything else there is left out."""
    given: Any = turn.info.get("reward_terms")
    if type(given) is not dict and not isinstance(given, Mapping):
        return {}
    named = cast("dict[object, object]", given)
    return {str(name): n for name, value in named.items() if (n := finite(value)) is not None}
