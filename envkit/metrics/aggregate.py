"""Streaming aggregation of trajectories into flat metrics."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from envkit.metrics.distribution import Distribution, Histogram, Moments
from envkit.metrics.facts import EpisodeFacts
from envkit.tokens import SanityStatus
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import TIME_PARTS, Trajectory

_TURN_COUNTS: Final = (
    "turns",
    "prompt_tokens",
    "cached_tokens",
    "image_bytes",
    "parse_errors",
    "clamped_logprobs",
    "neutralised",
    "observations",
)
"""Facts summed over episodes under their own name."""


class Aggregator:
    """Collects the metrics of a run without keeping its trajectories.

    Memory grows with the number of distinct groups (a few numbers each), not with episodes. The
    names are described in `envkit.metrics.names.METRICS`.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._stops: Counter[StopReason] = Counter()
        self._sanity: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._rewrites: Counter[str] = Counter()
        self._agent_sequences: Counter[str] = Counter()
        self._agent_untrained: Counter[str] = Counter()
        self._agent_unenforced: Counter[str] = Counter()
        self._distributions: defaultdict[str, Distribution] = defaultdict(Distribution)
        self._groups: defaultdict[str, Moments] = defaultdict(Moments)
        self._terms: defaultdict[str, Moments] = defaultdict(Moments)
        self._tails: defaultdict[str, Moments] = defaultdict(Moments)
        """Sampled tokens and rewards by tail handling."""
        self._versions: set[str] = set()

    def add(self, episode: Trajectory | EpisodeFacts) -> None:
        """Add one episode. A faulted or aborted one is excluded from the reward.

        An episode cut from the batch's tail counts only in the tail metrics.
        """
        facts = episode if isinstance(episode, EpisodeFacts) else EpisodeFacts.of(episode)
        if facts.tail is not None:
            self._tails["cut"].add(facts.response_tokens)
            return
        counts = self._counts
        counts["episodes"] += 1
        counts["faulted"] += facts.is_faulted
        counts["aborted"] += facts.is_aborted
        self._stops[StopReason(facts.stop_reason)] += 1
        self._retries.update(facts.retries)
        if facts.fault is not None:
            self._faults[facts.fault["kind"]] += 1
        self._add_reward(facts)
        self._add_ledger(facts)
        self._add_turns(facts)
        self._add_parked(facts)
        self._versions |= set(facts.weight_versions)
        counts["mixed_versions"] += len(facts.weight_versions) > 1

    def result(self, *, elapsed_seconds: float | None = None) -> dict[str, float]:
        """Return the metrics so far, in the order of `METRICS`.

        Args:
            elapsed_seconds: Wall-clock time of the run, for throughput. None omits throughput: the
                durations of overlapping episodes do not determine it.
        """
        return {
            **self._episode_metrics(),
            **self._token_metrics(),
            **self._stop_metrics(),
            **self._turn_metrics(),
            **self._time_metrics(elapsed_seconds),
            **self._group_metrics(),
            **self._tail_metrics(),
        }

    def histograms(self) -> dict[str, Histogram]:
        """Return histograms of reward, turns, sampled tokens and durations, by metric name."""
        return {
            name: self._distributions[name].histogram()
            for name in ("reward", "turns", "tokens/response", "seconds/episode")
            if self._distributions[name].count
        }

    def _add_reward(self, facts: EpisodeFacts) -> None:
        group = None if facts.group_id is None else self._groups[facts.group_id]
        if facts.reward is None:
            return
        if group is not None:
            group.add(facts.reward)
        self._distributions["reward"].add(facts.reward)
        self._counts["ungraded"] += facts.is_ungraded
        self._counts["successes"] += facts.success is True
        self._counts["judged"] += facts.success is not None
        self._counts["truncated"] += facts.is_truncated
        for name, value in facts.reward_terms.items():
            self._terms[name].add(value)

    def _add_parked(self, facts: EpisodeFacts) -> None:
        """Track parked and unparked episodes separately."""
        kind = "resumed" if facts.times_parked else "straight"
        self._tails[f"{kind} tokens"].add(facts.response_tokens)
        if facts.reward is not None:
            self._tails[f"{kind} reward"].add(facts.reward)

    def _add_ledger(self, facts: EpisodeFacts) -> None:
        named = self._distributions
        self._counts["trained"] += facts.trained_tokens
        self._counts["stale"] += facts.stale_tokens
        if facts.prompt_length is not None:
            named["tokens/prompt"].add(facts.prompt_length)
        named["tokens/response"].add(facts.response_tokens)
        named["tokens/observation"].add(facts.observation_tokens)
        named["images"].add(facts.images)

    def _add_turns(self, facts: EpisodeFacts) -> None:
        named = self._distributions
        for name in _TURN_COUNTS:
            self._counts[name] += getattr(facts, name)
        self._sanity.update(facts.sanity)
        named["tool_calls"].add(facts.tool_calls)
        named["turns"].add(facts.turns)
        named["sequences"].add(facts.sequences)
        self._rewrites.update(facts.rewrites)
        self._agent_sequences.update(facts.agent_sequences)
        self._agent_untrained.update(facts.agent_untrained)
        self._agent_unenforced.update(facts.agent_unenforced)
        named["seconds/episode"].add(facts.duration_seconds)
        for part, values in facts.seconds.items():
            for value in values:
                named[f"seconds/{part}"].add(value)

    def _episode_metrics(self) -> dict[str, float]:
        counts, reward = self._counts, self._distributions["reward"]
        metrics: dict[str, float] = {
            "episodes": counts["episodes"],
            "episodes/rewarded": reward.count,
            "episodes/faulted": counts["faulted"],
        }
        if counts["episodes"]:
            metrics["episodes/faulted_share"] = counts["faulted"] / counts["episodes"]
        metrics["episodes/aborted"] = counts["aborted"]
        if counts["ungraded"]:
            metrics["episodes/ungraded"] = counts["ungraded"]
        if reward.count:
            metrics |= {
                "reward/mean": reward.mean,
                "reward/std": reward.deviation,
                "reward/min": reward.minimum,
                "reward/max": reward.maximum,
            }
        if counts["judged"]:
            metrics["success/rate"] = counts["successes"] / counts["judged"]
            metrics["success/episodes"] = counts["judged"]
        metrics |= {f"reward_term/{n}/mean": t.mean for n, t in sorted(self._terms.items())}
        turns = self._distributions["turns"]
        if turns.count:
            metrics |= {
                "turns/mean": turns.mean,
                "turns/p50": turns.percentile(50),
                "turns/p95": turns.percentile(95),
                "turns/max": turns.maximum,
            }
        sequences = self._distributions["sequences"]
        if sequences.count and sequences.maximum > 1:
            metrics |= {"sequences/mean": sequences.mean, "sequences/max": sequences.maximum}
        counters = {
            "rewrite": self._rewrites,
            "agent/sequences": self._agent_sequences,
            "agent/untrained_tokens": self._agent_untrained,
            "agent/unenforced": self._agent_unenforced,
        }
        for name, counter in counters.items():
            metrics |= {f"{name}/{key}": float(n) for key, n in sorted(counter.items())}
        return metrics

    def _token_metrics(self) -> dict[str, float]:
        named, counts = self._distributions, self._counts
        if not counts["episodes"]:
            return {}
        metrics: dict[str, float] = {}
        if named["tokens/prompt"].count:
            metrics["tokens/prompt/mean"] = named["tokens/prompt"].mean
        metrics |= {
            "tokens/response/mean": named["tokens/response"].mean,
            "tokens/response/p95": named["tokens/response"].percentile(95),
            "tokens/observation/mean": named["tokens/observation"].mean,
            "tokens/response/total": named["tokens/response"].total,
            "tokens/trained": counts["trained"],
        }
        if sampled := named["tokens/response"].total:
            metrics["tokens/trained_share"] = counts["trained"] / sampled
        if counts["stale"]:
            metrics["tokens/stale"] = counts["stale"]
        metrics["tokens/logprobs_clamped"] = counts["clamped_logprobs"]
        metrics["tokens/texts_neutralised"] = counts["neutralised"]
        if counts["prompt_tokens"]:
            metrics["tokens/cached_share"] = counts["cached_tokens"] / counts["prompt_tokens"]
        metrics |= {
            "images/mean": named["images"].mean,
            "images/total": named["images"].total,
            "images/observation_bytes": counts["image_bytes"],
        }
        return metrics

    def _stop_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for reason in StopReason:
            if self._stops[reason]:
                metrics[f"stop/{reason}"] = self._stops[reason]
                metrics[f"stop/{reason}/share"] = self._stops[reason] / self._counts["episodes"]
        if rewarded := self._distributions["reward"].count:
            metrics["truncation/rate"] = self._counts["truncated"] / rewarded
        return metrics

    def _turn_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self._counts["episodes"]:
            metrics["tool_calls/mean"] = self._distributions["tool_calls"].mean
        if self._counts["turns"]:
            metrics["parse_error/count"] = self._counts["parse_errors"]
            metrics["parse_error/rate"] = self._counts["parse_errors"] / self._counts["turns"]
        metrics |= {f"sanity/{k}": self._sanity[k] for k in SanityStatus if self._sanity[k]}
        if observations := self._counts["observations"]:
            checked = self._sanity.total() - self._sanity[SanityStatus.UNCHECKED]
            # One that differs is a fault, and not among the observations of the record.
            metrics["sanity/checked_share"] = min(1.0, checked / observations)
        metrics |= {f"retry/{k}": float(n) for k, n in sorted(self._retries.items()) if n}
        metrics |= {f"fault/{k}": float(n) for k, n in sorted(self._faults.items())}
        return metrics

    def _time_metrics(self, elapsed_seconds: float | None) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for part in (*TIME_PARTS, "episode"):
            seconds = self._distributions[f"seconds/{part}"]
            if seconds.count:
                metrics[f"seconds/{part}/mean"] = seconds.mean
                metrics[f"seconds/{part}/p95"] = seconds.percentile(95)
        tokens = self._distributions["tokens/response"].total
        if elapsed_seconds:
            metrics["throughput/tokens_per_second"] = tokens / elapsed_seconds
        if generating := self._distributions["seconds/generate"].total:
            metrics["throughput/tokens_per_second_per_stream"] = tokens / generating
        return metrics

    def _group_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self._groups:
            metrics["groups"] = len(self._groups)
        compared = [group for group in self._groups.values() if group.count > 1]
        if compared:
            equal = sum(group.minimum == group.maximum for group in compared)
            metrics["groups/zero_variance_share"] = equal / len(compared)
            metrics["groups/reward_std"] = sum(g.deviation for g in compared) / len(compared)
        if self._versions:
            metrics["weight_versions"] = len(self._versions)
            mixed = self._counts["mixed_versions"]
            metrics["weight_versions/mixed_share"] = mixed / self._counts["episodes"]
        return metrics

    def _tail_metrics(self) -> dict[str, float]:
        tails = self._tails
        metrics: dict[str, float | None] = {}
        if tails["cut"].count:
            metrics["tail/cut"] = tails["cut"].count
            metrics["tail/cut_tokens_ratio"] = _ratio(tails["cut"], tails["straight tokens"])
        if tails["resumed tokens"].count:
            metrics["tail/resumed"] = tails["resumed tokens"].count
            metrics["tail/resumed_tokens_ratio"] = _ratio(
                tails["resumed tokens"], tails["straight tokens"]
            )
        if tails["resumed reward"].count and tails["straight reward"].count:
            gap = tails["resumed reward"].mean - tails["straight reward"].mean
            metrics["tail/resumed_reward_gap"] = gap
        return {name: value for name, value in metrics.items() if value is not None}


def _ratio(one: Moments, other: Moments) -> float | None:
    return one.mean / other.mean if one.count and other.count and other.mean else None


def aggregate(
    episodes: Iterable[Trajectory | EpisodeFacts], *, elapsed_seconds: float | None = None
) -> dict[str, float]:
    """Return the metrics of a run; see `envkit.metrics.names.METRICS` for every name."""
    aggregator = Aggregator()
    for episode in episodes:
        aggregator.add(episode)
    return aggregator.result(elapsed_seconds=elapsed_seconds)


def histograms(trajectories: Iterable[Trajectory]) -> dict[str, Histogram]:
    """Return histograms of reward, turns, sampled tokens and durations, by metric name."""
    aggregator = Aggregator()
    for trajectory in trajectories:
        aggregator.add(trajectory)
    return aggregator.histograms()
