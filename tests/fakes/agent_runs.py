"""Episodes that an agent plays, with the environment's oracle as its model."""

import sys
from pathlib import Path
from typing import Any

from fakes.codecs import vision_codec

from envkit import make
from envkit.rollout import EpisodeSpec, Interrupt, Player, RolloutConfig
from envkit.rollout.scripted import ScriptedEngine
from envkit.trajectory import Trajectory, check_trajectory

TIMEOUT_S = 30.0
"""Of commands."""

ASK = """
import json, os, sys, urllib.request as u
task = json.load(open("task.json"))
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["prompt"]}]})
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
got = u.urlopen(u.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), head))
answer = json.load(got)["choices"][0]["message"]["content"]
"""


async def played(
    agent: Any, *, env: str = "canary-v0", interrupt: Interrupt | None = None, **options: Any
) -> Trajectory:
    """Play one episode whose model is the environment's oracle."""
    policy = make(env).unwrapped.oracle()  # type: ignore[attr-defined]
    codec = vision_codec()
    config = RolloutConfig.from_mapping({"agent": agent, **options})
    player = Player(ScriptedEngine(codec, policy), codec, config)
    try:
        (found,) = await player.play(lambda: make(env), EpisodeSpec(seed=3), interrupt=interrupt)
    finally:
        await player.aclose()
    assert check_trajectory(found) == ()
    return found


def command(tmp_path: Path, code: str) -> dict[str, Any]:
    """Return the setting of an agent that is a Python script."""
    script = tmp_path / "agent.py"
    script.write_text(ASK + code, encoding="utf-8")
    return {"command": [sys.executable, str(script)], "timeout_s": TIMEOUT_S}
