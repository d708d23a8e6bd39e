"""Images in deltas: equal to one full call of the model's own processor; computed once."""

import threading
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.families import BY_NAME, build
from fakes.families import load_tokenizer as load_family_tokenizer
from fakes.templates import default_codec, image_processor, load_tokenizer, make_codec, render
from PIL import Image as PilImage

from envkit.env import Capabilities, Env, Turn
from envkit.errors import ImageError, TemplateError
from envkit.images import Image
from envkit.messages import Message, images_of
from envkit.rollout import ScriptedEngine, play
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.tokens.patches import find_plan
from envkit.tokens.processors import ProcessorCall

NAMES = ["qwen2.5-vl", "qwen3-vl"]
PICTURES = [
    Image.from_array(np.random.default_rng(width).integers(0, 255, (84, width, 3)).astype(np.uint8))
    for width in (56, 84, 112, 140, 168)
]


@cache
def real_processor(name: str) -> Any:
    """Return the published processor; its constructor wants torchvision, its call does not."""
    from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen3_vl import Qwen3VLProcessor

    cls: Any = Qwen3VLProcessor if name == "qwen3-vl" else Qwen2_5_VLProcessor
    tokenizer = load_tokenizer(name)
    processor = cls.__new__(cls)
    processor.image_processor = image_processor(name)
    processor.tokenizer, processor.chat_template = tokenizer, tokenizer.chat_template
    processor.video_processor = None
    tokens = {"image_token": "image_pad", "video_token": "video_pad"}
    tokens |= {"vision_start_token": "vision_start", "vision_end_token": "vision_end"}
    for attribute, token in tokens.items():
        setattr(processor, attribute, f"<|{token}|>")
        setattr(processor, f"{attribute}_id", tokenizer.convert_tokens_to_ids(f"<|{token}|>"))
    return processor


def picture(index: int) -> dict[str, Any]:
    return {"type": "image", "image": PICTURES[index]}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def dialogue() -> list[Any]:
    return [
        {"role": "user", "content": [picture(0), text("What is this?")]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [picture(1), text("and this")]},
        {"role": "assistant", "content": "A dog."},
        {"role": "user", "content": [text("compare "), picture(2), text(" with "), picture(3)]},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "text only"},
    ]


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_codec_image_ledger_equals_one_processor_call_invariant_5(
    name: str, numbered: bool
) -> None:
    messages = dialogue()
    kwargs = {"add_vision_id": numbered}
    codec = make_codec(name, image_processor=image_processor(name), template_kwargs=kwargs)
    pieces = [codec.encode_prompt(messages[:1])]
    train = list(pieces[0].train_ids)
    for index in (1, 3, 5):
        reply = codec.encode_reply(messages[index]["content"])
        delta = codec.encode_observation(
            messages[index + 1 : index + 2],
            sampled_ids=reply,
            history=messages[: index + 1],
            previous_images=len(images_of(messages[:index])),
        )
        pieces.append(delta)
        train += [*reply, *delta.train_ids]
    tokenizer = load_tokenizer(name)
    full_text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **kwargs
    )
    images = [image.pil() for image in images_of(messages)]
    whole = real_processor(name)(text=[full_text], images=images, return_tensors="np")
    assert train == [int(identity) for identity in whole["input_ids"][0]]
    for key in ("pixel_values", "image_grid_thw"):
        joined = np.concatenate([piece.tensors[key] for piece in pieces if piece.images])
        np.testing.assert_array_equal(joined, whole[key])
    assert "mm_token_type_ids" not in pieces[0].tensors


@pytest.mark.parametrize("name", NAMES)
def test_codec_counts_images_placeholders_and_grids_alike_invariant_5(name: str) -> None:
    codec = default_codec(name)
    encoded = codec.encode_prompt(dialogue())
    pad = codec.media_ids[0]
    assert encoded.wire_ids.count(pad) == len(encoded.images) == len(encoded.features) == 4
    assert len(encoded.tensors["image_grid_thw"]) == 4
    grids = encoded.tensors["image_grid_thw"]
    assert encoded.train_ids.count(pad) == int(grids.prod(axis=1).sum()) // 4


def test_codec_takes_a_whole_processor() -> None:
    processor = real_processor("qwen3-vl")
    codec = ChatCodec(processor, stop_ids=[151645])
    assert (
        codec.encode_prompt(dialogue()).train_ids
        == default_codec("qwen3-vl").encode_prompt(dialogue()).train_ids
    )


