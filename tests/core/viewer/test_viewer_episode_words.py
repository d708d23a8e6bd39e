"""What an episode's page says of cuts, success and checks, in the browser and in the terminal."""

from dataclasses import replace
from typing import Any

import pytest
from fakes.trajectories import Context, Reply, build, with_sanity

from envkit.tokens import SanityStatus
from envkit.trajectory import REWARD_THRESHOLD, StopReason, Trajectory
from envkit.viewer import turn_text
from envkit.viewer.bundle import asset
from envkit.viewer.episodes import episode
from envkit.viewer.wording import CHECKS


def data_of(one: Trajectory) -> dict[str, Any]:
    return episode(one, None, number=1).data


def turns_of(one: Trajectory) -> list[dict[str, Any]]:
    return data_of(one)["sequences"][0]["turns"]


@pytest.mark.parametrize(
    ("finish", "reward", "stop", "said"),
    [
        ("stop", 1.0, StopReason.TERMINATED, None),
        ("stop", None, StopReason.CONTEXT_TOKENS, None),
        ("", 1.0, StopReason.TERMINATED, None),
        ("length", 0.0, StopReason.RESPONSE_TOKENS, "max_new_tokens was reached"),
        ("length", None, StopReason.TURN_TOKENS, "max_tokens_per_turn was reached"),
        ("length", None, StopReason.RESPONSE_TOKENS, "max_response_tokens was used up"),
        ("length", None, StopReason.SAMPLED_TOKENS, "max_sampled_tokens was used up"),
        ("length", None, StopReason.CONTEXT_TOKENS, "max_context_tokens was reached"),
        ("length", None, StopReason.ENV_FAULT, "a token limit was reached"),
        ("abort", None, StopReason.ABORTED, "the run was stopped"),
        ("abort", None, StopReason.ENGINE_FAULT, "the request was aborted"),
    ],
)
def test_cut_reply_names_what_cut_it(
    finish: str, reward: float | None, stop: StopReason, said: str | None
) -> None:
    whole = Reply(text="whole", observation=Context())
    one = build([whole, Reply(finish_reason=finish, reward=reward)])
    turns = turns_of(replace(one, stop_reason=stop))
    assert [turn["cut"] for turn in turns] == [None, said]
    assert turn_text.summary(turns[1]).endswith(f" · cut: {said}" if said else "a reply")


@pytest.mark.parametrize(
    ("reward", "info", "metadata", "said"),
    [
        (1.0, {}, {REWARD_THRESHOLD: 1.0}, "solved: return 1 ≥ threshold 1"),
        (0.5, {}, {REWARD_THRESHOLD: 0.75}, "not solved: return 0.50 < threshold 0.75"),
        (0.0, {"is_success": True}, {REWARD_THRESHOLD: 1.0}, "solved: is_success = true"),
        (1.0, {"is_success": False}, {}, "not solved: is_success = false"),
        (1.0, {}, {}, "success is not defined: no reward threshold is declared"),
    ],
)
def test_success_names_what_decided_it(
    reward: float, info: dict[str, Any], metadata: dict[str, Any], said: str
) -> None:
    one = build([Reply(reward=reward)], metadata=metadata)
    one = replace(one, turns=(replace(one.turns[0], info=info),))
    data = data_of(one)
    assert data["success"] == said
    assert said in turn_text.episode_facts(data, 1)


def test_episode_without_a_reward_says_nothing_of_success() -> None:
    faulted = replace(build([Reply()]), reward=None, stop_reason=StopReason.ENV_FAULT)
    assert data_of(faulted)["success"] == ""


def test_every_state_of_an_observation_has_words_in_both_viewers() -> None:
    assert set(CHECKS) == {one.value for one in SanityStatus}
    source = asset("model.js")
    for status, words in CHECKS.items():
        assert f'{status}: "{words}"' in source
    one = with_sanity(build([Reply(observation=Context()), Reply()]), SanityStatus.UNCHECKED)
    facts = dict(turn_text.turn_facts(turns_of(one)[0]))
    assert "observation unchecked, no comparison was possible" in facts["Engine"]
