"""Build a model's input from a request: expand placeholders and compute positions.

Positions are computed here and passed to every forward, because Qwen-VL models otherwise keep an
offset (`rope_deltas`) on the model object, which is wrong if two sessions run.

Axes: N tokens with placeholders expanded, A position axes (1 for text models, 3 for Qwen-VL).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import EngineFault, ImageError, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest
from envkit.tokens.encoded import ImageFeatures

Ids = NDArray[np.int64]
_KEPT_FEATURES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTraits:
    """Settings of a Qwen-VL style model."""

    image_token_id: int
    placeholder_ids: tuple[int, ...]
    """Image and video placeholders: never sampled, since they have no image."""
    merge_size: int
    """Patches are merged merge_size x merge_size into one token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSpan:
    """Position of one image in the expanded ids."""

    offset: int
    length: int
    identity: str
    """Equal for two spans if and only if image and grid are equal."""
    grid: tuple[int, int, int]
    """Patches in time, height and width."""
    features: ImageFeatures

    @property
    def end(self) -> int:
        """One past the last token of the image."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """The context of one request as model input."""

    ids: Ids  # (N,)
    positions: Ids  # (A, N)
    next_position: int
    """Position of the first sampled token, the same on every axis."""
    spans: tuple[ImageSpan, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def common_prefix(
    first: Ids,
    first_spans: Sequence[ImageSpan],
    second: Ids,
    second_spans: Sequence[ImageSpan],
    *,
    limit: int,
) -> int:
    """Return how many leading tokens agree, images included; never ends inside an image."""
    limit = min(limit, len(first), len(second))
    differing = np.flatnonzero(first[:limit] != second[:limit])
    length = int(differing[0]) if len(differing) else limit
    others = {span.offset: span.identity for span in second_spans}
    for span in first_spans:
        if span.offset >= length:
            break
        if span.end > length or others.get(span.offset) != span.identity:
            return span.offset
    for span in second_spans:
        if span.offset < length < span.end:
            return span.offset
    return length


class PromptBuilder:
    """Checks requests and expands them."""

    def __init__(
        self,
        *,
        vocabulary: int,
        vision: VisionTraits | None,
        image_processor: Any | None,  # noqa: ANN401  # a transformers image processor
    ) -> None:
        self._vocabulary = vocabulary
        self._vision = vision
        self._image_processor = image_processor
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()

    def build(self, request: GenerateRequest) -> Prompt:
        """Return the prompt of a request.

        Raises:
            EngineFault: Ids outside the vocabulary, no ids, or an image that cannot be processed.
            LedgerFault: Placeholders, images and features do not match.
        """
        wire = np.asarray(request.wire_ids, dtype=np.int64)
        if wire.ndim != 1 or not len(wire):
            raise EngineFault("wire_ids must hold at least one token, got none")
        if int(wire.min()) < 0 or int(wire.max()) >= self._vocabulary:
            raise EngineFault(
                f"wire_ids must lie in [0, {self._vocabulary}), got {int(wire.min())} to "
                f"{int(wire.max())}: were they made with another model's tokenizer?"
            )
        if self._vision is None:
            if request.images:
                raise LedgerFault(
                    f"this is a text model, got {len(request.images)} images; use a "
                    "vision-language model or an environment without images"
                )
            positions = np.arange(len(wire), dtype=np.int64)[None]
            return Prompt(ids=wire, positions=positions, next_position=len(wire))
        return self._expand(wire, request, self._vision)

    def _expand(self, wire: Ids, request: GenerateRequest, vision: VisionTraits) -> Prompt:
        places = np.flatnonzero(wire == vision.image_token_id)
        if len(places) != len(request.images):
            raise LedgerFault(
                f"wire_ids must hold one image placeholder ({vision.image_token_id}) per image, "
                f"got {len(places)} placeholders and {len(request.images)} images"
            )
        features = self._features(request.images, request.features)
        repeats = np.ones(len(wire), dtype=np.int64)
        repeats[places] = [feature.token_count for feature in features]
        starts = np.cumsum(repeats) - repeats
        spans = tuple(
            _span(int(starts[place]), image, feature, vision.merge_size)
            for place, image, feature in zip(places, request.images, features, strict=True)
        )
        ids = np.repeat(wire, repeats)
        positions, next_position = _positions(len(ids), spans, vision.merge_size)
        return Prompt(ids=ids, positions=positions, next_position=next_position, spans=spans)

    def _features(
        self, images: Sequence[Image], given: Sequence[ImageFeatures]
    ) -> Sequence[ImageFeatures]:
        if given and len(given) != len(images):
            raise LedgerFault(
                f"a request must have features for every image or for none, got {len(given)} "
                f"features and {len(images)} images"
            )
        return given or [self._process(image) for image in images]

    def _process(self, image: Image) -> ImageFeatures:
        if self._image_processor is None or self._vision is None:
            raise EngineFault(
                "the request has images without features and the engine has no image processor; "
                "give the engine the model's processor, or let the codec compute the features"
            )
        try:
            kept = self._kept.pop(image.sha256, None)
            if kept is None:
                picture = image.pil().convert("RGB")
                tensors: dict[str, Any] = dict(
                    self._image_processor(images=[picture], return_tensors="np")
                )
                count = int(np.prod(tensors["image_grid_thw"])) // self._vision.merge_size**2
                kept = ImageFeatures(tensors=tensors, token_count=count)
        except (ImageError, ValueError, KeyError) as error:
            raise EngineFault(f"an image cannot be processed: {error}") from error
        self._kept[image.sha256] = kept
        while len(self._kept) > _KEPT_FEATURES:
            self._kept.popitem(last=False)
        return kept


def _span(offset: int, image: Image, feature: ImageFeatures, merge: int) -> ImageSpan:
    grid_tensor = feature.tensors.get("image_grid_thw")
    if grid_tensor is None or "pixel_values" not in feature.tensors:
        raise LedgerFault(
            "image features must hold 'pixel_values' and 'image_grid_thw', "
            f"got {sorted(feature.tensors)}"
        )
    time, height, width = (int(size) for size in np.asarray(grid_tensor).reshape(-1))
    length = time * height * width // merge**2
    if length != feature.token_count:
        raise LedgerFault(
            f"an image of grid {(time, height, width)} has {length} tokens, but its features say "
            f"{feature.token_count}: did another processor make them?"
        )
    return ImageSpan(
        offset=offset,
        length=length,
        identity=f"{image.sha256}:{time}x{height}x{width}",
        grid=(time, height, width),
        features=feature,
    )


def _positions(total: int, spans: Sequence[ImageSpan], merge: int) -> tuple[Ids, int]:
    """Return (3, total) multimodal rotary positions and the one after them.

    Text counts equally on all axes; an image counts in time, height and width from its start, and
    text continues one after the maximum (Qwen2-VL, arXiv 2409.12191, section 2.1).
    """
    positions = np.empty((3, total), dtype=np.int64)
    column = position = 0
    for span in spans:
        count = span.offset - column
        positions[:, column : span.offset] = np.arange(position, position + count)
        position += count
        time, height, width = span.grid[0], span.grid[1] // merge, span.grid[2] // merge
        grid = np.indices((time, height, width)).reshape(3, -1)
        positions[:, span.offset : span.end] = grid + position
        position += max(time, height, width)
        column = span.end
    positions[:, column:] = np.arange(position, position + total - column)
    return positions, position + total - column
