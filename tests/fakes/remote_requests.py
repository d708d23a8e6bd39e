"""Requests for the engines of HTTP servers, with two images of known token counts."""

from collections.abc import Sequence
from typing import Any

from fakes.sglang_model import FakeRequest
from PIL import Image as PilImage

from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling

PAD = 9
RED = Image.from_pil(PilImage.new("RGB", (84, 56), "red"))
BLUE = Image.from_pil(PilImage.new("RGB", (28, 28), "blue"))
RED_TOKENS, BLUE_TOKENS = 6, 1


def reply(_request: FakeRequest) -> list[int]:
    """Write the same three tokens."""
    return [20, 21, 22]


def ask(
    ids: Sequence[int] = (4, 5, 6),
    images: Sequence[Image] = (),
    *,
    length: int | None = None,
    name: str = "a" * 32,
    **sampling: Any,
) -> GenerateRequest:
    """Return a request; its length is that of the ids unless images expand it."""
    return GenerateRequest(
        request_id=name,
        session_id="episode-1",
        wire_ids=tuple(ids),
        images=tuple(images),
        train_length=len(ids) if length is None else length,
        sampling=Sampling(**sampling),
    )
