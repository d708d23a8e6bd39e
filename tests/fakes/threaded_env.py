"""An environment whose module starts a thread when it is imported, so no fork of it is safe."""

import os
import sys
import threading

from envkit.env import Env, Turn
from envkit.tasks import Task

if "pytest" not in sys.modules:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


class Threaded(Env):
    """Says how its process was started."""

    def on_reset(self, task: Task) -> Turn:
        return Turn("forked" if "supervisor" in sys.orig_argv[3] else "started")

    def on_turn(self, response_text: str) -> Turn:
        os._exit(4)
