"""Commands that take an environment's steps and give rewards over HTTP, with a key of their own."""

import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from fakes.agent_runs import TIMEOUT_S, command, played
from fakes.virtual_time import outlast

from envkit.env import Env, Policy, Turn
from envkit.errors import ConfigurationError
from envkit.registration import register
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory
from envkit_gateway import AgentSettings

CONTROL = """
import socket, threading, urllib.error
key = input()
BASE = os.environ["OPENAI_BASE_URL"]
def post(path, body, key=key, **head):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"authorization": "Bearer " + key, **head}
    try:
        return 200, json.load(u.urlopen(u.Request(BASE + path, data, head)))
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
def step(number, text, **given):
    return post("/env/step", {"step": number, "text": text}, **given)
def reward(name, value, **given):
    return post("/env/reward", {"id": name, "reward": value}, **given)
def refused(got, status, words):
    assert got[0] == status and words in got[1]["error"]["message"], got
def await_step(number):
    "Wait until the step before this one has begun."
    while f"next step is {number}," not in step(99, "x")[1]["error"]["message"]:
        pass
def cut(path, body):
    "Send a request and leave."
    host, port = BASE.removeprefix("http://").removesuffix("/v1").split(":")
    data = json.dumps(body).encode()
    head = f"POST /v1{path} HTTP/1.1\\r\\nHost: {host}\\r\\nAuthorization: Bearer {key}\\r\\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(f"{head}Content-Length: {len(data)}\\r\\n\\r\\n".encode() + data)
"""
WHOLE = """
status, seen = post("/env/reset", {})
assert status == 200 and not seen["done"] and seen["step"] == 0, seen
messages, number = seen["messages"], 0
while not seen["done"]:
    status, said = post("/chat/completions", {"model": "m", "messages": messages},
                        key=os.environ["OPENAI_API_KEY"])
    text = said["choices"][0]["message"]["content"]
    status, seen = step(number, text)
    assert status == 200 and seen["step"] == number + 1, seen
    messages += [{"role": "assistant", "content": text}, *seen["messages"]]
    number += 1
"""


def controlling(tmp_path: Path, code: str, **options: Any) -> dict[str, Any]:
    """Return the setting of a script that asks once and then controls its episode."""
    return {**command(tmp_path, CONTROL + code), "steps": True, "rewards": True, **options}


class Counted(Env):
    """Counts its steps and shows the count; the fourth one ends it."""

    taken: ClassVar[list[str]] = []
    gate: ClassVar[Path | None] = None
    """A file that a step waits for; None waits for nothing."""
    failures: ClassVar[list[Exception]] = []

    def on_reset(self, task: Task) -> Turn:
        self.taken.clear()
        return Turn("Begin.")

    def on_turn(self, response_text: str) -> Turn:
        self.taken.append(response_text)
        deadline = time.monotonic() + 120
        while self.gate is not None and not self.gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.failures:
            raise self.failures.pop()
        return Turn(f"{len(self.taken)} taken.", reward=1.0, done=self.turn == 3)

    def oracle(self) -> Policy:
        return lambda context: "yes"


@pytest.fixture
def counted() -> Any:
    register("toy-counted-v0", partial(Counted, max_turns=9))
    yield "toy-counted-v0"
    del gymnasium.registry["envkit/toy-counted-v0"]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that a step waits for."""
    monkeypatch.setattr(Counted, "gate", tmp_path / "gate")
    return str(Counted.gate)


def check_ended(found: Trajectory) -> None:
    """Check that a command ended well: a failed assertion of its own would have truncated it."""
    assert found.stop_reason is StopReason.TERMINATED, (found.fault, found.turns[-1].info)


@pytest.mark.parametrize("env", ["canary-v0", "computer-use-v0"])
async def test_command_that_passes_messages_on_records_what_the_loop_records(
    tmp_path: Path, env: str
) -> None:
    agent = controlling(tmp_path, WHOLE)
    script = Path(agent["command"][1])
    script.write_text("import json, os, sys, urllib.request as u\n" + CONTROL + WHOLE)
    loop, found = await played(None, env=env), await played(agent, env=env)

    check_ended(found)
    assert len(found.turns) > 1
    for name in ("train_ids", "wire_ids", "loss_mask", "logprobs", "images"):
        assert getattr(loop, name)() == getattr(found, name)(), name
    assert [turn.reward for turn in loop.turns] == [turn.reward for turn in found.turns]


SEARCH = """
texts = [key, key.encode().hex(), key.removeprefix("sk-envkit-control-")]
assert len(key) > 32 and sys.stdin.read() == ""
for process in (os.getpid(), os.getppid()):
    for name in ("environ", "cmdline"):
        held = open(f"/proc/{process}/{name}", "rb").read().decode()
        assert not any(text in held for text in texts), (process, name)
for folder, _, names in os.walk(".."):
    for name in names:
        held = open(os.path.join(folder, name), "rb").read().decode("latin-1")
        assert not any(text in held for text in texts), name
