"""The suite itself: expectations, refusals, recordings, and how adapters reach it."""

import importlib.util
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.codecs import vision_codec
from fakes.command import run_envkit
from fakes.deliveries import on_row, projection, shift_mask
from fakes.trajectories import Context, Reply, build, picture, quick, trajectories
from hypothesis import given

from envkit.errors import (
    ConfigurationError,
    ContractError,
    MissingDependencyError,
    StorageError,
    UnknownNameError,
)
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import (
    StopReason,
    Trajectory,
    check_trajectory,
    merge_rows,
    save,
    step_rows,
    verify_file,
)
from envkit_conformance import (
    AdapterConformance,
    ConformanceResult,
    Content,
    DeliveredRow,
    Projection,
    Shape,
    check,
    load_adapters,
    load_recordings,
    registry,
    run_suite,
    save_recordings,
    shipped_recordings,
)
from envkit_conformance.recordings import FEATURES_FILE

ROOT = Path(__file__).parents[3]

FOLDER = ROOT / "adapters" / "envkit_conformance" / "recordings"

RECORDINGS = shipped_recordings()

BY_NAME = {one.name: one for one in RECORDINGS}


@quick
@given(trajectories())
def test_merge_of_single_rows_equals_merged_rows_token_for_token(trajectory: Trajectory) -> None:
    single = step_rows(trajectory, filler_id=0)
    merged, tally = merge_rows(single)
    assert merged == step_rows(trajectory, filler_id=0, merge=True)
    assert tally.merged == len(single) - len(merged)


def test_core_agrees_with_itself_on_every_recording_and_shape() -> None:
    (core,) = load_adapters(("core",))
    outcomes = run_suite(core.members, RECORDINGS)
    assert len(outcomes) == 3 * len(RECORDINGS)
    refused = [one for one in outcomes if one.verdict is ConformanceResult.REFUSED]
    assert [(one.projection, one.recording) for one in refused] == [
        ("core-whole", name)
        for name in ("thinking_rerender", "compaction", "dropped_screenshot", "sub_agent", "agent")
    ]
    assert all(one.verdict is ConformanceResult.PASS for one in outcomes if one not in refused)


# ---- the recordings


def test_recordings_cover_everything_that_is_promised() -> None:
    stops = {one.trajectory.stop_reason for one in RECORDINGS}
    # Only an agent behind the gateway ends with too many sequences: no engine is asked then.
    assert {one for one in StopReason if one.is_truncation} - {StopReason.MAX_SEQUENCES} < stops
    assert {StopReason.TERMINATED, StopReason.ENV_FAULT, StopReason.ENGINE_FAULT} < stops
    by_turn = [len(s.images) for s in BY_NAME["images"].trajectory.segments if s.images]
    assert by_turn == [1, 2, 1]
    calls = [turn.tool_call for turn in BY_NAME["tool_calls"].trajectory.turns]
    assert any(calls)
    assert not BY_NAME["env_fault_at_reset"].trajectory.segments
    assert len(BY_NAME["env_fault_in_step"].trajectory.turns) == 2
    (resumed,) = step_rows(BY_NAME["abort_resumed"].trajectory, filler_id=0, merge=True)
    assert resumed.weight_versions == ("3", "3", "4", "4", "4")
    assert resumed.turns == (0, 1, 2, 3)
    assert len(BY_NAME["thinking_keep"].trajectory.sequences()) == 1
    assert len(BY_NAME["thinking_rerender"].trajectory.sequences()) == 3
    assert BY_NAME["thinking_rerender"].contents == {Content.SEQUENCES}
    assert _reasons("compaction") == ["summarise"] * 3
    assert _reasons("dropped_screenshot") == ["keep_last_images"]
    assert _reasons("sub_agent") == ["sub_agent", "main"]
    assert _reasons("agent") == [
        "other_system_prompt", "other_system_prompt", "branch", "branch", "rewritten_history",
    ]  # fmt: skip
    agent = BY_NAME["agent"].trajectory
    dropped = agent.metadata["agent"]["untrained"]
    assert set(dropped) == {"side", "superseded"}
    leaves = [one.trajectory for one in RECORDINGS if one.name.startswith("fork_")]
    assert [len(leaf.own_turns) for leaf in leaves] == [4, 3, 2, 2]
    assert len({leaf.group_id for leaf in leaves}) == 1
    for name in ("compaction", "dropped_screenshot", "sub_agent", "fork_first", "fork_of_fork"):
        trajectory = BY_NAME[name].trajectory
        rows = step_rows(trajectory, filler_id=0, merge=True)
        assert sum(sum(row.loss_mask) for row in rows) == trajectory.sampled_token_count
    rows = step_rows(agent, filler_id=0, merge=True)
    trained = sum(sum(row.loss_mask) for row in rows)
    assert trained == agent.sampled_token_count - sum(dropped.values())


