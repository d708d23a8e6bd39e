"""Recordings of episodes: an animated image of what the model saw and wrote."""

import io
import re
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.files import replace_file, storage_errors
from envkit.images import Image
from envkit.ranges import one_of
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper

FORMATS: Final = ("webp", "gif")
_UNSAFE: Final = re.compile(r"[^\w.-]")
_COLOURS: Final = 128
"""Colours of a GIF, which has at most 256; text and drawings need few."""


class RecordEpisode(EnvWrapper):
    """Records one film per episode, with a frame for the start and one per turn.

    A frame is a page with the latest text, the model's reply above the environment's answer, and
    the latest images, as changed by inner wrappers. A film is written when its episode ends, or
    when a later reset or `close` cuts it off. In a rollout a film is named after its episode, so a
    retry overwrites it; elsewhere films are numbered. The model and trainer get unchanged data.
    """

    def __init__(
        self,
        env: AnyEnv,
        folder: str | Path = "films",
        *,
        format: str = "webp",  # noqa: A002  # Pillow's word
        seconds: float = 1.5,
        every: int = 1,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            folder: The output folder, created when the first film is written.
            format: "webp" or "gif". WebP is lossless and smaller.
            seconds: Duration of a frame.
            every: Records one of this many episodes of the instance, starting with the first.

        Raises:
            ConfigurationError: The format is unknown, or a number is out of range.
        """
        one_of("format", format, FORMATS)
        if not 0.02 <= seconds <= 60 or every < 1:
            raise ConfigurationError(
                f"seconds must be 0.02 to 60 and every at least 1, got {seconds} and {every}"
            )
        super().__init__(env, folder=str(folder), format=format, seconds=seconds, every=every)
        self.folder, self.format, self.seconds, self.every = Path(folder), format, seconds, every
        self.written: list[Path] = []
        """Films of this instance, in order."""
        self._episodes = 0
        self._frames: list[PilImage.Image] = []
        self._said: list[str] = []
        self._shown: list[tuple[Image, ...]] = []
        self._name: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and its film.

        Raises:
            StorageError: The film of the previous episode cannot be written.
        """
        self._write()
        observation, info = self.env.reset(seed=seed, options=options)
        self._said, self._shown, self._name = [], [], None
        self._episodes += 1
        if self._is_recorded:
            self._film(observation)
        return observation, info

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply and film the answer.

        Raises:
            StorageError: The film cannot be written.
        """
        turn = self.inner.turn
        answer = self.env.step(action)
        observation, reward, terminated, truncated, _ = answer
        if self._is_recorded:
            # A turn replayed after a fault overwrites its earlier frames.
            del self._frames[turn + 1 :]
            del self._shown[turn + 1 :]
            del self._said[2 * turn + 1 :]
            self._said += [f"> {action}"]
            key = self.inner.step_key
            self._name = self._name if key is None else key.episode_id
            self._film(observation, f"\n[reward {float(reward):g}]" if reward else "")
            if terminated or truncated:
                self._write()
        return answer

    def close(self) -> None:
        """Write the film of an unfinished episode and close the environment.

        Raises:
            StorageError: The film cannot be written.
        """
        try:
            self._write()
        finally:
            super().close()  # pyright: ignore[reportUnknownMemberType]  # untyped

    @property
    def _is_recorded(self) -> bool:
        return (self._episodes - 1) % self.every == 0

    def _film(self, observation: Observation, addition: str = "") -> None:
        from envkit.transcript import draw_page  # lazy: fonts are slow to import

        self._said.append(observation["text"] + addition)
        self._shown.append(observation["images"])
        newest = next((images for images in reversed(self._shown) if images), ())
        page = draw_page(self._said[-3:], newest)
        self._frames.append(PilImage.fromarray(page))

    def _write(self) -> None:
        frames, self._frames = self._frames, []
        if not frames:
            return
        name = self._name or f"episode-{self._episodes - 1:05d}"
        path = self.folder / f"{_UNSAFE.sub('_', name)}.{self.format}"
        with storage_errors(f"cannot make the folder {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, self._encoded(frames))
        self.written.append(path)

    def _encoded(self, frames: list[PilImage.Image]) -> bytes:
        is_gif = self.format == "gif"
        shown = [frame.quantize(_COLOURS) for frame in frames] if is_gif else frames
        # Effort 2 of 6 takes a third of the time and a tenth more bytes.
        options: dict[str, Any] = {} if is_gif else {"lossless": True, "quality": 20, "method": 2}
        stream = io.BytesIO()
        shown[0].save(
            stream,
            format=self.format.upper(),
            save_all=True,
            append_images=shown[1:],
            duration=round(self.seconds * 1000),
            loop=0,
            **options,
        )
        return stream.getvalue()
