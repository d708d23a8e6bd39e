"""Thoughts as a chat template opens and closes them."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from envkit.errors import TemplateError
from envkit.reply import THOUGHTS, Reply
from envkit.tokens.rules import RoleRule
from envkit.tokens.template import ChatTemplate, PlainMessage, ToolSchemas
from envkit.tokens.writer import CALL_ID, Writer

TAIL_IDS: Final = 24
"""Ids at the end of a prompt that hold the mark of a thought, and white space after it."""


class _Codec(Protocol):
    def decode_all(self, token_ids: Sequence[int]) -> str: ...

    def visible_text(self, token_id: int) -> str: ...

    def thought_ending(self, mark: str) -> str: ...


def opened_thought(codec: _Codec, prompt_ids: Sequence[int]) -> str | None:
    """Return the mark of the thought that a prompt ends with; None if it opened none.

    Args:
        codec: Decodes the ids.
        prompt_ids: The end of the prompt, at least `TAIL_IDS` ids of it.
    """
    # Decoding takes longer than most of a turn, and few prompts end with a token that ends a mark.
    texts = (codec.visible_text(one) for one in reversed(prompt_ids))
    last = next((text for text in texts if text), None)
    if last is None or not _may_end_mark(last):
        return None
    text = codec.decode_all(list(prompt_ids)).rstrip()
    found = [mark for mark in THOUGHTS if text.endswith(mark)]
    return max(found, key=len, default=None)


@lru_cache(maxsize=4096)
def _may_end_mark(text: str) -> bool:
    """Whether a mark may end with a token of this text; part of a character may be any."""
    return "\ufffd" in text or any(mark.endswith(text) or text.endswith(mark) for mark in THOUGHTS)


def closing_of(codec: _Codec, reply: Reply) -> str:
    """Return the text that closes the thought in which a cut reply ends; "" if it ends in none."""
    if not reply.open_thought:
        return ""
    ending = codec.thought_ending(reply.open_thought)
    space = ending[: len(ending) - len(ending.lstrip())]
    written = next((n for n in range(len(space), 0, -1) if reply.text.endswith(space[:n])), 0)
    return ending[written:]


def thought_ending(
    template: ChatTemplate,
    writer: Writer,
    rules: Mapping[str, RoleRule],
    mark: str,
    *,
    tools: ToolSchemas,
) -> str:
    """Return what a template writes from the end of a thought to the end of its turn.

    It is "" if the end of a turn closes the thought, too. A template that drops thoughts from the
    history says nothing; models then write the mark on a line of its own.

    Args:
        template: Renders a conversation with a thought.
        writer: Writes its messages.
        rules: The rules by the role of the observation.
        mark: The mark that closes the thought, a value of `THOUGHTS`.
        tools: Tool schemas.
    """
    if any(mark == rule.closer for rule in rules.values()):
        return ""
    opening = next(one for one, other in THOUGHTS.items() if other == mark)
    word = f"Zq{secrets.token_hex(4)}Xw"
    for reply in _thinking(writer, opening, word, mark):
        for role, rule in rules.items():
            messages = [writer.say("user", "u"), reply, writer.observation(role, "o")]
            try:
                text = template.render(messages, generation_prompt=True, tools=tools)
            except TemplateError:
                continue
            ending = text.partition(word)[2].partition(rule.closer)[0]
            if ending.strip() == mark:
                return ending
    return f"\n{mark}\n\n"


def _thinking(writer: Writer, opening: str, word: str, mark: str) -> Iterator[PlainMessage]:
    """Yield replies that are only a thought, in the forms that templates read."""
    yield writer.say("assistant", f"{opening}\n{word}\n{mark}\n\n")
    call = writer.call("f", CALL_ID, {"a": "x"}, as_text=False)
    fields = {"reasoning_content": word, "thinking": word, "reasoning": word}
    yield {**writer.say("assistant", ""), **fields}
    yield {**writer.say("assistant", ""), **fields, "tool_calls": [call]}
