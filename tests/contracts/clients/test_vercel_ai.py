"""Vercel's ai, from npm: its loop with tools, by its providers for each dialect."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from fakes.client_notes import Note
from fakes.client_scripts import ANSWER, call_of, gateway, openai_api, saying
from fakes.needs import VERCEL_AI

pytestmark = VERCEL_AI.mark
SCRIPT = Path(__file__).with_name("vercel_ai.mjs")


@pytest.mark.parametrize("mode", ["generate", "stream"])
@pytest.mark.parametrize("kind", ["chat completions", "compatible", "Responses", "messages"])
async def test_vercel_ai_keeps_one_sequence(
    kind: str, mode: str, note: Note, tmp_path: Path
) -> None:
    modules = Path(os.environ["ENVKIT_AGENT_PROGRAMS"]).parent
    (tmp_path / "node_modules").symlink_to(modules)  # Node looks beside the script
    script = shutil.copy(SCRIPT, tmp_path)
    async with gateway(saying(call_of("add"), call_of("add"), ANSWER, call_of("add"))) as run:
        address = openai_api(run)
        process = await asyncio.create_subprocess_exec(
            "node", script, kind, mode, cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "OPENAI_BASE_URL": address["base_url"],
                 "OPENAI_API_KEY": address["api_key"]},
        )  # fmt: skip
        output, problems = await asyncio.wait_for(process.communicate(), 120)
    trajectory = run.trajectory()

    assert process.returncode == 0, problems.decode()
    assert json.loads(output) == [ANSWER, ANSWER]
    assert run.session.refusal is None
    assert (len(trajectory.turns), len(trajectory.sequences())) == (5, 1)
    dialect = "chat completions" if kind == "compatible" else kind
    does = "tool loop, `@ai-sdk/openai-compatible`" if kind == "compatible" else "tool loop"
    note(trajectory, dialect=dialect, does=does)
