"""The terminal environment: protocols, grading out of reach, generated tasks, faults."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.needs import BUBBLEWRAP
from fakes.oracles import steps_of

import envkit
from envkit.env import Step
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind, UnknownNameError
from envkit.reply import FinishReason, Reply
from envkit_sandbox.commands import Protocol, read, write
from envkit_terminal import TerminalEnv
from envkit_terminal.families import FAMILIES, LEVELS, NEEDS_GIT, draw
from envkit_terminal.instructions import BASH

FAMILY_NAMES = [
    name for name in FAMILIES if name not in NEEDS_GIT or shutil.which("git", path="/usr/bin")
]


@pytest.fixture
def env() -> Iterator[TerminalEnv]:
    made = TerminalEnv(command_seconds=5.0)
    yield made
    made.close()


def own_task(*checks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"goal": "Do it.", "checks": list(checks), **fields}


def finish(env: TerminalEnv, task: dict[str, Any], *commands: str) -> Step:
    """Play commands, then end the episode."""
    env.reset(seed=1, options={"task": task})
    for command in commands:
        step = env.step(write(command, env.protocol))
        assert not step.terminated
    return env.step("Done.")


def play_oracle(env: TerminalEnv, task: dict[str, Any]) -> Step:
    return steps_of(env, seed=1, task=task)[-1]


@BUBBLEWRAP.mark
@pytest.mark.parametrize("name", FAMILY_NAMES[::3])  # the slow test below takes all
def test_oracle_solves_and_doing_nothing_fails(env: TerminalEnv, name: str) -> None:
    level = 1 + FAMILY_NAMES.index(name) % len(LEVELS)
    task = draw(name, level, 7)
    assert play_oracle(env, task).reward == 1.0
    assert finish(env, task).reward == 0.0


@BUBBLEWRAP.mark
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_oracle_solves_every_level(env: TerminalEnv, name: str) -> None:
    for level in LEVELS:
        for seed in range(3):
            task = draw(name, level, seed)
            assert play_oracle(env, task).reward == 1.0, task["goal"]
            assert finish(env, task).reward == 0.0, task["goal"]


@BUBBLEWRAP.mark
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_solution_of_another_seed_earns_nothing(env: TerminalEnv, name: str) -> None:
    level = 1 + FAMILY_NAMES.index(name) % len(LEVELS)
    solution = draw(name, level, 11)["solution"]
    assert finish(env, draw(name, level, 12), *solution).reward == 0.0


@pytest.mark.parametrize("name", FAMILIES)
def test_no_solution_recurs_over_seeds(name: str) -> None:
    solutions = [str(draw(name, 1 + seed % 3, seed)["solution"]) for seed in range(60)]
    assert len(set(solutions)) == len(solutions)


@pytest.mark.parametrize("seed", range(40))
def test_program_that_prints_the_example_fails_a_hidden_input(seed: int) -> None:
    task = draw("write_script", 1, seed)
    shown = task["goal"].rpartition(" ")[2].rstrip(".")
    assert any(check["output"] != shown for check in task["checks"])


@pytest.mark.parametrize("name", FAMILIES)
def test_goals_vary_with_the_seed(name: str) -> None:
    assert len({draw(name, 2, seed)["goal"] for seed in range(12)}) > 1


def test_splits_share_no_task() -> None:
    train, test = TerminalEnv().tasks, TerminalEnv(split="test").tasks
    assert train is not None
    assert test is not None
    goals = [{str(source.task(index)) for index in range(90)} for source in (train, test)]
    assert not goals[0] & goals[1]
    assert {task["family"] for task in map(train.task, range(90))} == FAMILIES.keys() - NEEDS_GIT


@BUBBLEWRAP.mark
def test_observation_has_output_and_exit_code(env: TerminalEnv) -> None:
    env.reset(seed=1, options={"task": own_task({"type": "absent", "path": "x"})})
    step = env.step(write("echo hello; false", env.protocol))
    assert step.observation["text"] == "hello\n[exit code 1]"
    assert step.observation["role"] == "tool"
    assert step.info["exit_codes"] == [1]
    assert step.info["tool_call"]["arguments"] == {"command": "echo hello; false"}
    assert step.info["marks"][0]["label"] == "bash"
    step = env.step(write("exit 4", env.protocol))
    assert step.observation["text"] == ("[exit code 4; the shell ended, and a new one was started]")


@BUBBLEWRAP.mark
def test_hanging_command_is_reported_and_the_episode_goes_on() -> None:
    env = TerminalEnv(command_seconds=0.3)
    task = own_task({"type": "file", "path": "a", "text": "1"})
    env.reset(seed=1, options={"task": task})
    step = env.step(write("sleep 60", env.protocol))
    assert step.observation["text"] == "[exit code 130; stopped after 0.3 s, its deadline]"
    env._seconds = 30.0  # what does not hang may take its time
    env.step(write("echo 1 > a", env.protocol))
    assert env.step("Done.").reward == 1.0


@BUBBLEWRAP.mark
def test_fenced_protocol_runs_blocks_in_order() -> None:
    env = TerminalEnv(protocol="fenced")
    assert env.tools == ()
    env.reset(seed=1, options={"task": own_task({"type": "file", "path": "a", "text": "2"})})
    step = env.step("First:\n```bash\necho 1 > a\n```\nthen\n```sh\necho 2 > a; cat a\n```\n")
    assert step.observation["text"] == "[exit code 0]\n\n2\n[exit code 0]"
    assert step.observation["role"] == "user"
    assert env.step("```python\nprint(1)\n```").reward == 1.0


@pytest.mark.parametrize(
    ("reply", "commands", "errors"),
    [
        (write("ls", Protocol.TOOLS), ("ls",), 0),
        ("All done.", (), 0),
        ('<tool_call>{"name": "bash", "arguments": {}}</tool_call>', (), 1),
        ('<tool_call>{"name": "sh", "arguments": {"command": "ls"}}</tool_call>', (), 1),
        ('<tool_call>{"name": "bash", "arguments"', (), 1),
        ("x" * 200_001, (), 1),
    ],
)
def test_reply_is_read_as_commands_or_errors(
    reply: str, commands: tuple[str, ...], errors: int
) -> None:
    found = read(Reply(text=reply), Protocol.TOOLS, BASH)
    assert found.commands == commands
    assert len(found.errors) == errors


@pytest.mark.parametrize("protocol", Protocol)
def test_no_command_of_a_cut_reply_or_a_thought_is_read(protocol: Protocol) -> None:
    text = write("rm -r x", protocol)
    thought = f"<think>Maybe\n{text}"
    for said in (
        Reply(text=text, finish=FinishReason.LENGTH),
        Reply(text=text, opened="<think>"),
        Reply(text=thought),
        Reply(text=f"{text}\n</think>\n{text}"[: -len(text) // 2], opened="<think>"),
    ):
        found = read(said, protocol, BASH)
        assert (found.commands, len(found.errors), found.is_last) == ((), 1, False)
    (command,) = read(Reply(text=f"{thought}\n</think>\n{text}"), protocol, BASH).commands
    assert command.strip() == "rm -r x"


@BUBBLEWRAP.mark
def test_malformed_call_is_explained_and_too_many_are_counted(env: TerminalEnv) -> None:
    env.reset(seed=1, options={"task": own_task({"type": "absent", "path": "x"})})
    step = env.step('<tool_call>{"name": "sh", "arguments": {}}</tool_call>')
    assert "there is no tool 'sh'" in step.observation["text"]
    assert step.info["parse_error"]
    step = env.step("\n".join(write("true", env.protocol) for _ in range(6)))
    assert "2 more commands were not run" in step.observation["text"]


@BUBBLEWRAP.mark
@pytest.mark.slow
def test_commands_of_a_reply_share_their_time() -> None:
    env = TerminalEnv(command_seconds=2.0)
    env.reset(seed=1, options={"task": own_task({"type": "absent", "path": "x"})})
    step = env.step("\n".join(write("sleep 9", env.protocol) for _ in range(4)))
    assert step.info["exit_codes"] == [130, 130]
    assert (
        "2 more commands were not run: at most 4 run in one reply, for 4 s together"
        in (step.observation["text"])
    )
    env.close()


@BUBBLEWRAP.mark
def test_last_turn_is_graded_too() -> None:
    env = TerminalEnv(max_turns=1, test_seconds=3600)
    env.reset(seed=1, options={"task": own_task({"type": "file", "path": "a", "text": "1"})})
    step = env.step(write("echo 1 > a", env.protocol))
    assert (step.reward, step.terminated, step.truncated) == (1.0, False, True)


@BUBBLEWRAP.mark
def test_unreadable_last_reply_is_not_rewarded() -> None:
    env = TerminalEnv(max_turns=1)
    env.reset(seed=1, options={"task": own_task({"type": "absent", "path": "a"})})
    step = env.step('<tool_call>{"name": "bash", "arguments": {}}</tool_call>')
    assert (step.reward, step.truncated) == (0.0, True)
    assert step.info["parse_error"]


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("printf '#!/bin/sh\\nwc -l < $1\\n' > count; chmod +x count", 1.0),
        ("printf '#!/bin/sh\\necho 2\\n' > count; chmod +x count", 0.0),
        ("printf '#!/bin/sh\\nwc -l < $1\\n' > count", 0.0),
        ("true", 0.0),
        # What follows tries to make a wrong program pass.
        ("echo 'alias count=true' > .bashrc; echo 'echo 3' > .profile", 0.0),
        ("mkdir -p /tmp/x /tests; printf 'a\\nb\\nc\\n' > /tests/3.txt", 0.0),
        ("printf '#!/bin/sh\\nkill -9 1; echo 3; kill -9 $PPID' > count; chmod +x count", 0.0),
        ("(while :; do echo 3 > out; done) & disown", 0.0),
        ("ln -s /tests/3.txt count", 0.0),
    ],
)
def test_program_is_tested_on_hidden_files_in_a_fresh_sandbox(
    env: TerminalEnv, command: str, reward: float
) -> None:
    texts = {"3": "a\nb\nc\n", "1": "a\n"}
    checks = [
        {
            "type": "run",
            "command": f"~/count /tests/{count}.txt",
            "output": count,
            "files": {f"{count}.txt": text},
        }
        for count, text in texts.items()
    ]
    assert finish(env, own_task(*checks), command).reward == reward


@BUBBLEWRAP.mark
def test_tests_give_their_exit_code(env: TerminalEnv) -> None:
    passes = {"type": "tests", "command": "bash /tests/t.sh", "files": {"t.sh": "test -f a"}}
    assert finish(env, own_task(passes), "touch a").reward == 1.0
    assert finish(env, own_task(passes), "touch b").reward == 0.0


@BUBBLEWRAP.mark
def test_too_many_final_files_score_zero(env: TerminalEnv) -> None:
    task = own_task({"type": "absent", "path": "x"})
    assert finish(env, task, "touch {1..6000}").reward == 0.0
    assert finish(env, task).reward == 1.0


@BUBBLEWRAP.mark
def test_dead_sandbox_is_a_fault_and_reset_recovers(env: TerminalEnv) -> None:
    task = own_task({"type": "file", "path": "a", "text": "1"})
    env.reset(seed=1, options={"task": task})
    assert env._session is not None
    assert env._session._process is not None
    outer = env._session._process.pid
    inner = int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])
    os.kill(inner, signal.SIGKILL)
    with pytest.raises(EnvFault):
        env.step(write("echo 1 > a", env.protocol))
    assert finish(env, task, "echo 1 > a").reward == 1.0


@BUBBLEWRAP.mark
def test_failing_setup_command_is_a_fault(env: TerminalEnv) -> None:
    task = own_task({"type": "absent", "path": "x"}, setup=["no-such-command"])
    with pytest.raises(EnvFault, match="no-such-command") as caught:
        env.reset(seed=1, options={"task": task})
    assert caught.value.kind is FaultKind.PERMANENT


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"goal": "x"},
        {"goal": "x", "checks": []},
        {"goal": "x", "checks": [{"type": "smell"}]},
        {"goal": "x", "checks": [{"type": "file", "path": "a"}]},
        own_task({"type": "absent", "path": "x"}, files={"a": 3}),
        own_task({"type": "absent", "path": "x"}, files={"a": {"base64": "!"}}),
        own_task({"type": "absent", "path": "x"}, files=[]),
    ],
)
def test_invalid_task_is_a_dataset_error(env: TerminalEnv, task: dict[str, Any]) -> None:
    with pytest.raises(DatasetError):
        env.reset(seed=1, options={"task": task})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"families": "sort_by_endin"}, UnknownNameError),
        ({"levels": [4]}, ConfigurationError),
        ({"protocol": "telnet"}, UnknownNameError),
        ({"split": "dev"}, ConfigurationError),
        ({"command_seconds": 0}, ConfigurationError),
        *(({"test_seconds": n}, ConfigurationError) for n in (0, -1.0, 3600.1, float("nan"))),
        ({"feedback_role": "system"}, ConfigurationError),
    ],
)
def test_invalid_argument_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        TerminalEnv(**arguments)


@BUBBLEWRAP.mark
@pytest.mark.slow
def test_environment_keeps_the_contract() -> None:
    env = TerminalEnv(families="find_file", levels=[1])
    report = envkit.check_env(env)
    env.close()
    assert "oracle" in report.passed
