"""Draw the images of docs/ui.md: the table of runs and a comparison, in a real browser.

python scripts/ui_images.py docs/images/ui
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from viewer_images import PHONE, WIDE, draw

from envkit_browser.driver import find_browser

ENVKIT: Final = (sys.executable, "-c", "from envkit.cli import main; main()")
SEEDS: Final = 3
POLICIES: Final = ("noisy-oracle", "oracle")
_COMPARED: Final = ",".join(f"noisy-oracle%252Fseed-{seed}" for seed in range(SEEDS))
VIEWS: Final = (
    ("runs", "#/?by=prefix", WIDE),
    ("compare", f"#/?compare={_COMPARED}", WIDE),
    ("phone", "#/", PHONE),
)
"""Name, place and size of each image."""


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


def run(*arguments: object) -> None:
    """Run a command without its output."""
    subprocess.run([*ENVKIT, *map(str, arguments)], check=True, capture_output=True)


def main() -> None:
    """Play, serve the folder and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the images")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        play(root)
        command = [*ENVKIT, "ui", str(root), "--port", "0", "--no-open"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            with sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path=find_browser(), args=["--no-sandbox"]
                )
                for name, place, (width, height) in VIEWS:
                    page = browser.new_page(viewport={"width": width, "height": height})
                    page.goto(address + place)
                    page.wait_for_selector(".runs-table, .point")
                    while page.locator(".reading").count():
                        page.wait_for_timeout(200)
                    draw(page, out / f"{name}.webp")
                browser.close()
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    main()
