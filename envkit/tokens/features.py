"""A model's image processor, run once per picture and remembered.

Thread-safe: two threads that need the same picture wait for one computation. The cache is bounded
by bytes and keyed by the picture's hash; prompts and observations use the same processor settings
because they use the same object.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError, ImageError, TemplateError
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures

DEFAULT_CACHE_BYTES: Final = 512 * 1024 * 1024
_PER_TOKEN: Final = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
"""Processor outputs with one entry per token: rebuilt from ids by whoever needs them."""


class ImageEncoder:
    """Turns pictures into the tensors and the token count that a model's processor gives them."""

    def __init__(
        self,
        image_processor: Any,  # noqa: ANN401  # a transformers image processor, optional here
        *,
        processor: Any = None,  # noqa: ANN401  # a transformers processor, optional here
        placeholder: str,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        is_lazy: bool = False,
    ) -> None:
        """Keep the processors.

        Args:
            image_processor: Gives grids; its `merge_size` says how many patches make a token.
            processor: The whole processor, for models whose image processor gives no grid.
            placeholder: The text of the placeholder token.
            cache_bytes: How much to remember.
            is_lazy: Process a picture when its tensors are first read. The first picture of each
                size is processed at once, and tells how many tokens all others of that size have.
        """
        self.image_processor = image_processor
        self.processor = processor
        self._placeholder = placeholder
        self._limit = cache_bytes
        self._is_lazy = is_lazy
        self._counts: dict[tuple[int, int], int] = {}
        """Tokens of a picture by its size, where `is_lazy`."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._running: dict[str, Future[ImageFeatures]] = {}
        self._bytes = 0
        self.computed = 0
        """How many pictures were processed, for tests and figures."""

    @property
    def repeats_placeholder(self) -> bool:
        """Whether an image becomes its placeholder repeated, as for Qwen-VL models."""
        return isinstance(getattr(self.image_processor, "merge_size", None), int)

    def is_quick(self, image: Image) -> bool:
        """Whether the features of a picture that is ready can be had without processing it."""
        return image.sha256 in self._kept or self._known_count(image) is not None

    def features(self, image: Image) -> ImageFeatures:
        """Return one picture's features, computed at most once while they are kept.

        Raises:
            ImageError: The picture cannot be decoded or processed.
            TemplateError: The processor's output is not of a supported kind.
        """
        count = self._known_count(image)
        if count is not None:
            return ImageFeatures(tensors=_LazyTensors(self, image, count), token_count=count)
        made = self.processed(image)
        if self._is_lazy and self.repeats_placeholder:
            self._counts[image.size] = made.token_count
        return made

    def _known_count(self, image: Image) -> int | None:
        return self._counts.get(image.size) if self._counts else None

    def processed(self, image: Image) -> ImageFeatures:
        """Return one picture's features with its tensors, whether or not the encoder is lazy.

        Raises:
            ImageError: The picture cannot be decoded or processed.
            TemplateError: The processor's output is not of a supported kind.
        """
        key = image.sha256
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            mine: Future[ImageFeatures] = Future()
            running = self._running.setdefault(key, mine)
        if running is not mine:
            return running.result()
        try:
            made = self._compute(image)
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        with self._lock:
            self.computed += 1
            del self._running[key]
            self._keep(key, made)
        mine.set_result(made)
        return made

    def expand_text(self, text: str, images: Sequence[Image]) -> tuple[int, ...]:
        """Return the whole processor's ids of a text with placeholders (Gemma-3 style models)."""
        output = self._call_processor([text], images)
        return tuple(int(identity) for identity in np.asarray(output["input_ids"]).reshape(-1))

    def _keep(self, key: str, made: ImageFeatures) -> None:
        self._kept[key] = made
        self._bytes += _size(made)
        while self._bytes > self._limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _size(dropped)

    def _compute(self, image: Image) -> ImageFeatures:
        if self.repeats_placeholder:
            tensors = _arrays(self._call(self.image_processor, images=[_rgb(image)]))
            grid = tensors.get("image_grid_thw")
            if grid is not None and len(grid) == 1:
                count = int(np.prod(grid)) // int(self.image_processor.merge_size) ** 2
                return ImageFeatures(tensors=tensors, token_count=count)
        if self.processor is None:
            raise TemplateError(
                f"{type(self.image_processor).__name__} does not say how many tokens an image has "
                "(no image_grid_thw); pass the model's whole processor as the first argument"
            )
        output = self._call_processor([self._placeholder], [image])
        count = int(np.asarray(output["input_ids"]).size)
        return ImageFeatures(tensors=_arrays(output), token_count=count)

    def _call_processor(self, text: list[str], images: Sequence[Image]) -> Mapping[str, Any]:
        pictures = [_rgb(image) for image in images]
        return self._call(self.processor, text=text, images=pictures, add_special_tokens=False)

    @staticmethod
    def _call(processor: Any, **inputs: Any) -> Mapping[str, Any]:  # noqa: ANN401
        try:
            return processor(**inputs, return_tensors="np")
        except ImageError:
            raise
        except (ValueError, TypeError, OSError, ArithmeticError) as error:
            raise ImageError(
                f"{type(processor).__name__} cannot process this image: {error}"
            ) from error


