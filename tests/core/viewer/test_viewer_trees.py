"""Rewritten histories, forks and branches in a real browser: drawn, walked by keys, harmless."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.branching import IMAGES, SUMMARY
from fakes.branching import rewritten as rewritten_by
from fakes.marked_runs import forked_run, rewritten
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.ui_pages import Open, eventually, go, in_address, overflow, settled, until

from envkit.trajectory import REWARD_THRESHOLD, Branch, Trajectory, save
from envkit.trajectory.storage import FILE_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

HALF = {REWARD_THRESHOLD: 0.5}
LANES = "document.querySelectorAll('.lane').length"
HOSTILE = '"><img src=x onerror="window.hit=1">\u202e' + "W" * 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of three leaves, and episodes whose histories were rewritten."""
    root = tmp_path_factory.mktemp("runs")
    leaves = [replace(leaf, metadata={**leaf.metadata, **HALF}) for leaf in forked_run()]
    save(leaves, root / "tree" / FILE_NAME)
    with ThreadPoolExecutor(1) as pool:  # playwright runs an event loop on this thread
        histories = pool.submit(asyncio.run, _histories()).result()
    save(histories, root / "history" / FILE_NAME)
    return root


async def _histories() -> list[Trajectory]:
    return [await rewritten_by(IMAGES, images=True), await rewritten_by(SUMMARY)]


