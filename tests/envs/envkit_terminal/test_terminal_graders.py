"""Rewards of test scripts: what the policy leaves neither forges one nor turns a 0 into a fault."""

import time
from typing import Any

import psutil
import pytest
from fakes.matrix import share
from fakes.needs import BUBBLEWRAP
from fakes.terminal_plays import left

from envkit.errors import DatasetError, EnvFault, FaultKind
from envkit.grading import UngradedError
from envkit_sandbox.commands import write
from envkit_terminal import Limits, TerminalEnv
from envkit_terminal.grading import reward_of
from envkit_terminal.tasks import check_task

CHECK_PY = """import dataclasses
import helper
helper.leave(float(open("/app/answer.txt").read().strip() == "42"))
"""
HELPER_PY = """import json
def leave(reward):
    with open("/logs/verifier/reward.json", "w") as file:
        json.dump({"reward": reward}, file)
"""
COMMAND_SH = """#!/bin/bash -l
cd /app
source "$HOME/.local/bin/env"
export PYTHONPATH=/tests:$PYTHONPATH
python3 -c 'import dataclasses, json
json.dump({"reward": float(open("answer.txt").read().strip() == "42")}, open("/tmp/found", "w"))'
git --version > /dev/null
python3 - <<'END'
import copy, shutil
shutil.copy("/tmp/found", "/logs/verifier/reward.json")
END
"""
PYTEST_SH = """#!/bin/bash
python3 -m pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FORGE = "import os; open('/logs/verifier/reward.json', 'w').write('{\"reward\": 1}'); os._exit(0)"
USER_SITE = 'cd "$(python3 -m site --user-site)"'


def graded(
    script: str, *, seconds: Any = 20.0, tests: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """Return a task whose test script writes a reward file."""
    check = {
        "type": "tests",
        "command": "/tests/test.sh" if script.startswith("#!") else "bash /tests/test.sh",
        "files": {"test.sh": script, **(tests or {})},
        "seconds": seconds,
        "reads_reward": True,
    }
    return {"goal": "Do it.", "folders": ["/app"], "folder": "/app", "checks": [check], **fields}


PLAIN = graded("python3 /tests/check.py\n", tests={"check.py": CHECK_PY, "helper.py": HELPER_PY})
HUNG = graded(
    "python3 /tests/check.py\n", tests={"check.py": CHECK_PY, "helper.py": HELPER_PY}, seconds=3.0
)
"""The same, for an answer that the script waits for in vain."""
COMMAND = graded(COMMAND_SH)
BARE = graded(
    "env -i /usr/bin/python3 /tests/check.py; env -i bash -lc true",
    tests={"check.py": CHECK_PY, "helper.py": HELPER_PY},
)


@BUBBLEWRAP.mark
@pytest.mark.parametrize("task", [PLAIN, COMMAND, BARE], ids=["script", "commands", "bare"])
def test_right_answer_is_rewarded(task: dict[str, Any]) -> None:
    assert left(task, "echo 42 > answer.txt").reward == 1.0


PLANTS = {
    "module of the user site": f"mkdir -p ~/.local; {USER_SITE} || mkdir -p $(python3 -m site "
    f'--user-site) && {USER_SITE}; echo "{FORGE}" | tee usercustomize.py sitecustomize.py',
    "path file of the user site": "p=$(python3 -m site --user-site); mkdir -p $p; "
    'echo "import os; os._exit(0)" > $p/a.pth',
    "modules of the standard library": "for m in json dataclasses copy shutil enum codecs; do "
    f'echo "{FORGE}" > $m.py; done',
    "modules that the standard library tries": "mkdir -p org/python; touch org/__init__.py "
    f'org/python/__init__.py; echo "{FORGE}" > org/python/core.py',
    "the helper of the test": "mkdir -p /app/helper; "
    f'echo "{FORGE}" | tee helper.py helper/__init__.py',
    "start-up files of the shell": "printf 'echo 1 > /logs/verifier/reward.txt; exit' | tee "
    "~/.bashrc ~/.bash_profile ~/.profile ~/.bash_login ~/.bash_logout .bashrc",
    "programs in the home folder": "mkdir -p ~/.local/bin ~/bin; for p in python3 bash env git; do "
    "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' | tee ~/.local/bin/$p ~/bin/$p $p; "
    "chmod +x ~/.local/bin/$p ~/bin/$p $p; done",
    "links to the reward folder": r"""cd ~; ln -s /logs/verifier $'a\xff'; """
    r"""mkdir -p $'a\xfe'; echo '{"reward": 1}' > $'a\xfe/reward.json'; """
    "ln -s /logs/verifier logs",
    "files of other folders": "echo 1 | tee reward.txt reward.json ~/reward.txt /tmp/found",
    "a process that goes on": "(setsid sh -c 'while :; do mkdir -p /logs/verifier; "
    "echo 1 > /logs/verifier/reward.json; done' &) 2>/dev/null",
    "settings of git": "printf '[core]\\n\\tpager = sh -c true\\n' > ~/.gitconfig",
}


@BUBBLEWRAP.mark
@pytest.mark.parametrize("name", share(PLANTS, of=2))
@pytest.mark.parametrize("task", share([COMMAND, PLAIN, BARE], of=3))
def test_planted_file_does_not_forge_a_reward(task: dict[str, Any], name: str) -> None:
    assert left(task, f"echo 41 > answer.txt; {PLANTS[name]}").reward == 0.0


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    "plant",
    share(["pytest.py", "pytest/__main__.py", "pytest/__init__.py", "_pytest/__init__.py"], of=3),
)
def test_planted_pytest_does_not_run(plant: str) -> None:
    """Where pytest is not installed, the script finds none, and says so with a 0."""
    task = graded(PYTEST_SH, tests={"test_outputs.py": "def test_it():\n    assert False\n"})
    command = f'mkdir -p pytest _pytest; echo "raise SystemExit(0)" > {plant}'
    assert left(task, command).reward == 0.0


@BUBBLEWRAP.mark
@pytest.mark.parametrize("command", ["-m solution", "-c 'import solution'", "solution.py"])
def test_policys_program_still_finds_its_own_modules(command: str) -> None:
    script = f"python3 {command} > /logs/verifier/reward.txt"
    made = "echo 'import part' > solution.py; echo 'print(1)' > part.py"
    assert left(graded(script), made).reward == 1.0


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    "name",
    share(["PATH", "PYTHONUSERBASE", "BASH_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME"], of=3),
)
def test_variable_of_the_task_names_no_file_of_the_policy(name: str) -> None:
    value = {"PATH": "/app/bin:/usr/bin:/bin", "BASH_ENV": "/app/bin/json.py"}
    task = graded(
        "python3 -c 'import json; print(0)' > /logs/verifier/reward.txt",
        environment={name: value.get(name, "/app/bin")},
    )
    made = "printf '#!/bin/sh\\necho 1\\n' > bin/python3; chmod +x bin/python3; "
    made += "echo 'echo 1 > /logs/verifier/reward.txt; exit' | tee bin/json.py bin/.bashrc"
    assert left(task, f"mkdir -p bin; {made}").reward == 0.0


CANNOT_BE_GRADED = {
    "a FIFO": "rm -f answer.txt; mkfifo answer.txt",
    "a socket": "python3 -c 'import socket; socket.socket(1).bind(\"answer.txt\")'",
    "a link to itself": "ln -sf answer.txt answer.txt",
    "a link to a device": "ln -sf /dev/zero answer.txt",
    "a folder": "mkdir answer.txt",
    "a locked folder": "chmod 000 /app",
    "locked folders": "chmod 000 ~ /app; exit",
    "a long name of other bytes": r"touch $(printf '\377%.0s' {1..100})",
    "a name with a newline": r"touch $'a\nb' $'\xff\xfe' ' '",
    "names that are equal as text": r"echo 1 > $'a\xff'; mkdir $'a\xfe'; echo 2 > $'a\xfe/b'",
    "a large file": "truncate -s 1T answer.txt",
    "holes beyond the folder": "truncate -s 15M a; cp --sparse=always a b; ln a c; ln a d",
    "many files": "mkdir d; cd d; touch {1..6000}",
    "long paths": "python3 -c \"import os\nfor n in range(40): os.mkdir('d' * 100 + str(n)); "
    "os.chdir('d' * 100 + str(n))\"",
    "a full disk": "head -c 100000000 /dev/zero > full; mkdir -p x; touch y",
    "a stopped shell": "(sleep 0.2; kill -STOP $$) & disown",
    "a held pipe": "for n in /proc/$$/fd/*; do sleep 60 {f}>$n & done; sleep 0.2; kill -9 $$",
}


@BUBBLEWRAP.mark
@pytest.mark.parametrize("name", share(CANNOT_BE_GRADED, of=5))
def test_policy_cannot_turn_its_zero_into_a_fault(name: str) -> None:
    hangs = name in ("a FIFO", "a link to a device")
    task = {**(HUNG if hangs else PLAIN), "files": {"/app/answer.txt": "0\n"}}
    step = left(task, CANNOT_BE_GRADED[name], limits=Limits(home_mib=16))
    assert (step.reward, step.terminated) == (0.0, True)


@BUBBLEWRAP.mark
def test_zero_of_a_failed_grader_says_so() -> None:
    task = {**HUNG, "files": {"/app/answer.txt": "0\n"}}
    step = left(task, CANNOT_BE_GRADED["a FIFO"])
    assert step.info["ungraded"] == "the test script did not end within 3 s"
    assert "ungraded" not in left(task, "echo 41 > answer.txt").info


def await_stopped(env: TerminalEnv) -> None:
    """Wait until a process of the session is stopped."""
    assert env._session is not None
    assert env._session._process is not None
    sandbox = psutil.Process(env._session._process.pid)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if any(one.status() == psutil.STATUS_STOPPED for one in sandbox.children(recursive=True)):
            return
        time.sleep(0.01)
    raise TimeoutError


@BUBBLEWRAP.mark
@pytest.mark.slow
def test_locked_shell_and_long_command_end_at_the_deadline() -> None:
    env = TerminalEnv(tasks=[PLAIN])
    env.reset(seed=1)
    env.step(write("(sleep 2; kill -STOP $$) & disown", env.protocol))
    await_stopped(env)
    env._seconds = 0.3
    step = env.step(write(f"echo {'x' * 150_000} > /dev/null", env.protocol))
    assert "a new one was started" in step.observation["text"]
    env._seconds = 30.0  # what does not hang may take its time
    assert env.step(write("echo on", env.protocol)).observation["text"].startswith("on\n")
    env.close()


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("echo -3 > /logs/verifier/reward.txt; exit 3", -3.0),
        ("cd /logs && cd verifier && echo 2.5 > reward.txt", 2.5),
        ("echo '{\"reward\": 0.5}' > $P.json; echo 1 > $P.txt", 0.5),
    ],
)
def test_reward_file_is_passed_on(script: str, reward: float) -> None:
    assert left(graded(f"P=/logs/verifier/reward; {script}")).reward == reward


@pytest.mark.parametrize(
    ("name", "text", "reward"),
    [
        ("reward.txt", " 0.25 \n", 0.25),
        ("reward.txt", "5e300", 5e300),
        ("reward.txt", "1_0", 10.0),
        ("reward.json", "0.5", 0.5),
        ("reward.json", '{"reward": true}', 1.0),
        ("reward.json", '{"reward": 2, "style": 9}', 2.0),
        ("reward.json", '{"reward": -1, "style": "terse"}', -1.0),
    ],
)
def test_any_finite_number_is_a_reward(name: str, text: str, reward: float) -> None:
    assert reward_of(name, text.encode(), key=None, within=None) == reward


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(
            ("reward.txt", data)
            for data in (b"", b" ", b"nan", b"Infinity", b"1e400", b"yes", b"1\n2", b"1\xff")
        ),
        ("reward.txt", b"\xef\xbb\xbf1"),
        ("reward.txt", b'{"reward": 1}'),
        *(
            ("reward.json", data)
            for data in (b"", b"NaN", b"-Infinity", b"{}", b'{"score": 1}', b"[1]", b"null", b'"1"')
        ),
        ("reward.json", b'{"reward": "1"}'),
        ("reward.json", b'{"reward": {"reward": 1}}'),
        ("reward.json", b'{"reward": null}'),
        ("reward.json", b"{"),
        ("reward.json", b"[" * 100_000),
        ("reward.json", b'{"a": ' * 100_000),
        ("reward.json", b'{"reward": 1' + b"0" * 400 + b"}"),
        ("reward.json", b'{"reward": 1' + b"0" * 5000 + b"}"),
        ("reward.json", None),
    ],
)
def test_anything_else_is_no_reward(name: str, data: bytes | None) -> None:
    with pytest.raises(UngradedError):
        reward_of(name, data, key=None, within=None)


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    "script",
    share(
        [
            "true",
            "sleep 9",
            "kill -9 $PPID $$",
            "f() { f | f & }; f; sleep 5",
            "mkdir $P.json; echo 1 > $P.txt",
            "mkfifo $P.txt",
            "echo 1 > /tmp/r; ln -s /tmp/r $P.txt",
            "head -c 2000000 /dev/zero > $P.txt",
            "echo nan > $P.txt",
        ],
        of=4,
    ),
)
def test_script_that_never_leaves_a_reward_is_a_fault(script: str) -> None:
    task = graded(f"P=/logs/verifier/reward; {script}", seconds=0.5)
    with pytest.raises(EnvFault, match="untouched") as caught:
        left(task)
    assert caught.value.kind is FaultKind.GRADER


@BUBBLEWRAP.mark
def test_script_that_needs_longer_than_the_environment_allows_is_a_fault() -> None:
    task = graded("sleep 9; echo 1 > /logs/verifier/reward.txt")
    del task["checks"][0]["seconds"]
    env = TerminalEnv(tasks=[task], test_seconds=0.3)
    env.reset(seed=1)
    with pytest.raises(EnvFault, match=r"did not end within 0\.3 s"):
        env.step("Done.")


@BUBBLEWRAP.mark
def test_time_that_the_task_allows_its_tests_counts() -> None:
    task = graded("sleep 0.6; echo 1 > /logs/verifier/reward.txt", seconds=9)
    env = TerminalEnv(tasks=[task], test_seconds=0.3)
    env.reset(seed=1)
    assert env.step("Done.").reward == 1.0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401, "60", None])
def test_time_that_is_none_is_refused(seconds: object) -> None:
    with pytest.raises(DatasetError, match="'seconds' must be above 0"):
        TerminalEnv(tasks=[graded("true", seconds=seconds)]).reset(seed=1)


@BUBBLEWRAP.mark
def test_reward_of_a_key_and_within_a_range_is_declared_by_the_task() -> None:
    script = "cat /app/r > /logs/verifier/reward.json"
    given: dict[str, Any] = {"files": {"/app/r": '{"accuracy": 0.5}'}, "reward_key": "accuracy"}
    task = graded(script, reward_range=[0, 1], **given)
    assert left(task).reward == 0.5
    assert left(task, "echo 1 > r").reward == 1.0
    for text in ("1.0000001", "-0.1", '{"score": 1}'):
        step = left(task, f"echo '{text}' > r")
        assert (step.reward, bool(step.info["ungraded"])) == (0.0, True)
    with pytest.raises(EnvFault):
        left({**task, "reward_range": [2, 3]})


@pytest.mark.parametrize("pair", [1, [1], [2, 1], ["0", 1], [0, float("inf")], [0, 1, 2]])
def test_range_that_is_none_is_refused(pair: object) -> None:
    with pytest.raises(DatasetError, match="reward_range"):
        check_task(graded("true", reward_range=pair))


def gone(path: str, **files: str) -> dict[str, Any]:
    return {"goal": "Do it.", "files": files, "checks": [{"type": "absent", "path": path}]}


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    ("command", "reward"),
    share(
        [
            ("rm -r d", 1.0),
            ("rm d/secret; chmod 000 d", 1.0),
            ("true", 0.0),
            ("chmod 000 d", 0.0),
            ("chmod 400 d", 0.0),
            ("chmod 000 ~", 0.0),
            ("chmod 000 d/secret", 0.0),
            ("rm d/secret; mkfifo d/secret", 0.0),
            ("rm d/secret; ln -s nowhere d/secret", 0.0),
            ("mv d e; ln -s e d", 0.0),
            ("mv d .e; ln -s ~/.e d; chmod 000 .e", 0.0),
            ("rm d/secret; python3 -c 'import socket; socket.socket(1).bind(\"d/secret\")'", 0.0),
        ],
        of=3,
    ),
)
def test_absent_means_that_nothing_is_there(command: str, reward: float) -> None:
    task = gone("d/../d//secret", **{"d/secret": "x", "d/other": "y"})
    assert left(task, command).reward == reward


@pytest.mark.parametrize("path", ["/etc/passwd", "/home/agent", ".", "/nowhere", "../x", "/app"])
@pytest.mark.parametrize("kind", ["absent", "file", "mode"])
def test_check_of_a_path_outside_of_the_session_is_refused(kind: str, path: str) -> None:
    check = {"type": kind, "path": path, "text": "", "mode": 0o644}
    with pytest.raises(DatasetError, match="folders"):
        check_task({"goal": "Do it.", "checks": [check], "folders": ["/app"]})


@BUBBLEWRAP.mark
def test_special_files_and_other_bytes_are_copied_for_the_test() -> None:
    script = r"""ok=1; cd /home/agent
    [ -p fifo ] && [ -S socket ] && [ -L link ] && [ -d $'d\xff' ] || ok=0
    [ "$(cat $'a\nb')" = x ] || ok=0
    [ "$(stat -c %a locked locked/in)" = $'0\n500' ] || [ "$(stat -c %a locked)" = 0 ] || ok=0
    [ "$(readlink link)" = $'no\xfewhere' ] && [ "$(cat ~/plain)" = y ] || ok=0
    echo $ok > /logs/verifier/reward.txt"""
    made = r"""cd ~; mkfifo fifo; python3 -c 'import socket; socket.socket(1).bind("socket")'
    ln -s $'no\xfewhere' link; mkdir -p $'d\xff' locked/in; echo x > $'a\nb'; echo y > plain
    chmod 500 locked/in; chmod 000 locked"""
    assert left(graded(script), made).reward == 1.0


@BUBBLEWRAP.mark
def test_hard_links_keep_the_modes_of_locked_files() -> None:
    checks = [{"type": "mode", "path": path, "mode": 0o040} for path in ("a", "b")]
    task = {"goal": "Do it.", "checks": [*checks, {"type": "file", "path": "b", "text": "x"}]}
    assert left(task, "echo x > a; ln a b; chmod 040 a").reward == 1.0