def _reasons(name: str) -> list[str]:
    return [branch.reason for branch in BY_NAME[name].trajectory.branches]


def test_recordings_are_sound_and_hold_their_features() -> None:
    report = verify_file(FOLDER)
    assert report.is_sound, report
    for one in RECORDINGS:
        assert check_trajectory(one.trajectory) == ()
        assert one.has_features
        for segment in one.trajectory.segments:
            expanded = sum(feature.token_count - 1 for feature in segment.features)
            assert len(segment.train_ids) - len(segment.wire_ids) == expanded


def test_recordings_have_log_probabilities_that_a_neighbour_does_not_have() -> None:
    """A column that is shifted by one cannot look like itself."""
    for one in RECORDINGS:
        for row in step_rows(one.trajectory, filler_id=0):
            if row.turns:
                assert all(row.logprobs)
                assert not any(a == b for a, b in zip(row.logprobs, row.logprobs[1:], strict=False))


def test_recordings_are_small_enough_to_ship() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 300_000


def test_recorded_rows_equal_what_the_file_says_by_hand() -> None:
    """An oracle that knows nothing of the projections: it reads the JSON."""
    core = load_adapters(("core",))[0].members[0]
    for line in (FOLDER / "trajectories.jsonl").read_text().splitlines():
        data = json.loads(line)
        segments = data["segments"]
        starts = [n for n, s in enumerate(segments) if s["kind"] == "prompt"]
        if len(starts) != 1 or len(segments) < 2:
            continue
        (row,) = core.deliver(BY_NAME[data["metadata"]["recording"]].trajectory, filler_id=0)
        shared = data.get("origin", {}).get("segments", 1)  # of a fork: its parent's
        masks: list[int] = []
        for segment in segments[shared:]:
            is_model = segment["kind"] == "model" and data["fault"] is None
            masks += [int(is_model)] * len(segment["train_ids"])
        if segments[-1]["kind"] == "observation":
            pytest.fail(f"{data['episode_id']} ends with an observation")
        assert list(row.prompt_ids) == [i for s in segments[:shared] for i in s["train_ids"]]
        assert list(row.response_ids) == [i for s in segments[shared:] for i in s["train_ids"]]
        assert list(row.loss_mask) == masks
        assert list(row.logprobs or ()) == [v for s in segments[shared:] for v in s["logprobs"]]
        assert row.reward == data["reward"]


