"""Actions of computer use: one canonical form, and the dialects of the common model families.

`find_family("qwen3-vl")` gives a dialect. Its `space(screen)` says what the model counts in, its
`parse(reply, space)` turns a reply into canonical actions and never raises, its
`write(actions, space)` is the other direction, and `system_prompt` and `tools` are what the model
must be told. `marks(actions)` says what they did, as the data of `info["marks"]`.
"""

from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.canonical_json import (
    ACTION_SCHEMA,
    BATCH_SCHEMA,
    from_json,
    to_json,
)
from envkit_actions.families import FAMILIES, find_family
from envkit_actions.family import ActionFamily
from envkit_actions.malformed import InexpressibleActionError, MalformedActionError
from envkit_actions.marks import mark, marks
from envkit_actions.parsed import ParsedActions
from envkit_actions.spaces import CoordinateSpace, SpaceKind

__all__ = [
    "ACTION_SCHEMA",
    "BATCH_SCHEMA",
    "FAMILIES",
    "Action",
    "ActionFamily",
    "ActionKind",
    "Button",
    "CoordinateSpace",
    "InexpressibleActionError",
    "MalformedActionError",
    "ParsedActions",
    "SpaceKind",
    "Status",
    "find_family",
    "from_json",
    "mark",
    "marks",
    "to_json",
]
