"""Episodes of agents: functions and commands, and every way in which they end."""

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from fakes import own_agents
from fakes.agent_clients import ChatClient
from fakes.agent_runs import command, played
from fakes.codecs import vision_codec
from fakes.processes import wait_until_gone
from fakes.virtual_time import outlast, skip_from_thread
from fakes.waiting import until

from envkit.env import Capabilities, Env, Policy, Turn
from envkit.errors import ConfigurationError, EpisodeStateError
from envkit.registration import register
from envkit.rollout import EpisodeSpec, Interrupt, Player, RolloutConfig, can_resume
from envkit.rollout.player import resumed_spec
from envkit.rollout.scripted import ScriptedEngine
from envkit.rollout.tree import AtTurns, play_tree
from envkit.tasks import Task
from envkit.trajectory import (
    StopReason,
    Trajectory,
    check_trajectory,
    success_of,
    threshold_of,
)
from envkit_gateway import AgentSettings
from envkit_notebook.branching import check_branch


@pytest.mark.parametrize("env", ["canary-v0", "computer-use-v0", "search-v0"])
async def test_trivial_agent_records_what_the_loop_records(env: str) -> None:
    loop, agent = await played(None, env=env), await played("fakes.own_agents:trivial", env=env)

    for name in ("train_ids", "wire_ids", "loss_mask", "logprobs", "images"):
        assert getattr(loop, name)() == getattr(agent, name)(), name
    assert (loop.reward, loop.stop_reason) == (agent.reward, agent.stop_reason)
    assert threshold_of(loop) == threshold_of(agent) == 1.0
    assert success_of(loop) is success_of(agent) is True


