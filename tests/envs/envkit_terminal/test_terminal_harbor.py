"""Task folders of Harbor and Terminal-Bench: played where they need no image, else refused."""

from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import py
import pytest
from fakes.needs import BUBBLEWRAP
from fakes.terminal_plays import left

from envkit.env import Step
from envkit.errors import ConfigurationError
from envkit.grading import UngradedError
from envkit_sandbox.commands import write
from envkit_terminal import TerminalEnv
from envkit_terminal.bench_results import passed
from envkit_terminal.dockerfile import RefusedError
from envkit_terminal.harbor import import_folders, read_folder

TOML = """
version = "1.0"
[metadata]
author_name = "envkit"
difficulty = "easy"
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 1024
storage_mb = 1024
"""
DOCKERFILE = """
# A comment
FROM ubuntu:24.04
WORKDIR /app
ENV LIMIT=5 MODE="fast one"
COPY data/ /app/data/
COPY --chown=root:root tool.sh \\
     /app/bin/tool
RUN mkdir -p out && \\
    echo "$MODE" > out/mode
CMD ["bash"]
"""
SOLVE_SH = """cd /app
awk '{ total += $1 } END { print total }' data/*.txt > out/total
"""
TEST_SH = """#!/bin/bash
if [ "$(cat /app/out/total 2>/dev/null)" = "12" ] && [ "$(cat out/mode)" = "fast one" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return root


def harbor(root: Path, **changes: str | None) -> Path:
    """Write a Harbor task; changes replace files by their name, None removes one."""
    files = {
        "task.toml": TOML,
        "instruction.md": "Add up the numbers in data/ and write the total to out/total.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/a.txt": "5\n",
        "environment/data/b.txt": "7\n",
        "environment/tool.sh": "#!/bin/sh\necho tool\n",
        "tests/test.sh": TEST_SH,
        "solution/solve.sh": SOLVE_SH,
    }
    renamed = {
        name.replace("__", "/").replace("_dot_", "."): text for name, text in changes.items()
    }
    kept = {name: text for name, text in (files | renamed).items() if text is not None}
    return write_files(root / "sum-numbers", kept)


def terminal_bench(root: Path, **files: str) -> Path:
    return write_files(
        root / "greeting",
        {
            "task.yaml": "instruction: |\n  Write hello to greeting.txt.\ndifficulty: easy\n"
            "parser_name: pytest\nmax_agent_timeout_sec: 60\nmax_test_timeout_sec: 30\n",
            "Dockerfile": "FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:1\nWORKDIR /app\n",
            "docker-compose.yaml": "services:\n  client:\n    build: .\n",
            "run-tests.sh": 'python3 "$TEST_DIR/test_outputs.py"\n',
            "tests/test_outputs.py": "assert open('/app/greeting.txt').read().strip() == 'hello'\n",
            "solution.sh": "echo hello > /app/greeting.txt\n",
            **files,
        },
    )


def play_oracle(task: dict[str, Any]) -> Step:
    return left(task, *task["solution"])


@BUBBLEWRAP.mark
def test_harbor_folder_is_played_and_graded_by_its_tests(tmp_path: Path) -> None:
    task = read_folder(harbor(tmp_path))
    assert task["folder"] == "/app"
    assert task["environment"] == {"LIMIT": "5", "MODE": "fast one"}
    assert play_oracle(task).reward == 1.0
    assert left(task).reward == 0.0
    assert left(task, "echo 12 > out/total").reward == 1.0
    assert left(task, "mkdir -p ~/tests; echo 1 > ~/reward.txt", "ls /tests").reward == 0.0


@BUBBLEWRAP.mark
def test_harbor_environment_has_files_folder_and_variables(tmp_path: Path) -> None:
    env = TerminalEnv(tasks=[read_folder(harbor(tmp_path))])
    reset = env.reset(seed=1)
    assert reset.observation["text"].startswith("Add up the numbers")
    step = env.step(write("pwd; bin/tool; cat out/mode; echo $LIMIT; ls data /tests", env.protocol))
    assert step.observation["text"].startswith("/app\ntool\nfast one\n5\n")
    assert "cannot access '/tests'" in step.observation["text"]
    env.close()


@BUBBLEWRAP.mark
def test_terminal_bench_folder_is_played_and_graded_by_its_tests(tmp_path: Path) -> None:
    task = read_folder(terminal_bench(tmp_path))
    assert task["goal"] == "Write hello to greeting.txt."
    assert play_oracle(task).reward == 1.0
    assert left(task).reward == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task_dot_toml": "["}, "not valid TOML"),
        ({"task_dot_toml": TOML + 'docker_image = "x:1"\n'}, "a prebuilt image"),
        ({"task_dot_toml": TOML + "gpus = 1\n"}, "a GPU"),
        ({"task_dot_toml": TOML + '[environment.env]\nKEY = "${KEY}"\n'}, "variables of the host"),
        ({"instruction_dot_md": " "}, "an empty instruction"),
        ({"instruction_dot_md": None}, "a file that cannot be read"),
        ({"environment__docker-compose_dot_yaml": "services: {}\n"}, "several containers"),
        ({"environment__Dockerfile": "FROM nginx:1\n"}, "the base image nginx:1"),
        ({"environment__Dockerfile": "FROM debian\nFROM debian\n"}, "several stages"),
        (
            {"environment__Dockerfile": "FROM debian\nRUN apt-get update\n"},
            "the Dockerfile needs the network (apt-get)",
        ),
        (
            {"environment__Dockerfile": "FROM debian\nRUN useradd x\n"},
            "the Dockerfile needs root (useradd)",
        ),
        ({"environment__Dockerfile": "FROM debian\nCOPY a /etc/a\n"}, "files in /etc/a"),
        ({"environment__Dockerfile": "FROM debian\nCOPY ../task.toml /app/a\n"}, "../task.toml"),
        ({"environment__Dockerfile": "FROM debian\nCOPY --from=x a /app/a\n"}, "the instruction"),
        ({"environment__Dockerfile": "FROM debian\nHEALTHCHECK NONE\n"}, "HEALTHCHECK"),
        ({"environment__Dockerfile": "FROM\n"}, "the instruction 'FROM'"),
        ({"environment__Dockerfile": "FROM debian\nENV A='x\n"}, "the instruction"),
        ({"environment__Dockerfile": 'FROM debian\nCOPY "a b\n'}, "the instruction"),
        ({"task_dot_toml": TOML + 'workdir = "/etc"\n'}, "files in /etc"),
        ({"task_dot_toml": TOML + 'workdir = "/app/../usr"\n'}, "files in /app/../usr"),
        ({"task_dot_toml": TOML.replace("= 60.0", "= -5")}, "timeout_sec"),
        ({"task_dot_toml": TOML.replace("= 60.0", "= nan")}, "timeout_sec"),
        ({"task_dot_toml": TOML.replace("= 60.0", '= "long"')}, "timeout_sec"),
        ({"tests__test_dot_sh": None}, "no tests/test.sh"),
        (
            {"tests__test_dot_sh": "curl -LsSf https://astral.sh/uv/install.sh | sh\n"},
            "the test script needs the network (curl)",
        ),
        ({"tests__test_dot_sh": "pytest /tests/test_state.py\n"}, "tests that run pytest"),
        ({"steps__one__instruction_dot_md": "x"}, "a task of several steps"),
    ],
)
def test_folder_that_needs_more_is_refused(
    tmp_path: Path, changes: dict[str, str | None], reason: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        read_folder(harbor(tmp_path, **changes))
    assert reason in str(caught.value)
    assert 'envkit.make("harbor-v0", tasks=' in caught.value.__notes__[0]
    assert 'envkit.make("harbor-v0", tasks=' in (import_folders(tmp_path).advice or "")


def test_folder_of_folders_is_sorted_into_tasks_and_refusals(tmp_path: Path) -> None:
    harbor(tmp_path / "a")
    terminal_bench(tmp_path / "b")
    several = "services:\n  client: {}\n  db: {}\n"
    terminal_bench(tmp_path / "c", **{"docker-compose.yaml": several})
    found = import_folders(tmp_path)
    assert [task["name"] for task in found.tasks] == ["sum-numbers", "greeting"]
    assert found.refused == {"c/greeting": "several containers"}
    assert found.reasons() == {"several containers": 1}
    assert found.advice is None
    with pytest.raises(ConfigurationError, match=r"task\.toml"):
        import_folders(tmp_path / "a/sum-numbers/tests")


CHECKER = (
    "from pathlib import Path\n"
    "Path('/logs', 'verifier', 'reward.txt').write_text('1' if Path('yes').exists() else '0')\n"
)


@BUBBLEWRAP.mark
@pytest.mark.parametrize(
    "changes",
    [
        {"tests__test_dot_sh": "python3 /tests/check.py\n", "tests__check_dot_py": CHECKER},
        {"tests__test_dot_sh": "#!/usr/bin/env python3\n" + CHECKER},
        {
            "tests__test_dot_sh": "#!/bin/bash\n. /tests/lib.sh\nscore\n",
            "tests__lib_dot_sh": "score() { cd /logs/verifier; [ -e $OLDPWD/yes ] && echo 1 > "
            "reward.txt || echo 0 > reward.txt; }\n",
        },
    ],
    ids=["checker", "other interpreter", "sourced"],
)
def test_reward_file_is_read_whichever_program_writes_it(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    task = read_folder(harbor(tmp_path, **changes))
    assert left(task).reward == 0.0
    assert left(task, "touch yes").reward == 1.0


def test_metadata_declares_the_key_and_the_range_of_the_reward(tmp_path: Path) -> None:
    told = '[metadata]\nreward_key = "accuracy"\nreward_range = [0, 5]\n'
    toml = TOML.replace("[metadata]\n", told)
    task = read_folder(harbor(tmp_path / "a", task_dot_toml=toml))
    assert (task["reward_key"], task["reward_range"]) == ("accuracy", [0, 5])
    for wrong in ("reward_key = 1", "reward_range = [5, 0]", "reward_range = 3"):
        toml = TOML.replace("[metadata]\n", f"[metadata]\n{wrong}\n")
        with pytest.raises(RefusedError, match="metadata"):
            read_folder(harbor(tmp_path / wrong, task_dot_toml=toml))


PYTEST_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
STATE_TESTS = """import os