def test_codec_processes_each_image_once_over_threads() -> None:
    codec = make_codec("qwen3-vl", image_processor=image_processor("qwen3-vl"))
    results: list[Any] = []

    def work() -> None:
        results.append(codec.encode_prompt(dialogue()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.train_ids for result in results}) == 1
    encoder = codec._image_encoder
    assert encoder is not None
    assert encoder.computed == 4
    one, other = results[0].features, results[5].features
    assert all(
        a.tensors["pixel_values"] is b.tensors["pixel_values"]
        for a, b in zip(one, other, strict=True)
    )


def test_image_cache_stays_within_its_bytes() -> None:
    codec = make_codec("qwen3-vl", image_processor=image_processor("qwen3-vl"))
    encoder = codec._image_encoder
    assert encoder is not None
    encoder._limit = 1
    first, second = (encoder.processed(image) for image in PICTURES[:2])
    assert encoder.processed(PICTURES[1]) is second
    assert encoder.processed(PICTURES[0]) is not first


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_codec_refuses_an_image_in_a_role_that_drops_it(role: Any) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "u"},
        {"role": role, "content": [picture(0)]},
    ]
    with pytest.raises(TemplateError, match="'user' message"):
        default_codec("qwen3-vl").encode_prompt([*messages, messages[0]])


def tool_round() -> list[Any]:
    call = {"function": {"name": "look", "arguments": {"x": 1}}, "id": "call00000"}
    return [
        {"role": "user", "content": [picture(3), text("Look around.")]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", **call}]},
        {
            "role": "tool",
            "name": "look",
            "tool_call_id": "call00000",
            "content": [picture(0), text("left"), picture(1)],
        },
        {"role": "user", "content": [picture(2), text("and this?")]},
    ]


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("results_only", [False, True])
def test_codec_images_in_tool_messages_equal_one_processor_call(
    numbered: bool, results_only: bool
) -> None:
    name, kwargs = "qwen3-vl", {"add_vision_id": numbered}
    messages = tool_round()[: 3 if results_only else 4]
    codec = make_codec(name, image_processor=image_processor(name), template_kwargs=kwargs)
    assert codec.audit().image_roles == ("user", "tool")
    delta = codec.encode_observation(messages[2:], sampled_ids=[151645], history=messages[:2])
    full_text = load_tokenizer(name).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **kwargs
    )
    images = [image.pil() for image in images_of(messages)]
    whole = real_processor(name)(text=[full_text], images=images, return_tensors="np")
    ids = [int(identity) for identity in whole["input_ids"][0]]
    assert list(delta.train_ids) == ids[-len(delta.train_ids) :]
    assert ids[-len(delta.train_ids) - 1] == 151645
    count = len(delta.tensors["pixel_values"])
    np.testing.assert_array_equal(delta.tensors["pixel_values"], whole["pixel_values"][-count:])


