"""Random conversations, and the ids that must follow each reply: no codec involved.

Every reply ends with a marker. The truth about what follows a reply comes from one render of the
whole conversation by transformers: find the marker, cut after the first end-of-turn token after
it, take the ids that follow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fakes.templates import SPECS, Spec, encode, load_tokenizer, render
from hypothesis import strategies as st

from envkit.images import Image

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name}.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string", "description": "what"}},
                "required": ["q"],
            },
        },
    }
    for name in ("get_weather", "calc")
]
WORDS = [
    *("\n", "\n\n", " ", "  ", "\t", "a", "the ", "Hello", "世界", "é", "🚀", "\u200b", "123", '"'),
    *("\\n", "{", "}", "</b>", "<", ">", "|", "# ", "- ", "```json\n", "\r\n", ". ", "؟", "don't"),
    *("_", "=", "+1", "\u00a0", 'JSON: {"a": [1]}', '"}}]', "{{ x }}", "{% y %}", "None", "\\frac"),
]
CONTROL = [
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "</s>",
    "<end_of_turn>",
    "[/INST]",
    "<|eot_id|>",
    "<|end|>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "<tool_response>",
    "</think>",
    "<|user|>",
]
MARKER = "ZQX%dK"
IMAGES = [
    Image.from_array(np.full((28 * height, 56, 3), 40 * height, dtype=np.uint8))
    for height in (1, 2, 3)
]


class NotApplicableError(Exception):
    """The template itself cannot render this conversation."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply's place and the end of what follows it."""

    reply: int
    end: int


@dataclass(frozen=True)
class Truth:
    """What a full render has around a reply."""

    ids: list[int]
    """The whole render."""
    closer_index: int
    """Where the reply's end-of-turn token is."""

    @property
    def tail(self) -> list[int]:
        """What follows the end-of-turn token."""
        return self.ids[self.closer_index + 1 :]


def turns(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return every reply that something follows."""
    found: list[Turn] = []
    for index, entry in enumerate(messages):
        if entry["role"] != "assistant":
            continue
        end = index + 1
        while end < len(messages) and messages[end]["role"] != "assistant":
            end += 1
        if end > index + 1:
            found.append(Turn(index, end))
    return found


def truth(name: str, messages: Sequence[Mapping[str, Any]], turn: Turn, tools: Any = None) -> Truth:
    """Return what must follow a reply, with the conversation ending at the turn's end."""
    spec = SPECS[name]
    try:
        full = render(name, messages[: turn.end], tools=tools)
    except Exception as error:  # a template may raise anything
        raise NotApplicableError(str(error)) from error
    number = sum(entry["role"] == "assistant" for entry in messages[: turn.reply])
    place = full.rfind(MARKER % number)
    if place < 0:
        raise NotApplicableError("the reply is not rendered")
    starts = [start for end in spec.ends if (start := full.find(end, place)) >= 0]
    if not starts:
        raise NotApplicableError("nothing ends the reply")
    encoded = load_tokenizer(name)(full, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    end_ids = {load_tokenizer(name).convert_tokens_to_ids(end) for end in spec.ends}
    for index, (first, last) in enumerate(encoded["offset_mapping"]):
        if first <= min(starts) < last and ids[index] in end_ids:
            return Truth(ids, index)
    raise NotApplicableError("the end of turn is not a token")


def assert_ids(name: str, got: Sequence[int], want: Sequence[int]) -> None:
    """Compare ids, and show them as text where they differ."""
    if list(got) != list(want):
        decode = load_tokenizer(name).decode
        raise AssertionError(f"{name}\n got {decode(list(got))!r}\nwant {decode(list(want))!r}")


# ---- random conversations


def texts(most: int = 12, *, control: bool = False) -> st.SearchStrategy[str]:
    """Draw awkward text."""
    words = [*WORDS, *CONTROL] if control else WORDS
    return st.lists(st.sampled_from(words), max_size=most).map("".join)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> list[dict[str, Any]]:
    """Draw a conversation that the spec's template can express; each reply ends with a marker."""
    spec = SPECS[name]
    messages: list[dict[str, Any]] = []
    if draw(st.integers(0, 9)) < 4:
        messages.append({"role": "system", "content": draw(texts(6)) or "s"})
    messages.append({"role": "user", "content": draw(_user_content(spec))})
    calls = 0
    for index in range(draw(st.integers(1, 4))):
        thought = ""
        if draw(st.booleans()):
            thought = f"<think>\n{draw(texts(5)).strip()}r\n</think>\n\n"
        if spec.tools != "none" and draw(st.booleans()):
            made = draw(_tool_round(spec, index, calls, thought))
            calls += 3
        else:
            said = f"{thought}{draw(texts(8)).strip()} {MARKER % index}".strip()
            made = [{"role": "assistant", "content": said}]
            made += draw(_user_messages(spec))
        messages += made
    return messages


def _user_content(spec: Spec) -> st.SearchStrategy[Any]:
    text = texts(20, control=True)
    if not spec.images:
        return text
    part = st.one_of(
        st.sampled_from(IMAGES).map(lambda image: {"type": "image", "image": image}),
        text.map(lambda said: {"type": "text", "text": said}),
    )
    return st.one_of(text, st.lists(part, min_size=1, max_size=3))


@st.composite
def _user_messages(draw: st.DrawFn, spec: Spec) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 2)) if spec.repeats_user else 1
    content = _user_content(spec)
    return [{"role": "user", "content": draw(content)} for _ in range(count)]


@st.composite
def _tool_round(
    draw: st.DrawFn, spec: Spec, index: int, number: int, thought: str
) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 3)) if spec.tools == "many" else 1
    numbers = [number + offset for offset in range(count)]
    names = [draw(st.sampled_from(["get_weather", "calc"])) for _ in numbers]
    beside = draw(texts(4)).strip() if spec.text_beside_call and draw(st.booleans()) else ""
    reply: dict[str, Any] = {"role": "assistant", "content": thought + beside}
    if not spec.text_beside_call:
        reply["content"] = ""
    if spec.tools == "text":
        reply["content"] += f'<tool_call>{{"q": 1}}</tool_call> {MARKER % index}'
    else:
        reply["tool_calls"] = [
            _call(spec, called, i, f"{draw(texts(4))} {MARKER % index}")
            for called, i in zip(names, numbers, strict=True)
        ]
    made = [reply]
    for called, i in zip(names, numbers, strict=True):
        content = draw(texts(20, control=True))
        answer = {"role": "tool", "name": called, "tool_call_id": spec.call_id % i}
        made.append({**answer, "content": content})
    if spec.user_after_tool and draw(st.integers(0, 3)) == 0:
        made.append({"role": "user", "content": draw(texts(8, control=True))})
    return made


def _call(spec: Spec, name: str, number: int, argument: str) -> dict[str, Any]:
    arguments: Any = {"q": argument}
    if spec.arguments_as_text:
        arguments = json.dumps(arguments)
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": spec.call_id % number, "function": function}


def sampled(name: str, truth_of_turn: Truth, start: int, *, cut_short: bool = False) -> list[int]:
    """Return what the model would have sampled between a prompt and its end-of-turn token.

    gpt-oss samples another token at the end of its answer than the history shows.
    """
    ids = truth_of_turn.ids[start : truth_of_turn.closer_index]
    if cut_short:
        return ids
    closer = truth_of_turn.ids[truth_of_turn.closer_index]
    if name == "gpt-oss" and closer == encode(name, "<|end|>")[0]:
        closer = encode(name, "<|return|>")[0]
    return [*ids, closer]
