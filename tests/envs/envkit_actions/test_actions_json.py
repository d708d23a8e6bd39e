"""The canonical JSON of actions, its schema, coordinate spaces, and the page of actions."""

import ast
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from fakes.computer_actions import ACTIONS, KEY_CHARACTERS
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from envkit.errors import ConfigurationError
from envkit.smart_resize import SmartResize
from envkit_actions import (
    ACTION_SCHEMA,
    BATCH_SCHEMA,
    FAMILIES,
    Action,
    ActionKind,
    Button,
    MalformedActionError,
    Status,
    from_json,
    to_json,
)
from envkit_actions.keys import TABLE, KeyColumn, canonical_key, chord, key_name, split_chord
from envkit_actions.spaces import (
    QWEN3_VL_RESIZE,
    QWEN25_VL_RESIZE,
    UI_TARS_RESIZE,
    CoordinateSpace,
    SpaceKind,
)
from envkit_desktop import ComputerUseEnv

VALIDATOR: Any = Draft202012Validator(ACTION_SCHEMA)


def test_schemas_are_valid_schemas() -> None:
    Draft202012Validator.check_schema(ACTION_SCHEMA)
    Draft202012Validator.check_schema(BATCH_SCHEMA)


@given(ACTIONS)
def test_json_follows_the_schema_and_reads_back(action: Action) -> None:
    written = to_json(action)

    VALIDATOR.validate(written)
    assert from_json(written) == action


NUMBERS = st.integers(-5, 2000) | st.floats(-5, 2000)

POINTS = st.lists(NUMBERS, min_size=2, max_size=2)

OBJECTS = st.fixed_dictionaries(
    {"action": st.sampled_from([kind.value for kind in ActionKind])},
    optional={
        "x": NUMBERS,
        "y": NUMBERS,
        "to": POINTS,
        "path": st.lists(POINTS, max_size=3),
        "button": st.sampled_from(["left", "right", "middle", "wheel"]),
        "dx": NUMBERS,
        "dy": NUMBERS | st.just("far"),
        "text": st.text(max_size=4) | st.just(["no"]),
        "keys": st.lists(st.sampled_from(["ctrl", "c", "f12"]), max_size=3, unique=True),
        "seconds": NUMBERS,
        "status": st.sampled_from(["success", "failure", "maybe"]),
        "colour": st.just("red"),
    },
)


@given(OBJECTS)
def test_reader_takes_all_that_the_schema_allows(value: dict[str, Any]) -> None:
    if VALIDATOR.is_valid(value):
        assert from_json(value).kind == value["action"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "an action needs 'action'"),
        ([], "must be an object, got a list"),
        ({"action": "fly"}, "'action' must be one of click, .*, got 'fly'"),
        ({"action": "click", "x": 1}, "click needs 'y'"),
        ({"action": "click", "x": True, "y": 1}, "'x' must be a number, got True"),
        ({"action": "click", "colour": 1}, "unknown field 'colour'"),
        ({"action": "click", "x": 1, "y": 1, "button": "wheel"}, "'button' must be one of left"),
        ({"action": "move"}, "move needs 'x'"),
        ({"action": "drag", "x": 1, "y": 1}, "drag needs either 'to' or 'path'"),
        ({"action": "drag", "to": [1]}, r"'to' must be \[x, y\], got a list"),
        ({"action": "drag", "path": []}, "'path' must be a list of 1 to 100 points"),
        ({"action": "scroll"}, "scroll needs 'dy'"),
        ({"action": "scroll", "dy": 1e9}, "at most 100000"),
        ({"action": "type"}, "type needs 'text'"),
        ({"action": "type", "text": [1]}, "'text' must be a string, got a list"),
        ({"action": "key", "keys": []}, "1 to 6 keys, got 0"),
        ({"action": "key", "keys": ["ctlr"]}, "no key 'ctlr'.*did you mean 'ctrl'"),
        ({"action": "key", "keys": ["a", "A"]}, "repeated in 'a[+]a'"),
        ({"action": "key", "keys": [1]}, "must hold only strings"),
        ({"action": "wait", "seconds": -1}, "0 to 600, got -1"),
        ({"action": "terminate"}, "terminate needs 'status'"),
    ],
)
def test_malformed_json_is_refused_with_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(MalformedActionError, match=sentence):
        from_json(value)


