"""`mcp-v0`: tasks over servers that nobody here wrote, and the rules of its reward."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contracts.mcp.conftest import odd, python_server
from fakes.judge_server import KEY, MODEL, JudgeServer

from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit.rewards import Gate, RewardContext, Term
from envkit_judges import Criterion, Endpoint, Judge
from envkit_mcp import McpEnv
from envkit_mcp.checks import all_pass

Npm = Callable[[str], list[str]]


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def played(env: McpEnv, task: dict[str, Any], *replies: str) -> tuple[list[str], Any]:
    """Play replies; return the observations, and the last step."""
    try:
        reset = await env.areset(seed=0, options={"task": task})
        texts, step = [reset.observation["text"]], None
        for reply in replies:
            step = await env.astep(reply)
            texts.append(step.observation["text"])
    finally:
        await env.aclose()
    return texts, step


async def test_time_task_is_solved_by_a_call_and_the_answer() -> None:
    env = McpEnv(servers={"time": {"command": python_server("mcp-server-time")}})
    task = {"prompt": "It is 12:00 in UTC. And in Tokyo?", "checks": [{"answer": "21:00"}]}
    arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    texts, step = await played(
        env, task, calling("convert_time", **arguments), "It is evening.\n21:00."
    )
    assert "T21:00:00+09:00" in texts[1]
    assert (step.reward, step.terminated, step.info["checks_passed"]) == (1.0, True, 1)
    _, step = await played(env, task, "It is 20:00 or 21:00 or 22:00.")
    assert (step.reward, step.info["checks_passed"]) == (0.0, 0)


async def test_filesystem_task_is_graded_on_the_file(npm: Npm) -> None:
    env = McpEnv(servers={"files": {"command": [*npm("mcp-server-filesystem"), "{folder}"]}})
    task = {
        "prompt": "Copy the first word of a.txt into b.txt, and delete nothing.",
        "files": {"a.txt": "hello world"},
        "checks": [
            {"file": "b.txt", "equals": "hello"},
            {"file": "a.txt", "contains": "world"},
            {"file": "c.txt", "absent": True},
        ],
    }
    right = [
        calling("read_text_file", path="a.txt"),
        calling("write_file", path="b.txt", content="hello"),
        "Done.",
    ]
    texts, step = await played(env, task, *right)
    assert texts[1] == "hello world"
    assert step.reward == 1.0
    _, step = await played(env, task, "Done.")
    assert (step.reward, step.info["checks_passed"]) == (0.0, 2)


async def test_memory_task_is_graded_by_a_call(npm: Npm) -> None:
    server = {
        "command": npm("mcp-server-memory"),
        "env": {"MEMORY_FILE_PATH": "{folder}/memory.json"},
    }
    env = McpEnv(servers={"memory": server})
    check = {"call": {"server": "memory", "tool": "read_graph"}, "contains": "Ada"}
    entity = {"name": "Ada", "entityType": "person", "observations": []}
    task = {"prompt": "Remember the person Ada.", "checks": [check]}
    _, step = await played(env, task, calling("create_entities", entities=[entity]), "Done.")
    assert step.reward == 1.0
    _, step = await played(env, task, "Done.")
    assert step.reward == 0.0


async def test_images_of_a_tool_are_shown(npm: Npm) -> None:
    env = McpEnv(servers={"all": {"command": npm("mcp-server-everything")}})
    try:
        await env.areset(seed=0, options={"task": {"prompt": "Look."}})
        step = await env.astep(calling("get-tiny-image"))
    finally:
        await env.aclose()
    assert len(step.observation["images"]) == 1


async def test_rubric_of_a_judge_is_a_reward() -> None:
    verdict = '{"reason": "brief", "scores": {"brief": 5}}'
    async with JudgeServer([verdict]) as server:
        judge = Judge(Endpoint(server.url, model=MODEL, api_key=KEY))
        passes = Gate(term="checks")
        terms = [
            Term(name="checks", score=all_pass),
            *judge.rubric(Criterion(name="brief", text="It is brief."), gate=passes),
        ]
        env = McpEnv(servers={"odd": odd()}, reward=terms)
        _, step = await played(env, {"prompt": "Go.", "checks": [{"answer": "yes"}]}, "Yes.")
    assert step.info["reward_terms"] == {"checks": 1.0, "brief": 0.5}


async def test_errors_of_tools_are_counted_and_the_episode_goes_on() -> None:
    env = McpEnv(servers={"odd": odd()}, limits={"call_timeout_s": 0.5})
    texts, step = await played(
        env,
        {"prompt": "Go.", "checks": [{"answer": "done"}]},
        calling("fail"),
        calling("note"),
        calling("slow"),
        calling("exit"),
        "done",
    )
    assert texts[1] == "fail failed: ToolCallError: the disk is full"
    assert "'text' is a required property" in texts[2]
    assert texts[3] == "slow did not answer within 0.5 s."
    assert "and so did a fresh one" in texts[4]
    assert step.reward == 1.0
    assert step.info["tool_errors"] == {"crashed": 2, "invalid": 1, "timeout": 1}


async def test_check_that_the_policy_broke_scores_0_and_one_that_never_works_is_a_fault(
    tmp_path: Path,
) -> None:
    script = tmp_path / "server.py"
    code = Path(odd()["command"][1]).read_text()
    script.write_text(code.replace('name == "exit" or', 'name == "exit" and MARKER.exists() or'))
    env = McpEnv(servers={"odd": {"command": [sys.executable, str(script)]}})
    exits = {"call": {"server": "odd", "tool": "exit"}, "contains": "done"}
    task = {"prompt": "Go.", "files": {}, "checks": [exits]}
    _, step = await played(env, task, "done")
    assert step.reward == 1.0
    broken = McpEnv(servers={"odd": odd()})
    with pytest.raises(EnvFault) as caught:
        await played(broken, task, "done")
    assert caught.value.kind is FaultKind.GRADER


async def test_terms_of_a_reward_read_the_checks() -> None:
    def polite(context: RewardContext) -> float:
        return float("please" in context.answer)

    terms = [
        Term(name="checks", score=all_pass),
        Term(name="polite", score=polite, weight=0.5, gate=lambda one: all_pass(one) == 1.0),
    ]
    env = McpEnv(servers={"odd": odd()}, reward=terms)
    task = {"prompt": "Note x.", "checks": [{"file": "notes.txt", "equals": "x"}]}
    _, step = await played(env, task, calling("note", text="x"), "please")
    assert step.info["reward_terms"] == {"checks": 1.0, "polite": 0.5}
    _, step = await played(env, task, "please")
    assert step.reward == 0.0


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"checks": [{"answer": ""}]}, "non-empty texts"),
        ({"checks": [{"file": "x"}]}, "one rule"),
        ({"checks": [{"file": "x", "absent": False}]}, "absent: true"),
        ({"checks": [{"call": {"server": "no", "tool": "x"}, "equals": "x"}]}, "one of ['odd']"),
        ({"checks": {}}, "must be a list"),
        ({"checks": [{"file": "../x", "equals": "y"}]}, "inside the episode's folder"),
        ({"checks": [{"file": "/etc/passwd", "contains": "y"}]}, "inside the episode's folder"),
        (
            {"checks": [{"call": {"server": "odd", "tool": "no"}, "equals": "x"}]},
            "must call a tool that the server 'odd' has, got 'no'",
        ),
        ({"files": {"../x": "y"}}, "inside the episode's folder"),
        ({"files": {"x": 3}}, "map paths to texts"),
        ({"tools": ["no"]}, "no tool 'no'"),
    ],
)
async def test_task_that_cannot_be_played_is_a_data_error(task: dict[str, Any], said: str) -> None:
    env = McpEnv(servers={"odd": odd()})
    with pytest.raises(DatasetError) as caught:
        await played(env, {"prompt": "x", **task})
    assert said in str(caught.value)


def test_folder_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="existing folder"):
        McpEnv(servers={"odd": odd()}, folder="/no/such/folder")
