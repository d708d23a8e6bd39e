"""The environment `harbor-v0`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from envkit.env import Capabilities, Env, ObservationRole, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.grading import Grade, settle
from envkit.marks import clip
from envkit.tasks import Task
from envkit_harbor.folders import FolderTasks, solution_of
from envkit_harbor.rewards import reward_of
from envkit_harbor.session import OWN_BACKEND, Ran, Session, Settings
from envkit_sandbox.commands import MAX_COMMANDS, Protocol, Reply, bash_tool, read, write

BASH: Final = bash_tool(
    "Run a command in a new shell in the task's container and return its output and exit code. "
    "Files and background processes stay between calls; the folder and variables do not."
)
_MAX_SENTENCES: Final = 4


class HarborEnv(Env):
    """Do a task of Harbor or Terminal-Bench in its container.

    Task: `{"name", "goal", "digest"}`: a folder with `task.toml`, by its path below `tasks`.
    Observation: the instruction; then the output and exit code of each command. Long output loses
        its middle.
    Action: one or more calls of `bash(command)`, or code blocks with the protocol "fenced". Each
        command runs in a new shell in the container's folder. A command past `command_seconds` is
        ended inside the container; the episode continues.
    Reward: when the episode ends, what the task's verifier wrote, as Harbor reads it: the number
        under `reward_key`, or the only one.
    Episode end: a reply without a command terminates; `max_turns` replies truncate. Both are
        graded, but an episode whose last reply cannot be parsed gets 0.0.
    Faults: a container that does not start, or is gone; a verifier that also fails on an untouched
        container. What the policy does to its own container is never a fault.
    Info: `exit_codes`, `parse_error`, `rewards` (all numbers of the verifier), and marks.
    Source: harbor 0.26.0 on PyPI.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, on_step_timeout="truncate"
    )
    """Neither deterministic nor replayed: commands read clocks and race with each other."""

    def __init__(
        self,
        *,
        tasks: str = "",
        backend: str = OWN_BACKEND,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
        variables: Sequence[str] = (),
        reward_key: str | None = None,
        ignore_unknown: bool = False,
        keep_processes: bool = False,
        command_seconds: float = 120.0,
        protocol: str = Protocol.TOOLS,
        feedback_role: ObservationRole = "tool",
        max_turns: int = 40,
        render_mode: str | None = None,
    ) -> None:
        """Read the task folders.

        Args:
            tasks: One task folder, or a folder with task folders at any depth; required.
            backend: "bubblewrap", which needs no image; or a backend of Harbor, such as "podman",
                "docker", "daytona", "modal", or "module:Class" of your own.
            options: Of "bubblewrap": `root` (a folder with a whole system; None uses this
                machine's `/usr`), `disk_mib`, `processes`, `memory_mib`. Of the others: Harbor's
                own `environment.kwargs`.
            python: An interpreter of Python 3.12 or newer that has Harbor; None uses this one.
            variables: Names of environment variables that the worker gets, such as a cloud's key.
                A task's files may read them.
            reward_key: The key of the reward if the verifier writes several; None means "reward".
            ignore_unknown: Play tasks whose file has keys or a version that Harbor does not know.
                Harbor does so without a word; False refuses them.
            keep_processes: Leave what the policy started running while the verifier runs, for tasks
                that ask for a service. Such a process can write the reward.
            command_seconds: Seconds that one command may take. The commands of a reply together
                may take twice as long.
            protocol: "tools" or "fenced".
            feedback_role: Role of results in the tools protocol. "user" for chat templates without
                a tool role.
            max_turns: Replies per episode.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range, or no task can be played.
            UnknownNameError: There is no such protocol, or option of "bubblewrap".
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if protocol not in list(Protocol):
            raise UnknownNameError.suggest("protocol", protocol, list(Protocol))
        if not 0 < command_seconds <= 86_400:  # a day
            raise ConfigurationError(
                f"command_seconds must be above 0 and at most 86400, got {command_seconds}"
            )
        if not tasks:
            raise ConfigurationError("harbor-v0 needs tasks=, a folder with task folders")
        self.protocol = Protocol(protocol)
        self.system_prompt = _system_prompt(self.protocol)
        is_tools = self.protocol is Protocol.TOOLS
        self.tools = (BASH,) if is_tools else ()
        self._role: ObservationRole = feedback_role if is_tools else "user"
        self._seconds, self._key = command_seconds, reward_key
        self._settings = Settings(
            backend=backend,
            options=options or {},
            python=python,
            variables=tuple(variables),
            ignore_unknown=ignore_unknown,
            keep_processes=keep_processes,
        )
        self._settings.check()
        self.tasks = self._folders = FolderTasks(Path(tasks))
        self._session: Session | None = None

    def oracle(self) -> Policy:
        """Return a policy that unpacks and runs the task's solution in one command.

        The task must have one.
        """

        def reply(context: PolicyContext) -> str:
            if context.turn > 0:
                return "Done."
            folder = self._folders.folder_of(context.task)
            return write(solution_of(folder.path), self.protocol)

        return reply

    def on_reset(self, task: Task) -> Turn:
        """Start the task's container.

        Raises:
            DatasetError: There is no such task, or its folder changed.
            EnvFault: The container did not start, or the task cannot be played here.
            MissingDependencyError: Harbor or a program is not installed.
        """
        folder = self._folders.folder_of(task)
        self.close()
        self._session = Session.start(folder, self._settings)
        return Turn(folder.goal, info={"name": task["name"]})

    def on_turn(self, response_text: str) -> Turn:
        """Run the reply's commands, or end the episode.

        Raises:
            EnvFault: The container is gone, or the grader failed.
        """
        assert self._session is not None
        reply = read(self.reply, self.protocol, BASH)
        if reply.is_last:
            marks = [{"kind": "answer", "text": clip(reply.text)}]
            return self._end("The episode is over.", {"exit_codes": [], "marks": marks}, done=True)
        ran = self._run(self._session, reply.commands[:MAX_COMMANDS])
        text = "\n\n".join([_shown(one, self._seconds) for one in ran] + self._problems(reply, ran))
        info: dict[str, Any] = {
            "tool_call": reply.calls[0].to_json() if reply.calls else None,
            "exit_codes": [one.code for one in ran],
            "parse_error": reply.errors[0][:400] if reply.errors else None,
            "marks": [
                {"kind": "call", "label": "bash", "text": clip(command), "ok": one.code == 0}
                for command, one in zip(reply.commands, ran, strict=False)
            ],
        }
        if self.turn + 1 >= self.max_turns:
            return self._end(text, info, done=False, is_graded=not reply.errors)
        return Turn(text, role=self._role if ran else "user", info=info)

    def close(self) -> None:
        """Stop the container."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _run(self, session: Session, commands: Sequence[str]) -> list[Ran]:
        """Run commands one after another, as many as their time together allows."""
        until = time.monotonic() + 2 * self._seconds
        ran: list[Ran] = []
        for command in commands:
            if (left := until - time.monotonic()) <= 0:
                break
            ran.append(session.run(command, seconds=min(self._seconds, left)))
        return ran

    def _problems(self, reply: Reply, ran: Sequence[Ran]) -> list[str]:
        problems = list(reply.errors[:_MAX_SENTENCES])
        if (dropped := len(reply.commands) - len(ran)) > 0:
            problems.append(
                f"{dropped} more commands were not run: at most {MAX_COMMANDS} run in one reply, "
                f"for {2 * self._seconds:g} s together."
            )
        return problems

    def _end(
        self, text: str, info: Mapping[str, Any], *, done: bool, is_graded: bool = True
    ) -> Turn:
        session = self._session
        assert session is not None
        rewards: dict[str, float] = {}

        def score() -> float:
            rewards.update(session.grade())
            return reward_of(rewards, self._key)

        def try_verifier() -> None:
            with Session.start(session.folder, self._settings) as untouched:
                reward_of(untouched.grade(), self._key)

        found = Grade(score=0.0)
        try:
            if is_graded:
                grader = f"harbor {self._settings} {self._key}"
                found = settle(score, untouched=try_verifier, grader=grader, task=self.task)
        finally:
            self.close()
        info = {**info, **found.info(), "rewards": rewards, "reward_terms": {"tests": found.score}}
        return Turn(text, reward=found.score, done=done, info=info)


def _system_prompt(protocol: Protocol) -> str:
    how = (
        "Call the tool bash to run a command."
        if protocol is Protocol.TOOLS
        else "Write a command in a code block that begins with ```bash."
    )
    return (
        f"You work in a Linux container. {how} Its output and exit code are your next input. Each "
        "command runs in a new shell, so its folder and variables are those of the container; "
        "files and background processes stay. Commands cannot ask for input. When the task is "
        "done, reply without a command."
    )


def _shown(ran: Ran, seconds: float) -> str:
    """Return a command's result as the model reads it."""
    notes = [f"exit code {ran.code}"]
    if ran.timed_out:
        notes.append(f"stopped after {seconds:g} s, its deadline")
    output = ran.output.rstrip("\n")
    end = f"[{'; '.join(notes)}]"
    return f"{output}\n{end}" if output else end
