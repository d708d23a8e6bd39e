"""A tokenizer and an image processor from a model's files alone, without transformers.

Scripted policies need ids and image tokens but no weights, so they must not need transformers and
torch. It supports only models whose files are sufficient: a tokenizer of the class
`PreTrainedTokenizerFast`, which transformers 5 also calls `TokenizersBackend` and which adds no
code to its tokenizer.json, and the image processor of Qwen2-VL
(`image_processing_pil_qwen2_vl.py` of transformers 5). Ids and tensors equal those of
transformers; tests/core/tokens/test_tokens_light.py compares them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, ImageError, MissingDependencyError
from envkit.smart_resize import SmartResize
from envkit.tokens.patches import PatchPlan
from envkit.tokens.vocabulary import read_vocabulary

_PLAIN_CLASSES: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")
_PROCESSORS: Final = (None, "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
_IMAGE_CLASSES: Final = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast")
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_BYTES: Final = 256
_STEPS: Final = ("do_resize", "do_rescale", "do_normalize")
_SETTINGS: Final = frozenset(
    {
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "resample",
        "rescale_factor",
        "image_mean",
        "image_std",
    }
)
_BOUNDS: Final = frozenset({"shortest_edge", "longest_edge"})


class LightTokenizer:
    """The part of a Hugging Face tokenizer that a codec needs."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], chat_template: str | None
    ) -> None:
        """Read tokenizer.json.

        Args:
            folder: The model folder.
            settings: Its tokenizer_config.json.
            chat_template: Its chat template, if any.

        Raises:
            ConfigurationError: tokenizer.json is damaged.
            MissingDependencyError: Only `tokenizers` can read it, which is not installed.
        """
        self._vocabulary = read_vocabulary(folder / "tokenizer.json")
        self.name_or_path = str(folder)
        self.chat_template = chat_template
        self.special_tokens_map: dict[str, str] = {
            name: _content(settings[name]) for name in _NAMED if settings.get(name)
        }
        extra: Sequence[Any] = settings.get("extra_special_tokens") or ()
        named = [*self.special_tokens_map.values(), *map(_content, extra)]
        self.all_special_tokens: list[str] = list(dict.fromkeys(named))

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-text id; None if the files name none."""
        name = self.special_tokens_map.get("eos_token")
        return None if name is None else self._vocabulary.id_of(name)

    def __len__(self) -> int:
        """Return the number of ids, including added ones."""
        return len(self._vocabulary)

    def get_added_vocab(self) -> dict[str, int]:
        """Return the added tokens and their ids."""
        return self._vocabulary.added

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        """Return the name of one token; None if there is no such id."""
        return self._vocabulary.name_of(ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return self._vocabulary.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        return self._vocabulary.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,  # noqa: ANN401  # a template reads anything
    ) -> str:
        """Render messages; `tokenize` must be False.

        Raises:
            ValueError: There is no template, or `tokenize` is set.
        """
        from envkit.tokens.jinja import compile_template  # jinja2 is slow to import

        text = chat_template or self.chat_template
        if text is None or tokenize:
            raise ValueError(
                "a light tokenizer only renders text with a chat template, got "
                f"{'no template' if text is None else 'tokenize=True'}"
            )
        return compile_template(text).render(
            messages=conversation,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens_map, **variables},
        )


@dataclass(frozen=True, kw_only=True)
class Qwen2VLImages:
    """The image processor of Qwen2-VL and Qwen3-VL: resize, normalize, cut into patches."""

    patch_size: int
    merge_size: int
    """Side, in patches, of the square that becomes one token."""
    temporal_patch_size: int
    resample: int
    """Number of the Pillow filter."""
    resize: SmartResize
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Qwen2VLImages":
        """Return the processor that a preprocessor_config.json describes."""
        size: Mapping[str, int] = config["size"]
        return cls(
            patch_size=config["patch_size"],
            merge_size=config["merge_size"],
            temporal_patch_size=config["temporal_patch_size"],
            resample=config["resample"],
            resize=SmartResize(
                factor=config["patch_size"] * config["merge_size"],
                min_pixels=size["shortest_edge"],
                max_pixels=size["longest_edge"],
            ),
            scale=config["rescale_factor"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )

    def __call__(
        self, *, images: Sequence[PilImage.Image], return_tensors: str = "np"
    ) -> dict[str, NDArray[Any]]:
        """Return the patches of RGB images.

        Args:
            images: At least one image.
            return_tensors: Only "np" is supported.

        Returns:
            `pixel_values`, (P, 3 * frames * patch**2) float32, and `image_grid_thw`, (N, 3) int64.

        Raises:
            ImageError: One side is more than 200 times as long as the other.
        """
        del return_tensors
        plans = [self._plan(picture.size) for picture in images]
        values = [plan.pixel_values(one) for plan, one in zip(plans, images, strict=True)]
        return {
            "pixel_values": np.concatenate(values),
            "image_grid_thw": np.concatenate([plan.grid for plan in plans]),
        }

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """(3, 256): the value of each byte per channel."""
        scaled = (np.arange(_BYTES).astype(np.float64) * self.scale).astype(np.float32)
        mean = np.array(self.mean, dtype=np.float32)[:, None]
        return (scaled[None] - mean) / np.array(self.std, dtype=np.float32)[:, None]

    def _plan(self, size: tuple[int, int]) -> PatchPlan:
        try:
            target = self.resize.apply(size)
        except ConfigurationError as error:
            raise ImageError(str(error)) from error
        grid = [1, target.height // self.patch_size, target.width // self.patch_size]
        return PatchPlan(
            target=target,
            patch=self.patch_size,
            merge=self.merge_size,
            frames=self.temporal_patch_size,
            resample=self.resample,
            table=self._table,
            ids=(),
            grid=np.array([grid], dtype=np.int64),
        )


def load_light(folder: Path, read: Callable[[str], Mapping[str, Any]]) -> Any:  # noqa: ANN401  # a tokenizer, or a processor that has one
    """Return a model folder's tokenizer, or a processor that has one.

    Args:
        folder: The model folder.
        read: Reads one of its JSON files by name; a missing one is empty.

    Raises:
        ConfigurationError: A file is damaged.
        MissingDependencyError: Only transformers can read it.
    """
    settings, images = read("tokenizer_config.json"), read("preprocessor_config.json")
    is_light = settings.get("tokenizer_class") in _PLAIN_CLASSES
    # Processors have their own code, and transformers 5 may keep image settings in another file.
    processor = images.get("processor_class", settings.get("processor_class"))
    is_known = not read("processor_config.json") and (
        processor in _PROCESSORS and _is_plain(images) if images else processor is None
    )
    if not (is_light and is_known) or not (folder / "tokenizer.json").is_file():
        raise MissingDependencyError.for_extra(
            f"the tokenizer in {str(folder)!r}", "transformers", "transformers"
        )
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    stat = (folder / "tokenizer.json").stat()
    stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    tokenizer = _tokenizer(folder, stamp, json.dumps(settings), template)
    if not images:
        return tokenizer
    return SimpleNamespace(tokenizer=tokenizer, image_processor=Qwen2VLImages.read(images))


@lru_cache(maxsize=8)
def _tokenizer(
    folder: Path, stamp: tuple[int, int, int], settings: str, template: str | None
) -> LightTokenizer:
    """Return one tokenizer for all codecs of a model, so that they share their calibration.

    Args:
        folder: The model folder.
        stamp: Changes with tokenizer.json.
        settings: Its tokenizer_config.json, as JSON.
        template: Its chat template.
    """
    del stamp
    return LightTokenizer(folder, json.loads(settings), template)


def _is_plain(images: Mapping[str, Any]) -> bool:
    """Whether a preprocessor_config.json has every setting, and none that skips a step."""
    size: Any = images.get("size")
    return (
        images.get("image_processor_type") in _IMAGE_CLASSES
        and all(images.get(name, True) is True for name in _STEPS)
        and images.keys() >= _SETTINGS
        and isinstance(size, dict)
        and cast("dict[str, Any]", size).keys() >= _BOUNDS
    )


def _content(token: Any) -> str:  # noqa: ANN401  # text, or a token with settings
    return str(cast("Mapping[str, Any]", token)["content"] if isinstance(token, Mapping) else token)
