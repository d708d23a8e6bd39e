"""Episodes whose histories were rewritten, summarised or forked."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from fakes.codecs import vision_codec
from fakes.templates import make_codec

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.images import Image
from envkit.messages import text_of
from envkit.rollout import AtTurns, EpisodeSpec, Player, RolloutConfig, ScriptedEngine, play_tree
from envkit.tasks import Task
from envkit.trajectory import Trajectory

IMAGES: Mapping[str, Any] = {"keep_last_images": {"keep": 1, "drop_at": 2}}
TURNS: Mapping[str, Any] = {"keep_last_turns": {"keep": 1, "drop_at": 2}}
SUMMARY: Mapping[str, Any] = {"summarise": {"at_tokens": 60, "max_tokens": 20}}


class Screens(Env):
    """Shows a new screen in every turn; each reply is worth 1."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    system_prompt = "Look."

    def __init__(self, *, max_turns: int = 6, images: bool = False) -> None:
        super().__init__(max_turns=max_turns)
        self._images = images

    def on_reset(self, task: Task) -> Turn:
        return Turn("Screen 0.", images=self._image(0))

    def on_turn(self, response_text: str) -> Turn:
        number = self.turn + 1
        return Turn(
            f"Screen {number} after {response_text}",
            images=self._image(number),
            reward=1.0,
            info={"reward_terms": {"seen": 1.0}},
        )

    def _image(self, number: int) -> tuple[Image, ...]:
        if not self._images:
            return ()
        return (Image.from_array(np.full((32, 32, 3), number, np.uint8)),)


class Saved(Screens):
    """Can be saved, but not replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, snapshot=True)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Summarised(Screens):
    """Has its conversation summarised by default."""

    history_policy = SUMMARY


def reply(context: PolicyContext) -> str:
    """Say something that differs between the branches of a tree."""
    if "Summarise" in text_of(context.messages[-1]):
        return "I saw screens."
    return f"Reply {context.turn} {context.seed % 7}."


def branching_player(config: RolloutConfig, latency_s: float = 0.0) -> Player:
    """Return the player of a worker."""
    codec = make_codec("qwen3")
    engine = ScriptedEngine(codec, reply, latency=(lambda _: latency_s) if latency_s else None)
    return Player(engine, codec, config)


async def rewritten(
    history: str | Mapping[str, Any] | None, *, images: bool = False, env: Env | None = None
) -> Trajectory:
    """Play an episode with a history policy."""
    codec = vision_codec() if images else make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=history))
    try:
        spec = EpisodeSpec(seed=3, group_id="group")
        (trajectory,) = await player.play(env or Screens(images=images), spec)
    finally:
        await player.aclose()
    return trajectory


async def tree(*, history: str | Mapping[str, Any] | None = None) -> tuple[Trajectory, ...]:
    """Play an episode and fork it twice, 2 x 2 leaves."""
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=history))
    try:
        return await play_tree(
            Screens, player, branching=AtTurns(turns=(1, 3)), spec=EpisodeSpec(seed=7)
        )
    finally:
        await player.aclose()
