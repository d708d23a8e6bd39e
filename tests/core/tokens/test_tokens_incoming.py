"""What a codec refuses: malformed messages, tokenizers that sample, images without pixels."""

import io
import struct
from typing import Any

import numpy as np
import pytest
from fakes.codecs import vision_codec
from fakes.small_chat import TOKENS, byte_tokenizer
from fakes.templates import default_codec, load_tokenizer

from envkit.errors import ConfigurationError, EnvkitError, ImageError, TemplateError
from envkit.images import Image
from envkit.messages import message
from envkit.tokens import ChatCodec

HISTORY: list[Any] = [message("user", "u"), message("assistant", "w")]
PARTS: list[Any] = [
    *({}, {"text": "x"}, {"type": "text"}, {"type": "image"}, {"type": None}, "x", None, 3, ["x"]),
    *({"type": "text", "text": one} for one in (None, 3, b"x", ["a"], {})),
    *({"type": "image", "image": one} for one in (None, "x.png", b"x", np.zeros((2, 2, 3)))),
    {"type": "image_url", "image_url": {"url": "x"}},
]
MESSAGES: list[Any] = [
    *("x", None, 3, ["x"], {}, {"role": "user"}, {"content": "x"}, {"role": None, "content": "x"}),
    *({"role": "user", "content": one} for one in (None, 3, b"x", {"type": "text", "text": "x"})),
    *({"role": "robot", "content": "x"}, {"role": 3, "content": "x"}),
    *({"role": "user", "content": "x", "trusted": one} for one in (5, [[0]], [3], "x", [["a", 1]])),
]
CALLS: list[Any] = [[3], "x", [None], [{"function": None}], [{"function": "f"}], 5, {"a": 1}, [{}]]
CHAT = (
    "{% for m in messages %}<user>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)


def refused(codec: ChatCodec, entry: Any) -> None:
    """See a message refused wherever the codec reads it."""
    sampled = [codec.stop_ids[0]]
    observed: Any = [message("user", "x")]
    given = codec.encode_observation(observed, sampled_ids=sampled, history=HISTORY)
    with pytest.raises(TemplateError):
        codec.encode_prompt([entry])
    with pytest.raises(TemplateError):
        codec.encode_prompt([entry, message("user", "q")])
    with pytest.raises(TemplateError):
        codec.encode_observation([entry], sampled_ids=sampled, history=HISTORY)
    with pytest.raises(TemplateError):
        codec.encode_observation([message("user", "x"), entry], sampled_ids=sampled)
    with pytest.raises(TemplateError):
        codec.check_observation([entry], given, sampled_ids=sampled, history=HISTORY)
    history = [entry, message("assistant", "w")]
    with pytest.raises(TemplateError):
        codec.check_observation(observed, given, sampled_ids=sampled, history=history)


@pytest.mark.parametrize("part", PARTS, ids=repr)
@pytest.mark.parametrize("role", ["user", "tool", "system"])
@pytest.mark.parametrize("make", [lambda: default_codec("qwen3"), vision_codec])
def test_malformed_part_is_refused_with_a_typed_error(make: Any, role: str, part: Any) -> None:
    refused(make(), {"role": role, "content": [part]})
    refused(make(), {"role": role, "content": [{"type": "text", "text": "x"}, part]})


@pytest.mark.parametrize("entry", MESSAGES, ids=repr)
def test_malformed_message_is_refused_with_a_typed_error(entry: Any) -> None:
    refused(default_codec("qwen3"), entry)


@pytest.mark.parametrize("calls", CALLS, ids=repr)
def test_malformed_calls_are_refused_with_a_typed_error(calls: Any) -> None:
    codec, entry = default_codec("qwen3"), {"role": "assistant", "content": "", "tool_calls": calls}
    history: Any = [message("user", "u"), entry]
    with pytest.raises(EnvkitError):
        codec.encode_observation([message("user", "x")], sampled_ids=[], history=history)
    with pytest.raises(EnvkitError):
        codec.encode_prompt([*history, message("user", "x")])


def test_reply_that_only_makes_calls_needs_no_content() -> None:
    codec = default_codec("qwen3")
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    for content in ({}, {"content": None}, {"content": ""}):
        reply: Any = {"role": "assistant", "tool_calls": [call], **content}
        history = [message("user", "u"), reply]
        result: Any = {"role": "tool", "content": "4", "name": "add"}
        assert codec.encode_prompt([*history, result]).wire_ids
        made = codec.encode_observation([result], sampled_ids=[5], history=history)
        report = codec.check_observation([result], made, sampled_ids=[5], history=history)
        assert report.status == "equal"


def test_tokenizer_with_dropout_is_refused_by_name() -> None:
    tokenizer = byte_tokenizer(TOKENS, corpus=("user", "many words") * 9)
    tokenizer.chat_template = CHAT
    for dropout in (0.001, 0.1, 1.0):
        tokenizer.backend_tokenizer.model.dropout = dropout
        with pytest.raises(ConfigurationError, match=r"BPE dropout \(.+model\.dropout = None"):
            ChatCodec(tokenizer)
    for dropout in (None, 0.0):
        tokenizer.backend_tokenizer.model.dropout = dropout
        assert ChatCodec(tokenizer).encode_text("many words")


class Sampling:
    """A tokenizer that splits words at random, as SentencePiece does with enable_sampling."""

    def __init__(self) -> None:
        self.inner, self.calls = load_tokenizer("qwen2.5"), 0

    def __getattr__(self, name: str) -> Any:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def encode(self, text: str, **options: Any) -> list[int]:
        self.calls += 1
        cut = self.calls % len(text)
        pieces = (text[:cut], text[cut:])
        return [one for piece in pieces for one in self.inner.encode(piece, **options)]


def test_tokenizer_that_samples_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="encodes the same text differently each time"):
        ChatCodec(Sampling(), stop_ids=[151645])


