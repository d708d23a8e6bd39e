"""Draw the images of docs/ui.md: pages of `envkit ui` in a real browser.

    python scripts/ui_images.py docs/images/ui
    python scripts/ui_images.py docs/images/after --tour

`--tour` draws the ten views of docs/viewer-before-after.md, each at two widths.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from viewer_images import PHONE, WIDE, draw, play_mixed

import envkit
from envkit.errors import EnvFault, FaultKind
from envkit.rollout import EpisodeSpec, Player, RetryBudget, RolloutConfig, ScriptedEngine
from envkit.tokens import load_codec
from envkit.trajectory import Trajectory, read_trajectories, save
from envkit_browser.driver import find_browser
from envkit_transformers import builtin_model_dir

ENVKIT: Final = (sys.executable, "-c", "from envkit.cli import main; main()")
SEEDS: Final = 3
POLICIES: Final = ("noisy-oracle", "oracle")
_NOISY: Final = [f"noisy-oracle%252Fseed-{seed}" for seed in range(SEEDS)]
_COMPARED: Final = ",".join(_NOISY)
_ALL: Final = ",".join([*_NOISY, *(f"oracle%252Fseed-{seed}" for seed in range(SEEDS))])
_PAIRED: Final = "first=noisy-oracle%2Fseed-0&second=oracle%2Fseed-0"
_OPEN: Final = """
    document.querySelectorAll("aside details, .inspect details").forEach(one => one.open = true);
    document.querySelector(".tokens")?.closest("section").scrollIntoView();
"""
"""Open what the facts of a turn fold away, and go to the tokens."""
QUALITY: Final = 70


class View(NamedTuple):
    """A page to draw, the size of each file, and what to do first."""

    place: str
    files: Mapping[str, tuple[int, int]]
    script: str = ""


def both(name: str, place: str, script: str = "") -> View:
    """Return a view of the tour."""
    return View(place, {f"{name}-1400": WIDE, f"{name}-390": PHONE}, script)


VIEWS: Final = (
    View("#/?by=prefix", {"runs": WIDE}),
    View(f"#/?compare={_COMPARED}", {"compare": WIDE}),
    View("#/", {"phone": PHONE}),
)
TOUR: Final = (
    both("runs", "#/"),
    both("compare", f"#/?compare={_ALL}"),
    both("overview", "#/desktop"),
    both("faults", "#/faulted"),
    both("episodes", "#/desktop/episodes"),
    both("canary", "#/canary/e/1?t=2"),
    both("geo3k", "#/noisy-oracle%2Fseed-0/e/{geo3k}"),
    both("desktop", "#/desktop/e/{desktop}?t={drag}"),
    both("tokens", "#/canary/e/1", _OPEN),
    both("diff", f"#/?{_PAIRED}"),
)


class BrokenEnv(envkit.Env):
    """Fails in three ways, by the task's number."""

    def on_reset(self, task: dict[str, Any]) -> envkit.Turn:
        """Start, unless the machine of the task does not."""
        if task["number"] % 4 == 0:
            raise EnvFault(f"machine {task['number']}: no display", kind=FaultKind.CRASHED)
        return envkit.Turn(f"Report the state of machine {task['number']}.")

    def on_turn(self, response_text: str) -> envkit.Turn:
        """Fail to run the command."""
        if self.task["number"] % 4 == 1:
            raise EnvFault("the grader returned no score", kind=FaultKind.GRADER)
        raise EnvFault("no answer from the machine within 30 s", kind=FaultKind.TIMEOUT)


def play(folder: Path) -> None:
    """Play geometry with two policies and several seeds, and certify a contract."""
    for policy in POLICIES:
        for seed in range(SEEDS):
            command = ["rollout", "geo3k-v0", "--policy", policy, "--seed", seed, "--quiet"]
            counts = ["-n", 48, "--group", 4, "--out", folder / policy / f"seed-{seed}"]
            run(*command, *counts)
    certificate = folder / "certificates" / "canary-v0.json"
    certificate.parent.mkdir()
    run("certify", "canary-v0", "-n", 4, "--only", "contract", "--out", certificate)
    run("eval", "canary-v0", "--policy", "oracle", "-n", 16, "--out", folder / "eval", "--quiet")


async def fail() -> list[Trajectory]:
    """Play episodes that all end in a fault."""
    codec = load_codec(builtin_model_dir())
    none = RetryBudget(max_env_retries_per_turn=0, max_episode_restarts=0)
    config = RolloutConfig(retries=none)
    player = Player(ScriptedEngine(codec, lambda _: "uptime"), codec, config)
    specs = [EpisodeSpec(task={"number": number}) for number in range(12)]
    played = [one for spec in specs for one in await player.play(BrokenEnv, spec)]
    await player.aclose()
    return played


def play_tour(folder: Path) -> dict[str, int]:
    """Play the other runs of the tour; return the numbers of episodes and turns to open."""
    size = ["-n", 8, "--group", 4]
    run("rollout", "canary-v0", "--engine", "transformers", *size, "--out", folder / "canary")
    with tempfile.TemporaryDirectory() as place:
        desktop = play_mixed(Path(place))
        save(desktop, folder / "desktop" / "trajectories.jsonl")
    save(asyncio.run(fail()), folder / "faulted" / "trajectories.jsonl")
    number, turn = next(
        (number, turn)
        for number, one in enumerate(desktop, start=1)
        for turn, step in enumerate(one.turns, start=1)
        if one.reward and any(mark["kind"] == "drag" for mark in step.info.get("marks", ()))
    )
    noisy = list(read_trajectories(folder / POLICIES[0] / "seed-0"))
    longest = max(noisy, key=lambda one: len(one.turns))
    return {"desktop": number, "drag": turn, "geo3k": noisy.index(longest) + 1}


def run(*arguments: object) -> None:
    """Run a command without its output."""
    subprocess.run([*ENVKIT, *map(str, arguments)], check=True, capture_output=True)


@contextmanager
def served(root: Path) -> Generator[str]:
    """Serve a folder; its address."""
    command = [*ENVKIT, "ui", str(root), "--port", "0", "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


def settle(page: Any) -> None:  # noqa: ANN401  # a playwright page
    """Wait until a table of runs stays as it is: the server reads runs while it shows them."""
    table, before = page.locator(".runs-table"), None
    while table.count() and (page.locator(".reading").count() or table.inner_text() != before):
        before = table.inner_text()
        page.wait_for_timeout(2000)


def draw_all(root: Path, views: Iterable[View], out: Path, numbers: Mapping[str, int]) -> None:
    """Draw views of a served folder; `numbers` fills their places."""
    from playwright.sync_api import sync_playwright

    with served(root) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for view in views:
            for name, (width, height) in view.files.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(address + view.place.format(**numbers))
                page.wait_for_selector("main:not(.lost) :is(h1, .point)")
                settle(page)
                if view.script:
                    page.wait_for_timeout(500)
                    page.evaluate(view.script)
                draw(page, out / f"{name}.webp", quality=QUALITY)
                page.close()
        browser.close()


def main() -> None:
    """Play, serve the folder and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the images")
    parser.add_argument("--tour", action="store_true", help="draw ten views at two widths")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        play(root)
        numbers = play_tour(root) if options.tour else {}
        draw_all(root, TOUR if options.tour else VIEWS, options.out, numbers)


if __name__ == "__main__":
    main()
