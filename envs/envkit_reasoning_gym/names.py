"""Which of reasoning-gym's datasets are environments here."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Final

from envkit.errors import MissingDependencyError

NOT_PLAYED: Final = frozenset({"codeio", "composite", "list_functions"})
"""A mixture of others, which cannot be made without a list of them; and two datasets whose items
are not the same for the same seed: codeio runs programs that draw from generators of their own."""


def factory() -> ModuleType:
    """Import reasoning-gym's factory.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries below it warn while they are compiled
            return import_module("reasoning_gym.factory")
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "the collection 'reasoning_gym'", "reasoning-gym", "reasoning-gym"
        ) from error


def member_ids() -> Iterator[str]:
    """Yield the ids, without the namespace.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
    """
    for name in sorted(factory().DATASETS):
        if name not in NOT_PLAYED:
            yield f"{name}-v0"
