"""Real environments of the library, played by envkit."""

import asyncio
import json
import signal
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fakes.pages import python_blocks

from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit_verifiers.env import VerifiersEnv
from envkit_verifiers.names import member_ids


def made(environment: str, **options: Any) -> VerifiersEnv:
    return VerifiersEnv(environment=environment, **options)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def begin(env: VerifiersEnv, index: int = 0) -> Any:
    assert env.tasks is not None
    return await env.areset(seed=0, options={"task": env.tasks.task(index)})


async def test_library_example_is_scored_by_its_own_rubric() -> None:
    reasoning_gym: Any = import_module("reasoning_gym")
    env = made("sums", arguments={"seed": 3})
    items = reasoning_gym.create_dataset("chain_sum", size=25, seed=3)
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
        assert step.info["reward_terms"] == {"check_answer_reward_func": expected}
        assert set(step.info["metrics"]) == {"check_answer_reward_func", "format_reward_func"}


async def test_reward_equals_the_library_own_rollout() -> None:
    """The same replies through `run_rollout`, with a client of the library's kind."""
    vf: Any = import_module("verifiers")
    base: Any = vf.Client
    replies = [call("multiply", a=3, b=7), "It is 21."]

    class Scripted(base):
        def __init__(self) -> None:
            super().__init__(None)
            self.turn = 0

        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            self.turn += 1
            tool = vf.ToolCall(id="a", name="multiply", arguments='{"a": 3, "b": 7}')
            message = vf.types.ResponseMessage(
                content="" if self.turn == 1 else replies[1],
                tool_calls=[tool] if self.turn == 1 else None,
                finish_reason="stop",
                is_truncated=False,
            )
            return vf.Response(id="1", created=0, model="m", message=message)

    for name in base.__abstractmethods__:
        setattr(Scripted, name, Scripted.get_response)
    Scripted.__abstractmethods__ = frozenset()
    env = made("calculator")
    assert env.tasks is not None
    task = env.tasks.task(3)
    theirs = await env._own.run_rollout(task, Scripted(), "m", {})
    await env.areset(options={"task": task})
    first = await env.astep(replies[0])
    last = await env.astep(replies[1])
    assert first.observation["text"] == "21"
    assert first.observation["role"] == "tool"
    assert last.reward == theirs["reward"] == 1.5
    assert last.info["metrics"] == theirs["metrics"]
    assert last.info["stop"] == theirs["stop_condition"] == "no_tools_called"
    assert last.info["reward_terms"] == {"is_right": 1.0, "brevity": 0.5}


async def test_tools_answer_with_text_images_and_their_errors() -> None:
    env = made("calculator")
    await begin(env, 2)
    assert [tool.name for tool in env.tools] == ["multiply", "draw"]
    assert env.tools[0].parameters["required"] == ["a", "b"]
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


async def test_game_shows_its_image_and_ends_by_its_own_message() -> None:
    env = made("guessing", split="eval", max_turns=5)
    reset = await begin(env, 2)
    assert reset.observation["text"] == "Guess my number."
    assert reset.observation["images"][0].size == (8, 10)
    assert (await env.astep("1")).observation["text"] == "higher"
    last = await env.astep("2")
    assert (last.observation["text"], last.reward, last.terminated) == ("Right.", 1.0, True)
    await begin(env, 2)
    for _ in range(4):
        assert not (await env.astep("1")).truncated
    cut = await env.astep("1")
    # The library stops before the environment answers the last reply.
    assert (cut.terminated, cut.truncated) == (False, True)
    assert cut.reward == pytest.approx(0.1 / 4)


