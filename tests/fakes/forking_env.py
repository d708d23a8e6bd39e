"""An environment whose step forks, and whose child comes back as well."""

import os
from typing import Any

from envkit.env import Env, Turn
from envkit.tasks import Task


class Forking(Env):
    """Counts its steps; parent and child return from each of them, or raise in the child."""

    def __init__(self, *, fails: bool = False, **options: Any) -> None:
        super().__init__(max_turns=4, **options)
        self._fails = fails

    def on_reset(self, task: Task) -> Turn:
        return Turn("begin")

    def on_turn(self, response_text: str) -> Turn:
        if os.fork() == 0 and self._fails:
            raise SystemExit(0)
        return Turn(f"turn {self.turn} after {response_text}", reward=1.0)
