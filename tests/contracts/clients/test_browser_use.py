"""browser-use with a real Chromium: one sequence per step, and every screenshot in the record."""

import base64
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from fakes.client_notes import Note
from fakes.client_scripts import gateway
from fakes.needs import DEBIAN_CHROMIUM

from envkit.images import Image

os.environ["ANONYMIZED_TELEMETRY"] = "false"  # read on import
os.environ["BROWSER_USE_LOGGING_LEVEL"] = "critical"

CHROMIUM = shutil.which("chromium")
pytestmark = DEBIAN_CHROMIUM.mark
STEPS = ({"navigate": {"url": "PAGE", "new_tab": False}}, {"wait": {"seconds": 1}},
         {"done": {"text": "Read it.", "success": True}})  # fmt: skip


def acting(page: str) -> Callable[[str], str]:
    """Return a script that takes the steps in turn, each as the JSON that browser-use asks for."""
    left = list(STEPS)

    def write(context: str) -> str:
        action = json.loads(json.dumps(left.pop(0)).replace("PAGE", page))
        said = {"evaluation_previous_goal": "ok", "memory": "m", "next_goal": "g"}
        return "  " + json.dumps({**said, "action": [action]}, indent=1)

    return write


@contextmanager
def served(text: str) -> Generator[str]:
    """Serve a page on this machine and return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def shown(body: bytes) -> list[str]:
    """Return the hashes of a request's images."""
    uris = re.findall(r"data:image/\w+;base64,([\w+/=]+)", body.decode())
    return [Image.from_bytes(base64.b64decode(data)).sha256 for data in uris]


async def test_browser_use_is_exact_in_a_sequence_per_step(note: Note, tmp_path: Path) -> None:
    from browser_use import Agent, BrowserProfile, ChatOpenAI

    sent: list[list[str]] = []

    async def keep(request: httpx.Request) -> None:
        sent.append(shown(request.content))

    with served("<h1>Canary</h1><button>Press</button>") as page:
        async with (
            gateway(acting(page)) as run,
            httpx.AsyncClient(event_hooks={"request": [keep]}) as http,
        ):
            model = ChatOpenAI(
                model="m", base_url=f"{run.gateway.url}/v1", api_key=run.session.key,
                http_client=http,
            )  # fmt: skip
            profile = BrowserProfile(
                executable_path=CHROMIUM, headless=True, chromium_sandbox=False,
                user_data_dir=tmp_path / "profile", enable_default_extensions=False,
            )  # fmt: skip
            agent: Any = Agent(
                task="Open the page.", llm=model, browser_profile=profile, use_judge=False,
                directly_open_url=False, file_system_path=str(tmp_path),
            )  # fmt: skip
            history = await agent.run(max_steps=4)
    trajectory = run.trajectory()

    assert history.is_successful()
    assert page in history.urls()
    assert len(trajectory.turns) == len(trajectory.sequences()) == len(STEPS)
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    recorded = [
        [image.sha256 for segment in sequence.segments for image in segment.images]
        for sequence in trajectory.sequences()
    ]
    assert recorded == sent
    assert len([images for images in sent if images]) >= 2
    note(trajectory, dialect="chat completions", does="`Agent`")
