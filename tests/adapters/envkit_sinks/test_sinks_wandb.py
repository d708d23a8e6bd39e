"""W&B's offline file holds the run, and nobody is asked for a key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.trajectories import example
from fakes.wandb_file import WandbFile
from PIL import Image as PillowImage

from envkit.errors import ConfigurationError
from envkit.metrics import aggregate, histograms
from envkit.trajectory import StopReason
from envkit_sinks import WandbSink
from envkit_sinks.wandb import chosen_mode, has_api_key

ROWS = [
    *(example(n, duration_seconds=0.5 + n, group_id=f"g{n // 2}") for n in range(4)),
    example(4, stop_reason=StopReason.ENV_FAULT),
]


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WandbFile:
    """One run of five episodes; starting one takes seconds."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NETRC", str(folder / "netrc"))
        patch.delenv("WANDB_API_KEY", raising=False)
        sink = WandbSink(
            project="demo", config={"seed": 7, "limits": {"max_turns": 3}}, directory=folder,
            shown_episodes=2,
        )  # fmt: skip
        assert sink.mode == "offline"
        for row in ROWS:
            sink.write(row)
        sink.write_metrics(aggregate(ROWS), step=12)
        sink.write(ROWS[0])
        sink.close()
        sink.close()
    return WandbFile(folder)


@pytest.mark.slow
def test_metrics_read_back_are_those_of_the_run(run: WandbFile) -> None:
    (row,) = [row for row in run.history() if "reward/mean" in row]
    metrics = aggregate(ROWS)
    assert {name: row[name] for name in metrics} == metrics
    assert row["step"] == 12
    assert run.over_step()["reward/mean"] == "step"


@pytest.mark.slow
def test_every_episode_is_a_point(run: WandbFile) -> None:
    rows = [row for row in run.history() if "episode/turns" in row]
    assert [row["episode/number"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.get("episode/reward") for row in rows] == [1.0, 1.0, 1.0, 1.0, None, 1.0]
    assert [row["episode/faulted"] for row in rows] == [0, 0, 0, 0, 1, 0]


@pytest.mark.slow
def test_histograms_are_those_of_the_step(run: WandbFile) -> None:
    shown = [row for row in run.history() if "histogram/turns" in row]
    assert len(shown) == 2
    for name, histogram in histograms(ROWS).items():
        read = shown[0][f"histogram/{name}"]
        assert read["_type"] == "histogram"
        assert read["values"] == list(histogram.counts)
        assert read["bins"] == pytest.approx(histogram.edges)
    assert sum(shown[1]["histogram/turns"]["values"]) == 1


@pytest.mark.slow
def test_some_episodes_are_shown_with_their_last_images(run: WandbFile) -> None:
    row: dict[str, Any] = next(row for row in run.history() if "shown_episodes" in row)
    table = json.loads((run.folder / "files" / row["shown_episodes"]["path"]).read_text())
    first = dict(zip(table["columns"], table["data"][0], strict=True))
    assert len(table["data"]) == 2
    assert first["episode_id"] == "episode-0"
    assert first["stop_reason"] == "terminated"
    assert first["last_reply"] == "a reply"
    named = row["shown_images"]
    assert named["captions"] == ["episode-0: 1.0, terminated", "episode-1: 1.0, terminated"]
    shown = PillowImage.open(run.folder / "files" / named["filenames"][0]).convert("RGB")
    assert np.array_equal(np.asarray(shown), ROWS[0].images()[-1].array())


@pytest.mark.slow
def test_configuration_is_kept(run: WandbFile) -> None:
    config = run.config()
    assert config["seed"] == 7
    assert config["limits"] == {"max_turns": 3}


def test_mode_follows_the_key_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen_mode(None) == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert chosen_mode(None) == "disabled"
    assert chosen_mode("offline") == "offline"
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0\n")
    assert chosen_mode(None) == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_api_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert chosen_mode(None) == "online"


@pytest.mark.slow
def test_online_without_a_key_is_refused_and_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigurationError, match="WANDB_MODE=offline"):
        WandbSink()
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigurationError, match="onlin"):
        WandbSink()
