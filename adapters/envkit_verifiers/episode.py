"""One episode: the library's own episode, paused whenever it asks its client for a reply."""

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind, describe
from envkit.grading import UngradedError, asettle, finite_reward, idle_answers, is_unreachable
from envkit.reply import Reply
from envkit.toolcalls import ParsedReply
from envkit_verifiers.client import Respond, context_of
from envkit_verifiers.loading import Loaded, failures, library
from envkit_verifiers.messages import write_response
from envkit_verifiers.serving import EPISODE

_SHOWN: Final = 500
_CUT_STOPS: Final = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
"""Stop conditions of the library that truncate an episode."""
_GRADING_STOPS: Final = ("finalize_timeout", "scoring_timeout")
_PASSING: Final = ("InterceptionError", "ProviderError", "SandboxError", "TunnelError")
"""Names of the library's errors that another attempt may not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The library waits for a reply."""

    prompt: list[Any]
    """The whole conversation, as the library's messages."""
    tools: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The library's episode is over and scored."""

    reward: float
    terms: Mapping[str, float]
    """Weighted results of the reward functions; they add up to the reward."""
    metrics: Mapping[str, float]
    stop: str
    """Name of the stop condition."""
    is_cut: bool
    failure: str | None = None
    """Why what the policy did could not be scored; None if it was."""


class LibraryEpisode:
    """An episode of the library. All methods run on one event loop."""

    def __init__(self, loaded: Loaded, row: Mapping[str, Any]) -> None:
        """Prepare the episode of a task; `advance` starts it."""
        self._loaded, self._row = loaded, row
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._reply: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._fault: EnvFault | None = None

    async def advance(self, response: Any = None) -> Asked | Ended:  # noqa: ANN401
        """Pass the requested reply and run to the next request or the end.

        Args:
            response: The library's `Response`; None to begin.

        Raises:
            EnvFault: The environment or its scoring failed.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._play(), name=EPISODE)
        elif self._reply is not None:
            self._reply.set_result(response)
        asked = asyncio.create_task(self._asked.get())
        try:
            await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            return self._task.result()
        except EnvFault:
            raise
        except Exception as error:
            raise EnvFault(
                f"the verifiers environment raised {describe(error)[:_SHOWN]}",
                kind=FaultKind.PERMANENT,
            ) from error
        finally:
            asked.cancel()

    async def stop(self) -> None:
        """Cancel the episode; the library cleans up."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task

    async def ask(self, prompt: list[Any], tools: list[Any] | None) -> Any:  # noqa: ANN401
        """Hold the library's request until a reply is available.

        Raises:
            EnvFault: It requests a second reply concurrently.
        """
        if self._reply is not None:
            self._fault = EnvFault(
                "the verifiers environment must request one reply at a time, got a second "
                "concurrent request",
                kind=FaultKind.PERMANENT,
            )
            raise self._fault
        self._reply = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(Asked(prompt=list(prompt), tools=list(tools or ())))
        try:
            return await self._reply
        finally:
            self._reply = None

    async def _play(self) -> Ended:
        try:
            played = await _played(self._loaded, self._row, self.ask)
        finally:
            if self._fault is not None:  # the library took it for a failure of its model
                raise self._fault
        ended: Ended | None = None

        async def grade() -> float:
            nonlocal ended
            ended = played.scored()
            return ended.reward

        settled = await asettle(
            grade,
            untouched=self._score_nothing,
            grader=f"verifiers {id(self._loaded)}",  # loaded environments are kept
            task=self._row,
        )
        return ended or played.ended(reward=0.0, terms={}, failure=settled.failure)

    async def _score_nothing(self) -> None:
        """Score the task for a policy that only says something that can be read.

        Raises:
            UngradedError: Nothing that it says can be scored.
            EnvFault: A server failed.
        """
        failure = UngradedError("")
        for text in idle_answers(self._row):
            reply = Reply(text=text)
            response = write_response(library(), reply, ParsedReply(text=text), 0)

            async def say(prompt: list[Any], tools: list[Any] | None, said: Any = response) -> Any:  # noqa: ANN401
                del prompt, tools
                return said.model_copy(deep=True)

            try:
                (await _played(self._loaded, self._row, say)).scored()
            except UngradedError as error:
                failure = error
            except EnvFault as fault:  # the environment cannot read it
                if fault.kind is not FaultKind.PERMANENT:
                    raise
                failure = UngradedError(str(fault))
            else:
                return
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """An episode that the library played to its end."""

    trace: Any
    """Its record of what the policy's agent did."""
    failed: Exception | None
    """What the scoring raised."""

    def scored(self) -> Ended:
        """Return the episode with its score.

        Raises:
            UngradedError: The scoring failed, or gave no finite number.
            EnvFault: A server that it asks failed.
        """
        if self.failed is not None:
            raise _failure(self.failed) from self.failed
        if self.trace.is_timeout:
            raise UngradedError(f"its scoring ran past its deadline: {self.trace.stop_condition}")
        reward = finite_reward(self.trace.reward)
        found = self.trace.rewards.items()
        terms = {name: one.value for name, one in found if one is not None and one.weight != 0}
        if not math.isclose(sum(terms.values()), reward, abs_tol=1e-6):
            terms = {"reward": reward}
        return self.ended(reward=reward, terms=terms)

    def ended(
        self, *, reward: float, terms: Mapping[str, float], failure: str | None = None
    ) -> Ended:
        """Return the episode with a score from elsewhere."""
        stop = str(self.trace.stop_condition or "")
        metrics = {} if failure is not None else self.trace.metrics
        return Ended(
            reward=reward,
            terms=terms,
            metrics={key: float(one) for key, one in metrics.items() if one is not None},
            stop=stop,
            is_cut=stop in _CUT_STOPS,
            failure=failure,
        )


