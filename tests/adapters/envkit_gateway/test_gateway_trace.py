"""Traces: what is left of an episode after a crash."""

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.agent_clients import ChatClient
from fakes.agent_runs import played
from fakes.command import run_envkit, start_envkit
from fakes.own_agents import client_of

from envkit.images import Image
from envkit_gateway import AgentTask


async def working(task: AgentTask) -> float:
    """Ask three times, the last time in another conversation."""
    client = client_of(task)
    await client.ask("Begin.", task.images[0])
    await client.ask("Continue.")
    await ChatClient(task.url, task.api_key).ask("Summarize.")
    return 0.25


async def killing(task: AgentTask) -> None:
    """End the whole run with a signal that nothing can handle."""
    client = client_of(task)
    await client.ask("Begin.", task.images[0])
    await client.ask("Continue.")
    os.kill(os.getpid(), signal.SIGKILL)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def test_trace_has_what_the_record_has(tmp_path: Path) -> None:
    found = await played({"function": working, "traces": str(tmp_path / "traces")})
    first, *replies, last = lines(tmp_path / "traces" / f"{found.episode_id}.jsonl")
    assert (first["episode_id"], first["seed"]) == (found.episode_id, found.seed)
    assert last == {"ended": "terminated", "reward": 0.25}
    assert [one["continues"] for one in replies] == [None, 0, None]
    assert [one["reason"] for one in replies] == [None, None, "other_system_prompt"]
    texts = [one["reply"]["content"][0]["text"] for one in replies]
    assert texts == [turn.response_text for turn in found.turns]
    ids = [one["new_ids"] + one["reply_ids"] for one in replies]
    sequences = [
        [int(one) for segment in sequence.segments for one in segment.wire_ids]
        for sequence in found.sequences()
    ]
    assert sequences == [ids[0] + ids[1], ids[2]]
    sampled = [len(one["reply_ids"]) for one in replies]
    assert [len(one["logprobs"]) for one in replies] == sampled
    shown = replies[0]["messages"][-1]["content"][0]
    image = Image.from_bytes((tmp_path / "traces/images" / f"{shown['sha256']}.png").read_bytes())
    assert image.sha256 == shown["sha256"]


@pytest.mark.slow
def test_trace_survives_the_death_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = start_envkit(
        "rollout", "canary-v0", "-n", "1", "--out", "out", "--agent", f"{__name__}:killing",
        "--set", "agent.traces=traces",
    )  # fmt: skip
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    (file,) = Path("traces").glob("*.jsonl")
    started, *replies = lines(file)
    assert started["env_id"] == "canary-v0"
    assert len(replies) == 2
    assert all(one["reply_ids"] for one in replies)


def test_option_for_an_agent_keeps_its_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_envkit(
        "rollout", "canary-v0", "-n", 1, "--policy", "oracle", "--out", "out", "-q",
        "--agent", "fakes.own_agents:trivial",
        "--set", "agent.traces=traces", "--set", "agent.command=another",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert len([*Path("traces").glob("*.jsonl")]) == 1


async def test_unwritable_trace_costs_no_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        found = await played({"function": working, "traces": str(tmp_path / "file")})
    assert found.reward == 0.25
    assert "cannot write the trace" in caplog.text
