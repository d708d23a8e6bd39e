"""A family's own processor output for a whole conversation, compared with the codec's ledger."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.errors import EnvkitError
from envkit.images import Image
from envkit.messages import Message, images_of
from envkit.tokens import ChatCodec, join_features

PER_TOKEN = {
    *("input_ids", "attention_mask", "cross_attention_mask"),
    *("mm_token_type_ids", "moe_mm_token_type_ids", "token_type_ids"),
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one family."""

    exact: int = 0
    """Points of conversations at which ids and tensors were equal."""
    wrong: str = ""
    """The first difference."""
    refused: str = ""
    """Why the family is refused."""


def compare(codec: ChatCodec, processor: Any, talks: Sequence[list[Message]]) -> Outcome:
    """Return whether the codec's ledger is what the processor makes of whole conversations.

    Every second reply is cut short, so that its closer is the codec's to write.
    """
    exact = 0
    for talk in talks:
        try:
            for problem in _points(codec, processor, talk):
                if problem:
                    return Outcome(exact=exact, wrong=problem)
                exact += 1
        except EnvkitError as error:
            return Outcome(exact=exact, refused=str(error))
    return Outcome(exact=exact)


def _points(codec: ChatCodec, processor: Any, talk: list[Message]) -> Iterator[str]:
    ends = [place for place, entry in enumerate(talk) if entry["role"] == "assistant"]
    prompt = codec.encode_prompt(talk[: ends[0]])
    train, features = list(prompt.train_ids), list(prompt.features)
    yield _difference(processor, talk[: ends[0]], train, join_features(features))
    for number, (start, end) in enumerate(zip(ends, [*ends[1:], len(talk)], strict=True)):
        reply = codec.encode_reply(str(talk[start]["content"]))
        reply = reply[:-1] if number % 2 else reply
        delta = codec.encode_observation(
            talk[start + 1 : end],
            sampled_ids=reply,
            history=talk[: start + 1],
            previous_images=len(features) if number else None,
        )
        train += [*reply, *delta.train_ids]
        features += delta.features
        yield _difference(processor, talk[:end], train, join_features(features))


def _difference(
    processor: Any, messages: list[Message], ids: list[int], tensors: Mapping[str, NDArray[Any]]
) -> str:
    expected_ids, expected = whole(processor, messages)
    if ids != expected_ids:
        place = next(
            (i for i, (a, b) in enumerate(zip(ids, expected_ids, strict=False)) if a != b),
            min(len(ids), len(expected_ids)),
        )
        decode = processor.tokenizer.decode
        return (
            f"ids differ at {place}: {decode(ids[place : place + 8])!r}, expected "
            f"{decode(expected_ids[place : place + 8])!r}"
        )
    if set(tensors) != set(expected):
        return f"tensors {sorted(tensors)}, expected {sorted(expected)}"
    for key, array in expected.items():
        got = tensors[key]
        if got.shape != array.shape or not np.array_equal(got, array):
            return f"{key} {got.shape} differs from {array.shape}"
        if got.dtype != array.dtype:
            return f"{key} is {got.dtype}, expected {array.dtype}"
    return ""


def whole(processor: Any, messages: list[Message]) -> tuple[list[int], dict[str, NDArray[Any]]]:
    """Return the ids and tensors of one call for a whole conversation."""
    images = [image.pil() for image in images_of(messages)]
    text = processor.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    inputs: dict[str, Any] = {"text": [text], "add_special_tokens": False, "return_tensors": "pt"}
    if not images:
        return list(processor.tokenizer.encode(text, add_special_tokens=False)), {}
    output = processor(images=images, **inputs)
    ids = [int(identity) for identity in output["input_ids"][0]]
    return ids, {key: _array(value) for key, value in output.items() if key not in PER_TOKEN}


def _array(tensor: Any) -> NDArray[Any]:
    kind = str(tensor.dtype)
    return (tensor.float() if kind == "torch.bfloat16" else tensor).numpy()


def conversations(seed: int) -> list[list[Message]]:
    """Return conversations of several turns with one to three images each, of mixed sizes."""
    rng = np.random.default_rng(seed)

    def image() -> dict[str, Any]:
        width, height = (int(size) for size in rng.integers(40, 420, 2))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        return {"type": "image", "image": Image.from_array(pixels)}

    def say(*parts: Any, role: str = "user") -> Any:
        content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
        plain = len(parts) == 1 and isinstance(parts[0], str)
        return {"role": role, "content": parts[0] if plain else content}

    def reply(text: str) -> Any:
        return {"role": "assistant", "content": text}

    talks: list[list[Message]] = [
        [say(image(), "What?"), reply("A cat."), say("Sure?"), reply("Yes."), say("Why?")],
        [say("Look."), reply("At what?"), say(image(), "\n\n"), reply("I see."), say(image())],
        [
            say("Be brief.", role="system"),
            say("one", image(), " \n", image(), "two"),
            reply("Two images."),
            say(image(), image(), "\nand now?"),
            reply("Four."),
            say("text only"),
            reply("Fine."),
            say(" ends with ", image()),
        ],
        [
            say(image(), image(), image(), "three"),
            reply("1"),
            say(image(), "4"),
            reply("2"),
            say("\n", image()),
        ],
    ]
    return talks
