"""Ready settings: real programs, each named in one word, play an episode."""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from fakes.client_notes import Note
from fakes.client_scripts import call_of, codec
from fakes.installed import install_metadata
from fakes.odd_engine import StreamingOddEngine, assert_exact
from fakes.trajectories import picture

from envkit.env import Env, Turn
from envkit.errors import MissingDependencyError
from envkit.rollout import EpisodeSpec, Player, RolloutConfig
from envkit.tasks import Task
from envkit.trajectory import Trajectory, check_trajectory
from envkit_gateway.harnesses import HARNESSES

PROGRAMS = os.environ.get("ENVKIT_AGENT_PROGRAMS", "")
DONE: Final = "It is done."


class Chore(Env):
    """A task with an image; the answer must say that it is done."""

    system_prompt = "Work alone."

    def on_reset(self, task: Task) -> Turn:
        return Turn("Look at the image, and run a command.", images=[picture(4)])

    def on_turn(self, response_text: str) -> Turn:
        return Turn("", reward=float(response_text.strip() == DONE), done=True)


class Case(NamedTuple):
    """What the model replies, and what must be in the record."""

    dialect: str
    replies: Sequence[str]
    images: int
    """In the record."""
    sequences: int = 1


def browsing(action: dict[str, Any]) -> str:
    said = {"evaluation_previous_goal": "ok", "memory": "m", "next_goal": "g"}
    return json.dumps({**said, "action": [action]}, indent=1)


def saying(*replies: str) -> Callable[[str], str]:
    """Return a script that gives the replies in turn; WORK is the agent's folder."""
    left = list(replies)

    def write(context: str) -> str:
        folder = re.search(r"/[\w/.-]*/envkit-agent-\w+/work", context)
        reply = left.pop(0) if left else "Nobody should ask for this."
        return reply.replace("WORK", folder.group() if folder else ".")

    return write


def shell(tool: str, **more: str) -> str:
    return call_of(tool, json.dumps({"command": "echo hello", **more}))


FINISH: Final = f"printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\n{DONE}\\n'"
CASES: Final = {
    "claude-code": Case(
        "messages",
        [shell("Bash"), call_of("Read", '{"file_path":  "WORK/image-1.png"}'), DONE], 1,
    ),
    "codex": Case(
        "Responses",
        [call_of("exec_command", '{"cmd":  "echo hello"}'),
         call_of("view_image", '{"path":  "image-1.png"}'), DONE], 1,
    ),
    "opencode": Case(
        "chat completions", [shell("bash", description="say hello"), DONE], 0,
    ),
    "qwen-code": Case(
        "chat completions",
        [shell("run_shell_command", description="say hello"), DONE], 0,
    ),
    "mini-swe-agent": Case(
        "chat completions",
        [shell("bash"), call_of("bash", json.dumps({"command": FINISH}))], 0,
    ),
    "smolagents": Case(
        "chat completions",
        ["Thought: add.\n<code>\nprint(1 + 2)\n</code>",
         f'Thought: done.\n<code>\nfinal_answer("{DONE}")\n</code>'], 2, sequences=2,
    ),
    "browser-use": Case(
        "chat completions",
        [browsing({"wait": {"seconds": 1}}), browsing({"done": {"text": DONE, "success": True}})],
        0, sequences=2,
    ),
    "langgraph": Case("chat completions", [shell("bash"), DONE], 1),
}  # fmt: skip


async def played(setting: str, replies: Sequence[str]) -> Trajectory:
    """Play an episode, if the harness is installed."""
    name = setting.split()[0]
    try:
        HARNESSES[name].check(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    engine = StreamingOddEngine(codec(), saying(*replies))
    config = RolloutConfig(agent=setting, sampling={"max_new_tokens": 4096})
    player = Player(engine, codec(), config)
    try:
        (found,) = await player.play(Chore, EpisodeSpec(seed=3))
    finally:
        await player.aclose()
    assert check_trajectory(found) == ()
    assert found.reward == 1.0, (found.fault, json.dumps(dict(found.turns[-1].info))[:2000])
    assert_exact(found, engine)
    return found


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the programs from npm and envkit's plugins known."""
    monkeypatch.setenv("PATH", os.pathsep.join(filter(None, (PROGRAMS, os.environ["PATH"]))))
    monkeypatch.syspath_prepend(str(install_metadata(tmp_path)))


@pytest.mark.parametrize("name", CASES)
async def test_harness_plays_an_episode(name: str, note: Note) -> None:
    case = CASES[name]
    found = await played(name, case.replies)

    results = [str(one["content"]) for one in found.messages if one["role"] == "tool"]
    assert all("hello" in one for one in results[:1]), results  # its command ran
    assert len(found.turns) == len(case.replies)
    assert len(found.sequences()) == case.sequences
    assert found.image_count >= case.images
    assert found.trained_token_count == found.sampled_token_count
    note(found, dialect=case.dialect, does=f"`agent: {name}`")


GRAPH: Final = """
import os
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

graph = create_agent(ChatOpenAI(model=os.environ["ENVKIT_MODEL"]), [], system_prompt="My own.")
"""


async def test_langgraph_runs_a_given_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_graph.py").write_text(GRAPH, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = await played("langgraph my_graph:graph", [DONE])
    assert found.messages[0] == {"role": "system", "content": "My own."}


def test_every_harness_has_a_case() -> None:
    assert CASES.keys() == HARNESSES.keys()
