"""Prometheus metrics of a run, served over HTTP during the run."""

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from envkit.access import check_port
from envkit.errors import MissingDependencyError, ServiceError
from envkit.metrics import EpisodeFacts
from envkit.trajectory.trajectory import Trajectory

_REWARDS: Final = (-1.0, -0.5, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 2.0, 5.0)
_TURNS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200)
_SECONDS: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_PART_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)


class PrometheusSink:
    """Counters, gauges and histograms under `http://ADDRESS:PORT/metrics` until it is closed.

    Counters and histograms have the label `env`. `envkit_metric{name=...}` holds the latest metrics
    of `write_metrics`.
    """

    def __init__(
        self,
        *,
        port: int = 9090,
        address: str = "127.0.0.1",
        in_flight: Callable[[], float] | None = None,
        asked: Callable[[], float] | None = None,
    ) -> None:
        """Open the endpoint.

        Args:
            port: 0 picks a free port.
            address: Address to listen on; "0.0.0.0" lets other machines read it.
            in_flight: Returns the number of running episodes, such as `lambda: state.in_flight`.
                Called on a thread of the endpoint. None omits the gauge.
            asked: Returns the number of requested episodes.

        Raises:
            MissingDependencyError: prometheus_client is not installed.
            ConfigurationError: The port is out of range.
            ServiceError: The port is taken or not permitted.
        """
        check_port(port)
        try:
            client: Any = import_module("prometheus_client")
        except ImportError as error:
            raise MissingDependencyError.for_extra(
                "the sink for Prometheus", "prometheus-client", "prometheus"
            ) from error
        self._registry: Any = client.CollectorRegistry()
        self._instruments = _Instruments(client, self._registry)
        for name, text, read in (
            ("envkit_episodes_in_flight", "Running episodes", in_flight),
            ("envkit_episodes_asked", "Requested episodes", asked),
        ):
            if read is not None:
                client.Gauge(name, text, registry=self._registry).set_function(read)
        try:
            self._server, self._thread = client.start_http_server(
                port, addr=address, registry=self._registry
            )
        except OSError as error:
            raise ServiceError(
                f"metrics cannot be served at {address}:{port}: {error}; choose another port, or 0 "
                "for a free one"
            ) from error
        self._is_closed = False
        self.url: Final = f"http://{address}:{self._server.server_port}/metrics"

    def write(self, trajectory: Trajectory) -> None:
        """Count one episode."""
        self._instruments.count(trajectory)

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Replace the metrics with these."""
        named = metrics if step is None else {"step": step, **metrics}
        self._instruments.metric.clear()
        for name, value in named.items():
            self._instruments.metric.labels(name=name).set(value)

    def close(self) -> None:
        """Close the endpoint."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Instruments:
    """Instruments for episodes."""

    def __init__(self, client: Any, registry: Any) -> None:  # noqa: ANN401  # untyped here
        def counter(name: str, text: str, *labels: str) -> Any:  # noqa: ANN401
            return client.Counter(f"envkit_{name}", text, ["env", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: Any, *labels: str) -> Any:  # noqa: ANN401
            edges = (*buckets, math.inf)
            return client.Histogram(
                f"envkit_{name}", text, ["env", *labels], registry=registry, buckets=edges
            )

        self.episodes = counter("episodes", "Finished episodes", "stop_reason")
        self.successes = counter("successes", "Episodes that solved their task")
        self.judged = counter("judged", "Episodes for which success is defined")
        self.faults = counter("faults", "Episodes ended by infrastructure", "kind", "where")
        self.retries = counter("retries", "Recovered failures", "kind")
        self.turns = counter("turns", "Model replies")
        self.parse_errors = counter("parse_errors", "Replies that could not be parsed")
        self.tool_calls = counter("tool_calls", "Parsed tool calls")
        self.tokens = counter("tokens", "Tokens in ledgers and their prompts", "kind")
        self.images = counter("images", "Images in ledgers")
        self.reward = histogram("episode_reward", "Reward per episode", _REWARDS)
        self.length = histogram("episode_turns", "Replies per episode", _TURNS)
        self.seconds = histogram("episode_duration_seconds", "Duration of an episode", _SECONDS)
        self.part = histogram(
            "turn_duration_seconds", "Duration of each part of a turn", _PART_SECONDS, "part"
        )
        self.metric = client.Gauge(
            "envkit_metric", "Metrics of the run by name", ["name"], registry=registry
        )

    def count(self, trajectory: Trajectory) -> None:
        facts, env = EpisodeFacts.of(trajectory), trajectory.env_id
        self.episodes.labels(env=env, stop_reason=facts.stop_reason).inc()
        if facts.fault is not None:
            self.faults.labels(env=env, kind=facts.fault["kind"], where=facts.fault["where"]).inc()
        if facts.reward is not None:
            self.reward.labels(env=env).observe(facts.reward)
        if facts.success is not None:
            self.successes.labels(env=env).inc(facts.success)
            self.judged.labels(env=env).inc()
        self.length.labels(env=env).observe(facts.turns)
        self.seconds.labels(env=env).observe(facts.duration_seconds)
        for kind, number in facts.retries.items():
            self.retries.labels(env=env, kind=kind).inc(number)
        tokens = {
            "sampled": facts.response_tokens,
            "observed": facts.observation_tokens,
            "trained": facts.trained_tokens,
            "prompt": facts.prompt_tokens,
            "cached": facts.cached_tokens,
        }
        for kind, number in tokens.items():
            self.tokens.labels(env=env, kind=kind).inc(number)
        self.images.labels(env=env).inc(facts.images)
        for part, values in facts.seconds.items():
            for value in values:
                self.part.labels(env=env, part=part).observe(value)
        # The facts of a fork count the turns before it too; a counter must not count them twice.
        turns = trajectory.own_turns
        self.turns.labels(env=env).inc(len(turns))
        self.parse_errors.labels(env=env).inc(sum(t.parse_error is not None for t in turns))
        self.tool_calls.labels(env=env).inc(sum(t.tool_call is not None for t in turns))
