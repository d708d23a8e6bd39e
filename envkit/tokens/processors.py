"""Call a model's processor: images and text in, ids and NumPy arrays out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ImageError, TemplateError
from envkit.images import Image

_PER_TOKEN: Final = ("input_ids", "attention_mask", "cross_attention_mask")
_PER_TOKEN_END: Final = "token_type_ids"
"""End of the names of more outputs with one entry per token: mm_, moe_mm_ (ERNIE)."""
_REPEATING: Final = ("Qwen2VL", "Glm4v", "Glm46V", "PaddleOCRVL", "Kimi_K25")
"""Families that write one placeholder per merged patch, so the image processor is enough."""
_FAILURES: Final = (
    ValueError,
    TypeError,
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    ImportError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """A processor's output for text and images."""

    ids: tuple[int, ...]
    """The expanded text."""
    tensors: Mapping[str, NDArray[Any]]
    """All outputs except those with one entry per token, which consumers rebuild from the ids."""


class ProcessorCall:
    """Calls a model's whole processor, or its image processor alone if that is enough."""

    def __init__(
        self,
        processor: Any,  # noqa: ANN401  # a transformers processor, optional here
        image_processor: Any,  # noqa: ANN401  # a transformers image processor, optional here
        *,
        placeholder: str,
        placeholder_id: int,
    ) -> None:
        """Keep the processors.

        Args:
            processor: The whole processor; None to use only `image_processor`.
            image_processor: Used if `processor` is None; its class must be known to repeat the
                placeholder.
            placeholder: The text of the placeholder token.
            placeholder_id: Its id.
        """
        self._processor, self._image_processor = processor, image_processor
        self._placeholder, self._placeholder_id = placeholder, placeholder_id
        self.markup = placeholder
        """What a text contains for each image: the placeholder, perhaps between other tokens."""
        self._frameworks = ("np", "pt")

    @property
    def is_whole(self) -> bool:
        """Whether the processor also reads text."""
        return self._processor is not None

    @property
    def family(self) -> str:
        """Name of the called class, for errors."""
        return type(self._processor if self.is_whole else self._image_processor).__name__

    @property
    def image_processor(self) -> Any:  # noqa: ANN401  # a transformers image processor
        """The image processor, or that of the whole processor; None if it has none."""
        whole = getattr(self._processor, "image_processor", None)
        return whole if self.is_whole else self._image_processor

    def image(self, image: Image) -> Processed:
        """Return one image's tensors, and the ids that replace its placeholder.

        Raises:
            ImageError: The image cannot be decoded or processed, or becomes no token.
            TemplateError: The image processor alone does not determine the number of tokens.
        """
        made = self._image(image) if self.is_whole else self.batch([image])
        if not made.ids:
            width, height = image.size
            raise ImageError(
                f"{self.family} must write a token for every image, which the model cannot see "
                f"otherwise, got no token for an image of {width}x{height} pixels; enlarge the "
                "image, or pass the model's own processor"
            )
        return made

    def _image(self, image: Image) -> Processed:
        made = self.text(self.markup, [image])
        before, after = map(self._encode, self.markup.split(self._placeholder))
        end = len(made.ids) - len(after)
        if made.ids[: len(before)] != before or made.ids[end:] != after:
            raise TemplateError(
                f"{self.family} is not supported: it changes the text {self.markup!r} of an image"
            )
        return replace(made, ids=made.ids[len(before) : end])

    def batch(self, images: Sequence[Image]) -> Processed:
        """Return the image processor's output for several images in one call.

        Raises:
            ImageError: An image cannot be decoded or processed.
            TemplateError: The image processor alone does not determine the number of tokens.
        """
        self._check_repeating()
        output = self._run(self._image_processor, images=[_rgb(image) for image in images])
        tensors = self._arrays(output)
        if "image_grid_thw" not in tensors:
            raise self._unknown_count()
        merged = int(self._image_processor.merge_size) ** 2
        count = int(tensors["image_grid_thw"].prod(axis=1).sum()) // merged
        return Processed(ids=(self._placeholder_id,) * count, tensors=tensors)

    def text(self, text: str, images: Sequence[Image]) -> Processed:
        """Return the whole processor's output for a text with placeholders.

        Raises:
            ImageError: An image cannot be decoded or processed.
            TemplateError: The output is not supported.
        """
        start: Any = getattr(self._tokenizer, "bos_token", None)
        made = self._text(text, images)
        first = self._encode(start or "")
        if not first or start in text or first[0] not in made.ids:
            return made
        # the processor starts a text with this token unless it has it (Llama 3.2 Vision)
        made = self._text(start + text, images)
        if made.ids[:2] == first * 2:
            raise TemplateError(
                f"{self.family} is not supported: it starts every text with {start!r}, even one "
                "that already has it"
            )
        return replace(made, ids=made.ids[1:])

    def _text(self, text: str, images: Sequence[Image]) -> Processed:
        pictures = [_rgb(image) for image in images]
        output = self._run(self._processor, text=[text], images=pictures, add_special_tokens=False)
        ids = _array(output["input_ids"]).reshape(-1)
        return Processed(ids=tuple(int(i) for i in ids), tensors=self._arrays(output))

    @property
    def _tokenizer(self) -> Any:  # noqa: ANN401  # a transformers tokenizer
        return getattr(self._processor, "tokenizer", None)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def _run(self, processor: Any, **inputs: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Call a processor for numpy arrays, or for torch tensors if that fails."""
        first: Exception | None = None
        for framework in self._frameworks:
            try:
                output = processor(**inputs, return_tensors=framework)
            except (ImageError, TemplateError):
                raise
            except _FAILURES as error:
                first = first or error
            else:
                self._frameworks = (framework,)
                return output
        raise ImageError(
            f"{type(processor).__name__} cannot process this image: {first}"
        ) from first

    def _arrays(self, output: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for key, value in output.items():
            if key in _PER_TOKEN or key.endswith(_PER_TOKEN_END):
                continue
            array = _array(value)
            if array.dtype == object:
                raise TemplateError(
                    f"{self.family} is not supported: its {key!r} is a list of arrays of "
                    "different shapes"
                )
            array.flags.writeable = False
            arrays[key] = array
        return arrays

    def _check_repeating(self) -> None:
        known = self.family.startswith(_REPEATING)
        if not known or not isinstance(getattr(self._image_processor, "merge_size", None), int):
            raise self._unknown_count()

    def _unknown_count(self) -> TemplateError:
        return TemplateError(
            f"{self.family} alone does not determine the tokens of an image; pass the model's "
            "whole processor as the first argument (envkit.tokens.load_codec does so)"
        )


def _rgb(image: Image) -> Any:  # noqa: ANN401  # a PIL image; transformers takes it untyped
    picture = image.pil()
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _array(value: Any) -> NDArray[Any]:  # noqa: ANN401  # a tensor, an array or nested lists
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    try:
        return np.asarray(value)
    except ValueError:  # arrays of different shapes
        return np.asarray([None], dtype=object)
