"""Images that travel once, with SkyRL's real client and a real vLLM server on this machine's CPU.

It runs against `make contract-vllm`'s server, which `scripts/servers/contract.py vllm --serve`
keeps, in the environment of `make contract-skyrl`:

    ENVKIT_VLLM_URL=... ENVKIT_VLLM_MODEL=... scripts/contracts/run.py skyrl -- -k skyrl_vllm
"""

import os
import urllib.request
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from PIL import Image as PilImage
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from transformers import AutoTokenizer

from envkit.images import Image
from envkit.messages import message
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit.tokens import ChatCodec, load_codec
from envkit_skyrl import SkyRLEngine

URL, MODEL = os.environ.get("ENVKIT_VLLM_URL"), os.environ.get("ENVKIT_VLLM_MODEL", "")
pytestmark = pytest.mark.skipif(URL is None, reason="no vLLM server (ENVKIT_VLLM_URL)")
TURNS = 6
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return load_codec(MODEL)


class Counting(RemoteInferenceClient):
    """SkyRL's client, which also counts the images whose tensors it sends."""

    def __init__(self) -> None:
        super().__init__(
            proxy_url=URL,
            server_urls=[URL],
            data_parallel_size=1,
            model_name=MODEL,
            tokenizer=AutoTokenizer.from_pretrained(MODEL),
        )
        self.sent: list[int] = []

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        (features,) = input_batch["mm_features"]
        data = features["kwargs_data"]["image"]
        self.sent.append(sum(one is not None for one in data))
        return await super().generate(input_batch, model)


@pytest.fixture
async def client() -> AsyncGenerator[Counting]:
    made = Counting()
    yield made
    await made.aclose()


def turns(codec: ChatCodec) -> list[GenerateRequest]:
    """Return the requests of an episode that shows another picture each turn."""
    found: list[GenerateRequest] = []
    conversation: list[Any] = []
    for number, colour in enumerate(COLOURS):
        picture = Image.from_pil(PilImage.new("RGB", (112, 84), colour))
        conversation.append(message("user", "What is it?", (picture,)))
        encoded = codec.encode_prompt(conversation)
        found.append(
            GenerateRequest(
                request_id=f"r{number}",
                session_id="a_0",
                wire_ids=encoded.wire_ids,
                images=encoded.images,
                train_length=len(encoded.train_ids),
                sampling=Sampling(temperature=0.0, max_new_tokens=4),
            )
        )
        conversation.append(message("assistant", colour))
    return found


def reset_cache() -> None:
    """Clear the server's cache, as SkyRL does when it updates the weights."""
    request = urllib.request.Request(f"{URL}/reset_mm_cache", method="POST")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


async def test_replies_are_equal_and_each_image_travels_once(
    client: Counting, codec: ChatCodec
) -> None:
    whole = SkyRLEngine(client, image_token_id=codec.media_ids[0])
    expected = [await whole.generate(request) for request in turns(codec)]
    assert client.sent == [1, 2, 3, 4, 5, 6]
    client.sent.clear()
    reset_cache()
    once = SkyRLEngine(client, image_token_id=codec.media_ids[0], keeps_images=True)
    for number, request in enumerate(turns(codec)):
        if number == TURNS - 1:
            reset_cache()
        found = await once.generate(request)
        assert found.token_ids == expected[number].token_ids
        assert found.logprobs == pytest.approx(expected[number].logprobs, abs=1e-4)
    assert client.sent == [1, 1, 1, 1, 1, 1, 6]  # the last one missed, and was sent again