"""


async def test_key_is_on_standard_input_only(tmp_path: Path) -> None:
    check_ended(await played(controlling(tmp_path, SEARCH)))


async def test_standard_input_is_empty_without_the_settings(tmp_path: Path) -> None:
    check_ended(await played(command(tmp_path, "assert sys.stdin.read() == ''")))


FORGED = """
for forged in (os.environ["OPENAI_API_KEY"], "", "sk-envkit-control-" + "0" * 32, key[:-1]):
    refused(step(0, "yes", key=forged), 401, "standard input")
    refused(reward("1", 9.0, key=forged), 401, "standard input")
    refused(post("/env/reset", {}, key=forged), 401, "standard input")
refused(post("/chat/completions", {"model": "m", "messages": []}), 401, "unknown API key")
head = {"anthropic-version": "2023-06-01", "x-api-key": "wrong"}
assert post("/env/step", {}, key="wrong", **head)[1]["type"] == "error"
"""


async def test_other_keys_cannot_step_or_reward(tmp_path: Path, counted: str) -> None:
    found = await played(controlling(tmp_path, FORGED), env=counted)

    check_ended(found)
    assert (found.reward, Counted.taken) == (0.0, [])


async def test_forged_request_is_no_excuse_for_a_failure(tmp_path: Path, counted: str) -> None:
    code = FORGED + "sys.exit(3)"
    found = await played(controlling(tmp_path, code), env=counted)

    assert (found.stop_reason, found.reward) == (StopReason.ENV_TRUNCATED, 0.0)


CUT = """
for _ in range(3):
    cut("/env/step", {{"step": 0, "text": "one"}})
await_step(1)
open({gate!r}, "w")
first = step(0, "one")
assert first == step(0, "one") and first[0] == 200 and first[1]["messages"] == [
    {{"role": "user", "content": "1 taken."}}], first
