"""Coordinate spaces: sizes, rounding and what lies outside."""

import ast
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.smart_resize import SmartResize
from envkit_actions.spaces import (
    QWEN3_VL_RESIZE,
    QWEN25_VL_RESIZE,
    UI_TARS_RESIZE,
    CoordinateSpace,
    SpaceKind,
)

SIDES = st.integers(1, 4000)
SCREENS = st.tuples(SIDES, SIDES).filter(lambda size: max(size) <= 200 * min(size))
RESIZES = st.sampled_from([QWEN25_VL_RESIZE, QWEN3_VL_RESIZE, UI_TARS_RESIZE])
KINDS = st.sampled_from(list(SpaceKind))
SCALES = st.sampled_from([1, 999, 1000])


@st.composite
def spaces(draw: st.DrawFn) -> CoordinateSpace:
    sent = draw(st.none() | SCREENS)
    return CoordinateSpace.of(
        draw(KINDS), draw(SCREENS), sent=sent, resize=draw(RESIZES), scale=draw(SCALES)
    )


@pytest.mark.parametrize(
    ("sent", "resize", "seen"),
    [
        ((640, 480), QWEN25_VL_RESIZE, (644, 476)),
        ((640, 480), QWEN3_VL_RESIZE, (640, 480)),
        ((672, 448), QWEN25_VL_RESIZE, (672, 448)),
        ((672, 448), QWEN3_VL_RESIZE, (672, 448)),
        ((1280, 720), QWEN25_VL_RESIZE, (1288, 728)),
        ((1280, 720), QWEN3_VL_RESIZE, (1280, 704)),
        ((160, 210), QWEN3_VL_RESIZE, (224, 320)),
        ((8000, 8000), QWEN3_VL_RESIZE, (4096, 4096)),
    ],
)
def test_resize_gives_the_sizes_that_the_processors_give(
    sent: tuple[int, int], resize: SmartResize, seen: tuple[int, int]
) -> None:
    assert resize.apply(sent) == seen


def _transformers_smart_resize() -> Any:
    """Compile the one function alone: its module imports torchvision."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    models = Path(spec.origin).parent / "models"
    source = (models / "qwen2_vl" / "image_processing_qwen2_vl.py").read_text()
    function = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "smart_resize"
    )
    names: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([function], []), "transformers", "exec"), names)
    return names["smart_resize"]


def test_resize_equals_that_of_transformers() -> None:
    smart_resize = _transformers_smart_resize()

    for resize in (QWEN25_VL_RESIZE, QWEN3_VL_RESIZE, UI_TARS_RESIZE):
        for width in (5, 13, *range(28, 5000, 173)):
            for height in range(28, min(5000, 200 * width), 211):
                seen = resize.apply((width, height))
                expected = smart_resize(
                    height, width, resize.factor, resize.min_pixels, resize.max_pixels
                )
                assert (seen.height, seen.width) == expected, (width, height, resize)


@settings(max_examples=examples(300))
@given(spaces(), st.data())
def test_point_returns_to_its_pixel_within_the_rounding(
    space: CoordinateSpace, data: st.DataObject
) -> None:
    x = data.draw(st.integers(0, space.screen.width - 1))
    y = data.draw(st.integers(0, space.screen.height - 1))

    point = space.to_screen(*space.from_screen(x, y))

    assert point.is_inside
    pairs = zip((x, y), (point.x, point.y), space.screen, space.extent, strict=True)
    for pixel, returned, pixels, extent in pairs:
        is_fine = extent >= pixels or space.extent == (1, 1)  # where fractions are written
        step = pixels / extent
        is_last = pixel >= pixels - step  # models do not name the far edge itself
        assert abs(pixel - returned) <= (0 if is_fine else math.ceil(step if is_last else step / 2))


@given(spaces())
def test_far_corner_is_named_below_the_extent(space: CoordinateSpace) -> None:
    x, y = space.from_screen(space.screen.width - 1, space.screen.height - 1)

    assert x < space.extent.width
    assert y < space.extent.height


@given(
    spaces(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_point_is_on_the_screen_and_outside_is_reported(
    space: CoordinateSpace, x: float, y: float
) -> None:
    point = space.to_screen(x, y)

    assert 0 <= point.x < space.screen.width
    assert 0 <= point.y < space.screen.height
    width, height = space.extent
    assert point.is_inside == (0 <= x <= width and 0 <= y <= height)


def test_fractions_are_cut_only_on_the_screen() -> None:
    space = CoordinateSpace.of(SpaceKind.NORMALISED, (1280, 720), scale=1000)

    assert space.to_screen(499.9, 500)[:2] == (639, 360)
    assert space.to_screen(1000, 1000)[:2] == (1279, 719)


def test_resized_space_counts_pixels_of_what_was_seen() -> None:
    space = CoordinateSpace.of(
        SpaceKind.RESIZED, (1280, 720), sent=(640, 360), resize=QWEN25_VL_RESIZE
    )

    assert space.seen == (644, 364)
    assert space.to_screen(322, 182)[:2] == (640, 360)


@pytest.mark.parametrize(
    "arguments",
    [
        {"screen": (0, 10)},
        {"screen": (10, 10), "sent": (10, 0)},
        {"screen": (10, 10), "scale": 100},
        {"screen": (10, 10), "kind": SpaceKind.RESIZED},
        {"screen": (10, 4000), "resize": QWEN3_VL_RESIZE},
    ],
)
def test_space_refuses_what_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"got|needs"):
        CoordinateSpace.of(arguments.pop("kind", SpaceKind.SCREEN), **arguments)


def test_resize_refuses_a_thread() -> None:
    with pytest.raises(ConfigurationError, match="at most 200, got 2010x10"):
        QWEN3_VL_RESIZE.apply((2010, 10))
    with pytest.raises(ConfigurationError, match="factor"):
        SmartResize(factor=0, min_pixels=1, max_pixels=2)
