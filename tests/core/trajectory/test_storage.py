"""Trajectory files: what is written comes back exactly, whole or not at all."""

import json
import math
import pickle
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.processes import run_python
from fakes.trajectories import build, example, picture, quick, trajectories
from hypothesis import given
from hypothesis import strategies as st

import envkit_conformance
from envkit.errors import ConfigurationError, ImageError, LedgerFault, StorageError
from envkit.images import Image
from envkit.trajectory import (
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    TrajectoryWriter,
    certify,
    load,
    read_index,
    read_trajectories,
    save,
    storage,
    verify_file,
)
from envkit.trajectory.segment import column_of
from envkit.trajectory.storage import LineReader, read_lines


def _same(left: object, right: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(left) == repr(right) or left == right


@quick
@given(st.lists(trajectories(), max_size=2))
def test_storage_returns_what_was_stored(rows: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(rows, Path(folder) / "run.jsonl")
        back = load(Path(folder) / "run.jsonl")
        assert len(back) == len(rows)
        for before, after in zip(rows, back, strict=True):
            assert before.segments == after.segments
            assert before.images() == after.images() if len(before.sequences()) == 1 else True
            for name in ("turns", "task", "reset_info", "metadata", "env_snapshot", "fault"):
                assert _same(getattr(before, name), getattr(after, name)), name
            assert _same(
                replace(before, segments=(), messages=()), replace(after, segments=(), messages=())
            )
            assert before.messages == after.messages
            assert certify(before) == certify(after)


@quick
@given(st.lists(st.floats(max_value=0, allow_nan=False), min_size=3, max_size=3))
def test_storage_keeps_every_bit_of_a_logprob(logprobs: list[float]) -> None:
    trajectory = example()
    segments = list(trajectory.segments)
    segments[1] = replace(segments[1], logprobs=tuple(logprobs))
    with tempfile.TemporaryDirectory() as folder:
        save(replace(trajectory, segments=tuple(segments)), Path(folder) / "one.jsonl")
        back = load(Path(folder) / "one.jsonl")[0]
    assert [v.hex() for v in back.segments[1].logprobs] == [v.hex() for v in logprobs]


def test_storage_writes_strict_json(tmp_path: Path) -> None:
    odd = {"nan": math.nan, "inf": -math.inf, 7: b"\x00", "$image": 1, "array": np.arange(3)}
    trajectory = replace(
        example(), metadata=odd, task={"line": "a\u2028b\ud800", "image": picture(1)}
    )
    save(trajectory, tmp_path / "run.jsonl")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    (line,) = (tmp_path / "run.jsonl").read_bytes().splitlines()
    row = json.loads(line, parse_constant=refuse)
    assert row["schema"] == 1
    back = load(tmp_path / "run.jsonl")[0]
    assert back.task == trajectory.task
    assert math.isnan(back.metadata["nan"])
    assert back.metadata[7] == b"\x00"  # pyright: ignore[reportArgumentType]
    assert back.metadata["array"].tolist() == [0, 1, 2]
    assert back.metadata["$image"] == 1


def test_storage_takes_numpy_numbers_for_numbers(tmp_path: Path) -> None:
    trajectory = example()
    reply = trajectory.segments[1]
    ids: Any = tuple(np.asarray(reply.train_ids))
    logprobs: Any = tuple(np.asarray(reply.logprobs, dtype=np.float64))
    changed = replace(reply, train_ids=ids, wire_ids=ids, logprobs=logprobs)
    segments = (trajectory.segments[0], changed, *trajectory.segments[2:])
    save(replace(trajectory, segments=segments), tmp_path / "run.jsonl")
    assert load(tmp_path / "run.jsonl")[0] == trajectory


def test_storage_writes_an_image_once(tmp_path: Path) -> None:
    save([example(0), example(0, episode_id="again"), example(1)], tmp_path / "run.jsonl")
    names = {path.name for path in (tmp_path / "images").iterdir()}
    assert names == {f"{picture(n).sha256}.png" for n in (0, 1, 2)}
    first, again, _ = load(tmp_path / "run.jsonl")
    assert first.images()[0] is again.images()[0]


def test_storage_reads_images_on_first_use(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")
    (tmp_path / "images" / f"{picture(1).sha256}.png").unlink()
    trajectory = load(tmp_path / "run.jsonl")[0]
    first, second, _ = trajectory.images()
    assert first.array().tolist() == picture(0).array().tolist()
    assert certify(trajectory) == certify(example())
    with pytest.raises(StorageError, match=f"{picture(1).sha256}.png"):
        second.pil()


def test_storage_refuses_pixels_that_are_not_the_named_ones(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")
    target = tmp_path / "images" / f"{picture(0).sha256}.png"
    target.write_bytes(picture(4).png_bytes())
    with pytest.raises(ImageError, match="its file was changed"):
        load(tmp_path / "run.jsonl")[0].images()[0].pil()


def test_storage_never_follows_a_path_in_place_of_a_hash(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")
    file = tmp_path / "run.jsonl"
    file.write_text(file.read_text().replace(picture(0).sha256, "../../etc/passwd"))
    with pytest.raises(StorageError, match="64 lowercase hexadecimal digits"):
        load(file)


def test_storage_says_that_a_newer_envkit_is_needed(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")
    file = tmp_path / "run.jsonl"
    file.write_text(file.read_text().replace('{"schema":1,', '{"schema":2,'))
    with pytest.raises(StorageError, match=r"line 1: the record has schema 2.*upgrade"):
        load(file)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"seed":3', '"seed":"3"', "seed must be an integer"),
        ('"env_id":"fake-v0",', "", "env_id is missing"),
        ('"stop_reason":"terminated"', '"stop_reason":"bored"', "stop_reason must be one of"),
        ('"turn":1,"prompt_tokens"', '"turn":1.5,"prompt_tokens"', r"turns\[1\].turn must be"),
        ('"loss_mask":[1,1,1]', '"loss_mask":[1,1]', "equal lengths"),
        ('"role":"user"', '"role":"nobody"', "role"),
        ("}", "", "is not valid JSON"),
    ],
)
def test_storage_names_the_line_and_the_field_that_is_wrong(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    save([example(0), example(1)], tmp_path / "run.jsonl")
    first, second = (tmp_path / "run.jsonl").read_text().splitlines()
    assert old in second
    (tmp_path / "run.jsonl").write_text(f"{first}\n{second.replace(old, new)}\n")
    rows = read_trajectories(tmp_path / "run.jsonl")
    assert next(rows) == example(0)
    with pytest.raises(StorageError, match=f"line 2.*{message}"):
        next(rows)


@given(st.lists(st.sampled_from(["a", "b", "", " ", "\r", "\f", "{", "\0"]), max_size=8), st.data())
def test_line_reader_reads_in_any_order_what_a_pass_reads(names: list[str], data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        save([replace(example(), episode_id="a"), replace(example(), episode_id="b")], file)
        known = dict(zip("ab", file.read_text().splitlines(), strict=True))
        ending = data.draw(st.sampled_from(["", "\n"]))
        file.write_text("\n".join(known.get(name, name) for name in names) + ending)
        passed = list(read_lines(file))
        block = data.draw(st.sampled_from([1, 2, 7, 1 << 20]))
        with patch.object(storage, "_BLOCK", block), LineReader(file) as reader:
            for position in data.draw(st.lists(st.integers(1, 9), max_size=8)):
                found = reader.read(position)
                wanted = passed[position - 1] if position <= len(passed) else None
                assert (found is None) == (wanted is None)
                if found is not None and wanted is not None:
                    assert (found.line, found.trajectory) == (wanted.line, wanted.trajectory)
                    assert str(found.error) == str(wanted.error)
            assert reader.read(len(names) + 1) is None
            assert len(reader) == len(passed)


def test_line_reader_reads_on_where_the_last_line_had_no_end(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    save([example(n) for n in range(3)], file)
    whole = file.read_bytes()
    first, second, _ = whole.splitlines(keepends=True)
    file.write_bytes(first + second[:-100])
    with LineReader(file) as reader:
        half = reader.read(2)
        assert half is not None
        assert half.is_cut
        assert len(reader) == 2
        file.write_bytes(whole)
        found = [reader.read(n) for n in (2, 3, 4)]
        assert [None if one is None else one.trajectory for one in found] == [*load(file)[1:], None]
        assert len(reader) == 3


def test_storage_says_where_no_file_is(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no trajectory file"):
        load(tmp_path / "nothing")


def test_storage_says_what_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"metadata\.when\[0\] must be JSON data.*got object"):
        save(replace(example(), metadata={"when": [object()]}), tmp_path / "run.jsonl")
    assert not list(tmp_path.glob("*.jsonl*"))


def test_save_leaves_an_older_file_as_it_was_when_it_fails(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")

    def rows() -> Iterator[Trajectory]:
        yield example(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(rows(), tmp_path / "run.jsonl")
    assert load(tmp_path / "run.jsonl") == (example(),)
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "images"}


def test_writer_refuses_a_used_directory_by_default(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "run") as writer:
        writer.write(example(0))
    with pytest.raises(StorageError, match="'append' or 'overwrite'"):
        TrajectoryWriter(tmp_path / "run")
    with TrajectoryWriter(tmp_path / "run", mode="append") as writer:
        writer.write(example(1))
    assert load(tmp_path / "run") == (example(0), example(1))
    with TrajectoryWriter(tmp_path / "run", mode="overwrite", durable=True) as writer:
        writer.write(example(2))
    assert load(tmp_path / "run") == (example(2),)


def test_writer_refuses_an_unknown_mode_and_a_closed_file(tmp_path: Path) -> None:
    wrong: Any = "update"
    with pytest.raises(ConfigurationError, match="got 'update'"):
        TrajectoryWriter(tmp_path, mode=wrong)
    writer = TrajectoryWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(StorageError, match="is closed"):
        writer.write(example())


def test_writer_says_why_a_directory_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(StorageError, match="cannot open"):
        TrajectoryWriter(tmp_path / "file" / "run")


def test_writer_is_safe_to_share_between_threads(tmp_path: Path) -> None:
    def write(writer: TrajectoryWriter, thread: int) -> None:
        for number in range(8):
            writer.write(example(thread, episode_id=f"{thread}-{number}"))

    with TrajectoryWriter(tmp_path) as writer:
        threads = [threading.Thread(target=write, args=(writer, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({trajectory.episode_id for trajectory in load(tmp_path)}) == 32
    assert verify_file(tmp_path).is_sound


_FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, "tests")
from fakes.trajectories import example
from envkit.errors import StorageError
from envkit.trajectory import TrajectoryWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = TrajectoryWriter(sys.argv[1])
writer.write(example(0))
size = writer.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, size + 700))
try:
    writer.write(example(0, episode_id="too much"))
except StorageError as error:
    print(error)
assert writer.path.stat().st_size == size, "half a line stayed"
"""


@pytest.mark.slow
def test_invariant_9_a_full_disk_loses_no_finished_trajectory(tmp_path: Path) -> None:
    printed = run_python("-c", _FULL_DISK, tmp_path)
    assert "cannot write to" in printed
    assert "its contents are kept" in printed
    assert load(tmp_path) == (example(0),)
    assert verify_file(tmp_path).is_sound


def test_writer_keeps_the_file_when_an_image_cannot_be_written(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(build((), stop_reason=StopReason.ENGINE_FAULT))
        (tmp_path / "images").write_text("a file where the folder should be")
        with pytest.raises(StorageError, match="cannot create the folder"):
            writer.write(example(0))
    assert len(load(tmp_path)) == 1


def test_image_that_is_deferred_knows_its_identity_without_reading() -> None:
    def read() -> bytes:
        raise AssertionError("read")

    image = Image.deferred(read, sha256=picture(0).sha256)
    assert image == picture(0)
    assert "not read yet" in repr(image)


def test_storage_writes_the_same_bytes_as_the_version_that_made_the_recordings(
    tmp_path: Path,
) -> None:
    folder = Path(envkit_conformance.__file__).parent / "recordings"
    with TrajectoryWriter(tmp_path) as writer:
        for trajectory in read_trajectories(folder):
            writer.write(trajectory)
    assert writer.path.read_bytes() == (folder / "trajectories.jsonl").read_bytes()


def test_prepared_trajectory_is_not_written_before_it_is_appended(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        prepared = writer.prepare(example(0))
        assert [path.name for path in tmp_path.iterdir()] == ["trajectories.jsonl"]
        assert not writer.path.stat().st_size
        writer.append(prepared)
    assert load(tmp_path) == (example(0),)


@quick
@given(st.lists(trajectories(), max_size=3))
def test_index_says_what_the_trajectories_say(rows: list[Trajectory]) -> None:
    odd = {"segments": [{"segments": 1}], "group": 3, "member": 1, "image": picture(0)}
    rows = [replace(row, metadata={**row.metadata, **odd}) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        with TrajectoryWriter(folder) as writer:
            for row in rows:
                writer.write(row)
        found = list(read_index(folder))
        for row, stored in zip(load(folder), found, strict=True):
            for name in ("episode_id", "env_id", "seed", "group_id", "stop_reason"):
                assert getattr(stored, name) == getattr(row, name)
            assert _same(stored.metadata, row.metadata)
            assert stored.is_finished == (row.stop_reason is not StopReason.ABORTED)
        assert [stored.line for stored in found] == list(range(1, len(rows) + 1))


def test_index_parses_no_ledger(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(example(0))
    line = writer.path.read_bytes()
    writer.path.write_bytes(line[: line.index(b'"segments":') + 11] + b"...}\n")
    assert [stored.episode_id for stored in read_index(tmp_path)] == [example(0).episode_id]


def test_index_reads_lines_of_another_writer_and_leaves_a_torn_one_out(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(example(0))
        writer.write(example(1))
    file = writer.path
    first, second = file.read_bytes().splitlines()
    reordered = dict(reversed(json.loads(first).items()))
    whole = json.dumps(reordered, indent=None).encode() + b"\n"
    for torn in (second[:1], second[:200], second[:-1], second[:500] + b"\0" * 99 + b"\n"):
        file.write_bytes(whole + torn)
        assert [stored.episode_id for stored in read_index(tmp_path)] == [example(0).episode_id]
    file.write_bytes(whole + second)  # it lost its newline only
    assert len(list(read_index(tmp_path))) == 2
    file.write_bytes(b'{"schema": 1}\n' + whole)
    with pytest.raises(StorageError, match=r"line 1 cannot be read: episode_id is missing"):
        list(read_index(tmp_path))


IDS = st.integers(0, 2**63 - 1) | st.integers(0, 200_000) | at_limit(2**31)
LOGPROBS = st.floats(max_value=0.0) | st.floats(max_value=0.0, width=32)


def reply(ids: list[int], logprobs: list[float], mask: list[int] | None = None) -> Segment:
    return Segment(
        kind=SegmentKind.MODEL,
        turn=0,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
    )


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[float], list[int]]:
    ids = draw(st.lists(IDS, max_size=8))
    count = len(ids)
    logprobs = draw(st.lists(LOGPROBS, min_size=count, max_size=count))
    return ids, logprobs, draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))


@quick
@given(rows())
def test_segment_reads_back_exactly_what_was_recorded(
    row: tuple[list[int], list[float], list[int]],
) -> None:
    ids, logprobs, mask = row
    segment = reply(ids, logprobs, mask)
    for one in (segment, pickle.loads(pickle.dumps(segment)), replace(segment, reward=1.0)):
        assert one.wire_ids == one.train_ids == tuple(ids)
        assert one.loss_mask == tuple(mask)
        assert [value.hex() for value in one.logprobs] == [value.hex() for value in logprobs]
        assert all(type(value) is int for value in (*one.train_ids, *one.loss_mask))
        assert all(type(value) is float for value in one.logprobs)
    assert column_of((segment, segment), "logprobs") == (*segment.logprobs, *segment.logprobs)
    if not any(map(math.isnan, logprobs)):
        assert segment == pickle.loads(pickle.dumps(segment))
        assert hash(segment) == hash(reply(ids, logprobs, mask))


def test_segments_of_other_values_differ() -> None:
    one = reply([1, 2], [-0.5, -0.25])
    assert one != reply([1, 3], [-0.5, -0.25])
    assert one != reply([1, 2], [-0.5, -0.25 - 1e-12])
    assert one != reply([1, 2], [-0.5, -0.25], [0, 1])
    assert one == reply([1, 2], [-0.5, -0.25], [1, 1])


@pytest.mark.parametrize("width", [32, 64])
def test_segment_takes_at_most_16_bytes_per_token(width: int) -> None:
    count = 4096
    third = -1 / 3 if width == 64 else float(np.float32(-1 / 3))
    segment = reply([150_000] * count, [third] * count)
    arrays = {id(one): one for one in vars(segment).values() if isinstance(one, np.ndarray)}
    assert sum(map(sys.getsizeof, arrays.values())) <= count * 16
    assert arrays[id(segment.array("logprobs"))].itemsize * 8 == width
    assert sum(map(sys.getsizeof, arrays.values())) <= count * (4 + width // 8) + 256


def test_arrays_of_a_segment_cannot_be_changed() -> None:
    segment = example().segments[1]
    with pytest.raises(ValueError, match="read-only"):
        segment.array("train_ids")[0] = 7


def test_context_stores_neither_mask_nor_log_probabilities() -> None:
    prompt = replace(example().segments[0], loss_mask=None, logprobs=None)
    assert prompt == example().segments[0]
    assert prompt.loss_mask == (0,) * prompt.token_count
    assert prompt.logprobs == (0.0,) * prompt.token_count
    assert prompt.array("logprobs").tolist() == list(prompt.logprobs)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("train_ids", (1.5, 2)),
        ("train_ids", (10**30, 2)),
        ("wire_ids", ("1", 2)),
        ("wire_ids", (None, 2)),
        ("logprobs", ("none", -1.0)),
        ("logprobs", (None, -1.0)),
    ],
)
def test_segment_refuses_values_of_the_wrong_type(column: str, value: Any) -> None:
    segment = reply([1, 2], [-1.0, -2.0])
    with pytest.raises(LedgerFault, match="must be"):
        replace(segment, **{column: value})
