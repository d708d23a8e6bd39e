"""Readers of the call formats that carry JSON: Hermes and Qwen blocks, Llama 3, Mistral."""

import re
from typing import Any, Final

from envkit.toolcalls.reply import CallCollector
from envkit.toolcalls.tolerant_json import MalformedJson, decode_prefix, skip_space
from envkit.toolcalls.xml_functions import FUNCTION_OPEN, is_glm, read_functions, read_glm

BLOCK_OPEN: Final = "<tool_call>"
BLOCK_CLOSE: Final = "</tool_call>"
PYTHON_TAG: Final = "<|python_tag|>"
MISTRAL_OPEN: Final = "[TOOL_CALLS]"
CALL_MARKS: Final = (BLOCK_OPEN, FUNCTION_OPEN, MISTRAL_OPEN, PYTHON_TAG)
"""How calls begin, except for plain tags and Llama's without its tag."""

LLAMA_START: Final = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
_LLAMA_WORDS: Final = ('{"name":', '{"type":', '{"function":')
_LLAMA_HEAD: Final = 256
"""Characters after which a beginning with much white space is no longer examined."""
_LLAMA_NEXT: Final = re.compile(r"\s*+(?:;\s*+)?(?=\{)")
_MISTRAL_NAME: Final = re.compile(
    r"\s*+([\w.-]{1,64}+)\s*+(?:\[CALL_ID\]\s*+(\w*+)\s*+)?(?:\[ARGS\]\s*+)?(?=\{)"
)
_UNCLOSED: Final = f"{BLOCK_OPEN} is not closed by {BLOCK_CLOSE}"
_REREADS: Final = 4
"""How many closing tags inside JSON strings may be skipped per reply. Without a limit, a hostile
reply would take quadratic time."""


def read_blocks(out: CallCollector) -> None:
    """Read `<tool_call>` blocks: JSON of Hermes and Qwen, functions of Qwen3-Coder, GLM's pairs.

    An unclosed block is no call, even if its JSON is complete.
    """
    text, at, close = out.text, 0, 0
    rereads = _Budget(_REREADS)
    while (start := text.find(BLOCK_OPEN, at)) >= 0:
        body = start + len(BLOCK_OPEN)
        # A negative one is final: no later block is closed either, and looking again for each would
        # take quadratic time.
        if 0 <= close < body:
            close = text.find(BLOCK_CLOSE, body)
        limit = len(text) if close < 0 else close
        is_functions = text[body : body + 200].lstrip().startswith(FUNCTION_OPEN)
        if is_functions or is_glm(out, body, limit):
            if close < 0:
                out.error(_UNCLOSED)
            elif is_functions:
                read_functions(out, body, limit)
            else:
                read_glm(out, body, limit)
            at = min(limit + len(BLOCK_CLOSE), len(text))
        else:
            at = _read_block(out, body, limit, rereads)
        out.cut(start, at)


class _Budget:
    """Limits how many closing tags may be skipped."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self) -> bool:
        """Use up one skip; False if none is left."""
        self._left -= 1
        return self._left >= 0


def _read_block(out: CallCollector, body: int, limit: int, rereads: _Budget) -> int:
    """Read the JSON block whose closing tag is at `limit`; return where reading continues."""
    text = out.text
    try:
        value, end = _decode_block(text, body, limit, rereads)
    except MalformedJson as error:
        out.error(f"{error} of the reply")
        following = text.find(BLOCK_OPEN, max(error.position, body), limit)
        return following if following >= 0 else min(limit + len(BLOCK_CLOSE), len(text))
    rest = skip_space(text, end)
    if text.startswith(BLOCK_CLOSE, rest):
        out.payload(value)
        return rest + len(BLOCK_CLOSE)
    if rest == len(text) or text.startswith(BLOCK_OPEN, rest):
        out.error(_UNCLOSED)
        return rest
    out.error(f"unexpected {text[rest : rest + 12]!r} after its JSON")
    return min(max(limit, end) + len(BLOCK_CLOSE), len(text))


def _decode_block(text: str, body: int, limit: int, rereads: _Budget) -> tuple[Any, int]:
    try:
        return decode_prefix(text, body, limit)
    except MalformedJson as error:
        # The closing tag may be inside a JSON string, which then continues after it.
        if not error.is_open_string or limit == len(text) or not rereads.spend():
            raise
        try:
            return decode_prefix(text, body)
        except MalformedJson:
            raise error from None


def read_llama(out: CallCollector) -> None:
    """Read Llama 3 calls: objects with `name` and `parameters`, after `<|python_tag|>` or alone."""
    tag = out.text.find(PYTHON_TAG)
    start = tag if tag >= 0 else 0
    at = start + len(PYTHON_TAG) if tag >= 0 else 0
    # Without the tag, only a reply that begins with such an object is a call: an answer may be any
    # other JSON.
    if tag < 0 and not LLAMA_START.match(out.text):
        return
    while True:
        try:
            value, end = decode_prefix(out.text, at)
        except MalformedJson as error:
            out.error(f"{error} of the reply")
            out.cut(start, len(out.text))
            return
        if tag < 0 and not _has_arguments(value):
            return
        out.payload(value)
        out.cut(start, end)
        if not (following := _LLAMA_NEXT.match(out.text, end)):
            return
        start, at = end, following.end()


def may_begin_call(text: str) -> bool:
    """Return whether a reply with this beginning may be a call of Llama 3 without a mark."""
    head = "".join(text[:_LLAMA_HEAD].split())
    return any(one.startswith(head) or head.startswith(one) for one in _LLAMA_WORDS)


def _has_arguments(value: object) -> bool:
    """Return whether an object is a call and not an answer that happens to have a name."""
    return isinstance(value, dict) and not {"parameters", "arguments", "function"}.isdisjoint(value)  # pyright: ignore[reportUnknownArgumentType]  # any JSON


def read_mistral(out: CallCollector) -> None:
    """Read Mistral calls: `[TOOL_CALLS]` and a JSON list, or a name, `[ARGS]` and an object."""
    text, at = out.text, 0
    while (start := text.find(MISTRAL_OPEN, at)) >= 0:
        body = start + len(MISTRAL_OPEN)
        named = _MISTRAL_NAME.match(text, body)
        try:
            value, at = decode_prefix(text, named.end() if named else body)
        except MalformedJson as error:
            out.error(f"{error} of the reply")
            following = text.find(MISTRAL_OPEN, max(error.position, body))
            at = following if following >= 0 else len(text)
        else:
            if named is None:
                out.payload(value)
            else:
                out.named(named.group(1), {"arguments": value}, named.group(2))
        out.cut(start, at)