class BonusEnv(Env):
    """Pays 0.5 in each of two turns, and a bonus of 4 that does not count."""

    def on_reset(self, task: Task) -> Turn:
        return Turn("Begin.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("More.", reward=4.5, done=self.turn == 1, info={"own_reward": 0.5})

    def oracle(self) -> Policy:
        return lambda context: "yes"


@pytest.mark.parametrize(("threshold", "solved"), [(1.0, True), (1.25, False)])
async def test_agent_is_judged_by_the_environments_own_rewards(
    threshold: float, solved: bool
) -> None:
    env_id = f"toy-bonus-{threshold}-v0"
    register(env_id, partial(BonusEnv, max_turns=2), reward_threshold=threshold)
    try:
        for agent in (None, "fakes.own_agents:trivial"):
            found = await played(agent, env=env_id)
            assert (found.reward, success_of(found)) == (9.0, solved), agent
    finally:
        del gymnasium.registry[f"envkit/{env_id}"]


async def test_reward_of_an_agent_replaces_the_environments_verdict() -> None:
    found = await played("fakes.own_agents:scoring")
    assert (found.reward, success_of(found)) == (0.25, False)
    assert not {"own_reward", "is_success"} & set(found.turns[-1].info)


@pytest.mark.parametrize("name", ["answering", "blocking"])
async def test_answer_of_an_agent_is_scored_by_the_environment(name: str) -> None:
    found = await played(f"fakes.own_agents:{name}")

    assert found.turns[-1].reward is not None
    assert len(found.turns) == 1


@pytest.mark.slow
async def test_blocking_agents_do_not_wait_for_each_other() -> None:
    agent = {"function": "fakes.own_agents:meeting_others", "timeout_s": 60}
    episodes = await asyncio.gather(*(played(agent) for _ in range(12)))

    assert {one.stop_reason for one in episodes} == {StopReason.TERMINATED}


async def test_agent_that_never_asks_the_model_is_a_fault() -> None:
    found = await played("fakes.own_agents:silent")

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "base_url" in found.fault.message


@pytest.mark.parametrize("name", ["crashing", "exiting"])
async def test_agent_that_fails_truncates_the_episode(name: str) -> None:
    found = await played(f"fakes.own_agents:{name}")

    assert found.stop_reason is StopReason.ENV_TRUNCATED
    assert found.reward == 0.0
    assert found.turns[-1].info["agent_error"]


async def test_agent_that_fails_after_a_refused_request_is_a_fault() -> None:
    found = await played("fakes.own_agents:refused")
    assert (found.stop_reason, found.reward) == (StopReason.LEDGER_FAULT, None)
    assert found.fault is not None
    assert "n must be between 1 and 128, got 0" in found.fault.message


@pytest.mark.parametrize(
    ("name", "ended", "reward"),
    [
        ("refused_once", StopReason.ENV_TRUNCATED, 0.0),
        ("refused_last", StopReason.TERMINATED, 0.5),
    ],
)
async def test_agent_that_recovers_from_a_refusal_is_scored(
    name: str, ended: StopReason, reward: float
) -> None:
    found = await played(f"fakes.own_agents:{name}")
    assert (found.stop_reason, found.reward) == (ended, reward)


@pytest.mark.parametrize("name", ["unfinished", "strange"])
async def test_reward_that_is_no_finite_number_is_a_fault(name: str) -> None:
    found = await played(f"fakes.own_agents:{name}")

    assert found.is_faulted
    assert found.reward is None


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The agents that hang."""
    monkeypatch.setattr(own_agents, "hung", [])
    return own_agents.hung


async def test_agent_that_hangs_is_stopped_and_truncated(hung: list[str]) -> None:
    agent = {"function": "fakes.own_agents:hanging", "timeout_s": 60}
    found = await outlast(played(agent), 60, begun=lambda: hung)

    assert found.stop_reason is StopReason.STEP_TIMEOUT
    assert found.turns[-1].info["agent_error"]


@pytest.mark.slow
async def test_agent_that_refuses_to_be_cancelled_is_left_behind(
    hung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit_gateway.playing._STOP_S", 0.5)
    agent = {"function": "fakes.own_agents:stubborn", "timeout_s": 60}
    playing = asyncio.ensure_future(outlast(played(agent), 60, begun=lambda: hung))
    done, _ = await asyncio.wait([playing], timeout=600)
    own_agents.released.set()

    assert done
    assert playing.result().stop_reason is StopReason.STEP_TIMEOUT


class Stuck(Env):
    """Answers a reply after the deadline."""

    loop: ClassVar[asyncio.AbstractEventLoop]

    def on_reset(self, task: Task) -> Turn:
        return Turn("start")

    def on_turn(self, response_text: str) -> Turn:
        skip_from_thread(self.loop, 60)
        return Turn("late", done=True)


@pytest.mark.slow
async def test_deadline_within_a_step_is_a_fault() -> None:
    codec = vision_codec()
    config = RolloutConfig.from_mapping(
        {"agent": {"function": "fakes.own_agents:stuck", "timeout_s": 60}}
    )
    Stuck.loop = asyncio.get_running_loop()
    player = Player(ScriptedEngine(codec, lambda context: "go"), codec, config)
    (found,) = await player.play(Stuck, EpisodeSpec(seed=3))
    await player.aclose()

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.reward is None


class Steps(Env):
    """Counts its steps; the first one of its class may fail or hang."""

    failures: ClassVar[list[Exception]] = []
    hang: ClassVar[Callable[..., object]] = bool
    taken: ClassVar[list[str]] = []

    def on_reset(self, task: Task) -> Turn:
        return Turn("start")

    def on_turn(self, response_text: str) -> Turn:
        self.taken.append(response_text)
        if self.failures:
            raise self.failures.pop()
        type(self).hang()
        return Turn("end", reward=1.0, done=True)


class Patient(Steps):
    """Attributes the time of its steps to the reply."""

    capabilities = Capabilities(on_step_timeout="truncate")


async def stepped(
    env: type[Steps], agent: str, *, interrupt: Interrupt | None = None, **options: Any
) -> Trajectory:
    """Play an episode whose model says "go"."""
    codec = vision_codec()
    config = RolloutConfig.from_mapping({"agent": f"fakes.own_agents:{agent}", **options})
    player = Player(ScriptedEngine(codec, lambda context: "go"), codec, config)
    (found,) = await player.play(env, EpisodeSpec(seed=3), interrupt=interrupt)
    await player.aclose()
    assert check_trajectory(found) == ()
    return found


async def test_episode_whose_state_is_lost_starts_over_whatever_the_agent_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Steps, "failures", [OSError("the backend is gone")])
    found = await stepped(Steps, "careless")

    assert (found.stop_reason, found.reward) == (StopReason.TERMINATED, 1.0)
    assert found.env_restarts == 1


async def test_late_step_that_the_reply_caused_truncates_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Steps, "hang", partial(skip_from_thread, loop, 60))
    found = await stepped(Patient, "careless", retries={"step_timeout_s": 60})

    assert (found.stop_reason, found.reward) == (StopReason.STEP_TIMEOUT, 0.0)


@pytest.mark.slow
async def test_abort_within_a_step_is_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "taken", [])
    interrupt, loop = Interrupt(), asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(interrupt.fire)
        skip_from_thread(loop, interrupt.grace_s)

    monkeypatch.setattr(Steps, "hang", hang)
    found = await stepped(Steps, "careless", interrupt=interrupt)

    assert found.stop_reason is StopReason.ABORTED


async def test_step_after_the_end_of_an_episode_reaches_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Steps, "taken", [])
    found = await stepped(Steps, "straggling")
    with pytest.raises(EpisodeStateError):
        await own_agents.stragglers.pop()

    assert found.reward == 1.0
    assert Steps.taken == []


async def test_interrupt_ends_an_agent_at_once(hung: list[str]) -> None:
    interrupt = Interrupt()
    playing = asyncio.create_task(played("fakes.own_agents:hanging", interrupt=interrupt))
    await until(lambda: hung)
    interrupt.fire()
    found = await asyncio.wait_for(playing, 120)

    assert found.stop_reason is StopReason.ABORTED
    assert found.reward is None
    assert not can_resume(found)
    with pytest.raises(ConfigurationError, match="in the middle of its program"):
        resumed_spec(found, 0)
    with pytest.raises(ConfigurationError, match="in the middle of its program"):
        check_branch(found, 0)


async def test_agent_may_branch_and_cannot_be_forked() -> None:
    codec = vision_codec()
    config = RolloutConfig.from_mapping({"agent": "fakes.own_agents:trivial"})
    player = Player(ScriptedEngine(codec, lambda context: "go"), codec, config)

    assert config.branching_setting(codec) == "agent"
    assert RolloutConfig().branching_setting(codec) is None
    with pytest.raises(ConfigurationError, match="drop the setting agent"):
        await play_tree(Steps, player, branching=AtTurns(turns=(0,)))
    await player.aclose()


async def test_command_answers_and_its_output_is_kept(tmp_path: Path) -> None:
    found = await played(command(tmp_path, "print(answer); print('note', file=sys.stderr)"))

    assert found.stop_reason is not StopReason.ENV_FAULT
    output = found.turns[-1].info["agent_output"]
    assert output["exit_status"] == 0
    assert output["stderr"] == "note\n"


async def test_command_may_leave_a_reward(tmp_path: Path) -> None:
    found = await played(command(tmp_path, "open('reward.txt', 'w').write('0.5')"))

    assert found.reward == 0.5


async def test_command_that_fails_truncates_the_episode(tmp_path: Path) -> None:
    found = await played(command(tmp_path, "sys.exit(7)"))

    assert found.stop_reason is StopReason.ENV_TRUNCATED
    assert "status 7" in found.turns[-1].info["agent_error"]


async def test_command_that_ends_without_a_reply_says_why() -> None:
    found = await played({"command": [sys.executable, "no_such_program.py"]})

    assert found.fault is not None
    assert "status 2: " in found.fault.message
    assert "can't open file './no_such_program.py'" in found.fault.message


async def test_command_that_cannot_start_is_a_fault() -> None:
    found = await played({"command": "no-such-program --now"})

    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "no-such-program" in found.fault.message


ESCAPE = """
import subprocess, time
code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
open({pid!r}, "w").write(child.stdout.readline())
{then}
"""


@pytest.mark.parametrize("then", ["print(answer)", "time.sleep(600)"], ids=["ends", "hangs"])
@pytest.mark.slow
async def test_processes_of_a_command_never_outlive_it(tmp_path: Path, then: str) -> None:
    pid = tmp_path / "pid"
    agent = command(tmp_path, ESCAPE.format(pid=str(pid), then=then))
    seconds = agent["timeout_s"] if then == "time.sleep(600)" else 0
    found = await outlast(
        played(agent), seconds, begun=lambda: pid.exists() and pid.read_text().endswith("\n")
    )

    assert found.turns
    assert wait_until_gone([int(pid.read_text())]) == []


HOARD = """
import tempfile, time
for number in range(200):
    with open(os.path.join({place}, f"{{number}}"), "wb") as file:
        file.write(os.urandom(1 << 18))
    time.sleep({pause})
print(answer)
"""


@pytest.mark.parametrize(
    "place",
    ["'.'", "os.path.expanduser('~')", "tempfile.gettempdir()"],
    ids=["work", "home", "tmp"],
)
@pytest.mark.slow
async def test_command_that_fills_the_disk_is_stopped_and_truncated(
    tmp_path: Path, place: str
) -> None:
    agent = {**command(tmp_path, HOARD.format(place=place, pause=0.2)), "max_disk_mb": 1}
    found = await played(agent)

    assert found.stop_reason is StopReason.ENV_TRUNCATED
    assert "max_disk_mb" in found.turns[-1].info["agent_error"]
    assert found.turns[-1].info["agent_output"]["exit_status"] == 128 + signal.SIGXFSZ


async def test_command_may_not_write_one_file_beyond_its_quota(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    code += "open('large', 'wb').write(bytes(3 << 20)); print(answer)"
    found = await played({**command(tmp_path, code), "max_disk_mb": 2})

    assert "max_disk_mb" in found.turns[-1].info["agent_error"]


async def test_output_of_a_command_is_bounded(tmp_path: Path) -> None:
    code = "sys.stderr.write('x' * 5_000_000); print(answer)"
    found = await played(command(tmp_path, code))

    assert len(found.turns[-1].info["agent_output"]["stderr"]) == 16_384


@pytest.mark.parametrize(
    "agent",
    ["no_such_module:agent", "fakes.own_agents:ask_me", {}, {"comand": "x"}, {"command": ""},
     {"command": "x", "function": "y:z"}, {"command": "x", "timeout_s": 0},
     {"command": "x", "max_disk_mb": 0},
     {"command": "x", "timeout_s": "60"}, {"command": 5}, {"command": ["x", 1]},
     {"command": "x", "train": "no"}, {"function": 5}],
)  # fmt: skip
async def test_wrong_setting_is_refused_before_any_episode(agent: Any) -> None:
    with pytest.raises(ConfigurationError, match="agent"):
        await played(agent)


async def test_gateway_listens_where_the_setting_says(unused_tcp_port: int) -> None:
    port = unused_tcp_port
    found: list[str] = []

    async def agent(task: Any) -> float:
        found.append(task.base_url)
        await ChatClient(f"http://127.0.0.2:{port}", task.api_key).ask(task.prompt)
        return 1.0

    await played({"function": agent, "bind": f"127.0.0.2:{port}", "url": "https://proxy.test/a/"})
    await played({"function": agent, "bind": f"127.0.0.2:{port}"})
    assert found == ["https://proxy.test/a/v1", f"http://127.0.0.2:{port}/v1"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"bind": "0.0.0.0:8700"}, "set agent.url"),
        ({"bind": "http://10.0.0.5"}, "must be HOST or HOST:PORT"),
        ({"bind": "10.0.0.5:many"}, "must be HOST or HOST:PORT"),
        ({"bind": ""}, "must be HOST or HOST:PORT"),
        ({"url": "10.0.0.5:8700"}, "must start with http"),
    ],
)
def test_address_of_the_gateway_is_checked(setting: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        AgentSettings.read({"function": own_agents.trivial, **setting})
