"""Run a model's image processor once per image, with a cache.

Thread-safe: two threads that need the same image wait for one computation. Tensors live in one
cache, bounded by bytes and keyed by the image's hash. Ledgers and rows only refer to them, so group
members share them and stored trajectories hold none in memory: evicted tensors are recomputed when
read. Prompts and observations use the same processor settings because they use the same object.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from envkit.errors import ConfigurationError, ImageError
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures, join_features
from envkit.tokens.expansion import Expansion, ImageRules, expand_text, prove
from envkit.tokens.patches import PatchPlan, find_plan
from envkit.tokens.placeholders import replace_each
from envkit.tokens.processors import Processed, ProcessorCall
from envkit.tokens.rules import ImageSyntax
from envkit.tokens.sanity import WholeImages
from envkit.tokens.template import ChatTemplate

_CACHE_BYTES: Final = 512 * 1024 * 1024
_SMALL_BYTES: Final = 1024
_PLANNED_FROM: Final = 3
"""Number of images of one size that the processor handles before a `PatchPlan` is tried."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """Features and token ids of an image."""

    features: ImageFeatures
    ids: tuple[int, ...]
    """Ids that replace its placeholder, regardless of context."""


@dataclass(slots=True)
class _Size:
    """Known properties of images of one size."""

    ids: tuple[int, ...] | None = None
    """Their token ids, set only by a lazy encoder."""
    seen: int = 0
    """Number of images of this size that went through the processor."""
    plan: PatchPlan | None = None


class ImageEncoder:
    """Converts images to their tensors and tokens with a model's processor."""

    def __init__(
        self,
        call: ProcessorCall,
        *,
        template: ChatTemplate,
        syntax: ImageSyntax,
        anchor: str,
        is_lazy: bool,
    ) -> None:
        """Create the encoder; the first use proves how the processor expands and joins images.

        Args:
            call: Calls the processor.
            template: Encodes text as the codec does.
            syntax: The placeholder.
            anchor: The special token that every observation starts with.
            is_lazy: Process an image when its tensors are first read. The first image of each
                size is processed immediately; all others of that size get the same token ids.
        """
        self._call, self._template, self._syntax, self._anchor = call, template, syntax, anchor
        self._limit = _CACHE_BYTES
        self._is_lazy = is_lazy
        self._sizes: defaultdict[tuple[int, int], _Size] = defaultdict(_Size)
        self._lock, self._proving = threading.Lock(), threading.Lock()
        self._rules: ImageRules | None = None
        self._kept: OrderedDict[str, Processed] = OrderedDict()
        self._running: dict[str, Future[Processed]] = {}
        self._bytes = 0
        self.computed = 0
        """Number of images processed, for tests and benchmarks."""

    @property
    def rules(self) -> ImageRules:
        """Proven behaviour of the processor; the first access runs it on probe images.

        Raises:
            TemplateError: The processor is not supported.
        """
        with self._proving:
            if self._rules is None:
                self._rules = prove(self._call, self._template, self._syntax, self._anchor)
            return self._rules

    def is_quick(self, image: Image) -> bool:
        """Return whether an image can be encoded without work on its pixels."""
        if self._rules is None or self._rules.expansion is not Expansion.IDS:
            return False
        return image.sha256 in self._kept or self._sizes[image.size].ids is not None

    def features(self, image: Image) -> ImageFeatures:
        """Return one image's features, computed at most once while cached.

        Raises:
            ImageError: The image cannot be decoded or processed.
            TemplateError: The processor is not supported.
        """
        return self._known(image).features

    def expand(
        self,
        wire_ids: Sequence[int],
        text: str,
        images: Sequence[Image],
        *,
        added: int,
        earlier: int,
    ) -> tuple[tuple[int, ...], tuple[ImageFeatures, ...]]:
        """Return the train ids of some messages, and the features of their images.

        Args:
            wire_ids: The ids to append to the ledger, one placeholder per image.
            text: The rendered text.
            images: Its images.
            added: Number of wire ids before the text. A negative value is the number of leading ids
                of the text that the model sampled itself.
            earlier: Number of images in the conversation before these.

        Raises:
            ImageError: An image cannot be decoded or processed.
            TemplateError: The processor is not supported.
        """
        known = [self._known(image) for image in images]
        features = tuple(one.features for one in known)
        expansion = self.rules.expansion
        if expansion is Expansion.IDS:
            placeholder = self._syntax.placeholder_id
            return tuple(replace_each(wire_ids, placeholder, [one.ids for one in known])), features
        before = earlier if expansion is Expansion.NUMBERED else 0
        whole = expand_text(self._call, text, images, earlier=before)
        train = (*wire_ids[:added], *whole) if added > 0 else whole[-added:]
        return train, share_count(features, len(train) - len(wire_ids))

    def whole(self, images: Sequence[Image], text: str) -> WholeImages | None:
        """Return the processor's output for a whole conversation in one call.

        None for a bare image processor, which takes no text.

        Raises:
            ImageError: An image cannot be processed.
        """
        if not self._call.is_whole:
            return None
        made = self._call.text(text, images)
        ours = join_features(self.features(image) for image in images)
        return WholeImages(ids=made.ids, tensors=made.tensors, ours=ours)

    def _known(self, image: Image) -> _Known:
        rules, size = self.rules, self._sizes[image.size]
        made = self.processed(image) if size.ids is None else None
        ids = size.ids if made is None else made.ids
        assert ids is not None
        if made is not None and self._is_lazy and rules.expansion is Expansion.IDS:
            size.ids = ids
        tensors = _Tensors(self, image, ids, made)
        features = ImageFeatures(tensors=tensors, token_count=len(ids), joining=rules.joining)
        return _Known(features=features, ids=ids)

    def processed(self, image: Image) -> Processed:
        """Return the processor's output for an image, from the cache if possible.

        Raises:
            ImageError: The image cannot be decoded or processed.
            TemplateError: The processor is not supported.
        """
        key = image.sha256
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            mine: Future[Processed] = Future()
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

    def _keep(self, key: str, made: Processed) -> None:
        self._kept[key] = made
        self._bytes += _size(made)
        while self._bytes > self._limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _size(dropped)

    def _compute(self, image: Image) -> Processed:
        size = self._sizes[image.size]
        if size.plan is not None:
            return size.plan.processed(image)
        made = self._call.image(image)
        size.seen += 1
        if size.seen == _PLANNED_FROM:
            size.plan = find_plan(self._call, image.size, made)
        return made


