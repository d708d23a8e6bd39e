"""Customer service in a procedural shop with a scripted user: the environment `dialogue-v0`."""

from typing import Final

from envkit.registration import EnvSpec
from envkit_dialogue.env import DialogueEnv
from envkit_dialogue.hearing import Act, hear
from envkit_dialogue.policies import USELESS, oracle
from envkit_dialogue.scenario import Scenario

__all__ = ["SPEC", "USELESS", "Act", "DialogueEnv", "Scenario", "hear", "oracle"]

SPEC: Final = EnvSpec(
    id="dialogue-v0",
    entry_point="envkit_dialogue.env:DialogueEnv",
    description="Customer service with a scripted user, a shop's rules and a database; 4 levels.",
    reward_threshold=1.0,
)
