"""Intervals, pass@k and the exact test, against what they are by definition."""

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.matrix import share
from fakes.trajectories import Reply, build, quick
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.metrics import aggregate, intervals
from envkit.metrics.intervals import (
    RESAMPLED,
    RESAMPLES,
    Method,
    exact_p_value,
    mean_interval,
    pass_all_k,
    pass_at_k,
    share_interval,
)
from envkit.trajectory import REWARD_THRESHOLD, StopReason, Trajectory, save
from envkit_eval import (
    Price,
    Sample,
    check_pass_at,
    compare,
    lines_of,
    read_price,
    read_side,
    run,
)
from envkit_eval.samples import episodes_of

# ---- the statistics


@quick
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_solution(counts: tuple[int, int]) -> None:
    """By definition: k of n samples drawn without replacement, every draw listed."""
    samples, solved = counts
    for k in range(1, samples + 1):
        draws = list(itertools.combinations([1] * solved + [0] * (samples - solved), k))
        assert pass_at_k(samples, solved, k) == pytest.approx(
            sum(map(any, draws)) / len(draws), abs=1e-12
        )


@pytest.mark.parametrize("counts", [(4, 3), (4, 0), (4, 4), (6, 2), (1, 1)])
def test_pass_all_k_is_the_share_of_draws_that_all_solve(counts: tuple[int, int]) -> None:
    samples, solved = counts
    outcomes = [True] * solved + [False] * (samples - solved)
    for k in range(1, samples + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_all_k(samples, solved, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_at_k_of_many_samples_does_not_overflow() -> None:
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)


@quick
@given(st.integers(0, 6), st.integers(0, 6))
def test_exact_p_value_is_the_share_of_splits_at_least_as_uneven(better: int, worse: int) -> None:
    count = better + worse
    splits = list(itertools.product((0, 1), repeat=count))
    far = abs(better - worse)
    as_uneven = sum(abs(2 * sum(split) - count) >= far for split in splits)
    assert exact_p_value(better, worse) == pytest.approx(min(1.0, as_uneven / len(splits)))


def test_interval_of_a_mean_narrows_with_the_square_root_of_the_problems() -> None:
    rng = random.Random(0)
    values = [rng.random() for _ in range(1600)]
    few, many = mean_interval(values[:100]), mean_interval(values)
    assert few is not None
    assert many is not None
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(4, rel=0.15)
    deviation = float(np.std(values, ddof=1)) / math.sqrt(1600)
    assert many.high - many.low == pytest.approx(2 * 1.96 * deviation, rel=0.05)
    assert mean_interval(values) == many
    assert mean_interval(values[::-1]) == many  # episodes finish in any order


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("draw", ["uniform", "exponential", "mirrored", "rare"])
def test_interval_of_many_problems_agrees_with_resampling(
    draw: str, confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    count = RESAMPLED + 1
    values = {
        "uniform": rng.uniform(0, 1, count),
        "exponential": rng.exponential(1, count),
        "mirrored": 5 - rng.exponential(1, count),
        "rare": 2.0 * rng.binomial(1, 0.02, count),
    }[draw]
    computed = mean_interval(values.tolist(), confidence=confidence)
    monkeypatch.setattr(intervals, "RESAMPLED", count)
    resampled = mean_interval(values.tolist(), confidence=confidence, resamples=RESAMPLES)
    assert computed is not None
    assert resampled is not None
    assert computed.method is Method.CORNISH_FISHER
    assert resampled.method is Method.BOOTSTRAP
    # The error of a percentile that a finite number of resamples estimates.
    tail = (1 - confidence) / 2
    density = NormalDist().pdf(NormalDist().inv_cdf(tail))
    monte_carlo = math.sqrt(tail * (1 - tail) / RESAMPLES) / density
    error = float(values.std()) / math.sqrt(count)
    assert abs(computed.low - resampled.low) < 4 * monte_carlo * error
    assert abs(computed.high - resampled.high) < 4 * monte_carlo * error


@pytest.mark.parametrize(
    ("count", "method"),
    [(RESAMPLED, Method.BOOTSTRAP), (RESAMPLED + 1, Method.CORNISH_FISHER)],
)
def test_interval_of_more_problems_than_the_limit_is_computed(count: int, method: Method) -> None:
    values = np.random.default_rng(1).uniform(0, 1, count).tolist()
    found = mean_interval(values, resamples=8)
    assert found is not None
    assert found.method is method
    assert mean_interval(values[::-1], resamples=8) == found


@pytest.mark.parametrize("odd", [(1.0,), (1.0, -1.0), (1e90,), (1e120,), (1e200,), (math.inf,)])
def test_interval_of_many_problems_with_odd_values_is_resampled(odd: tuple[float, ...]) -> None:
    """The mean of a resample then has the distribution of a few draws of those values."""
    values = [0.0] * RESAMPLED + [*odd]
    with np.errstate(all="ignore"):
        found = mean_interval(values, resamples=8)
    assert found is not None
    assert found.method is Method.BOOTSTRAP


def test_interval_of_equal_values_is_the_exact_bound_of_a_share() -> None:
    """All of 64 solved: the chance that a share of `low` does that is 2.5%."""
    solved, failed = share_interval([1.0] * 64), share_interval([0.0] * 64)
    assert solved is not None
    assert failed is not None
    assert (solved.high, solved.low**64) == (1.0, pytest.approx(0.025))
    assert (failed.low, failed.high) == (0.0, pytest.approx(1 - solved.low))
    assert mean_interval([3.0] * 64) is None
    assert mean_interval([0.0, 2.0, 1.0, 0.0]) is None
    assert mean_interval([]) is None
    assert share_interval([]) is None
    assert share_interval([0.5] * 4) is None


@given(count=st.integers(1, 60), data=st.data())
def test_interval_of_whole_shares_has_the_tails_of_the_binomial_distribution(
    count: int, data: st.DataObject
) -> None:
    """At each bound, a result at least as extreme has a chance of 2.5%."""
    solved = data.draw(st.integers(0, count) | at_limit(count).filter(lambda n: n <= count))
    found = share_interval([1.0] * solved + [0.0] * (count - solved))
    assert found is not None
    assert found.method is Method.CLOPPER_PEARSON

    def chance(share: float, counts: range) -> float:
        return sum(math.comb(count, n) * share**n * (1 - share) ** (count - n) for n in counts)

    if solved == 0:
        assert found.low == 0.0
    else:
        assert chance(found.low, range(solved, count + 1)) == pytest.approx(0.025, abs=1e-9)
    if solved == count:
        assert found.high == 1.0
    else:
        assert chance(found.high, range(solved + 1)) == pytest.approx(0.025, abs=1e-9)


@pytest.mark.parametrize("rate", share([0.01, 0.02, 0.05, 0.1, 0.5, 0.9, 0.99], of=3))
@pytest.mark.parametrize("problems", [16, 64])
def test_interval_of_one_sample_each_holds_every_rate_as_often_as_it_says(
    rate: float, problems: int
) -> None:
    """Exactly: the sum over all results of their chance, if their interval contains the rate."""
    held = 0.0
    for solved in range(problems + 1):
        found = share_interval([1.0] * solved + [0.0] * (problems - solved))
        assert found is not None
        if found.low <= rate <= found.high:
            chance = rate**solved * (1 - rate) ** (problems - solved)
            held += math.comb(problems, solved) * chance
    assert held >= 0.95


def test_interval_of_equal_shares_is_that_of_their_samples() -> None:
    """Tasks that all solve half of their samples vary less than coins do."""
    few, many = share_interval([0.5] * 64), share_interval([0.5] * 64, samples=64 * 8)
    assert few is not None
    assert many is not None
    assert few.method is many.method is Method.KORN_GRAUBARD
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(math.sqrt(8), rel=0.03)


@pytest.mark.parametrize(("problems", "samples"), share([(12, 1), (60, 4), (12, 4), (60, 1)], of=2))
def test_interval_holds_the_true_mean_as_often_as_it_says(problems: int, samples: int) -> None:
    """Tasks whose solve rates are drawn from Beta(1, 2), which has the mean 1/3."""
    rng = np.random.default_rng(7)
    hits, trials = 0, 200
    for _ in range(trials):
        rates = rng.beta(1, 2, problems)
        values = (rng.binomial(samples, rates) / samples).tolist()
        found = share_interval(values, samples=problems * samples)
        hits += found is not None and found.low <= 1 / 3 <= found.high
    assert hits / trials >= 0.92


def test_interval_that_resampled_samples_would_be_too_narrow() -> None:
    """Eight equal samples of each task say no more than one."""
    tasks = [float(n % 3 == 0) for n in range(60)]
    one = lines_of(samples_of({n: [v] for n, v in enumerate(tasks)}), **PLAIN)[0]
    eight = lines_of(samples_of({n: [v] * 8 for n, v in enumerate(tasks)}), **PLAIN)[0]
    assert one.success is not None
    assert eight.success is not None
    assert eight.success.interval == one.success.interval


# ---- lines

PLAIN: dict[str, Any] = {"by": (), "pass_at": (1,), "price": None}


def samples_of(rewards: dict[int, list[float | None]], **options: Any) -> list[Sample]:
    return [
        Sample.of(episode(seed, member, reward), by=("family", "level"), **options)
        for seed, values in rewards.items()
        for member, reward in enumerate(values)
    ]


def episode(
    seed: int, member: int, reward: float | None, *, run: str = "run", **options: Any
) -> Trajectory:
    known = {"member": member, "group": seed, REWARD_THRESHOLD: 1.0}
    metadata = {**known, **options.pop("metadata", {})}
    task = {"seed": seed, "family": "odd" if seed % 2 else "even"}
    values: dict[str, Any] = {"task": task, **options}
    return build(
        [Reply(reward=reward or 0.0)],
        seed=seed,
        episode_id=f"{run}-{seed}-{member}",
        metadata=metadata,
        stop_reason=StopReason.TERMINATED if reward is not None else StopReason.ENV_FAULT,
        **values,
    )


def test_faults_are_counted_and_left_out_of_every_mean() -> None:
    line = lines_of(samples_of({0: [1.0, None], 1: [0.0, 1.0], 2: [None, None]}), **PLAIN)[0]
    assert line.success is not None
    assert (line.tasks, line.episodes, line.faulted) == (2, 3, 3)
    assert line.success.mean == 0.75  # of the tasks' shares 1 and 1/2, not of 3 or 6 episodes
    assert line.fault_share == 0.5


def test_episodes_without_a_declared_success_are_counted_beside_it() -> None:
    """A mixture: one member declares success, the other does not."""
    samples = samples_of({0: [1.0, 0.0], 1: [1.0, 1.0], 2: [1.0, 1.0]})
    samples[1:2] = [replace(samples[1], solved=None)]
    samples[4:] = [replace(one, solved=None) for one in samples[4:]]
    (line, *_) = lines_of(samples, by=(), pass_at=(1, 2), price=None)
    assert (line.tasks, line.episodes, line.undeclared) == (3, 6, 3)
    assert line.success is not None
    assert (line.success.mean, line.success.tasks) == (1.0, 2)
    assert line.pass_at[2].tasks == line.pass_all[2].tasks == 1
    assert line.pass_all[2].mean == 1.0
    assert line.reward is not None
    assert line.reward.mean == pytest.approx((0.5 + 1 + 1) / 3)
    none = lines_of([replace(one, solved=None) for one in samples], **PLAIN)[0]
    assert (none.success, dict(none.pass_at), none.undeclared) == (None, {}, 6)
    assert none.reward is not None


def test_episode_with_an_undeclared_role_has_no_success() -> None:
    parts = [
        replace(one, episode="whole", role=role, solved=solved)
        for role, solved in (("a", True), ("b", None))
        for one in samples_of({0: [1.0]})
    ]
    assert [one.solved for one in episodes_of(parts)] == [None]
    assert [one.solved for one in episodes_of([replace(parts[1], solved=True), parts[0]])] == [True]


def test_zeros_of_failed_graders_are_rewarded_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    info = {"ungraded": "the test script did not end within 2 s"}
    replies = [Reply(reward=0.0, info=info), Reply(reward=1.0), Reply(reward=0.0)]
    samples = [
        Sample.of(build([reply], seed=seed, episode_id=str(seed)), by=())
        for seed, reply in enumerate(replies)
    ]
    (line,) = lines_of(samples, **PLAIN)
    assert (line.episodes, line.ungraded, line.faulted) == (3, 1, 0)
    assert line.to_json()["ungraded"] == 1
    run._show_lines([line, replace(line, ungraded=0)])
    shown = capsys.readouterr().out
    assert shown.count("grader failed") == 1
    assert "1 of 3 episodes scored 0 because the grader failed on what the policy left" in shown
    metrics = aggregate([build([reply]) for reply in replies])
    assert (metrics["episodes/rewarded"], metrics["episodes/ungraded"]) == (3, 1)


def test_task_with_too_few_samples_is_left_out_of_that_k() -> None:
    (line, *_) = lines_of(
        samples_of({0: [1.0, None], 1: [0.0, 1.0], 2: [0.0, 0.0]}),
        by=(), pass_at=(1, 2), price=None,
    )  # fmt: skip
    assert (line.pass_at[1].tasks, line.pass_at[2].tasks) == (3, 2)
    assert line.pass_at[1].mean == pytest.approx(0.5)
    assert line.pass_at[2].mean == pytest.approx(0.5)


def test_lines_follow_the_environment_by_the_tags_that_tasks_record() -> None:
    lines = lines_of(
        samples_of({n: [float(n < 3)] for n in range(6)}),
        by=("family", "level"),
        pass_at=(1,),
        price=None,
    )
    assert [(line.tag, line.value, line.tasks) for line in lines] == [
        (None, None, 6),
        ("family", "even", 3),
        ("family", "odd", 3),
    ]


def test_episode_of_several_agents_counts_once() -> None:
    roles = {"solver": 1.0, "judge": 0.0}
    samples = [
        Sample.of(
            episode(0, 0, reward, run=role, metadata={"role": role, "rollout_id": "one"}),
            by=(),
        )
        for role, reward in roles.items()
    ]  # fmt: skip
    whole, *by_role = lines_of(samples, **PLAIN)
    assert whole.success is not None
    assert whole.reward is not None
    assert (whole.episodes, whole.success.mean, whole.reward.mean) == (1, 0.0, 0.5)
    assert [(line.value, line.success and line.success.mean) for line in by_role] == [
        ("judge", 0.0), ("solver", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "samples", "found"),
    [((), 1, (1,)), ((), 6, (1, 2, 4, 6)), ((), 8, (1, 2, 4, 8)), ((5, 1, 5), 8, (1, 5))],
)
def test_values_of_k(asked: tuple[int, ...], samples: int, found: tuple[int, ...]) -> None:
    assert check_pass_at(asked, samples) == found


@pytest.mark.parametrize("k", [0, -1, 9])
def test_k_beyond_the_samples_is_refused(k: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"got k={k} with 8: raise --group"):
        check_pass_at((1, k), 8)


# ---- prices


def test_cost_counts_cached_tokens_and_every_image_of_a_request(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('["m-1"]\ninput = 2.0\noutput = 8\ncached_input = 0.5\nimage = 0.01\n')
    price = read_price(file, "m-1")
    (one,) = samples_of({0: [1.0]})
    sample = replace(one, prompt_tokens=1_000_000, cached_tokens=200_000, reply_tokens=50_000)
    assert price.cost(replace(sample, images=3)) == pytest.approx(1.6 + 0.1 + 0.4 + 0.03)
    assert Price(input=1, output=1).cost(sample) == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[m]\ninput = 1\n", "a price is a table such as .input = 0.40, output = 1.60."),
        ("[m]\ninput = 1\noutput = 2\noutptu = 3\n", "no key 'outptu'. Did you mean 'output'"),
        ("[m]\ninput = -1\noutput = 2\n", "input must be at least 0, got -1"),
        ('[m]\ninput = "1"\noutput = 2\n', "input must be a finite number, got '1'"),
        ("[m]\ninput = nan\noutput = 2\n", "input must be a finite number, got nan"),
        ("[m]\ninput = true\noutput = 2\n", "input must be a finite number, got True"),
        ("m = 3\n", "a price is a table"),
        ("", "must map models to their prices"),
        ("[m\n", "cannot read the prices"),
    ],
)
def test_wrong_row_of_a_price_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_price(file, "m")
    assert str(file) in str(caught.value)


def test_model_without_a_price_gets_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"gpt-mini": {"input": 1, "output": 2}}')
    with pytest.raises(UnknownNameError, match="Did you mean 'gpt-mini'"):
        read_price(file, "gpt-mni")


