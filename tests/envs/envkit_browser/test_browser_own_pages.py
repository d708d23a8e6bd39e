"""The environment `computer-use-page-v0`: tasks, checkers, episodes, faults."""

import asyncio
import copy
import json
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.browsers import profiles
from fakes.budget import examples
from fakes.needs import BROWSER
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import PolicyContext, Step
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.grading import UngradedError
from envkit_browser.driver import BrowserFault, Trouble
from envkit_browser.pages import PageEnv, PageTasks, read_rows
from envkit_browser.pages.scripts import read_verdict

BUTTON = "<body style='margin:0'><button style='width:200px;height:80px' onclick='%s'>go</button>"
CLICK = '{"action": "click", "x": 20, "y": 20}'
ASIDE = '{"action": "click", "x": 500, "y": 400}'
DONE = '{"action": "terminate", "status": "success"}'


def row(script: str = "", **more: Any) -> dict[str, Any]:
    """A task whose button runs a script."""
    return {"html": BUTTON % script, "goal": "Press the button.", "check": "0", **more}


async def played(env: PageEnv, *replies: str, deadline_s: float | None = None) -> list[Step]:
    """Play the first task and close the environment.

    Args:
        env: The environment.
        replies: All replies of the episode.
        deadline_s: Of the page, once it is loaded, which takes a busy machine long.
    """
    try:
        await env.areset(seed=0)
        if deadline_s is not None:
            assert env.page is not None
            env.page.options = replace(env.page.options, deadline_s=deadline_s)
        return [await env.astep(reply) for reply in replies]
    finally:
        await env.aclose()


def test_page_tasks_are_endless_and_differ_by_seed() -> None:
    source = PageTasks([row(name="a"), row(name="b", seed=7)])
    assert source.size is None
    assert [source.task(index)["name"] for index in range(4)] == ["a", "b", "a", "b"]
    assert source.task(0)["seed"] != source.task(2)["seed"]
    assert source.task(1)["seed"] == source.task(3)["seed"] == 7
    assert source.task(2) == PageTasks([row(name="a"), row(name="b", seed=7)]).task(2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"path": "a.html"}, "either 'html'"),
        ({"html": None}, "'html' of a page task must be a string"),
        ({"check": ""}, "'check'"),
        ({"goal": ""}, "'goal'"),
        ({"seed": -1}, "'seed'"),
        ({"seed": True}, "'seed'"),
        ({"assets": {"a.js": 1}}, "'assets'"),
        ({"assets": ["a.js"]}, "'assets'"),
    ],
)
def test_task_that_lacks_a_part_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        PageEnv(tasks=[{**row(), **change}])


def test_rows_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row(name="one")) + "\n" + json.dumps(row(name="two")))
    assert [found["name"] for found in read_rows(str(file))] == ["one", "two"]


def test_folder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="folder"):
        PageEnv(tasks=[row()], folder="/nowhere/at/all")


