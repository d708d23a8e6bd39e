"""Write a run to TensorBoard: scalars, histograms, and images of some episodes.

The summaries follow TensorBoard's own numpy writer (tensorboard/plugins/*/summary_v2.py,
`data_class` and tensors). Neither torch nor tensorflow is imported.
"""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from envkit.errors import MissingDependencyError
from envkit.files import storage_errors
from envkit.images import Image
from envkit.metrics import Histogram
from envkit.trajectory.trajectory import Trajectory
from envkit_sinks.window import Window, episode_figures, shown_images

_EPISODE: Final = b"episode/turns"
"""The tag of a scalar that each episode has."""
_LONGEST_SCALAR: Final = 256
"""Bytes of its event; images are longer."""
_LONGEST_EVENT: Final = 2**31
"""Bytes of a protobuf message."""


class TensorBoardSink:
    """Event files in a directory, for `tensorboard --logdir DIRECTORY`.

    - `episode/...`: reward, turns, tokens, seconds and faulted of every episode as it finishes; the
      step is the episode's number.
    - `episode/images`: images of the first episodes of each training step.
    - every metric of `write_metrics` under its own name, and `histogram/...` of the episodes since
      the last call. Outside training, the step is the number of episodes so far.

    Scalars are 32-bit floats, as in TensorBoard's own writer.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, shown_episodes: int = 8, key: str | None = None
    ) -> None:
        """Open a new event file; existing ones are kept, and their episode numbers continue.

        Args:
            directory: Created if it does not exist.
            shown_episodes: Episodes per step whose images are kept.
            key: The end of the event file's name, by which a later command recognizes it.

        Raises:
            MissingDependencyError: tensorboard is not installed.
            StorageError: The directory cannot be written.
        """
        self._library = _Library()
        self.directory: Final = Path(directory)
        with storage_errors(f"cannot write TensorBoard files to {directory}"):
            self._count = _last_episode(self.directory)
            self._events: Any = self._library.events.EventFileWriter(
                str(directory), filename_suffix=f".{key}" if key else ""
            )
        self._window = Window(shown_episodes=shown_episodes)
        self._is_closed = False

    def write(self, trajectory: Trajectory) -> None:
        """Add the figures of one episode."""
        self._count += 1
        is_shown = self._window.add(trajectory)
        for name, value in episode_figures(trajectory).items():
            self._add(self._library.scalar(f"episode/{name}", value), self._count)
        if is_shown and (images := shown_images(trajectory)):
            self._add(self._library.images("episode/images", images), self._count)
        self._events.flush()

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics, and histograms of the episodes since the last call."""
        at = self._count if step is None else step
        for name, value in metrics.items():
            self._add(self._library.scalar(name, value), at)
        self._add_histograms(at)
        self._events.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._add_histograms(self._count)
        finally:
            self._events.close()

    def _add_histograms(self, step: int) -> None:
        for name, histogram in self._window.histograms().items():
            self._add(self._library.histogram(f"histogram/{name}", histogram), step)
        self._window.restart()

    def _add(self, summary: Any, step: int) -> None:  # noqa: ANN401  # a protobuf
        self._events.add_event(self._library.event(summary, step))


def _last_episode(directory: Path) -> int:
    """Return the largest step of an episode in the event files of a directory; 0 without one.

    A record is its length (8 bytes) and checksum (4), an event, and its checksum (4)
    (tensorboard/summary/writer/record_writer.py). An event starts with a byte and the time (8
    bytes), then a byte and the step (tensorboard/compat/proto/event.proto).
    """
    last = 0
    for file in directory.glob("*tfevents*"):
        with file.open("rb") as stream:
            while len(head := stream.read(12)) == 12:
                length = min(int.from_bytes(head[:8], "little") + 4, _LONGEST_EVENT)
                event = stream.read(min(length, _LONGEST_SCALAR))
                stream.seek(length - len(event), os.SEEK_CUR)
                if _EPISODE in event:
                    last = max(last, _varint(event[10:20]))
    return last


def _varint(data: bytes) -> int:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return value


class _Library:
    """TensorBoard's writing functions, imported on first use."""

    def __init__(self) -> None:
        try:
            self._scalars: Any = import_module("tensorboard.plugins.scalar.summary_v2")
            self._histograms: Any = import_module("tensorboard.plugins.histogram.metadata")
            self._images: Any = import_module("tensorboard.plugins.image.metadata")
            self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
            self._protobuf: Any = import_module("tensorboard.compat.proto.event_pb2")
            self._tensors: Any = import_module("tensorboard.util.tensor_util")
            self.events: Any = import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError as error:
            raise MissingDependencyError.for_extra(
                "the sink for TensorBoard", "tensorboard", "tensorboard"
            ) from error

    def event(self, summary: Any, step: int) -> Any:  # noqa: ANN401  # protobufs
        return self._protobuf.Event(wall_time=time.time(), step=step, summary=summary)

    def scalar(self, tag: str, value: float) -> Any:  # noqa: ANN401  # a protobuf
        return self._scalars.scalar_pb(tag, value)

    def histogram(self, tag: str, histogram: Histogram) -> Any:  # noqa: ANN401  # a protobuf
        """Return rows of left edge, right edge and count."""
        rows = np.array(
            [histogram.edges[:-1], histogram.edges[1:], histogram.counts], dtype=np.float64
        ).T
        metadata = self._histograms.create_summary_metadata(display_name=None, description=None)
        return self._tensor(tag, rows, metadata)

    def images(self, tag: str, images: Sequence[Image]) -> Any:  # noqa: ANN401  # a protobuf
        """Return width and height of the first image, then the PNG bytes of each."""
        width, height = images[0].size
        parts = [str(width).encode(), str(height).encode(), *(i.png_bytes() for i in images)]
        metadata = self._images.create_summary_metadata(display_name=None, description=None)
        return self._tensor(tag, np.array(parts, dtype=object), metadata)

    def _tensor(self, tag: str, data: Any, metadata: Any) -> Any:  # noqa: ANN401  # protobufs
        summary = self._summaries.Summary()
        tensor = self._tensors.make_tensor_proto(data)
        summary.value.add(tag=tag, tensor=tensor, metadata=metadata)
        return summary
