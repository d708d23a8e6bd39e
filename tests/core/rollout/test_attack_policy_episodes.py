"""History policies with limits, tools, resumed episodes and environments of their own."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import Screens, Summarised, reply
from fakes.own_histories import (
    HangingRole,
    LeavingRole,
    Own,
    OwnPolicies,
    Pair,
    PerTask,
    Raising,
    SharedPolicy,
    UnreadableRole,
    Untyped,
    UntypedRole,
)
from fakes.policy_runs import (
    LAST_TWO,
    QUICK,
    assert_played,
    assert_verifies,
    run,
    setting_of,
)
from fakes.templates import make_codec

from envkit.env import Env, Observation, PolicyContext, Turn
from envkit.messages import message
from envkit.rollout import (
    EpisodeSpec,
    HistoryView,
    Interrupt,
    Limits,
    Player,
    Question,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.trajectory import (
    FaultPlace,
    StopReason,
    Trajectory,
)
from envkit.trajectory.sequence import branch_history
from envkit_isolation import isolated
from envkit_isolation.process import close_supervisors

# --- limits ---------------------------------------------------------------------------------


class Long(Screens):
    """Says more than fits in its fourth turn, and can say it shorter."""

    rooms: ClassVar[list[int]] = []

    def on_turn(self, response_text: str) -> Turn:
        text = "long " * 400 if self.turn == 3 else f"Screen {self.turn + 1}."
        return Turn(text, reward=1.0)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        type(self).rooms.append(tokens)
        return {**observation, "text": "long " * max(1, (tokens - 20) // 2)}


@pytest.mark.parametrize(
    "history",
    [
        "keep",
        {"keep_last_turns": {"keep": 1, "drop_at": 2}},
        {"keep_last_turns": {"keep": 1, "drop_at": 3}},
        {"summarise": {"at_tokens": 60, "max_tokens": 20}},
        {"summarise": {"at_tokens": 250, "max_tokens": 20}},
        LAST_TWO,
    ],
    ids=str,
)
async def test_long_observation_is_shortened_for_any_history(history: Any, tmp_path: Path) -> None:
    Long.rooms.clear()
    trajectory = await run(history, env=Long(), limits=Limits(max_context_tokens=320))
    assert Long.rooms
    assert trajectory.stop_reason is StopReason.ENV_TRUNCATED
    assert_played(trajectory, tmp_path)
    for sequence in trajectory.sequences():
        assert len(sequence.train_ids()) <= 320


async def test_context_limit_counts_each_sequence_alone(tmp_path: Path) -> None:
    def shown(limit: int | None) -> Any:
        return run(LAST_TWO, limits=Limits(max_context_tokens=limit))

    whole = await shown(None)
    longest = max(len(one.train_ids()) for one in whole.sequences())
    assert sum(len(one.train_ids()) for one in whole.sequences()) > 2 * longest
    assert_played(await shown(longest + 1), tmp_path)


async def test_summary_that_does_not_fit_truncates_with_its_reward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(view: HistoryView) -> Question | None:
        if view.turn != 3:
            return None
        return Question(
            text="Summarise.",
            max_tokens=20,
            rewrite=lambda text: [*view.opening, message("user", text * 500)],
        )

    trajectory = await run(setting_of(monkeypatch, ask), limits=Limits(max_context_tokens=400))
    assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
    assert trajectory.reward == 3.0
    assert_verifies(trajectory, tmp_path)


# --- tools ----------------------------------------------------------------------------------


class Tools(Screens):
    """Answers a call in each turn."""

    def on_turn(self, response_text: str) -> Turn:
        call = {"name": "look", "arguments": {"turn": self.turn}, "id": None}
        return Turn(f"Result {self.turn}.", role="tool", reward=1.0, info={"tool_call": call})


def call_tool(context: PolicyContext) -> str:
    arguments = f'{{"name": "look", "arguments": {{"turn": {context.turn}}}}}'
    return f"Look. <tool_call>\n{arguments}\n</tool_call>"


@pytest.mark.parametrize(
    "template",
    ["deepseek-r1", "glm4moe", "gpt-oss", "llama3.1", "mistral-nemo", "phi3", "qwen3", "smollm2"],
)
@pytest.mark.slow
async def test_kept_tool_results_follow_their_calls_in_every_template(
    template: str, tmp_path: Path
) -> None:
    history = {"keep_last_turns": {"keep": 2, "drop_at": 3}}
    trajectory = await run(history, env=Tools(), template=template, script=call_tool)
    assert_played(trajectory, tmp_path)
    assert trajectory.branches
    for branch in trajectory.branches:
        roles = [entry["role"] for entry in branch_history(branch, trajectory.messages)]
        assert roles[:3] == ["system", "user", "assistant"]
        needs_calls = template in ("gpt-oss", "mistral-nemo", "phi3")
        assert set(roles[3::2]) == {"user" if needs_calls else "tool"}


# --- an environment's own policy ------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _no_supervisor_left() -> Iterator[None]:
    yield
    close_supervisors()


def _made(env: type[Env], isolation: str) -> Any:
    return isolated(env) if isolation == "process" else env


ISOLATIONS = pytest.mark.parametrize("isolation", ["none", "process"])


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "reason"),
    [(Own, "last_two"), (PerTask, "keep_last_turns"), (Summarised, "summarise")],
)
@pytest.mark.slow
async def test_environment_applies_its_own_policy(
    env: type[Env], reason: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation))
    assert_played(trajectory, tmp_path)
    assert {branch.reason for branch in trajectory.branches} == {reason}
    trajectory = await run("keep", env=_made(env, isolation))
    assert not trajectory.branches


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "text"), [(Raising, "SystemExit"), (Untyped, "history_policy must be")]
)
async def test_environments_bad_policy_faults_the_episode(
    env: type[Env], text: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation), retries=QUICK)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


async def _roles(env: type[Env], isolation: str, tmp_path: Path) -> dict[str, Trajectory]:
    codec = make_codec("qwen3")
    retries = RetryBudget(step_timeout_s=1, max_episode_restarts=0)
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(retries=retries))
    async with asyncio.timeout(15):
        played = await player.play(_made(env, isolation), EpisodeSpec(seed=3))
    await player.aclose()
    for one in played:
        assert_verifies(one, tmp_path)
    return {str(one.metadata.get("role")): one for one in played}


@ISOLATIONS
async def test_roles_apply_their_own_policies(isolation: str, tmp_path: Path) -> None:
    for env, reasons in (
        (SharedPolicy, ("keep_last_turns",) * 2),
        (OwnPolicies, ("keep_last_turns", "last_two")),
    ):
        played = await _roles(env, isolation, tmp_path)
        found = [{branch.reason for branch in played[role].branches} for role in Pair.roles]
        assert found == [{reason} for reason in reasons]
        assert [one.reward for one in played.values()] == [7.0, 7.0]


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "where", "text"),
    [
        (HangingRole, FaultPlace.HISTORY, "role 'second' failed: history policy 'never' failed"),
        (LeavingRole, FaultPlace.HISTORY, "role 'first' failed: history policy 'leave' failed"),
        (UntypedRole, FaultPlace.RESET, "history_policy must be"),
        (UnreadableRole, FaultPlace.RESET, "SystemExit"),
    ],
)
@pytest.mark.slow
async def test_bad_policy_of_a_role_ends_its_episode_alone(
    env: type[Env], where: FaultPlace, text: str, isolation: str, tmp_path: Path
) -> None:
    played = await _roles(env, isolation, tmp_path)
    for one in played.values():
        assert one.fault is not None
        assert text in one.fault.message
        assert one.reward is None
        if isolation == "none" or where is FaultPlace.HISTORY:
            assert one.fault.where is where


class Stubborn(Long):
    """Cannot say it shorter."""

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return None


@pytest.mark.parametrize("history", ["keep", LAST_TWO, {"summarise": {"at_tokens": 60}}], ids=str)
@pytest.mark.parametrize("env", [Long, Stubborn])
@pytest.mark.slow
async def test_resumed_episode_ends_where_the_whole_one_does(
    env: type[Long], history: Any, tmp_path: Path
) -> None:
    interrupt, limits = Interrupt(), Limits(max_context_tokens=320)
    loop = asyncio.get_running_loop()

    class Aborting(env):
        def on_turn(self, response_text: str) -> Turn:
            if self.turn == 3 and interrupt.reason is None:
                loop.call_soon_threadsafe(interrupt.fire)
                time.sleep(0.2)
            return super().on_turn(response_text)

    whole = await run(history, env=env(), limits=limits)
    cut = await run(history, env=Aborting(), limits=limits, interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    codec = make_codec("qwen3")
    config = RolloutConfig(history=history, limits=limits)
    player = Player(ScriptedEngine(codec, reply), codec, config)
    (resumed,) = await player.resume(cut, env())
    await player.aclose()
    assert_verifies(resumed, tmp_path)
    assert resumed.stop_reason is whole.stop_reason
    assert resumed.reward == whole.reward
    assert resumed.messages == whole.messages
    assert [one.train_ids for one in resumed.segments] == [one.train_ids for one in whole.segments]
