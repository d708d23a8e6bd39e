"""Draw the images of docs/notebooks.md: the widgets in a real browser, without a notebook.

The page holds the front end of the widgets and answers it with what a kernel would send. Needs
Chromium and the extra `notebook`.

    python scripts/notebook_images.py docs/images/notebook
"""

import argparse
import asyncio
import base64
import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage

import envkit
import envkit_notebook as notebook
from envkit.rollout import AtTurns, EpisodeSpec, Player, RolloutConfig, ScriptedEngine, play_tree
from envkit.tokens import load_codec
from envkit_browser.driver import find_browser
from envkit_notebook.widget import EpisodeWidget
from envkit_transformers import builtin_model_dir

SIZES: Final = {"": 1000, "-narrow": 420}
SCHEMES: Final = {"": ("light", "#fff", "#222"), "-dark": ("dark", "#111", "#ddd")}
PAGE: Final = """<!doctype html><meta charset="utf-8"><style>{css}
body {{ margin: 12px; background: {paper}; color: {ink}; color-scheme: {scheme}; }}</style>
<div id="host"></div><script type="module">{script}
const images = {images}, values = {values}, heard = {{}};
const bytes = (name) => Uint8Array.from(atob(images[name]), (c) => c.charCodeAt(0));
const tell = (name) => (act) => act({{ picture: name }}, [bytes(name)]);
const answer = (name) => heard["msg:custom"].forEach(tell(name));
const model = {{
  get: (key) => values[key], off() {{}},
  on: (event, act) => (heard[event] = heard[event] || []).push(act),
  send: (wish) => wish.do === "pictures" && setTimeout(() => wish.names.forEach(answer)),
}};
render({{ model, el: document.getElementById("host") }});
</script>"""


def player(policy: Callable[[Any], str]) -> Player:
    """Return a player of a scripted policy."""
    codec = load_codec(builtin_model_dir())
    return Player(ScriptedEngine(codec, policy), codec, RolloutConfig())


def guess(context: Any) -> str:  # noqa: ANN401  # a PolicyContext
    """Read the code in some branches of a tree, and not in others."""
    return context.env.unwrapped.oracle()(context) if context.seed % 2 else "0000"


async def ready(widget: Any) -> Any:  # noqa: ANN401  # a widget that plays
    """Return a widget once its episode has started."""
    while widget.view.get("is_busy") is not False:
        await asyncio.sleep(0.01)
    return widget


async def widgets() -> dict[str, EpisodeWidget]:
    """Return what the images show, by name."""
    codec = load_codec(builtin_model_dir())
    played = await ready(notebook.play("geo3k-v0", seed=4, level=2))
    await played.act({"do": "reply", "text": "I am not sure."})
    clicked = await ready(notebook.play("computer-use-v0", seed=3, level=1))
    canary = envkit.make("canary-v0")
    roller = player(canary.oracle())
    (recorded,) = await roller.play(canary, EpisodeSpec(seed=7))
    engine = ScriptedEngine(codec, envkit.make("canary-v0").oracle())
    branch = notebook.branch(recorded, 1, "QQQQ", engine=engine, codec=codec)
    leaves = await play_tree(
        partial(envkit.make, "canary-v0"),
        player(guess),
        branching=AtTurns(turns=(1, 2)),
        spec=EpisodeSpec(seed=7),
    )
    return {
        "play": played,
        "click": clicked,
        "show": notebook.show(recorded, codec=codec),
        "tree": notebook.show(leaves, 3, codec=codec),
        "branch": await branch.settled(),
    }


def page_of(widget: EpisodeWidget, scheme: str, paper: str, ink: str) -> str:
    """Return the page of a widget."""
    folder = Path(notebook.__file__).parent
    names = set(re.findall(r'\["([0-9a-f]{64})", ', json.dumps(widget.view)))
    images = {name: base64.b64encode(widget.store.png(name) or b"").decode() for name in names}
    return PAGE.format(
        css=(folder / "widget.css").read_text(encoding="utf-8"),
        script=(folder / "widget.js").read_text("utf-8").replace("export default { render };", ""),
        images=json.dumps(images),
        values=json.dumps({"mode": widget.mode, "view": widget.view}).replace("<", "\\u003c"),
        scheme=scheme,
        paper=paper,
        ink=ink,
    )


def main() -> None:
    """Draw every widget at two sizes in two schemes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="folder for the images")
    out: Path = parser.parse_args().out
    from playwright.sync_api import sync_playwright

    shown = asyncio.run(widgets())
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for name, widget in shown.items():
            for size, width in SIZES.items():
                for suffix, colours in SCHEMES.items():
                    page = browser.new_page(viewport={"width": width, "height": 400})
                    page.set_content(page_of(widget, *colours))
                    page.wait_for_selector(".ek-root")
                    page.wait_for_timeout(500)
                    if name == "click":
                        page.fill(".ek-box", widget.game.click(336, 224))  # type: ignore[attr-defined]
                    with PilImage.open(io.BytesIO(page.screenshot(full_page=True))) as shot:
                        file = out / f"{name}{size}{suffix}.webp"
                        shot.convert("RGB").save(file, quality=82, method=6)
                    page.close()
        browser.close()


if __name__ == "__main__":
    main()
