"""Replace a running model's weights atomically."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from envkit.errors import EngineFault

WeightUpdate = Mapping[str, Tensor] | Callable[[Any], None]
"""New tensors by parameter name (some or all), or a function that changes the model in place
(called without gradients)."""


def apply_update(model: Any, update: WeightUpdate) -> None:  # noqa: ANN401  # a transformers model
    """Change the model's weights in place.

    Args:
        model: The engine's model.
        update: New weights. All tensors are checked before the first is copied.

    Raises:
        EngineFault: A name or shape does not match the model.
    """
    if not isinstance(update, Mapping):
        with torch.no_grad():
            update(model)
        return
    own: dict[str, Tensor] = model.state_dict()
    unknown = sorted(set(update) - set(own))
    if unknown or not update:
        raise EngineFault(
            f"new weights must be named as in model.state_dict(), got {unknown[:5] or 'none'}"
        )
    wrong = [name for name, tensor in update.items() if tensor.shape != own[name].shape]
    if wrong:
        shapes = {name: (tuple(update[name].shape), tuple(own[name].shape)) for name in wrong[:5]}
        raise EngineFault(f"new weights must keep their shapes, got (new, own) {shapes}")
    with torch.no_grad():
        for name, tensor in update.items():
            own[name].copy_(tensor)
