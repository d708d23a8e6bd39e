"""A gateway for real clients: the built-in model's template, and scripted replies."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fakes.gateway_run import Run, serving
from fakes.odd_engine import OddEngine, StreamingOddEngine

from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

ANSWER = "  It is done. \n"


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@cache
def codec() -> ChatCodec:
    return load_codec(builtin_model_dir())


def calling(tool: str, arguments: str) -> Callable[[str], str]:
    """Return a script that thinks and calls a tool once per user message, then answers.

    Args:
        tool: Its name.
        arguments: JSON, which no client would write in the same way.
    """

    def write(context: str) -> str:
        heard = context.split("<|im_start|>assistant")[-2]
        if f'"name": "{tool}"' in context and "<tool_response>" not in heard:
            call = f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'
            return f"<think>I think  hard \n</think>\n\nI will use it.\n{call}"
        return ANSWER

    return write


@asynccontextmanager
async def gateway(
    script: Callable[[str], str],
    *,
    engine: OddEngine | None = None,
    faults: Sequence[int] = (),
    **options: Any,
) -> AsyncGenerator[Run]:
    """Serve one session with the script, by default of an engine that streams."""
    engine = engine or StreamingOddEngine(codec(), script, faults=faults)
    async with serving(script, codec=codec(), engine=engine, **options) as run:
        yield run


def call_of(tool: str, arguments: str = '{"b":  2.0, "a": 1}', said: str = "I will use it.") -> str:
    """Return a reply that thinks and calls a tool, with JSON that no client would write."""
    call = f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'
    return f"<think>I think  hard \n</think>\n\n{said}\n{call}"


def saying(*replies: str) -> Callable[[str], str]:
    """Return a script that gives the replies in turn, and the answer from then on."""
    left = list(replies)
    return lambda _context: left.pop(0) if left else ANSWER


def openai_api(run: Run) -> dict[str, Any]:
    """Return where an OpenAI client finds the session."""
    return {"base_url": f"{run.gateway.url}/v1", "api_key": run.session.key}


def anthropic_api(run: Run) -> dict[str, Any]:
    """Return where an Anthropic client finds the session."""
    return {"base_url": run.gateway.url, "api_key": run.session.key}
