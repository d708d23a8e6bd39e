"""Cost of forks, rewrites and long episodes, by the benchmarks that publish it."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from fakes.branching import SUMMARY, rewritten

from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.trajectory import TurnRecord

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.slow
async def test_fork_holds_memory_for_its_own_turns_only(
    benchmark: Callable[[str], ModuleType],
) -> None:
    found = await benchmark("forks").measure(100_000, 16)
    assert found["trunk_tokens"] > 100_000
    assert found["trunk_mb"] > 2.5
    # A fork takes about 23 kB, a copy of one column of the trunk 400 kB. The bounds leave room for
    # what other threads of the test process allocate meanwhile.
    assert found["fork_kb"] < 100
    assert found["unplayed_fork_kb"] < 100
    assert found["tree_over_trunk"] < 1.9


async def test_keep_last_images_meets_its_goals_on_forty_turns_of_computer_use(
    benchmark: Callable[[str], ModuleType],
) -> None:
    found = await benchmark("histories").desktop(turns=40, episodes=1)
    kept = found["keep_3_drop_at_6"]
    assert kept["turns_with_images"] == 40
    assert 0 < kept["rewrites_per_turn_with_images"] <= 1 / 3
    assert kept["peak_images"] == 6
    assert found["append"]["peak_images"] == 40
    for count in (3, 6):
        assert found[f"exactly_{count}"]["peak_images"] == count
        assert kept[f"row_tokens_over_exactly_{count}"] <= 0.7
    assert len({one["sampled_tokens"] for one in found.values()}) == 1


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