class _Tensors(Mapping[str, NDArray[Any]]):
    """Lazy tensors of an image with known tokens.

    Small ones, such as grids, stay in memory, because engines read them every turn.
    """

    def __init__(
        self, encoder: ImageEncoder, image: Image, ids: tuple[int, ...], made: Processed | None
    ) -> None:
        self._encoder, self._image, self._ids = encoder, image, ids
        self._small: dict[str, NDArray[Any]] = {}
        self._names: tuple[str, ...] | None = None
        if made is not None:
            self._note(made)

    def _tensors(self) -> Mapping[str, NDArray[Any]]:
        made = self._encoder.processed(self._image)
        if made.ids != self._ids:
            family = self._encoder.rules.joining.family
            raise ImageError(
                f"{family} must give images of equal size the same number of tokens, got "
                f"{len(made.ids)} and {len(self._ids)} for {self._image.size}; create the codec "
                "without lazy_features"
            )
        self._note(made)
        return made.tensors

    def _note(self, made: Processed) -> None:
        self._names = tuple(made.tensors)
        self._small = {key: one for key, one in made.tensors.items() if one.nbytes <= _SMALL_BYTES}

    def __getitem__(self, key: str) -> NDArray[Any]:
        small = self._small.get(key)
        return self._tensors()[key] if small is None else small

    def __contains__(self, key: object) -> bool:
        return key in (self._names or self._tensors())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names or self._tensors())

    def __len__(self) -> int:
        return len(self._names or self._tensors())

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self._tensors()),)


def make_image_encoder(
    processor: Any,  # noqa: ANN401  # foreign objects, optional dependencies
    image_processor: Any,  # noqa: ANN401
    template: ChatTemplate,
    syntax: ImageSyntax | None,
    *,
    anchor: str,
    is_lazy: bool,
) -> ImageEncoder | None:
    """Return an encoder, or None if the template writes no images or no processor was given.

    Args:
        processor: The model's whole processor, or None.
        image_processor: Its image processor alone, or None; used instead of `processor`.
        template: Encodes text as the codec does.
        syntax: The placeholder; None if the template writes no images.
        anchor: The special token that every observation starts with.
        is_lazy: As for `ImageEncoder`.

    Raises:
        ConfigurationError: The image processor is not callable.
    """
    if processor is not None and not callable(processor):  # just a container of the parts
        image_processor = image_processor or getattr(processor, "image_processor", None)
        processor = None
    if syntax is None or (image_processor is None and processor is None):
        return None
    if image_processor is not None and not callable(image_processor):
        raise ConfigurationError(
            f"image_processor must be a transformers image processor, got {image_processor!r}"
        )
    call = ProcessorCall(
        processor if image_processor is None else None,
        image_processor,
        placeholder=syntax.placeholder,
        placeholder_id=syntax.placeholder_id,
    )
    return ImageEncoder(call, template=template, syntax=syntax, anchor=anchor, is_lazy=is_lazy)


def share_count(features: Sequence[ImageFeatures], added: int) -> tuple[ImageFeatures, ...]:
    """Return features whose token counts add up to the growth of the whole text.

    Some processors write text around an image (Gemma-3: blank lines), whose tokens merge with their
    neighbours. The last image's count absorbs the difference.
    """
    difference = added - sum(feature.token_count - 1 for feature in features)
    last = features[-1]
    return (*features[:-1], replace(last, token_count=last.token_count + difference))


def _size(made: Processed) -> int:
    return sum(array.nbytes for array in made.tensors.values())
