"""The self-contained file: harmless, whole, and true to the run."""

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.trajectories import (
    Context,
    Reply,
    build,
    example,
    picture,
    quick,
    trajectories,
    with_sanity,
)
from fakes.viewer_page import Page
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics import aggregate
from envkit.tokens import SanityStatus
from envkit.trajectory import StopReason, Trajectory, save
from envkit.viewer import document, write_report
from envkit.viewer.bundle import bundled
from envkit.viewer.images import is_whole_png
from envkit.viewer.run import read_run
from envkit.viewer.run_text import notes

HOSTILE = "</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u2028"


def _hostile() -> Trajectory:
    replies = (
        Reply(text=HOSTILE, observation=Context(), observation_text=HOSTILE, parse_error=HOSTILE),
        Reply(tool_call={HOSTILE: HOSTILE}, weight_version=HOSTILE),
    )
    return build(replies, episode_id=HOSTILE, env_id=HOSTILE, task={"q": HOSTILE}, group_id=HOSTILE)


def test_report_holds_the_run(tmp_path: Path) -> None:
    rows = [example(0), example(1, stop_reason=StopReason.ENV_FAULT), example(2)]
    save(rows, tmp_path / "trajectories.jsonl")
    assert write_report(tmp_path, tmp_path / "report.html") == tmp_path / "report.html"
    found = Page(tmp_path / "report.html")
    assert f"Rollout report: {tmp_path.name}" in found.text
    assert str(tmp_path) not in (tmp_path / "report.html").read_text()
    assert [row["number"] for row in found.rows] == [1, 2, 3]
    assert [row["stop"] for row in found.rows] == ["terminated", "env_fault", "terminated"]
    assert found.rows[0]["task"] == "solve it"
    assert found.rows[0]["flags"] == ["parse error", "retry"]
    episode = found.episode(2)
    assert episode["fault"]["message"] == "no answer in 5 s"
    assert episode["reward"] is None
    assert found.episode(1)["certificate"]["status"] == "verified"
    assert [turn["parse_error"] for turn in found.turns(1)] == [None, "no call found", None]
    assert found.turns(1)[0]["tokens"]["logprobs"] == [-0.5, -0.01, -2.25]


def test_report_embeds_every_image_once(tmp_path: Path) -> None:
    target = write_report([example(0), example(0), example(1)], tmp_path / "report.html")
    found = Page(target)
    names = {name for name in found.blocks if name.startswith("image-")}
    assert names == {f"image-{picture(n).sha256}" for n in (0, 1, 2)}
    stored = base64.b64decode(found.blocks[f"image-{picture(0).sha256}"])
    assert stored == picture(0).png_bytes()
    seen = [name for turn in found.turns(1) for said in turn["heard"] for name in said["images"]]
    assert picture(1).sha256 in seen
    assert found.episode(1)["sizes"][picture(1).sha256] == list(picture(1).size)


def test_report_lets_only_its_own_code_run(tmp_path: Path) -> None:
    target = write_report([_hostile()], tmp_path / "report.html")
    found = Page(target)
    policy = next(v["content"] for t, v in found.tags if t == "meta" and "http-equiv" in v) or ""
    for name in ("script", "style"):
        digest = hashlib.sha256(found.code[name].encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", target.read_text())
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", bundled("single")
    )
    assert "@import" not in found.code["style"]
    assert not any(name.startswith("on") or name == "style" for _, v in found.tags for name in v)


def test_report_holds_hostile_content_as_data(tmp_path: Path) -> None:
    target = write_report([_hostile()], tmp_path / "report.html", title=HOSTILE)
    found, harmless = Page(target), Page(write_report([example()], tmp_path / "other.html"))
    assert found.count("img") == 0
    assert found.count("script") == harmless.count("script") - 2  # as many images fewer
    assert HOSTILE in found.text
    assert found.rows[0]["id"] == HOSTILE
    assert not {"<", ">", "\u2028"} & set(found.blocks["index"])
    first, second = found.turns(1)
    assert first["reply"] == HOSTILE
    assert second["heard"][0]["text"] == HOSTILE
    assert json.loads(second["words"][0]) == {HOSTILE: HOSTILE}


