"""Draw the images of docs/report.md: the viewer of a run in a real browser.

The oracle or a random policy plays each member, so groups differ in their solve rates.

    python scripts/viewer_pictures.py docs/pictures/report
"""

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

from envkit.trajectory import Trajectory, read_trajectories, save
from envkit.viewer import write_diff, write_report
from envkit_browser.driver import find_browser

GROUPS, MEMBERS = 6, 4
SOLVED = (4, 3, 2, 3, 1, 0)
"""Number of members per group that the oracle plays."""
WIDE, PHONE = (1400, 900), (390, 844)
VIEWS = (
    ("overview", "report", "", WIDE, "light"),
    ("episodes", "report", "/episodes", WIDE, "light"),
    ("episode", "report", "/e/{solved}?t=2", WIDE, "light"),
    ("compare", "report", "/e/{solved}?vs={failed}&t=2", WIDE, "dark"),
    ("phone", "report", "/e/{solved}?t=2", PHONE, "light"),
    ("diff", "diff", None, WIDE, "light"),
)
"""Name, file, place in the run (None is the start), size and scheme of each image."""


def play(policy: str, folder: Path) -> dict[tuple[str | None, int], Trajectory]:
    """Play the tasks with a scripted policy; return its episodes by group and member."""
    command = ["rollout", "computer-use-v0", "--policy", policy, "--seed", "3", "--out", folder]
    counts = ["-n", GROUPS * MEMBERS, "--group", MEMBERS, "--env-kwargs", "level=3"]
    subprocess.run(
        [str(Path(sys.executable).with_name("envkit")), *map(str, [*command, *counts])],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {(one.group_id, one.metadata["member"]): one for one in read_trajectories(folder)}


def draw(page: Any, target: Path) -> None:  # noqa: ANN401  # a playwright page
    """Save what the window shows."""
    page.wait_for_timeout(800)
    with PilImage.open(io.BytesIO(page.screenshot())) as shot:
        shot.convert("RGB").save(target, quality=82, method=6)


def main() -> None:
    """Play, write the files and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the images")
    out: Path = parser.parse_args().out
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        by_oracle, at_random = (play(name, here / name) for name in ("oracle", "random"))
        share = dict(zip(sorted({str(group) for group, _ in by_oracle}), SOLVED, strict=True))
        mixed = [
            (by_oracle if key[1] < share[str(key[0])] else at_random)[key] for key in by_oracle
        ]
        (here / "desktop").mkdir()
        save(mixed, here / "desktop" / "trajectories.jsonl")
        write_report(here / "desktop", here / "report.html")
        write_diff(here / "random", here / "desktop", here / "diff.html")
        group = next(one.group_id for one in mixed if share[str(one.group_id)] == 2)
        lines = [n for n, one in enumerate(mixed, start=1) if one.group_id == group]
        solved = next(n for n in lines if (mixed[n - 1].reward or 0) > 0)
        failed = next(n for n in lines if (mixed[n - 1].reward or 0) <= 0)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            for name, file, place, (width, height), scheme in VIEWS:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                where = "" if place is None else f"#/desktop{place}"
                where = where.format(solved=solved, failed=failed)
                page.goto(f"{(here / file).with_suffix('.html').as_uri()}{where}")
                draw(page, out / f"{name}.webp")
            browser.close()


if __name__ == "__main__":
    main()
