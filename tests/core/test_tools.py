"""Tool schemas: from functions as transformers writes them, from JSON, and their validation."""

import copy
import enum
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.tools import ToolSpec, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def search(
    query: str,
    limit: int = 5,
    ratio: float | None = None,
    mode: Literal["fast", "deep"] = "fast",
    sites: list[str] | None = None,
) -> str:
    """
    Search the index.

    The second paragraph belongs to the description too.

    Args:
        query: What to look for,
            on two lines.
        limit: How many hits.
        ratio: A share.
        mode: How hard to look.
        sites: Where to look.

    Returns:
        The hits: one per line.
    """
    return f"{query}{limit}{ratio}{mode}{sites}"


def shapes(
    pair: tuple[int, str],
    table: dict[str, float],
    anything: Any,
    either: int | str,
    mixed: list[int] | str,
    colour: Colour,
    drink: str,
    flags: dict[str, bool],
    plain: list,  # type: ignore[type-arg]  # a bare list is part of what is tested
    level: Literal[1, 2, "max", None] = 1,
) -> None:
    """Take every kind of argument.

    Args:
        pair: A pair.
        table: A table: with a colon.
        anything: Anything.
        either: Either.
        mixed: Mixed.
        colour: A colour.
        drink: A drink (choices: ["tea", "coffee"])
        flags: Flags.
        plain: Plain.
        level: A level.

    Raises:
        ValueError: never.
    """


def nothing() -> None:
    """Take no argument."""


class Desk:
    def clean(self, hard: bool = False) -> None:
        """Clean the desk.

        Args:
            hard: Whether to scrub.
        """


@pytest.mark.parametrize("function", [search, shapes, nothing, Desk().clean])
def test_schema_of_a_function_equals_transformers(function: Callable[..., Any]) -> None:
    from transformers.utils.chat_template_utils import get_json_schema

    expected = get_json_schema(function)
    expected["function"].pop("return", None)  # templates ignore it; ours omits it

    assert ToolSpec.from_function(function).to_json() == expected


def test_decorated_function_is_a_spec_and_still_callable() -> None:
    @tool
    def double(n: int) -> int:
        """Double a number.

        Args:
            n: The number.
        """
        return 2 * n

    assert double.name == "double"
    assert double(n=4) == 8
    assert not double.is_async
    assert copy.deepcopy(double)(n=1) == 2


async def test_asynchronous_function_gives_its_coroutine() -> None:
    @tool(name="fetch.page")
    async def fetch(url: str) -> str:
        """Fetch a page.

        Args:
            url: Where.
        """
        return url.upper()

    assert fetch.is_async
    assert fetch.name == "fetch.page"
    assert await fetch(url="a") == "A"


def undocumented(x: int) -> None: ...


def untyped(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # the mistake
    """Do it.

    Args:
        x: A thing.
    """


def undescribed(x: int) -> None:
    """Do it."""


def custom(x: Desk) -> None:
    """Do it.

    Args:
        x: A desk.
    """


def starred(*numbers: int) -> None:
    """Do it.

    Args:
        numbers: Some.
    """


def bad_choices(x: str) -> None:
    """Do it.

    Args:
        x: One of (choices: tea, coffee)
    """


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (undocumented, "'undocumented' needs a docstring"),
        (untyped, "argument 'x' needs a type hint"),
        (undescribed, "argument 'x' needs a line in the docstring's Args section"),
        (custom, "has no JSON form"),
        (starred, "must be an ordinary named argument"),
        (bad_choices, "must hold a JSON list"),
        (Desk.clean, "is a method"),
    ],
)
def test_function_without_a_clear_schema_is_refused(
    function: Callable[..., Any], part: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tool(function)

    assert part in str(caught.value)


DOCUMENTED = """
from envkit.tools import tool
def search(query: str) -> str:
    '''Search.

    Args:
        query: Words.
    '''
    return query
tool(search)
"""


def test_docstrings_that_python_removed_are_named_as_the_cause() -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-c", DOCUMENTED], capture_output=True, text=True, check=False
    )

    assert "ConfigurationError: tool 'search' needs a docstring" in done.stderr
    assert "-OO" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "errors"),
    [
        ({"query": "x"}, []),
        ({"query": "x", "limit": 3, "ratio": None, "sites": ["a"], "mode": "deep"}, []),
        ({}, ["arguments: 'query' is a required property"]),
        ({"query": 5}, ["arguments.query: 5 is not of type 'string'"]),
        ({"query": "x", "limit": None}, ["arguments.limit: None is not of type 'integer'"]),
        ({"query": "x", "limit": 2.5}, ["arguments.limit: 2.5 is not of type 'integer'"]),
        ({"query": "x", "mode": "slow"}, ["arguments.mode: 'slow' is not one of ['fast', 'deep']"]),
        ([], ["arguments must be an object, got list"]),
        (None, ["arguments must be an object, got NoneType"]),
    ],
)
def test_arguments_are_validated_with_sentences(arguments: object, errors: list[str]) -> None:
    assert ToolSpec.from_function(search).validate(arguments) == errors


