"""Both sides of benchmarks/vs_verifiers.py, and the fake server of verifiers' side.

Run by benchmarks/vs_verifiers.py with the interpreter of verifiers' contract environment. `--serve`
answers vLLM's generate endpoint, instantly, until it is killed; its time counts for neither side.
"""

import argparse
import asyncio
import gc
import json
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import verifiers.v1 as vf
from aiohttp import web
from harness import serving
from http_turn import Corridor
from loop import ANSWER
from reliability_load import server as sglang_server
from renderers.configs import Qwen3RendererConfig
from transformers import AutoTokenizer

from envkit.rollout import RolloutConfig, collect
from envkit.tokens import ChatCodec, load_codec
from envkit_sglang import SGLangEngine
from envkit_transformers import builtin_model_dir

CONCURRENT = 4
REPLY = "I try the next door of the corridor."
REPLY_TOKENS = 12
"""As many as the other server's."""
MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Tokens that the renderer of Qwen3's template needs."""
Side = Callable[[int, int, int], Coroutine[Any, Any, list[Any]]]
"""Plays episodes of a number of turns after an opening, and returns what it keeps of them."""


class TalkData(vf.TaskData):
    """Where a corridor begins, and how long it is."""

    turns: int


class TalkTask(vf.Task[TalkData]):
    """A walk along a corridor."""

    @vf.reward  # pyright: ignore[reportUntypedFunctionDecorator]
    async def nothing(self, trace: vf.Trace) -> float:
        """Return a constant."""
        del trace
        return 0.0


class TalkEnv(vf.SingleAgentEnv):
    """Says a short text of constant length in every turn."""

    async def run(self, task: Any, agents: Any) -> None:  # noqa: ANN401
        """Talk until the corridor ends."""
        async with agents.agent.interaction(task) as talk:
            await talk.turn()
            for _ in range(task.data.turns - 1):
                await talk.turn(ANSWER)


class TalkTaskset(vf.Taskset[TalkTask]):
    """One task; the contest makes the others."""

    def load(self) -> list[TalkTask]:
        """Return the shortest."""
        return [TalkTask(TalkData(prompt="You stand in a corridor.", turns=1))]


__all__ = ["TalkEnv", "TalkTaskset"]


class Contest:
    """A tokenizer, a codec and a server for each side."""

    def __init__(self, folder: str, urls: tuple[str, str]) -> None:
        self.folder, (self.sglang, self.vllm) = folder, urls
        self.codec: ChatCodec = load_codec(Path(folder))
        agent = {"harness": {"id": "envkit-verifiers"}, "runtime": {"type": "subprocess"}}
        config = vf.resolve_env_config({"taskset": {"id": "verifiers_talk"}, "agent": agent})
        self.env: Any = vf.load_environment(config)

    async def own(self, opening: int, turns: int, episodes: int) -> list[Any]:
        """Play verifiers' episodes with its training client, and keep them."""
        client = vf.TrainClientConfig(
            base_url=f"{self.vllm}/v1",
            api_key_var="NO_KEY",
            renderer=Qwen3RendererConfig(thinking_retention="all"),  # or it renders all again
            renderer_model_name=self.folder,
        )
        context = vf.ModelContext(model="policy", client=client)
        prompt = "You stand in a corridor. " + "door " * opening
        task = TalkTask(TalkData(prompt=prompt, turns=turns))
        gate = asyncio.Semaphore(CONCURRENT)

        async def one() -> Any:  # noqa: ANN401
            async with gate:
                return await self.env.run_episode(task, context)

        async with self.env.serving():
            played: list[Any] = await asyncio.gather(*(one() for _ in range(episodes)))
        for episode in played:
            assert episode.ok, episode.errors or episode.traces[0].errors
            assert episode.traces[0].num_turns == turns
            assert len(episode.traces[0].branches) == 1
        return played

    async def envkit(self, opening: int, turns: int, episodes: int) -> list[Any]:
        """Play envkit's episodes, with its check of prompts off, and keep them."""
        engine = SGLangEngine(self.sglang, compare_prompts=0, check_logprobs=False)
        played = collect(
            partial(Corridor, opening=opening, max_turns=turns),
            engine,
            self.codec,
            episodes=episodes,
            concurrency=CONCURRENT,
            config=RolloutConfig(sanity="off"),
        )
        kept = [trajectory async for trajectory in played]
        await engine.aclose()
        for trajectory in kept:
            assert trajectory.fault is None, trajectory.fault
            assert len(trajectory.turns) == turns
        return kept


