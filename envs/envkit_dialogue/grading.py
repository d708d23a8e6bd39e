"""The reward: the final database, consent, and what had to be declared."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envkit_dialogue.database import State, differences
from envkit_dialogue.desk import Closing
from envkit_dialogue.scenario import Scenario
from envkit_dialogue.values import is_told


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What an episode must fulfil; the reward is 1.0 if all are true, else 0.0."""

    database: bool
    """The rows are those of the allowed requests, and no others."""
    consent: bool
    """The customer said yes before each change."""
    told: bool
    """The slot `told` holds the value that was asked for, and the customer read it."""
    declined: bool
    """The slot `declined` names the rule of the refused request."""

    @property
    def reward(self) -> float:
        """The episode's reward."""
        return float(all(asdict(self).values()))

    def to_json(self) -> dict[str, Any]:
        """Return the checks as JSON data."""
        return asdict(self)


def grade(
    scenario: Scenario,
    *,
    found: State,
    wanted: State,
    consented: Sequence[bool],
    closing: Closing,
    said: frozenset[str],
) -> Checks:
    """Return the checks of an episode that the agent ended.

    Args:
        scenario: The task.
        found: The database's rows at the end.
        wanted: The rows after everything that was asked for and is allowed.
        consented: For each change, whether the customer had said yes.
        closing: What the agent declared.
        said: The amounts and dates in the agent's messages to the customer.
    """
    return Checks(
        database=not differences(found, wanted),
        consent=all(consented),
        told=is_told(closing.told, scenario.told) and (not scenario.told or scenario.told in said),
        declined=closing.declined == scenario.declined,
    )
