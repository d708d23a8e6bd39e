"""A tool environment: native calls, a rubric of two functions, an image from a tool."""

import base64
import io
from importlib import import_module
from typing import Any

from datasets import Dataset
from PIL import Image

vf: Any = import_module("verifiers")  # this folder has the library's name for type checkers


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


def draw(width: int) -> list[dict[str, Any]]:
    """Draw a red bar.

    Args:
        width: In pixels.
    """
    if width < 1:
        raise ValueError("width must be positive")
    buffer = io.BytesIO()
    Image.new("RGB", (width, 20), "red").save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return [{"type": "text", "text": "The bar:"}, {"type": "image_url", "image_url": {"url": uri}}]


def load_environment(max_turns: int = 4) -> Any:
    rows = [{"question": f"{a} times 7?", "answer": str(7 * a)} for a in range(5)]

    def is_right(completion: Any, answer: str) -> float:
        return float(answer in str(completion[-1].content))

    async def brevity(completion: Any, **kwargs: Any) -> float:
        return 1.0 if len(completion) <= 3 else 0.0

    return vf.ToolEnv(
        dataset=Dataset.from_list(rows),
        tools=[multiply, draw],
        max_turns=max_turns,
        system_prompt="Use the tools.",
        rubric=vf.Rubric(funcs=[is_right, brevity], weights=[1.0, 0.5]),
    )
