"""Real environments of the library, played by envkit."""

import asyncio
import json
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fakes.pages import python_blocks

from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit_verifiers import serving
from envkit_verifiers.env import VerifiersEnv
from envkit_verifiers.names import member_ids


def made(environment: str, **options: Any) -> VerifiersEnv:
    return VerifiersEnv(environment=environment, **options)


def twisting(how: str, **arguments: Any) -> VerifiersEnv:
    return made("twisting", arguments={"taskset": {"task": {"how": how}}, **arguments})


def judged(how: str, **taskset: Any) -> VerifiersEnv:
    return made("judged", arguments={"taskset": {"task": {"how": how}, **taskset}})


def call(name: str, **arguments: Any) -> str:
    written = {"name": f"calculator_{name}", "arguments": arguments}
    return f"<tool_call>{json.dumps(written)}</tool_call>"


async def begin(env: VerifiersEnv, index: int = 0) -> Any:
    assert env.tasks is not None
    return await env.areset(seed=0, options={"task": env.tasks.task(index)})


async def test_reasoning_gym_is_scored_by_its_own_function() -> None:
    reasoning_gym: Any = import_module("reasoning_gym")
    env = made("sums", arguments={"taskset": {"seed": 3}})
    items = reasoning_gym.create_dataset("chain_sum", size=20, seed=3)
    assert env.tasks is not None
    assert env.tasks.size == 20
    for index in range(5):
        reset = await begin(env, index)
        assert reset.observation["text"] == items[index]["question"]
        assert env.system_prompt == reasoning_gym.utils.SYSTEM_PROMPTS["default"]
        answer = items[index]["answer"] if index % 2 else "no number"
        step = await env.astep(f"So it is <answer>{answer}</answer>")
        expected = items.score_answer(answer, items[index])
        assert (step.reward, step.terminated, step.truncated) == (expected, True, False)
        assert step.info["reward_terms"] == {"correct": expected}
        assert step.info["metrics"] == {"has_tags": 1.0}