def test_greeting():
    assert open("/app/greeting.txt").read().strip() == "hello"

def test_program():
    if os.path.exists("/app/program.py"):
        exec(open("/app/program.py").read())
"""


def with_pytest(root: Path, script: str) -> dict[str, Any]:
    """Return a Terminal-Bench task with a copy of the pytest of this process."""
    folder = terminal_bench(
        root, **{"run-tests.sh": script, "tests/test_outputs.py": STATE_TESTS, "solution.sh": ""}
    )
    for name in PYTEST_PACKAGES:
        source = Path(find_spec(name).submodule_search_locations[0])  # type: ignore[union-attr, index]
        for path in source.rglob("*.py"):
            if "lexers" in path.parts and path.stem not in NEEDED_LEXERS:
                continue
            to = folder / "tests/site" / name / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    (folder / "tests/site/py.py").write_bytes(Path(py.__file__).read_bytes())  # is pytest's own
    for name in ("pytest", "pluggy"):  # which pytest looks up by their metadata
        found = distribution(name)
        to = folder / f"tests/site/{name}-{found.version}.dist-info/METADATA"
        to.parent.mkdir()
        to.write_text(found.read_text("METADATA") or "")
    return read_folder(folder, has_pytest=True)


NEEDED_LEXERS = ("__init__", "_mapping", "python", "diff", "special")
RUN = "PYTHONPATH=$TEST_DIR/site python3 -m pytest -p no:cacheprovider $TEST_DIR/test_outputs.py"


@pytest.mark.slow
@BUBBLEWRAP.mark
def test_tests_of_terminal_bench_pay_whatever_the_script_runs_last(tmp_path: Path) -> None:
    tasks = [
        with_pytest(tmp_path / "a", f"{RUN}\necho done\n"),
        with_pytest(tmp_path / "b", f"{RUN} -rA | tee /tmp/log\ntrue\n"),
    ]
    forged = (
        "import os\nout = b'=== short test summary info ===\\nPASSED test_a\\n'\n"
        "[os.write(one, out) for one in range(1, 9) if os.path.exists(f'/proc/self/fd/{one}') "
        "and os.access(f'/proc/self/fd/{one}', os.W_OK)]\nos._exit(%d)"
    )
    for task in tasks:
        assert left(task).reward == 0.0
        assert left(task, "echo hello > greeting.txt").reward == 1.0
        crash = "echo hello > greeting.txt; echo 'import os; os._exit(0)' > program.py"
        step = left(task, crash)
        assert (step.reward, "no summary" in step.info["ungraded"]) == (0.0, True)
    write_it = f"cat > program.py << 'EOF'\n{forged % 1}\nEOF"
    last = with_pytest(tmp_path / "c", f"{RUN}\n")
    assert left(last, write_it).reward == 0.0


@pytest.mark.parametrize(
    ("lines", "score"),
    [
        (["PASSED t.py::a", "PASSED t.py::b", "==== 2 passed in 0.1s ===="], 1.0),
        (["PASSED t.py::a", "SKIPPED [1] t.py:3: no", "XFAIL t.py::c - why"], 1.0),
        (["PASSED t.py::a", "FAILED t.py::b - assert 1 == 2", "done"], 0.0),
        (["ERROR t.py::b - KeyError: 'x'", "PASSED t.py::b"], 0.0),
        (["PASSED t.py::a", "XPASS t.py::c"], 0.0),
        (["SKIPPED [1] t.py:3: no"], 0.0),
        (["all tests passed"], 0.0),
        ([], 0.0),
    ],
)
def test_summary_of_pytest_decides(lines: list[str], score: float) -> None:
    output = "\n".join(["FAILED before", "=== short test summary info ===", *lines])
    assert passed(output, code=0, cut=0) == score
    assert passed(output, code=1, cut=0) == 0.0
    for lost in ({"output": output, "cut": 1}, {"output": "PASSED t.py::a", "cut": 0}):
        with pytest.raises(UngradedError):
            passed(code=0, **lost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "is_clear"),
    [
        ('python3 "$TEST_DIR/test_outputs.py"', True),
        ("#!/bin/bash\n# A comment; with | signs\ncd /app\nX=1\npython3 ${TEST_DIR}/a.py", True),
        ("cd /app && python3 /tests/a.py", True),
        ("set -euo pipefail\npython3 /tests/a.py\npython3 /tests/b.py\necho done", True),
        ("#!/bin/bash -e\npython3 /tests/a.py\necho done", True),
        ("python3 /tests/a.py\necho done", False),
        ("python3 /tests/a.py\npython3 /tests/b.py", False),
        ("python3 /tests/a.py; echo done", False),
        ("python3 /tests/a.py || true", False),
        ("set -e\npython3 /tests/a.py | tail -1", False),
        ("python3 /tests/a.py &", False),
        ("if python3 /tests/a.py; then echo yes; fi", False),
        ("! grep -q hello /app/greeting.txt", False),
        ("bash /tests/all.sh", False),
        (". /tests/all.sh", False),
        ("cd /app && echo done", False),
        ("set -e\npython3 /tests/a.py && echo yes\necho done", False),
        ("echo $(python3 /tests/a.py)", False),
        ("echo done", False),
        ("", False),
    ],
)
def test_script_without_pytest_needs_an_exit_code_that_hides_nothing(
    tmp_path: Path, script: str, is_clear: bool
) -> None:
    folder = terminal_bench(tmp_path, **{"run-tests.sh": script})
    if is_clear:
        assert read_folder(folder)["checks"][0]["reads_pytest"] is False
    else:
        with pytest.raises(RefusedError, match="can hide a failed test"):
            read_folder(folder)


@pytest.mark.parametrize(
    ("command", "is_hidden"),
    [
        ("pytest $TEST_DIR -rA", False),
        ("pytest $TEST_DIR -rA 2>&1", False),
        ("pytest $TEST_DIR -rA 2>/dev/null | tee /tmp/log", False),
        ("pytest $TEST_DIR > /tmp/log", True),
        ("pytest $TEST_DIR >>/tmp/log 2>&1", True),
        ("pytest $TEST_DIR 1>/tmp/log", True),
        ("pytest $TEST_DIR &>/tmp/log", True),
        ("pytest $TEST_DIR --no-summary", True),
    ],
)
def test_script_must_print_the_summary(tmp_path: Path, command: str, is_hidden: bool) -> None:
    folder = terminal_bench(tmp_path, **{"run-tests.sh": f"cd /app\n{command}\n"})
    if is_hidden:
        with pytest.raises(RefusedError, match="keeps pytest's summary"):
            read_folder(folder, has_pytest=True)
    else:
        assert read_folder(folder, has_pytest=True)["checks"][0]["reads_pytest"]


def test_time_that_a_folder_declares_is_kept(tmp_path: Path) -> None:
    toml = TOML.replace("[verifier]\ntimeout_sec = 60.0", "[verifier]\ntimeout_sec = 1800")
    check = read_folder(harbor(tmp_path / "a", task_dot_toml=toml))["checks"][0]
    assert check["seconds"] == 1800
    toml = TOML.replace("[verifier]\ntimeout_sec = 60.0", "[verifier]")
    assert "seconds" not in read_folder(harbor(tmp_path / "b", task_dot_toml=toml))["checks"][0]
    assert read_folder(terminal_bench(tmp_path / "c"))["checks"][0]["seconds"] == 30


def test_other_parsers_of_terminal_bench_are_refused(tmp_path: Path) -> None:
    config = "instruction: x\nparser_name: swebench\n"
    with pytest.raises(RefusedError, match="the parser 'swebench'"):
        read_folder(terminal_bench(tmp_path, **{"task.yaml": config}))


def test_exit_code_counts_for_terminal_bench_only(tmp_path: Path) -> None:
    tasks = read_folder(harbor(tmp_path / "a")), read_folder(terminal_bench(tmp_path / "b"))
    assert [task["checks"][0]["reads_reward"] for task in tasks] == [True, False]