def cost(side: Side, opening: int, turns: int, episodes: int) -> float:
    """Return CPU milliseconds per turn."""
    gc.collect()
    started = time.process_time()
    asyncio.run(side(opening, turns, episodes))
    return 1e3 * (time.process_time() - started) / (turns * episodes)


def weight(side: Side, turns: int, episodes: int) -> float:
    """Return the MB that Python allocated for 1,000 finished episodes of a short opening."""
    gc.collect()
    tracemalloc.start()
    kept = asyncio.run(side(1, turns, episodes))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 1e3 / len(kept)


def tokens_of(contest: Contest, opening: int, turns: int) -> tuple[int, int]:
    """Return the tokens at the end of an episode of verifiers and of envkit."""
    (own,) = asyncio.run(contest.own(opening, turns, 1))
    (mine,) = asyncio.run(contest.envkit(opening, turns, 1))
    return len(own.traces[0].branches[0].token_ids), len(mine.train_ids())


def measure(contest: Contest, opening: int, turns: int, episodes: int, kept: int) -> dict[str, Any]:
    """Play both sides in turn, three times, and return the lowest of each."""
    sides = {"own": contest.own, "envkit": contest.envkit}
    own, mine = tokens_of(contest, opening, turns)  # warms both up
    figures: dict[str, Any] = {"tokens": {"own": own, "envkit": mine}, "turns": turns}
    for name, length in (("long", opening), ("short", 1)):
        rounds = [
            {side: cost(play, length, turns, episodes) for side, play in sides.items()}
            for _ in range(3)
        ]
        figures[name] = {side: min(one[side] for one in rounds) for side in sides}
        figures[name]["rounds"] = rounds
    figures["mb_per_1000"] = {side: weight(play, turns, kept) for side, play in sides.items()}
    return figures


async def serve(folder: str) -> None:
    """Answer on a free port, which is printed, forever."""
    load: Any = AutoTokenizer.from_pretrained
    reply: list[int] = load(folder).encode(REPLY)[:REPLY_TOKENS]

    async def generate(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        ids = [*reply, body["sampling_params"]["stop_token_ids"][0]]
        chosen = [{"token": f"token_id:{one}", "logprob": -0.5} for one in ids]
        choice = {"token_ids": ids, "logprobs": {"content": chosen}, "finish_reason": "stop"}
        answer = {"request_id": "1", "choices": [{"index": 0, **choice}]}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 1 << 20}]})

    app = web.Application(client_max_size=1 << 28)
    app.add_routes([
        web.post("/inference/v1/generate", generate),
        web.get("/v1/models", models),
    ])  # fmt: skip
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def tokenizer() -> Generator[str]:
    """Yield a folder with a tokenizer that both sides load, with the tokens of Qwen3's template."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(builtin_model_dir(), folder, dirs_exist_ok=True)
        load: Any = AutoTokenizer.from_pretrained
        found = load(folder)
        found.add_special_tokens({"additional_special_tokens": list(MARKS)})
        found.save_pretrained(folder)
        yield folder


def main() -> None:
    """Serve, or play both sides and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="FOLDER")
    for name in ("opening", "turns", "episodes", "kept"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--json", type=Path)
    chosen = vars(parser.parse_args())
    path: Path | None = chosen.pop("json")
    served: str | None = chosen.pop("serve")
    if served is not None:
        asyncio.run(serve(served))
        return
    with (
        tokenizer() as folder,
        sglang_server(0.0) as sglang,
        serving([sys.executable, __file__, "--serve", folder]) as vllm,
    ):
        figures = measure(Contest(folder, (sglang, vllm)), **chosen)
    if path is not None:
        path.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
