"""What is measured and remembered of one turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit.tokens.encoded import Encoded

TIME_PARTS: Final = ("queue", "generate", "env", "encode")
"""What the time of a turn goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One model reply and the environment's answer to it. Times are wall-clock seconds."""

    turn: int
    prompt_tokens: int
    """Context length of the turn, images expanded."""
    cached_tokens: int
    """How many of them the engine took from its prefix cache."""
    response_tokens: int
    observation_tokens: int
    """Train ids appended after the reply; 0 after the last one."""
    image_count: int
    """New images in the observation after the reply."""
    image_bytes: int
    """Their PNG bytes."""
    queue_seconds: float
    generate_seconds: float
    env_seconds: float
    encode_seconds: float
    env_retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Failed attempts of this turn's step by `FaultKind`, all recovered."""
    engine_retries: int = 0
    resamples: int = 0
    """Replies thrown away because they did not parse (`resample_on_parse_error`)."""
    response_text: str = ""
    tool_call: Mapping[str, Any] | None = None
    """`info["tool_call"]` of the environment; None without one."""
    parse_error: str | None = None
    """`info["parse_error"]` of the environment; None when the reply was understood."""
    reward: float | None
    """None when the step did not complete."""
    finish_reason: str
    weight_version: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The environment's `info` of the step, deterministic JSON data."""
    observation_hash: str | None = None
    """Of the observation after the reply, to compare a replay with; None without a done step."""

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time went, in the order of `TIME_PARTS`."""
        values = (self.queue_seconds, self.generate_seconds, self.env_seconds, self.encode_seconds)
        return dict(zip(TIME_PARTS, values, strict=True))

    def with_observation(self, encoded: Encoded, seconds: float) -> "TurnRecord":
        """Return the record of a turn whose observation is appended later, by a resumed episode."""
        return replace(
            self,
            observation_tokens=len(encoded.train_ids),
            image_count=len(encoded.images),
            image_bytes=sum(len(image.png_bytes()) for image in encoded.images),
            encode_seconds=self.encode_seconds + seconds,
        )

    def without_observation(self) -> "TurnRecord":
        """Return the record of a last turn: nothing was appended behind its reply."""
        return replace(self, observation_tokens=0, image_count=0, image_bytes=0)
