"""Tasks played in the sandbox backend: commands, grading, damage by the policy, bad tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.harbor_tasks import CHECK, DOCKERFILE, ONE, ZERO, write_task
from fakes.oracles import steps_of

from envkit.env import Step
from envkit.errors import EnvFault, FaultKind
from envkit_sandbox.commands import write


def play(env: Any, *commands: str, name: str = "hello") -> tuple[list[Step], Step]:
    """Play commands in one episode, then end it; return their steps and the last one."""
    env.reset(seed=1, options={"task": {"name": name}})
    steps = [Step(*env.step(write(command, env.protocol))) for command in commands]
    return steps, Step(*env.step("Done."))


def test_oracle_solves_and_doing_nothing_fails(
    tasks: Path, make_env: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tasks)
    env = make_env()

    assert steps_of(env, seed=1)[-1].reward == 1.0
    (_, end) = play(env)
    assert (end.reward, end.terminated) == (0.0, True)
    assert end.info["rewards"] == {"reward": 0.0}


def test_dockerfile_is_carried_out(tasks: Path, make_env: Callable[..., Any]) -> None:
    lines = (
        "ARG NAME=ann",
        "ENV WHO=$NAME",
        "COPY data/ notes.txt /app/in/",
        "RUN tr a-z A-Z < in/notes.txt > big.txt",
    )
    files = {
        "environment/Dockerfile": DOCKERFILE + "\n".join(lines) + "\n",
        "environment/data/one.txt": "1",
        "environment/notes.txt": "notes\n",
    }
    write_task(tasks, files=files)

    ((first,), _) = play(make_env(), 'echo "$WHO $PWD $(cat big.txt) $(ls in)"')

    assert first.observation["text"].startswith("ann /app NOTES notes.txt\none.txt\n[exit code 0]")


def test_command_past_its_deadline_is_ended_inside(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    late, look = "trap '' TERM; sleep 543 & wait; sleep 543", "cat /proc/[0-9]*/cmdline"

    (steps, _) = play(make_env(command_seconds=1.0), late, look)

    assert "stopped after 1 s, its deadline" in steps[0].observation["text"]
    assert "543" not in steps[1].observation["text"].replace("\0", "")


def test_detached_command_answers_at_once_and_lives_on(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    detach = "(sleep 543; echo late) & echo started"

    (steps, _) = play(
        make_env(command_seconds=5.0), detach, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )

    assert steps[0].observation["text"] == "started\n[exit code 0]"
    assert "sleep 543" in steps[1].observation["text"]


def test_long_output_loses_its_middle(tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks)

    ((first,), _) = play(make_env(), "seq 1000000")

    text = first.observation["text"]
    assert len(text) < 13_000
    assert text.startswith("1\n2\n")
    assert text.endswith("1000000\n[exit code 0]")


LEFT_BEHIND = (
    "(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; "
    'echo "{\\"reward\\": 1}" > /logs/verifier/reward.json; sleep 0.01; done\' '
    "> /dev/null 2>&1 &); sleep 0.2; ls /logs/verifier"
)
"""A process that goes on writing the reward."""


def test_processes_left_behind_do_not_write_the_reward(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks, test=f"sleep 0.3; {ZERO}; sleep 0.3")

    ((first,), end) = play(make_env(), LEFT_BEHIND)

    assert "reward.json" in first.observation["text"]
    assert end.info["rewards"] == {"reward": 0.0}


def test_service_is_kept_on_request(tasks: Path, make_env: Callable[..., Any]) -> None:
    alive = f'if kill -0 "$(cat /app/pid)"; then {ONE}; else {ZERO}; fi'
    write_task(tasks, test=alive)
    start = "(setsid sleep 600 > /dev/null 2>&1 & echo $! > /app/pid)"

    assert play(make_env(keep_processes=True), start)[1].reward == 1.0
    assert play(make_env(), start)[1].reward == 0.0


SEPARATE = '[verifier]\ntimeout_sec = 30\nenvironment_mode = "separate"\n'


def test_separate_verifier_sees_artifacts_alone(tasks: Path, make_env: Callable[..., Any]) -> None:
    config = f'artifacts = ["/app/out.txt"]\n{SEPARATE}'
    write_task(tasks, config=config, test=f"ls /app /root; {CHECK}")
    env = make_env()

    assert steps_of(env, seed=1)[-1].reward == 1.0
    forge = f"{LEFT_BEHIND}; printf '#!/bin/sh\\n{ONE}\\n' > /usr/local/bin/cat; echo bye > out.txt"
    (_, end) = play(env, forge)
    assert end.info["rewards"] == {"reward": 0.0}


DAMAGE = {
    "a link to devices": "rm -rf /logs; ln -s /dev /logs",
    "a file for a folder": "rm -rf /tests; echo x > /tests",
    "a full disk": "cat /dev/zero > /full 2>/dev/null; true",
    "no shell": "cp /bin/rm /rm; /rm -rf /bin /lib /lib64",
    "a fork bomb": "b() { b | b & }; b > /dev/null 2>&1; sleep 0.5",
    "a killed shell": "kill -9 -1; kill -9 $$",
}


def test_damage_by_the_policy_scores_zero_and_is_no_fault(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    env = make_env(options={"disk_mib": 64})

    ends = {name: play(env, command)[1] for name, command in DAMAGE.items()}

    assert {name: end.reward for name, end in ends.items()} == dict.fromkeys(DAMAGE, 0.0)
    assert all(end.terminated for end in ends.values())
    ungraded = {name for name, end in ends.items() if "ungraded" in end.info}
    assert {"a file for a folder", "a full disk", "no shell"} <= ungraded


def test_verifier_that_the_policy_makes_hang_scores_zero(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    hang = "if [ -e /app/hang ]; then sleep 600; fi"
    write_task(tasks, test=f"{hang}; {ZERO}", config="[verifier]\ntimeout_sec = 2\n")

    (_, end) = play(make_env(), "touch hang")

    assert end.reward == 0.0
    assert "VerifierTimeoutError" in end.info["ungraded"]


BROKEN = {
    "silent": ("true", "RewardFileNotFoundError"),
    "word": ("echo yes > /logs/verifier/reward.txt", "VerifierOutputParseError"),
    "number": ("echo 1 > /logs/verifier/reward.json", "ValidationError"),
    "late": ("sleep 600", "VerifierTimeoutError"),
    "keys": ("""echo '{"a": 1, "b": 0}' > /logs/verifier/reward.json""", "reward_key="),
}


def test_verifier_that_is_broken_is_a_grader_fault(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    for name, (test, _) in BROKEN.items():
        write_task(tasks, name, test=test, config="[verifier]\ntimeout_sec = 1.5\n")
    env = make_env()

    for name, (_, reason) in BROKEN.items():
        with pytest.raises(EnvFault, match="untouched state") as caught:
            play(env, name=name)
        assert caught.value.kind is FaultKind.GRADER
        assert reason in str(caught.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "hosts": (
        {"config": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example"]\n'},
        "the task lists hosts",
    ),
    "step": (
        {"files": {"environment/Dockerfile": "FROM x\nRUN echo no >&2; exit 3\n"}},
        "failed with exit code 3: no",
    ),
    "unknown": ({"files": {"environment/Dockerfile": "FROM x\nONBUILD RUN x\n"}}, "ONBUILD"),
    "compose": ({"files": {"environment/docker-compose.yaml": "services: {}\n"}}, "docker compose"),
    "gpu": ({"config": "[environment]\ngpus = 1\n"}, "GPU"),
    "variable": (
        {"config": '[environment]\nenv = { A = "${ENVKIT_NO_SUCH}" }\n'},
        "ENVKIT_NO_SUCH",
    ),
    "type": ({"config": '[environment]\nmemory_mb = "much"\n'}, "memory_mb"),
    "key": ({"config": "[agent.network]\nmode = 'off'\n"}, "ignores: agent.network;"),
    "newer": ({"config": 'schema_version = "1.10"\n'}, "schema_version '1.10'"),
}


def test_task_that_cannot_be_played_is_refused_alone(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    for name, (given, _) in REFUSED.items():
        write_task(tasks, name, **given)
    env = make_env()

    env.reset(seed=1, options={"task": {"name": "hello"}})
    other = make_env()
    for name, (_, reason) in REFUSED.items():
        with pytest.raises(EnvFault, match="cannot be started with 'bubblewrap'") as caught:
            other.reset(seed=1, options={"task": {"name": name}})
        assert reason in str(caught.value)
        assert caught.value.kind is FaultKind.PERMANENT or name == "gpu"
    env.step(write("echo hello > out.txt", env.protocol))
    assert Step(*env.step("Done.")).reward == 1.0


def test_unknown_keys_are_ignored_on_request(tasks: Path, make_env: Callable[..., Any]) -> None:
    old = 'version = "1.0"\n[metadata]\nanything = { goes = 1 }\n'
    write_task(tasks, "old", config=old)
    write_task(tasks, "new", config='schema_version = "9.0"\nfuture = 1\n')

    make_env().reset(seed=1, options={"task": {"name": "old"}})
    make_env(ignore_unknown=True).reset(seed=1, options={"task": {"name": "new"}})


def test_user_other_than_root_is_refused(tasks: Path, make_env: Callable[..., Any]) -> None:
    write_task(tasks, config='[agent]\nuser = "ann"\n')
    env = make_env()
    env.reset(seed=1)

    with pytest.raises(EnvFault, match="user root alone"):
        env.step(write("id", env.protocol))


@pytest.mark.parametrize("mode", ["public", "no-network"])
def test_there_is_no_network(tasks: Path, make_env: Callable[..., Any], mode: str) -> None:
    write_task(tasks, config=f'[environment]\nnetwork_mode = "{mode}"\n')
    command = "exec 3<>/dev/tcp/192.0.2.1/80; cat /proc/net/dev | tail -n +3"

    ((first,), _) = play(make_env(), command)

    assert "unreachable" in first.observation["text"]
    assert first.observation["text"].count(":") < 10
    assert "eth" not in first.observation["text"]


def test_sandbox_gives_no_rights_over_the_machine(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks)
    tries = (
        "mount -t tmpfs x /mnt",
        "unshare --user true",
        "echo 1 > /proc/sys/kernel/panic",
        "mknod /app/sda b 8 0",
        "touch /usr/x",
        "kill -9 1; test -e /proc/1/status && false",
    )

    ((first,), _) = play(
        make_env(), "; ".join(f"({one}) 2>/dev/null && echo done" for one in tries)
    )

    assert "done" not in first.observation["text"]


def test_reply_that_cannot_be_parsed_at_the_end_scores_zero(
    tasks: Path, make_env: Callable[..., Any]
) -> None:
    write_task(tasks, test=ONE)
    env = make_env(max_turns=1, protocol="fenced")
    env.reset(seed=1)

    end = Step(*env.step("```bash\necho"))

    assert (end.reward, end.truncated) == (0.0, True)
