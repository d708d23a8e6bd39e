"""Render a conversation up to the end of a reply that the model shall continue."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from envkit.errors import TemplateError
from envkit.tokens.template import PlainMessage

_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG"


def continued(
    messages: Sequence[PlainMessage], render: Callable[[Sequence[PlainMessage]], str]
) -> str:
    """Return the rendered text before whatever closes the last message.

    Servers do the same for `continue_final_message` (transformers 5:
    transformers/utils/chat_template_utils.py): a template that trims the mark's trailing space also
    trims the message.

    Args:
        messages: A conversation that ends with the start of a reply.
        render: Renders messages without a generation prompt.

    Raises:
        TemplateError: The template rejects the messages, or does not render the last one's text.
    """
    *before, last = messages
    text = render([*before, {**last, "content": _marked(last["content"])}])
    place = text.rfind(_MARK)
    if place < 0 or _text(last["content"]).strip() not in text:
        raise TemplateError("the chat template does not render a reply to continue")
    head = text[:place]
    return head if text.startswith(f"{_MARK} ", place) else head.rstrip()


def _marked(content: Any) -> Any:  # noqa: ANN401  # a string or parts
    if isinstance(content, str):
        return f"{content}{_MARK} "
    *others, last = cast("list[dict[str, Any]]", content)
    return [*others, {**last, "text": f"{last['text']}{_MARK} "}]


def _text(content: Any) -> str:  # noqa: ANN401  # a string or parts
    return content if isinstance(content, str) else content[-1]["text"]