def test_tree_is_drawn_as_lanes_that_open_their_leaves(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/tree")
        lanes = page.locator(".lanes a")
        assert [lane.get_attribute("aria-label") for lane in lanes.all()] == [
            "leaf 1, reward 0, ended by the environment",
            "leaf 2, leaves leaf 1 before turn 2, reward 1, ended by the environment",
            "leaf 3, leaves leaf 2 before turn 4, reward 0.50, ended by the environment",
        ]
        assert page.locator(".lanes .graph i").count() == 3 + 3 + 1  # a shared turn is drawn once
        values = page.locator(".lanes title").all_text_contents()
        assert values[0] == "turns 1 to 1: mean reward 0.50 of 3 branches"
        assert "turns 2 to 3: mean reward 0.75 of 2 branches" in values
        lanes.nth(2).focus()
        page.keyboard.press("Enter")
        page.locator("main.ep").wait_for()
        in_address(page, "#/tree/e/3?t=4")
        assert page.locator(".lanes [aria-current=page]").inner_text().startswith("leaf 3")


def test_group_of_a_tree_keeps_its_lanes_when_it_is_filtered(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/tree/episodes?show=solved")
        assert page.locator(".lanes li").count() == 3
        assert page.locator(".lanes .dim").count() == 1
        page.get_by_role("button", name="List").click()
        about = page.locator("tbody .taskcell .muted")
        eventually(lambda: [one.replace("\xa0", " ") for one in about.all_inner_texts()], [
            "episode 2 · seed 4 · leaf 2 · from turn 2 of leaf 1",
            "episode 3 · seed 4 · leaf 3 · from turn 4 of leaf 2",
        ])  # fmt: skip


def test_fork_is_shown_where_it_left_and_compared_from_there(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/tree/e/2")
        assert page.locator(".turns .inherited").count() == 1
        assert page.locator(".turns .forkpoint .n").all_inner_texts() == ["2", "4"]
        parting = page.locator(".turn").nth(1).locator(".parting")
        assert parting.inner_text().startswith("Forked from leaf 1.")
        later = page.locator(".turn").nth(3).locator(".parting")
        assert later.inner_text().startswith("1 other branch leaves before this turn.")
        parting.get_by_role("link", name="leaf 1").focus()
        page.keyboard.press("Enter")
        until(page, f"{LANES} === 2")
        heads = page.locator(".lanehead").all_inner_texts()
        assert [head.split()[:3] for head in heads] == [["leaf", "2", "1"], ["leaf", "1", "0"]]
        assert page.locator(".turns .forkpoint .n").all_inner_texts() == ["2"]
        page.keyboard.press("k")
        until(page, f"{LANES} === 1")
        assert "Turn 1 belongs to both" in page.locator(".conv").inner_text()
        page.keyboard.press("j")
        until(page, f"{LANES} === 2")
        page.keyboard.press("c")
        until(page, f"{LANES} === 0")
        page.get_by_label("Compare with another episode").select_option("3")
        until(page, f"{LANES} === 2")
        in_address(page, "t=4")


def test_rewrite_shows_dropped_images_and_what_the_model_saw(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/history/e/1?t=3")
        assert page.locator(".turns .rewrote").count() == 2
        rewrite = page.locator(".turn").nth(2).locator(".rewrite")
        said = rewrite.locator("p").first.inner_text()
        assert said == (
            "History rewritten · keep last images · 69 → 94 tokens · 2 of 3 images dropped"
        )
        labels = [
            one.get_attribute("aria-label") or "" for one in rewrite.get_by_role("button").all()
        ]
        assert [label.split(", ")[1].split(".")[0] for label in labels] == [
            "dropped", "dropped", "kept"]  # fmt: skip
        rewrite.get_by_text("What the model saw from then on").focus()
        page.keyboard.press("Enter")
        rewrite.locator(".history").get_by_text("[image omitted]").first.wait_for()
        rewrite.get_by_text("The same as token ids").click()
        rewrite.locator("pre").wait_for()


def test_question_is_shown_as_one(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/history/e/2?t=3")
        card = page.locator(".turn.on")
        assert "question to the model · summarise" in card.inner_text()
        assert "environment, then the question" in card.inner_text()
        assert page.locator(".turn.question").count() == 4
        page.locator(".turn").nth(3).get_by_text("What the model saw from then on").click()
        history = page.locator(".turn").nth(3).locator(".history")
        assert history.locator(".gone").inner_text() == "5 messages left out (turns 1 to 3)"
        assert "I saw screens." in history.inner_text()
        assert page.locator(".ephead").inner_text().count("6 turns and 4 questions") == 1


def test_branches_within_a_record_are_listed_and_compared(tmp_path: Path, open_ui: Open) -> None:
    save(rewritten(), tmp_path / "run" / FILE_NAME)

    def forked(route: "Route") -> None:
        data = route.fetch().json()
        trunk, branch = data["sequences"]
        branch["reward"] = 0.25
        other = {**branch, "reward": 0.75, "prompt": None, "reason": HOSTILE}
        other["turns"] = [{**turn, "words": ["wait"]} for turn in branch["turns"][:1]]
        route.fulfill(json={**data, "sequences": [trunk, branch, other]})

    with served(tmp_path) as address:
        page = open_ui(address)
        page.route("**/api/episode?*", forked)
        go(page, "#/run/e/1")
        assert page.get_by_role("list", name="Branches").count() == 1
        assert page.locator(".turns button").count() == 4  # three turns and the end
        page.get_by_role("link", name="branch 1, reward").click()
        until(page, "document.querySelectorAll('.turns button').length === 5")
        page.keyboard.press("c")
        until(page, f"{LANES} === 2")
        heads = page.locator(".lanehead").all_inner_texts()
        assert [head.split()[:3] for head in heads] == [
            ["Branch", "1", "0.25"],
            ["Branch", "2", "0.75"],
        ]
        in_address(page, "t=3")
        page.reload()
        settled(page)
        until(page, f"{LANES} === 2")
        assert page.locator(".turns .fork").count() >= 1
        assert overflow(page) == 0


@pytest.mark.parametrize("width", [1400, 390])
def test_hostile_trees_are_text(width: int, tmp_path: Path, open_ui: Open) -> None:
    """Forks of themselves, of each other and of nothing, with text that attacks."""
    leaves = forked_run(task=HOSTILE, group_id=HOSTILE, env_id=HOSTILE)
    origin = leaves[1].origin
    assert origin is not None
    circle = [
        replace(leaves[1], episode_id=name, origin=replace(origin, episode_id=other))
        for name, other in ((HOSTILE, "b"), ("b", HOSTILE), ("self", "self"), ("lost", HOSTILE * 2))
    ]
    huge = replace(origin, turns=10**9, segments=1)
    odd = replace(leaves[2], episode_id="odd", origin=huge)
    plain = rewritten()
    start = next(n for n, one in enumerate(plain.segments) if one.turn == 2)
    said: Any = {"role": "user", "content": HOSTILE}
    branch = Branch(segment=start, parent=0, reason=HOSTILE, message_count=5, history=(0, said))
    policy = replace(plain, branches=(branch,), group_id=HOSTILE)
    save([*leaves, *circle, odd, policy], tmp_path / "run" / FILE_NAME)
    with served(tmp_path) as address:
        page = open_ui(address, width=width)
        turns = [f"#/run/e/{n}?t=3" for n in range(1, 10)]
        for place in ("#/run", "#/run/episodes", "#/run/episodes?view=list",
                      "#/run/e/4?vs=5&t=2", *turns):  # fmt: skip
            go(page, place)
            page.evaluate("document.querySelectorAll('main details').forEach(x => x.open = true)")
            assert page.locator("main.lost").all_inner_texts() == [], place
            assert overflow(page) == 0, place
        assert page.evaluate("window.hit") is None
        assert page.locator("main style, main script, main iframe").count() == 0


def test_columns_of_episodes_are_chosen_and_the_address_keeps_them(
    folder: Path, open_ui: Open
) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/history/episodes?view=list")
        page.locator(".chooser summary").click()
        page.get_by_role("checkbox", name="Rewrites").check()
        page.get_by_role("checkbox", name="Tokens").uncheck()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Rewrites").click()
        in_address(page, "sort=rewrites")
        page.reload()
        settled(page)
        assert page.locator("td[data-l=rewrites]").all_inner_texts() == ["2", "4"]
        assert page.locator("td[data-l=tokens]").count() == 0
        assert page.locator("th[aria-sort] button").inner_text().startswith("Rewrites")