async def test_reward_equals_the_library_own_episode_with_a_served_model() -> None:
    """The same replies from a server, by the library's own client, in envkit's chat loop."""
    vf: Any = import_module("verifiers.v1")
    arguments = '{"a": 3, "b": 7}'
    function = {"name": "calculator_multiply", "arguments": arguments}
    replies = [
        {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"content": "It is 21."},
    ]
    requests: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        requests.append(await request.json())
        message = {"role": "assistant", **replies[len(requests) - 1]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        return web.json_response({**body, "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    agent = {"harness": {"id": "envkit-verifiers"}, "runtime": {"type": "subprocess"}}
    theirs: Any = vf.load_environment(
        vf.resolve_env_config({"taskset": {"id": "calculator"}, "agent": agent})
    )
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
    async with theirs.serving():
        episode = await theirs.run_episode(
            list(theirs.taskset)[3], vf.ModelContext(model="m", client=client)
        )
    await runner.cleanup()
    (trace,) = episode.traces
    assert trace.ok
    assert [message["role"] for message in requests[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]

    env = made("calculator")
    await begin(env, 3)
    first = await env.astep(call("multiply", a=3, b=7))
    last = await env.astep("It is 21.")
    assert first.observation["text"] == "21" == requests[1]["messages"][-1]["content"]
    assert first.observation["role"] == "tool"
    assert last.reward == trace.reward == 1.5
    assert last.info["metrics"] == trace.metrics == {"calls": 1.0}
    assert last.info["stop"] == trace.stop_condition == "agent_completed"
    assert last.info["reward_terms"] == {"is_right": 1.0, "brevity": 0.5}


async def test_tools_answer_with_text_images_and_their_errors() -> None:
    env = made("calculator", max_turns=4)
    await begin(env, 2)
    assert [tool.name for tool in env.tools] == ["calculator_draw", "calculator_multiply"]
    assert env.tools[1].parameters["required"] == ["a", "b"]
    step = await env.astep(call("draw", width=30) + call("multiply", a=1, b=2))
    assert step.observation["text"] == "The bar:\n\n2"
    (image,) = step.observation["images"]
    assert image.size == (30, 20)
    assert step.observation["role"] == "tool"
    wrong = await env.astep(call("draw", width=0))
    assert "width must be positive" in wrong.observation["text"]
    assert not wrong.terminated
    await env.astep(call("multiply", a=1, b=2))
    cut = await env.astep(call("multiply", a=1, b=2))
    assert (cut.terminated, cut.truncated, cut.reward) == (False, True, 0.0)
    assert cut.info["stop"] == "max_turns"
    await begin(env, 2)
    unknown = await env.astep(call("divide", a=1))
    assert "unknown tool 'calculator_divide'" in unknown.observation["text"]
    assert not unknown.terminated
    await env.aclose()


async def test_game_shows_its_image_and_ends_by_its_own_rule() -> None:
    env = made("guessing", max_turns=5)
    reset = await begin(env, 2)
    assert reset.observation["text"] == "Guess my number."
    assert reset.observation["images"][0].size == (8, 10)
    assert (await env.astep("1")).observation["text"] == "higher"
    last = await env.astep("2")
    assert (last.reward, last.terminated, last.info["stop"]) == (1.0, True, "user_closed")
    await begin(env, 2)
    for _ in range(4):
        assert not (await env.astep("1")).truncated
    cut = await env.astep("1")
    assert (cut.terminated, cut.truncated) == (False, True)
    assert cut.reward == pytest.approx(0.1 / 5)


async def test_episodes_of_one_environment_do_not_mix() -> None:
    envs = [made("guessing", max_turns=5) for _ in range(4)]
    await asyncio.gather(*(begin(env, index) for index, env in enumerate(envs)))
    for guess in range(4):
        steps = await asyncio.gather(
            *(env.astep(str(guess)) for index, env in enumerate(envs) if index >= guess)
        )
        assert steps[0].reward == 1.0
        assert [step.observation["text"] for step in steps[1:]] == ["higher"] * (3 - guess)


async def test_harness_of_an_environment_streams_the_policy_reply() -> None:
    env = made("streams")
    assert env.tasks is not None
    assert env.tasks.size is None
    assert env.tasks.task(7)["prompt"] == "Say 7."
    reset = await begin(env, 3)
    assert reset.observation["text"] == "Say 3."
    step = await env.astep("three")
    assert (step.reward, step.info["metrics"]) == (5.0, {"streamed": 5.0})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("judge", "Connection error"),
        ("fail", "no such column"),
        ("nan", "finite number"),
        ("late", "scoring_timeout"),
        ("crosswise", "nothing to compare"),
    ],
)
async def test_scoring_that_fails_is_a_fault_and_no_reward(how: str, message: str) -> None:
    env = judged(how, **({"scoring_s": 0.1} if how == "late" else {}))
    await begin(env)
    with pytest.raises(EnvFault, match=message) as caught:
        await env.astep("an answer")
    assert caught.value.kind is FaultKind.GRADER


@pytest.mark.parametrize("reply", ["no such answer", "nan", "\x00", "9" * 10_000])
async def test_a_reply_that_makes_the_scoring_fail_scores_0(reply: str) -> None:
    env = judged("picky")
    await begin(env)
    step = await env.astep(reply)
    assert (step.reward, step.terminated, step.info["reward_terms"]) == (0.0, True, {})
    assert step.info["ungraded"]
    await begin(env)
    right = await env.astep("me")
    assert (right.reward, "ungraded" in right.info) == (1.0, False)


async def test_what_a_policy_left_that_breaks_finalize_scores_0() -> None:
    env = judged("finalize")
    await begin(env)
    assert "no such file" in (await env.astep("you")).info["ungraded"]
    await begin(env)
    assert (await env.astep("me")).reward == 1.0


async def test_environment_errors_are_typed() -> None:
    env = made("guessing")
    await begin(env)
    with pytest.raises(EnvFault, match="on fire") as caught:
        await env.astep("crash")
    assert caught.value.kind is FaultKind.PERMANENT
    await begin(env)
    with pytest.raises(EnvFault, match="SandboxError: the sandbox is gone") as caught:
        await env.astep("sandbox")
    assert caught.value.kind is FaultKind.TRANSIENT
    with pytest.raises(EnvFault, match=r"TaskError.*no board") as caught:
        await begin(twisting("setup"))
    assert caught.value.kind is FaultKind.PERMANENT
    with pytest.raises(EnvFault, match="ProviderError") as caught:
        await begin(twisting("other"))
    assert caught.value.kind is FaultKind.TRANSIENT


async def test_deadline_that_counts_the_policy_time_is_a_timeout_fault() -> None:
    env = twisting("plain", player={"timeout": {"rollout": 3.0}})
    await begin(env)
    await asyncio.sleep(3.5)
    with pytest.raises(EnvFault, match="its own timeout") as caught:
        await env.astep("late")
    assert caught.value.kind is FaultKind.TIMEOUT


@pytest.mark.parametrize(
    ("how", "message"),
    [("both", "one reply at a time"), ("nobody", "ran no agent")],
)
async def test_episode_that_one_policy_cannot_play_is_a_fault(how: str, message: str) -> None:
    env = twisting(how, max_concurrent_agents=None)

    async def play() -> None:
        await begin(env)
        await env.astep("one")
        await env.astep("two")

    with pytest.raises(EnvFault, match=message) as caught:
        await play()
    assert caught.value.kind is FaultKind.PERMANENT
    await env.aclose()


async def test_replaced_reply_is_a_fault_and_a_rewritten_request_is_shown() -> None:
    env = twisting("reply")
    await begin(env)
    with pytest.raises(EnvFault, match="keep the policy's reply"):
        await env.astep("one")
    env = twisting("request")
    assert (await begin(env)).observation["text"] == "WHAT NOW?"
    assert (await env.astep("one")).observation["text"] == "AND THEN?"
    last = await env.astep("two")
    assert (last.reward, last.terminated, last.info["stop"]) == (0.5, True, "user_closed")


async def test_own_stop_condition_terminates() -> None:
    env = twisting("plain")
    await begin(env)
    last = await env.astep("please stop")
    assert (last.terminated, last.truncated, last.info["stop"]) == (True, False, "said_stop")
    assert last.reward == 0.5


async def test_slow_reward_function_does_not_block_the_event_loop() -> None:
    env = judged("slow")
    await begin(env)
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            longest = max(longest, time.perf_counter() - before)

    watching = asyncio.create_task(watch())
    assert (await env.astep("x")).reward == 1.0
    running = False
    await watching
    assert longest < 0.4  # the function sleeps 0.5 s on the loop that calls it


async def test_closed_episode_leaves_nothing_running() -> None:
    env = made("guessing")
    await begin(env)
    await env.aclose()
    await env.aclose()
    (thread,) = [one for one in threading.enumerate() if one.name == "envkit-verifiers"]
    assert thread.daemon
    await begin(env, 1)
    assert (await env.astep("1")).reward == 1.0


async def test_servers_end_with_the_process_although_an_episode_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endings: list[Any] = []
    monkeypatch.setattr(serving.atexit, "register", lambda *found: endings.append(found))
    await begin(made("guessing", max_turns=7))  # a setting of its own has servers of its own
    ((end, task, loop),) = endings
    await asyncio.to_thread(end, task, loop)
    assert task.done()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": ""}, "needs environment="),
        ({"environment": "no_such_env"}, "No module named 'no_such_env'"),
        ({"environment": "json"}, "exports no Taskset subclass"),
        ({"environment": "sums", "arguments": {"taskset": {"width": 3}}}, "width"),
        ({"environment": "sums", "arguments": {"taskset": {"size": 0}}}, "size|at least one"),
        ({"environment": "sums", "arguments": {"taskset": {"id": "x"}}}, "without 'id'"),
        (
            {"environment": "sums", "arguments": {"agent": {"max_turns": 4}}, "max_turns": 9},
            "4 rep",
        ),
        ({"environment": "twisting", "arguments": {"other": {"client": None}}}, "plays one agent"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VerifiersEnv(**options)


async def test_other_tasks_and_few_shot_prompts_are_refused() -> None:
    env = made("sums")
    with pytest.raises(DatasetError, match="not a task of 'sums'"):
        await env.areset(options={"task": {"answer": "1"}})
    with pytest.raises(DatasetError, match="few-shot"):
        await begin(twisting("few"))
    assert env.tasks is not None
    with pytest.raises(DatasetError, match="0 to 19, got 20"):
        env.tasks.task(20)


async def test_example_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[3] / "docs" / "environments" / "verifiers.md"
    (code,) = python_blocks(page)
    (tmp_path / "capitals.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = made("capitals", arguments={"taskset": {"level": 2}})
    await begin(env)
    assert (await env.astep("It is Paris.")).reward == 1.0


def test_installed_environments_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, line in (("My.guess_env", "verifiers>=0.1"), ("other", "verifiers-extras")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: {line}\n")
        (tmp_path / f"{name.replace('.', '_').lower()}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert member_ids() == ["My-guess-env-v0"]