@settings(max_examples=examples(60), deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_verdict_is_read_or_none(value: Any) -> None:
    for said in (value, {"done": True, "reward": value}):
        with suppress(UngradedError):
            assert read_verdict(said).reward == float(value)


@BROWSER.mark
async def test_number_above_zero_ends_the_episode() -> None:
    env = PageEnv(tasks=[row("window.pressed = 1", check="window.pressed ?? 0")])
    first, last = await played(env, ASIDE, CLICK)
    assert (first.reward, first.terminated) == (0.0, False)
    assert (last.reward, last.terminated) == (1.0, True)
    assert last.info["reward_terms"] == {"task": 1.0}
    assert last.observation["images"][0].size == (672, 448)


@BROWSER.mark
async def test_checker_may_end_without_a_reward() -> None:
    check = "({done: !!window.pressed, reward: window.pressed ? -0.5 : 0.25})"
    first, last = await played(PageEnv(tasks=[row("pressed = 1", check=check)]), ASIDE, CLICK)
    assert (first.reward, first.terminated, last.reward, last.terminated) == (
        0.25,
        False,
        -0.5,
        True,
    )


@BROWSER.mark
@pytest.mark.slow
async def test_checker_hears_the_answer_and_the_status() -> None:
    check = "({answer, status}) => answer === '42' || status === 'failure' ? 1 : 0"
    for reply, reward in (
        ('{"action": "answer", "text": "42"}', 1.0),
        ('{"action": "answer", "text": "43"}', 0.0),
        ('{"action": "terminate", "status": "failure"}', 1.0),
        (DONE, 0.0),
    ):
        (step,) = await played(PageEnv(tasks=[row(check=check)]), reply)
        assert (step.reward, step.terminated) == (reward, True)


@BROWSER.mark
async def test_actions_after_the_end_are_left_out() -> None:
    env = PageEnv(tasks=[row("pressed = (window.pressed ?? 0) + 1", check="window.pressed ?? 0")])
    (step,) = await played(env, f"[{CLICK}, {CLICK}, {CLICK}]")
    assert (step.reward, step.terminated) == (1.0, True)


@BROWSER.mark
async def test_setup_makes_the_goal_of_the_seed() -> None:
    env = PageEnv(
        tasks=[row(setup="({seed}) => { window.n = seed; return 'Say ' + seed; }", seed=9)]
    )
    try:
        start = await env.areset(seed=0)
        assert start.observation["text"] == "Task: Say 9"
        assert start.info["seed"] == 9
    finally:
        await env.aclose()


@BROWSER.mark
async def test_assets_come_from_the_task_and_the_folder(tmp_path: Path) -> None:
    (tmp_path / "lib.js").write_text("window.a = 1")
    html = "<script src='lib.js'></script><script src='sub/own.js'></script>"
    task = row(html=html, assets={"sub/own.js": "window.b = 2"}, check="a + b === 3 ? 1 : 0")
    (step,) = await played(PageEnv(tasks=[task], folder=str(tmp_path)), ASIDE)
    assert step.reward == 1.0


@BROWSER.mark
async def test_malformed_reply_is_an_observation() -> None:
    (step,) = await played(PageEnv(tasks=[row()]), "no action at all")
    assert step.info["parse_error"]
    assert step.info["parse_error"] in step.observation["text"]
    assert not step.terminated


@BROWSER.mark
async def test_dialog_is_reported_to_the_model() -> None:
    (step,) = await played(PageEnv(tasks=[row("alert(7)")]), CLICK)
    assert step.observation["text"] == 'The page showed this alert: "7". It was answered with OK.'
    assert step.info["events"] == {"dialog": 1}


@BROWSER.mark
@pytest.mark.parametrize(("kind", "left"), [("navigate", "navigated"), ("close_page", "closed")])
@pytest.mark.slow
async def test_page_that_is_left_ends_the_episode(kind: str, left: str) -> None:
    plan = FaultPlan(schedule={("browser", 5, 0, 0): kind})
    task = row(seed=5, check="({done: false, reward: 1})")
    (step,) = await played(PageEnv(tasks=[task], faults=plan), CLICK)
    assert (step.info["left"], step.terminated, step.reward) == (left, True, 0.0)
    assert len(step.observation["images"]) == 1


@BROWSER.mark
async def test_page_cannot_close_itself() -> None:
    steps = await played(PageEnv(tasks=[row("window.close()")]), CLICK, CLICK)
    assert [step.info["left"] for step in steps] == [None, None]


@BROWSER.mark
@pytest.mark.parametrize("check", ["nothing.at.all", "'much'", "({reward: NaN})", "undefined"])
@pytest.mark.slow
async def test_broken_checker_is_a_grader_fault(check: str) -> None:
    with pytest.raises(EnvFault) as caught:
        await played(PageEnv(tasks=[row(check=check)]), CLICK)
    assert caught.value.kind is FaultKind.GRADER


@BROWSER.mark
async def test_checker_that_only_the_policy_breaks_scores_zero() -> None:
    check = "document.querySelector('button').textContent === 'done' ? 1 : 0"
    task = row("document.body.innerHTML = 1", check=check)
    (step,) = await played(PageEnv(tasks=[task]), CLICK)
    assert (step.reward, step.terminated) == (0.0, True)
    assert "check" in step.info["ungraded"]
    (step,) = await played(PageEnv(tasks=[task]), ASIDE)
    assert "ungraded" not in step.info


HANG = "for(;;);"
ANSWER = '{"action": "answer", "text": "x"}'


@BROWSER.mark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "replies", "left"),
    [
        (row(HANG), (ASIDE, CLICK), "hung"),
        (row("setTimeout(() => { for(;;); }, 50)"), (CLICK,), "hung"),
        (row("n = (window.n || 0) + 1; if (n == 2) for(;;);"), (CLICK, CLICK), "hung"),
        (row(check="({answer}) => { while (answer === 'x'); return 0 }"), (ANSWER,), "hung"),
    ],
    ids=["click", "timer", "second click", "checker"],
)
async def test_page_that_the_actions_hang_ends_the_episode(
    task: dict[str, Any], replies: tuple[str, ...], left: str
) -> None:
    *before, last = await played(PageEnv(tasks=[task]), *replies, deadline_s=4)
    assert not any(step.terminated for step in before)
    assert (last.reward, last.terminated, last.info["left"]) == (0.0, True, left)
    assert "break the page" in last.info["ungraded"]
    assert len(last.observation["images"]) == 1


