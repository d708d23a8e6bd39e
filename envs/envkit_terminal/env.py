"""The terminal environment `terminal-v0`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from envkit.env import Capabilities, Env, ObservationRole, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind, UnknownNameError
from envkit.marks import clip
from envkit.tasks import ListSource, Task, TaskSource
from envkit_terminal.families import FAMILIES, LEVELS, NEEDS_GIT
from envkit_terminal.grading import Outcome, grade
from envkit_terminal.protocol import BASH, MAX_COMMANDS, Protocol, Reply, read, system_prompt, write
from envkit_terminal.session import HOME, Limits, Ran, TerminalSession
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

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    """Not deterministic: a command may read the clock or race with another one."""

    def __init__(
        self,
        *,
        families: str | Sequence[str] | None = None,
        levels: Sequence[int] | None = None,
        split: str = "train",
        tasks: TaskSource | Sequence[Mapping[str, Any]] | None = None,
        protocol: str = Protocol.TOOLS,
        command_seconds: float = 30.0,
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
            command_seconds: Seconds that one command may take.
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
        if split not in ("train", "test"):
            raise ConfigurationError(f"split must be 'train' or 'test', got {split!r}")
        if not 0 < command_seconds <= 3600:  # an hour
            raise ConfigurationError(
                f"command_seconds must be above 0 and at most 3600, got {command_seconds}"
            )
        if feedback_role not in ("tool", "user"):
            raise ConfigurationError(
                f"feedback_role must be 'tool' or 'user', got {feedback_role!r}"
            )
        self.protocol = Protocol(protocol)
        self.system_prompt = system_prompt(self.protocol)
        is_tools = self.protocol is Protocol.TOOLS
        self.tools = (BASH,) if is_tools else ()
        self._role: ObservationRole = feedback_role if is_tools else "user"
        self._seconds, self._limits = command_seconds, limits or Limits()
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
        files = entries(task.get("files", {}))
        self.close()
        session = TerminalSession(
            limits=self._limits,
            folders=tuple(task.get("folders", ())),
            folder=task.get("folder", HOME),
            environment=task.get("environment", {}),
        )
        self._session = session.start()
        session.put(files)
        for command in task.get("setup", ()):
            _prepare(session, command)
        info = {key: task[key] for key in ("family", "level", "name") if key in task}
        return Turn(task["goal"], info=info)

    def on_turn(self, response_text: str) -> Turn:
        """Run the reply's commands, or end the episode.

        Raises:
            EnvFault: The sandbox is gone, or the grader failed.
        """
        assert self._session is not None
        reply = read(self.reply, self.protocol)
        if reply.is_last:
            marks = [{"kind": "answer", "text": clip(reply.text)}]
            return self._end("The episode is over.", {"exit_codes": [], "marks": marks}, done=True)
        ran = [
            self._session.run(command, seconds=self._seconds)
            for command in reply.commands[:MAX_COMMANDS]
        ]
        text = "\n\n".join([_shown(one, self._seconds) for one in ran] + _problems(reply, len(ran)))
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

    def _end(
        self, text: str, info: Mapping[str, Any], *, done: bool, is_graded: bool = True
    ) -> Turn:
        assert self._session is not None
        files = self._session.snapshot()
        self.close()
        score = 0.0
        if files is not None and is_graded:
            outcome = Outcome(
                files=files,
                limits=self._limits,
                folders=tuple(self.task.get("folders", ())),
                folder=self.task.get("folder", HOME),
                environment=self.task.get("environment", {}),
            )
            score = grade(self.task["checks"], outcome)
        terms = {"checks": score}
        return Turn(text, reward=score, done=done, info={**info, "reward_terms": terms})


def _source(
    tasks: TaskSource | Sequence[Mapping[str, Any]] | None,
    families: str | Sequence[str] | None,
    levels: Sequence[int] | None,
    split: str,
) -> TaskSource:
    if tasks is not None:
        return ListSource(tasks) if isinstance(tasks, Sequence) else tasks
    names = (
        [families]
        if isinstance(families, str)
        else list(families or (name for name in FAMILIES if name not in NEEDS_GIT))
    )
    for name in names:
        if name not in FAMILIES:
            raise UnknownNameError.suggest("family", name, FAMILIES)
    wanted = tuple(levels or LEVELS)
    if not set(wanted) <= set(LEVELS):
        raise ConfigurationError(f"levels must be among {LEVELS}, got {wanted}")
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


def _problems(reply: Reply, count: int) -> list[str]:
    problems = list(reply.errors[:_MAX_SENTENCES])
    if (dropped := len(reply.commands) - count) > 0:
        problems.append(
            f"{dropped} more commands were not run: at most {MAX_COMMANDS} run in one reply."
        )
    return problems
