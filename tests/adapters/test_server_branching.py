"""Forks and rewritten histories on a real server: its prefix cache has what they share.

Run by `make contract-sglang` and `make contract-vllm`, which start the servers.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import pytest
from fakes.branching import IMAGES, Screens
from fakes.real_servers import KINDS

from envkit.rollout import AtTurns, EpisodeSpec, Player, RolloutConfig, play_tree
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory, check_trajectory
from envkit_remote import RemoteEngine


class LongScreens(Screens):
    """Says enough before its first screen to fill several blocks of a cache."""

    system_prompt = "Look at every screen and describe it. " * 60


def make_player(
    engine: RemoteEngine, codec: ChatCodec, history: str | Mapping[str, Any] = "keep"
) -> Player:
    # An untrained model samples ids beyond its tokenizer's, which no ledger takes.
    bias = {"logit_bias": {"700": 1000.0}}
    sampling = {"max_new_tokens": 12, "seed": 5, "extras": bias}
    settings = {"history": history, "sampling": sampling}
    return Player(engine, codec, RolloutConfig.from_mapping(settings))


def whole_blocks(tokens: int, kind: str) -> int:
    """Return how many of so many tokens the server's cache can hold."""
    block = KINDS[kind].cache_block
    return tokens // block * block


@pytest.mark.parametrize("images", [False, True])
async def test_fork_takes_all_it_shares_from_the_servers_cache(
    images: bool, codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    player = make_player(engine, codec)
    leaves = await play_tree(
        lambda: LongScreens(max_turns=4, images=images),
        player,
        branching=AtTurns(turns=(1, 3)),
        spec=EpisodeSpec(seed=7 + images),
    )
    await player.aclose()
    assert [leaf.fault for leaf in leaves] == [None] * 4
    found: list[tuple[int, int]] = []
    for leaf in leaves[1:]:
        assert check_trajectory(leaf) == ()
        first = leaf.own_turns[0]
        found.append((first.cached_tokens, first.prompt_tokens))
    for cached, prompt in found:  # a server computes at least the last token of a prompt
        assert prompt > cached >= whole_blocks(prompt - 1, server_kind) > 400


async def test_rewritten_history_takes_what_is_left_of_it_from_the_servers_cache(
    codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    player = make_player(engine, codec, IMAGES)
    (trajectory,) = await player.play(LongScreens(images=True), EpisodeSpec(seed=9))
    await player.aclose()
    assert trajectory.fault is None, trajectory.fault
    assert check_trajectory(trajectory) == ()
    found = list(shared_beginnings(trajectory))
    assert len(found) >= 2
    for cached, shared, prompt in found:
        assert prompt > cached >= whole_blocks(shared, server_kind) > 300


def shared_beginnings(trajectory: Trajectory) -> list[tuple[int, int, int]]:
    """Return cached tokens, shared tokens and prompt of each first turn after a rewrite."""
    found: list[tuple[int, int, int]] = []
    for earlier, later in zip(trajectory.sequences(), trajectory.sequences()[1:], strict=False):
        pairs = zip(earlier.train_ids(), later.train_ids(), strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        turn = trajectory.turns[later.own[0].turn]
        found.append((turn.cached_tokens, shared, turn.prompt_tokens))
    return found
