"""The sequences of a ledger: where they start, what they share, and who owns each token."""

from collections.abc import Sequence
from itertools import chain

import pytest

from envkit.errors import LedgerFault
from envkit.messages import message
from envkit.trajectory import Branch, Segment, SegmentKind
from envkit.trajectory.sequence import branch_history, sequences_of

PROMPT, MODEL, OBSERVATION = SegmentKind.PROMPT, SegmentKind.MODEL, SegmentKind.OBSERVATION
LINE = (PROMPT, MODEL, OBSERVATION, MODEL)


def ledger(*kinds: SegmentKind) -> tuple[Segment, ...]:
    """Return segments of which each has its index as its only id."""
    return tuple(
        Segment(
            kind=kind,
            turn=sum(one is MODEL for one in kinds[:number]),
            wire_ids=(number,),
            train_ids=(number,),
            logprobs=(-1.0,) if kind is MODEL else None,
        )
        for number, kind in enumerate(kinds)
    )


TREE = ledger(*LINE, OBSERVATION, MODEL, MODEL, PROMPT, MODEL)
BRANCHES = (
    Branch(segment=4, parent=0, at=2, reason="branch"),
    Branch(segment=6, parent=1, at=3, reason="branch"),
    Branch(segment=7, parent=None, reason="agent"),
)


def ids(segments: Sequence[Segment]) -> list[int]:
    return [one.train_ids[0] for one in segments]


def test_ledger_without_segments_has_no_sequence() -> None:
    assert sequences_of(()) == sequences_of((), shared=1) == ()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_line_is_one_sequence_without_a_parent(count: int) -> None:
    (whole,) = sequences_of(ledger(*LINE[:count]))
    assert whole.segments == whole.own == ledger(*LINE[:count])
    assert (whole.owned, whole.parent, whole.at) == (0, None, 0)
    assert whole.reason is whole.branch is None
    assert whole.train_ids() == tuple(range(count))


def test_branch_shares_the_start_of_its_parent_as_context_and_owns_the_rest() -> None:
    first, second, third, fourth = sequences_of(TREE, BRANCHES)
    assert ids(first.segments) == [0, 1, 2, 3]
    assert ids(second.segments) == [0, 1, 4, 5]
    assert ids(third.segments) == [0, 1, 4, 6]  # continues a branch, from its first token
    assert ids(fourth.segments) == [7, 8]
    for sequence, branch in zip((second, third, fourth), BRANCHES, strict=True):
        assert sequence.branch is branch
        assert sequence.owned == sequence.at == branch.at
        assert (sequence.parent, sequence.reason) == (branch.parent, branch.reason)
    masks = [[one.loss_mask[0] for one in each.segments] for each in (first, second, third)]
    assert masks == [[0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]


def test_order_in_which_branches_are_given_does_not_matter() -> None:
    assert sequences_of(TREE, BRANCHES[::-1]) == sequences_of(TREE, BRANCHES)


@pytest.mark.parametrize("shared", range(len(TREE) + 2))
def test_fork_owns_exactly_the_segments_after_those_of_its_parent(shared: int) -> None:
    found = sequences_of(TREE, BRANCHES, shared=shared)
    assert list(chain.from_iterable(ids(one.own) for one in found)) == [*range(len(TREE))][shared:]
    for one, (start, end, trunk) in zip(
        found, [(0, 4, 0), (4, 6, 2), (6, 7, 3), (7, 9, 0)], strict=True
    ):
        foreign = sum(number < shared for number in range(start, end))
        assert one.owned == trunk + foreign  # never beyond its own segments
        assert one.owned + len(one.own) == len(one.segments)


@pytest.mark.parametrize("shared", range(6))
def test_fork_of_one_sequence_owns_what_its_parent_does_not(shared: int) -> None:
    (whole,) = sequences_of(ledger(*LINE), shared=shared)
    assert whole.owned == min(shared, 4)
    assert ids(whole.own) == [0, 1, 2, 3][shared:]


def test_later_prompt_without_a_branch_replaces_the_sequence_before_it() -> None:
    segments = ledger(PROMPT, MODEL, PROMPT, MODEL, OBSERVATION, MODEL, PROMPT)
    first, second, third = sequences_of(segments)
    assert [ids(one.segments) for one in (first, second, third)] == [[0, 1], [2, 3, 4, 5], [6]]
    assert [(one.parent, one.at) for one in (second, third)] == [(0, 0), (1, 0)]
    assert second.branch == Branch(segment=2, parent=0)
    named = sequences_of(segments, (Branch(segment=4, parent=0, at=2, reason="branch"),))
    assert [(one.parent, one.at) for one in named[1:]] == [(0, 0), (0, 2), (2, 0)]
    unanswered = sequences_of(ledger(PROMPT, PROMPT, MODEL))
    assert [ids(one.segments) for one in unanswered] == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("branch", "rule"),
    [
        (Branch(segment=-1, parent=0, at=1), "must start at a segment from 1 to 4"),
        (Branch(segment=0, parent=0), "must start at a segment from 1 to 4"),
        (Branch(segment=5, parent=0), "must start at a segment from 1 to 4"),
        (Branch(segment=6, parent=0), "must start at a segment from 1 to 4"),
        (Branch(segment=4, parent=-1, at=1), "must be an earlier sequence"),
        (Branch(segment=4, parent=1, at=1), "must be an earlier sequence"),
        (Branch(segment=4, parent=0, at=-1), "share at most 4 segments"),
        (Branch(segment=4, parent=0, at=5), "share at most 4 segments"),
        (Branch(segment=4, parent=None, at=1), "share at most 0 segments"),
        (Branch(segment=4, parent=0, at=0), "start with a prompt if it shares nothing"),
        (Branch(segment=4, parent=None), "start with a prompt if it shares nothing"),
    ],
)
def test_branch_that_does_not_fit_the_ledger_is_refused(branch: Branch, rule: str) -> None:
    shown = f"{rule}.*segment={branch.segment}, parent={branch.parent}, at={branch.at}"
    with pytest.raises(LedgerFault, match=rf"^sequence 1: .*{shown}$"):
        sequences_of(ledger(*LINE, OBSERVATION), (branch,))


