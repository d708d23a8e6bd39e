"""A fork holds memory for its own turns only, and counting turns reads none of them."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fakes.branching import SUMMARY, rewritten

from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.trajectory import TurnRecord


def benchmark(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


async def test_fork_holds_memory_for_its_own_turns_only() -> None:
    measure = benchmark("forks").measure
    small, large = await measure(2_000, 16), await measure(100_000, 64)
    assert large["trunk_tokens"] > 100_000
    assert large["trunk_mb"] > 2.5
    # 64 copies of one column of the trunk would be 400 kB each.
    assert large["fork_kb"] < 12
    assert large["unplayed_fork_kb"] < 8
    assert large["fork_kb"] < small["fork_kb"] * 1.3
    assert large["tree_over_trunk"] < 1.3


class Unread(list[TurnRecord]):
    """Refuses to be read through."""

    def __iter__(self) -> Iterator[TurnRecord]:
        raise AssertionError("all turns were read")


def test_counting_answered_turns_reads_no_earlier_turn() -> None:
    record = EpisodeRecord()
    record.turns = Unread()
    for turn in range(3):
        record.draft = TurnDraft(turn=turn, prompt_tokens=1)
        record.close_turn()
    assert record.played == 3


async def test_answered_turns_leave_summaries_out_after_a_resume() -> None:
    trajectory = await rewritten(SUMMARY)
    record = EpisodeRecord()
    record.take_over(trajectory, trajectory.segments)
    assert 0 < record.played == trajectory.step_count < len(record.turns)
    record.draft = TurnDraft(turn=record.turn, prompt_tokens=1, purpose="summarise")
    record.close_turn()
    assert record.played == trajectory.step_count
