"""Stored trees: sound ones verify, and `verify` names the line of an edited one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.trees import Sums, grow

from envkit.trajectory import Rule, read_trajectories, save, verify_file

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


async def test_old_records_without_branches_load(tmp_path: Path) -> None:
    (trunk, *_) = await grow(Sums)
    path = tmp_path / "trajectories.jsonl"
    save(trunk, path)
    assert not {"branches", "origin"} & json.loads(path.read_text()).keys()
