"""What contract tests of real servers share: a conversation, and each server's own words."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from PIL import Image as PilImage

from envkit.images import Image
from envkit.messages import message
from envkit.rollout.engine import GenerateRequest, Generation, Sampling
from envkit.tokens import ChatCodec
from envkit_remote import RemoteEngine

PICTURES = (
    Image.from_pil(PilImage.new("RGB", (320, 240), "red")),
    Image.from_pil(PilImage.effect_noise((200, 333), 80)),
    Image.from_pil(PilImage.new("RGB", (64, 64), "blue")),
)


class Conversation:
    """A ledger in two lists, grown turn by turn."""

    def __init__(self, codec: ChatCodec, engine: RemoteEngine) -> None:
        self.codec, self.engine = codec, engine
        self.wire: list[int] = []
        self.train: list[int] = []
        self.images: list[Image] = []
        self.replies: list[tuple[int, Generation]] = []

    async def turn(self, text: str, images: Sequence[Image] = (), **sampling: Any) -> Generation:
        said = [message("user", text, images)]
        if self.replies:
            last = self.replies[-1][1].token_ids
            encoded = self.codec.encode_observation(said, sampled_ids=last)
        else:
            encoded = self.codec.encode_prompt(said)
        self.wire.extend(encoded.wire_ids)
        self.train.extend(encoded.train_ids)
        self.images.extend(images)
        settings: dict[str, Any] = {"max_new_tokens": 12, **sampling}
        generation = await self.engine.generate(
            GenerateRequest(
                request_id=f"{len(self.replies):032x}",
                session_id="conversation",
                wire_ids=self.wire,
                images=self.images,
                train_length=len(self.train),
                sampling=Sampling(
                    banned_ids=self.codec.media_ids, stop_ids=self.codec.stop_ids, **settings
                ),
            )
        )
        self.replies.append((len(self.train), generation))
        self.wire.extend(generation.token_ids)
        self.train.extend(generation.token_ids)
        return generation


def ask(ids: Sequence[int], name: int = 0, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{name:032x}",
        session_id="session",
        wire_ids=ids,
        images=(),
        train_length=len(ids),
        sampling=Sampling(**sampling),
    )


async def _sglang_load(session: aiohttp.ClientSession) -> tuple[int, int]:
    async with session.get("/v1/loads?include=core") as response:
        load = (await response.json())["loads"][0]
    return load["num_running_reqs"], load["num_waiting_reqs"]


async def _vllm_load(session: aiohttp.ClientSession) -> tuple[int, int]:
    async with session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    found = [0, 0]
    for index, name in enumerate(("vllm:num_requests_running{", "vllm:num_requests_waiting{")):
        found[index] = sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))
    return found[0], found[1]


@dataclass(frozen=True, kw_only=True)
class ServerKind:
    """How one kind of server differs, as far as the common contract sees it."""

    version: str
    load: Callable[[aiohttp.ClientSession], Awaitable[tuple[int, int]]]
    """Requests that run, and that wait."""
    cache_block: int
    """A prefix cache counts whole blocks of so many tokens."""


KINDS = {
    "sglang": ServerKind(version="0.5.23", load=_sglang_load, cache_block=1),
    "vllm": ServerKind(version="0.32.0", load=_vllm_load, cache_block=128),
}


async def until_idle(kind: str, url: str, *, waiting: int | None = None) -> None:
    """Wait until nothing runs, or until at least so many requests wait."""
    async with asyncio.timeout(120), aiohttp.ClientSession(url) as session:
        while True:
            load = await KINDS[kind].load(session)
            if load[1] >= waiting if waiting is not None else not sum(load):
                return
            await asyncio.sleep(0.1)