class _LazyTensors(Mapping[str, NDArray[Any]]):
    """The tensors of a picture whose size is known to have so many tokens."""

    def __init__(self, encoder: ImageEncoder, image: Image, token_count: int) -> None:
        self._encoder, self._image, self._token_count = encoder, image, token_count

    def _tensors(self) -> Mapping[str, NDArray[Any]]:
        made = self._encoder.processed(self._image)
        if made.token_count != self._token_count:
            raise ImageError(
                f"{type(self._encoder.image_processor).__name__} must give pictures of one size "
                f"the same number of tokens, got {made.token_count} and {self._token_count} for "
                f"{self._image.size}; make the codec without lazy_features"
            )
        return made.tensors

    def __getitem__(self, key: str) -> NDArray[Any]:
        return self._tensors()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self._tensors()),)


def make_image_encoder(
    processor: Any,  # noqa: ANN401  # foreign objects, optional dependencies
    image_processor: Any,  # noqa: ANN401
    placeholder: str | None,
    *,
    is_lazy: bool = False,
) -> ImageEncoder | None:
    """Return an encoder, or None where the template writes no pictures or no processor was given.

    Raises:
        ConfigurationError: What was given as an image processor cannot be called.
    """
    if image_processor is None and processor is not None:
        image_processor = getattr(processor, "image_processor", None)
    if placeholder is None or (image_processor is None and processor is None):
        return None
    if image_processor is not None and not callable(image_processor):
        raise ConfigurationError(
            f"image_processor must be a transformers image processor, got {image_processor!r}"
        )
    return ImageEncoder(
        image_processor, processor=processor, placeholder=placeholder, is_lazy=is_lazy
    )


def share_count(features: Sequence[ImageFeatures], added: int) -> tuple[ImageFeatures, ...]:
    """Return features whose counts add up to what a whole text gained by expanding its images.

    Some processors write text around an image (Gemma-3: blank lines), whose tokens merge with their
    neighbours; what that changes is counted with the last image.
    """
    difference = added - sum(feature.token_count - 1 for feature in features)
    last = features[-1]
    return (*features[:-1], replace(last, token_count=last.token_count + difference))


def _rgb(image: Image) -> Any:  # noqa: ANN401  # a PIL picture; transformers takes it untyped
    picture = image.pil()
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _arrays(output: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for key, value in output.items():
        if key not in _PER_TOKEN:
            array: NDArray[Any] = np.asarray(value)
            array.flags.writeable = False
            arrays[key] = array
    return arrays


def _size(features: ImageFeatures) -> int:
    return sum(array.nbytes for array in features.tensors.values())
