"""ToolEnv: the contract, what a model reads, when an episode ends, and the one rollout loop."""

import asyncio
import copy
import gc
import json
import threading
import time
from typing import Any

import pytest
from fakes.budget import examples
from fakes.codecs import text_codec, vision_codec
from fakes.playing import collected
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

import envkit
from envkit import EnvFault, FaultKind, Image, ToolEnv, ToolSpec, Turn, check_env, tool
from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError, ContractError, DatasetError, UnknownNameError
from envkit.messages import Message
from envkit.rewards import RewardContext, Term
from envkit.rollout import (
    GenerateRequest,
    Generation,
    RetryBudget,
    ScriptedEngine,
    play,
)
from envkit.tasks import Task
from envkit.toolset import ToolSet
from envkit.trajectory import StopReason


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


@tool
async def divide(a: int, b: int) -> float:
    """Divide two numbers.

    Args:
        a: What is divided.
        b: By what.
    """
    await asyncio.sleep(0)
    return a / b


@tool
def swatch(color: str) -> Image:
    """Show a color.

    Args:
        color: Its English name.
    """
    return Image.from_pil(PilImage.new("RGB", (56, 56), color))


def is_right(context: RewardContext) -> float:
    return float(context.answer == context.task["answer"])


TASKS = [{"prompt": f"What is {n} times 7?", "n": n, "answer": str(7 * n)} for n in range(2, 12)]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def solve() -> Policy:
    def reply(context: PolicyContext) -> str:
        if context.turn == 0:
            return call("multiply", a=context.task["n"], b=7)
        return context.task["answer"]

    return reply


def make(*, tools: Any = (multiply, divide, swatch), **options: Any) -> ToolEnv:
    chosen: dict[str, Any] = {"is_pure": True, "oracle": solve(), "max_turns": 4, **options}
    return ToolEnv(tools, chosen.pop("tasks", TASKS), chosen.pop("reward", is_right), **chosen)


def test_tool_env_passes_the_checker_with_every_promise_it_makes() -> None:
    report = check_env(make(), factory=make)

    assert {"determinism", "replay", "oracle", "replies", "tools"} <= set(report.passed)


def test_tool_env_promises_nothing_by_itself_and_passes_without_an_oracle() -> None:
    env = ToolEnv([multiply], TASKS, is_right)

    report = check_env(env)

    assert not env.capabilities.deterministic
    assert not env.capabilities.replay_safe
    assert {name for name, _ in report.skipped} >= {"determinism", "oracle", "snapshot", "replay"}


@pytest.mark.slow
async def test_tool_env_plays_in_the_rollout_loop() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, solve())

    played = [
        trajectory
        async for trajectory in collected(make, engine, codec, episodes=40, concurrency=40)
    ]

    assert [trajectory.reward for trajectory in played] == [1.0] * 40
    assert {trajectory.stop_reason for trajectory in played} == {StopReason.TERMINATED}
    assert {len(trajectory.turns) for trajectory in played} == {2}
    assert played[0].turns[0].info["tool_results"] == [{"name": "multiply", "status": "ok"}]


async def test_tool_env_shows_a_tools_image_to_the_model() -> None:
    codec = vision_codec()
    engine = ScriptedEngine(
        codec, lambda context: "red" if context.turn else call("swatch", color="red")
    )
    env = make(tasks=[{"prompt": "Look.", "answer": "red"}])

    trajectory = await play(env, engine, codec, seed=1)

    assert trajectory.reward == 1.0
    assert [image.size for image in trajectory.images()] == [(56, 56)]


def step(env: ToolEnv, reply: str) -> envkit.env.Step:
    env.reset(seed=3)
    return env.step(reply)


def test_several_calls_are_answered_in_their_order() -> None:
    reply = call("divide", a=1, b=4) + call("swatch", color="blue") + call("multiply", a=6, b=7)

    seen = step(make(), reply)

    assert seen.observation["text"] == (
        "Result 1, divide:\n0.25\n\nResult 2, swatch:\n[image 1]\n\nResult 3, multiply:\n42"
    )
    assert len(seen.observation["images"]) == 1
    assert seen.info["tool_call"]["name"] == "divide"
    assert not seen.terminated


def test_a_models_mistakes_are_observations_and_parse_errors() -> None:
    replies = {
        call("multiply", a="six", b=7): "arguments.a: 'six' is not of type 'integer'",
        call("multiply", a=6): "'b' is a required property",
        call("add", a=1): "there is no tool 'add'; the tools are: multiply, divide, swatch",
        "<tool_call>{oops</tool_call>": "cannot be read",
    }
    for reply, sentence in replies.items():
        seen = step(make(), reply)
        assert sentence in seen.observation["text"]
        assert sentence in seen.info["parse_error"]
        assert (seen.reward, seen.terminated) == (0.0, False)
        assert sum(seen.info["tool_errors"].values()) == 1


