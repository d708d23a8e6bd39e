"""A fake vLLM server in its own process, for tests that kill one.

python -m fakes.vllm_process        prints its address, then serves until it is killed
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from fakes.vllm_server import FakeVLLM


async def serve() -> None:
    """Answer every request with the same three ids, slowly enough to be killed in between."""
    async with FakeVLLM(lambda _: [20, 21, 22], token_s=0.005) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


@contextmanager
def server_process() -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Start one, give its address and its process, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fakes.vllm_process"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve())
