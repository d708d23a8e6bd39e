"""An endless taskset with a harness of its own, which streams with the provider's SDK."""

import itertools
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from openai import AsyncOpenAI

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers


class StreamsTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def length(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class StreamsTaskset(vf.Taskset[StreamsTask]):
    INFINITE = True

    def load(self) -> Iterator[Any]:
        for number in itertools.count():
            yield StreamsTask(vf.TaskData(prompt=f"Say {number}."))


class StreamsHarness(vf.Harness):
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        said = ""
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            stream = await client.chat.completions.create(
                model=ctx.model, stream=True, messages=[{"role": "user", "content": data.prompt}]
            )
            async for chunk in stream:
                said += chunk.choices[0].delta.content or "" if chunk.choices else ""
        trace.record_metric("streamed", len(said))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["StreamsHarness", "StreamsTaskset"]
