"""`RecordEpisode`: every episode becomes a film, and nothing else changes."""

from pathlib import Path

import pytest
from fakes.codecs import vision_codec
from fakes.command import run_envkit
from fakes.envs import DotsEnv, EchoEnv
from fakes.models import tiny_model_dir
from fakes.playing import play_one
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, StorageError
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, RetryBudget, ScriptedEngine
from envkit.wrappers import InjectFaults, RecordEpisode


def film(path: Path) -> tuple[str | None, int, int, tuple[int, int]]:
    with PilImage.open(path) as opened:
        frames: int = getattr(opened, "n_frames", 1)
        opened.seek(frames - 1)
        opened.load()
        return opened.format, frames, int(opened.info["duration"]), opened.size


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_a_film_has_a_frame_for_the_start_and_one_for_each_turn(tmp_path: Path, kind: str) -> None:
    env = RecordEpisode(DotsEnv(), tmp_path, format=kind, seconds=0.5)
    plain = DotsEnv()
    assert env.reset(seed=1) == plain.reset(seed=1)
    for _ in range(5):
        assert env.step("3") == plain.step("3")

    assert [path.name for path in env.written] == [f"episode-00000.{kind}"]
    assert film(env.written[0]) == (kind.upper(), 6, 500, (768, 768))


def test_frames_show_different_pages(tmp_path: Path) -> None:
    env = RecordEpisode(DotsEnv(), tmp_path)
    env.reset(seed=1)
    for _ in range(5):
        env.step("3")
    seen = set[bytes]()
    with PilImage.open(env.written[0]) as opened:
        for number in range(6):
            opened.seek(number)
            seen.add(opened.convert("RGB").tobytes())

    assert len(seen) == 6


def test_an_unfinished_episode_is_written_by_close(tmp_path: Path) -> None:
    env = RecordEpisode(EchoEnv(), tmp_path / "new" / "folder")
    env.reset(seed=1)
    env.step("no")
    env.close()
    env.close()

    assert film(env.written[0])[1] == 2
    assert len(env.written) == 1


def test_every_tenth_episode_is_recorded(tmp_path: Path) -> None:
    env = RecordEpisode(EchoEnv(max_turns=1), tmp_path, every=10)
    for seed in range(12):
        env.reset(seed=seed)
        env.step("no")

    assert [p.name for p in env.written] == ["episode-00000.webp", "episode-00010.webp"]


async def test_a_retried_turn_is_filmed_once(tmp_path: Path) -> None:
    codec = vision_codec()
    plan = FaultPlan(schedule={("step", 2, 1, 0): "transient", ("step", 2, 2, 1): "transient"})
    env = InjectFaults(RecordEpisode(DotsEnv(), tmp_path), plan)
    retries = RetryBudget(backoff=Backoff(initial_s=0.001, maximum_s=0.002))

    trajectory = await play_one(
        env, ScriptedEngine(codec, DotsEnv().oracle()), codec,
        seed=2, episode_id="an/episode", retries=retries,
    )  # fmt: skip

    assert plan.injected == {"transient": 2}
    assert trajectory.reward == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["an_episode.webp"]
    assert film(tmp_path / "an_episode.webp")[1] == 4


@pytest.mark.slow
def test_rollout_films_its_episodes(tmp_path: Path) -> None:
    outcome = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 3, "--out", tmp_path / "run", "-q", "--wrap", "record-episode",
        "--wrap-kwargs", f"folder={tmp_path / 'films'}", "--wrap-kwargs", "format=gif",
    )  # fmt: skip

    assert outcome.code == 0, outcome.err
    films = sorted((tmp_path / "films").iterdir())
    assert len(films) == 3
    assert {film(path)[:2] for path in films} == {("GIF", 4)}


def test_rollout_refuses_arguments_that_the_wrapper_does_not_take(tmp_path: Path) -> None:
    command = ["rollout", "canary-v0", "--policy", "oracle", "--out", tmp_path / "run", "-q"]
    wrong = run_envkit(*command, "--wrap", "record-episode", "--wrap-kwargs", "folders=3")
    lonely = run_envkit(*command, "--wrap-kwargs", "folder=3")

    assert (wrong.code, lonely.code) == (2, 2)
    assert "record-episode cannot be built with {'folders': 3}" in wrong.last_error
    assert "add --wrap NAME" in lonely.last_error


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = RecordEpisode(EchoEnv(max_turns=1), tmp_path / "file" / "films")
    env.reset(seed=1)
    with pytest.raises(StorageError, match="cannot make the folder"):
        env.step("no")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of 'webp', 'gif'"):
        RecordEpisode(EchoEnv(), format="mp4")
    with pytest.raises(ConfigurationError, match="every at least 1"):
        RecordEpisode(EchoEnv(), every=0)