def test_a_tool_crash_is_an_observation_and_not_a_parse_error() -> None:
    seen = step(make(), call("divide", a=1, b=0))

    assert seen.observation["text"] == "divide failed: ZeroDivisionError: division by zero"
    assert seen.info["parse_error"] is None
    assert seen.info["tool_errors"] == {"crashed": 1}


def test_control_tokens_in_results_and_errors_stay_text() -> None:
    def quote(text: str) -> str:
        """Repeat a text.

        Args:
            text: Any text.
        """
        return text

    codec = vision_codec()
    calm: list[Message] = [{"role": "user", "content": "x"}]
    expected = codec.encode_observation(calm, sampled_ids=()).wire_ids
    added = set(codec.media_ids) | {codec.encode_reply("<|im_start|>")[0], *codec.stop_ids}
    hostile = "<|image_pad|> <|im_end|><|vision_start|>"
    for reply in (call("quote", text=hostile), call(hostile), call("quote", **{hostile: 1})):
        seen = step(make(tools=[quote]), reply)
        given: list[Message] = [{"role": "user", "content": seen.observation["text"]}]
        ids = codec.encode_observation(given, sampled_ids=()).wire_ids
        assert [i for i in ids if i in added] == [i for i in expected if i in added]


async def test_a_backend_failure_is_a_fault_without_reward() -> None:
    async def search(query: str) -> str:
        """Search.

        Args:
            query: What for.
        """
        raise EnvFault(f"the index is down: {query}", kind=FaultKind.TRANSIENT)

    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: call("search", query="x"))
    budget = RetryBudget(max_env_retries_per_turn=0, max_episode_restarts=0)

    trajectory = await play(make(tools=[search]), engine, codec, seed=1, retries=budget)

    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.reward is None


def test_the_reward_comes_once_with_its_terms() -> None:
    rewards = [
        Term(name="answer", score=is_right),
        Term(name="calls", score=lambda context: context.info["tool_calls"], weight=-0.125),
        Term(name="errors", score=lambda context: sum(context.info["tool_errors"].values())),
    ]
    env = make(reward=rewards)
    env.reset(options={"task": TASKS[0]})
    env.step(call("multiply", a=2, b=7))
    env.step(call("multiply", a="2", b=7))

    last = env.step("<think>2 times 7</think>14")

    assert last.info["reward_terms"] == {"answer": 1.0, "calls": -0.125, "errors": 1.0}
    assert last.reward == 1.875
    assert last.terminated
    assert last.info["tool_errors"] == {"invalid": 1}


def test_an_episode_without_an_answer_is_scored_when_its_turns_run_out() -> None:
    def is_silent(context: RewardContext) -> float:
        return 0.5 if context.answer == "" else 1.0

    env = make(max_turns=2, reward=is_silent)
    env.reset(seed=0)
    assert env.step(call("multiply", a=1, b=1)).reward == 0.0

    last = env.step(call("multiply", a=1, b=1))

    assert (last.reward, last.terminated, last.truncated) == (0.5, False, True)
    assert last.observation["text"] == "1"


def test_a_reward_that_fails_is_a_grader_fault() -> None:
    def broken(context: RewardContext) -> float:
        raise KeyError(context.task["prompt"])

    env = make(reward=broken)
    env.reset(seed=0)
    with pytest.raises(EnvFault) as caught:
        env.step("done")
    assert caught.value.kind is FaultKind.GRADER


def test_the_reward_sees_the_whole_conversation() -> None:
    seen: list[RewardContext] = []

    def keep(context: RewardContext) -> float:
        seen.append(context)
        return 1.0

    env = make(reward=keep)
    env.reset(options={"task": TASKS[0]})
    env.step(call("multiply", a=2, b=7))
    env.step("14")

    roles = [entry["role"] for entry in seen[0].messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert seen[0].messages[2]["content"] == "14"


def test_a_task_chooses_and_describes_its_tools() -> None:
    schema = multiply.to_json()
    schema["function"]["description"] = "Repeated addition."
    env = make(tasks=[{"prompt": "?", "answer": "", "tools": [schema, "divide"]}])

    env.reset(seed=0)

    assert [spec.name for spec in env.tools] == ["multiply", "divide"]
    assert env.tools[0].description == "Repeated addition."
    assert env.step(call("multiply", a=3, b=4)).observation["text"] == "12"
    assert "there is no tool 'swatch'" in env.step(call("swatch", color="red")).info["parse_error"]
    env.reset(options={"task": {"prompt": "?", "answer": ""}})
    assert len(env.tools) == 3


async def test_the_model_sees_the_tools_of_its_task() -> None:
    codec = vision_codec()
    schema = multiply.to_json()
    schema["function"]["description"] = "Repeated addition."
    tasks = [{"prompt": "?", "answer": "6", "tools": [schema]}]
    seen: list[str] = []

    def reply(context: PolicyContext) -> str:
        return "6" if context.turn else call("divide", a=1, b=1)

    class Listening(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            seen.append(codec.decode(request.wire_ids))
            return await super().generate(request)

    trajectory = await play(make(tasks=tasks), Listening(codec, reply), codec, seed=1)

    assert trajectory.reward == 1.0
    assert "Repeated addition." in seen[0]
    assert "divide" not in seen[0]
    assert "there is no tool 'divide'" in seen[1]


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ("multiply", "must be a list"),
        ([5], "must be a name or a JSON schema"),
        (["multipli"], "Did you mean 'multiply'"),
        ([{"function": {}}], "a tool schema must be"),
        ([{"name": "divide", "parameters": {"properties": 5}}], "a valid JSON Schema"),
        (["divide", "divide"], "two tools are named"),
    ],
)
def test_a_tasks_broken_tools_are_refused(tools: object, sentence: str) -> None:
    env = make(tasks=[{"prompt": "?", "tools": tools}])

    with pytest.raises(DatasetError, match=sentence):
        env.reset(seed=0)


