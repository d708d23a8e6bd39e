"""Kill or signal runs of the real command, and resume them until they are complete.

The environment logs each finished episode to its own file, so losses are counted outside the
library. A run is `envkit rollout ... --out DIR`, then `envkit rollout --resume DIR`.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from PIL import Image as PilImage

import envkit
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Policy, Turn
from envkit.errors import StorageError
from envkit.images import Image
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory, read_trajectories, verify_file

ENV_ID: Final = "paced-v0"
_LOG: Final = "ENVKIT_RELIABILITY_LOG"
_MAX_RESUMES: Final = 20
PATIENCE_S: Final = 120.0
"""Seconds that a process may take to write or to end."""
SIGNALS: Final[dict[str, tuple[int, ...]]] = {
    "kill": (signal.SIGKILL,),
    "term": (signal.SIGTERM,),
    "hup": (signal.SIGHUP,),
    "int": (signal.SIGINT,),
    "int_twice": (signal.SIGINT, signal.SIGINT),
}


class PacedEnv(AsyncEnv):
    """Two to four turns with an image each, and a short wait before every answer."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        snapshot=True, replay_safe=True, deterministic=True
    )

    def __init__(self, *, wait_s: float = 0.02, images: bool = False) -> None:
        super().__init__(max_turns=6)
        self._wait_s, self._has_images = wait_s, images
        self._turns, self._shade = 2, 0

    async def on_areset(self, task: Task) -> Turn:
        """Draw the episode's length and image."""
        self._turns = int(self.np_random.integers(2, 5))
        self._shade = int(self.np_random.integers(256))
        return Turn(f"Count to {self._turns}.", images=self._images(0))

    async def on_aturn(self, response_text: str) -> Turn:
        """Wait, answer, and log the end."""
        await asyncio.sleep(self._wait_s * (0.5 + self._shade / 255))
        done = self.turn + 1 >= self._turns
        if done:
            self._note()
        return Turn(
            "Go on.", reward=1.0 if done else 0.0, done=done, images=self._images(self.turn + 1)
        )

    def get_state(self) -> dict[str, Any]:
        """Return the length and the shade."""
        return {"turns": self._turns, "shade": self._shade}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the length and the shade."""
        self._turns, self._shade = state["turns"], state["shade"]

    def oracle(self) -> Policy:
        """Return a policy that counts."""
        return lambda context: str(context.turn + 1)

    def _images(self, number: int) -> tuple[Image, ...]:
        if not self._has_images:
            return ()
        shade = (self._shade + 7 * number) % 256
        return (Image.from_pil(PilImage.new("RGB", (56, 56), (shade, 9, 9))),)

    def _note(self) -> None:
        """Log the end of an episode in one write, which survives any kill."""
        assert self.step_key is not None
        with Path(os.environ[_LOG]).open("ab", buffering=0) as stream:
            stream.write(self.step_key.episode_id.partition("~")[0].encode() + b"\n")


def register() -> None:
    """Register the environment in this process."""
    envkit.register(ENV_ID, entry_point=PacedEnv)


@dataclass(kw_only=True)
class Ended:
    """Results of the runs for one signal."""

    runs: int = 0
    finished: int = 0
    """Episodes that their environment finished before the signal took effect."""
    finished_lost: int = 0
    """Of these, episodes missing from the file after the process exited."""
    announced: int = 0
    """Episodes whose line was in the file before the signal."""
    announced_lost: int = 0
    unfinished_stored: int = 0
    """Episodes stored as aborted, to be resumed."""
    unsound: int = 0
    """Runs whose file failed verification after exit, apart from a truncated last line."""
    resumes: int = 0
    resume_failed: int = 0
    """Runs that could not be completed."""
    missing: int = 0
    """Episodes missing from the file after the last resume."""
    doubled: int = 0
    """Episodes stored twice."""
    unsound_after: int = 0
    codes: Counter[str] = field(default_factory=Counter[str])
    """Exit codes of the signalled processes."""
    seconds_to_end: list[float] = field(default_factory=list[float])
    """Seconds from the signal to process exit."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        figures = dict(vars(self))
        figures["codes"] = dict(self.codes)
        figures["seconds_to_end"] = max(self.seconds_to_end, default=0.0)
        return figures