async def test_episodes_of_one_environment_do_not_mix() -> None:
    envs = [made("guessing", split="eval", max_turns=5) for _ in range(4)]
    await asyncio.gather(*(begin(env, index) for index, env in enumerate(envs)))
    for guess in range(4):
        steps = await asyncio.gather(
            *(env.astep(str(guess)) for index, env in enumerate(envs) if index >= guess)
        )
        assert steps[0].reward == 1.0
        assert [step.observation["text"] for step in steps[1:]] == ["higher"] * (3 - guess)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("judge", "judge"),
        ("fail", "no such column"),
        ("nan", "finite number"),
        ("pool", "Math verification failed"),
        ("late", "exceeded time limit"),
    ],
)
async def test_rubric_that_fails_is_a_fault_and_no_reward(how: str, message: str) -> None:
    env = made("judged", arguments={"how": how})
    await begin(env)
    with pytest.raises(EnvFault, match=message) as caught:
        await env.astep(r"an answer: \boxed{me}")
    assert caught.value.kind is FaultKind.GRADER


@pytest.mark.parametrize("reply", ["no such answer", "nan", "\x00", "9" * 10_000])
async def test_a_reply_that_makes_the_rubric_fail_scores_0(reply: str) -> None:
    env = made("judged", arguments={"how": "picky"})
    await begin(env)
    step = await env.astep(reply)
    assert (step.reward, step.terminated, step.info["reward_terms"]) == (0.0, True, {})
    assert step.info["ungraded"]
    await begin(env)
    right = await env.astep("me")
    assert (right.reward, "ungraded" in right.info) == (1.0, False)


async def test_environment_errors_are_typed() -> None:
    env = made("guessing", split="eval")
    await begin(env)
    with pytest.raises(EnvFault, match="on fire") as caught:
        await env.astep("crash")
    assert caught.value.kind is FaultKind.PERMANENT
    await begin(env)
    with pytest.raises(EnvFault, match="SandboxError: the sandbox is gone") as caught:
        await env.astep("sandbox")
    assert caught.value.kind is FaultKind.TRANSIENT


async def test_slow_reward_function_does_not_block_the_event_loop() -> None:
    env = made("judged", arguments={"how": "slow"})
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


def test_loading_leaves_signal_handlers_alone_and_works_on_any_thread() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    made("sums", arguments={"seed": 11})
    found: list[VerifiersEnv] = []
    thread = threading.Thread(target=lambda: found.append(made("sums", arguments={"seed": 12})))
    thread.start()
    thread.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": ""}, "needs environment="),
        ({"environment": "no_such_env"}, "No module named 'no_such_env'"),
        ({"environment": "json"}, "does not have a 'load_environment'"),
        ({"environment": "sums", "arguments": {"size": 3}}, "size"),
        ({"environment": "sums", "split": "test"}, "one of 'train', 'eval', got 'test'"),
        ({"environment": "guessing"}, "no train dataset; pass split='eval'"),
        ({"environment": "calculator", "max_turns": 9}, "itself ends after 4 replies"),
        (
            {"environment": "judged", "arguments": {"how": "group"}},
            "scores the episodes of a group",
        ),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        VerifiersEnv(**options)


def test_judge_without_a_key_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        made("judged", arguments={"how": "keyless"})


async def test_task_without_prompt_and_few_shot_prompts_are_refused() -> None:
    env = made("sums")
    with pytest.raises(DatasetError, match="needs 'prompt'"):
        await env.areset(options={"task": {"answer": "1"}})
    roles = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    with pytest.raises(DatasetError, match="few-shot"):
        await env.areset(options={"task": {"prompt": roles, "answer": "1"}})
    await env.aclose()
    await env.aclose()


async def test_example_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[3] / "docs" / "environments" / "verifiers.md"
    (code,) = python_blocks(page)
    (tmp_path / "capitals.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = made("capitals", arguments={"level": 2})
    await begin(env)
    assert (await env.astep("It is Paris.")).reward == 1.0


def test_installed_environments_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, line in (("My.guess_env", "verifiers>=0.1"), ("other", "verifiers-extras")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: {line}\n")
        (tmp_path / f"{name.replace('.', '_')}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert member_ids() == ["My-guess-env-v0"]
