"""Tools in a server that all episodes share, two rewards, an image from a tool."""

import base64
import io
from importlib import import_module
from typing import Any

from mcp.types import ImageContent, TextContent
from PIL import Image

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers


class CalculatorToolset(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = "calculator"

    @vf.tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    @vf.tool
    def draw(self, width: int) -> list[Any]:
        """Draw a red bar."""
        if width < 1:
            raise ValueError("width must be positive")
        buffer = io.BytesIO()
        Image.new("RGB", (width, 20), "red").save(buffer, "PNG")
        data = base64.b64encode(buffer.getvalue()).decode()
        return [
            TextContent(type="text", text="The bar:"),
            ImageContent(type="image", data=data, mimeType="image/png"),
        ]


class CalculatorData(vf.TaskData):
    answer: str


class CalculatorTask(vf.Task[CalculatorData]):
    @vf.reward
    async def is_right(self, trace: Any) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brevity(self, trace: Any) -> float:
        return float(trace.num_turns <= 2)

    @vf.metric
    async def calls(self, trace: Any) -> float:
        return float(len(trace.tool_messages))


class CalculatorConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()  # pyright: ignore[reportInvalidTypeForm]


class CalculatorTaskset(vf.Taskset[CalculatorTask, CalculatorConfig]):
    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [CalculatorToolset(config.tools)]

    def load(self) -> list[Any]:
        rows = [(f"{a} times 7?", str(7 * a)) for a in range(5)]
        return [
            CalculatorTask(
                CalculatorData(prompt=prompt, answer=answer, system_prompt="Use the tools.")
            )
            for prompt, answer in rows
        ]


__all__ = ["CalculatorTaskset"]


if __name__ == "__main__":
    CalculatorToolset.run()
