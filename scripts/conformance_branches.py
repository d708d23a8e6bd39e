"""The branching recordings of `record_conformance.py`: a tree of forks and a sub-agent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from envkit.env import Env
from envkit.rollout import AtTurns, EpisodeSpec, Player, ScriptedEngine, play_tree
from envkit.tokens import ChatCodec
from envkit.trajectory import Branch, Trajectory
from envkit_conformance.recordings import ABOUT_KEY, FILLER_KEY, NAME_KEY

_TREE: Final = (
    ("fork_trunk", "the trunk of a tree of 2 x 2 leaves, forked before its turns 1 and 2"),
    ("fork_first", "forked from the trunk before turn 1: the turn before is context, mask 0"),
    ("fork_second", "forked from the trunk before turn 2"),
    ("fork_of_fork", "forked from fork_first before turn 2"),
)


async def record_tree(
    env: Callable[[], Env], engine: ScriptedEngine, codec: ChatCodec
) -> list[Trajectory]:
    """Play a tree of 2 x 2 leaves. Each leaf becomes a recording; all form one group."""
    player = Player(engine, codec)
    try:
        leaves = await play_tree(
            env,
            player,
            branching=AtTurns(turns=(1, 2)),
            spec=EpisodeSpec(env_id="gallery-v0", seed=11, episode_id="fork"),
        )
    finally:
        await player.aclose()
    return [
        _named(leaf, name, about, codec.stop_ids[0])
        for leaf, (name, about) in zip(leaves, _TREE, strict=True)
    ]


def with_sub_agent(main: Trajectory, other: Trajectory, *, filler_id: int) -> Trajectory:
    """Insert an unrelated conversation between the first and second turn of an episode.

    The second turn continues the first sequence, with which it shares the prompt and a reply.

    Args:
        main: A text episode with two turns.
        other: Another episode; its environment is ignored.
        filler_id: As for other recordings.
    """
    prompt, first, observation, second = main.segments
    inside = tuple(replace(one.with_reward(None), turn=one.turn + 1) for one in other.segments)
    count = len(other.turns)
    heard = [
        replace(turn, turn=turn.turn + 1, purpose="sub_agent", reward=None, observation_hash=None)
        for turn in other.turns
    ]
    heard[-1] = replace(heard[-1], observation_tokens=observation.token_count)
    spoken = next(n for n, one in enumerate(main.messages) if one["role"] == "assistant") + 1
    made = replace(
        main,
        segments=(
            prompt,
            first,
            *inside,
            replace(observation, turn=count + 1),
            replace(second, turn=count + 1),
        ),
        branches=(
            Branch(segment=2, parent=None, reason="sub_agent", message_count=spoken),
            Branch(segment=2 + len(inside), parent=0, at=2, reason="main"),
        ),
        turns=(
            replace(main.turns[0], observation_tokens=0),
            *heard,
            replace(main.turns[1], turn=count + 1),
        ),
        messages=(*main.messages[:spoken], *other.messages[:-1], *main.messages[spoken:]),
    )
    about = "an unrelated conversation between two turns; the second continues the first sequence"
    return _named(made, "sub_agent", about, filler_id)


def _named(made: Trajectory, name: str, about: str, filler_id: int) -> Trajectory:
    facts = {NAME_KEY: name, ABOUT_KEY: about, FILLER_KEY: filler_id}
    return replace(made, metadata=facts)
