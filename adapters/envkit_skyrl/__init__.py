"""SkyRL: envkit's loop as SkyRL's generator, and a trainer that counts episodes.

    python -m envkit_skyrl.main envkit.env_id=geo3k-v0 trainer.policy.model.path=... ...

Names that need SkyRL are imported on first access.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from envkit_skyrl.engine import SkyRLEngine
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.validation import validate_output

if TYPE_CHECKING:
    from envkit_skyrl.experiment import EnvkitExp, EnvkitTrainConfig
    from envkit_skyrl.generator import EnvGenerator
    from envkit_skyrl.trainer import EnvkitTrainer, EpisodeCredit

_LAZY: Final = {
    "EnvGenerator": "envkit_skyrl.generator",
    "EnvkitExp": "envkit_skyrl.experiment",
    "EnvkitTrainConfig": "envkit_skyrl.experiment",
    "EnvkitTrainer": "envkit_skyrl.trainer",
    "EpisodeCredit": "envkit_skyrl.trainer",
}

__all__ = [
    "EnvGenerator",
    "EnvkitExp",
    "EnvkitTrainConfig",
    "EnvkitTrainer",
    "EpisodeCredit",
    "SkyRLEngine",
    "SkyRLOptions",
    "validate_output",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # whatever the module holds
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
