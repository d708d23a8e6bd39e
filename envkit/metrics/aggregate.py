"""Streaming aggregation of trajectories into flat metrics."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from envkit.metrics.distribution import Distribution, Histogram, Moments
from envkit.metrics.facts import EpisodeFacts
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import TIME_PARTS, Trajectory

_SUMMED: Final = (
    "is_faulted",
    "is_aborted",
    "trained_tokens",
    "stale_tokens",
    "turns",
    "prompt_tokens",
    "cached_tokens",
    "image_bytes",
    "parse_errors",
    "clamped_logprobs",
    "neutralised",
    "observations",
    "long_observations",
    "long_checked",
)
"""Facts summed over episodes under their own name."""
_DISTRIBUTED: Final = {
    "tokens/prompt": "prompt_length",
    "tokens/response": "response_tokens",
    "tokens/observation": "observation_tokens",
    "images": "images",
    "tool_calls": "tool_calls",
    "turns": "turns",
    "sequences": "sequences",
    "seconds/episode": "duration_seconds",
}
"""Facts with a distribution over episodes, by its name."""
_COUNTED: Final = {
    "retry": "retries",
    "sanity": "sanity",
    "rewrite": "rewrites",
    "speaker": "speakers",
    "agent/sequences": "agent_sequences",
    "agent/untrained_tokens": "agent_untrained",
    "agent/unenforced": "agent_unenforced",
}
"""Facts that count by kind, by the prefix of their metrics."""

_BATCH: Final = 256
"""Episodes that are added up together."""


class Aggregator:
    """Collects the metrics of a run without keeping its trajectories.

    Memory grows with the number of distinct groups (a few numbers each), not with episodes. The
    names are described in `envkit.metrics.names.METRICS`.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._stops: Counter[StopReason] = Counter()
        self._kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Counts by kind, by the prefix of their metrics."""
        self._distributions: defaultdict[str, Distribution] = defaultdict(Distribution)
        self._groups: defaultdict[str, Moments] = defaultdict(Moments)
        self._terms: defaultdict[str, Moments] = defaultdict(Moments)
        self._tails: defaultdict[str, Moments] = defaultdict(Moments)
        """Sampled tokens and rewards by tail handling."""
        self._versions: set[str] = set()
        self._pending: list[EpisodeFacts] = []
        """Episodes that the rest does not count yet."""

    def add(self, episode: Trajectory | EpisodeFacts) -> None:
        """Add one episode. A faulted or aborted one is excluded from the reward.

        An episode cut from the batch's tail counts only in the tail metrics.
        """
        facts = episode if isinstance(episode, EpisodeFacts) else EpisodeFacts.of(episode)
        self._pending.append(facts)
        if len(self._pending) >= _BATCH:
            self._fold()

    def _fold(self) -> None:
        """Add up the pending episodes, a fact at a time: loops over one fact are fast."""
        pending, self._pending = self._pending, []
        self._tails["cut"].extend([one.response_tokens for one in pending if one.tail is not None])
        batch = [one for one in pending if one.tail is None]
        counts = self._counts
        counts["episodes"] += len(batch)
        self._stops.update(StopReason(one.stop_reason) for one in batch)
        self._kinds["fault"].update(one.fault["kind"] for one in batch if one.fault is not None)
        for name in _SUMMED:
            counts[name] += sum(map(attrgetter(name), batch))
        for name, field in _DISTRIBUTED.items():
            values = map(attrgetter(field), batch)
            self._distributions[name].extend([value for value in values if value is not None])
        seconds: defaultdict[str, list[float]] = defaultdict(list)
        for one in batch:
            for part, values in one.seconds.items():
                seconds[part] += values
        for part, values in seconds.items():
            self._distributions[f"seconds/{part}"].extend(values)
        for prefix, field in _COUNTED.items():
            for found in filter(None, map(attrgetter(field), batch)):
                self._kinds[prefix].update(found)
        self._add_rewards(batch)
        self._add_parked(batch)
        versions = [one.weight_versions for one in batch]
        self._versions.update(*versions)
        counts["mixed_versions"] += sum(len(one) > 1 for one in versions)

    def result(self, *, elapsed_seconds: float | None = None) -> dict[str, float]:
        """Return the metrics so far, in the order of `METRICS`.

        Args:
            elapsed_seconds: Wall-clock time of the run, for throughput. None omits throughput: the
                durations of overlapping episodes do not determine it.
        """
        self._fold()
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
        self._fold()
        return {
            name: self._distributions[name].histogram()
            for name in ("reward", "turns", "tokens/response", "seconds/episode")
            if self._distributions[name].count
        }

    def _add_rewards(self, batch: Iterable[EpisodeFacts]) -> None:
        rewarded: list[EpisodeFacts] = []
        rewards: list[float] = []
        terms: defaultdict[str, list[float]] = defaultdict(list)
        for one in batch:
            group = None if one.group_id is None else self._groups[one.group_id]
            if one.reward is None:
                continue
            rewarded.append(one)
            rewards.append(one.reward)
            if group is not None:
                group.extend((one.reward,))
            for name, value in one.reward_terms.items():
                terms[name].append(value)
        self._distributions["reward"].extend(rewards)
        for name, values in terms.items():
            self._terms[name].extend(values)
        counts = self._counts
        counts["ungraded"] += sum(one.is_ungraded for one in rewarded)
        counts["successes"] += sum(one.success is True for one in rewarded)
        counts["judged"] += sum(one.success is not None for one in rewarded)
        counts["truncated"] += sum(one.is_truncated for one in rewarded)

    def _add_parked(self, batch: Iterable[EpisodeFacts]) -> None:
        """Track parked and unparked episodes separately."""
        tokens: defaultdict[str, list[float]] = defaultdict(list)
        for one in batch:
            kind = "resumed" if one.times_parked else "straight"
            tokens[f"{kind} tokens"].append(one.response_tokens)
            if one.reward is not None:
                tokens[f"{kind} reward"].append(one.reward)
        for name, values in tokens.items():
            self._tails[name].extend(values)

    def _episode_metrics(self) -> dict[str, float]:
        counts, reward = self._counts, self._distributions["reward"]
        metrics: dict[str, float] = {
            "episodes": counts["episodes"],
            "episodes/rewarded": reward.count,
            "episodes/faulted": counts["is_faulted"],
        }
        if counts["episodes"]:
            metrics["episodes/faulted_share"] = counts["is_faulted"] / counts["episodes"]
        metrics["episodes/aborted"] = counts["is_aborted"]
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
        for prefix in (
            "speaker",
            "rewrite",
            "agent/sequences",
            "agent/untrained_tokens",
            "agent/unenforced",
        ):
            metrics |= self._by_kind(prefix)
        return metrics

    def _by_kind(self, prefix: str) -> dict[str, float]:
        kinds = sorted(self._kinds[prefix].items())
        return {f"{prefix}/{kind}": float(n) for kind, n in kinds}

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
            "tokens/trained": counts["trained_tokens"],
        }
        if sampled := named["tokens/response"].total:
            metrics["tokens/trained_share"] = counts["trained_tokens"] / sampled
        if counts["stale_tokens"]:
            metrics["tokens/stale"] = counts["stale_tokens"]
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
        sanity = self._kinds["sanity"]
        metrics |= {f"sanity/{k}": sanity[k] for k in SanityStatus if sanity[k]}
        if observations := self._counts["observations"]:
            checked = sanity.total() - sanity[SanityStatus.UNCHECKED]
            # One that differs is a fault, and not among the observations of the record.
            metrics["sanity/checked_share"] = min(1.0, checked / observations)
        if long := self._counts["long_observations"]:
            metrics["sanity/long/observations"] = long
            metrics["sanity/long/checked"] = self._counts["long_checked"]
        return metrics | self._by_kind("retry") | self._by_kind("fault")

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
