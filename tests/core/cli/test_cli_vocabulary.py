"""Commands that play episodes store the texts of their token ids, and other commands show them."""

import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.hostile_runs import RUN, RunEnv, Sent, resume, rollout
from fakes.models import tiny_model_dir
from fakes.viewer_page import Page

from envkit.rollout.vocabulary_file import VOCABULARY_FILE, read_texts
from envkit.tokens import load_codec
from envkit.trajectory import load
from envkit.viewer.episodes import used_ids

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")
MODEL = "qwen2_5_vl"


def stored(run: Path) -> dict[int, str]:
    with (run / VOCABULARY_FILE).open("rb") as stream:
        return dict(read_texts(stream).texts)


def expected(run: Path) -> dict[int, str]:
    """Return the text of each id of a run's trajectories, by the model itself."""
    codec = load_codec(tiny_model_dir(MODEL))
    ids = frozenset[int]().union(*map(used_ids, load(run)))
    return {one: codec.token_text(one) for one in ids}


def shown(page: Path) -> dict[int, str]:
    texts: dict[str, str] = Page(page).unpack("vocabulary-0")["vocabulary"]
    return {int(one): text for one, text in texts.items()}


def test_run_stores_the_texts_that_its_trajectories_use(run: Path) -> None:
    assert stored(run) == expected(run) == shown(run / "report.html")
    assert "<|im_end|>" in stored(run).values()


def test_report_needs_no_model(run: Path) -> None:
    assert run_envkit("report", run, "--out", "page.html").code == 0
    assert shown(Path("page.html")) == expected(run)


def test_model_of_a_report_wins(run: Path) -> None:
    assert run_envkit("report", run, "--out", "page.html", "--model", "builtin").code == 0
    assert shown(Path("page.html")) != expected(run)


def test_interrupted_run_stores_texts_and_a_resumed_one_completes_them() -> None:
    RunEnv.arm(Sent(signal.SIGINT), at=4)
    assert rollout().code == 128 + signal.SIGINT
    before = stored(RUN)
    assert before == expected(RUN)
    RunEnv.arm(None)
    assert resume().code == 0
    assert stored(RUN) == expected(RUN) == shown(RUN / "report.html")


def test_run_that_was_killed_before_it_wrote_texts_stores_all_when_resumed(run: Path) -> None:
    file = run / "trajectories.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    (run / VOCABULARY_FILE).unlink()
    assert resume().code == 0
    assert stored(run) == expected(run)


@pytest.mark.parametrize("damage", [b"", b'{"schema":1,"texts":{"7":"forged"}}', b"\xff" * 90])
def test_damaged_texts_never_stop_a_resumed_run(run: Path, damage: bytes) -> None:
    file = run / "trajectories.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    (run / VOCABULARY_FILE).write_bytes(damage)
    assert resume().code == 0
    assert stored(run).items() >= expected(run).items()
    assert "forged" not in stored(run).values()


def test_overwritten_run_keeps_no_text_of_the_old_one(run: Path) -> None:
    (run / VOCABULARY_FILE).write_bytes(b'{"schema":1,"texts":{"7":"old"}}')
    assert rollout("--overwrite").code == 0
    assert stored(run) == expected(run)


def test_run_that_cannot_write_texts_is_complete_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from envkit.rollout import vocabulary_file

    def full(*_: Any) -> None:
        raise vocabulary_file.StorageError("disk full")

    monkeypatch.setattr(vocabulary_file, "replace_file", full)
    ended = rollout()
    assert (ended.code, ended.err) == (0, "")
    assert not (RUN / VOCABULARY_FILE).exists()


def test_merged_run_has_the_texts_of_its_shards() -> None:
    for number in range(2):
        assert rollout("--shard", f"{number}/2", out=f"part-{number}").code == 0
    assert run_envkit("merge", "part-0", "part-1", "--out", "merged").code == 0
    assert stored(Path("merged")) == expected(Path("merged")) == shown(Path("merged/report.html"))


def test_evaluation_stores_the_texts_of_each_run() -> None:
    ended = run_envkit(
        "eval", "canary-v0", "--policy", "oracle", "--model", tiny_model_dir(MODEL), "-n", 2,
        "--out", "eval", "-q",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert stored(Path("eval/canary-v0")) == expected(Path("eval/canary-v0"))
