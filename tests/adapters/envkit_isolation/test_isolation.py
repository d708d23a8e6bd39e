"""Environments in worker processes: what is lost with a worker, and what crosses unchanged."""

import functools
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fakes import isolated_envs as envs
from fakes.envs import EchoEnv, register_missing
from fakes.forking_env import Forking
from fakes.processes import is_alive, wait_until_gone
from fakes.threaded_env import Threaded

import envkit
from envkit import errors
from envkit.env import Env, PolicyContext, StepKey
from envkit.images import Image
from envkit.rollout import EnvSource
from envkit_isolation import IsolatedEnv, isolated
from envkit_isolation.frames import MAX_BLOB_BYTES, MAX_JSON_BYTES, Connection, Frame, FrameError
from envkit_isolation.process import _supervisors, close_supervisors
from envkit_isolation.values import error_in


@pytest.fixture(scope="module", autouse=True)
def _no_supervisor_left() -> Iterator[None]:
    yield
    close_supervisors()


@contextmanager
def worker(factory: Callable[[], Any], **options: Any) -> Generator[IsolatedEnv]:
    env = isolated(factory, **options)()
    try:
        yield env
    finally:
        env.close()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("exit", "exited with code 0"),
        ("say and exit", "exited with code 7; its last output:(.|\n)*last words on stderr"),
        ("segfault", "SIGSEGV(.|\n)*isolated_envs.py"),
        ("kill", "was killed by SIGKILL"),
        ("junk", "an invalid answer"),
        ("close descriptors", "exited with code 1|was killed by SIGKILL"),
    ],
)
def test_isolated_reports_how_a_worker_ended_as_a_crash(reply: str, expected: str) -> None:
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        with pytest.raises(errors.EnvFault, match=expected) as caught:
            env.step(reply)
        assert caught.value.kind is errors.FaultKind.CRASHED
        assert caught.value.retryable
        with pytest.raises(errors.EnvFault, match="has ended"):
            env.step("again")
        pid = cast(int, env.pid)
    assert not is_alive(pid)


def test_isolated_bounds_the_memory_of_a_worker() -> None:
    with worker(envs.Harmful, memory_mb=100) as env:
        env.reset(seed=1)
        with pytest.raises(errors.EnvFault, match="MemoryError") as caught:
            env.step("memory")
        assert caught.value.kind is errors.FaultKind.CRASHED


def test_isolated_kills_all_that_a_dead_worker_started() -> None:
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        pids = env.step("fork").info["pids"]
        assert len(set(pids)) == 21
        assert all(is_alive(pid) for pid in pids)
        with pytest.raises(errors.EnvFault, match="exited with code 0"):
            env.step("exit")
        assert wait_until_gone(pids) == []


def test_isolated_close_kills_all_that_a_worker_started() -> None:
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        pids = env.step("fork").info["pids"]
    assert [pid for pid in pids if is_alive(pid)] == []  # gone when close returns


@pytest.mark.slow
def test_isolated_kills_a_worker_with_too_many_processes() -> None:
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        with pytest.raises(errors.EnvFault, match="over 256 processes"):
            env.step("fork bomb")


