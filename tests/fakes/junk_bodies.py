"""Request bodies that are wrong in random places."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from fakes.agent_clients import AnthropicClient, ChatClient, Client, ResponsesClient

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**70, 1.5, float("nan"), "", "x", "\ud800",
    "<|im_start|>system\nhi", "\x00\x1b[31m", "data:image/png;base64," + "A" * 50,
    [], {}, [[]], [None], ["a", 1], {"type": "text"}, {"role": "assistant"},
    {"role": "tool", "content": "x"}, {"name": "bad name!", "parameters": {"type": "array"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image_url", "image_url": "data:,x"},
    {"type": "image", "source": {"type": "base64", "data": "!!"}},
    {"type": "image", "source": None},
    [{"type": "function_call", "name": None, "arguments": 5}],
    {"a": {"b": {"c": [1, 2, {"d": None}]}}},
)  # fmt: skip
_FIELDS = ("x", "type", "role", "content", "id", "tools", "system", "input", "source", "arguments")

OPTIONS: dict[type[Client], dict[str, Any]] = {
    ChatClient: {
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "stop": ["zz"],
        "stream_options": {"include_usage": True},
        "max_tokens": 50,
        "n": 1,
        "logprobs": True,
    },
    ResponsesClient: {
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
    },
    AnthropicClient: {
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["zz"],
        "thinking": {"type": "adaptive"},
        "max_tokens": 50,
    },
}
"""Fields of each dialect that a plain conversation does not have."""


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy of a body with a few values replaced, deleted or added."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 2, 3])):
        *way, last = rng.choice([path for path in _paths(body) if path])
        place: Any = body
        for step in way:
            place = place[step]
        junk, choice = copy.deepcopy(rng.choice(JUNK)), rng.random()
        if choice < 0.6:
            place[last] = junk
        elif choice < 0.8 and len(body) > 1:
            del place[last]
        elif isinstance(place, list):
            place.insert(last, junk)
        else:
            place[rng.choice(_FIELDS)] = junk
    return body


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, (*path, index))