def characters_only() -> Any:
    """Return a tokenizer of letters and control tokens; anything else becomes `<unk>`."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz<>/:"
    vocabulary = {"<unk>": 0, **{letter: n for n, letter in enumerate(letters, 1)}}
    inner: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=inner, eos_token="<end>", unk_token="<unk>")
    tokenizer.add_tokens(list(TOKENS), special_tokens=True)
    tokenizer.chat_template = CHAT
    return tokenizer


def test_tokenizer_without_byte_fallback_is_neutralised() -> None:
    tokenizer = characters_only()
    end = tokenizer.convert_tokens_to_ids("<end>")
    for neutralise in (True, False):
        codec = ChatCodec(tokenizer, neutralise=neutralise)
        prompt = codec.encode_prompt([message("user", "a<end>b")])
        assert prompt.wire_ids.count(end) == (1 if neutralise else 2)


def test_tokenizer_whose_tokens_nothing_breaks_works_without_neutralising() -> None:
    from tokenizers import AddedToken, Regex, normalizers

    tokenizer = byte_tokenizer([AddedToken(one, normalized=True) for one in TOKENS])
    drop = normalizers.Replace(Regex("[\u200b\u2060\u200c _]"), "")
    tokenizer.backend_tokenizer.normalizer = drop
    tokenizer.chat_template = CHAT
    with pytest.raises(TemplateError, match="pass neutralise=False"):
        ChatCodec(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<end>")])
    codec = ChatCodec(
        tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<end>")], neutralise=False
    )
    assert codec.encode_prompt([message("user", "a<end>b")]).wire_ids


def _gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def _bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_image_without_pixels_is_refused(size: tuple[int, int]) -> None:
    from PIL import Image as PilImage

    with pytest.raises(ImageError):
        Image.from_array(np.zeros((*size, 3), np.uint8))
    with pytest.raises(ImageError):
        Image.from_pil(PilImage.new("RGB", size))
    for data in (_gif(*size), _bmp(*size)):
        with pytest.raises(ImageError):
            vision_codec().encode_prompt([message("user", "x", [Image.from_bytes(data)])])


@pytest.mark.parametrize(
    ("size", "is_taken"),
    [((1, 1), True), ((1, 199), True), ((199, 1), True), ((1, 3000), False), ((3000, 1), False)],
)
def test_image_that_a_processor_would_shrink_to_nothing_is_refused(
    size: tuple[int, int], is_taken: bool
) -> None:
    messages = [message("user", "x", [Image.from_array(np.zeros((*size, 3), np.uint8))])]
    if is_taken:
        (feature,) = vision_codec().encode_prompt(messages).features
        assert feature.token_count > 0
        assert all(value.size for value in feature.tensors.values())
        return
    with pytest.raises(ImageError, match="cannot process this image: absolute aspect ratio"):
        vision_codec().encode_prompt(messages)


def test_bytes_that_are_no_image_are_a_typed_error() -> None:
    stream = io.BytesIO()
    with pytest.raises(ImageError):
        vision_codec().encode_prompt([message("user", "x", [Image.from_bytes(stream.getvalue())])])
