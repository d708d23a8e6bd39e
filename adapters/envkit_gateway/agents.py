"""Agents: functions and commands that solve a task with a model behind the gateway."""

import inspect
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Final, cast
from urllib.parse import urlsplit

from envkit import ranges
from envkit.env import Step
from envkit.errors import ConfigurationError, EnvFault, FaultKind, RefusedError
from envkit.images import Image
from envkit.messages import Message, images_of, text_of
from envkit.plugins import load_named, named_agent
from envkit.rollout.boundary import StepOutcome
from envkit.rollout.setting_types import built, check_types
from envkit.threads.pool import WorkerPool
from envkit.tools import ToolSpec
from envkit_gateway.harnesses import harness_argv
from envkit_gateway.kinds import Train

_QUIET: Final[Mapping[str, str]] = {
    "ANONYMIZED_TELEMETRY": "false",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",  # no questions on its first start
    "MSWEA_COST_TRACKING": "ignore_errors",  # the model has no price
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "no_proxy": "127.0.0.1,localhost",
}
"""Switches that keep known agents from calling home, or the gateway through a proxy."""
LOOPBACK: Final = "127.0.0.1"
_EVERYWHERE: Final = ("0.0.0.0", "::")  # compared, not bound
MODEL: Final = "envkit"
"""Model name for clients; the gateway accepts any other name too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """An agent's input: its task, and a model to solve it with."""

    task: Mapping[str, Any]
    """The environment's task."""
    messages: tuple[Message, ...]
    """The environment's system prompt, if it has one, and its first observation."""
    tools: tuple[ToolSpec, ...]
    """The environment's tools."""
    url: str
    """The gateway's address, without `/v1`."""
    api_key: str
    _step: Callable[[str], Awaitable[StepOutcome]] = field(repr=False)
    _reward: Callable[[object], None] = field(repr=False)

    @property
    def prompt(self) -> str:
        """The text of the first observation."""
        return str(text_of(self.messages[-1]))

    @property
    def images(self) -> tuple[Image, ...]:
        """Images of the first observation."""
        return images_of(self.messages[-1:])

    @property
    def base_url(self) -> str:
        """Address for OpenAI clients, with `/v1`. Anthropic clients take `url`."""
        return f"{self.url}/v1"

    async def step(self, text: str) -> Step:
        """Send a reply to the environment and return its step.

        Args:
            text: As `Env.step` reads it. The step's reward counts towards the episode's, on the
                model's latest reply.

        Raises:
            EnvFault: The environment failed; do not catch it.
            EpisodeStateError: The environment has ended the episode.
        """
        return (await self._step(text)).step

    def reward(self, value: float) -> None:
        """Reward the model's latest reply.

        It adds to the episode's final reward, whether that is the environment's, the one that the
        agent returns or the grade. Works on any thread.

        Args:
            value: A finite number.

        Raises:
            EnvFault: It is something else, so the episode's reward would not be known.
            EpisodeStateError: The model has not replied yet, or the episode is over.
        """
        self._reward(value)

    def environ(self) -> dict[str, str]:
        """Return environment variables that point clients at the gateway."""
        return {
            **_QUIET,
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.api_key,
            "ENVKIT_MODEL": MODEL,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an agent ended."""

    answer: str | None = None
    """Sent to the environment as the last reply, unless the environment has ended the episode; None
    sends nothing."""
    reward: float | None = None
    """Replaces the environment's reward; None keeps it."""
    error: str | None = None
    """Why the agent failed; None if it ended normally."""
    ungraded: str | None = None
    """Why the reward that the agent left cannot be read, so that it is 0; None if it can."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])


AgentFunction = Callable[[AgentTask], Awaitable[object] | object]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The agent that plays the episodes: a function, a command or a known harness."""

    function: str | AgentFunction | None = None
    """A function or its path, `module:function`. It takes an `AgentTask` and returns its answer, a
    reward or None; a synchronous one runs on a thread."""
    command: str | tuple[str, ...] | None = None
    """Runs with the variables of `AgentTask.environ` in its own folder, which also holds its home
    and its temporary files."""
    harness: str | None = None
    """A known harness, such as `claude-code`, and further arguments for it. It runs as a `command`
    does."""
    grade: str | tuple[str, ...] | None = None
    """Runs in the folder of `command` after the agent and everything that it started are gone. Its
    exit status is the episode's reward: 1 for status 0, else 0. A number in
    `$ENVKIT_GRADE_DIR/reward.txt` takes precedence."""
    timeout_s: float = 600.0
    """Seconds after which the agent is stopped. This truncates the episode, or faults it if the
    engine was sampling. `grade` has the same time limit."""
    max_disk_mb: int = 4096
    """Maximum size of a command's folder in MB, including its home and temporary files. A command
    that writes more is stopped, which truncates the episode."""
    max_sequences: int = 512
    """Maximum sequences per episode. An agent that rewrites its history at every step needs one per
    turn."""
    traces: str | None = None
    """Folder in which each episode appends every reply to `EPISODE_ID.jsonl` as it is sampled; a
    trace remains if envkit is killed. None writes no traces."""
    bind: str = LOOPBACK
    """Address on which the gateway listens, `HOST` or `HOST:PORT`; without a port a free one. It
    speaks plain HTTP, and each episode has its own key."""
    url: str | None = None
    """Address at which agents reach the gateway, such as that of a proxy with TLS; None takes
    `bind`."""
    train: Train = Train.RULE
    """Which sequences of an episode are trained: `rule`, `main` or `all`."""
    steps: bool = False
    """Whether the command takes the environment's steps over HTTP, with the key on its standard
    input. Its standard output is then no answer."""
    rewards: bool = False
    """Whether the command gives rewards over HTTP, with the same key, and sees those of its
    steps."""

    @classmethod
    def read(cls, setting: object) -> "AgentSettings":
        """Return the settings of a configuration.

        Args:
            setting: The function or its path, a harness, or a mapping of this class's fields.

        Raises:
            ConfigurationError: It names no agent or two, `grade` without a command, or an unknown
                field.
        """
        if isinstance(setting, str):
            return cls(**named_agent(setting))
        if callable(setting):
            return cls(function=setting)
        if not isinstance(setting, Mapping):
            raise ConfigurationError(
                "agent must be 'module:function', a harness or a mapping such as "
                f"{{command: python agent.py}}, got {setting!r:.80}"
            )
        return built(cls, cast("Mapping[str, Any]", setting), "agent")

    def __post_init__(self) -> None:
        train = next((one for one in Train if one.value == self.train), self.train)
        object.__setattr__(self, "train", train)  # the dataclass is frozen
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "function"}
        check_types(AgentSettings, own, "agent")
        if sum(one is not None for one in (self.function, self.command, self.harness)) != 1:
            raise ConfigurationError("agent needs one of function, command and harness")
        ranges.positive(**{"agent.timeout_s": self.timeout_s})
        counts = {"agent.max_disk_mb": self.max_disk_mb, "agent.max_sequences": self.max_sequences}
        ranges.at_least(1, **counts)
        self._check_address()
        if self.command is None and (self.steps or self.rewards):
            raise ConfigurationError(
                "agent.steps and agent.rewards are for agent.command; a function calls "
                "AgentTask.step and AgentTask.reward"
            )
        if sys.platform == "win32" and self.function is None:
            raise RefusedError(
                "agent.command and agent.harness need Linux or macOS, got win32; use "
                "agent.function, WSL or a Linux container"
            )
        if self.argv() is None:
            if self.grade is not None:
                raise ConfigurationError(
                    "agent.grade runs in the folder of agent.command; a function returns its reward"
                )
            self.load()
        if self.grade is not None:
            argv_of("agent.grade", self.grade)

    def _check_address(self) -> None:
        host, _ = self.listens_on()
        if self.url is None and host in _EVERYWHERE:
            raise ConfigurationError(
                f"agents cannot reach agent.bind {self.bind!r}: set agent.url too"
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"agent.url must start with http:// or https://, got {self.url!r}"
            )

    def listens_on(self) -> tuple[str, int]:
        """Return the host and port of the gateway; port 0 takes a free one.

        Raises:
            ConfigurationError: `bind` has another form.
        """
        host, port = None, None
        with suppress(ValueError):
            parts = urlsplit(f"//{self.bind}")
            if parts.netloc == self.bind and "@" not in self.bind:
                host, port = parts.hostname, parts.port
        if not host:
            raise ConfigurationError(
                f"agent.bind must be HOST or HOST:PORT, such as 10.0.0.5:8700, got {self.bind!r}"
            )
        return host, port or 0

    def argv(self) -> Sequence[str] | None:
        """Return the command; None for a function.

        Raises:
            ConfigurationError: It is empty or has unbalanced quotes, or the harness is unknown or
                not installed.
        """
        if self.harness is not None:
            return harness_argv(self.harness)
        return None if self.command is None else argv_of("agent.command", self.command)

    def load(self) -> AgentFunction | None:
        """Return the function; None for a command.

        Raises:
            ConfigurationError: It cannot be imported or called.
        """
        found: object = self.function
        if isinstance(found, str):
            found = cast("object", load_named(found, "the agent"))
        if found is not None and not callable(found):
            raise ConfigurationError(f"the agent {self.function!r} is not callable")
        return cast("AgentFunction | None", found)


