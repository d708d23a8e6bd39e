"""A real vLLM server without envkit's flags, and one whose engine process dies."""

import asyncio
import importlib
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fakes.playing import collected
from fakes.real_servers import ask

from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.rollout.engine import Sampling
from envkit.tokens import load_codec
from envkit_vllm import create_engine

pytestmark = pytest.mark.vllm
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def bare_server(
    vllm_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[str, Path]]:
    """Address and log of a server with the token route and nothing else."""
    for folder in ("servers", "contracts"):
        monkeypatch.syspath_prepend(str(SCRIPTS / folder))
    server: Any = importlib.import_module("server")
    log = tmp_path / "server.log"
    flags = ("--enable-scale-out",)
    with server.running_server(server.VLLM, Path(vllm_model), log, flags=flags) as url:
        yield url, log


async def test_bare_server_is_refused_before_an_episode_and_its_death_is_a_crash(
    bare_server: tuple[str, Path], vllm_model: str
) -> None:
    url, log = bare_server
    engine = create_engine(vllm_model, base_url=url, timeout_s=120)
    missing = {row.flag for row in await engine.flags() if not row.is_set}
    assert missing == {"--logprobs-mode processed_logprobs", "--enable-prompt-tokens-details"}

    codec = load_codec(vllm_model)
    episodes = collected("canary-v0", engine, codec, episodes=2, sampling=Sampling(temperature=0.7))
    with pytest.raises(ConfigurationError, match="--logprobs-mode processed_logprobs"):
        await anext(episodes)

    await engine.aclose()
    engine = create_engine(vllm_model, base_url=url, timeout_s=120, check_logprobs=False)
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], 1, max_new_tokens=4000, extras={"ignore_eos": True}))
    )
    await asyncio.sleep(1.0)
    found = re.findall(r"EngineCore pid=(\d+)", log.read_text(errors="replace"))
    os.kill(int(found[-1]), signal.SIGKILL)
    with pytest.raises(EngineFault) as caught:
        await running
    assert (caught.value.kind, caught.value.is_unavailable) == (FaultKind.CRASHED, True), (
        caught.value
    )
    with pytest.raises(EngineFault) as caught:
        await engine.probe()
    assert caught.value.is_unavailable
    await engine.aclose()
