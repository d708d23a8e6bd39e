"""Computer-use actions: one canonical form, and the dialects of common model families.

`find_family("qwen3-vl")` returns a dialect. `space(screen)` gives the model's coordinate space,
`parse(reply, space)` converts a reply to canonical actions and never raises, and `write(actions,
space)` is the inverse. `system_prompt` and `tools` go into the model's prompt. `marks(actions)`
describes actions as data for `info["marks"]`.
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
