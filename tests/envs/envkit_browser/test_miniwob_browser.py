"""MiniWoB++ in the real browser: oracle, rewards, faults, pixels."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
from fakes.needs import BROWSER
from fakes.processes import run_python

import envkit
from envkit.env import Policy, PolicyContext, Step
from envkit.errors import EnvFault, FaultKind
from envkit.seeds import derive_seed
from envkit_actions import FAMILIES
from envkit_actions.random_clicks import random_clicks
from envkit_browser.miniwob import PLANS, TASKS, MiniwobEnv
from envkit_browser.miniwob.page import Element
from envkit_browser.miniwob.policies import oracle

pytestmark = BROWSER.mark
CLICK = '{"action": "click", "x": %d, "y": %d}'


@pytest.fixture
async def env() -> AsyncIterator[MiniwobEnv]:
    made = MiniwobEnv(mix="all")
    yield made
    await made.aclose()


async def _start_and_look(env: MiniwobEnv, name: str) -> None:
    await env.areset(seed=0, options={"task": {"name": name, "seed": 3}})
    context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=3)
    await env.astep(oracle()(context))


async def _play(env: MiniwobEnv, policy: Policy, name: str, seed: int) -> list[Step]:
    await env.areset(seed=0, options={"task": {"name": name, "seed": seed}})
    steps: list[Step] = []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        context = PolicyContext(env=env, task=env.task, turn=len(steps), messages=(), seed=seed)
        steps.append(await env.astep(policy(context)))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANS))
async def test_oracle_solves_every_task_that_it_has_a_plan_for(env: MiniwobEnv, name: str) -> None:
    for seed in range(2):
        last = (await _play(env, oracle(), name, seed))[-1]
        assert (last.terminated, last.reward) == (True, 1.0), (seed, last.info)


@pytest.mark.slow
async def test_random_policy_stays_under_five_percent(env: MiniwobEnv) -> None:
    def clicks(context: PolicyContext) -> str:
        # Seeded by the task's name too; otherwise all tasks would share a few series of clicks.
        seed = derive_seed("clicks", context.task["name"], context.seed)
        return policy(replace(context, seed=seed))

    policy = random_clicks()
    won = [
        (await _play(env, clicks, name, seed))[-1].reward
        for name in sorted(PLANS)
        for seed in range(2)
    ]
    assert sum(won) / len(won) < 0.05


async def test_each_task_has_its_own_turns_which_the_prompt_names() -> None:
    env = MiniwobEnv()
    assert env.max_turns == max(TASKS[name].turns for name in PLANS)
    for name in ("click-button", "copy-paste"):
        steps = await _play(env, lambda context: '{"action": "wait", "seconds": 1}', name, 1)
        assert (len(steps), steps[-1].truncated) == (TASKS[name].turns, True)
        assert f"You have {TASKS[name].turns} replies." in (env.system_prompt or "")
    await env.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
async def test_every_task_resets_and_steps(env: MiniwobEnv, name: str) -> None:
    _, info = await env.areset(seed=0, options={"task": {"name": name, "seed": 3}})
    assert info["task"] == name
    for turn in range(3):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=3)
        step = await env.astep(random_clicks()(context))
        assert step.observation["images"][0].size == (320, 420)
        if step.terminated or step.truncated:
            break


# The oracle moves the pointer, which a phone does not have.
@pytest.mark.parametrize("action", sorted(set(FAMILIES) - {"ui-tars-1.5-mobile", "autoglm-phone"}))
@pytest.mark.slow
async def test_oracle_speaks_every_dialect(action: str) -> None:
    env = MiniwobEnv(task="click-checkboxes", action=action, scale=3)
    last = (await _play(env, oracle(), "click-checkboxes", 4))[-1]
    await env.aclose()
    assert last.reward == 1.0


@pytest.mark.slow
def test_environment_passes_the_checker() -> None:
    env = envkit.make("miniwob/click-button-v0")
    assert "oracle" in envkit.check_env(env, episodes=2).passed
    env.close()


async def test_goal_is_text_and_its_bar_is_blank_unless_asked(env: MiniwobEnv) -> None:
    task = {"name": "click-button", "seed": 1}
    hidden, _ = await env.areset(seed=0, options={"task": task})
    shown = MiniwobEnv(shows_goal=True)
    seen, _ = await shown.areset(seed=0, options={"task": task})
    await shown.aclose()
    assert hidden["text"] == seen["text"]
    assert hidden["text"].startswith('Task: Click on the "')
    bars = [
        page["images"][0].pil().convert("RGB").crop((0, 0, 320, 100)) for page in (hidden, seen)
    ]
    assert len(bars[0].getcolors() or ()) == 1
    assert len(bars[1].getcolors(1000) or ()) > 1


async def test_goal_that_holds_an_image_is_always_shown(env: MiniwobEnv) -> None:
    observation, _ = await env.areset(options={"task": {"name": "use-colorwheel-2", "seed": 1}})
    bar = observation["images"][0].pil().convert("RGB").crop((0, 0, 320, 100))
    assert len(bar.getcolors(4000) or ()) > 2


async def test_wrong_press_ends_without_reward(env: MiniwobEnv) -> None:
    await _start_and_look(env, "click-test-2")
    assert env.page is not None
    x, y = (int(2 * side) for side in env.page.with_text("button", "TWO").middle)
    step = await env.astep(CLICK % (x, y))
    assert (step.terminated, step.reward, step.info["raw_reward"]) == (True, 0.0, -1)
    assert step.info["reward_terms"] == {"task": 0.0}


async def _click(env: MiniwobEnv, element: Element) -> Step:
    x, y = (int(2 * side) for side in element.middle)
    return await env.astep(CLICK % (x, y))


async def test_lowest_card_earns_nothing(env: MiniwobEnv) -> None:
    await _start_and_look(env, "find-greatest")
    assert env.page is not None
    await _click(env, min(env.page.all(".card"), key=lambda card: int(card.text)))
    step = await _click(env, env.page.one("#submit"))
    assert (step.terminated, step.reward, step.info["raw_reward"]) == (True, 0.0, 0.1)


@pytest.mark.parametrize(("scoring", "reward"), [("full", 0.0), ("success", 1.0)])
async def test_box_that_is_left_out_earns_nothing_by_default(scoring: str, reward: float) -> None:
    assert scoring != "full" or signature(MiniwobEnv).parameters["scoring"].default == scoring
    env = MiniwobEnv(task="click-checkboxes", scoring=scoring)
    await _start_and_look(env, "click-checkboxes")
    assert env.page is not None
    wanted = [row for row in env.page.all("label") if row.text.strip() in env.page.goal]
    assert len(wanted) > 1
    for row in wanted[1:]:
        await _click(env, env.page.one("input", row))
    step = await _click(env, env.page.one("#subbtn"))
    assert 0 < step.info["raw_reward"] < 1
    assert (step.terminated, step.reward) == (True, reward)
    await env.aclose()


async def test_terminate_and_the_last_turn_count_as_not_handed_in() -> None:
    env = MiniwobEnv(task="click-test", scoring="raw", max_turns=2)
    await env.areset(seed=1)
    given_up = await env.astep('{"action": "terminate", "status": "success"}')
    assert (given_up.terminated, given_up.reward, given_up.info["raw_reward"]) == (True, -1.0, None)
    await env.areset(seed=1)
    assert (await env.astep("what?")).info["parse_error"]
    late = await env.astep('{"action": "wait", "seconds": 1}')
    assert (late.terminated, late.truncated, late.reward) == (False, True, -1.0)
    await env.aclose()


async def test_actions_after_the_end_are_left_out(env: MiniwobEnv) -> None:
    await _start_and_look(env, "focus-text")
    assert env.page is not None
    x, y = (int(2 * side) for side in env.page.one("input").middle)
    step = await env.astep(f"[{CLICK % (x, y)}, {CLICK % (1, 1)}, {CLICK % (2, 2)}]")
    assert step.terminated
    assert len(env.performed) == 1


async def test_time_passes_with_actions_only(env: MiniwobEnv) -> None:
    options = {"task": {"name": "stock-market", "seed": 2}}
    first, _ = await env.areset(options=options)
    await asyncio.sleep(0.3)
    second, _ = await env.areset(options=options)
    assert first["images"][0] == second["images"][0]
    later = await env.astep('{"action": "wait", "seconds": 1}')
    assert later.observation["images"][0] != first["images"][0]


async def test_killed_browser_is_a_fault_and_the_next_reset_works(env: MiniwobEnv) -> None:
    await _play(env, oracle(), "click-test", 1)
    await env.areset(options={"task": {"name": "click-test", "seed": 1}})
    session: Any = env._session  # pyright: ignore[reportPrivateUsage]  # no other way to its process
    os.killpg(session._page.browser.process.pid, signal.SIGKILL)
    with pytest.raises(EnvFault) as caught:
        await env.astep(CLICK % (1, 1))
    assert caught.value.kind is FaultKind.CRASHED
    assert caught.value.retryable
    assert (await _play(env, oracle(), "click-test", 1))[-1].reward == 1.0


_PIXELS = """
import asyncio, hashlib, json, sys
from envkit.env import PolicyContext
from envkit_browser.miniwob import MiniwobEnv
from envkit_actions.random_clicks import random_clicks

async def main():
    env, found = MiniwobEnv(mix="all", max_turns=9), []
    for name in json.loads(sys.argv[1]):
        observation, _ = await env.areset(options={"task": {"name": name, "seed": 5}})
        found.append(observation["images"][0].png_bytes())
        for turn in range(4):
            context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=5)
            step = await env.astep(random_clicks()(context))
            found.append(step.observation["images"][0].png_bytes())
            if step.terminated:
                break
    await env.aclose()
    print(hashlib.sha256(b"".join(found)).hexdigest())

asyncio.run(main())
"""


@pytest.mark.slow
def test_same_seed_and_actions_give_the_same_png_bytes_in_a_second_process() -> None:
    names = ["click-menu", "click-collapsible", "email-inbox", "use-slider", "click-dialog"]
    one, other = (run_python("-c", _PIXELS, json.dumps(names)) for _ in range(2))
    assert one == other


async def test_cursor_position_is_answered_with_coordinates(env: MiniwobEnv) -> None:
    await env.areset(seed=0, options={"task": {"name": "click-button", "seed": 1}})

    step = await env.astep('[{"action": "move", "x": 12, "y": 34}, {"action": "cursor_position"}]')

    assert step.observation["text"] == "X=12,Y=34"
