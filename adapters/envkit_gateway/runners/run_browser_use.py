"""Run browser-use with Chromium on the task of this folder.

Usage: `run_browser_use.py [--max-steps N]`. It imports nothing from envkit.
"""

import argparse
import asyncio
import os
import shutil
from pathlib import Path

from browser_use import Agent, BrowserProfile, ChatOpenAI


async def main(max_steps: int) -> None:
    """Leave the agent's answer in a file, because the agent prints its steps."""
    profile = BrowserProfile(
        executable_path=shutil.which("chromium"),
        headless=True,
        chromium_sandbox=os.geteuid() != 0,  # Chromium has none for root
        user_data_dir=Path.home() / "profile",
        enable_default_extensions=False,  # they would be downloaded
    )
    agent = Agent(
        task=Path("instructions.txt").read_text("utf-8"),
        llm=ChatOpenAI(
            model=os.environ["ENVKIT_MODEL"],
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
        ),
        browser_profile=profile,
        use_judge=False,
        file_system_path=str(Path.cwd()),
    )
    history = await agent.run(max_steps=max_steps)
    Path("answer.txt").write_text(history.final_result() or "", encoding="utf-8")


parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=100)
asyncio.run(main(parser.parse_args().max_steps))
