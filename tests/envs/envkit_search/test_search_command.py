"""`envkit serve-search`, and an environment that searches by it."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit, start_envkit
from fakes.search_backend import DOCUMENTS, tasks

import envkit
from envkit.env import PolicyContext
from envkit.errors import EnvFault
from envkit_search.leases import SERVER_KEY_VARIABLE


@contextmanager
def serving(*arguments: object) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the command on a free port; gives its address and its process.

    The environments of this test search it by the key that it prints.
    """
    process = start_envkit("serve-search", *arguments, "--port", 0)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"serving .+ at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line or (process.stderr and process.stderr.read())
        made = re.fullmatch(r"key (\S{32})\n", process.stdout.readline())
        assert made
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SERVER_KEY_VARIABLE, made.group(1))
            yield found.group(1), process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors


def play(env: Any, seed: int) -> tuple[float, str]:
    """Play the oracle; return the reward and all that it read."""
    observation, _ = env.reset(seed=seed)
    policy, read = env.unwrapped.oracle(), observation["text"]
    for turn in range(env.unwrapped.max_turns):
        task = env.unwrapped.task
        step = env.step(policy(PolicyContext(env=env, task=task, turn=turn, messages=(), seed=0)))
        read += step[0]["text"]
        if step[2] or step[3]:
            return float(step[1]), read
    raise AssertionError("an episode ends")


def corpus(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    rows = [{"id": d.id, "contents": f'"{d.title}"\n{d.text}'} for d in DOCUMENTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("protocol", ["tags", "tools"])
@pytest.mark.slow
def test_environment_searches_a_served_file_until_ctrl_c(tmp_path: Path, protocol: str) -> None:
    with serving(corpus(tmp_path), "--topk", 1) as (address, process):
        env = envkit.make("search-v0", backend=address, tasks=tasks(), protocol=protocol)
        for seed in range(5):
            reward, read = play(env, seed)
            assert reward == 1.0
            assert any(document.text in read for document in DOCUMENTS)
        env.close()
        code, errors = interrupt(process)
    assert code == 0
    assert errors.splitlines() == ["Ctrl-C ends it", "ended"]


@pytest.mark.slow
def test_key_is_the_servers_and_goes_by_argument_or_variable(tmp_path: Path) -> None:
    with serving(corpus(tmp_path)) as (address, _):
        key = os.environ.pop(SERVER_KEY_VARIABLE)
        right = envkit.make("search-v0", backend=address, backend_key=key, tasks=tasks())
        wrong = envkit.make("search-v0", backend=address, tasks=tasks())
        assert play(right, 1)[0] == 1.0
        with pytest.raises(EnvFault, match="Is the key right"):
            play(wrong, 1)
        right.close()
        wrong.close()


@pytest.mark.slow
def test_given_key_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_KEY_VARIABLE, "a-key-of-the-variable")
    process = start_envkit("serve-search", corpus(tmp_path), "--port", 0)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        env = envkit.make("search-v0", backend=address, tasks=tasks())
        assert play(env, 1)[0] == 1.0
        env.close()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=90) == ("", "Ctrl-C ends it\nended\n")
    finally:
        process.kill()


@pytest.mark.slow
def test_shipped_corpus_is_served_with_its_questions() -> None:
    with serving("world", "--corpus-option", "seed=3", "--corpus-option", "size=60") as (
        address,
        _,
    ):
        options = {"seed": 3, "size": 60}
        env = envkit.make("search-v0", backend=address, corpus_options=options)
        assert [play(env, seed)[0] for seed in range(4)] == [1.0] * 4
        env.close()


@pytest.mark.slow
def test_index_on_disk_is_built_once_and_served(tmp_path: Path) -> None:
    place = tmp_path / "index"
    for corpus_argument in (corpus(tmp_path), corpus(tmp_path), place):
        more = [] if corpus_argument == place else ["--index", place]
        with serving(corpus_argument, *more) as (address, _):
            env = envkit.make("search-v0", backend=address, tasks=tasks())
            assert play(env, 1)[0] == 1.0
            env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wrld"], "no search corpus 'wrld' is registered. Did you mean 'world'?"),
        (["world", "--key", "short"], "at least 16 printable"),
        (["world", "--no-key", "--host", "0.0.0.0"], "--allow-remote"),
        (["world", "--no-key", "--key", "k" * 20], "contradict"),
        (["facts", "--corpus-option", "seed=1"], "takes no options"),
        (["world", "--corpus-option", "seed"], "--corpus-option takes KEY=VALUE"),
        (["world", "--corpus-option", "sise=60"], "no shape of a world"),
    ],
)
def test_wrong_arguments_end_in_one_line(arguments: list[str], said: str) -> None:
    done = run_envkit("serve-search", *arguments)
    assert done.code == 2
    assert said in done.last_error


def test_missing_corpus_is_an_error_that_names_what_was_typed() -> None:
    done = run_envkit("serve-search", "nosuch.jsonl")
    assert done.code == 1
    assert "there is no file of documents or index folder 'nosuch.jsonl'" in done.last_error


def test_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        done = run_envkit("serve-search", corpus(tmp_path), "--port", port)
    assert done.code == 1
    assert f"port {port} of 127.0.0.1 is in use" in done.last_error
