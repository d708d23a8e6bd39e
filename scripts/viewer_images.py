"""Draw the images of docs/report.md: the viewer of a run in a real browser.

The oracle or a random policy plays each member, so groups differ in their solve rates.

    python scripts/viewer_images.py docs/images/report
"""

import argparse
import asyncio
import io
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

import envkit
from envkit.env import PolicyContext
from envkit.rollout import AtTurns, EpisodeSpec, Player, RolloutConfig, ScriptedEngine, play_tree
from envkit.rollout.host import AnyEnv
from envkit.tokens import load_codec
from envkit.trajectory import Trajectory, read_trajectories, save, success_of
from envkit.viewer import write_diff, write_report
from envkit_actions.action import Action, ActionKind, Status
from envkit_browser.driver import find_browser
from envkit_transformers import builtin_model_dir

GROUPS, MEMBERS = 6, 4
SOLVED = (4, 3, 2, 3, 1, 0)
"""Number of members per group that the oracle plays."""
WIDE, PHONE = (1400, 900), (390, 844)
VIEWS = (
    ("overview", "desktop", "#/desktop", WIDE, "light"),
    ("episodes", "desktop", "#/desktop/episodes", WIDE, "light"),
    ("episode", "desktop", "#/desktop/e/{solved}?t=2", WIDE, "light"),
    ("compare", "desktop", "#/desktop/e/{solved}?vs={failed}&t=2", WIDE, "dark"),
    ("tree", "tree", "#/tree/e/2", WIDE, "light"),
    ("rewrite", "history", "#/history/e/{long}?t=4", WIDE, "light"),
    ("phone", "desktop", "#/desktop/e/{solved}?t=2", PHONE, "light"),
    ("diff", "diff", "", WIDE, "light"),
)
"""Name, file, address, size and scheme of each image."""
HISTORY = '{"keep_last_images": {"keep": 1, "drop_at": 3}}'


def play(policy: str, folder: Path, *options: str) -> dict[tuple[str | None, int], Trajectory]:
    """Play the tasks with a scripted policy; return its episodes by group and member."""
    command = ["rollout", "computer-use-v0", "--policy", policy, "--seed", "3", "--out", folder]
    counts = ["-n", GROUPS * MEMBERS, "--group", MEMBERS, "--env-kwargs", "level=3"]
    subprocess.run(
        [str(Path(sys.executable).with_name("envkit")), *map(str, [*command, *counts, *options])],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {(one.group_id, one.metadata["member"]): one for one in read_trajectories(folder)}


def hasty(context: PolicyContext) -> str:
    """Play as the oracle, but sometimes end too early."""
    env: Any = context.env.unwrapped
    if context.turn and random.Random(context.seed).random() < 0.35:
        return env.dialect.write([Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)])
    return env.oracle()(context)


async def grow() -> list[Trajectory]:
    """Play trees of a task that takes several turns."""
    codec = load_codec(builtin_model_dir())
    player = Player(ScriptedEngine(codec, hasty), codec, RolloutConfig())
    spec, branching = EpisodeSpec(seed=3), AtTurns(turns=(1, 3))
    leaves = await play_tree(desktop, player, branching=branching, spec=spec)
    await player.aclose()
    return list(leaves)


def desktop() -> AnyEnv:
    """Return the environment of a tree."""
    return envkit.make("computer-use-v0", level=3)


def play_mixed(here: Path) -> list[Trajectory]:
    """Play groups in which the oracle plays some members and a random policy the others."""
    by_oracle, at_random = (play(name, here / name) for name in ("oracle", "random"))
    share = dict(zip(sorted({str(group) for group, _ in by_oracle}), SOLVED, strict=True))
    return [(by_oracle if key[1] < share[str(key[0])] else at_random)[key] for key in by_oracle]


def draw(page: Any, target: Path, *, quality: int = 82) -> None:  # noqa: ANN401  # a playwright page
    """Save what the window shows."""
    page.wait_for_timeout(800)
    with PilImage.open(io.BytesIO(page.screenshot())) as shot:
        shot.convert("RGB").save(target, quality=quality, method=6)


def main() -> None:
    """Play, write the files and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the images")
    out: Path = parser.parse_args().out
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        mixed = play_mixed(here)
        history = list(play("oracle", here / "history", "--set", f"history={HISTORY}").values())
        longest = max(range(len(history)), key=lambda n: len(history[n].turns))
        save(mixed, here / "desktop" / "trajectories.jsonl")
        save(asyncio.run(grow()), here / "tree" / "trajectories.jsonl")
        token_text = load_codec(builtin_model_dir()).token_text
        for name in ("desktop", "tree", "history"):
            write_report(here / name, here / f"{name}.html", token_text=token_text)
        write_diff(here / "random", here / "desktop", here / "diff.html", token_text=token_text)
        group = sorted({str(one.group_id) for one in mixed})[SOLVED.index(2)]
        lines = [n for n, one in enumerate(mixed, start=1) if one.group_id == group]
        solved = next(n for n in lines if success_of(mixed[n - 1]))
        failed = next(n for n in lines if not success_of(mixed[n - 1]))
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            for name, file, place, (width, height), scheme in VIEWS:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                where = place.format(solved=solved, failed=failed, long=longest + 1)
                page.goto(f"{(here / file).with_suffix('.html').as_uri()}{where}")
                draw(page, out / f"{name}.webp")
            browser.close()


if __name__ == "__main__":
    main()
