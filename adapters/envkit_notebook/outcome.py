"""The environment's answer to one reply, live or recorded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from envkit.marks import actions_in
from envkit.text import utf8
from envkit.trajectory.trajectory import TurnRecord
from envkit.turns import Step
from envkit.viewer.wording import number

_LONGEST_INFO: Final = 20_000
"""Maximum characters of `info` shown."""
_SHOWN_ELSEWHERE: Final = ("marks", "parse_error", "reward_terms", "turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one reply, without the observation."""

    reward: float | None
    """None if the step did not complete."""
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """Failed attempts of the step by `FaultKind`, all recovered."""

    @classmethod
    def of_step(cls, step: Step, retries: Mapping[str, int]) -> "Outcome":
        """Build from an environment's step."""
        return cls(
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            info=step.info,
            retries=dict(retries),
        )

    @classmethod
    def of_record(cls, record: TurnRecord) -> "Outcome":
        """Build from a recorded turn, which does not say how the episode ended."""
        return cls(reward=record.reward, info=record.info, retries=record.env_retries)

    def to_view(self) -> dict[str, Any]:
        """Return JSON data for the front end."""
        terms: Mapping[str, Any] = self.info.get("reward_terms") or {}
        error = self.info.get("parse_error")
        rest = {key: value for key, value in self.info.items() if key not in _SHOWN_ELSEWHERE}
        return {
            "actions": [utf8(said) for said in actions_in(self.info)],
            "reward": None if self.reward is None else number(self.reward),
            "terms": {utf8(str(name)): number(value) for name, value in terms.items()},
            "parse_error": None if error is None else utf8(str(error)),
            "retries": dict(self.retries),
            "info": pretty(rest),
        }


def pretty(data: Mapping[str, Any]) -> str:
    """Return data as indented JSON for people, truncated if very long."""
    text = json.dumps(data, indent=1, ensure_ascii=False, default=repr)
    kept = text if len(text) <= _LONGEST_INFO else f"{text[:_LONGEST_INFO]} ..."
    return utf8(kept)