def test_json_of_a_click_is_as_short_as_documented() -> None:
    action = Action(kind=ActionKind.CLICK, x=3, y=4, button=Button.RIGHT, keys=("ctrl",))

    assert to_json(action) == {
        "action": "click",
        "x": 3,
        "y": 4,
        "button": "right",
        "keys": ["ctrl"],
    }
    assert to_json(Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)) == {
        "action": "terminate",
        "status": "failure",
    }


@pytest.mark.parametrize("column", list(KeyColumn))
def test_key_names_of_every_family_are_read(column: KeyColumn) -> None:
    for key in [*TABLE, *KEY_CHARACTERS]:
        assert canonical_key(key_name(key, column)) == key
        assert canonical_key(key_name(key, column).lower()) == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Return", "enter"),
        ("KP_Enter", "enter"),
        ("Prior", "pageup"),
        ("Page_Up", "pageup"),
        ("pgdn", "pagedown"),
        ("cmd", "meta"),
        ("super", "meta"),
        ("win", "meta"),
        ("Control_L", "ctrl"),
        ("ControlOrMeta", "ctrl"),
        ("option", "alt"),
        ("esc", "escape"),
        ("ArrowLeft", "left"),
        ("Digit7", "7"),
        ("KeyQ", "q"),
        (" ", "space"),
        ("plus", "+"),
        ("É", "é"),
    ],
)
def test_key_aliases_are_read(name: str, key: str) -> None:
    assert canonical_key(name) == key


@pytest.mark.parametrize("name", ["", "\n", "\u0130", "zzz" * 50, "\ud800"])
def test_invalid_key_is_refused(name: str) -> None:
    with pytest.raises(MalformedActionError, match="no key"):
        canonical_key(name)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ctrl+shift+T", ("ctrl", "shift", "t")),
        ("ctrl c", ("ctrl", "c")),
        ("ctrl++", ("ctrl", "+")),
        ("+", ("+",)),
        ("A", ("shift", "a")),
        (" ", ("space",)),
    ],
)
def test_chords_are_split(text: str, keys: tuple[str, ...]) -> None:
    assert chord(split_chord(text)) == keys


PAGE = (Path(__file__).parents[3] / "docs" / "computer-use-actions.md").read_text()

ROW = re.compile(r"^\| `([\w.-]+)` \| ([^|]*) \| `(.*)` \| [^|]* \|$", re.MULTILINE)

PLAYED = dict(re.findall(r"^`([\w.-]+)`:\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))


def test_page_shows_a_click_of_every_family() -> None:
    rows = ROW.findall(PAGE)

    assert [name for name, _, _ in rows] == list(FAMILIES)
    for name, _, example in rows:
        family = FAMILIES[name]
        parsed = family.parse(example, family.space((1280, 720)))
        assert parsed.actions == (Action(kind=ActionKind.CLICK, x=640, y=360),), name


def test_page_names_what_every_family_counts() -> None:
    for name, coordinates, _ in ROW.findall(PAGE):
        space = FAMILIES[name].space((1280, 720))
        extent = f"{space.extent.width}x{space.extent.height}"
        expected = {
            "screen": "pixels of the screenshot",
            "resized": f"pixels of the resized image ({extent})",
            "normalised": f"0 to {space.scale}",
        }
        assert coordinates == expected[space.kind], name


def test_page_plays_every_dialect_that_came_last() -> None:
    assert PLAYED.keys() == {"glm-4.5v", "autoglm-phone", "gemini-2.5", "gemini-3.5"}


@pytest.mark.parametrize("name", PLAYED)
def test_played_example_solves_its_task(name: str) -> None:
    env = ComputerUseEnv(action=name, families=["fill_form"], level=1)
    env.reset(seed=1)
    assert env.task["goal"].startswith("Fill in the form: Phone 098 612820.")

    steps = [env.step(reply) for reply in PLAYED[name].split("\n---\n")]

    assert [step.info["parse_error"] for step in steps] == [None] * len(steps)
    assert steps[-1].reward == 1.0


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