cut("/env/step", {{"step": 1, "text": "two"}})
got = []
threads = [threading.Thread(target=lambda: got.append(step(1, "two"))) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
assert len(got) == 8 and all(one == got[0] for one in got) and got[0][0] == 200, got
for _ in range(3):
    cut("/env/reward", {{"id": "a", "reward": 0.25}})
assert reward("a", 0.25) == (200, {{"id": "a", "reward": 0.25}})
"""


async def test_step_and_reward_count_once_however_often_the_connection_is_cut(
    tmp_path: Path, counted: str, gate: str
) -> None:
    code = CUT.format(gate=gate)
    found = await played(controlling(tmp_path, code), env=counted)

    check_ended(found)
    assert Counted.taken == ["one", "two"]
    assert [turn.reward for turn in found.turns] == [2.25]


RACE = """
got = []
ask = lambda text: got.append((step(0, text)[0], text))
threads = [threading.Thread(target=ask, args=(text,)) for text in "abcdefgh"]
[one.start() for one in threads]
[one.join() for one in threads]
assert sorted(status for status, _ in got) == [200] + [400] * 7, got
refused(step(0, "z"), 400, "taken with another text")
open("answer.txt", "w").write(next(text for status, text in got if status == 200))
"""


async def test_one_of_concurrent_steps_is_taken(tmp_path: Path, counted: str) -> None:
    found = await played(controlling(tmp_path, RACE), env=counted)

    check_ended(found)
    assert len(Counted.taken) == 2  # the race's, and the answer
    assert Counted.taken[0] == Counted.taken[1]


AHEAD = """
thread = threading.Thread(target=step, args=(0, "slow"))
thread.start()
await_step(1)
refused(step(1, "fast"), 400, "step 0 is still running")
open({gate!r}, "w")
thread.join()
"""


async def test_step_before_the_answer_to_the_last_one_is_refused(
    tmp_path: Path, counted: str, gate: str
) -> None:
    code = AHEAD.format(gate=gate)
    found = await played(controlling(tmp_path, code), env=counted)

    check_ended(found)
    assert Counted.taken == ["slow"]


ENDED = """
for number in range(4):
    status, seen = step(number, "go")
    assert (status, seen["done"], seen["reward"]) == (200, number == 3, 1.0), seen
    refused(step(number - 1, "go"), 400, f"the next step is {number + 1}")
    refused(step(number + 2, "go"), 400, f"the next step is {number + 1}")
    refused(post("/env/reset", {}), 400, "reset only at its start")
assert step(3, "go") == (200, seen)
refused(step(4, "go"), 403, "has ended the episode")
refused(step(4, "go"), 403, "has ended the episode")
assert reward("late", 0.5)[0] == 200
open("answer.txt", "w").write("more")
"""


async def test_step_after_the_end_is_refused(tmp_path: Path, counted: str) -> None:
    found = await played(controlling(tmp_path, ENDED), env=counted)

    check_ended(found)
    assert (Counted.taken, found.reward) == (["go"] * 4, 4.5)


MALFORMED = """
for body in (b"", b"[]", b"{", {}, {"step": 0}, {"text": "x"}, {"step": "0", "text": "x"},
             {"step": True, "text": "x"}, {"step": 0, "text": ["x"]}, {"step": 0.0, "text": "x"},
             {"step": -1, "text": "x"}, b"[" * 100_000):
    assert post("/env/step", body)[0] == 400, body
for body in ({}, {"id": "1"}, {"reward": 1}, {"id": "", "reward": 1},
             {"id": "1", "reward": "1"}, {"id": "1", "reward": True}, {"id": "1", "reward": None},
             b'{"id": "1", "reward": NaN}', b'{"id": "1", "reward": 1e999}',
             b'{"id": "1", "reward": -Infinity}'):
    refused(post("/env/reward", body), 400, "a finite number")
assert reward("1", 0.5)[0] == 200
refused(reward(1, 1), 400, "id must be of type str, got 1")
refused(reward("1", 0.75), 400, "was given as 0.5, got 0.75")
refused(post("/env/close", {}), 404, "reset")
"""


async def test_malformed_requests_are_refused_and_change_nothing(
    tmp_path: Path, counted: str
) -> None:
    found = await played(controlling(tmp_path, MALFORMED), env=counted)

    check_ended(found)
    assert (found.reward, Counted.taken) == (0.5, [])


async def test_command_that_fails_on_its_refused_reward_is_a_fault(tmp_path: Path) -> None:
    found = await played(controlling(tmp_path, 'sys.exit(reward("1", float("nan"))[0] - 399)'))

    assert found.stop_reason is StopReason.LEDGER_FAULT
    assert found.fault is not None
    assert "a finite number" in found.fault.message


EARLY = (
    CONTROL
    + """
refused(reward("1", 1.0), 403, "ask the model first")
post("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}]},
     key=os.environ["OPENAI_API_KEY"])
assert reward("1", 1.0)[0] == 200
"""
)


async def test_reward_needs_a_reply(tmp_path: Path, counted: str) -> None:
    agent = controlling(tmp_path, "")
    Path(agent["command"][1]).write_text("import json, os, sys, urllib.request as u\n" + EARLY)
    found = await played(agent, env=counted)

    check_ended(found)
    assert found.reward == 1.0


async def test_each_setting_allows_its_own_requests(tmp_path: Path, counted: str) -> None:
    code = """
refused(reward("1", 1.0), 403, "agent.rewards: true")
assert "reward" not in step(0, "go")[1]
print("no answer")
"""
    found = await played(controlling(tmp_path, code, rewards=False), env=counted)
    check_ended(found)
    assert Counted.taken == ["go"]

    code = 'refused(step(0, "go"), 403, "agent.steps: true"); reward("1", 4.0); print("bye")'
    found = await played(controlling(tmp_path, code, steps=False), env=counted)
    check_ended(found)
    assert (Counted.taken, found.reward) == (["bye"], 5.0)


async def test_grade_replaces_the_steps_and_keeps_the_rewards(tmp_path: Path, counted: str) -> None:
    code = 'step(0, "go"); reward("1", 4.0); open("reward.txt", "w").write("8")'
    found = await played(controlling(tmp_path, code, grade="true"), env=counted)

    check_ended(found)
    assert found.reward == 5.0


async def test_failure_of_the_environment_is_a_fault_whatever_the_command_does(
    tmp_path: Path, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "failures", [ValueError("broken")] * 9)
    code = 'got = step(0, "go"); refused(got, 500, "broken"); assert step(0, "go") == got'
    found = await played(
        controlling(tmp_path, code), env=counted, retries={"max_episode_restarts": 0}
    )

    assert (found.stop_reason, found.reward) == (StopReason.ENV_FAULT, None)


@pytest.mark.slow
@pytest.mark.usefixtures("gate")
async def test_deadline_within_a_step_over_http_is_a_fault(tmp_path: Path, counted: str) -> None:
    Counted.taken.clear()
    playing = played(controlling(tmp_path, 'step(0, "go")'), env=counted)
    found = await outlast(playing, TIMEOUT_S, begun=lambda: Counted.taken)

    assert (found.stop_reason, found.reward) == (StopReason.ENV_FAULT, None)


LEAVING = """
threading.Thread(target=step, args=(0, "go"), daemon=True).start()
await_step(1)
open({gate!r}, "w")
os._exit(0)
"""


async def test_command_that_leaves_during_its_step_is_scored_with_it(
    tmp_path: Path, counted: str, gate: str
) -> None:
    code = LEAVING.format(gate=gate)
    found = await played(controlling(tmp_path, code), env=counted)

    check_ended(found)
    assert (found.reward, Counted.taken) == (1.0, ["go"])


@pytest.mark.parametrize("name", ["steps", "rewards"])
def test_settings_for_commands_are_refused_for_functions(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"AgentTask\.step and AgentTask\.reward"):
        AgentSettings.read({"function": "fakes.own_agents:trivial", name: True})
