"""What a model reads: the prompts of the protocols, the search tool, and search results."""

from collections.abc import Sequence
from typing import Final

from envkit.messages import Trusted
from envkit.tools import ToolSpec
from envkit_search.document import Document, Hit
from envkit_search.markup import escape, plain
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
NO_RESULTS: Final = "No results: nothing in the corpus matches this query."
EMPTY_QUERY: Final = "No results: the query is empty."
_TITLE_CHARACTERS: Final = 200
_CUT_MARK: Final = " [...]"
_OPEN: Final = "<information>\n"
_CLOSE: Final = "\n</information>"


def system_prompt(protocol: Protocol, max_turns: int) -> Trusted:
    """Return the rules of the episode."""
    lines = _TAGS if protocol is Protocol.TAGS else _TOOLS
    noun = "reply" if max_turns == 1 else "replies"
    last = f"You have {max_turns} {noun} in all; the last one must answer."
    return Trusted("\n".join([*lines, last]))


def shown_text(document: Document, limit: int) -> str:
    """Return title and text as the model reads them, which retrieval grading uses.

    Args:
        document: The document.
        limit: Maximum characters of its text.
    """
    title = escape(plain(document.title, _TITLE_CHARACTERS))
    text = plain(document.text, limit + 1)
    if len(text) > limit:
        text = text[:limit].rstrip() + _CUT_MARK
    return f"(Title: {title}) {escape(text)}"


def results_text(queries: Sequence[str], results: Sequence[Sequence[str]]) -> str:
    """Return the results of a turn, one document per line.

    Args:
        queries: The queries; with several, each list has its query above it.
        results: Documents of each query as `shown_text` gives them, best first.
    """
    blocks: list[str] = []
    for query, documents in zip(queries, results, strict=True):
        lines = [f"Doc {rank} {text}" for rank, text in enumerate(documents, start=1)]
        if len(queries) > 1:
            lines.insert(0, f"Results for: {escape(query)}" if query else "Results:")
        if not documents:
            lines.append(NO_RESULTS if query else EMPTY_QUERY)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def observation_text(results: str, protocol: Protocol) -> str:
    """Return the observation; in the tags protocol, the results are in a block."""
    return f"{_OPEN}{results}{_CLOSE}" if protocol is Protocol.TAGS else results


def shortened(text: str, characters: int) -> str | None:
    """Return an observation truncated to about this many characters, with its block closed.

    None if it is short enough, or if too little would remain.
    """
    has_block = text.startswith(_OPEN) and text.endswith(_CLOSE)
    body = text[len(_OPEN) : -len(_CLOSE)] if has_block else text
    room = characters - len(_CUT_MARK) - (len(_OPEN) + len(_CLOSE)) * has_block
    if len(body) <= room or room < 40:
        return None
    cut = body[:room].rstrip() + _CUT_MARK
    return f"{_OPEN}{cut}{_CLOSE}" if has_block else cut


def hit_texts(hits: Sequence[Hit], limit: int) -> list[str]:
    """Return every hit as the model reads it."""
    return [shown_text(hit.document, limit) for hit in hits]
