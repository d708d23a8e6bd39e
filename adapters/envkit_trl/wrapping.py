"""Wrap methods of TRL's trainer, which an environment of its tool loop cannot reach."""

import sys
from collections.abc import Callable
from typing import Any


def wrap_trainer(name: str, wrapped: Callable[[Any], Any]) -> None:
    """Wrap a method of GRPOTrainer for the whole process, unless it is wrapped already.

    Without TRL this does nothing.

    Args:
        name: The method's name.
        wrapped: Takes the method and returns its replacement, a function of this package.
    """
    module: Any = sys.modules.get("trl.trainer.grpo_trainer")
    method: Any = getattr(getattr(module, "GRPOTrainer", None), name, None)
    if method is None or method.__module__.partition(".")[0] == __package__:
        return
    setattr(module.GRPOTrainer, name, wrapped(method))