def argv_of(name: str, command: str | Sequence[str]) -> list[str]:
    """Split a command into arguments.

    Args:
        name: The setting, for messages.
        command: Arguments, or a line that is split as a shell would split it; no shell runs it.

    Raises:
        ConfigurationError: It is empty or has unbalanced quotes.
    """
    try:
        argv = shlex.split(command) if isinstance(command, str) else [*command]
    except ValueError as error:
        raise ConfigurationError(f"{name} {command!r}: {error}") from error
    if not argv:
        raise ConfigurationError(f"{name} is empty")
    return argv


async def call_agent(function: AgentFunction, task: AgentTask, pool: WorkerPool) -> AgentResult:
    """Run an agent's function, on a thread of the pool if it blocks, and return its result."""
    if inspect.iscoroutinefunction(function):
        found = await cast("Awaitable[object]", function(task))
    else:
        found = await pool.run(lambda: function(task))
        if inspect.isawaitable(found):
            found = await found
    return result_of(found)


def result_of(found: object) -> AgentResult:
    """Convert the return value of an agent's function to a result.

    Raises:
        EnvFault: It is neither an answer nor a reward, so the reward is unknown.
    """
    if found is None:
        return AgentResult()
    if isinstance(found, AgentResult):
        return found
    if isinstance(found, str):
        return AgentResult(answer=found)
    if isinstance(found, Real):  # NumPy's numbers too
        return AgentResult(reward=float(found))
    raise EnvFault(
        f"an agent must return its answer, a reward or None, got {type(found).__name__}",
        kind=FaultKind.PERMANENT,
        retryable=False,
    )
