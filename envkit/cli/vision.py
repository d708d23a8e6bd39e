"""Check through the engine protocol alone whether images reach the model.

A canary environment draws a code that does not appear in the text. The same question is asked with
its image (several times, which measures how reproducible the engine is), with another code's image,
with a blank image and with none. If an image reaches the model, replacing it changes the
log-probabilities by more than a repetition does.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from envkit.cli.engines import Built
from envkit.errors import Fault, TemplateError
from envkit.images import Image
from envkit.messages import Message, images_of, message, text_of
from envkit.rollout.engine import Sampling, sample_once

if TYPE_CHECKING:
    from envkit.tokens.encoded import Encoded

CANARY: Final = "canary-v0"
_REPEATS: Final = 3
_REPLY_TOKENS: Final = 8
_NOISE_FACTOR: Final = 4.0
"""How many times larger than the noise of repetition a difference must be to count."""
_NOISE_FLOOR: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question and the engine's answer."""

    picture: str
    """Description of its image."""
    expected_tokens: int
    """Length of the prompt with the image's placeholders expanded."""
    prompt_tokens: int | None
    """Prompt tokens that the engine counted; None if it did not report them."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionResult:
    """Whether the image reaches the model."""

    reaches: bool
    reasons: tuple[str, ...]
    probes: tuple[Probe, ...] = ()
    reads: bool = False
    """Whether a reply contained the code, so the model can also read the image."""


async def look(built: Built, *, seed: int | None = None) -> VisionResult:
    """Ask the questions and compare the answers.

    Args:
        built: Engine and codec.
        seed: Seed of the codes; None draws one, so that no cache or model can know them.
    """
    first, second, codes = _questions(secrets.randbits(31) if seed is None else seed)
    blank = _with_images(first, [_blank(images_of(first)[0])])
    asked = [(f"code {codes[0]}", first)] * _REPEATS
    asked += [(f"code {codes[1]}", second), ("blank", blank), ("none", _with_images(first, []))]
    probes: list[Probe] = []
    try:
        for picture, messages in asked:
            probes.append(await _ask(built, picture, messages))
    except (TemplateError, Fault) as error:
        why = "the engine rejected it"
        if isinstance(error, TemplateError):
            why = "the model's chat template or processor does not support images"
        return VisionResult(reaches=False, reasons=(f"{why}: {error}",), probes=tuple(probes))
    return judge(probes, code=codes[0])


def judge(probes: Sequence[Probe], *, code: str) -> VisionResult:
    """Compare answers to the same image, another code's image, a blank one and none.

    Args:
        probes: The probes in the order of `look`; the first ones are repetitions.
        code: The code in the first image.
    """
    same, (other, blank, none) = probes[:-3], probes[-3:]
    first = same[0]
    problems = [_count_problem(p) for p in probes if p.prompt_tokens != p.expected_tokens]
    noise = max(difference(first, again) for again in same[1:])
    threshold = _NOISE_FACTOR * noise + _NOISE_FLOOR
    findings = [f"the image adds {first.expected_tokens - none.expected_tokens} tokens"]
    if noise == float("inf"):
        problems.append(
            "the same image gives different greedy replies, so nothing can be compared; "
            "start the engine with deterministic inference"
        )
    findings.append(f"the same image again: log-probabilities differ by {noise:.2g}")
    for probe in (other, blank):
        gap = difference(first, probe)
        text = (
            "the reply differs" if gap == float("inf") else f"log-probabilities differ by {gap:.2g}"
        )
        findings.append(f"image {probe.picture} instead: {text}")
        if gap <= threshold:
            problems.append(
                f"image {probe.picture} changes nothing: images are dropped or replaced before "
                "they reach the model; was the server started with images enabled?"
            )
    reads = any(code in probe.reply.upper() for probe in same)
    return VisionResult(
        reaches=not problems,
        reasons=tuple(problems or findings),
        probes=tuple(probes),
        reads=reads,
    )


def difference(one: Probe, other: Probe) -> float:
    """Return the largest gap between log-probabilities of two replies; inf if tokens differ."""
    if one.token_ids != other.token_ids:
        return float("inf")
    gaps = [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    return max(gaps, default=0.0)


def _count_problem(probe: Probe) -> str:
    return (
        f"image {probe.picture}: the engine counted {probe.prompt_tokens} prompt tokens, but the "
        f"processor gives {probe.expected_tokens}"
    )


async def _ask(built: Built, picture: str, messages: list[Message]) -> Probe:
    encoded: Encoded = built.codec.encode_prompt(messages)
    sampling = Sampling(temperature=0.0, max_new_tokens=_REPLY_TOKENS).for_codec(built.codec)
    generation = await sample_once(built.engine, encoded, sampling)
    return Probe(
        picture=picture,
        expected_tokens=len(encoded.train_ids),
        prompt_tokens=generation.prompt_tokens,
        token_ids=tuple(generation.token_ids),
        logprobs=tuple(generation.logprobs),
        reply=built.codec.decode(generation.token_ids),
    )


def _questions(seed: int) -> tuple[list[Message], list[Message], tuple[str, str]]:
    """Return the question with two codes' images, and the codes."""
    from envkit.registration import make

    env = make(CANARY)
    try:
        asked: list[list[Message]] = []
        codes: list[str] = []
        for episode_seed in (seed, seed + 1):
            observation, _ = env.reset(seed=episode_seed)
            codes.append(env.task["codes"][0])
            system = message("system", env.system_prompt or "")
            asked.append([system, env.format_observation(observation)])
    finally:
        env.close()
    return asked[0], asked[1], (codes[0], codes[1])


def _blank(image: Image) -> Image:
    width, height = image.size
    return Image.from_array(np.full((height, width, 3), 255, dtype=np.uint8))


def _with_images(messages: Sequence[Message], images: Sequence[Image]) -> list[Message]:
    return [*messages[:-1], message("user", text_of(messages[-1]), images)]