def test_an_argument_that_was_not_asked_for_is_an_error_unless_allowed() -> None:
    open_spec = ToolSpec(
        name="f", description="", parameters={"type": "object", "additionalProperties": True}
    )

    (error,) = ToolSpec.from_function(search).validate({"query": "x", "page": 1})

    assert "'page' was unexpected" in error
    assert open_spec.validate({"page": 1}) == []


def test_a_wrong_element_is_named_by_its_place() -> None:
    (error,) = ToolSpec.from_function(shapes).validate(
        {
            "pair": [1, 2],
            "table": {},
            "anything": None,
            "either": 1,
            "mixed": "x",
            "colour": "red",
            "drink": "tea",
            "flags": {},
            "plain": [],
        }
    )

    assert error == "arguments.pair[1]: 2 is not of type 'string'"


def test_long_values_are_shortened_in_errors() -> None:
    (error,) = ToolSpec.from_function(search).validate({"query": ["x" * 10_000]})

    assert len(error) < 400
    assert error.endswith("is not of type 'string'")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(arguments=JSON)
def test_validation_never_raises(arguments: object) -> None:
    assert isinstance(SEARCH.validate(arguments), list)


SEARCH = ToolSpec.from_function(search)


def test_spec_survives_json_and_pickling() -> None:
    SEARCH.validate({})  # compiles the validator, which must not be pickled

    for back in (
        ToolSpec.from_json(json.loads(json.dumps(SEARCH.to_json()))),
        ToolSpec.from_json(SEARCH.to_json()["function"]),
        pickle.loads(pickle.dumps(SEARCH)),
    ):
        assert back == SEARCH
        assert hash(back) == hash(SEARCH)
        assert back.validate({"query": 5}) == SEARCH.validate({"query": 5})
        with pytest.raises(ConfigurationError, match="has a schema but no function"):
            back(query="x")


def test_json_form_is_a_copy() -> None:
    SEARCH.to_json()["function"]["parameters"]["properties"].clear()

    assert SEARCH.validate({"query": "x"}) == []


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({}, "a tool schema must be"),
        ({"name": 5}, "a tool schema must be"),
        ({"function": "search"}, "a tool schema must be"),
        ({"name": "two words"}, "got 'two words'"),
        ({"name": "f", "parameters": [1]}, "parameters must be an object"),
        ({"name": "f", "parameters": {"type": "array"}}, "got type 'array'"),
    ],
)
def test_wrong_schema_is_refused(schema: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ToolSpec.from_json(schema)

    assert part in str(caught.value)


def test_invalid_json_schema_is_refused_at_validation() -> None:
    spec = ToolSpec(name="f", description="", parameters={"properties": {"a": {"type": "text"}}})

    with pytest.raises(ConfigurationError, match="a valid JSON Schema"):
        spec.validate({})


def test_tool_without_parameters_takes_none() -> None:
    spec = ToolSpec.from_json({"name": "stop"})

    assert spec.validate({}) == []
    assert spec.validate({"now": True}) != []
