"""Claude Code, Codex and opencode, as `make contract-clients` installs them from npm."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.client_scripts import calling, gateway
from fakes.gateway_run import Run
from fakes.needs import AGENT_PROGRAMS
from fakes.trajectories import picture

from envkit_gateway import Train

PROGRAMS = os.environ.get("ENVKIT_AGENT_PROGRAMS")
pytestmark = AGENT_PROGRAMS.mark

CODEX = """
model = "m"
model_provider = "envkit"
[model_providers.envkit]
name = "envkit"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


def settings(run: Run, folder: Path) -> Mapping[str, str]:
    """Write the configuration of each program; return its environment."""
    url, key = run.gateway.url, run.session.key
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text(CODEX.format(url=url), encoding="utf-8")
    options = {"baseURL": f"{url}/v1", "apiKey": key}
    limit = {"context": 200_000, "output": 4096}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": options,
        "models": {"m": {"name": "m", "limit": limit}},
    }
    opencode: dict[str, Any] = {"model": "envkit/m", "provider": {"envkit": provider}}
    (folder / "opencode.json").write_text(json.dumps(opencode), encoding="utf-8")
    return {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "OPENAI_API_KEY": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


CLAUDE = ["claude", "-p", "go", "--allowedTools", "Bash,Read"]
CODEX_RUN = ["codex", "exec", "--skip-git-repo-check", "go"]
SHELL = '{"command":  "echo hello", "description": "say hello"}'


@pytest.mark.parametrize(
    ("command", "tool", "arguments", "images", "sequences"),
    [
        (CLAUDE, "Bash", SHELL, 0, 1),
        (CLAUDE, "Read", '{"file_path":  "FOLDER/seen.png"}', 1, 1),
        (CODEX_RUN, "exec_command", '{"cmd":  "echo hello"}', 0, 1),
        (CODEX_RUN, "view_image", '{"path":  "FOLDER/seen.png"}', 1, 1),
        (["opencode", "run", "go"], "bash", SHELL, 0, 2),  # the first one asks for a title
    ],
    ids=["claude", "claude-image", "codex", "codex-image", "opencode"],
)
async def test_program_keeps_one_conversation(
    command: list[str], tool: str, arguments: str, images: int, sequences: int, tmp_path: Path
) -> None:
    (tmp_path / "seen.png").write_bytes(picture(4).png_bytes())
    async with gateway(calling(tool, arguments.replace("FOLDER", str(tmp_path)))) as run:
        assert PROGRAMS is not None
        process = await asyncio.create_subprocess_exec(
            str(Path(PROGRAMS) / command[0]), *command[1:],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, cwd=tmp_path, env=settings(run, tmp_path),
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 0, output
    trajectory = run.trajectory(train=Train.ALL)

    assert len(trajectory.sequences()) == sequences
    assert trajectory.image_count == images
    assert trajectory.trained_token_count == trajectory.sampled_token_count
