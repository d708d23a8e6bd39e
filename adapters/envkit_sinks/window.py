"""Data for dashboards about the episodes since the last step."""

from collections.abc import Mapping
from typing import Final

from envkit.images import Image
from envkit.metrics import Aggregator, Histogram
from envkit.trajectory.trajectory import Trajectory

_SHOWN_IMAGES: Final = 8
"""Images kept per shown episode: the last ones, which show how it ended."""


class Window:
    """The episodes since the last step, in bounded memory."""

    def __init__(self, *, shown_episodes: int) -> None:
        """Start empty.

        Args:
            shown_episodes: Number of a step's first episodes to keep for display.
        """
        self._most = shown_episodes
        self._aggregator = Aggregator()
        self.shown: list[Trajectory] = []
        """Episodes to show."""
        self.count = 0
        """Episodes since the last step."""

    def add(self, trajectory: Trajectory) -> bool:
        """Add an episode; return whether to show it."""
        self.count += 1
        self._aggregator.add(trajectory)
        if len(self.shown) < self._most:
            self.shown.append(trajectory)
            return True
        return False

    def histograms(self) -> Mapping[str, Histogram]:
        """Return these episodes' histograms, as from `envkit.metrics.histograms`."""
        return self._aggregator.histograms()

    def restart(self) -> None:
        """Start the next step."""
        self._aggregator, self.shown, self.count = Aggregator(), [], 0


def episode_figures(trajectory: Trajectory) -> dict[str, float]:
    """Return the figures of one episode, without a reward if it has none."""
    figures = {} if trajectory.reward is None else {"reward": trajectory.reward}
    return {
        **figures,
        "turns": float(trajectory.step_count),
        "tokens": float(trajectory.sampled_token_count),
        "seconds": trajectory.duration_seconds,
        "faulted": float(trajectory.is_faulted),
    }


def shown_images(trajectory: Trajectory) -> tuple[Image, ...]:
    """Return an episode's last distinct images, in order of last appearance."""
    images = [image for segment in trajectory.segments for image in segment.images]
    different = {image.sha256: image for image in reversed(images)}
    return tuple(different.values())[:_SHOWN_IMAGES][::-1]
