"""The environment `canary-v0`: read a code that only the image shows."""

from envkit.registration import EnvSpec
from envkit_canary.drawing import draw_code
from envkit_canary.env import DEFAULT_ALPHABET, CanaryEnv, CodeTasks
from envkit_canary.reply import read_code

SPEC = EnvSpec(
    id="canary-v0",
    entry_point="envkit_canary:CanaryEnv",
    description="Read a code off an image, with a new image each turn: a smoke test for vision.",
    reward_threshold=1.0,
)

__all__ = ["DEFAULT_ALPHABET", "SPEC", "CanaryEnv", "CodeTasks", "draw_code", "read_code"]