def test_branch_with_a_prompt_that_shares_something_is_refused() -> None:
    segments = ledger(PROMPT, MODEL, PROMPT, MODEL, PROMPT)
    with pytest.raises(LedgerFault, match=r"^sequence 2: .*prompt if it shares nothing"):
        sequences_of(segments, (Branch(segment=4, parent=0, at=1),))


@pytest.mark.parametrize("at", [1, 4])
def test_branch_may_share_from_one_to_all_segments_of_its_parent(at: int) -> None:
    for segments in (ledger(*LINE, OBSERVATION), ledger(*LINE, MODEL, MODEL)):
        branch = Branch(segment=4, parent=0, at=at)
        assert ids(sequences_of(segments, (branch,))[1].segments)[: at + 1] == [*range(at), 4]


def test_branch_may_start_at_the_second_segment() -> None:
    found = sequences_of(ledger(PROMPT, MODEL), (Branch(segment=1, parent=0, at=1),))
    assert [ids(one.segments) for one in found] == [[0], [0, 1]]


def test_two_branches_at_one_segment_are_refused() -> None:
    branch = Branch(segment=4, parent=0, at=1)
    with pytest.raises(LedgerFault, match="two branches start at the same segment"):
        sequences_of(ledger(*LINE, OBSERVATION), (branch, branch))


def test_history_of_a_branch_is_messages_by_index_and_messages_of_a_policy() -> None:
    spoken = tuple(message("user", str(number)) for number in range(3))
    note = message("user", "summary")
    branch = Branch(segment=4, parent=0, history=(0, note, 2))
    assert branch_history(branch, spoken) == (spoken[0], note, spoken[2])
    assert branch_history(Branch(segment=4, parent=0), spoken) == ()


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_history_of_a_branch_refuses_an_index_without_a_message(index: int) -> None:
    spoken = tuple(message("user", str(number)) for number in range(3))
    with pytest.raises(LedgerFault, match=f"refers to message {index}, but.*has only 3"):
        branch_history(Branch(segment=4, parent=0, history=(0, index)), spoken)
