"""An environment composed of tools, tasks and a reward."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, ObservationRole, Policy, Turn
from envkit.errors import ContractError, DatasetError
from envkit.messages import Message, message
from envkit.rewards import RewardContext, Rewards, Term
from envkit.rewards.term import Score
from envkit.tasks import ListSource, Task, TaskSource
from envkit.toolcalls import ParsedReply, ToolCallFormat, parse_tool_calls
from envkit.tools import ToolSpec
from envkit.toolset import CallStatus, ToolResult, ToolRunner, ToolSet
from envkit.toolset.result import plain
from envkit.turns import observe

_MAX_SENTENCE: Final = 400
_MAX_SENTENCES: Final = 8


class ToolEnv(AsyncEnv):
    """Any tools, any tasks, any reward.

        multiply = envkit.tool(product)  # any function with types and a Google docstring

        def is_right(context: RewardContext) -> float:
            return float(context.answer == context.task["answer"])

        tasks = [{"prompt": "What is 12 times 12?", "answer": "144"}]
        env = envkit.ToolEnv([multiply], tasks, is_right)

    Task: `prompt`, the first observation; and optionally `tools`, a list of names or JSON schemas
        that selects and describes the tools for this task.
    Observation: the prompt; then the results or errors of the calls. Images that a tool returns are
        shown.
    Action: a reply with one or more calls, which run concurrently; or the final answer.
    Reward: the sum of the reward's terms when the episode ends; 0.0 before. `RewardContext.info`
        has `turns`, `tool_calls` (how many ran) and `tool_errors` (how many failed, by kind).
    Episode end: a reply without a call terminates the episode. `max_turns` replies truncate it, and
        the answer is then empty.
    Budget: `max_turns` replies; for calls see `ToolSet`.
    Info: `tool_call`, the first call of the reply; `tool_results`, name and status of each;
        `tool_errors`, failures in the episode so far by kind: unreadable, invalid, crashed,
        timeout, dropped. `parse_error` is set if the model wrote an invalid call, not if a tool
        failed.
    """

    def __init__(
        self,
        tools: ToolSet | Sequence[ToolSpec | Callable[..., Any]],
        tasks: TaskSource | Sequence[Mapping[str, Any]],
        reward: Rewards | Score | Term | Sequence[Term],
        *,
        system_prompt: str | None = None,
        prompt: Callable[[Task], Turn | str] | None = None,
        max_turns: int = 8,
        format: str = ToolCallFormat.AUTO,  # noqa: A002  # as in parse_tool_calls
        feedback_role: ObservationRole = "tool",
        is_pure: bool = False,
        oracle: Policy | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            tools: Functions, tools or a `ToolSet`, such as one from `load_tools`.
            tasks: A source, or the tasks themselves.
            reward: A function of the `RewardContext`, terms, or `Rewards`; may be asynchronous.
            system_prompt: None means no system prompt; chat templates already describe the tools.
            prompt: Builds the first observation, with images if needed; None uses
                `task["prompt"]`.
            max_turns: Replies per episode.
            format: How the model writes calls, a `ToolCallFormat`.
            feedback_role: Role of results without images; "user" for chat templates without a tool
                role.
            is_pure: Whether tools and reward depend only on their arguments. If True, the
                environment declares itself deterministic and safe to replay.
            oracle: A policy that solves the tasks, for tests and demos; None means no oracle.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A tool, a limit, a term or an argument is invalid.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        parse_tool_calls("", format)  # reject an unknown format now
        self._all_tools = ToolSet.of(tools)
        self._runner = ToolRunner(self._all_tools)
        self.tools = self._all_tools.specs
        self.tasks = ListSource(tasks) if isinstance(tasks, Sequence) else tasks
        self.system_prompt = system_prompt
        self.rewards = Rewards.of(reward)
        if is_pure:
            self.capabilities = Capabilities(  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by their tools
                replay_safe=True, deterministic=True
            )
        self._prompt, self._format, self._oracle = prompt, format, oracle
        self._feedback_role: ObservationRole = feedback_role
        self._messages: list[Message] = []
        self._errors: Counter[str] = Counter()
        self._calls = 0

    def oracle(self) -> Policy:
        """Return the oracle passed to the constructor.

        Raises:
            ConfigurationError: There is no oracle.
        """
        return super().oracle() if self._oracle is None else self._oracle

    async def on_areset(self, task: Task) -> Turn:
        """Offer the task's tools and show its prompt.

        Raises:
            DatasetError: The task has no prompt, or names an unknown tool.
        """
        chosen = self._all_tools
        if task.get("tools") is not None:
            chosen = self._all_tools.resolve(task["tools"])
        self._runner.tools, self.tools = chosen, chosen.specs
        self._errors, self._calls = Counter(), 0
        turn = self._first(task)
        opening = observe(turn, "ToolEnv.prompt")
        self._messages = [self.format_observation(opening)]
        return turn

    def _first(self, task: Task) -> Turn:
        if self._prompt is None:
            if not isinstance(task.get("prompt"), str):
                raise DatasetError(
                    f"a task of ToolEnv needs the string 'prompt', got the keys {sorted(task)}; "
                    "or pass prompt=, a function that builds it"
                )
            return Turn(task["prompt"])
        made: Any = self._prompt(task)  # an author's function may return anything
        if not isinstance(made, Turn | str):
            raise ContractError(
                f"ToolEnv.prompt must return envkit.Turn or str, got {type(made).__name__}"
            )
        return made if isinstance(made, Turn) else Turn(made)

    async def on_aturn(self, response_text: str) -> Turn:
        """Run the reply's calls, or accept the reply as the final answer.

        Raises:
            EnvFault: A tool's backend failed, or a term of the reward could not be computed.
        """
        reply = parse_tool_calls(self.reply, self._format, tools=self.tools)
        self._messages.append(message("assistant", response_text))
        if not reply.calls and not reply.errors:
            turn = Turn("The answer was received.", done=True)
            return await self._end(turn, reply.text, {})
        results = await self._runner.run(reply.calls)
        self._count(reply, results)
        turn = Turn(
            _text_of(reply, results),
            images=tuple(image for result in results for image in result.images),
            role=self._feedback_role if results else "user",
        )
        info = self._info_of(reply, results)
        if self.turn + 1 >= self.max_turns:
            return await self._end(turn, "", info)
        observation = observe(turn, "ToolEnv.on_aturn")
        self._messages.append(self.format_observation(observation))
        return Turn(turn.text, images=turn.images, role=turn.role, info=info)

    async def aclose(self) -> None:
        """Stop the threads of synchronous tools."""
        await self._runner.aclose()

    async def facts(self, answer: str) -> dict[str, Any]:
        """Return what the reward reads of the state that the episode left; nothing by default.

        Args:
            answer: The final answer; empty if the episode was truncated.

        Returns:
            Deterministic JSON data, for `RewardContext.info` and the last turn's info.
        """
        del answer
        return {}

    def _count(self, reply: ParsedReply, results: Sequence[ToolResult]) -> None:
        failed = [result.status for result in results if result.status is not CallStatus.OK]
        self._errors.update(status.value for status in failed)
        self._errors["unreadable"] += len(reply.errors)
        self._errors["dropped"] += len(reply.calls) - len(results)
        self._calls += sum(result.status is not CallStatus.INVALID for result in results)

    def _info_of(self, reply: ParsedReply, results: Sequence[ToolResult]) -> dict[str, Any]:
        wrong = [result.text for result in results if result.status is CallStatus.INVALID]
        wrong += [plain(error, _MAX_SENTENCE) for error in reply.errors[:1]]
        return {
            "tool_call": reply.calls[0].recorded() if reply.calls else None,
            "tool_results": [
                {"name": result.name, "status": result.status.value} for result in results
            ],
            "tool_errors": self._error_counts(),
            "parse_error": wrong[0] if wrong else None,
        }

    def _error_counts(self) -> dict[str, int]:
        return {kind: count for kind, count in sorted(self._errors.items()) if count}

    async def _end(self, turn: Turn, answer: str, info: Mapping[str, Any]) -> Turn:
        counts = {
            "turns": self.turn + 1,
            "tool_calls": self._calls,
            "tool_errors": self._error_counts(),
        }
        facts = await self.facts(answer)
        context = RewardContext(
            task=self.task, answer=answer, messages=tuple(self._messages), info={**counts, **facts}
        )
        nothing: dict[str, Any] = {"turns": 1, "tool_calls": 0, "tool_errors": {}}
        reward = await self.rewards.ascore(context, untouched=replace(context, info=nothing))
        return Turn(
            turn.text,
            images=turn.images,
            role=turn.role,
            reward=reward.total,
            done=turn.done,
            info={"tool_errors": counts["tool_errors"], **facts, **info, **reward.info()},
        )


def _text_of(reply: ParsedReply, results: Sequence[ToolResult]) -> str:
    """Return the observation's text: the results in the order of the calls, then the problems.

    Several results are labelled with the names of their tools; a single one is not.
    """
    problems = [plain(error, _MAX_SENTENCE) for error in reply.errors[:_MAX_SENTENCES]]
    if (more := len(reply.errors) - len(problems)) > 0:
        problems.append(f"{more} more calls cannot be read.")
    if (dropped := len(reply.calls) - len(results)) > 0:
        problems.append(
            f"{dropped} more calls were not run: at most {len(results)} are run in one reply."
        )
    if len(results) == 1 and not problems:
        return results[0].text
    shown = 0
    blocks: list[str] = []
    for number, result in enumerate(results, start=1):
        pictures = [f"[image {shown + 1 + n}]" for n in range(len(result.images))]
        shown += len(pictures)
        lines = [*pictures, result.text] if result.text else pictures
        blocks.append("\n".join([f"Result {number}, {result.name}:", *lines]))
    return "\n\n".join([*blocks, *problems])
