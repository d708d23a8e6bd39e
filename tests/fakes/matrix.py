"""Which part of a large matrix runs in the fast tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def share(values: Iterable[Any], *, of: int) -> list[Any]:
    """Return the parameters of a matrix: every nth as it is, the others marked slow.

    Args:
        values: One for each test; a tuple holds the arguments of a test with several.
        of: n. A number that the length of the innermost axis is not a multiple of reaches every
            value of each axis.
    """

    def slow(value: Any) -> Any:
        arguments = value if isinstance(value, tuple) else (value,)
        return pytest.param(*arguments, marks=pytest.mark.slow)

    return [value if index % of == 0 else slow(value) for index, value in enumerate(values)]