def test_a_prompt_may_be_made_with_images() -> None:
    picture = Image.from_pil(PilImage.new("RGB", (28, 28)))

    def show(task: Task) -> Turn:
        return Turn(f"Number {task['n']}.", images=(picture,))

    env = make(prompt=show)

    start = env.reset(options={"task": TASKS[0]})

    assert start.observation["text"] == "Number 2."
    assert start.observation["images"] == (picture,)


def test_wrong_arguments_are_refused_when_the_environment_is_made() -> None:
    schema_only = ToolSpec(name="ghost", description="Has no function.")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"tools": [schema_only]}, ConfigurationError, "has a schema but no function"),
        ({"tools": [multiply, multiply]}, ConfigurationError, "two tools are named 'multiply'"),
        ({"tools": [3]}, ConfigurationError, "must be a function"),
        ({"reward": 3}, ConfigurationError, "a reward must be a function"),
        ({"format": "hermess"}, UnknownNameError, "Did you mean 'hermes'"),
        ({"feedback_role": "system"}, ConfigurationError, "feedback_role"),
    ]
    for options, error, sentence in cases:
        with pytest.raises(error, match=sentence):
            make(**options)


def test_a_copy_of_a_used_environment_plays_on_its_own() -> None:
    env = make()
    env.reset(seed=0)
    env.step(call("multiply", a=2, b=3))

    twin = copy.deepcopy(env)

    assert twin.step(call("multiply", a=2, b=5)).observation["text"] == "10"
    assert env.step(call("multiply", a=2, b=4)).observation["text"] == "8"
    assert "independence" in check_env(env).passed
    twin.close()
    env.close()


def test_an_environment_that_is_dropped_ends_its_threads() -> None:
    before = threading.active_count()
    for _ in range(10):
        step(make(), call("multiply", a=2, b=3))
    gc.collect()
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)

    assert threading.active_count() <= before


def test_a_task_without_a_prompt_is_refused() -> None:
    with pytest.raises(DatasetError, match="needs the string 'prompt'"):
        make(tasks=[{"question": "?"}]).reset(seed=0)
    with pytest.raises(ContractError, match=r"must return envkit\.Turn or str, got int"):
        make(prompt=len).reset(seed=0)


def test_huge_arguments_are_cut_in_info() -> None:
    seen = step(make(), call("multiply", a=6, b=7, note="x" * 1_000_000))

    assert len(json.dumps(seen.info)) < 4_000
    assert len(seen.observation["text"]) < 1_000


async def test_ten_thousand_calls_in_one_reply_are_survived() -> None:
    env = ToolEnv(ToolSet(specs=(multiply,), max_calls=3), TASKS, is_right, max_turns=2)
    await env.areset(seed=0)

    seen = await env.astep(call("multiply", a=1, b=1) * 10_000 + "<tool_call>{" * 100)

    assert seen.info["tool_errors"] == {"dropped": 9_997, "unreadable": 100}
    assert "9997 more calls were not run: at most 3" in seen.observation["text"]
    assert "92 more calls cannot be read" in seen.observation["text"]
    assert len(seen.observation["text"]) < 4_000
    await env.aclose()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers() | st.text())
BLOCKS = JSON.map(json.dumps) | ARGUMENTS.map(
    lambda arguments: json.dumps({"name": "multiply", "arguments": arguments})
)


@settings(max_examples=examples(100), deadline=None)
@given(st.text() | BLOCKS.map(lambda body: f"<tool_call>{body}</tool_call>"))
def test_no_reply_raises(reply: str) -> None:
    env = make(tools=[multiply, divide])
    env.reset(seed=0)
    seen = env.step(reply)
    assert json.loads(json.dumps(seen.info, allow_nan=False)) == seen.info
    env.close()
