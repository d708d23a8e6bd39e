"""What a run collects while it writes: the same figures, page and check as from its file."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.marked_runs import forked_run, grouped_run, rewritten
from fakes.trajectories import build, example
from fakes.viewer_page import Page
from msgspec import structs

from envkit.cli import run_digest
from envkit.cli.digest_file import DIGEST_FILE, DigestEntry, DigestFile
from envkit.cli.run_digest import RunDigest
from envkit.metrics import aggregate
from envkit.trajectory import StopReason, Trajectory, load, verify_file
from envkit.trajectory.storage import FILE_NAME, StoredLine, TrajectoryWriter, parse_line
from envkit.viewer import document, write_report


def rows() -> list[Trajectory]:
    return [
        *(replace(example(n), episode_id=f"e{n}") for n in range(4)),
        *grouped_run(groups=2),
        replace(rewritten(), episode_id="rewritten"),
        replace(build([], stop_reason=StopReason.ENV_FAULT), episode_id="faulted"),
    ]


def play(folder: Path, given: Iterable[Trajectory], *, is_resumed: bool = False) -> RunDigest:
    """Write episodes as a run does, and return what was collected of them."""
    with (
        TrajectoryWriter(folder, mode="append" if is_resumed else "create") as writer,
        RunDigest(folder, is_resumed=is_resumed) as digest,
    ):
        if is_resumed:
            list(digest.stored())
        for one in given:
            prepared = writer.prepare(one)
            writer.append(prepared)
            digest.add(one, prepared)
    return digest


def same_as_file(digest: RunDigest, folder: Path) -> bool:
    """Whether the figures, the check and the page are those of the file; return its origin."""
    is_from_memory = digest.is_from_memory
    assert str(digest.checked()) == str(verify_file(folder))
    assert digest.metrics.result() == aggregate(load(folder))
    digest.vocabulary.token_text = str
    digest.write_report(folder / "own.html")
    own = Page(folder / "own.html")
    read = Page(write_report(folder, folder / "read.html", token_text=str))
    assert own.index == read.index
    assert own.blocks.keys() == read.blocks.keys()
    for name in own.blocks:
        if name.startswith("episode-"):
            assert shown(own, name) == shown(read, name)
        elif name != "index":
            assert own.unpack(name) == read.unpack(name) if "image" not in name else True
    return is_from_memory


def shown(page: Page, name: str) -> dict[str, Any]:
    """Return an episode's page without the words for how its certificate was compared."""
    data = page.unpack(name)
    assert data["certificate"].pop("status") in ("verified", "computed when it was written")
    return data


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the lines that were read and parsed."""
    found: list[int] = []

    def counted(file: Path, number: int, line: bytes, images: Any) -> StoredLine:
        found.append(number)
        return parse_line(file, number, line, images)

    monkeypatch.setattr(run_digest, "parse_line", counted)
    return found


def test_digest_of_a_run_equals_that_of_its_file(tmp_path: Path) -> None:
    assert same_as_file(play(tmp_path, rows()), tmp_path)


def test_digest_of_a_resumed_run_parses_no_line(tmp_path: Path, parsed: list[int]) -> None:
    play(tmp_path, rows()[:7])
    digest = play(tmp_path, rows()[7:], is_resumed=True)
    assert parsed == []
    assert same_as_file(digest, tmp_path)


def test_resumed_digest_computes_what_a_changed_line_adds(
    tmp_path: Path, parsed: list[int]
) -> None:
    play(tmp_path, rows()[:7])
    file = tmp_path / FILE_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[2])
    row["metadata"] = {"note": "another"}
    file.write_bytes(b"".join([*lines[:2], json.dumps(row).encode() + b"\n", b"\n", *lines[3:]]))
    digest = play(tmp_path, rows()[7:], is_resumed=True)
    assert parsed == [3, *range(5, 9)]  # an empty line moved the others, whose pages name them
    assert same_as_file(digest, tmp_path)


@pytest.mark.parametrize("damage", ["none", "cut", "zeros", "flipped", "foreign", "twice"])
def test_damaged_digest_file_costs_no_figure(
    tmp_path: Path, damage: str, parsed: list[int]
) -> None:
    play(tmp_path, rows()[:7])
    file = tmp_path / DIGEST_FILE
    data = bytearray(file.read_bytes())
    half = len(data) // 2
    if damage == "cut":
        data = data[:half]
    elif damage == "zeros":
        data[half:] = bytes(len(data) - half)
    elif damage == "flipped":
        data[half] ^= 1
    elif damage == "foreign":
        data = bytearray(b"envkit digest 0000000000000000\n") + data[31:]
    elif damage == "twice":
        data = data * 2
    file.write_bytes(data)
    if damage == "none":
        file.unlink()
    assert same_as_file(play(tmp_path, rows()[7:9], is_resumed=True), tmp_path)
    read_again = len(parsed)
    assert (read_again == 0) == (damage == "twice")
    # What was computed again is kept, after the sound entries.
    assert same_as_file(play(tmp_path, rows()[9:], is_resumed=True), tmp_path)
    assert len(parsed) == read_again


def test_digest_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.write_text("mine")
    run.mkdir()
    (run / DIGEST_FILE).symlink_to(outside)
    assert same_as_file(play(run, rows()), run)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("part", ["page", "image", "thumbnail"])
def test_forged_entry_never_becomes_markup(
    tmp_path: Path, part: str, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    markup = "</script><img src=x>"

    def forged(self: DigestFile, line: bytes, entry: DigestEntry) -> None:
        page, check, index = entry.page, entry.check, entry.index
        assert page is not None
        if part == "page":
            page = replace(page, packed=markup)
        elif part == "image":
            page, check = replace(page, images=(markup,)), structs.replace(check, images=("../x",))
        else:
            row = structs.replace(index.row, thumbnail=markup)
            index = structs.replace(index, row=row)
        add(self, line, replace(entry, page=page, check=check, index=index))

    add = DigestFile.add
    with monkeypatch.context() as patched:
        patched.setattr(DigestFile, "add", forged)
        play(tmp_path, rows()[:3])
    digest = play(tmp_path, rows()[3:], is_resumed=True)
    digest.write_report(tmp_path / "own.html")
    assert markup not in (tmp_path / "own.html").read_text()
    assert parsed == ([] if part == "thumbnail" else [1, 2, 3])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_digest_file_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / DIGEST_FILE)
    play(tmp_path, rows()[:2])
    assert same_as_file(play(tmp_path, rows()[2:], is_resumed=True), tmp_path)


def test_digest_of_a_repeated_episode_counts_it_as_the_file_does(tmp_path: Path) -> None:
    given = rows()
    assert same_as_file(play(tmp_path, [*given, given[0], *given[:1]]), tmp_path)


def test_digest_of_forks_reads_the_file(tmp_path: Path) -> None:
    assert not same_as_file(play(tmp_path, forked_run()), tmp_path)


def test_digest_of_a_file_that_another_program_changed_reads_it(tmp_path: Path) -> None:
    digest = play(tmp_path, rows()[:3])
    with (tmp_path / FILE_NAME).open("ab") as stream:
        stream.write(b"{}\n")
    assert not digest.checked().is_sound
    assert not digest.is_from_memory


def test_episode_that_cannot_be_shown_costs_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise ValueError("foreign")

    with monkeypatch.context() as patched:
        patched.setattr(document, "shown_episode", broken)
        digest = play(tmp_path, rows())
    assert not same_as_file(digest, tmp_path)


def test_digest_of_a_value_that_its_file_cannot_hold_is_computed_again(
    tmp_path: Path, parsed: list[int]
) -> None:
    given = rows()[:3]
    given[1] = replace(given[1], seed=2**70)
    given[2] = replace(given[2], reward=float("inf"))
    play(tmp_path, given)
    assert same_as_file(play(tmp_path, [], is_resumed=True), tmp_path)
    assert parsed == [2]
