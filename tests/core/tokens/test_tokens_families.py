"""Vision-language families against their own processors (see scripts/vision_families.py)."""

import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.families import BY_NAME, build, image_processor, load_tokenizer, save, save_remote
from fakes.families_oracle import compare, conversations
from fakes.needs import TORCH
from fakes.processes import run_python

from envkit.errors import ImageError, TemplateError
from envkit.images import Image
from envkit.messages import images_of
from envkit.tokens import ChatCodec, load_codec
from envkit.tokens.expansion import Expansion

_ROOT = Path(__file__).parents[3]
NUMPY_OF_TORCH = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
"""ERNIE's processor makes arrays of torch tensors, which NumPy 2 warns of."""


def see(*images: Image) -> list[Any]:
    return [{"role": "user", "content": [{"type": "image", "image": one} for one in images]}]


def picture(width: int, height: int = 60) -> Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.from_array(pixels)


# ---- real processors


@TORCH.mark
@NUMPY_OF_TORCH
@pytest.mark.parametrize(
    "name",
    [
        *("LLaVA-NeXT", "LLaVA-NeXT, three tilings", "Idefics3", "MiniCPM-V 4.6"),
        *("ERNIE-4.5-VL", "Llama 3.2 Vision", "HunYuan-VL"),
    ],
)
def test_codec_of_a_saved_processor_equals_one_call_invariant_5(name: str, tmp_path: Path) -> None:
    codec = load_codec(save(BY_NAME[name], tmp_path))
    outcome = compare(codec, build(BY_NAME[name]), conversations(0)[1:3])
    assert (outcome.wrong, outcome.refused) == ("", "")
    assert outcome.exact == 7


@TORCH.mark
@NUMPY_OF_TORCH
def test_outputs_per_token_follow_from_the_ids_and_the_tensors() -> None:
    from transformers.models.mllama import processing_mllama as mllama

    encoded = {}
    for name in ("ERNIE-4.5-VL", "Llama 3.2 Vision"):
        processor = build(BY_NAME[name])
        talk = conversations(0)[3][:1]
        encoded[name] = ChatCodec(processor).encode_prompt(talk), whole_output(processor, talk)
    ours, theirs = encoded["ERNIE-4.5-VL"]
    ernie: Any = build(BY_NAME["ERNIE-4.5-VL"])
    kinds = ernie.create_moe_mm_token_type_ids([list(ours.train_ids)])
    assert kinds == theirs["moe_mm_token_type_ids"].tolist()
    ours, theirs = encoded["Llama 3.2 Vision"]
    image = build(BY_NAME["Llama 3.2 Vision"]).image_token_id
    tiles = ours.tensors["aspect_ratio_mask"].sum(axis=-1)
    sees = [mllama.get_cross_attention_token_mask(list(ours.train_ids), image)]
    mask = mllama.convert_sparse_cross_attention_mask_to_dense(
        sees, tiles, max_num_tiles=4, length=len(ours.train_ids)
    )
    assert np.array_equal(mask, theirs["cross_attention_mask"])


def whole_output(processor: Any, talk: list[Any]) -> Any:
    """Return the processor's own output for a conversation."""
    text = processor.tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    images = [one.pil() for one in images_of(talk)]
    return processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt")


def test_codec_counts_earlier_images_for_a_processor_that_numbers_them() -> None:
    processor = build(BY_NAME["MiniCPM-V 4.6"])
    codec = ChatCodec(processor)
    assert codec.image_rules().expansion is Expansion.NUMBERED
    told = codec.encode_observation(see(picture(50)), sampled_ids=(), previous_images=12)
    assert "<image_id>12</image_id>" in codec.decode_all(told.train_ids)
    history: Any = [*see(picture(50), picture(60)), {"role": "assistant", "content": "I see."}]
    counted = codec.encode_observation(see(picture(50)), sampled_ids=(), history=history)
    assert "<image_id>2</image_id>" in codec.decode_all(counted.train_ids)
    with pytest.raises(TemplateError, match="previous_images="):
        codec.encode_observation(see(picture(50)), sampled_ids=())


def test_features_of_a_pickled_segment_join_as_before() -> None:
    codec = ChatCodec(build(BY_NAME["Idefics3"]), lazy_features=True)
    encoded = codec.encode_prompt(see(picture(50), picture(50, 100), picture(50)))
    again = pickle.loads(pickle.dumps(encoded))
    assert again.tensors["pixel_values"].shape == encoded.tensors["pixel_values"].shape
    assert len(again.tensors["pixel_values"]) == 1


def test_codec_quickly_encodes_kept_images_of_a_whole_processor() -> None:
    codec = ChatCodec(build(BY_NAME["LLaVA-NeXT"]))
    image = picture(50)
    image.png_bytes()
    assert not codec.is_quick([image])
    codec.encode_prompt(see(image))
    assert codec.is_quick([image])


def test_image_processor_alone_must_be_known_to_repeat_its_placeholder() -> None:
    family = BY_NAME["Ovis2"]
    codec = ChatCodec(load_tokenizer(family), image_processor=image_processor(family))
    with pytest.raises(TemplateError, match=r"Ovis2ImageProcessor\w* alone .* whole processor"):
        codec.encode_prompt(see(picture(50)))


# ---- refusals


def test_load_codec_refuses_images_of_a_processor_in_remote_code(tmp_path: Path) -> None:
    codec = load_codec(save_remote(tmp_path))
    assert codec.encode_prompt([{"role": "user", "content": "text"}]).train_ids
    with pytest.raises(TemplateError, match=r"KimiVLProcessor.*image_processor="):
        codec.encode_prompt(see(picture(50)))


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed"
)
def test_load_codec_names_torchvision_where_the_processor_needs_it(tmp_path: Path) -> None:
    family = BY_NAME["LFM2-VL"]
    load_tokenizer(family).save_pretrained(str(tmp_path))
    config = {
        "processor_class": family.processor,
        "image_processor": {"image_processor_type": "Lfm2VlImageProcessor"},
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(TemplateError, match=r"Lfm2VlProcessor.*install torchvision"):
        load_codec(tmp_path).encode_prompt(see(picture(50)))


def test_codec_says_which_image_its_processor_refuses() -> None:
    codec = ChatCodec(build(BY_NAME["Qwen2-VL"]))
    with pytest.raises(ImageError, match="cannot process this image"):
        codec.encode_prompt(see(picture(3000, 4)))


# ---- the matrix


@pytest.mark.slow
def test_every_family_is_exact_or_refused_and_the_page_says_so() -> None:
    table = run_python(_ROOT / "scripts" / "vision_families.py", timeout_s=900).strip()
    page = (_ROOT / "docs" / "concepts" / "vision-families.md").read_text(encoding="utf-8")
    assert table in page
