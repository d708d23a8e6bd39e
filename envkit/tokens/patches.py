"""A fast, proven implementation of patch processors, per image size.

Qwen2-VL's image processor and its relatives resize with Pillow, map each byte to a value, and
reorder the result into patches (`image_processing_pil_qwen2_vl.py` of transformers 5). Their code
converts the full image to an array and back, with a copy at every step, which dominates the cost of
an image for a small model. A `PatchPlan` does the three steps directly. It is used for a size only
if it reproduces the processor's output bit for bit on a noise image of that size.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.errors import ImageError, TemplateError
from envkit.images import Image
from envkit.tokens.processors import Processed, ProcessorCall

_PIXELS, _GRID = "pixel_values", "image_grid_thw"
_VALUES: Final = 256
_CHANNELS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """Converts images of one size to `pixel_values`."""

    target: tuple[int, int]
    """Width and height after the resize, multiples of `patch * merge`."""
    patch: int
    """Side of a patch in pixels."""
    merge: int
    """Side, in patches, of the square that becomes one token."""
    frames: int
    """Number of times a patch repeats the image, for models that see pairs of video frames."""
    resample: int
    """Number of the Pillow filter."""
    table: NDArray[Any]
    """(3, 256): the value of each byte per channel."""
    ids: tuple[int, ...]
    """Ids that replace the placeholder of an image; empty if only tensors are needed."""
    grid: NDArray[Any]
    """(1, 3): frames, rows and columns of patches."""

    def processed(self, image: Image) -> Processed:
        """Return the processor's output for an image of this size."""
        values = self.pixel_values(image.pil())
        values.flags.writeable = False
        return Processed(ids=self.ids, tensors={_PIXELS: values, _GRID: self.grid})

    def pixel_values(self, picture: PilImage.Image) -> NDArray[Any]:
        """Return the patches of an image, (P, 3 * frames * patch**2)."""
        pixels = self.resized(picture)
        rows, columns, merge = *pixels.shape[:2], self.merge
        values = np.empty(
            (rows, columns, merge, merge, _CHANNELS, self.frames, self.patch, self.patch),
            self.table.dtype,
        )
        for channel in range(_CHANNELS):
            values[:, :, :, :, channel] = self.table[channel].take(
                np.ascontiguousarray(pixels[..., channel])
            )[:, :, :, :, None]
        return values.reshape(rows * columns * merge**2, -1)

    def resized(self, picture: PilImage.Image) -> NDArray[Any]:
        """Return the resized bytes by patch: (rows, columns, merge, merge, patch, patch, 3)."""
        picture = picture if picture.mode == "RGB" else picture.convert("RGB")
        if picture.size != self.target:
            picture = picture.resize(self.target, PilImage.Resampling(self.resample))
        columns, rows = (side // (self.patch * self.merge) for side in self.target)
        sides = (rows, self.merge, self.patch, columns, self.merge, self.patch, _CHANNELS)
        return np.asarray(picture).reshape(sides).transpose(0, 3, 1, 4, 2, 5, 6)


def find_plan(call: ProcessorCall, size: tuple[int, int], made: Processed) -> PatchPlan | None:
    """Return the plan for a size, or None if no plan reproduces the processor's output.

    Runs the processor on two images.

    Args:
        call: The processor.
        size: Width and height of the images.
        made: Its output for an image of this size.
    """
    try:
        plan = _guess(call.image_processor, made)
        if plan is None:
            return None
        noise = np.random.default_rng(0).integers(0, _VALUES, (size[1], size[0], _CHANNELS))
        probe = Image.from_array(noise.astype(np.uint8))
        found = call.image(probe)
        plan = _with_table(plan, call)
        is_same = (
            plan is not None
            and found.ids == made.ids
            and np.array_equal(found.tensors[_GRID], made.tensors[_GRID])
            and _is_equal(plan.pixel_values(probe.pil()), found.tensors[_PIXELS])
        )
    except (ImageError, TemplateError, ArithmeticError, LookupError, ValueError, TypeError):
        return None
    return plan if is_same else None


def _guess(processor: Any, made: Processed) -> PatchPlan | None:  # noqa: ANN401  # transformers
    """Return a plan from the processor's settings, without the table."""
    grid = made.tensors.get(_GRID)
    names = ("patch_size", "merge_size", "temporal_patch_size", "resample")
    settings: list[Any] = [getattr(processor, name, None) for name in names]
    if set(made.tensors) != {_PIXELS, _GRID} or grid is None or grid.shape != (1, 3):
        return None
    if not all(isinstance(one, int) for one in settings):
        return None
    patch, merge, frames, resample = (int(one) for one in settings)
    return PatchPlan(
        target=(int(grid[0, 2]) * patch, int(grid[0, 1]) * patch),
        patch=patch,
        merge=merge,
        frames=frames,
        resample=resample,
        table=np.empty((0, 0)),
        ids=made.ids,
        grid=grid,
    )


def _with_table(plan: PatchPlan, call: ProcessorCall) -> PatchPlan | None:
    """Return the plan with the processor's value of every byte, read from an image of all bytes."""
    width, height = plan.target
    if width * height < _VALUES:
        return None
    every = (np.arange(width * height) % _VALUES).astype(np.uint8).reshape(height, width, 1)
    probe = Image.from_array(np.repeat(every, _CHANNELS, axis=2))
    values = call.image(probe).tensors[_PIXELS]
    bytes_of = plan.resized(probe.pil())[..., 0].reshape(-1, plan.patch**2)
    by_channel = values.reshape(len(bytes_of), _CHANNELS, plan.frames, -1)[:, :, 0]
    table = np.zeros((_CHANNELS, _VALUES), values.dtype)
    for channel in range(_CHANNELS):
        table[channel, bytes_of] = by_channel[:, channel]
    return replace(plan, table=table)


def _is_equal(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
