"""One episode: the library's own rollout, paused whenever it asks its client for a reply."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind, describe
from envkit.grading import UngradedError, asettle, finite_reward, idle_answers, is_unreachable
from envkit.reply import Reply
from envkit.toolcalls import ParsedReply
from envkit_verifiers.loading import library, rubrics_of, scores
from envkit_verifiers.messages import write_response

_SHOWN: Final = 500
_MODEL: Final = "policy"
_CUT_STOPS: Final = ("max_turns_reached", "max_total_completion_tokens_reached", "prompt_too_long")
"""Stop conditions of the library that truncate an episode."""
Respond = Callable[[list[Any], list[Any] | None], Awaitable[Any]]
"""Returns the reply to a conversation with tools, as the library's response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The library waits for a reply."""

    prompt: list[Any]
    """The whole conversation, as the library's messages."""
    tools: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The library's rollout is over and scored."""

    reward: float
    terms: Mapping[str, float]
    """Weighted results of the reward functions; they add up to the reward."""
    metrics: Mapping[str, float]
    stop: str
    """Name of the stop condition."""
    is_cut: bool
    last: list[Any]
    """The environment's final messages; usually empty."""
    failure: str | None = None
    """Why what the policy did could not be scored; None if it was."""


class LibraryRollout:
    """A rollout of the library. All methods run on one event loop."""

    def __init__(self, env: Any, row: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Prepare a rollout of a dataset row; `advance` starts it."""
        self._env, self._row = env, row
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._reply: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[Any] | None = None

    async def advance(self, response: Any = None) -> Asked | Ended:  # noqa: ANN401
        """Pass the requested reply and run to the next request or the end.

        Args:
            response: The library's `Response`; None to begin.

        Raises:
            EnvFault: The environment or its rubric failed.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._play())
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
        """Cancel the rollout; the library cleans up."""
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
            raise EnvFault(
                "the verifiers environment must request one reply at a time, got a second "
                "concurrent request",
                kind=FaultKind.PERMANENT,
            )
        self._reply = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(Asked(prompt=list(prompt), tools=list(tools or ())))
        try:
            return await self._reply
        finally:
            self._reply = None

    async def _play(self) -> Ended:
        state = await _played(self._env, self._row, self.ask)
        ended: Ended | None = None

        async def grade() -> float:
            nonlocal ended
            ended = await _scored(self._env, state)
            return ended.reward

        settled = await asettle(
            grade,
            untouched=self._score_nothing,
            grader=f"verifiers {id(self._env)}",  # loaded environments are kept
            task=self._row,
        )
        return ended or _ended(state, reward=0.0, terms={}, failure=settled.failure)

    async def _score_nothing(self) -> None:
        """Score the row for a policy that only says something that can be read.

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
                return said

            try:
                await _scored(self._env, await _played(self._env, self._row, say))
            except UngradedError as error:
                failure = error
            except EnvFault as fault:  # the environment cannot read it
                if fault.kind is not FaultKind.PERMANENT:
                    raise
                failure = UngradedError(str(fault))
            else:
                return
        raise failure


async def _played(env: Any, row: Mapping[str, Any], respond: Respond) -> Any:  # noqa: ANN401
    """Return the state of a whole rollout.

    Raises:
        EnvFault: It failed in the library.
    """
    state = await env.rollout(row, _client(respond), _MODEL, {})
    _check_state(state)
    return state


async def _scored(env: Any, state: Any) -> Ended:  # noqa: ANN401
    """Score a rollout.

    Raises:
        UngradedError: The rubric failed, or gave no finite number.
        EnvFault: A server that the rubric asks failed.
    """
    noted: dict[object, float | Exception] = {}
    token = scores.set(noted)
    try:
        await env.rubric.score_rollout(state)
    except Exception as error:
        raise _failure("its rubric", error) from error
    finally:
        scores.reset(token)
        await env.rubric.cleanup(state)
    terms = _terms(env, noted)
    reward = finite_reward(state["reward"])
    if not math.isclose(sum(terms.values()), reward, abs_tol=1e-6):
        terms = {"rubric": reward}  # a rubric with its own scoring
    return _ended(state, reward=reward, terms=terms)


def _ended(
    state: Any,  # noqa: ANN401
    *,
    reward: float,
    terms: Mapping[str, float],
    failure: str | None = None,
) -> Ended:
    stop = str(state.get("stop_condition") or "")
    metrics = {} if failure is not None else state["metrics"] or {}
    return Ended(
        reward=reward,
        terms=terms,
        metrics={key: float(value) for key, value in metrics.items()},
        stop=stop,
        is_cut=stop in _CUT_STOPS,
        last=list(state.get("final_env_response") or ()),
        failure=failure,
    )


def _terms(env: Any, noted: Mapping[object, float | Exception]) -> dict[str, float]:  # noqa: ANN401
    """Return the weighted results by the names of their functions.

    Raises:
        UngradedError: A function with a weight failed.
        EnvFault: A server that it asks failed.
    """
    terms: dict[str, float] = {}
    rest = dict(noted)
    for rubric in rubrics_of(env):
        for function, weight in zip(rubric.funcs, rubric.weights, strict=True):
            result = rest.pop(function, None)
            if weight == 0 or result is None:
                continue
            name = str(getattr(function, "__name__", "reward"))
            if isinstance(result, Exception):
                raise _failure(f"its reward function {name!r}", result) from result
            terms[name] = terms.get(name, 0.0) + weight * result
    for result in rest.values():
        if isinstance(result, Exception):
            raise _failure("its rubric", result) from result
    return terms


def _check_state(state: Any) -> None:  # noqa: ANN401
    """Reject a rollout that failed in the library.

    Raises:
        EnvFault: It recorded an error, or exceeded its own timeout.
    """
    error: Any = state.get("error")
    if isinstance(error, BaseException):
        is_passing = isinstance(error, library().errors.InfraError)
        cause = "" if error.__cause__ is None else f", caused by {describe(error.__cause__)}"
        raise EnvFault(
            f"the verifiers environment ended by {describe(error)}{cause}"[:_SHOWN],
            kind=FaultKind.TRANSIENT if is_passing else FaultKind.PERMANENT,
        ) from error
    if state.get("timed_out"):
        raise EnvFault(
            "the verifiers environment ran past its own timeout_seconds, which counts the time "
            "that the policy takes; load it without that timeout, and use the rollout's limits "
            "instead",
            kind=FaultKind.TIMEOUT,
        )


def _failure(what: str, error: BaseException) -> Exception:
    reason = f"the verifiers environment cannot be scored: {what} raised {describe(error)}"[:_SHOWN]
    if is_unreachable(error):
        return EnvFault(reason, kind=FaultKind.GRADER)
    return UngradedError(reason)


def _client(respond: Respond) -> Any:  # noqa: ANN401
    """Return a client that gets replies from a function; its class needs the library."""
    base: Any = library().Client

    class PolicyClient(base):
        """Returns the policy's replies."""

        async def get_response(
            self,
            prompt: list[Any],
            model: str,
            sampling_args: object,
            tools: list[Any] | None = None,
            **kwargs: object,
        ) -> Any:  # noqa: ANN401
            """Wait for a reply."""
            del model, sampling_args, kwargs
            return await respond(prompt, tools)

    for name in base.__abstractmethods__:  # server methods, unused because there is no server
        setattr(PolicyClient, name, _no_server)
    PolicyClient.__abstractmethods__ = frozenset()
    return PolicyClient(None)


def _no_server(*args: object, **kwargs: object) -> Any:  # noqa: ANN401
    del args, kwargs
    raise NotImplementedError("the policy's replies come from the rollout, not from a server")