# ---- two runs


def sides(
    tmp_path: Path,
    before: dict[int, list[float | None]],
    after: dict[int, list[float | None]],
    **options: Any,
) -> list[Any]:
    for name, rewards in (("before", before), ("after", after)):
        changed = options if name == "after" else {}
        save(
            [
                episode(seed, member, reward, run=name, **changed)
                for seed, values in rewards.items()
                for member, reward in enumerate(values)
            ],
            tmp_path / name / "trajectories.jsonl",
        )
    return [read_side(tmp_path / name, by=("family",)) for name in ("before", "after")]


def test_comparison_counts_pairs_and_lists_changed_outcomes(tmp_path: Path) -> None:
    before: dict[int, list[float | None]] = {n: [float(n < 4)] for n in range(12)}
    after: dict[int, list[float | None]] = {n: [float(n < 10)] for n in range(12)}
    after[0], after[1] = [0.0], [None]
    found = compare(*sides(tmp_path, before, after), by=("family",))
    whole = found.differences[0]
    assert whole.success is not None
    assert (whole.better, whole.worse, whole.unpaired, whole.is_mcnemar) == (6, 1, 1, True)
    assert whole.success.mean == pytest.approx(5 / 11)
    assert whole.p_value == pytest.approx(2 * (1 + 7) / 2**7)
    assert [(one.seed, one.now_solved) for one in found.changed_outcomes] == [
        (0, False), *((n, True) for n in range(4, 10)),
    ]  # fmt: skip
    assert [(one.tag, one.value) for one in found.differences[1:]] == [
        ("family", "even"), ("family", "odd"),
    ]  # fmt: skip