@quick
@given(st.lists(trajectories(), min_size=1, max_size=2))
def test_report_of_anything_can_be_read_by_a_browser(drawn: list[Trajectory]) -> None:
    rows = [replace(row, episode_id=f"{n} {row.episode_id}") for n, row in enumerate(drawn)]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not valid JSON")

    with tempfile.TemporaryDirectory() as folder:
        found = Page(write_report(rows, Path(folder) / "report.html"))
    json.loads(found.blocks["index"], parse_constant=refuse)
    assert len(found.rows) == len(rows)
    for number, row in enumerate(rows, start=1):
        episode = found.episode(number, parse_constant=refuse)
        turns = [turn for sequence in episode["sequences"] for turn in sequence["turns"]]
        tokens = [turn["tokens"] for turn in turns]
        kinds = [segment.kind.value for segment in row.segments]
        assert sum(len(one["ids"]) for one in tokens) == sum(
            len(segment.train_ids)
            for segment, kind in zip(row.segments, kinds, strict=True)
            if kind == "model"
        )
        assert episode["problems"] == []
        assert [turn["reply"] for turn in turns] == [turn.response_text for turn in row.turns]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no readable episode$"),
        (b"notes\n", "line 1 .* valid JSON"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_report_of_no_readable_episode_is_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(content)
    with pytest.raises(StorageError, match="no readable episode") as caught:
        write_report(file, tmp_path / "report.html")
    assert re.search(reason, str(caught.value))
    assert list(tmp_path.iterdir()) == [file]


def test_report_shows_tokens_as_text_where_it_can(tmp_path: Path) -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(f"<t{i}>" for i in ids)

    found = Page(write_report([example()], tmp_path / "report.html", decode=decode))
    vocabulary = found.unpack("vocabulary")
    assert vocabulary["101"] == "<t101>"
    assert set(vocabulary) == {str(i) for s in example().segments for i in s.train_ids}
    plain = Page(write_report([example()], tmp_path / "report.html"))
    assert plain.unpack("vocabulary") is None


def test_report_says_what_it_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(base64.b64encode(picture(0).png_bytes()))
    monkeypatch.setattr(document, "IMAGE_BUDGET_BYTES", one)
    rows = [example(n) for n in range(3)]
    found = Page(write_report(rows, tmp_path / "report.html", max_episodes=2))
    assert "the list shows the first 2 and leaves out 1" in found.notes
    assert "2 images are not embedded" in found.notes
    assert [name for name in found.blocks if name.startswith("image-")] == [
        f"image-{picture(0).sha256}"
    ]
    assert len(found.rows) == 2
    assert found.index["runs"][0]["figures"]["episodes"] == 3


def test_report_says_on_its_first_page_what_was_not_compared(tmp_path: Path) -> None:
    equal, unchecked = SanityStatus.EQUAL, SanityStatus.UNCHECKED
    rows = [with_sanity(example(0), equal, unchecked), with_sanity(example(1), equal)]
    figures = Page(write_report(rows, tmp_path / "report.html")).index["runs"][0]["figures"]
    assert figures["unchecked"] == {"count": 1, "of": 3}
    said = ["Observations that could not be compared with a full render: 1 of 3."]
    assert notes(read_run(rows)) == said
    assert notes(read_run([with_sanity(example(0), equal)])) == []


def test_report_of_a_damaged_run_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    save([example(0), example(1), example(2)], file)
    first, second, third = file.read_text().splitlines()
    changed = second.replace('"train_ids":[101', '"train_ids":[102').replace(
        '"wire_ids":[101', '"wire_ids":[102'
    )
    file.write_text(f"{first}\n{changed}\n{third[:-40]}")
    (tmp_path / "images" / f"{picture(0).sha256}.png").unlink()
    found = Page(write_report(file, tmp_path / "report.html"))
    assert "line 3 is cut off" in found.notes
    assert f"{picture(0).sha256}.png" in found.notes
    assert str(tmp_path) not in found.notes
    assert [row["flags"] for row in found.rows][1][0] == "broken"
    assert found.index["runs"][0]["figures"]["broken"] == 1
    certificate = found.episode(2)["certificate"]
    assert certificate["status"] == "broken: segment 1 (counted from 0)"
    assert found.episode(1)["certificate"]["kind"] == "good"
    assert picture(0).sha256 not in found.episode(1)["sizes"]


def test_report_refuses_wrong_arguments_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_episodes must be at least 1, got 0"):
        write_report([], tmp_path / "report.html", max_episodes=0)
    with pytest.raises(StorageError, match="no trajectory file"):
        write_report(tmp_path / "none", tmp_path / "report.html")
    with pytest.raises(StorageError, match="cannot write"):
        write_report([example()], tmp_path / "missing" / "report.html")
    assert not list(tmp_path.iterdir())


def test_report_knows_throughput_only_from_the_rollout_itself(tmp_path: Path) -> None:
    rows = [example(0), example(1)]
    save(rows, tmp_path / "trajectories.jsonl")

    def names_with(metrics: str) -> set[str]:
        (tmp_path / "metrics.json").write_text(metrics)
        found = Page(write_report(tmp_path, tmp_path / "report.html"))
        return {name for name, _ in found.index["runs"][0]["figures"]["metrics"]}

    speed = "throughput/tokens_per_second"
    assert speed in names_with(json.dumps(aggregate(rows, elapsed_seconds=20.0)))
    for other in (json.dumps(aggregate(rows[:1], elapsed_seconds=20.0)), "{", "[1]", "{}"):
        assert speed not in names_with(other)


def test_stored_images_are_whole_or_not_taken_as_they_are() -> None:
    data = picture(0).png_bytes()
    assert is_whole_png(data)
    assert not any(is_whole_png(data[:end]) for end in range(len(data)))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        assert not is_whole_png(bytes(changed))
