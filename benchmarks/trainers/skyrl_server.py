"""The fake server of SkyRL's contest: vLLM's render and generate endpoints, strict and instant.

Runs in its own process, so its time counts for neither side. Prints its port and answers until
terminated. `/counts` returns and clears the numbers of turns and images.
"""

import asyncio
import base64
import hashlib
from typing import Any

import orjson
import torch
from aiohttp import web
from contest import REPLY, TOKENS
from fakes.codecs import vision_codec

from envkit.images import Image
from envkit.messages import Message, message


class Server:
    """Renders like the model's template, and counts placeholders before it answers."""

    def __init__(self) -> None:
        self.codec = vision_codec()
        self.pad = self.codec.media_ids[0]
        self.images: dict[str, Image] = {}
        self.tensors: dict[str, str] = {}
        self.kept: set[str] = set()
        """Hashes of the images whose tensors came; vLLM keeps them by hash."""
        self.turns = self.pictures = 0
        ids = list(self.codec.encode_reply(REPLY))
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": -0.5} for _ in ids]},
            "finish_reason": "stop",
        }
        self.answer = orjson.dumps({"choices": [choice]})

    async def render(self, request: web.Request) -> web.Response:
        """Return the ids of a conversation and its images' tensors."""
        body = orjson.loads(await request.read())
        encoded = self.codec.encode_prompt([self._message(entry) for entry in body["messages"]])
        places: list[dict[str, int]] = []
        ids, start = list(encoded.train_ids), 0
        for feature in encoded.features:
            start = ids.index(self.pad, start)
            places.append({"offset": start, "length": feature.token_count})
            start += feature.token_count
        features: dict[str, Any] = {
            "mm_hashes": {"image": [image.sha256 for image in encoded.images]},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [self._data(image) for image in encoded.images]},
        }
        return _json(orjson.dumps({"token_ids": ids, "features": features}))

    async def generate(self, request: web.Request) -> web.Response:
        """Check a request and answer it."""
        body = orjson.loads(await request.read())
        ids, features = body["token_ids"], body["features"]
        places, data = features["mm_placeholders"]["image"], features["kwargs_data"]["image"]
        hashes = features["mm_hashes"]["image"]
        self.kept |= {name for name, one in zip(hashes, data, strict=True) if one is not None}
        if not self.kept.issuperset(hashes):
            return _json(b'{"error": {"message": "an image is not in the cache"}}', status=500)
        if not ids.count(self.pad) == TOKENS * len(places) == TOKENS * len(data):
            return _json(b'{"error": {"message": "placeholders and images differ"}}', status=400)
        self.turns += 1
        self.pictures += len(places)
        return _json(self.answer)

    async def counts(self, _request: web.Request) -> web.Response:
        """Return the counts since the last call."""
        found = orjson.dumps([self.turns, self.pictures])
        self.turns = self.pictures = 0
        return _json(found)

    def _message(self, entry: dict[str, Any]) -> Message:
        content = entry["content"]
        if isinstance(content, str):
            return message(entry["role"], content)
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        text = "".join(part["text"] for part in content if part["type"] == "text")
        return message(entry["role"], text, tuple(self._image(uri) for uri in pictures))

    def _image(self, uri: str) -> Image:
        key = hashlib.sha256(uri.encode()).hexdigest()
        if key not in self.images:
            self.images[key] = Image.from_data_uri(uri)
        return self.images[key]

    def _data(self, image: Image) -> str:
        """Return the tensors in the model's precision, as text; vLLM's own format is as large."""
        if image.sha256 not in self.tensors:
            (feature,) = self.codec.image_features([image])
            pixels = torch.from_numpy(feature.tensors["pixel_values"].copy()).bfloat16()
            grid = torch.from_numpy(feature.tensors["image_grid_thw"].copy()).long()
            data = grid.numpy().tobytes() + pixels.view(torch.int16).numpy().tobytes()
            self.tensors[image.sha256] = base64.b64encode(data).decode()
        return self.tensors[image.sha256]


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


async def _finished(_request: web.Request) -> web.Response:
    return _json(b"{}")


async def serve() -> None:
    """Listen on a free port until the process ends."""
    server, app = Server(), web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions/render", server.render)
    app.router.add_post("/inference/v1/generate", server.generate)
    app.router.add_post("/finish_session", _finished)
    app.router.add_get("/counts", server.counts)
    runner = web.AppRunner(app, keepalive_timeout=600.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
