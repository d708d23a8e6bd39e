"""`BudgetText`: no observation is longer than its budget, and what is missing is said."""

from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.envs import DotsEnv, EchoEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.env import Observation, Turn
from envkit.errors import ConfigurationError
from envkit.rollout import Limits, ScriptedEngine, play
from envkit.trajectory import check_trajectory
from envkit.wrappers import BudgetText
from envkit.wrappers.budget_text import cut


class TalkativeEnv(EchoEnv):
    """Answers every wrong reply at length."""

    def on_turn(self, response_text: str) -> Turn:
        return Turn("BEGIN " + "page " * 2000 + "END")


@settings(deadline=None)
@given(st.text(max_size=400), st.data())
def test_a_cut_text_keeps_its_budget_its_beginning_and_its_end(
    text: str, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(45, 300) | at_limit(max(len(text), 45), least=45))
    short = cut(text, budget, len)

    assert len(short) <= budget
    if len(text) <= budget:
        assert short == text
    else:
        assert short.startswith(text[:1])
        missing = int(short.split("[... ")[-1].split(" ")[0])
        kept = len(text) - missing
        assert short == (
            text[: (2 * kept + 2) // 3]
            + f"\n[... {missing} characters left out ...]\n"
            + text[len(text) - (kept - (2 * kept + 2) // 3) :]
        )


def test_a_text_cut_twice_states_the_total_missing() -> None:
    text = "x" * 1000
    twice = cut(cut(text, 400, len), 200, len)

    assert twice.count("left out") == 1
    missing = int(twice.split("[... ")[1].split(" ")[0])
    assert twice.count("x") - "characters".count("x") == 1000 - missing


def test_long_observations_are_cut_and_info_says_by_how_much() -> None:
    plain, env = TalkativeEnv(), BudgetText(TalkativeEnv(), max_characters=500)
    assert env.reset(seed=1) == plain.reset(seed=1)

    whole, short = plain.step("no"), env.step("no")

    assert len(short[0]["text"]) <= 500
    assert short[0]["text"].startswith("BEGIN page")
    assert short[0]["text"].endswith("END")
    assert short[4]["left_out_characters"] == len(whole[0]["text"]) - len(short[0]["text"])
    assert short[1:4] == whole[1:4]


def test_a_token_budget_is_counted_by_the_tokenizer() -> None:
    def words(text: str) -> int:
        return len(text.split())

    env = BudgetText(TalkativeEnv(), max_characters=None, max_tokens=100, count_tokens=words)
    env.reset(seed=1)

    assert 90 <= words(env.step("no")[0]["text"]) <= 100


async def test_an_episode_continues_past_the_point_of_running_out_of_room() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "no")
    limits = Limits(max_response_tokens=400)
    plain = await play(TalkativeEnv(), engine, codec, seed=1, limits=limits)
    roomy = BudgetText(TalkativeEnv(), max_characters=None)
    short = await play(roomy, engine, codec, seed=1, limits=limits)

    assert len(plain.turns) == 1
    assert len(short.turns) == 3
    assert short.turns[-1].response_text == "no"
    assert "characters left out" in str(short.messages[3]["content"])
    assert check_trajectory(short) == ()


class ShorteningEnv(TalkativeEnv):
    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return {**observation, "text": "my own summary"}


def test_the_environments_own_shorter_form_goes_first() -> None:
    env: Any = BudgetText(ShorteningEnv())
    observation, _ = env.reset(seed=1)

    assert env.shorten(observation, 50)["text"] == "my own summary"


def test_an_image_that_does_not_fit_ends_the_episode_as_before() -> None:
    env: Any = BudgetText(DotsEnv())
    observation, _ = env.reset(seed=1)

    assert env.shorten(observation, 50) is None


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_characters must be at least"):
        BudgetText(EchoEnv(), max_characters=10)
    with pytest.raises(ConfigurationError, match="max_tokens must be at least"):
        BudgetText(EchoEnv(), max_tokens=3)