@pytest.mark.slow
async def test_recordings_are_reproduced_by_the_script(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location(
        "record_conformance", ROOT / "scripts" / "record_conformance.py"
    )
    assert found is not None
    assert found.loader is not None
    script: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    save_recordings(await script.record_all(), tmp_path)
    lines = (tmp_path / "trajectories.jsonl").read_text()
    assert lines == (FOLDER / "trajectories.jsonl").read_text()
    with np.load(tmp_path / FEATURES_FILE) as new, np.load(FOLDER / FEATURES_FILE) as shipped:
        assert set(new) == set(shipped)
        assert all(np.array_equal(new[key], shipped[key]) for key in new)


def test_features_come_back_from_a_folder_of_recordings(tmp_path: Path) -> None:
    save_recordings([BY_NAME["images"].trajectory], tmp_path)
    (again,) = load_recordings(tmp_path)
    before, after = (one.trajectory.tensors() for one in (BY_NAME["images"], again))
    assert set(before) == set(after) == {"pixel_values", "image_grid_thw"}
    assert all(np.array_equal(before[key], after[key]) for key in before)
    (feature,) = again.trajectory.segments[0].features
    assert not feature.tensors["pixel_values"].flags.writeable  # adapters share it


def test_a_run_without_features_gets_them_from_a_model(tmp_path: Path) -> None:
    run = build([Reply()], prompt=Context(images=(picture(1, size=28),)))
    save(run, tmp_path / "run.jsonl")
    (bare,) = load_recordings(tmp_path / "run.jsonl")
    assert not bare.has_features
    (full,) = load_recordings(tmp_path / "run.jsonl", process=vision_codec().image_features)
    assert full.has_features
    assert "pixel_values" in full.trajectory.tensors()
    assert (full.name, full.about) == ("episode-0", "an episode of fake-v0")
    assert full.filler_id == 103


def test_aborted_trajectories_are_left_out(tmp_path: Path) -> None:
    save(build([Reply()], stop_reason=StopReason.ABORTED), tmp_path / "run.jsonl")
    with pytest.raises(ConfigurationError, match="at least one trajectory that was not aborted"):
        load_recordings(tmp_path / "run.jsonl")


def test_features_of_two_processors_are_refused_in_one_folder(tmp_path: Path) -> None:
    def made(value: float) -> Trajectory:
        run = build([Reply()], prompt=Context(images=(picture(1),)))
        feature = ImageFeatures(tensors={"pixel_values": np.full((1, 2), value)}, token_count=4)
        first = replace(run.segments[0], features=(feature,))
        return replace(run, segments=(first, *run.segments[1:]))

    with pytest.raises(ConfigurationError, match="two kinds of features"):
        save_recordings([made(0.5), made(0.25)], tmp_path)


def test_broken_features_are_a_storage_error(tmp_path: Path) -> None:
    save_recordings([BY_NAME["images"].trajectory], tmp_path)
    (tmp_path / FEATURES_FILE).write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(StorageError, match=FEATURES_FILE):
        load_recordings(tmp_path)


# ---- refusals, failures, missing trainers


def text_only(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
    if any(segment.images for segment in trajectory.segments):
        raise ConfigurationError("this trainer takes no images; use the other adapter")
    return projection(Shape.WHOLE).deliver(trajectory, filler_id=filler_id)


def subject(deliver: Any, *cannot: Content, shape: Shape = Shape.WHOLE) -> Projection:
    return Projection(name="mine", shape=shape, deliver=deliver, cannot_carry=frozenset(cannot))


def test_declared_refusal_with_a_clear_error_is_not_a_failure() -> None:
    declared = subject(text_only, Content.IMAGES)
    refused = check(declared, BY_NAME["images"])
    assert (refused.verdict, refused.message) == (
        ConformanceResult.REFUSED,
        "this trainer takes no images; use the other adapter",
    )
    assert check(declared, BY_NAME["text"]).verdict is ConformanceResult.PASS


def test_refusal_that_was_not_declared_fails() -> None:
    outcome = check(subject(text_only), BY_NAME["images"])
    assert outcome.verdict is ConformanceResult.FAIL
    assert str(outcome) == (
        "mine, recording images: fail: this trainer takes no images; use the other adapter"
    )


def test_adapter_that_drops_images_instead_of_refusing_fails() -> None:
    def drops(rows: list[DeliveredRow]) -> list[DeliveredRow]:
        return [replace(row, tensors={}) for row in rows]

    dropping = projection(Shape.WHOLE, drops).deliver
    outcome = check(subject(dropping, Content.IMAGES), BY_NAME["images"])
    assert outcome.verdict is ConformanceResult.FAIL
    assert outcome.message == (
        "delivered 1 rows of a trajectory with images, which it declares it cannot carry; "
        "refuse with a ConfigurationError instead"
    )


def test_failure_with_images_may_be_refused_or_delivered_masked() -> None:
    failure = BY_NAME["env_fault_in_step"]
    assert check(subject(text_only, Content.IMAGES), failure).verdict is ConformanceResult.REFUSED
    masked = subject(projection(Shape.WHOLE).deliver, Content.IMAGES)
    assert check(masked, failure).verdict is ConformanceResult.PASS


def test_failure_gives_no_row_only_where_that_is_declared() -> None:
    failure = BY_NAME["env_fault_in_step"]
    none = subject(projection(Shape.WHOLE, lambda rows: []).deliver)
    assert check(none, failure).verdict is ConformanceResult.FAIL
    omitting = replace(none, omits_unscored=True)
    assert check(omitting, failure).verdict is ConformanceResult.PASS
    assert check(omitting, BY_NAME["text"]).message == "1 row expected, got 0"
    kept = replace(subject(projection(Shape.WHOLE).deliver), omits_unscored=True)
    assert check(kept, failure).message == "1 rows of a failure, none expected"


def test_adapter_that_flattens_several_sequences_fails() -> None:
    def flat(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        rows = step_rows(trajectory, filler_id=filler_id)
        return [DeliveredRow.of(rows[-1])]

    outcome = check(subject(flat), BY_NAME["thinking_rerender"])
    assert outcome.verdict is ConformanceResult.FAIL
    assert outcome.message.startswith(
        "delivered 1 rows although the core has none of shape 'whole'"
    )


@pytest.mark.parametrize("cannot", [(), (Content.IMAGES,)])
def test_crash_of_an_adapter_is_a_failure_with_its_message(cannot: tuple[Content, ...]) -> None:
    def crash(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        raise KeyError("pixel_values")

    outcome = check(subject(crash, *cannot), BY_NAME["images"])
    assert outcome.verdict is ConformanceResult.FAIL
    assert outcome.message.startswith("raised KeyError: 'pixel_values'")
    assert ("refuse with a ConfigurationError" in outcome.message) is bool(cannot)


def test_missing_trainer_is_neither_a_pass_nor_a_failure() -> None:
    def absent(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        raise MissingDependencyError.for_extra("envkit_mine", "mine", "mine")

    outcome = check(subject(absent), BY_NAME["text"])
    assert outcome.verdict is ConformanceResult.NOT_INSTALLED
    assert "pip install 'envkit-rl[mine]'" in outcome.message


def test_numbers_rounded_to_single_precision_are_equal() -> None:
    logprob = -0.1  # not exact in single precision
    run = build([Reply(logprobs=(logprob, -0.3, -2.7), reward=0.7)])
    one = replace(BY_NAME["text"], trajectory=run)

    def rounded(rows: list[DeliveredRow]) -> list[DeliveredRow]:
        values = np.asarray(rows[0].logprobs, np.float32).tolist()
        return [replace(rows[0], logprobs=values, reward=float(np.float32(0.7)))]

    def coarse(rows: list[DeliveredRow]) -> list[DeliveredRow]:
        values = np.asarray(rows[0].logprobs, np.float16).tolist()
        return [replace(rows[0], logprobs=values)]

    assert check(projection(Shape.WHOLE, rounded), one).verdict is ConformanceResult.PASS
    assert "log-probability" in check(projection(Shape.WHOLE, coarse), one).message


def test_rows_in_call_order_are_told_from_rows_in_order_of_sequences() -> None:
    one = next(one for one in RECORDINGS if one.name == "agent")
    calls, steps = projection(Shape.CALLS), projection(Shape.STEPS)
    assert {check(path, one).verdict for path in (calls, steps)} == {ConformanceResult.PASS}
    crossed = replace(calls, deliver=steps.deliver), replace(steps, deliver=calls.deliver)
    assert all("order of the rows" in check(path, one).message for path in crossed)


def test_suite_runs_every_projection_with_every_recording() -> None:
    pair = [subject(text_only, Content.IMAGES), projection(Shape.STEPS)]
    outcomes = run_suite(pair, RECORDINGS[:3])
    assert [(one.projection, one.recording) for one in outcomes] == list(
        chain.from_iterable([(p.name, r.name) for r in RECORDINGS[:3]] for p in pair)
    )


pytest_plugins = ["pytester"]

HERE = "test_conformance_adapters_points"

GOOD = projection(Shape.STEPS)

BAD = projection(Shape.WHOLE, on_row(0, shift_mask(-1)))


def several() -> list[Any]:
    """Return projections, as the function of an entry point may."""
    return [GOOD, BAD]


def absent() -> list[Any]:
    raise ModuleNotFoundError("No module named 'trainer'", name="trainer")


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install entry points that name this module's objects."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    entries = [
        EntryPoint(name=name, value=f"{HERE}:{value}", group=registry.GROUP)
        for name, value in (("good", "GOOD"), ("both", "several"), ("gone", "absent"))
    ]
    monkeypatch.setattr(registry, "entry_points", _installed(entries))


def _installed(entries: list[EntryPoint]) -> Callable[..., list[EntryPoint]]:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [entry for entry in entries if entry.group == group]

    return entry_points


def test_adapters_are_found_by_entry_point_and_the_core_is_always_there(points: None) -> None:
    found = {one.name: one for one in load_adapters()}
    assert list(found) == ["core", "both", "gone", "good"]
    assert [one.name for one in found["core"].members] == [
        "core-whole",
        "core-steps",
        "core-merged",
    ]
    assert found["good"].members == (GOOD,)
    assert found["both"].members == (GOOD, BAD)
    assert (found["gone"].members, found["gone"].missing) == (
        (),
        "No module named 'trainer'",
    )


def test_unknown_adapter_names_the_nearest(points: None) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'good'"):
        load_adapters(("goood",))


@pytest.mark.parametrize(
    ("value", "message"),
    [("HERE", "must hold Projections, got str"), ("no_such", "fails to import: AttributeError")],
)
def test_entry_point_without_projection_is_refused(points: None, value: str, message: str) -> None:
    entry = EntryPoint(name="odd", value=f"{HERE}:{value}", group=registry.GROUP)
    with pytest.raises(ContractError, match=message):
        load_adapters(("odd",), entries=[entry])


def test_declared_entry_points_name_modules_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points: dict[str, str] = project["entry-points"].get(registry.GROUP, {})
    for name, value in points.items():
        module, _, attribute = value.partition(":")
        assert (ROOT / "adapters" / module.replace(".", "/")).with_suffix(".py").is_file(), value
        assert attribute == "PROJECTIONS"
        assert module == f"envkit_{name}.conformance"
    plugin: dict[str, str] = project["entry-points"]["pytest11"]
    assert plugin == {"envkit_conformance.pytest_plugin": "envkit_conformance.pytest_plugin"}


# ---- the command


def test_command_shows_a_table_and_succeeds(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "core", "--adapter", "good")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["recording", "core-whole", "core-steps", "core-merged", "planted"]
    assert ["thinking_rerender", "refused", "pass", "pass", "pass"] in [x.split() for x in lines]
    count = len(shipped_recordings())
    assert lines[-1] == (
        f"{4 * count} deliveries: {4 * count - 5} passed, 5 refused as declared, 0 failed"
    )


def test_command_names_the_first_difference_and_fails(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "both")
    assert shown.code == 1
    assert (
        "planted, recording text: fail: mask differs at response token 17: expected 1, got 0; "
        "the mask is shifted left by 1"
    ) in shown.out.splitlines()


def test_command_says_what_is_not_installed(points: None) -> None:
    shown = run_envkit("conformance", "--adapter", "gone")
    assert shown.code == 1  # it was asked for by name
    assert "gone: not installed (No module named 'trainer')" in shown.out
    everything = run_envkit("conformance", "--json")
    data = json.loads(everything.out)
    assert data["not_installed"] == {"gone": "No module named 'trainer'"}
    assert {one["projection"] for one in data["outcomes"]} > {"core-whole", "planted"}


def test_command_takes_other_recordings(points: None, tmp_path: Path) -> None:
    run = build([Reply()], prompt=Context(images=(picture(1),)))
    save(run, tmp_path / "trajectories.jsonl")
    shown = run_envkit("conformance", "--adapter", "core", "--recordings", tmp_path)
    assert shown.code == 0
    assert shown.out.splitlines()[1].split()[0] == "episode-0"
    assert "image tensors are not compared: add --model" in shown.err
    wrong = run_envkit("conformance", "--model", "anything")
    assert wrong.code == 2
    assert "--model needs --recordings" in wrong.last_error


# ---- the class and the plugin


class TestCore(AdapterConformance):
    """The class as a third party uses it: every recording is one test."""

    projection = load_adapters(("core",))[0].members[0]


THIRD_PARTY = """
from dataclasses import replace
from envkit_conformance import *

def deliver(trajectory, *, filler_id):
    (row,) = expected_rows(trajectory, Shape.WHOLE, filler_id=filler_id)
    return [replace(DeliveredRow.of(row), loss_mask=[1] * len(row.response_ids))]

class TestMine(AdapterConformance):
    projection = Projection(name="mine", shape=Shape.WHOLE, deliver=deliver)

def test_function(envkit_recording):
    assert envkit_recording.name
"""


@pytest.mark.slow
def test_third_party_gets_a_test_for_each_recording_and_the_difference(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    chosen = [one for one in shipped_recordings() if one.name in ("text", "turn_tokens")]
    save_recordings([one.trajectory for one in chosen], tmp_path / "own")
    pytester.makepyfile(test_mine=THIRD_PARTY)
    result = pytester.runpytest_subprocess(
        "-p",
        "envkit_conformance.pytest_plugin",
        f"--envkit-recordings={tmp_path / 'own'}",
        "-p",
        "no:cacheprovider",
    )
    result.assert_outcomes(passed=3, failed=1)
    text = result.stdout.str()
    assert "mine, recording text: fail: mask differs at response token 18" in text
