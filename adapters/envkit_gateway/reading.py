"""Read JSON from untrusted clients. Images are data URIs or base64, never fetched."""

import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import takewhile
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from envkit.errors import ConfigurationError, ImageError
from envkit.images import Image
from envkit.messages import Part, Role, TextPart
from envkit_gateway.messages import AgentMessage
from envkit_gateway.request import AgentTool, bad_request, take


def object_of(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        RequestRefused: It is something else.
    """
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object, got {value!r:.80}")
    return cast("Mapping[str, Any]", value)


def objects(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a list of objects; empty if it is missing or null.

    Raises:
        RequestRefused: It is something else.
    """
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list, got {value!r:.80}")
    return [object_of(one, f"an entry of {name}") for one in cast("list[object]", value)]


NAMESPACE_END: Final = "__"
"""Between a namespace and a tool's name (vLLM: vllm/tool_parsers/utils.py)."""
_HEADER: Final = "x-anthropic-billing-header"
_RESERVED: Final = {
    "chat_template", "tokenize", "conversation", "messages", "tools", "documents",
    "add_generation_prompt", "continue_final_message", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
}  # fmt: skip
"""What transformers' `apply_chat_template` reads itself."""
_known: Final = WeakValueDictionary[bytes, Image]()
"""Images of earlier requests by the digest of their URI, as long as a record holds them: clients
send the whole history each time."""
P = TypeVar("P", bound=Part)
_MOST_RANKED: Final = 20
"""OpenAI's limit."""


def role_of(entry: Mapping[str, Any], roles: Sequence[str]) -> Role:
    """Return a message's role in one word for all dialects.

    Args:
        entry: The message.
        roles: Roles of the dialect.

    Raises:
        RequestRefused: It has another role, or none.
    """
    role = entry.get("role")
    if role not in roles:
        raise bad_request(f"a message's role must be one of {list(roles)}, got {role!r}")
    return cast("Role", "system" if role == "developer" else role)


def parts_of(
    content: object, read_part: Callable[[Mapping[str, Any]], P], *, name: str = "content"
) -> tuple[P | TextPart, ...]:
    """Return content given as a text, a list of parts or nothing.

    Args:
        content: The field.
        read_part: Reads a part of the dialect.
        name: Name of the field, for errors.

    Raises:
        RequestRefused: It is something else.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    return tuple(read_part(part) for part in objects({name: content}, name))


def image_part(uri: object) -> Part:
    """Return the image of a data URI.

    Raises:
        RequestRefused: It is another URL, which the gateway does not fetch, or not an image.
    """
    if not isinstance(uri, str):
        raise bad_request(f"an image must be a data URI, got {uri!r:.80}")
    if not uri.startswith("data:"):
        raise bad_request(
            f"images must be data URIs such as data:image/png;base64,..., got {uri[:80]!r}; the "
            "gateway fetches nothing: send the image itself"
        )
    digest = hashlib.sha256(uri.encode("utf-8", "surrogatepass")).digest()
    known = _known.get(digest)
    if known is not None:
        return {"type": "image", "image": known}
    try:
        image = Image.from_data_uri(uri)
        image.check()
    except (ImageError, ValueError, binascii.Error) as error:
        raise bad_request(f"cannot read an image: {error}") from error
    _known[digest] = image
    return {"type": "image", "image": image}


def refuse_inexact(messages: Sequence[AgentMessage]) -> None:
    """Refuse a conversation that a chat template would not render unchanged.

    Raises:
        RequestRefused: The system prompt has an image.
    """
    if any(one.has_images for one in takewhile(lambda one: one.role == "system", messages)):
        raise bad_request("a system prompt must be text, got an image: send it in a user message")


def check_continued(last: AgentMessage) -> None:
    """Refuse to continue what no template renders as the start of a reply.

    Raises:
        RequestRefused: It is not the assistant's, or is anything but text.
    """
    if last.role != "assistant":
        raise bad_request(f"only the assistant's last message can continue, got one of {last.role}")
    if last.calls or last.thinking or last.has_images or not last.text.strip():
        raise bad_request("the assistant's last message must be text to continue it")


def token_limit(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the first given limit on the reply's tokens; None without one.

    Raises:
        RequestRefused: It is not a positive integer.
    """
    given = next((name for name in names if body.get(name) is not None), None)
    if given is None:
        return None
    most: int = take(body, given, int)
    if most < 1:
        raise bad_request(f"{given} must be at least 1, got {most}")
    return most


def top_logprobs(body: Mapping[str, Any], *, is_asked: bool) -> int:
    """Return how many of the most probable tokens a client wants at each position.

    Args:
        body: The body.
        is_asked: Whether it asks for log-probabilities, without which the service refuses them.

    Raises:
        RequestRefused: It is out of range.
    """
    most: int = take(body, "top_logprobs", int, default=0)
    if not 0 <= most <= _MOST_RANKED:
        raise bad_request(f"top_logprobs must be between 0 and {_MOST_RANKED}, got {most}")
    if most and not is_asked:
        raise bad_request("top_logprobs needs a request for log-probabilities")
    return most


def refuse_unknown(body: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse fields that the gateway would otherwise drop silently.

    Raises:
        RequestRefused: The body has such a field.
    """
    unknown = sorted(name for name, value in body.items() if name not in known and value)
    if unknown:
        raise bad_request(f"the gateway does not support {', '.join(unknown)}; leave it out")


def stop_strings(value: object) -> tuple[str, ...]:
    """Return stop strings given as one text, a list or nothing.

    Raises:
        RequestRefused: They are something else.
    """
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list):
        raise bad_request(f"stop must be a text or a list of texts, got {value!r:.80}")
    texts = cast("Sequence[object]", given)
    if not all(isinstance(one, str) and one for one in texts):
        raise bad_request(f"stop must hold texts that are not empty, got {value!r:.80}")
    return tuple(cast("Sequence[str]", texts))


def read_tool(
    function: Mapping[str, Any], *, schema: str = "parameters", namespace: str = ""
) -> AgentTool:
    """Return a tool of a request.

    Args:
        function: Its name, description and schema.
        schema: The field with the schema.
        namespace: Precedes its name.

    Raises:
        RequestRefused: It cannot be offered to a model.
    """
    own = str(function.get("name", ""))
    given = take(function, schema, dict)
    written = {
        "name": f"{namespace}{NAMESPACE_END}{own}" if namespace else own,
        "description": take(function, "description", str),
        "parameters": given,
    }
    written |= {
        name: function[name]
        for name in ("strict", "defer_loading")
        if function.get(name) is not None
    }
    try:
        return AgentTool(
            name=written["name"],
            description=written["description"] or "",
            parameters=given or {"type": "object", "properties": {}},
            written=written,
            namespace=namespace,
        )
    except ConfigurationError as error:
        raise bad_request(str(error)) from error


def variables_of(body: Mapping[str, Any], effort: object) -> dict[str, Any]:
    """Return the variables for the chat template, as vLLM derives them (`build_chat_params`).

    Args:
        body: May have `chat_template_kwargs`.
        effort: The dialect's reasoning effort; None and "auto" set nothing.

    Raises:
        RequestRefused: They would change more than the template's variables.
    """
    found: dict[str, Any] = dict(take(body, "chat_template_kwargs", dict, default={}))
    refused = [name for name in found if name in _RESERVED or name.endswith(("_token", "_tokens"))]
    if refused:
        raise bad_request(
            f"chat_template_kwargs must hold variables of the chat template, got {refused}"
        )
    if isinstance(effort, str) and effort != "auto":
        found.setdefault("enable_thinking", effort != "none")
        found["reasoning_effort"] = effort
    return found


def has_header(text: str) -> bool:
    """Return whether a system text starts with Claude Code's header, which may change each time."""
    return text.startswith(_HEADER)


def without_header(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return a system message's parts without Claude Code's header, as servers do.

    Source: vllm/renderers/chat_utils.py.
    """
    found: list[Part] = []
    for part in parts:
        if part["type"] == "text" and has_header(part["text"]):
            rest = part["text"].partition("\n")[2]
            if rest:
                found.append({"type": "text", "text": rest})
        else:
            found.append(part)
    return tuple(found)
