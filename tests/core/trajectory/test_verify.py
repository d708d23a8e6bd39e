"""`verify_file`: sound files and trees pass, and every kind of tampering is caught by its line."""

import json
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref as weakref

import pytest
from fakes.command import run_envkit
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
from fakes.trees import Sums, grow
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit import image_files
from envkit.errors import StorageError
from envkit.image_files import DecodedImage
from envkit.images import Image
from envkit.tokens import SanityStatus
from envkit.trajectory import (
    Rule,
    StopReason,
    Trajectory,
    certify,
    read_trajectories,
    save,
    storage,
    verify,
    verify_file,
)
from envkit.trajectory.storage import StoredLine

Tamper = Callable[[dict[str, Any]], None]


def _rewrite(file: Path, tamper: Tamper) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tamper(rows[-1])
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@quick
@given(st.lists(trajectories(), min_size=1, max_size=2))
def test_verify_passes_what_was_saved(rows: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        named = [replace(row, group_id=None, episode_id=f"{n}") for n, row in enumerate(rows)]
        save(named, Path(folder) / "run.jsonl")
        report = verify_file(Path(folder) / "run.jsonl")
    assert report.problems == ()
    assert report.is_sound
    assert report.trajectories == len(rows)
    assert report.tokens == sum(len(s.train_ids) for row in rows for s in row.segments)


def test_verify_of_an_empty_file_is_not_sound(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("")
    report = verify_file(tmp_path / "run.jsonl")
    assert not report.is_sound
    assert str(report).endswith("0 images: nothing to verify")


def test_verify_counts_what_it_checked(tmp_path: Path) -> None:
    rows = [example(), example(1, stop_reason=StopReason.ENV_FAULT)]
    save(rows, tmp_path / "run.jsonl")
    report = verify_file(tmp_path / "run.jsonl")
    assert (report.trajectories, report.trained_tokens, report.images) == (2, 9, 3)
    assert str(report).endswith("2 trajectories, 70 tokens (9 trained), 3 images: all sound")


def test_verify_counts_what_the_run_could_not_compare(tmp_path: Path) -> None:
    equal, unchecked = SanityStatus.EQUAL, SanityStatus.UNCHECKED
    rows = [with_sanity(example(), equal, unchecked), with_sanity(example(1), equal, None)]
    save(rows, tmp_path / "run.jsonl")
    report = verify_file(tmp_path / "run.jsonl")
    assert (report.compared, report.unchecked) == (2, 1)
    assert report.is_sound
    shown = "6 images, 2 observations compared with a full render, 1 unchecked: all sound"
    assert str(report).partition("trained), ")[2][2:] == shown[2:]


def _segment(index: int, key: str, change: Callable[[Any], Any]) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        row["segments"][index][key] = change(row["segments"][index][key])

    return tamper


def _both_ids(row: dict[str, Any]) -> None:
    row["segments"][1]["wire_ids"][0] += 1
    row["segments"][1]["train_ids"][0] += 1


def _swap_images(row: dict[str, Any]) -> None:
    row["segments"][2]["images"].reverse()


def _drop_reply(row: dict[str, Any]) -> None:
    del row["segments"][-1]


def _forget(key: str) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        del row[key]

    return tamper


def _put(key: str, value: object) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        row[key] = value

    return tamper


def _turn(key: str, value: object) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        row["turns"][1][key] = value

    return tamper


TAMPERS: list[tuple[Tamper, Rule]] = [
    (_both_ids, Rule.CERTIFICATE),
    (_segment(1, "loss_mask", lambda mask: [0, *mask[1:]]), Rule.CERTIFICATE),
    (_segment(1, "loss_mask", lambda mask: [2, *mask[1:]]), Rule.READABLE),
    (_segment(1, "loss_mask", lambda mask: mask[1:]), Rule.READABLE),
    (_segment(0, "loss_mask", lambda mask: [1, *mask[1:]]), Rule.READABLE),
    (_segment(0, "logprobs", lambda values: [-1.0, *values[1:]]), Rule.READABLE),
    (_segment(1, "logprobs", lambda values: [-0.4, *values[1:]]), Rule.CERTIFICATE),
    (_segment(1, "logprobs", lambda values: [0.5, *values[1:]]), Rule.LOGPROBS),
    (_segment(1, "wire_ids", lambda ids: ids[1:]), Rule.READABLE),
    (_segment(1, "weight_version", lambda _: "9"), Rule.CERTIFICATE),
    (_segment(1, "reward", lambda _: 1.0), Rule.REWARD),
    (_segment(1, "turn", lambda _: 2), Rule.LEDGER),
    (_segment(2, "kind", lambda _: "prompt"), Rule.PREFIX),
    (_segment(2, "images", lambda images: images[1:]), Rule.IMAGES),
    (_segment(2, "train_ids", lambda ids: ids[1:]), Rule.READABLE),
    (_segment(2, "images", lambda images: [*images, images[0]]), Rule.IMAGES),
    (_swap_images, Rule.IMAGES),
    (_drop_reply, Rule.LEDGER),
    (_turn("prompt_tokens", 3), Rule.PREFIX),
    (_turn("response_tokens", 4), Rule.PREFIX),
    (_turn("observation_tokens", 4), Rule.PREFIX),
    (_turn("turn", 5), Rule.LEDGER),
    (_turn("reward", 2.0), Rule.REWARD),
    (_put("reward", 0.5), Rule.REWARD),
    (_put("reward", None), Rule.REWARD),
    (_put("reward", {"$float": "nan"}), Rule.REWARD),
    (_put("stop_reason", "aborted"), Rule.REWARD),
    (_put("stop_reason", "env_fault"), Rule.FAULT),
    (_put("stop_reason", "turn_tokens"), Rule.STOP),
    (_put("fault", {"where": "step", "kind": "timeout", "message": "late"}), Rule.FAULT),
    (_put("task", {"question": "another"}), Rule.CERTIFICATE),
    (_put("episode_id", "another"), Rule.CERTIFICATE),
    (_put("schema", 99), Rule.READABLE),
    (_put("messages", [{"role": "user"}]), Rule.READABLE),
    (_put("messages", []), Rule.IMAGES),
    (_forget("certificate"), Rule.READABLE),
    (_forget("turns"), Rule.READABLE),
]


@pytest.mark.parametrize(("tamper", "rule"), TAMPERS)
def test_verify_catches_tampering_and_names_the_line(
    tmp_path: Path, tamper: Tamper, rule: Rule
) -> None:
    file = tmp_path / "run.jsonl"
    save([example(0), example(1)], file)
    _rewrite(file, tamper)
    report = verify_file(file)
    assert rule in {problem.rule for problem in report.problems}, str(report)
    assert {problem.line for problem in report.problems} == {2}
    assert not report.is_sound
    assert f"line 2: [{rule}]" in str(report)


@quick
@given(trajectories(), st.data())
def test_verify_catches_any_changed_number_of_the_ledger(
    trajectory: Trajectory, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        save(trajectory, file)
        column = data.draw(st.sampled_from(("wire_ids", "train_ids", "loss_mask", "logprobs")))

        def tamper(row: dict[str, Any]) -> None:
            segment = data.draw(st.sampled_from(row["segments"]))
            place = data.draw(st.integers(0, len(segment[column]) - 1))
            value = segment[column][place]
            segment[column][place] = 1 - value if column == "loss_mask" else value * 2 + 1

        _rewrite(file, tamper)
        before = certify(trajectory)
        report = verify_file(file)
    # Doubling a log-probability of -1 and adding 1 gives the same number: not a change.
    if report.is_sound:
        assert column == "logprobs"
        assert -1.0 in {v for s in trajectory.segments for v in s.logprobs}
    assert before == certify(trajectory)


@quick
@given(st.data())
def test_verify_never_raises_on_a_damaged_line(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        save(example(), file)
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(content)
        verify_file(file)


def test_verify_names_a_cut_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    save([example(0), example(1)], file)
    file.write_bytes(file.read_bytes()[:-30])
    (problem,) = verify_file(file).problems
    assert problem.line == 2
    assert "cut off" in problem.message


def test_verify_names_images_that_are_missing_or_changed(tmp_path: Path) -> None:
    save([example(0), example(1)], tmp_path / "run.jsonl")
    folder = tmp_path / "images"
    (folder / f"{picture(1).sha256}.png").unlink()
    (folder / f"{picture(0).sha256}.png").write_bytes(picture(5).png_bytes())
    (folder / f"{picture(2).sha256}.png").write_bytes(b"no image")
    messages = [p.message for p in verify_file(tmp_path / "run.jsonl").problems]
    assert any(f"{picture(1).sha256}.png" in message for message in messages)
    assert any("its file was changed" in message for message in messages)
    assert any("not a readable image" in message for message in messages)


def test_verify_names_a_group_with_different_starts(tmp_path: Path) -> None:
    rows = [example(n, group_id="g", initial_observation_hash=("a", "a", "b")[n]) for n in range(3)]
    save(rows, tmp_path / "run.jsonl")
    (problem,) = verify_file(tmp_path / "run.jsonl").problems
    assert (problem.rule, problem.line) == (Rule.GROUP, 3)


def test_verify_says_where_no_file_is(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no trajectory file"):
        verify_file(tmp_path)


def test_verify_holds_the_pixels_of_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = tuple(Image.from_pil(PilImage.new("RGB", (71, 73), (n, 0, 0))) for n in range(20))
    hashes = [image.sha256 for image in drawn]
    save(build((Reply(),), prompt=Context(images=drawn)), tmp_path / "run.jsonl")
    del drawn
    decode, most = image_files.decode_image, list[int]()
    seen: list[weakref[PilImage.Image]] = []

    def counted(data: bytes) -> DecodedImage:
        most.append(sum(entry() is not None for entry in seen))
        found = decode(data)
        seen.append(weakref(found.picture))
        return found

    monkeypatch.setattr(image_files, "decode_image", counted)
    report = verify_file(tmp_path / "run.jsonl")

    assert (report.images, report.is_sound) == (20, True)
    assert len(most) == len(set(hashes)) == 20
    assert max(most) == 0  # the one before is gone when the next one is decoded


Lines = list[dict[str, Any]]


def without_parent(lines: Lines) -> None:
    del lines[0]


def doubled(lines: Lines) -> None:
    lines.append(lines[1])


def cycle(lines: Lines) -> None:
    lines[0]["origin"] = {**lines[1]["origin"], "episode_id": lines[1]["episode_id"]}


def self_parent(lines: Lines) -> None:
    lines[1]["origin"]["episode_id"] = lines[1]["episode_id"]


def no_origin(lines: Lines) -> None:
    lines[1]["origin"] = None


def owner(lines: Lines) -> None:
    first = next(one for one in lines[1]["segments"] if one["kind"] == "model")
    first["loss_mask"] = [1] * len(first["train_ids"])


def too_many_segments(lines: Lines) -> None:
    lines[1]["origin"]["segments"] = 99


def too_many_turns(lines: Lines) -> None:
    lines[1]["origin"]["turns"] = 99


def other_root(lines: Lines) -> None:
    lines[1]["origin"]["root"] = "elsewhere"


def other_token(lines: Lines) -> None:
    first = next(one for one in lines[0]["segments"] if one["kind"] == "model")
    first["train_ids"] = [first["train_ids"][0] + 1, *first["train_ids"][1:]]
    first["wire_ids"] = first["train_ids"]


async def stored(folder: Path, damage: Callable[[Lines], None]) -> Path:
    path = folder / "trajectories.jsonl"
    save(await grow(), path)
    lines: Lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["episode_id"] for line in lines][:2] == ["tree", "tree.1.1"]
    damage(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("damage", "line", "message"),
    [
        (without_parent, 1, "'tree' is not in the file"),
        (doubled, 5, "line 2"),
        (cycle, 1, "cycle"),
        (cycle, 2, "cycle"),
        (self_parent, 2, "forked from itself"),
        (owner, 2, "two owners"),
        (too_many_segments, 2, "got 99"),
        (too_many_turns, 2, "got 99"),
        (other_token, 2, "segment 1 differs from that of its origin 'tree'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_verify_names_the_line_of_an_edited_tree(
    tmp_path: Path, damage: Callable[[Lines], None], line: int, message: str
) -> None:
    path = await stored(tmp_path, damage)
    problems = verify_file(path).problems
    found = [one for one in problems if one.rule is Rule.TREE and one.line == line]
    assert any(message in one.message for one in found), "\n".join(map(str, problems))
    done = run_envkit("verify", path)
    assert done.code == 1
    assert message in done.out + done.err


@pytest.mark.parametrize("damage", [no_origin, other_root, cycle, owner, other_token])
async def test_certificate_shows_an_edited_line(
    tmp_path: Path, damage: Callable[[Lines], None]
) -> None:
    problems = verify_file(await stored(tmp_path, damage)).problems
    edited = 1 if damage in (cycle, other_token) else 2
    assert any(one.rule is Rule.CERTIFICATE and one.line == edited for one in problems)


async def test_truncated_tree_file_names_the_line_that_is_cut(tmp_path: Path) -> None:
    path = await stored(tmp_path, lambda _: None)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    (problem,) = verify_file(path).problems
    assert (problem.rule, problem.line) == (Rule.READABLE, 4)
    assert [one.episode_id for one in read_trajectories(path, skip_cut_line=True)] == [
        json.loads(line)["episode_id"] for line in lines[:3]
    ]
    path.write_bytes(lines[0][: len(lines[0]) // 2] + b"\n" + b"".join(lines[1:]))
    problems = verify_file(path).problems
    assert problems[0].line == 1
    assert {one.line for one in problems if one.rule is Rule.TREE} == {2, 3}


async def test_stored_tree_verifies(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    save(await grow(Sums), path)
    report = verify_file(path)
    assert report.is_sound, str(report)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        ("missing_parent", "is not in the file"),
        ("other_parent", "differs from"),
        ("cycle", "cycle"),
        ("owner", "two owners"),
    ],
)
async def test_verify_names_what_is_wrong_with_a_stored_tree(
    tmp_path: Path, damage: str, place: str
) -> None:
    trunk, fork, *_ = await grow(Sums)
    assert fork.origin is not None
    leaves = [trunk, fork]
    if damage == "missing_parent":
        leaves = [fork]
    elif damage == "other_parent":
        reply = trunk.segments[1]
        ids = (reply.train_ids[0] + 1, *reply.train_ids[1:])
        other = replace(reply, wire_ids=ids, train_ids=ids)
        leaves = [replace(trunk, segments=(trunk.segments[0], other, *trunk.segments[2:])), fork]
    elif damage == "cycle":
        loop = replace(fork.origin, episode_id=fork.episode_id)
        masked = (trunk.segments[0], *(one.as_context() for one in trunk.segments[1:]))
        leaves = [replace(trunk, origin=loop, segments=masked), fork]
    elif damage == "owner":
        first = fork.segments[1]
        trained = replace(first, loss_mask=None)
        leaves = [trunk, replace(fork, segments=(fork.segments[0], trained, *fork.segments[2:]))]
    path = tmp_path / "trajectories.jsonl"
    save(leaves, path)
    report = verify_file(path)
    found = [problem for problem in report.problems if problem.rule is Rule.TREE]
    assert found, str(report)
    assert place in found[0].message


def lines_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of every line that is parsed from now on."""
    numbers, parse = list[int](), storage.parse_line

    def counted(*args: Any) -> StoredLine:
        numbers.append(args[1])
        return parse(*args)

    monkeypatch.setattr(storage, "parse_line", counted)
    return numbers


def test_verify_reads_each_line_once_and_hashes_no_lineage_without_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save([example(0), example(1)], tmp_path / "run.jsonl")
    numbers = lines_read(monkeypatch)
    monkeypatch.setattr(verify, "_digests", None)
    assert verify_file(tmp_path / "run.jsonl").is_sound
    assert numbers == [1, 2]


@pytest.mark.parametrize(
    ("order", "again"), [((0, 1, 2), [3]), ((1, 2, 0), []), ((2, 0, 1), [])], ids=str
)
async def test_verify_reads_only_parents_before_the_first_fork_again(
    order: tuple[int, ...], again: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = await grow(Sums)
    linear = [example(0), replace(leaves[0], stop_reason=StopReason.ABORTED, reward=None)]
    path = tmp_path / "trajectories.jsonl"
    save([*linear, *(leaves[n] for n in order)], path)
    numbers = lines_read(monkeypatch)
    report = verify_file(path)
    assert report.is_sound, str(report)
    assert numbers == [1, 2, 3, 4, 5, *again]


async def test_verify_takes_no_parent_from_a_file_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trajectories.jsonl"
    save(await grow(Sums), path)
    other = tmp_path / "other.jsonl"
    save([example(0), example(1)], other)

    def replaced(file: Path, numbers: Collection[int] | None = None) -> Iterator[StoredLine]:
        yield from storage.read_lines(file if numbers is None else other, numbers)

    monkeypatch.setattr(verify, "read_lines", replaced)
    problems = verify_file(path).problems
    assert problems
    assert all("its origin 'tree' is not in the file" in one.message for one in problems)


@quick
@given(trajectories())
def test_trained_tokens_are_those_of_the_rows(trajectory: Trajectory) -> None:
    assert trained_in(trajectory) == sum(sum(r.loss_mask) for r in trajectory.steps(merge=True))


async def test_trained_tokens_of_a_tree_are_those_of_the_rows(tmp_path: Path) -> None:
    leaves = [*await grow(Sums), *await grow()]
    for leaf in leaves:
        assert trained_in(leaf) == sum(sum(row.loss_mask) for row in leaf.steps(merge=True)) > 0


def trained_in(trajectory: Trajectory) -> int:
    with tempfile.TemporaryDirectory() as folder:
        save(trajectory, Path(folder) / "run.jsonl")
        return verify_file(Path(folder) / "run.jsonl").trained_tokens


async def test_old_records_without_branches_load(tmp_path: Path) -> None:
    (trunk, *_) = await grow(Sums)
    path = tmp_path / "trajectories.jsonl"
    save(trunk, path)
    assert not {"branches", "origin"} & json.loads(path.read_text()).keys()
