"""Prices of models, read from a small file.

TOML or JSON with one table per model, in dollars per million tokens::

    ["gpt-4.1-mini"]
    input = 0.40
    output = 1.60
    cached_input = 0.10   # optional; None bills cached tokens as input
    image = 0.0           # optional; dollars per image in a request
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.ranges import at_least
from envkit.rollout.setting_types import check_keys, check_types
from envkit_eval.samples import Sample

_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of one model."""

    input: float
    """Dollars per million context tokens."""
    output: float
    """Dollars per million sampled tokens."""
    cached_input: float | None = None
    """Dollars per million cached context tokens; None uses `input`."""
    image: float = 0.0
    """Dollars per image in a request, in addition to its tokens."""

    def cost(self, sample: Sample) -> float:
        """Return the cost of an episode in dollars."""
        cached = self.input if self.cached_input is None else self.cached_input
        tokens = (
            self.input * (sample.prompt_tokens - sample.cached_tokens)
            + cached * sample.cached_tokens
            + self.output * sample.reply_tokens
        )
        return tokens / _MILLION + self.image * sample.images

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data that `price_of` reads."""
        return asdict(self)


def read_price(path: Path, model: str) -> Price:
    """Return a model's price from a file; every row of the file is checked.

    Raises:
        ConfigurationError: The file cannot be read, or a row is not a price.
        UnknownNameError: The file has no row for the model.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data: object = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read the prices {path}: {error}") from error
    if not isinstance(data, dict) or not data:
        raise ConfigurationError(f"{path} must map models to their prices, got {data!r:.80}")
    rows = cast("dict[str, object]", data)
    prices = {name: price_of(row, f"{path}, {name!r}") for name, row in rows.items()}
    if model not in prices:
        raise UnknownNameError.suggest(f"price in {path} for model", model, prices)
    return prices[model]


def price_of(row: object, where: str) -> Price:
    """Return the price that a row describes.

    Args:
        row: JSON data.
        where: Names the row in errors.

    Raises:
        ConfigurationError: A number is missing, unknown, negative or not finite.
    """
    if not isinstance(row, Mapping) or not {"input", "output"} <= row.keys():
        raise ConfigurationError(
            f"{where}: a price is a table such as {{input = 0.40, output = 1.60}}, in dollars per "
            f"million tokens, got {row!r:.80}"
        )
    given = cast("Mapping[str, Any]", row)
    check_keys(Price, given, where)
    check_types(Price, given, where)
    at_least(0, **{f"{where}: {name}": value for name, value in given.items()})
    return Price(**given)
