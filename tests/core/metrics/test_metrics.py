"""Flat metrics, histograms and the summary table, also of episodes that branch."""

import io
import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from fakes.branching import IMAGES, SUMMARY, rewritten, tree
from fakes.trajectories import Context, Reply, build, example, quick, trajectories
from hypothesis import example as example_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from envkit.agents.rewards import with_total
from envkit.errors import ConfigurationError, FaultKind
from envkit.messages import images_of, text_of
from envkit.metrics import (
    METRICS,
    Aggregator,
    Distribution,
    EpisodeFacts,
    aggregate,
    histograms,
    summary_table,
)
from envkit.metrics.distribution import EXACT_VALUES
from envkit.trajectory import (
    REWARD_THRESHOLD,
    FaultPlace,
    FaultRecord,
    StopReason,
    Trajectory,
    check_trajectory,
)
from envkit.trajectory.trajectory import TAIL, TIMES_PARKED
from envkit_eval.samples import Sample
from envkit_exchange.trajectories import chat_row


def _scored(reward: float, number: int = 0, **values: Any) -> Trajectory:
    values = {"metadata": {REWARD_THRESHOLD: 1.0}, **values}
    return build((Reply(reward=reward),), episode_id=f"{number}-{reward}", **values)


def test_metrics_of_an_episode() -> None:
    metrics = aggregate([example(metadata={REWARD_THRESHOLD: 1.0})])
    expected = {
        "episodes": 1,
        "reward/mean": 1.0,
        "reward/std": 0.0,
        "success/rate": 1.0,
        "turns/mean": 3,
        "turns/p95": 3,
        "tokens/prompt/mean": 10,
        "tokens/response/mean": 9,
        "tokens/observation/mean": 16,
        "tokens/trained": 9,
        "images/mean": 3,
        "stop/terminated": 1,
        "stop/terminated/share": 1.0,
        "tool_calls/mean": 1,
        "parse_error/count": 1,
        "parse_error/rate": 1 / 3,
        "retry/timeout": 2,
        "weight_versions": 2,
        "weight_versions/mixed_share": 1.0,
        "truncation/rate": 0.0,
        "seconds/episode/mean": 1.5,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["tokens/cached_share"] == pytest.approx((5 + 12 + 16) / (10 + 27 + 32), abs=0.05)


@quick
@given(st.lists(trajectories(), max_size=6))
def test_metrics_are_finite_named_and_never_count_a_fault_as_reward(rows: list[Trajectory]) -> None:
    metrics = aggregate(rows, elapsed_seconds=2.0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(_is_documented(name) for name in metrics)
    rewards = [row.reward for row in rows if row.reward is not None]
    assert metrics["episodes"] == len(rows)
    assert metrics["episodes/rewarded"] == len(rewards)
    assert ("reward/mean" in metrics) == bool(rewards)
    if rewards:
        assert metrics["reward/mean"] == pytest.approx(statistics.fmean(rewards))
        assert metrics["reward/std"] == pytest.approx(statistics.pstdev(rewards), abs=1e-6)
    shares = [value for name, value in metrics.items() if name.endswith("/share")]
    assert sum(shares) == pytest.approx(1.0 if rows else 0.0)


def _is_documented(name: str) -> bool:
    parts = name.split("/")
    return any(
        len(parts) == len(pattern) and all(p == q or q.startswith("<") for p, q in pairs)
        for pattern, pairs in (
            (d.split("/"), zip(parts, d.split("/"), strict=False)) for d in METRICS
        )
    )


def test_metrics_leave_faulted_and_aborted_episodes_out_of_the_reward() -> None:
    fault = FaultRecord(where=FaultPlace.GENERATE, kind=FaultKind.TRANSIENT, message="503")
    rows = [
        _scored(1.0),
        _scored(0.0),
        _scored(9.0, stop_reason=StopReason.ENV_FAULT),
        _scored(9.0, stop_reason=StopReason.ABORTED),
        _scored(9.0, fault=fault, stop_reason=StopReason.ENGINE_FAULT),
    ]  # fmt: skip
    metrics = aggregate(rows)
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/max"] == 1.0
    assert metrics["success/rate"] == 0.5
    assert (metrics["episodes/faulted"], metrics["episodes/aborted"]) == (2, 1)
    assert (metrics["fault/timeout"], metrics["fault/transient"]) == (1, 1)
    assert metrics["tokens/trained"] == 9


def test_metrics_without_a_reward_have_no_mean() -> None:
    metrics = aggregate([_scored(1.0, stop_reason=StopReason.ENV_FAULT)])
    assert not {"reward/mean", "success/rate", "truncation/rate"} & set(metrics)
    assert aggregate([])["episodes"] == 0


def test_metrics_of_truncation_count_rewarded_episodes() -> None:
    stops = (StopReason.MAX_TURNS, StopReason.TERMINATED, StopReason.ENV_FAULT)
    metrics = aggregate([_scored(0.0, n, stop_reason=stop) for n, stop in enumerate(stops)])
    assert metrics["truncation/rate"] == 0.5
    assert metrics["stop/max_turns/share"] == pytest.approx(1 / 3)


def test_metrics_of_groups_show_those_without_a_gradient() -> None:
    rows = [_scored(reward, n, group_id="a") for n, reward in enumerate((1.0, 1.0))]
    rows += [_scored(reward, n, group_id="b") for n, reward in enumerate((0.0, 1.0))]
    rows += [_scored(1.0, group_id="single")]
    rows += [_scored(5.0, group_id="a", stop_reason=StopReason.ENV_FAULT)]
    metrics = aggregate(rows)
    assert metrics["groups"] == 3
    assert metrics["groups/zero_variance_share"] == 0.5
    assert metrics["groups/reward_std"] == 0.25


def test_metrics_report_throughput_only_if_the_time_is_given() -> None:
    assert "throughput/tokens_per_second" not in aggregate([example()])
    metrics = aggregate([example()], elapsed_seconds=3.0)
    assert metrics["throughput/tokens_per_second"] == 3.0
    assert metrics["throughput/tokens_per_second_per_stream"] == pytest.approx(9 / 0.9)


def test_metrics_of_a_stream_equal_those_of_a_list() -> None:
    aggregator = Aggregator()
    for number in range(5):
        aggregator.add(example(number))
    assert aggregator.result() == aggregate([example(number) for number in range(5)])


@quick
@example_of(values=[1e-05, -131072.0])
@given(st.lists(st.integers(-50, 50) | st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_distribution_is_exact_for_few_values(values: list[float]) -> None:
    found = Distribution()
    for value in values:
        found.extend([value])
    ordered = sorted(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.deviation == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-6)
    for percent in (0, 25, 50, 95, 100):
        rank = max(1, math.ceil(len(values) * percent / 100))
        assert found.percentile(percent) == ordered[rank - 1]
    histogram = found.histogram()
    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert histogram.edges[0] <= ordered[0]
    assert histogram.edges[-1] >= ordered[-1]


def test_distribution_of_many_values_is_close_and_small() -> None:
    found = Distribution()
    values = [1.0003**n for n in range(20_000)]
    for value in values:
        found.extend([value])
    for percent in (5, 50, 95):
        exact = values[math.ceil(len(values) * percent / 100) - 1]
        assert found.percentile(percent) == pytest.approx(exact, rel=0.011)
    assert len(found._values) < EXACT_VALUES
    assert (found.minimum, found.maximum) == (values[0], values[-1])
    assert sum(found.histogram().counts) == len(values)


def test_distribution_ignores_what_is_not_finite() -> None:
    found = Distribution()
    for value in (math.nan, math.inf, 2.0):
        found.extend([value])
    assert (found.count, found.mean, found.percentile(50)) == (1, 2.0, 2.0)


def test_histograms_give_whole_numbers_a_bin_each() -> None:
    rows = [build([Reply(observation=Context())] * n + [Reply()]) for n in (0, 0, 2)]
    turns = histograms(rows)["turns"]
    assert turns.edges == (0.5, 1.5, 2.5, 3.5)
    assert turns.counts == (2, 0, 1)
    assert histograms([]) == {}


def _printed(run: Any) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary_table(run))
    return console.export_text()


def test_summary_in_a_notebook_is_a_table_of_text() -> None:
    table = summary_table({"stop/<b>x": 2.0, "episodes": 2.0})
    html = table._repr_html_()  # pyright: ignore[reportPrivateUsage]  # what a notebook calls
    assert "<th scope=" in html
    assert "<pre" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;x 2" in html
    assert "<b>x 2" in repr(table)


def test_summary_says_what_happened() -> None:
    declared = example(0, metadata={REWARD_THRESHOLD: 1.0})
    rows = [declared, example(1, stop_reason=StopReason.ENV_FAULT)]
    text = _printed(rows)
    assert text == _printed(aggregate(rows))
    assert "health" in text.splitlines()[2]
    assert "50% of episodes faulted" in text
    assert "2, 1 faulted (no reward, excluded from the mean)" in text
    assert "mean 1.000" in text
    assert "solved 100% of 1" in text
    assert "terminated 1, env_fault 1" in text
    assert "timeout 1" in text


def test_summary_without_rewards_says_so() -> None:
    text = _printed([example(stop_reason=StopReason.ENV_FAULT)])
    assert "no episode has a reward" in text
    assert "mean 0" not in text


def test_summary_shows_a_name_that_looks_like_markup_as_it_is() -> None:
    assert "[bold]x[/]" in _printed({"episodes": 1.0, "fault/[bold]x[/]": 2.0})


def test_summary_of_nothing_is_short() -> None:
    assert "episodes" in _printed([])


@given(st.lists(trajectories(), max_size=6))
@pytest.mark.slow
def test_metrics_of_stored_facts_are_those_of_the_trajectories(played: list[Trajectory]) -> None:
    stored = [json.loads(json.dumps(EpisodeFacts.of(one).to_json())) for one in played]
    assert aggregate(EpisodeFacts.from_json(one) for one in stored) == aggregate(played)


def test_facts_refuse_an_unknown_stop_reason() -> None:
    with pytest.raises(ConfigurationError, match="known stop_reason"):
        EpisodeFacts.from_json({"stop_reason": "tired"})


def test_metrics_average_the_terms_of_rewards() -> None:
    def rewarded(reward: float, **terms: float) -> Trajectory:
        episode = build((Reply(reward=reward),))
        (turn,) = episode.turns
        return replace(episode, turns=(replace(turn, info={"reward_terms": terms}),))

    metrics = aggregate([rewarded(1.0, format=0.25, right=0.75), rewarded(0.25, format=0.25)])
    assert metrics["reward_term/format/mean"] == 0.25
    assert metrics["reward_term/right/mean"] == 0.75


async def test_facts_of_a_tree_count_each_sampled_token_once() -> None:
    leaves = await tree()
    facts = [EpisodeFacts.of(leaf) for leaf in leaves]
    sampled = sum(leaf.sampled_token_count for leaf in leaves)
    assert sum(one.response_tokens for one in facts) == sampled
    assert sum(one.trained_tokens for one in facts) == sampled
    assert [one.turns for one in facts] == [6] * 4
    assert [len(one.seconds["generate"]) for one in facts] == [6, 5, 3, 3]
    assert sum(one.prompt_tokens for one in facts) == sum(
        turn.prompt_tokens for leaf in leaves for turn in leaf.own_turns
    )
    metrics = aggregate(leaves)
    assert metrics["tokens/response/total"] == metrics["tokens/trained"] == sampled
    assert metrics["turns/mean"] == 6
    assert "sequences/mean" not in metrics


async def test_facts_of_a_summarised_episode_leave_summaries_out_of_the_turns() -> None:
    trajectory = await rewritten(SUMMARY)
    facts = EpisodeFacts.of(trajectory)
    assert facts.turns == 6
    assert facts.sequences == len(trajectory.branches) + 1 > 2
    assert facts.response_tokens == facts.trained_tokens == trajectory.sampled_token_count
    metrics = aggregate([trajectory])
    assert metrics["rewrite/summarise"] == len(trajectory.branches)
    assert metrics["sequences/max"] == facts.sequences
    assert EpisodeFacts.from_json(facts.to_json()) == facts


async def test_facts_of_a_fork_leave_its_parents_rewrites_out() -> None:
    leaves = await tree(history={"keep_last_turns": {"keep": 1, "drop_at": 2}})
    facts = [EpisodeFacts.of(leaf) for leaf in leaves]
    assert facts[0].rewrites == Counter(keep_last_turns=len(leaves[0].branches))
    # The trunk was rewritten before turns 3 and 5, the forks begin at turns 1 and 3.
    assert [sum(one.rewrites.values()) for one in facts] == [2, 2, 1, 1]
    assert [len(leaf.branches) for leaf in leaves] == [2] * 4
    assert [one.sequences for one in facts] == [3, 3, 2, 2]
    assert sum(one.trained_tokens for one in facts) == sum(
        leaf.sampled_token_count for leaf in leaves
    )


async def test_images_sent_follow_the_rewritten_history() -> None:
    trajectory = await rewritten(IMAGES, images=True)
    sample = Sample.of(trajectory, by=())
    assert sample.images == 1 + 2 + 1 + 2 + 1 + 2
    assert sample.turns == 6


async def test_adjusted_reward_never_lands_on_a_summary() -> None:
    trajectory = await rewritten(SUMMARY)
    changed = with_total(trajectory, 2.5)
    assert changed.reward == 2.5
    assert check_trajectory(changed) == ()
    paid = {turn.turn for turn in changed.turns if turn.reward is not None}
    assert not paid & {turn.turn for turn in changed.turns if turn.purpose is not None}


async def test_exported_messages_are_those_that_the_model_saw() -> None:
    trajectory = await rewritten(IMAGES, images=True)
    rows = trajectory.steps(merge=True)
    assert len(rows) == 3
    for number, row in enumerate(rows):
        exported = chat_row(trajectory, row, number, with_parts=False)
        assert len(exported["images"]) == len(row.images)
        assert exported["messages"][-1]["role"] == "assistant"
    seen = trajectory.seen_at(5)
    assert len(images_of(seen)) == 2
    assert "[image omitted]" in text_of(seen[1])


async def test_seen_at_includes_the_question_and_the_summary() -> None:
    trajectory = await rewritten(SUMMARY)
    asked = next(turn.turn for turn in trajectory.turns if turn.purpose is not None)
    assert "Summarise" in text_of(trajectory.seen_at(asked)[-2])
    assert text_of(trajectory.seen_at(asked)[-1]) == "I saw screens."
    after = trajectory.seen_at(asked + 1)
    assert [entry["role"] for entry in after] == ["system", "user", "assistant"]
    assert "I saw screens." in text_of(after[1])


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_aggregate_is_the_same_however_many_episodes_are_added_up_together(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = (0.1, 0.7, -0.0, 0.3, math.inf, 1e-9, 2.5)
    episodes = [
        *(_scored(reward, n, group_id=f"g{n % 2}") for n, reward in enumerate(rewards)),
        *(_scored(1.0, n, metadata={TAIL: "drop"}) for n in range(3)),
        *(_scored(0.2 * n, n, metadata={TIMES_PARKED: n}) for n in range(3)),
        *(_scored(1.0, n, stop_reason=StopReason.ENV_FAULT, group_id="g0") for n in range(2)),
        *(example(n, duration_seconds=0.1 * n) for n in range(5)),
    ]
    expected = aggregate(episodes)
    # The package's attribute of this name is the function.
    monkeypatch.setattr(import_module("envkit.metrics.aggregate"), "_BATCH", at_once)
    reading = Aggregator()
    for episode in episodes:
        reading.add(episode)
        reading.result()  # counts what is pending
    assert repr(aggregate(episodes)) == repr(expected)
    assert repr(reading.result()) == repr(expected)
