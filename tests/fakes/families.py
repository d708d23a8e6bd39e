"""Vision-language families: real processor classes in small configurations, tiny vocabularies.

Templates are ChatML with each family's image markup, so only images differ between families.
"""

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes.small_chat import byte_tokenizer

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
END = "<|im_end|>"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}MARKUP{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = ("user\n assistant\n system\n\n what is this and that\n\n the image\n",) * 20
_SQUARE = {"height": 56, "width": 56}
_PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One processor class of transformers and how to build it."""

    name: str
    processor: str
    images: str
    """The image processor's module and class."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the image processor."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the processor."""
    markup: str
    """What the template writes for an image."""
    start: str = ""
    """The token that starts a conversation, where the processor adds it to other texts."""
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tokens that the tokenizer knows by name, such as image_token."""
    tokens: tuple[str, ...] = ()
    """More special tokens."""
    video: str = ""
    """The video processor's class; empty for a family without one."""
    video_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    audio: str = ""
    """The name of the audio part."""
    torchvision: bool = False
    """Whether its classes need torchvision."""


_QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_MARKUP = "<|vision_start|><|image_pad|><|vision_end|>"
_GLM = (
    *("<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
)
_IDEFICS = (
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
_MINICPM = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_LLAVA: dict[str, Any] = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}


def _qwen(name: str, processor: str, video: str, patch: int) -> Family:
    return Family(
        name=name,
        processor=processor,
        images="qwen2_vl.Qwen2VLImageProcessor",
        options={"patch_size": patch, "merge_size": 2},
        markup=_QWEN_MARKUP,
        tokens=_QWEN,
        video=video,
    )


def _glm(name: str, stem: str) -> Family:
    return Family(
        name=name,
        processor=f"{stem}Processor",
        images=f"{stem.lower()}.{stem}ImageProcessor",
        markup="<|begin_of_image|><|image|><|end_of_image|>",
        tokens=_GLM,
        video=f"{stem}VideoProcessor",
    )


def _idefics(name: str, stem: str, video: str = "", **options: Any) -> Family:
    return Family(
        name=name,
        processor=f"{stem}Processor",
        images=f"{stem.lower()}.{stem}ImageProcessor",
        options={"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}, **options},
        settings={"image_seq_len": 4},
        markup="<image>",
        named={"image_token": "<image>"},
        tokens=_IDEFICS,
        video=video,
    )


def _minicpm(version: str) -> Family:
    return Family(
        name=f"MiniCPM-V {version.replace('_', '.')}",
        processor=f"MiniCPMV{version}Processor",
        images="minicpmv4_6.MiniCPMV4_6ImageProcessor",
        options={"scale_resolution": 56},
        markup="<|image_pad|>",
        named=_MINICPM,
        video="MiniCPMV4_6VideoProcessor",
    )


def _pixtral(name: str, patch: int, merge: int) -> Family:
    return Family(
        name=name,
        processor="PixtralProcessor",
        images="pixtral.PixtralImageProcessor",
        options={"size": {"longest_edge": 128}, "patch_size": patch},
        settings={"patch_size": patch, "spatial_merge_size": merge},
        markup="[IMG]",
        tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        torchvision=True,
    )


def _llava_next(name: str, pinpoints: list[list[int]]) -> Family:
    sizes = {"size": {"shortest_edge": 56}, "crop_size": _SQUARE}
    return Family(
        name=name,
        processor="LlavaNextProcessor",
        images="llava_next.LlavaNextImageProcessor",
        options={**sizes, "image_grid_pinpoints": pinpoints},
        settings=_LLAVA,
        markup="<image>\n",
        tokens=("<image>",),
    )


FAMILIES = (
    _qwen("Qwen2-VL", "Qwen2VLProcessor", "Qwen2VLVideoProcessor", 14),
    _qwen("Qwen2.5-VL", "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor", 14),
    _qwen("Qwen3-VL, 3.5, 3.6", "Qwen3VLProcessor", "Qwen3VLVideoProcessor", 16),
    _glm("GLM-4.1V, 4.5V", "Glm4v"),
    _glm("GLM-4.6V", "Glm46V"),
    Family(
        name="Kimi K2.5",
        processor="Kimi_K25Processor",
        images="kimi_k25.Kimi_K25ImageProcessor",
        markup="<|media_start|><|media_pad|><|media_end|>",
        tokens=(
            "<|media_pad|>",
            "<|kimi_k25_video_placeholder|>",
            "<|media_start|>",
            "<|media_end|>",
        ),
        video="Kimi_K25VideoProcessor",
        torchvision=True,
    ),
    Family(
        name="Gemma 3",
        processor="Gemma3Processor",
        images="gemma3.Gemma3ImageProcessor",
        options={"size": _SQUARE},
        settings={"image_seq_length": 4},
        markup="<start_of_image>",
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
    Family(
        name="Gemma 4",
        processor="Gemma4Processor",
        images="gemma4.Gemma4ImageProcessor",
        options={"max_soft_tokens": 70},
        settings={"image_seq_length": 70},
        markup="<|image|>",
        named={
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
        video="Gemma4VideoProcessor",
        audio="Gemma4AudioFeatureExtractor",
    ),
    Family(
        name="InternVL 3",
        processor="InternVLProcessor",
        images="got_ocr2.GotOcr2ImageProcessor",
        options={"size": _SQUARE},
        settings={"image_seq_length": 4},
        markup="<IMG_CONTEXT>\n",
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        video="InternVLVideoProcessor",
    ),
    Family(
        name="LLaVA 1.5",
        processor="LlavaProcessor",
        images="clip.CLIPImageProcessor",
        options={"size": {"shortest_edge": 56}, "crop_size": _SQUARE},
        settings=_LLAVA,
        markup="<image>\n",
        tokens=("<image>",),
    ),
    _llava_next("LLaVA-NeXT", _PINPOINTS),
    _llava_next("LLaVA-NeXT, three tilings", [[56, 112], [112, 56], [112, 112]]),
    Family(
        name="LLaVA-OneVision",
        processor="LlavaOnevisionProcessor",
        images="llava_onevision.LlavaOnevisionImageProcessor",
        options={"size": _SQUARE, "image_grid_pinpoints": _PINPOINTS},
        settings={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        markup="<image>\n",
        tokens=("<image>", "<video>"),
        video="LlavaOnevisionVideoProcessor",
    ),
    _pixtral("Pixtral", 16, 1),
    _pixtral("Mistral Small 3", 14, 2),
    _idefics("Idefics3", "Idefics3"),
    _idefics("Idefics3, no splitting", "Idefics3", do_image_splitting=False),
    Family(
        name="Idefics2",
        processor="Idefics2Processor",
        images="idefics2.Idefics2ImageProcessor",
        options={"size": {"longest_edge": 112, "shortest_edge": 56}, "do_image_splitting": False},
        settings={"image_seq_len": 4},
        markup="<image>",
        tokens=("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    ),
    _idefics("SmolVLM", "SmolVLM", "SmolVLMVideoProcessor"),
    Family(
        name="Phi-4-multimodal",
        processor="Phi4MultimodalProcessor",
        images="phi4_multimodal.Phi4MultimodalImageProcessor",
        options={"size": _SQUARE, "patch_size": 14, "dynamic_hd": 4},
        markup="<|endoftext10|>",
        named={"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"},
        audio="Phi4MultimodalFeatureExtractor",
        torchvision=True,
    ),
    _minicpm("4_6"),
    _minicpm("4_7"),
    Family(
        name="Llama 4",
        processor="Llama4Processor",
        images="llama4.Llama4ImageProcessor",
        options={"size": _SQUARE, "max_patches": 4},
        settings={"patch_size": 14},
        markup="<|image|>",
        tokens=(
            "<|image|>",
            "<|image_start|>",
            "<|image_end|>",
            "<|patch|>",
            "<|tile_x_separator|>",
            "<|tile_y_separator|>",
        ),
        torchvision=True,
    ),
    Family(
        name="PaddleOCR-VL",
        processor="PaddleOCRVLProcessor",
        images="paddleocr_vl.PaddleOCRVLImageProcessor",
        markup="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        named={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        tokens=("<|IMAGE_START|>", "<|IMAGE_END|>"),
    ),
    Family(
        name="LFM2-VL",
        processor="Lfm2VlProcessor",
        images="lfm2_vl.Lfm2VlImageProcessor",
        options={
            "tile_size": 64,
            "min_image_tokens": 1,
            "max_image_tokens": 16,
            "max_num_patches": 64,
        },
        markup="<image>",
        named={"image_token": "<image>"},
        tokens=(
            "<|image_start|>",
            "<|image_end|>",
            "<|img_thumbnail|>",
            *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)),
        ),
        torchvision=True,
    ),
    Family(
        name="Ovis2",
        processor="Ovis2Processor",
        images="ovis2.Ovis2ImageProcessor",
        options={"size": _SQUARE, "crop_to_patches": True},
        settings={"image_seq_length": 4},
        markup="<image>\n",
        tokens=(
            "<image>",
            *(f"<IMG_{word}>" for word in ("START", "ATOM", "GRID", "COL", "ROW", "END")),
        ),
    ),
    Family(
        name="Cohere Command A Vision",
        processor="Cohere2VisionProcessor",
        images="cohere2_vision.Cohere2VisionImageProcessor",
        options={"size": _SQUARE, "patch_size": 4},
        markup="<|IMG_PATCH|>",
        named={
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        torchvision=True,
    ),
    Family(
        name="Aya Vision",
        processor="AyaVisionProcessor",
        images="got_ocr2.GotOcr2ImageProcessor",
        options={"size": _SQUARE},
        settings={"patch_size": 14, "img_size": 56},
        markup="<image>",
        tokens=(
            *("<image>", "TILE", "TILE_GLOBAL"),
            *("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"),
        ),
    ),
    Family(
        name="VideoLLaMA 3",
        processor="VideoLlama3Processor",
        images="video_llama_3.VideoLlama3ImageProcessor",
        markup="<image>",
        named={"image_token": "<image>", "video_token": "<video>"},
        video="VideoLlama3VideoProcessor",
    ),
    Family(
        name="DeepSeek-VL",
        processor="DeepseekVLProcessor",
        images="deepseek_vl.DeepseekVLImageProcessor",
        settings={"num_image_tokens": 4},
        markup="<image_placeholder>",
        named={"image_token": "<image_placeholder>"},
    ),
    Family(
        name="GLM-5-next",
        processor="Glm5NextProcessor",
        images="glm5_next.Glm5NextImageProcessor",
        markup="<|begin_of_image|><|image|><|end_of_image|>",
        tokens=_GLM,
        video="Glm5NextVideoProcessor",
    ),
    Family(
        name="Janus",
        processor="JanusProcessor",
        images="janus.JanusImageProcessor",
        options={"size": _SQUARE},
        settings={"num_image_tokens": 4},
        markup="<image_placeholder>\n",
        named={
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
    Family(
        name="Granite-Docling",
        processor="GraniteDoclingProcessor",
        images="granite_docling.GraniteDoclingImageProcessor",
        settings={"image_seq_len": 4},
        markup="<image>",
        named={"image_token": "<image>"},
        tokens=_IDEFICS,
    ),
    Family(
        name="ERNIE-4.5-VL",
        processor="Ernie4_5_VLMoeProcessor",
        images="ernie4_5_vl_moe.Ernie4_5_VLMoeImageProcessor",
        markup="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        named={
            "image_token": "<|IMAGE_PLACEHOLDER|>",
            "image_start_token": "<|IMAGE_START|>",
            "image_end_token": "<|IMAGE_END|>",
            "video_token": "<|VIDEO_PLACEHOLDER|>",
            "video_start_token": "<|VIDEO_START|>",
            "video_end_token": "<|VIDEO_END|>",
        },
        video="Ernie4_5_VLMoeVideoProcessor",
        video_options={"draw_on_frames": False},  # which needs a font
    ),
    Family(
        name="Step-3.7",
        processor="Step3p7Processor",
        images="step3p7.Step3p7ImageProcessor",
        options={"size": {"height": 112, "width": 112}, "patch_size": 56},
        markup="<im_patch>",
        tokens=(
            *("<im_patch>", "<im_start>", "<im_end>"),
            *("<patch_start>", "<patch_end>", "<patch_newline>"),
        ),
        torchvision=True,
    ),
    Family(
        name="Llama 3.2 Vision",
        processor="MllamaProcessor",
        images="mllama.MllamaImageProcessor",
        options={"size": _SQUARE},
        markup="<|image|>",
        tokens=("<|image|>", "<|python_tag|>"),
        start="<|begin_of_text|>",
    ),
    Family(
        name="HunYuan-VL",
        processor="HunYuanVLProcessor",
        images="hunyuan_vl.HunYuanVLImageProcessor",
        markup="<|img_start|><|img|><|img_end|>",
        named={
            "image_token": "<|img|>",
            "image_start_token": "<|img_start|>",
            "image_end_token": "<|img_end|>",
        },
    ),
    Family(
        name="Emu3",
        processor="Emu3Processor",
        images="emu3.Emu3ImageProcessor",
        options={"min_pixels": 3136, "max_pixels": 12544},
        markup="<image>",
        named={
            "image_token": "<image>",
            "boi_token": "<|image start|>",
            "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|image token|>",
            "eof_token": "<|extra_201|>",
        },
        start="<|extra_203|>",
    ),
    Family(
        name="Molmo2",
        processor="Molmo2Processor",
        images="molmo2.Molmo2ImageProcessor",
        markup="<|image|>",
        tokens=("<|image|>",),
        video="Molmo2VideoProcessor",
    ),
)
REMOTE = "Kimi-VL"
"""A family whose processor is code in the model's own repository."""
BY_NAME = {family.name: family for family in FAMILIES}


def load_tokenizer(family: Family) -> Any:
    """Return a byte-level tokenizer with the family's special tokens and template."""
    tokens = ["<|im_start|>", *family.tokens]
    tokenizer = byte_tokenizer(tokens, corpus=_CORPUS, end=END, named=family.named)
    tokenizer.chat_template = family.start + _TEMPLATE.replace("MARKUP", family.markup)
    if family.start:
        tokenizer.add_special_tokens({"bos_token": family.start})
    return tokenizer


def build(family: Family) -> Any:
    """Return the real processor; without torchvision its video and audio parts are stand-ins."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = load_tokenizer(family)
    parts = {"image_processor": image_processor(family), "tokenizer": tokenizer}
    if family.video:
        parts["video_processor"] = _video(family)
    if family.audio:
        names = getattr(transformers, family.processor).get_attributes()
        (name,) = set(names) - set(parts)
        parts[name] = SimpleNamespace(model_input_names=[])
        if HAS_TORCHVISION:
            parts[name] = getattr(transformers, family.audio)()
    cls = getattr(transformers, family.processor)
    processor = cls.__new__(cls)
    processor.check_argument_for_proper_class = _accept  # its own refuses stand-ins
    processor.__init__(**parts, **family.settings, chat_template=tokenizer.chat_template)
    del processor.check_argument_for_proper_class
    return processor


def image_processor(family: Family) -> Any:
    """Return the family's image processor, in its version for PIL where it has one."""
    module, _, name = family.images.partition(".")
    found: Any = importlib.import_module(f"transformers.models.{module}")
    cls = getattr(found, f"{name}Pil", None) or getattr(found, name)
    return cls(**family.options)


def _accept(name: str, part: object) -> None:
    del name, part


def _video(family: Family) -> Any:
    if HAS_TORCHVISION:
        transformers: Any = importlib.import_module("transformers")
        return getattr(transformers, family.video)(**family.video_options)
    settings: dict[str, Any] = {"merge_size": 2, "slice_mode": False, "downsample_mode": "16x"}
    return SimpleNamespace(**settings, model_input_names=[])


def save(family: Family, folder: Path) -> Path:
    """Write a model folder as transformers 5 saves a processor; return it.

    Without torchvision there is no real video part to save, so its settings are written here.
    """
    processor = build(family)
    if HAS_TORCHVISION:
        processor.save_pretrained(str(folder))
        return folder
    processor.tokenizer.save_pretrained(str(folder))
    images = processor.image_processor.to_dict()
    config: dict[str, Any] = {"processor_class": family.processor, **family.settings}
    config["image_processor"] = json.loads(json.dumps(images, default=str))
    if family.video:
        config["video_processor"] = dict(vars(processor.video_processor))
    (folder / "processor_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def save_remote(folder: Path) -> Path:
    """Write a model folder whose processor is code in the model's own repository; return it."""
    load_tokenizer(BY_NAME["Kimi K2.5"]).save_pretrained(str(folder))
    config = {
        "auto_map": {
            "AutoProcessor": "processing_kimi_vl.KimiVLProcessor",
            "AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor",
        },
        "image_processor_type": "KimiVLImageProcessor",
        "processor_class": "KimiVLProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
