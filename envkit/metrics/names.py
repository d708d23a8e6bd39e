"""The names of all metrics, in the order in which they are shown."""

from collections.abc import Mapping
from typing import Final

METRICS: Final[Mapping[str, str]] = {
    "episodes": "trajectories of every kind, faulted and aborted ones included",
    "episodes/rewarded": "those with a reward: neither faulted nor aborted",
    "episodes/faulted": "those that infrastructure ended; they have no reward",
    "episodes/aborted": "those that somebody stopped; they have no reward",
    "reward/mean": "over rewarded episodes",
    "reward/std": "over rewarded episodes; deviation of the values themselves",
    "reward/min": "over rewarded episodes",
    "reward/max": "over rewarded episodes",
    "success/rate": "share of rewarded episodes whose reward exceeds 0",
    "turns/mean": "model replies of an episode",
    "turns/p50": "median of replies",
    "turns/p95": "95th percentile of replies",
    "turns/max": "most replies of an episode",
    "tokens/prompt/mean": "tokens of an episode's first prompt, images expanded",
    "tokens/response/mean": "sampled tokens of an episode",
    "tokens/response/p95": "95th percentile of sampled tokens of an episode",
    "tokens/observation/mean": "tokens of an episode's observations, images expanded",
    "tokens/response/total": "sampled tokens of all episodes",
    "tokens/trained": "tokens with loss mask 1 in what a trainer gets",
    "tokens/logprobs_clamped": "log-probabilities a little above 0 that were set to 0",
    "tokens/cached_share": "share of all prompts' tokens that a prefix cache held",
    "images/mean": "images of an episode's ledger",
    "images/total": "images of all ledgers",
    "images/observation_bytes": "PNG bytes of images in observations after a reply, all episodes",
    "stop/<reason>": "episodes that ended for this `StopReason`; every reason that occurred",
    "stop/<reason>/share": "the same as a share of all episodes",
    "truncation/rate": "share of rewarded episodes that a limit ended",
    "tool_calls/mean": "tool calls of an episode that the environment understood",
    "parse_error/count": "turns whose reply was not understood",
    "parse_error/rate": "the same as a share of all turns",
    "retry/<kind>": "recovered failures of environment steps, by `FaultKind`",
    "retry/engine": "failed engine calls that were repeated",
    "retry/resample": "replies thrown away because they did not parse",
    "retry/restart": "episodes started again with a fresh environment",
    "fault/<kind>": "faulted episodes by `FaultKind`",
    "seconds/<part>/mean": "of a turn, for queue, generate, env, encode; of a whole episode",
    "seconds/<part>/p95": "95th percentile of the same",
    "throughput/tokens_per_second": "sampled tokens over the run's wall-clock time",
    "throughput/tokens_per_second_per_stream": "sampled tokens over the sum of generating times",
    "groups": "different group ids",
    "groups/zero_variance_share": "share of groups of two or more rewards that are all equal",
    "groups/reward_std": "mean over groups of the deviation of their rewards",
    "weight_versions": "different weight versions that were reported",
    "weight_versions/mixed_share": "share of episodes sampled by more than one weight version",
}
"""Every name and what it counts. `<reason>`, `<kind>` and `<part>` stand for a value.

A name without anything to measure is left out: no rewarded episode, no `reward/mean`."""