@BROWSER.mark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hang_page", "crash_renderer", "stop_browser"])
async def test_page_that_fails_by_itself_is_a_fault(kind: str) -> None:
    plan = FaultPlan(schedule={("browser", 5, 1, 0): kind})
    env = PageEnv(tasks=[row(seed=5)], faults=plan, deadline_s=2)
    with pytest.raises(BrowserFault) as caught:
        await played(env, CLICK, CLICK)
    assert caught.value.retryable
    env = PageEnv(tasks=[row("1")])
    assert not (await played(env, CLICK))[0].terminated


@BROWSER.mark
@pytest.mark.slow
async def test_page_that_hangs_without_any_action_is_a_fault() -> None:
    check = "({status}) => { while (status === 'failure'); return 0 }"
    env = PageEnv(tasks=[row(check=check)], deadline_s=2)
    with pytest.raises(EnvFault):
        await played(env, '{"action": "terminate", "status": "failure"}')


@BROWSER.mark
async def test_page_that_is_missing_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.html"):
        await played(PageEnv(tasks=[{"path": "nowhere.html", "goal": "x", "check": "0"}]), CLICK)


@BROWSER.mark
async def test_fault_ends_the_episode_and_the_next_reset_works() -> None:
    plan = FaultPlan(schedule={("browser", 5, 1, 0): "kill_browser"})
    env = PageEnv(tasks=[row(seed=5)], faults=plan)
    try:
        await env.areset(seed=0)
        await env.astep(ASIDE)
        pool = env._pool
        assert pool is not None
        with pytest.raises(BrowserFault) as caught:
            await env.astep(ASIDE)
        assert (caught.value.kind, caught.value.retryable) == (FaultKind.CRASHED, True)
        assert pool.troubles == {Trouble.BROWSER_DIED: 1}
        with pytest.raises(BrowserFault, match="reset the environment"):
            await env.astep(ASIDE)
        await env.areset(seed=0)
        assert (await env.astep(ASIDE)).observation["text"] == "Done."
    finally:
        await env.aclose()


@BROWSER.mark
async def test_step_that_is_cancelled_needs_a_reset() -> None:
    env = PageEnv(tasks=[row()])
    try:
        await env.areset(seed=0)
        step = asyncio.ensure_future(env.astep('{"action": "wait", "seconds": 30}'))
        await asyncio.sleep(0.05)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await env.areset(seed=0)
        assert (await env.astep(CLICK)).observation["text"] == "Done."
    finally:
        await env.aclose()


@BROWSER.mark
def test_synchronous_calls_work_and_close_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = envkit.make("computer-use-page-v0", max_turns=2)
    env.reset(seed=1)
    assert profiles()
    assert not env.step(ASIDE).truncated
    assert env.step(ASIDE).truncated
    twin = copy.deepcopy(env)
    env.close()
    assert not profiles()
    twin.close()


async def solve(env: PageEnv, index: int, policy: str = "oracle") -> float:
    """The reward of an episode of a policy."""
    reply, reward = env.policies[policy](), 0.0
    await env.areset(seed=index, options={"task": PageTasks(read_rows(None)).task(index)})
    while env._running:
        context = PolicyContext(env=env, task=env.task, turn=env.turn, messages=[], seed=index)
        reward += (await env.astep(reply(context))).reward
    return reward


@BROWSER.mark
@pytest.mark.slow
@pytest.mark.parametrize("action", ["canonical", "qwen3-vl", "anthropic-20251124", "osworld"])
async def test_oracle_solves_the_demos_in_every_dialect(action: str) -> None:
    envs = [PageEnv(action=action) for _ in range(4)]
    try:
        for start in range(0, 20, 4):
            work = (solve(env, start + number) for number, env in enumerate(envs))
            assert await asyncio.gather(*work) == [1.0] * 4
    finally:
        for env in envs:
            await env.aclose()


@BROWSER.mark
@pytest.mark.slow
async def test_random_policy_hardly_solves_the_demos() -> None:
    envs = [PageEnv() for _ in range(4)]
    try:
        solved = 0.0
        for start in range(0, 40, 4):
            work = (solve(env, start + n, "random") for n, env in enumerate(envs))
            solved += sum(await asyncio.gather(*work))
        assert solved <= 2
    finally:
        for env in envs:
            await env.aclose()


@BROWSER.mark
@pytest.mark.slow
def test_page_environment_passes_the_check() -> None:
    env = envkit.make("computer-use-page-v0")
    try:
        report = envkit.check_env(env, max_observation_pixels=672 * 448)
    finally:
        env.close()
    assert {"determinism", "replay", "independence", "oracle"} <= set(report.passed)


@BROWSER.mark
async def test_cursor_position_is_answered_in_coordinates_of_the_screenshot() -> None:
    env = PageEnv(tasks=[row()], action="anthropic-20251124")
    asked = '{"action": "cursor_position"}'

    moved, told = await played(env, '{"action": "mouse_move", "coordinate": [12, 34]}', asked)

    assert moved.observation["text"] == "Done."
    assert told.observation["text"] == "X=12,Y=34"
