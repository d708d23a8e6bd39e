"""A browser-use agent: read the number on a page. It knows nothing about envkit or training.

It takes the model's address and key from OPENAI_BASE_URL and OPENAI_API_KEY, and shows the file
`image-1.png` of its folder on its own page.
"""

import asyncio
import os
import shutil
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ["ANONYMIZED_TELEMETRY"] = "false"  # read on import

from browser_use import Agent, BrowserProfile, ChatOpenAI

SIZE = {"width": 400, "height": 300}


async def main() -> None:
    """Run the agent for one step."""
    Path("index.html").write_text("<h1>Which number is it?</h1><img src=image-1.png height=120>")
    handler = partial(SimpleHTTPRequestHandler, directory=".")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = Agent(
        task="Read the number on the page.",
        llm=ChatOpenAI(model="envkit"),
        browser_profile=BrowserProfile(
            executable_path=shutil.which("chromium"),
            headless=True,
            chromium_sandbox=False,
            user_data_dir=tempfile.mkdtemp(),
            enable_default_extensions=False,
            viewport=SIZE,
            window_size=SIZE,
        ),
        initial_actions=[
            {"navigate": {"url": f"http://127.0.0.1:{server.server_port}", "new_tab": False}}
        ],
        directly_open_url=False,
        override_system_message="Answer in JSON.",  # browser-use's own takes 19,000 bytes
        use_judge=False,
        max_failures=1,
        file_system_path=tempfile.mkdtemp(),
    )
    history = await agent.run(max_steps=1)
    print(history.final_result() or "")


asyncio.run(main())