async def _played(loaded: Loaded, row: Mapping[str, Any], respond: Respond) -> _Played:
    """Play a whole episode.

    Raises:
        EnvFault: It failed before its scoring.
    """
    noted: list[Exception] = []
    token = failures.set(noted)
    try:
        episode: Any = await loaded.env.run_episode(loaded.task(row), context_of(respond))
    finally:
        failures.reset(token)
    traces = [trace for trace in episode.traces if trace.agent.name == loaded.seat]
    if not noted:
        _check(episode, traces)
    if not traces:
        raise _failure(noted[0]) from noted[0]
    return _Played(trace=traces[-1], failed=noted[0] if noted else None)


def _check(episode: Any, traces: list[Any]) -> None:  # noqa: ANN401
    """Reject an episode that failed in the library.

    Raises:
        EnvFault: It recorded an error, exceeded a deadline, or has no rollout of the policy.
    """
    is_late = episode.is_timeout or any(
        trace.is_timeout and trace.stop_condition not in _GRADING_STOPS for trace in traces
    )
    if is_late:
        raise EnvFault(
            "the verifiers environment ran past its own timeout, which counts the time that the "
            "policy takes; load it without that timeout, and use the rollout's limits instead",
            kind=FaultKind.TIMEOUT,
        )
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        first = errors[0]
        raise EnvFault(
            f"the verifiers environment ended by {first.type}: {first.message}"[:_SHOWN],
            kind=FaultKind.TRANSIENT if first.type in _PASSING else FaultKind.PERMANENT,
        )
    if not traces:
        raise EnvFault(
            "the verifiers environment ended without asking its policy", kind=FaultKind.PERMANENT
        )


def _failure(error: Exception) -> Exception:
    reason = f"the verifiers environment cannot be scored: {describe(error)}"
    cause = error.__cause__
    if cause is not None:
        reason = f"{reason}, caused by {describe(cause)}"
    if is_unreachable(error):
        return EnvFault(reason[:_SHOWN], kind=FaultKind.GRADER)
    return UngradedError(reason[:_SHOWN])
