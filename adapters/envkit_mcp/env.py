"""Tasks over the tools of MCP servers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from envkit.env import ObservationRole, Turn
from envkit.errors import ConfigurationError, DatasetError
from envkit.grading import asettle
from envkit.rewards import Rewards, Term
from envkit.rewards.term import Score
from envkit.rollout.setting_types import built
from envkit.tasks import Task, TaskSource
from envkit.tool_env import ToolEnv
from envkit.toolcalls import ToolCallFormat
from envkit.toolset import ToolSet
from envkit_mcp.checks import Check, all_pass, count, read_checks
from envkit_mcp.declaration import McpLimits, McpServer, read_servers
from envkit_mcp.tools import McpTools

_DEFAULT_TURNS: Final = 16


class McpEnv(ToolEnv):
    """Solve tasks with the tools of MCP servers.

    Each episode has its own folder and, except for shared servers, its own server processes.

    Task: `prompt`; optionally `files`, text by path in the folder, `checks` (see
        `envkit_mcp.checks`), and `tools`, the names to offer.
    Observation: the prompt; then the results or errors of the calls, with images.
    Action: a reply with calls, which run one after another; or the final answer.
    Reward: 1.0 at the end if every check passes, else 0.0; or the terms of `reward`.
    Faults: a server that cannot be used, that dies by itself, or whose HTTP fails. A call that ends
        a server and then a fresh one is an error for the policy.
    Episode end, budget and info: as for `ToolEnv`. The last turn's info has `checks` and
        `checks_passed`, their numbers.
    Source: Model Context Protocol, https://modelcontextprotocol.io; its Python SDK `mcp` 2.
    """

    def __init__(
        self,
        *,
        servers: Mapping[str, Any] | Sequence[McpServer] = (),
        tasks: TaskSource | Sequence[Mapping[str, Any]] | None = None,
        folder: str | None = None,
        reward: Rewards | Score | Term | Sequence[Term] | None = None,
        limits: McpLimits | Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        max_turns: int = _DEFAULT_TURNS,
        call_format: str = ToolCallFormat.AUTO,
        feedback_role: ObservationRole = "tool",
        render_mode: str | None = None,
    ) -> None:
        """Describe the servers; each reset starts them.

        Args:
            servers: `{name: {"command": [...]}}` or `{name: {"url": ...}}`, with the fields of
                `McpServer`; required.
            tasks: The tasks; None plays only tasks that are given to `reset`.
            folder: Copied into each episode's folder; None starts with an empty one.
            reward: Terms, such as those of a judge's rubric; None pays for the checks. A term can
                read `checks` and `checks_passed` in `RewardContext.info`.
            limits: Fields of `McpLimits`; None uses the defaults.
            system_prompt: None means no system prompt.
            max_turns: Replies per episode.
            call_format: How calls are written, a `ToolCallFormat`.
            feedback_role: Role of results without images.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: An argument is invalid.
            MissingDependencyError: The package mcp is not installed.
        """
        declared = read_servers(servers)
        super().__init__(
            ToolSet(specs=()),
            [{"prompt": ""}] if tasks is None else tasks,
            all_pass if reward is None else reward,
            system_prompt=system_prompt,
            max_turns=max_turns,
            format=call_format,
            feedback_role=feedback_role,
            render_mode=render_mode,
        )
        if tasks is None:
            self.tasks = None
        if reward is None:
            self.default_threshold = 1.0
        self._template = None if folder is None else Path(folder).resolve()
        if self._template is not None and not self._template.is_dir():
            raise ConfigurationError(f"folder must be an existing folder, got {folder!r}")
        self._declared = declared
        self._limits = (
            limits if isinstance(limits, McpLimits) else built(McpLimits, limits or {}, "limits")
        )
        self._servers = McpTools(declared, self._limits)
        self._checks: tuple[Check, ...] = ()

    async def on_areset(self, task: Task) -> Turn:
        """Start the servers in a new folder, offer their tools and show the prompt.

        Raises:
            DatasetError: The task has no prompt, or a file or check that cannot be used.
            EnvFault: A server cannot be used.
        """
        self._checks = read_checks(task, [server.name for server in self._declared])
        files = _files_of(task)
        self._all_tools = await self._servers.start(files, template=self._template)
        try:
            for check in self._checks:
                if check.tool is not None and not self._servers.has_tool(check.server, check.tool):
                    raise DatasetError(
                        f"a check of a task must call a tool that the server {check.server!r} has, "
                        f"got {check.tool!r}"
                    )
            return await super().on_areset(task)
        except BaseException:
            await self._servers.stop(with_shared=False)
            raise

    async def on_aturn(self, response_text: str) -> Turn:
        """Run the reply's calls, or grade the final answer.

        Raises:
            EnvFault: A server failed, or a term of the reward could not be computed.
        """
        turn = await super().on_aturn(response_text)
        if turn.done or self.turn + 1 >= self.max_turns:
            await self._servers.stop(with_shared=False)
        return turn

    async def facts(self, answer: str) -> dict[str, Any]:
        """Return how many checks pass."""
        passed: list[bool] = []

        async def grade() -> float:
            passed.extend([await check.passes(answer, self._servers) for check in self._checks])
            return 0.0

        settled = await asettle(
            grade,
            untouched=self._check_untouched,
            grader=f"mcp {' '.join(server.identity for server in self._declared)}",
            task=self.task,
        )
        if settled.failure is not None:
            return {**count([False] * len(self._checks)), **settled.info()}
        return count(passed)

    async def aclose(self) -> None:
        """End the servers and remove the folder; safe to call twice."""
        await super().aclose()
        await self._servers.stop()

    async def _check_untouched(self) -> None:
        """Run the checks for a policy that does nothing, on servers of their own."""
        servers = McpTools(self._declared, self._limits)
        try:
            await servers.start(_files_of(self.task), template=self._template)
            for check in self._checks:
                await check.passes("", servers)
        finally:
            await servers.stop()


def _files_of(task: Task) -> dict[str, str]:
    files: object = task.get("files", {})
    if not isinstance(files, Mapping) or not all(
        isinstance(part, str) for pair in cast("Mapping[Any, Any]", files).items() for part in pair
    ):
        raise DatasetError(f"a task's files must map paths to texts, got {files!r:.200}")
    return dict(cast("Mapping[str, str]", files))
