"""SkyRL: envkit's loop as SkyRL's generator, and a trainer that counts episodes.

    python -m envkit_skyrl.main envkit.env_id=geo3k-v0 trainer.policy.model.path=... ...

Names that need SkyRL are imported on first access.
"""

from typing import TYPE_CHECKING, Final

from envkit.lazy import lazy_names
from envkit_skyrl.engine import SkyRLEngine
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.validation import validate_output

if TYPE_CHECKING:
    from envkit_skyrl.experiment import EnvkitExp, EnvkitTrainConfig
    from envkit_skyrl.generator import EnvGenerator
    from envkit_skyrl.trainer import EnvkitTrainer, EpisodeCredit

_LAZY: Final = {
    "EnvGenerator": ".generator",
    "EnvkitExp": ".experiment",
    "EnvkitTrainConfig": ".experiment",
    "EnvkitTrainer": ".trainer",
    "EpisodeCredit": ".trainer",
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

__getattr__, __dir__ = lazy_names(__name__, _LAZY, extra="skyrl")
