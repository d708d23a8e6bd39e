"""Single episodes at their limits: a million tokens, and five hundred images.

What the environment sent and the engine sampled is noted here and compared with the stored record.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage

from envkit.env import Env, Turn
from envkit.images import Image
from envkit.rollout import GenerateRequest, Generation, ScriptedEngine, collect
from envkit.rollout.run_folder import RunFolder
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory, check_trajectory, read_trajectories, verify_file

_WORDS: Final = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
_REPLY: Final = "I looked at it; go on, please. " * 8
_SIDE: Final = 224


class LongEnv(Env):
    """Sends long texts, or an image that no other turn has, for a number of turns."""

    def __init__(self, *, turns: int, words: int, images: bool) -> None:
        super().__init__(max_turns=turns)
        self._turns, self._words, self._has_images = turns, words, images
        self.hashes: list[str] = []
        """The images sent, in order."""

    def on_reset(self, task: Task) -> Turn:
        """Send the first observation."""
        self.hashes.clear()
        return self._observation(0)

    def on_turn(self, response_text: str) -> Turn:
        """Send the next observation; the last turn has a reward and no image."""
        if self.turn + 1 >= self._turns:
            return Turn("That is all.", reward=1.0, done=True)
        return self._observation(self.turn + 1)

    def _observation(self, number: int) -> Turn:
        text = " ".join(_WORDS[(number + at * at) % len(_WORDS)] for at in range(self._words))
        if not self._has_images:
            return Turn(text)
        pixels = PilImage.new("RGB", (_SIDE, _SIDE), (number % 256, number // 256, 99))
        image = Image.from_pil(pixels)
        self.hashes.append(image.sha256)
        return Turn(text, images=(image,))


class NotedEngine(ScriptedEngine):
    """Notes the ids that it returns."""

    def __init__(self, codec: ChatCodec) -> None:
        super().__init__(codec, lambda _: _REPLY)
        self.sampled: list[int] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer and note the ids."""
        generation = await super().generate(request)
        self.sampled.extend(generation.token_ids)
        return generation


def _differences(one: Trajectory, engine: NotedEngine, env: LongEnv) -> list[str]:
    """Return what of a record differs from the notes, or breaks a rule of the ledger."""
    (row,) = one.steps(merge=True)
    trained = [token for token, mask in zip(row.response_ids, row.loss_mask, strict=True) if mask]
    found = [str(problem) for problem in check_trajectory(one)]
    if trained != engine.sampled:
        found.append("other tokens are trained than were sampled")
    if [image.sha256 for image in row.images] != env.hashes:
        found.append("other images are in the row than were sent")
    if one.reward != 1.0:
        found.append(f"reward {one.reward}, ended by {one.stop_reason}")
    return found


async def long_episode(
    codec: ChatCodec, *, turns: int, words: int = 1, images: bool = False
) -> dict[str, Any]:
    """Play, store, verify and load one episode; return its size and what is wrong with it."""
    env = LongEnv(turns=turns, words=words, images=images)
    engine, started = NotedEngine(codec), time.perf_counter()
    stored: list[Trajectory] = []
    with tempfile.TemporaryDirectory() as folder:
        with RunFolder.create(Path(folder) / "run", {"group_size": 1}) as run_folder:
            async for one in collect(lambda: env, engine, codec, episodes=1):
                await run_folder.deliver((one,), then=lambda one, _: stored.append(one))
        played_s = time.perf_counter() - started
        problems = list(map(str, verify_file(Path(folder) / "run").problems))
        (loaded,) = read_trajectories(Path(folder) / "run")
        megabytes = (
            sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6
        )
        for one in (*stored, loaded):
            problems += _differences(one, engine, env)
    (row,) = loaded.steps(merge=True)
    return {
        "turns": len(loaded.turns),
        "tokens": len(row.prompt_ids) + len(row.response_ids),
        "trained_tokens": sum(row.loss_mask),
        "images": len(row.images),
        "wrong": problems,
        "folder_mb": megabytes,
        "play_seconds": played_s,
        "seconds": time.perf_counter() - started,
        "rss_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