class Camera(Env):
    """Answers every reply with an image in a tool message."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)

    def on_reset(self, task: Task) -> Turn:
        return Turn("Take two photographs.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("Here.", images=[PICTURES[self.turn]], role="tool", done=self.turn == 2)


@pytest.mark.parametrize("renders", [True, False])
async def test_play_keeps_images_of_a_tool_where_the_template_renders_them(renders: bool) -> None:
    family = BY_NAME["Idefics3"]
    tokenizer = load_family_tokenizer(family)
    if not renders:
        part = "{% if part.type == 'image' %}"
        dropped = (
            "{% if part.type == 'image' and m.role == 'tool' %}{% elif part.type == 'image' %}"
        )
        tokenizer.chat_template = tokenizer.chat_template.replace(part, dropped)
    processor = build(family)
    processor.tokenizer, processor.chat_template = tokenizer, None
    codec = ChatCodec(processor)
    engine = ScriptedEngine(codec, lambda _: "ok")
    trajectory = await play(Camera(max_turns=3), engine, codec, seed=1)
    assert trajectory.fault is None
    assert len(trajectory.images()) == 2
    said = codec.decode_all(trajectory.segments[2].wire_ids)
    assert f"<|im_start|>{'tool' if renders else 'user'}\n<image>Here." in said


def test_codec_refuses_an_image_that_the_template_cannot_write() -> None:
    message: Message = {"role": "user", "content": [{"type": "image", "image": PICTURES[0]}]}
    with pytest.raises(TemplateError, match="does not render images"):
        default_codec("qwen2.5").encode_prompt([message])


def test_codec_refuses_images_without_a_processor() -> None:
    codec = make_codec("qwen3-vl")
    with pytest.raises(TemplateError, match="image_processor"):
        codec.encode_prompt(dialogue())


@pytest.mark.slow  # its tokenizer takes seconds to load
def test_codec_expands_through_the_whole_processor_of_gemma() -> None:
    from transformers.models.gemma3 import Gemma3ImageProcessorPil, Gemma3Processor

    tokenizer = load_tokenizer("gemma3")
    make: Any = Gemma3Processor
    processor = make(Gemma3ImageProcessorPil(), tokenizer, image_seq_length=16)
    codec = ChatCodec(processor, stop_ids=[106])
    asked: Any = [{"role": "user", "content": [picture(0), text("What?")]}]
    then: Any = [{"role": "user", "content": [picture(1), picture(2), text("\nand these?")]}]
    prompt = codec.encode_prompt(asked)
    reply = codec.encode_reply("A cat.")
    delta = codec.encode_observation(then, sampled_ids=reply)
    full_text = render("gemma3", [*asked, {"role": "assistant", "content": "A cat."}, *then])
    images = [image.pil() for image in PICTURES[:3]]
    whole = processor(
        text=[full_text], images=images, return_tensors="np", add_special_tokens=False
    )
    assert [*prompt.train_ids, *reply, *delta.train_ids] == [
        int(identity) for identity in np.asarray(whole["input_ids"]).reshape(-1)
    ]
    pixels = np.concatenate([prompt.tensors["pixel_values"], delta.tensors["pixel_values"]])
    np.testing.assert_array_equal(pixels, np.asarray(whole["pixel_values"]))
    counts = sum(feature.token_count - 1 for feature in delta.features)
    assert len(delta.train_ids) == len(delta.wire_ids) + counts


@pytest.mark.slow
def test_codec_refuses_an_image_processor_that_cannot_count_tokens() -> None:
    from transformers.models.gemma3 import Gemma3ImageProcessorPil

    codec = make_codec("gemma3", image_processor=Gemma3ImageProcessorPil())
    with pytest.raises(TemplateError, match="whole processor"):
        codec.encode_prompt(dialogue()[:1])


def test_codec_renders_a_reply_that_spells_a_placeholder() -> None:
    codec = make_codec("qwen3-vl", image_processor=image_processor("qwen3-vl"), history="rerender")
    messages = dialogue()[:3]
    messages[1] = {"role": "assistant", "content": "I see <|image_pad|> here."}
    assert codec.encode_prompt(messages).wire_ids.count(codec.media_ids[0]) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "said", ["", " ", "\n x ", "and this?", "<tool_response>", "{{ x }}", "é 世"]
)
def test_codec_writes_an_image_with_text_as_the_template_renders_it(name: str, said: str) -> None:
    codec = default_codec(name)
    reply = codec.encode_reply("A cat.")
    seen: list[Any] = [picture(1), text(said)]
    direct = codec.encode_observation([{"role": "user", "content": seen}], sampled_ids=reply)
    # Two text parts are not a known shape, so these are rendered.
    parts: list[Any] = [*seen, text("")]
    rendered = codec.encode_observation([{"role": "user", "content": parts}], sampled_ids=reply)
    assert direct.wire_ids == rendered.wire_ids
    assert direct.train_ids == rendered.train_ids
    assert direct.images == rendered.images


def test_lazy_features_are_processed_when_their_tensors_are_read() -> None:
    name = NAMES[0]
    eager, lazy = (
        make_codec(name, image_processor=image_processor(name), lazy_features=is_lazy)
        for is_lazy in (False, True)
    )
    same = [Image.from_pil(PilImage.new("RGB", (84, 56), colour)) for colour in ("red", "blue")]
    encoder: Any = lazy._image_encoder
    expected, got = eager.image_features(same), lazy.image_features(same)
    assert encoder.computed == 1
    assert [one.token_count for one in got] == [one.token_count for one in expected]
    np.testing.assert_array_equal(
        got[1].tensors["pixel_values"], expected[1].tensors["pixel_values"]
    )
    assert encoder.computed == 2


class Qwen2VLSmallGrid:
    """An image processor that suddenly gives any image four tokens."""

    merge_size = 2

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        del inputs
        return {"pixel_values": np.zeros((16, 4)), "image_grid_thw": np.array([[1, 4, 4]])}


def test_lazy_features_refuse_a_processor_whose_counts_do_not_follow_sizes() -> None:
    name = NAMES[0]
    codec = make_codec(name, image_processor=image_processor(name), lazy_features=True)
    first, second = (
        Image.from_pil(PilImage.new("RGB", (84, 56), colour)) for colour in ("red", "blue")
    )
    codec.image_features([first])
    (lazy,) = codec.image_features([second])
    encoder: Any = codec._image_encoder
    encoder._call._image_processor = Qwen2VLSmallGrid()
    with pytest.raises(ImageError, match="the same number of tokens"):
        _ = lazy.tensors["pixel_values"]


MORE_SIZES = ((300, 90), (672, 448), (61, 700), (20, 20))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "size", [(84, 56), *(pytest.param(size, marks=pytest.mark.slow) for size in MORE_SIZES)]
)
def test_planned_images_have_every_bit_of_the_processor(name: str, size: tuple[int, int]) -> None:
    codec = make_codec(name, image_processor=image_processor(name))
    encoder: Any = codec._image_encoder
    noise = np.random.default_rng(7).integers(0, 256, (8, size[1], size[0], 3)).astype(np.uint8)
    same = [*map(Image.from_array, noise), Image.from_pil(PilImage.new("RGB", size, "white"))]
    got = codec.image_features([*same, Image.from_pil(PilImage.new("L", size, 9))])
    assert encoder._sizes[size].plan is not None
    for image, features in zip(same, got, strict=False):
        expected = encoder._call.image(image)
        assert features.token_count == len(expected.ids)
        assert features.tensors.keys() == expected.tensors.keys()
        for key, value in expected.tensors.items():
            assert features.tensors[key].dtype == value.dtype
            np.testing.assert_array_equal(features.tensors[key], value)


def test_processor_that_computes_something_else_has_no_plan() -> None:
    name, size = NAMES[0], (300, 90)
    processor = image_processor(name)
    call = ProcessorCall(None, processor, placeholder="<image>", placeholder_id=1)
    noise = np.random.default_rng(7).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    image = Image.from_array(noise)
    made = call.image(image)
    assert find_plan(call, size, made) is not None

    class Qwen2VLSharpened:
        """Looks like the real one but filters differently."""

        resample = int(PilImage.Resampling.BILINEAR)
        patch_size, merge_size = processor.patch_size, processor.merge_size
        temporal_patch_size = processor.temporal_patch_size

        def __call__(self, **inputs: Any) -> Any:
            return processor(**inputs)

    other = ProcessorCall(None, Qwen2VLSharpened(), placeholder="<image>", placeholder_id=1)
    assert find_plan(other, size, other.image(image)) is None


def test_tensors_are_shared_by_content_and_bounded_in_memory() -> None:
    name = NAMES[0]
    codec = make_codec(name, image_processor=image_processor(name))
    encoder: Any = codec._image_encoder
    noise = np.random.default_rng(3).integers(0, 256, (6, 56, 84, 3)).astype(np.uint8)
    first = codec.image_features([Image.from_array(one) for one in noise])
    expected = [one.tensors["pixel_values"].copy() for one in first]
    again = codec.image_features([Image.from_array(one) for one in noise])
    assert encoder.computed == 6
    assert again[0].tensors["pixel_values"] is first[0].tensors["pixel_values"]

    one_image = expected[0].nbytes + first[0].tensors["image_grid_thw"].nbytes
    encoder._limit = 2 * one_image
    codec.image_features([Image.from_array(noise[0] // 2)])
    assert encoder._bytes <= encoder._limit
    assert len(encoder._kept) == 2
    computed = encoder.computed
    assert [one.tensors["image_grid_thw"].tolist() for one in first] == [[[1, 4, 6]]] * 6
    assert all("pixel_values" in one.tensors for one in first)
    assert encoder.computed == computed  # grids are not worth dropping
    for features, values in zip(first, expected, strict=True):  # recomputed if they are gone
        np.testing.assert_array_equal(features.tensors["pixel_values"], values)
    assert encoder._bytes <= encoder._limit
