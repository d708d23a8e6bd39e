"""System prompts of the protocols, and the search tool."""

from typing import Final

from envkit.messages import Trusted
from envkit.tools import ToolSpec
from envkit_search.protocol import MAX_TOPK, Protocol

SEARCH: Final = ToolSpec(
    name="search",
    description="Search the corpus. Returns the pages that match best.",
    parameters={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to look for: a name or a few words.",
            },
            "topk": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TOPK,
                "description": "How many pages to return.",
            },
        },
        "required": ["query"],
    },
)

_TAGS: Final = (
    "Answer the question with the help of a search engine.",
    "First reason inside <think> and </think>, every time that you learn something new.",
    "To search, then write <search>query</search>; what is found comes back between <information> "
    "and </information>.",
    "When you know enough, write the answer alone inside <answer> and </answer>, "
    "such as <answer>Lake Geneva</answer>.",
    "One reply holds one search or one answer, and ends with it.",
)
_TOOLS: Final = (
    "Answer the question with the help of a search engine.",
    "Call the tool search to find pages:",
    '<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>',
    "When you know enough, write the answer alone inside <answer> and </answer> without a call, "
    "such as <answer>Lake Geneva</answer>.",
)
MISUNDERSTOOD: Final = {
    Protocol.TAGS: Trusted(
        "The reply could not be understood. To search, write <search>query</search> after your "
        "thoughts. To answer, write <answer>text</answer>."
    ),
    Protocol.TOOLS: Trusted(
        "The reply could not be understood. To search, write one JSON object with name and "
        "arguments between <tool_call> and </tool_call>; the only tool is search(query, topk). To "
        "answer, write <answer>text</answer> without a call."
    ),
}
"""Feedback on a reply that is neither a search nor an answer. It never quotes the model."""
NO_TURN_LEFT: Final = "No reply is left."


def system_prompt(protocol: Protocol, max_turns: int) -> Trusted:
    """Return the rules of the episode."""
    lines = _TAGS if protocol is Protocol.TAGS else _TOOLS
    noun = "reply" if max_turns == 1 else "replies"
    last = f"You have {max_turns} {noun} in all; the last one must answer."
    return Trusted("\n".join([*lines, last]))
