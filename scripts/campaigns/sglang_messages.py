"""Check what docs/gateway.md says of SGLang's prompts; runs in SGLang's environment.

Everything that it checks is SGLang's own code. `scripts/campaigns/prompts.py --sglang` starts it.
"""

import sys
from types import SimpleNamespace
from typing import Any

from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, Function, Tool
from sglang.srt.entrypoints.openai.responses_adapters import label_developer_content
from sglang.srt.entrypoints.openai.serving_chat import (
    normalize_assistant_tool_call_arguments,
    normalize_tool_content,
)
from sglang.srt.parser.jinja_template_utils import (
    detect_jinja_template_content_format,
    process_content_for_template_format,
)

HEADER = "x-anthropic-billing-header: cc_version=1;"
USER = {"role": "user", "content": "Hi"}


def texts(kind: str) -> Any:  # noqa: ANN401  # JSON
    """Return the content of two texts as a template of a kind gets it."""
    content = [{"type": "text", "text": text} for text in ("a", "b")]
    entry = {"role": "user", "content": content}
    return process_content_for_template_format(entry, kind, [], [], [], [])["content"]


def from_anthropic(**fields: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # JSON
    """Return the chat messages of an Anthropic request."""
    chat = SimpleNamespace(supports_inline_system=True)
    body = {"model": "m", "max_tokens": 1, "messages": [USER], **fields}
    made: Any = AnthropicServing(chat)._convert_to_chat_completion_request(
        AnthropicMessagesRequest(**body)
    )
    return [one.model_dump(exclude_none=True) for one in made.messages]


def arguments(text: str) -> Any:  # noqa: ANN401  # JSON
    """Return a call's arguments as a template gets them."""
    call = {"type": "function", "function": {"name": "f", "arguments": text}}
    message = {"role": "assistant", "tool_calls": [call]}
    try:
        normalize_assistant_tool_call_arguments(message)
    except ValueError:
        return "refused"
    return message["tool_calls"][0]["function"]["arguments"]


def image_results() -> list[str]:
    """Return the roles of a result with an image."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    content = [{"type": "text", "text": "a"}, {"type": "image", "source": source}]
    block = {"type": "tool_result", "tool_use_id": "c1", "content": content}
    return [one["role"] for one in from_anthropic(messages=[{"role": "user", "content": [block]}])]


def main() -> int:
    """Print each difference that does not hold; return the exit status."""
    blocks = [{"type": "text", "text": text} for text in (HEADER, "a", "b")]
    effort = ChatCompletionRequest(model="m", messages=[USER], reasoning_effort="low")
    found = {
        "texts are joined by a space": texts("string") == "a b",
        "texts of a result too": normalize_tool_content("tool", texts("openai")) == "a b",
        "a template that names images gets lists": detect_jinja_template_content_format(
            "{# no image #}{% for m in messages %}{{ m.content }}{% endfor %}"
        )
        == "openai",
        "a tool keeps the order of its keys, with `defer_loading`": list(
            Tool(type="function", function=Function(parameters={}, name="f")).model_dump()
        )
        == ["type", "function", "defer_loading"]
        and list(Function(parameters={}, name="f").model_dump())
        == ["parameters", "name", "description"],
        "arguments must be an object": [arguments("{"), arguments("[1]")] == ["refused"] * 2,
        "Anthropic's system texts are joined by line breaks, with the header": from_anthropic(
            system=blocks
        )[0]["content"]
        == f"{HEADER}\na\nb",
        "images of results stay there": image_results() == ["tool"],
        "developer messages have a label": label_developer_content("a") != "a",
        "an effort sets `thinking` too": effort.chat_template_kwargs
        == {"thinking": True, "enable_thinking": True},
    }
    for name, holds in found.items():
        sys.stdout.write(f"{'holds' if holds else 'WRONG'}: {name}\n")
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