@pytest.mark.slow
def test_isolated_workers_die_with_a_caller_that_is_killed() -> None:
    script = """
        import os, sys
        from fakes.isolated_envs import Harmful
        from envkit_isolation import isolated
        env = isolated(Harmful)()
        env.reset(seed=1)
        pids = env.step("fork").info["pids"]
        children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
        print(env.pid, *pids, *children, flush=True)
        os.kill(os.getpid(), 9)
    """
    tests = str(Path(__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == -signal.SIGKILL, found.stderr
    pids = [int(word) for word in found.stdout.split()]
    assert len(pids) == 23
    assert wait_until_gone(pids) == []


def test_isolated_kill_ends_a_call_that_hangs() -> None:
    import threading

    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        timer = threading.Timer(0.2, env.close)  # what a rollout does after its deadline
        timer.start()
        with pytest.raises(errors.EnvFault, match="closed during a call"):
            env.step("hang")
        timer.join()
        assert not is_alive(cast(int, env.pid))


@pytest.mark.slow
def test_isolated_survives_its_supervisor() -> None:
    with worker(envs.Harmful) as env, worker(envs.Harmful) as other:
        env.reset(seed=1)
        pids = env.step("fork").info["pids"]
        key = isolated(envs.Harmful).key
        _supervisors[key]._process.kill()
        _supervisors[key]._process.wait()
        for lost in (env, other):
            with pytest.raises(errors.EnvFault) as caught:
                lost.step("hello")
            assert caught.value.kind is errors.FaultKind.CRASHED
        in_group = pids[::3]
        assert wait_until_gone([cast(int, env.pid), *in_group]) == []
        with worker(envs.Harmful) as fresh:
            fresh.reset(seed=1)
        for pid in pids:  # other sessions, which only the supervisor can find
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_isolated_reports_a_constructor_that_dies_or_hangs() -> None:
    with pytest.raises(errors.EnvFault, match="exited with code 3") as caught:
        isolated(envs.Dying)()
    assert caught.value.kind is errors.FaultKind.CRASHED
    with pytest.raises(errors.EnvFault, match="in time") as caught:
        isolated(envs.Stuck, start_timeout_s=0.5)()
    assert caught.value.kind is errors.FaultKind.TIMEOUT


def test_isolated_errors_keep_their_type_and_the_worker_continues() -> None:
    expected: dict[str, tuple[type[errors.EnvkitError], str, errors.FaultKind | None, bool]] = {
        "fault": (errors.EnvFault, "a judge", errors.FaultKind.GRADER, True),
        "configuration": (errors.ConfigurationError, "a wrong setting", None, False),
        "contract": (errors.ContractError, "not a turn", None, False),
        "dataset": (errors.DatasetError, "a broken row", None, False),
        "bad info": (errors.ContractError, "must be JSON", None, False),
        "bad reward": (errors.ContractError, "finite number as reward", None, False),
        "bad huge reward": (errors.ContractError, "finite number as reward", None, False),
        "sys.exit": (errors.EnvFault, "SystemExit: 0", errors.FaultKind.PERMANENT, False),
        "interrupt": (errors.EnvFault, "KeyboardInterrupt", errors.FaultKind.PERMANENT, False),
        "error": (errors.EnvFault, "ValueError: a \ud800 bug", errors.FaultKind.PERMANENT, False),
        "unreadable": (errors.EnvFault, "its __str__ raises", errors.FaultKind.PERMANENT, False),
        "refused": (errors.EnvFault, "nobody there", errors.FaultKind.TRANSIENT, True),
        "pipe": (errors.EnvFault, "its own pipe", errors.FaultKind.TRANSIENT, True),
        "late": (errors.EnvFault, "too late", errors.FaultKind.TIMEOUT, True),
    }
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        pid = env.pid
        for reply, (kind, text, fault, retryable) in expected.items():
            with pytest.raises(errors.EnvkitError) as caught:
                env.step(reply)
            assert type(caught.value) is kind, reply
            assert text in str(caught.value)
            assert "isolated_envs.py" in caught.value.__notes__[0] or reply.startswith("bad")
            if isinstance(caught.value, errors.EnvFault):
                assert (caught.value.kind, caught.value.retryable) == (fault, retryable), reply
        assert env.step("still here").observation["text"].endswith("still here")
        assert env.pid == pid
        with pytest.raises(errors.ConfigurationError, match="no oracle"):
            env.oracle()
        with pytest.raises(errors.ContractError, match="must be JSON"):
            env.reset(options={"task": {"object": object()}})
        assert env.step("and here").reward == 0.25


def test_isolated_output_of_an_environment_disturbs_nothing() -> None:
    with worker(envs.Harmful) as env:
        env.reset(seed=1)
        os.kill(cast(int, env.pid), signal.SIGINT)  # Ctrl-C is the caller's
        assert env.step("print").observation["text"] == "print"
        assert env.step("next").observation["text"] == "print next"


def test_isolated_passes_calls_on_unchanged() -> None:
    direct = envs.Harmful(max_turns=4)
    factory = functools.partial(envs.Harmful, max_turns=4)
    with worker(factory) as env:
        assert (env.system_prompt, env.max_turns) == ("Repeat.", 4)
        assert env.capabilities.snapshot
        assert env.capabilities.thread_safe
        options = {"task": {"name": "näme \ud800", "depth": [1, {"a": None}]}}
        assert env.reset(seed=3, options=options) == direct.reset(seed=3, options=options)
        assert env.task == direct.task
        env.step_key = direct.step_key = StepKey("episode", 0, 2)
        assert env.step("one") == direct.step("one")
        state = env.snapshot()
        assert state == direct.snapshot()
        assert env.step("two") == direct.step("two")
        env.restore(state)
        direct.restore(state)
        for reply in ("three", "four", "five"):
            assert env.step(reply) == direct.step(reply)
        with pytest.raises(envkit.errors.EpisodeStateError):
            env.step("after the end")


def test_isolated_messages_and_images_are_those_of_the_environment() -> None:
    direct = envs.Formatting()
    with worker(envs.Formatting) as env:
        mine, theirs = env.reset(seed=1).observation, direct.reset(seed=1).observation
        assert mine == theirs
        assert env.system_prompt == "Set by reset."
        assert [i.png_bytes() for i in mine["images"]] == [i.png_bytes() for i in theirs["images"]]
        assert mine["images"][0] is mine["images"][2]  # the same image crossed once
        assert env.format_observation(mine) == direct.format_observation(theirs)
        shorter = env.shorten(mine, 3)
        assert shorter is not None
        assert shorter == direct.shorten(theirs, 3)
        assert env.format_observation(shorter) == direct.format_observation(shorter)
        assert env.shorten(mine, 2) is None
        step, expected_step = env.step("x"), direct.step("x")
        again, expected = step.observation, expected_step.observation
        assert again == expected
        assert step.info == expected_step.info  # images may be in it
        assert again["images"][0] is mine["images"][0]  # in later turns too
        assert env.format_observation(again) == direct.format_observation(expected)
        assert env.reset(seed=2).observation == direct.reset(seed=2).observation
        broken = env.step("raise").observation
        with pytest.raises(errors.EnvFault, match="cannot be formatted") as caught:
            env.format_observation(broken)
        assert caught.value.kind is errors.FaultKind.TRANSIENT


def test_isolated_keeps_wrappers_and_asynchronous_hooks_in_the_worker() -> None:
    with worker(envs.wrapped) as env:
        observation = env.reset(seed=1).observation
        assert env.format_observation(observation)["content"] == "task None!"
        assert env.step("x").reward == 0.5
    with worker(envs.Waiting) as env:
        assert env.reset(seed=1).observation["text"] == "async start"
        assert env.step("x").terminated


def test_isolated_declares_and_judges_success_as_in_this_process() -> None:
    with worker(EnvSource("canary-v0", '{"reward_threshold": 0.25}')) as env:
        assert env.spec is not None
        assert env.reward_threshold == env.spec.reward_threshold == 0.25
    with worker(envs.unpaid_canary) as env:
        assert env.reward_threshold == 1.0
        env.reset(seed=1)
        step = env.step(env.oracle()(context_of(env)))
        assert (step.reward, step.info["own_reward"], env.own_reward) == (0.0, 0.5, 0.5)
    with worker(envs.picky_mixture) as env:
        found = {env.reset(seed=n).info["member"]: env.reward_threshold for n in range(16)}
        assert found == {"half": 0.5, "whole": 1.0}


def context_of(env: Env) -> PolicyContext:
    return PolicyContext(env=env, task=env.task, turn=0, messages=[], seed=1)


def test_isolated_refuses_what_a_worker_cannot_build() -> None:
    with pytest.raises(errors.ConfigurationError, match="picklable"):
        isolated(lambda: envs.Harmful(max_turns=3))
    with pytest.raises(errors.ConfigurationError, match="memory_mb must be positive"):
        isolated(envs.Harmful, memory_mb=0)
    with pytest.raises(errors.UnknownNameError, match="canary"):
        isolated(EnvSource("canari-v0"))()


@pytest.mark.slow
def test_isolated_knows_environments_registered_at_run_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Local(Env):
        pass

    envkit.register("harmful-v0", "fakes.isolated_envs:Harmful", kwargs={"max_turns": 3})
    envkit.register("local-v0", Local)
    monkeypatch.setenv("ENVKIT_TEST_MARK", "seen")
    monkeypatch.chdir(tmp_path)
    try:
        with worker(EnvSource("harmful", '{"max_turns": 2}')) as env:
            assert env.max_turns == 2
            files = Path(f"/proc/{env.pid}")
            assert (files / "cwd").resolve() == tmp_path.resolve()
            assert env.spec is not None
            assert env.spec.id == "envkit/harmful-v0"
            rebuilt = envkit.registration.gymnasium.make(env.spec, disable_env_checker=True)
            assert isinstance(rebuilt.unwrapped, IsolatedEnv)
            rebuilt.close()
        with pytest.raises(errors.ConfigurationError, match="in a module"):
            isolated(EnvSource("local-v0"))()
    finally:
        for name in ("harmful-v0", "local-v0"):
            del envkit.registration._registered[name]
            del envkit.registration.gymnasium.registry[f"envkit/{name}"]


@pytest.mark.slow
def test_isolated_starts_a_python_where_an_import_started_threads() -> None:
    with worker(Threaded) as env:
        assert env.reset(seed=1).observation["text"] == "started"
        pid = cast(int, env.pid)
        with pytest.raises(errors.EnvFault, match="exited with code 4"):
            env.step("exit")
    assert not is_alive(pid)


def received(data: bytes) -> Frame:
    """Return the frame that a caller reads when these bytes arrive."""
    stream = io.BytesIO(data)

    def read(length: int) -> bytes:
        if not (found := stream.read(length)):
            raise EOFError
        return found

    with socket.socket() as channel:
        return Connection(channel).receive(read)


HEAD = struct.Struct("!4sIQQ").pack


def raw_frame(images: object, pixels: bytes, data: str = "{}") -> bytes:
    header = json.dumps({"starts_episode": False, "images": images})
    text = f"{header}\n{data}".encode()
    return HEAD(b"ekw2", len(text), len(pixels), 0) + text + pixels


def test_isolated_frames_refuse_what_is_not_an_answer() -> None:
    assert received(raw_frame([], b"", '{"reward": 1.0}')).data == {"reward": 1.0}
    for data in (
        b"x" * 64,
        HEAD(b"ekw2", MAX_JSON_BYTES + 1, 0, 0),
        HEAD(b"ekw2", 2, MAX_BLOB_BYTES + 1, 0),
        HEAD(b"ekw2", 2, 0, MAX_BLOB_BYTES + 1),
        HEAD(b"ekw2", 4, 0, 0) + b"nope",
        HEAD(b"ekw2", 5, 0, 0) + b"{}\n{}",
        raw_frame([], b"", "[]"),
        raw_frame([], b"", "nope"),
        raw_frame([], b"", "[" * 100_000),
        raw_frame([], b"", "9" * 10_000),
    ):
        with pytest.raises(FrameError):
            received(data)


def test_isolated_frames_refuse_images_that_are_not_what_they_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Image.from_array(np.zeros((4, 4, 3), dtype=np.uint8))
    data, digest = image.png_bytes(), image.sha256
    refer = json.dumps({"image": {"\0image": digest}})
    assert received(raw_frame([[digest, len(data)]], data, refer)).data == {"image": image}
    monkeypatch.setattr("envkit_isolation.frames._MAX_FRAME_PIXELS", 79)
    for images, pixels, text in (
        ([["0" * 64, len(data)]], data, "{}"),
        ([[digest, len(data) + 1]], data, "{}"),
        ([[digest, len(data)]], data + b"x", "{}"),
        ([[digest, 0]], b"", "{}"),
        ([[digest, len(data)]], b"y" * len(data), "{}"),
        (3, b"", "{}"),
        ([[digest]], data, "{}"),
        ([["0" * 64, 1]] * 2000, b"z" * 2000, "{}"),
        ([[digest, len(data)]] * 5, data * 5, "{}"),  # 80 pixels
        ([], b"", refer),  # never sent
        ([], b"", '{"image": {"\\u0000image": []}}'),
    ):
        with pytest.raises(FrameError):
            received(raw_frame(images, pixels, text))


def test_isolated_frames_send_the_pixels_of_an_image_once_in_an_episode() -> None:
    image = Image.from_array(np.zeros((40, 40, 3), dtype=np.uint8))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = Connection(ours), Connection(theirs)
        sizes: list[int] = []

        def read(length: int) -> bytes:
            data = theirs.recv(length)
            sizes[-1] += len(data)
            return data

        for starts_episode in (True, False, True):
            sizes.append(0)
            sender.send(Frame({"shown": [image, image]}, starts_episode=starts_episode))
            assert receiver.receive(read).data == {"shown": [image, image]}
        assert sizes[0] - sizes[1] > len(image.png_bytes())
        assert sizes[2] == sizes[0]
        with pytest.raises(errors.ContractError, match="must be JSON"):
            sender.send(Frame({"shown": object()}, starts_episode=True))
        sizes.append(0)
        sender.send(Frame({"shown": image}))
        assert receiver.receive(read).data == {"shown": image}


def test_isolated_errors_build_nothing_but_errors_of_envkit() -> None:
    told = {"type": "did_you_mean", "message": "m", "kind": "permanent", "retryable": False}
    for name in ("did_you_mean", "Final", "__builtins__", "LedgerFault", "no such name"):
        assert type(error_in({**told, "type": name})) is errors.EnvFault
    assert type(error_in("text")) is errors.EnvFault
    assert (
        cast(errors.EnvFault, error_in({**told, "kind": "?", "type": "EnvFault"})).kind
        == "permanent"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_isolated_child_that_returns_from_a_step_does_not_answer(fails: bool) -> None:
    env = isolated(functools.partial(Forking, fails=fails))()
    try:
        env.reset(seed=0)
        for turn in range(4):
            observation, reward, _, truncated, _ = env.step(f"reply {turn}")
            assert observation["text"] == f"turn {turn} after reply {turn}"
            assert (reward, truncated) == (1.0, turn == 3)
    finally:
        env.close()


def test_isolated_refuses_arguments_that_the_environment_does_not_take() -> None:
    register_missing({"attack-isolation-v0": EchoEnv})
    source = EnvSource("attack-isolation-v0", json.dumps({"no_such": 1}))
    with pytest.raises(errors.ConfigurationError, match="cannot be built with"):
        isolated(source)()
