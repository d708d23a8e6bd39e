"""The terminal environment `terminal-v0`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from envkit.env import Capabilities, Env, ObservationRole, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind, UnknownNameError
from envkit.grading import Grade
from envkit.marks import clip
from envkit.ranges import one_of
from envkit.tasks import ListSource, Task, TaskSource
from envkit_sandbox.commands import MAX_COMMANDS, Protocol, Reply, read, write
from envkit_terminal.families import FAMILIES, LEVELS, NEEDS_GIT
from envkit_terminal.grader_sandbox import FinalState
from envkit_terminal.grading import grade
from envkit_terminal.instructions import BASH, system_prompt
from envkit_terminal.session import HOME, Entry, Limits, Ran, TerminalSession
from envkit_terminal.tasks import GeneratedTasks, check_task, entries

_MAX_SENTENCES: Final = 4
_SETUP_SECONDS: Final = 60.0


class TerminalEnv(Env):
    """Do a task in a Linux shell.

    Task: `{"goal", "files", "setup", "checks", "solution", ...}`; see the page on the environment.
        The default tasks are generated from seeds.
    Observation: the goal; then the output and exit code of each command. Long output loses its
        middle.
    Action: one or more calls of `bash(command)`, or code blocks with the protocol "fenced". The
        shell keeps its folder and variables. A command past `command_seconds` is interrupted, then
        killed; the episode continues.
    Reward: when the episode ends, 1.0 if all checks hold on the final files, else 0.0; tests may
        give a part. They run in a fresh sandbox with a copy of the files.
    Episode end: a reply without a command terminates; `max_turns` replies truncate. Both are
        graded, but an episode whose last reply cannot be parsed gets 0.0.
    Chance: doing nothing gives 0.0 on every generated task.
    Info: `exit_codes`, `parse_error`, and marks of the commands.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, on_step_timeout="truncate"
    )
    """Not deterministic: a command may read the clock or race with another one. A step runs what
    the policy wrote, and a sandbox that hangs is noticed long before the step's deadline."""

    def __init__(
        self,
        *,
        families: str | Sequence[str] | None = None,
        levels: Sequence[int] | None = None,
        split: str = "train",
        tasks: TaskSource | Sequence[Mapping[str, Any]] | None = None,
        protocol: str = Protocol.TOOLS,
        command_seconds: float = 30.0,
        test_seconds: float = 50.0,
        limits: Limits | None = None,
        feedback_role: ObservationRole = "tool",
        max_turns: int = 20,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            families: Names of task families; None uses all that need only Debian's base and
                Python.
            levels: Levels 1 to 3; None uses all.
            split: "train" or "test", which share no seeds.
            tasks: Your own tasks, for example imported ones; None draws them.
            protocol: "tools" or "fenced".
            command_seconds: Seconds that one command may take. The commands of a reply together
                may take twice as long.
            test_seconds: Maximum seconds of a test script whose task states none in `seconds`. A
                script that fails may run twice in a step, within `RetryBudget.step_timeout_s`.
            limits: Resource limits of a session; None uses the defaults.
            feedback_role: Role of results in the tools protocol. "user" for chat templates without
                a tool role.
            max_turns: Replies per episode.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: There is no such family or protocol.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if protocol not in list(Protocol):
            raise UnknownNameError.suggest("protocol", protocol, list(Protocol))
        one_of("split", split, ("train", "test"))
        for name, seconds in (("command_seconds", command_seconds), ("test_seconds", test_seconds)):
            if not 0 < seconds <= 3600:  # an hour
                raise ConfigurationError(f"{name} must be above 0 and at most 3600, got {seconds}")
        self.protocol = Protocol(protocol)
        self.system_prompt = system_prompt(self.protocol)
        is_tools = self.protocol is Protocol.TOOLS
        self.tools = (BASH,) if is_tools else ()
        self._role: ObservationRole = feedback_role if is_tools else "user"
        self._seconds, self._limits = command_seconds, limits or Limits()
        self._test_seconds = test_seconds
        self.tasks = _source(tasks, families, levels, split)
        self._session: TerminalSession | None = None

    def oracle(self) -> Policy:
        """Return a policy that runs the task's solution, one command per reply.

        The task must have one.
        """

        def reply(context: PolicyContext) -> str:
            solution: list[str] = context.task.get("solution") or []
            if context.turn < len(solution):
                return write(solution[context.turn], self.protocol)
            return "Done."

        return reply

    def on_reset(self, task: Task) -> Turn:
        """Start a session with the task's files.

        Raises:
            DatasetError: The task is not valid.
            EnvFault: The sandbox did not start, or a setup command failed.
            MissingDependencyError: bubblewrap is not installed.
        """
        check_task(task)
        self.close()
        self._session = self._start(task)
        info = {key: task[key] for key in ("family", "level", "name") if key in task}
        return Turn(task["goal"], info=info)

    def on_turn(self, response_text: str) -> Turn:
        """Run the reply's commands, or end the episode.

        Raises:
            EnvFault: The sandbox is gone, or the grader failed.
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
        """End the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _run(self, session: TerminalSession, commands: Sequence[str]) -> list[Ran]:
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
        assert self._session is not None
        files = self._session.snapshot()
        self.close()
        found = Grade(score=0.0)
        if is_graded:
            found = grade(self.task, self._outcome(files), untouched=self._untouched)
        terms = {"checks": found.score}
        info = {**info, **found.info(), "reward_terms": terms}
        return Turn(text, reward=found.score, done=done, info=info)

    def _start(self, task: Task) -> TerminalSession:
        """Start a session with the task's files, after its setup."""
        files = entries(task.get("files", {}))
        session = TerminalSession(
            limits=self._limits,
            folders=tuple(task.get("folders", ())),
            folder=task.get("folder", HOME),
            environment=task.get("environment", {}),
        ).start()
        try:
            session.put(files)
            for command in task.get("setup", ()):
                _prepare(session, command)
        except BaseException:
            session.close()
            raise
        return session

    def _untouched(self) -> FinalState | None:
        """Return what a policy that does nothing leaves."""
        with self._start(self.task) as session:
            return self._outcome(session.snapshot())

    def _outcome(self, files: Mapping[str, Entry] | None) -> FinalState | None:
        if files is None:
            return None
        return FinalState(
            files=files,
            limits=self._limits,
            folders=tuple(self.task.get("folders", ())),
            folder=self.task.get("folder", HOME),
            environment=self.task.get("environment", {}),
            test_seconds=self._test_seconds,
        )


def _source(
    tasks: TaskSource | Sequence[Mapping[str, Any]] | None,
    families: str | Sequence[str] | None,
    levels: Sequence[int] | None,
    split: str,
) -> TaskSource:
    if tasks is not None:
        if not isinstance(tasks, Sequence):
            return tasks
        for task in tasks:
            check_task(task)
        return ListSource(tasks)
    if families is None:
        families = [name for name in FAMILIES if name not in NEEDS_GIT]
    names = [families] if isinstance(families, str) else families
    for name in names:
        if name not in FAMILIES:
            raise UnknownNameError.suggest("family", name, FAMILIES)
    wanted = LEVELS if levels is None else tuple(levels)
    if not names or not wanted or not set(wanted) <= set(LEVELS):
        raise ConfigurationError(
            f"families must name at least one, and levels at least one of {LEVELS}, got {names} "
            f"and {wanted}"
        )
    return GeneratedTasks(split=split, families=tuple(names), levels=wanted)


def _prepare(session: TerminalSession, command: str) -> None:
    done = session.run(command, seconds=_SETUP_SECONDS)
    if done.code != 0:
        raise EnvFault(
            f"the setup command {command[:120]!r} failed with exit code {done.code}: "
            f"{done.output[-300:]}",
            kind=FaultKind.PERMANENT,
        )


def _shown(ran: Ran, seconds: float) -> str:
    """Return a command's result as the model reads it."""
    notes = [f"exit code {ran.code}"]
    if ran.timed_out:
        notes.append(f"stopped after {seconds:g} s, its deadline")
    if ran.limit is not None:
        notes.append(f"all processes were killed: they exceeded the limit of {ran.limit}")
    if ran.is_new_shell:
        notes.append("the shell ended, and a new one was started")
    output = ran.output.rstrip("\n")
    end = f"[{'; '.join(notes)}]"
    return f"{output}\n{end}" if output else end