class KilledRun:
    """One run directory and the processes that write it."""

    _killed_resumes = 0.3
    """Share of the first two resumes that are killed as well."""

    def __init__(self, folder: Path, *, episodes: int, model: str, rng: random.Random) -> None:
        self._folder, self._episodes, self._model, self._rng = folder, episodes, model, rng
        self._out = folder / "run"
        self._log = folder / "finished.log"
        self._log.touch()
        self._announced, self._finished = set[str](), set[str]()
        """Episodes that were counted when an earlier process ended."""
        self._resumed = ("rollout", "--resume", str(self._out), "--quiet")

    def play(self, signals: Sequence[int], ended: Ended) -> None:
        """Start the run, send signals at a random time, and resume until it is complete."""
        ended.runs += 1
        self._end(self._begin(), signals, ended)
        self._resume(ended)

    def _end(
        self, process: "subprocess.Popen[bytes]", signals: Sequence[int], ended: Ended
    ) -> None:
        """Send signals at a random time, and count what is in the file afterwards."""
        before = self._signal(process, signals, ended) - self._announced
        finished = set(self._log.read_text().split()) - self._finished
        self._announced |= before
        self._finished |= finished
        stored = self._stored()
        ids = {one.episode_id for one in stored}
        ended.announced += len(before)
        ended.announced_lost += len(before - ids)
        ended.finished += len(finished)
        ended.finished_lost += len(finished - ids)
        ended.unfinished_stored += sum(one.stop_reason is StopReason.ABORTED for one in stored)
        ended.unsound += not self._is_sound(may_be_cut=True)

    def _begin(self, prelude: str = "") -> "subprocess.Popen[bytes]":
        return self._start(
            "rollout", ENV_ID, "--policy", "oracle", "--model", self._model,
            "-n", str(self._episodes), "--group", "2", "--concurrency", "32",
            "--env-kwargs", "images=true", "--out", str(self._out), "--quiet",
            prelude=prelude,
        )  # fmt: skip

    def _start(self, *arguments: str, prelude: str = "") -> "subprocess.Popen[bytes]":
        """Start the command in a process that first runs some lines of Python."""
        here = Path(__file__).parent
        code = (
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"sys.path.insert(0, {str(here)!r})\n"
            "import reliability_kills\n"
            "reliability_kills.register()\n"
            f"{prelude}\n"
            "from envkit.cli import main\n"
            "main(sys.argv[1:])\n"
        )
        with (self._folder / "stderr.txt").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, _LOG: str(self._log)},
            )

    def _signal(
        self, process: "subprocess.Popen[bytes]", signals: Sequence[int], ended: Ended
    ) -> set[str]:
        """Wait for a random number of lines, send the signals, and wait for the end.

        Returns:
            Ids of the episodes whose line was already in the file.
        """
        wanted = self._rng.randrange(1, self._episodes)
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and len(self._whole_lines()) < wanted:
            time.sleep(0.002)
            if time.monotonic() > deadline:
                break
        time.sleep(self._rng.random() * 0.02)
        before = {json.loads(line)["episode_id"] for line in self._whole_lines()}
        started = time.monotonic()
        for number in signals:
            if process.poll() is None:
                process.send_signal(number)
            time.sleep(self._rng.random() * 0.05)
        try:
            ended.codes[str(process.wait(PATIENCE_S))] += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended.codes["hung"] += 1
        ended.seconds_to_end.append(time.monotonic() - started)
        return before

    def _resume(self, ended: Ended) -> None:
        """Resume until the command reports completion, killing some attempts."""
        code = None
        for attempt in range(_MAX_RESUMES):
            process = self._start(*self._resumed)
            ended.resumes += 1
            if attempt < 2 and self._rng.random() < self._killed_resumes:
                time.sleep(2.0 + self._rng.random())
                process.kill()
            code = process.wait()
            if code in (0, 2):  # done, or the command has no such option
                break
        ended.resume_failed += code != 0
        stored = [one for one in self._stored() if one.stop_reason is not StopReason.ABORTED]
        places = Counter((one.metadata.get("group"), one.metadata.get("member")) for one in stored)
        ids = Counter(one.episode_id for one in stored)
        ended.missing += self._episodes - len(places)
        ended.doubled += sum(n > 1 for n in places.values()) + sum(n > 1 for n in ids.values())
        ended.unsound_after += not self._is_sound(may_be_cut=False)

    def _whole_lines(self) -> list[bytes]:
        file = self._out / "trajectories.jsonl"
        if not file.is_file():
            return []
        return file.read_bytes().split(b"\n")[:-1]

    def _stored(self) -> list[Trajectory]:
        try:
            return list(read_trajectories(self._out, skip_cut_line=True))
        except StorageError:
            return []

    def _is_sound(self, *, may_be_cut: bool) -> bool:
        """Verify the file; print problems to standard output."""
        try:
            problems = verify_file(self._out).problems
        except StorageError as error:
            print(f"  {error}")
            return False
        if may_be_cut:
            problems = tuple(one for one in problems if "cut off" not in one.message)
        for problem in problems[:3]:
            print(f"  {problem}")
        return not problems


def kill_runs(kind: str, *, runs: int, episodes: int, model: str, seed: int = 0) -> dict[str, Any]:
    """Kill or signal this many runs, resume each, and return the results."""
    ended = Ended()
    rng = random.Random(f"{kind}-{seed}")
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            KilledRun(Path(folder), episodes=episodes, model=model, rng=rng).play(
                SIGNALS[kind], ended
            )
    return ended.to_json()
