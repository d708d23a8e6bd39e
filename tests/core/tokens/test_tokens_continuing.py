"""Prompts that end with a reply: transformers' own rendering, for every fetched template."""

from typing import Any, Literal

import pytest
from fakes.codecs import vision_codec
from fakes.templates import SPECS, default_codec, load_tokenizer, render

from envkit.errors import TemplateError
from envkit.messages import Message, message
from envkit.tokens import ChatCodec

STARTS = ("The answer is", "{", "  spaced ", "two\nlines\n", "The answer is 4. The answer")


def talk(text: Any) -> list[Message]:
    return [message("user", "What is 2 + 2?"), message("assistant", text)]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_start_of_a_reply_is_rendered_as_transformers_renders_it(name: str, start: str) -> None:
    codec, tokenizer = default_codec(name), load_tokenizer(name)
    plain: Any = talk(start)
    try:
        text = tokenizer.apply_chat_template(
            plain, tokenize=False, continue_final_message=True, **SPECS[name].kwargs
        )
    except Exception:  # noqa: BLE001  # a template raises what it likes
        with pytest.raises(TemplateError):
            codec.encode_prompt(plain, after_reply="continue")
        return
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(codec.encode_prompt(plain, after_reply="continue").wire_ids) == expected


@pytest.mark.parametrize("name", sorted(SPECS))
def test_reply_at_the_end_is_answered_as_the_template_renders_it(name: str) -> None:
    codec = default_codec(name)
    try:
        text = render(name, talk("Four."))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  # a template raises what it likes
        with pytest.raises(TemplateError):
            codec.encode_prompt(talk("Four."), after_reply="answer")
        return
    expected = load_tokenizer(name)(text, add_special_tokens=False)["input_ids"]
    assert list(codec.encode_prompt(talk("Four."), after_reply="answer").wire_ids) == expected


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return vision_codec()


@pytest.mark.parametrize("after", ["refuse", "continue"])
def test_message_of_the_user_is_answered_in_any_case(
    codec: ChatCodec, after: Literal["refuse", "continue"]
) -> None:
    asked = [message("user", "one")]
    found = codec.encode_prompt(asked, after_reply=after)
    assert found.wire_ids == codec.encode_prompt(asked).wire_ids


CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
BAD: list[Any] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": "Calling.", "tool_calls": [CALL]},
]


@pytest.mark.parametrize("last", BAD, ids=str)
def test_only_text_continues(codec: ChatCodec, last: Any) -> None:
    with pytest.raises(TemplateError, match="only a reply that ends with text can continue"):
        codec.encode_prompt([message("user", "one"), last], after_reply="continue")


def test_reply_is_refused_unless_asked_for(codec: ChatCodec) -> None:
    with pytest.raises(TemplateError, match="must end with a message for the model to answer"):
        codec.encode_prompt(talk("Four."))
