"""The model behind the fake server: prompt expansion, replies, stop rules, log-probabilities.

Log-probabilities are a function of the token and everything before it, images included, so
scoring a conversation returns the numbers that sampling it did.
"""

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Any

from fakes.sglang_schema import crash_refusal, value_refusal
from PIL import Image

_MASK = (1 << 61) - 1


class Family(StrEnum):
    """How a server treats placeholders that do not match its images."""

    QWEN2_5_VL = "qwen2_5_vl"
    """Expanded placeholders hang; too few images are a 400."""
    QWEN3_VL = "qwen3_vl"
    """Both are a 500 in plain text."""
    RETOKENISES = "retokenises"
    """A patched or older processor: expanded placeholders change the prompt."""


@dataclass(frozen=True, kw_only=True)
class FakeRequest:
    """What a reply script may look at."""

    index: int
    """Number of the request at this server, from 0."""
    payload: Mapping[str, Any]
    wire_ids: tuple[int, ...]
    images: tuple[Image.Image, ...]
    session: str | None
    """The routing header."""


class HangError(Exception):
    """The request never gets an answer."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as the model sees it."""

    ids: tuple[int, ...]
    """Images expanded."""
    keys: tuple[int, ...]
    """Like ids, with every expanded token standing for its image."""
    image_tokens: int


def qwen_image_tokens(width: int, height: int) -> int:
    """Return a count that depends on both sides, small enough for tests."""
    return max(1, round(width / 28)) * max(1, round(height / 28))


def decode_images(data: Any) -> tuple[Image.Image, ...]:  # any JSON
    """Return the images of `image_data`, or refuse as the loader does."""
    items = data if isinstance(data, list) else [] if data is None else [data]
    pictures: list[Image.Image] = []
    for index, item in enumerate(items):
        try:
            uri = item if isinstance(item, str) else item["url"]
            raw = base64.b64decode(uri.partition("base64,")[2] or uri, validate=True)
            with Image.open(io.BytesIO(raw)) as opened:
                pictures.append(opened.copy())
        except (OSError, ValueError, KeyError) as error:
            raise value_refusal(
                f"An exception occurred while loading IMAGE data at index {index}: {error}"
            ) from error
    return tuple(pictures)


def expand_prompt(
    wire_ids: Sequence[int],
    images: Sequence[Image.Image],
    *,
    image_token_id: int | None,
    family: Family,
    count_tokens: Callable[[int, int], int],
) -> Prompt:
    """Expand one placeholder per image, or fail as the family does."""
    placeholders = 0 if image_token_id is None else list(wire_ids).count(image_token_id)
    if not images or not placeholders:
        # Without images a placeholder stays a token; without placeholders images vanish.
        return Prompt(ids=tuple(wire_ids), keys=tuple(wire_ids), image_tokens=0)
    if placeholders > len(images):
        wire_ids = _mismatch(wire_ids, len(images), placeholders, image_token_id, family)
    ids: list[int] = []
    keys: list[int] = []
    remaining = iter(images)
    image_tokens = 0
    for token in wire_ids:
        picture = next(remaining, None) if token == image_token_id else None
        if picture is None:
            ids.append(token)
            keys.append(token)
            continue
        count = count_tokens(*picture.size)
        digest = hashlib.sha256(f"{picture.mode}{picture.size}".encode() + picture.tobytes())
        ids.extend([token] * count)
        keys.extend([int.from_bytes(digest.digest()[:7], "big")] * count)
        image_tokens += count
    return Prompt(ids=tuple(ids), keys=tuple(keys), image_tokens=image_tokens)


def _mismatch(
    wire_ids: Sequence[int], images: int, placeholders: int, token: int | None, family: Family
) -> list[int]:
    has_runs = any(first == second == token for first, second in pairwise(wire_ids))
    if family is Family.QWEN3_VL:
        raise crash_refusal()
    if family is Family.QWEN2_5_VL:
        if has_runs:
            raise HangError
        raise value_refusal(
            f"Prompt has {placeholders} image placeholders but {images} image inputs were provided"
        )
    collapsed = [
        item
        for value, run in groupby(wire_ids)
        for item in ([value] if value == token else list(run))
    ]
    # Decoding and encoding again splits a word differently: one token more than was sent.
    return [collapsed[0], *collapsed]


def prefix_hashes(keys: Sequence[int]) -> list[int]:
    """Return a hash of every non-empty prefix."""
    hashes: list[int] = []
    state = 7
    for key in keys:
        state = (state * 1_000_003 + key + 1) & _MASK
        hashes.append(state)
    return hashes


def logprob_of(prefix_hash: int) -> float:
    """Return the log-probability of a token from the hash of the prefix that it ends."""
    return -0.001 - (prefix_hash % 9973) / 2500


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A whole reply, before anybody aborts it."""

    ids: tuple[int, ...]
    finish: dict[str, Any]
    stop_string: str | None = None


def finish_reply(
    ids: Sequence[int],
    params: Mapping[str, Any],
    *,
    eos_ids: Sequence[int],
    decode: Callable[[Sequence[int]], str],
) -> Reply:
    """Cut a scripted reply where a server would stop; the stop token stays in it.

    Banned ids are left out, and a reply that just ends gets the model's end token.
    """
    banned = {int(key) for key, bias in (params.get("logit_bias") or {}).items() if bias < -1000}
    stop_ids = set(params.get("stop_token_ids") or ())
    if not params.get("ignore_eos"):
        stop_ids |= set(eos_ids)
    stops = params.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    limit = params.get("max_new_tokens")
    limit = 128 if limit is None else limit
    out: list[int] = []
    for token in [*(token for token in ids if token not in banned), *eos_ids[:1]]:
        if len(out) >= limit:
            break
        out.append(token)
        if token in stop_ids:
            return Reply(ids=tuple(out), finish={"type": "stop", "matched": token})
        matched = next((stop for stop in stops if stop in decode(out)), None)
        if matched is not None:
            return Reply(
                ids=tuple(out), finish={"type": "stop", "matched": matched}, stop_string=matched
            )
    return Reply(ids=tuple(out), finish={"type": "length", "length": len(out)})