def test_paired_interval_is_narrower_than_the_difference_of_two(tmp_path: Path) -> None:
    """Hard and easy tasks: each side varies a lot, their difference hardly."""
    rng = random.Random(1)
    hard = {n: rng.random() for n in range(40)}
    before: dict[int, list[float | None]] = {n: [hard[n]] for n in hard}
    after: dict[int, list[float | None]] = {n: [hard[n] + 0.1 + 0.01 * rng.random()] for n in hard}
    whole = compare(*sides(tmp_path, before, after), by=()).differences[0]
    alone = mean_interval([value or 0.0 for (value,) in before.values()])
    assert whole.reward is not None
    assert whole.reward.interval is not None
    assert alone is not None
    assert whole.reward.interval.low > 0.1
    assert whole.reward.interval.high - whole.reward.interval.low < (alone.high - alone.low) / 10


@pytest.mark.parametrize(
    ("options", "seeds", "words"),
    [
        ({"env_id": "other-v0"}, 3, r"the environments are \['fake-v0'\] and \['other-v0'\]"),
        ({}, 2, "seed 2 of fake-v0 is only in"),
        ({}, 4, "seed 3 of fake-v0 is only in"),
        ({"task": {"seed": 0, "family": "even", "gold": 1}}, 3, "has gold not set and 1"),
        ({"task": {"seed": 9, "family": "even"}}, 3, "of seed 0 of fake-v0 has seed 0 and 9"),
    ],
)
def test_runs_of_different_tasks_are_refused_by_the_first_difference(
    tmp_path: Path, options: dict[str, Any], seeds: int, words: str
) -> None:
    before: dict[int, list[float | None]] = {n: [1.0] for n in range(3)}
    after: dict[int, list[float | None]] = {n: [1.0] for n in range(seeds)}
    with pytest.raises(ConfigurationError, match=words):
        compare(*sides(tmp_path, before, after, **options), by=())


def test_tasks_without_a_seed_are_counted_apart(tmp_path: Path) -> None:
    known = sides(tmp_path, {0: [0.0], 1: [1.0]}, {0: [1.0], 1: [0.0]})
    seedless = [
        replace(
            side,
            episodes=[
                replace(one, facts=structs.replace(one.facts, seed=None)) for one in side.episodes
            ],
        )
        for side in known
    ]
    whole = compare(*seedless, by=()).differences[0]
    assert (whole.better, whole.worse, whole.tied, whole.is_mcnemar) == (1, 1, 0, True)


def test_several_samples_make_the_test_one_on_tasks(tmp_path: Path) -> None:
    before: dict[int, list[float | None]] = {n: [0.0, 1.0] for n in range(6)}
    after: dict[int, list[float | None]] = {n: [1.0, 1.0] for n in range(6)}
    whole = compare(*sides(tmp_path, before, after), by=()).differences[0]
    assert (whole.better, whole.worse, whole.is_mcnemar) == (6, 0, False)
    assert whole.p_value == 2 / 2**6
