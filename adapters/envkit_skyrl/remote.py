"""Players of SkyRL's Ray workers, with a copy of the trainer's inference client.

SkyRL's client can be pickled; a copy opens its own connections. The copy lacks the count of weight
updates, which the trainer's process sends to the workers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.rollout.config import RolloutConfig
from envkit.rollout.player import Player
from envkit.tokens import ChatCodec
from envkit_skyrl.engine import SkyRLEngine
from envkit_skyrl.images import InferenceClient
from envkit_skyrl.options import import_all


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecipe:
    """A picklable recipe for a worker's player."""

    client: InferenceClient
    engine: Mapping[str, Any]
    """Further arguments of `SkyRLEngine`."""
    make_codec: Callable[[], ChatCodec]
    config: RolloutConfig
    """Without workers."""
    imports: tuple[str, ...]
    """Modules that register environments."""

    def __call__(self) -> Player:
        """Return the player of this process."""
        import_all(self.imports)
        return WorkerPlayer(self)


class WorkerPlayer(Player):
    """A player whose engine knows the trainer's weight version."""

    def __init__(self, recipe: WorkerRecipe) -> None:
        """Make a player; the version is unknown until `follow` is called."""
        self._version: int | None = None
        engine = SkyRLEngine(recipe.client, weight_version=lambda: self._version, **recipe.engine)
        super().__init__(engine, recipe.make_codec(), recipe.config)

    def follow(self, version: int | None) -> None:
        """Set the trainer's number of weight updates."""
        self._version = version
