"""Known harnesses: the command line that plays an episode with each.

Every line runs in the agent's folder, takes its task from `instructions.txt`, and leaves the answer
in `answer.txt` or on standard output. The words after a harness's name become `"$@"`. The lines
need `sh`. They were written for the versions that `make contract-clients` tests.
"""

import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError, ContractError, MissingDependencyError, did_you_mean
from envkit.plugins import installed, load_only

GROUP: Final = "envkit.harnesses"
"""Entry-point group of other packages' harnesses: `Harness` objects."""
_RUNNERS: Final = Path(__file__).with_name("runners")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """How to run one harness.

    Attributes:
        line: A line of `sh`, with `{python}` for the interpreter and `{runners}` for the folder
            of the scripts that run Python packages.
        install: The command that installs it.
        programs: What the path must have.
        modules: What the interpreter must be able to import.
    """

    line: str
    install: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def check(self, name: str) -> None:
        """Check that the harness is installed.

        Raises:
            MissingDependencyError: It is not; the message has the command that installs it.
        """
        lacks = [one for one in self.programs if shutil.which(one) is None]
        lacks += [f"the Python package {one}" for one in self.modules if find_spec(one) is None]
        if lacks:
            raise MissingDependencyError(
                f"the agent {name} needs {' and '.join(lacks)}; install with: {self.install}"
            )


_CODEX: Final = (
    """'model_providers.envkit={name="envkit",base_url="'"$OPENAI_BASE_URL"'","""
    """env_key="OPENAI_API_KEY",wire_api="responses"}'"""
)
_OPENCODE: Final = (
    '{"provider":{"envkit":{"npm":"@ai-sdk/openai-compatible",'
    '"options":{"baseURL":"{env:OPENAI_BASE_URL}","apiKey":"{env:OPENAI_API_KEY}"},'
    # A window that it never fills: the gateway says when the real one is full.
    '"models":{"envkit":{"limit":{"context":1000000,"output":32000}}}}}}'
)
# Its memories would be further conversations, for a home that is removed.
_QWEN: Final = (
    '{"memory":{"enableManagedAutoMemory":false,"enableManagedAutoDream":false,'
    '"enableAutoSkill":false},"privacy":{"usageStatisticsEnabled":false}}'
)
HARNESSES: Final = {
    "claude-code": Harness(
        line='claude -p --allowedTools "Bash,Edit,Glob,Grep,Read,Write" "$@" < instructions.txt',
        install="npm install -g @anthropic-ai/claude-code",
        programs=("claude",),
    ),
    "codex": Harness(
        line="codex exec --skip-git-repo-check --sandbox workspace-write -o answer.txt -m envkit "
        f"-c model_provider=envkit -c {_CODEX} "
        '"$@" - < instructions.txt',
        install="npm install -g @openai/codex",
        programs=("codex",),
    ),
    "opencode": Harness(
        line=f"OPENCODE_CONFIG_CONTENT='{_OPENCODE}' opencode run --auto --title task "
        '--format json -m envkit/envkit "$@" < instructions.txt > ../events.jsonl && '
        "{python} {runners}/last_text.py ../events.jsonl > answer.txt",
        install="npm install -g opencode-ai",
        programs=("opencode",),
    ),
    "qwen-code": Harness(
        line=f"mkdir ~/.qwen && echo '{_QWEN}' > ~/.qwen/settings.json && "
        'qwen --yolo --auth-type openai -m envkit "$@" < instructions.txt',
        install="npm install -g @qwen-code/qwen-code",
        programs=("qwen",),
    ),
    "mini-swe-agent": Harness(
        line="{python} -m minisweagent.run.mini --yolo --exit-immediately --cost-limit 0 "
        '-m openai/envkit -o ../mini.json -t "$(cat instructions.txt)" "$@" && '
        "{python} -c 'import json; "
        """print(json.load(open("../mini.json"))["info"]["submission"])' """
        "> answer.txt",
        install="pip install mini-swe-agent",
        modules=("minisweagent",),
    ),
    "smolagents": Harness(
        line='{python} {runners}/run_smolagents.py "$@"',
        install="pip install 'smolagents[openai]'",
        modules=("smolagents", "openai"),
    ),
    "browser-use": Harness(
        line='{python} {runners}/run_browser_use.py "$@"',
        install="pip install browser-use, and apt install chromium",
        programs=("chromium",),
        modules=("browser_use",),
    ),
    "langgraph": Harness(
        line='{python} {runners}/run_langgraph.py "$@"',
        install="pip install langchain langchain-openai",
        modules=("langchain", "langchain_openai"),
    ),
}
"""The harnesses by name."""


def harness_argv(setting: str) -> tuple[str, ...]:
    """Return the command that plays an episode with a harness.

    Args:
        setting: Its name, and further arguments for it.

    Raises:
        ConfigurationError: The name is unknown, or a quote is not closed.
        MissingDependencyError: It is not installed.
        ContractError: A package provides something else under the name.
    """
    try:
        name, *rest = shlex.split(setting) or [""]
    except ValueError as error:
        raise ConfigurationError(f"agent {setting!r}: {error}") from error
    harness = HARNESSES.get(name)
    if harness is None and (points := installed(GROUP).get(name)):
        harness = load_only(points, f"the harness {name!r}")
    if harness is None:
        known = [*HARNESSES, *installed(GROUP)]
        raise ConfigurationError(
            f"the agent {setting!r} is neither module:function nor a known harness."
            f"{did_you_mean(name, known)} Known: {', '.join(known)}"
        )
    if not isinstance(harness, Harness):
        raise ContractError(
            f"the harness {name!r} must be an envkit_gateway.Harness, got {type(harness).__name__}"
        )
    harness.check(name)
    line = harness.line.replace("{python}", shlex.quote(sys.executable))
    line = line.replace("{runners}", shlex.quote(str(_RUNNERS)))
    return ("sh", "-c", line, name, *rest)
