"""A load-test server for SGLang's `/generate` that samples nothing, in its own process.

Replies are fixed ids and the client's stop token. Each takes a log-normal time determined by its
session and prompt length, so the client can compute the total waiting.
"""

import argparse
import asyncio
import hashlib
import math
import random
import resource
from typing import Any

from aiohttp import web

REPLY_IDS = list(range(100, 112))


def raise_file_limit() -> int:
    """Raise the descriptor limit to the system's maximum and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def draw_wait(mean_s: float, sigma: float, *key: object) -> float:
    """Return a log-normal time determined by the key."""
    if mean_s <= 0:
        return 0.0
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    rng = random.Random(int.from_bytes(digest, "big"))
    return rng.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)


def reply_wait(mean_s: float, session: str, prompt_tokens: int) -> float:
    """Return the server's time for a reply."""
    return draw_wait(mean_s, 0.8, session, prompt_tokens)


class Server:
    """Answers `/generate` and the information routes."""

    def __init__(self, mean_s: float, image_tokens: int) -> None:
        self._mean_s, self._image_tokens = mean_s, image_tokens

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=1 << 28)
        app.add_routes([
            web.post("/generate", self._generate),
            web.post("/abort_request", self._nothing),
            web.get("/health", self._nothing),
            web.get("/ready", self._nothing),
            web.get("/model_info", self._model_info),
            web.get("/get_model_info", self._model_info),
            web.get("/server_info", self._server_info),
        ])  # fmt: skip
        return app

    async def _generate(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        prompt, images = body["input_ids"], len(body.get("image_data", ()))
        session = request.headers.get("X-SMG-Routing-Key", "")
        wait_s = reply_wait(self._mean_s, session, len(prompt))
        if wait_s:
            await asyncio.sleep(wait_s)
        params = body.get("sampling_params") or {}
        stops = params.get("stop_token_ids") or [2]
        ids = [*REPLY_IDS, stops[0]]
        return web.json_response({
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "id": body.get("rid"),
                "finish_reason": {"type": "stop", "matched": stops[0]},
                "prompt_tokens": len(prompt) + images * (self._image_tokens - 1),
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "weight_version": "1",
                "output_token_logprobs": [[-0.5, token, None] for token in ids],
            },
        })  # fmt: skip

    async def _nothing(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"model_path": "none", "weight_version": "1"})

    async def _server_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "context_length": 1 << 20})


async def serve(mean_s: float, image_tokens: int) -> None:
    """Listen on a free port, print it, and serve forever."""
    runner = web.AppRunner(Server(mean_s, image_tokens).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1 << 15).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mean-s", type=float, default=0.0, help="mean seconds of a reply")
    parser.add_argument("--image-tokens", type=int, default=1, help="tokens of every image")
    options = parser.parse_args()
    raise_file_limit()
    asyncio.run(serve(options.mean_s, options.image_tokens))


if __name__ == "__main__":
    main()
