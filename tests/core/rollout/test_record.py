"""What the record of a running episode keeps, and what it leaves out of its trajectory."""

from dataclasses import replace
from typing import Any

import pytest

from envkit.env import Step
from envkit.errors import EnvFault, FaultKind
from envkit.messages import Message, message
from envkit.rollout import EpisodeSpec, Generation
from envkit.rollout.engine import FinishReason
from envkit.rollout.record import EpisodeRecord, Rewrite, TurnDraft
from envkit.tokens import Encoded, SanityStatus
from envkit.trajectory import FaultPlace, SegmentKind, StopReason, Trajectory, TurnRecord
from envkit.trajectory.sequence import Branch, Origin

SPEC = EpisodeSpec(
    env_id="env", seed=5, episode_id="e", group_id="g", metadata={"note": 1}, task={"n": 1}
)
OBSERVATION = Encoded(wire_ids=(7, 8), train_ids=(7, 8), neutralised=3)
PROMPT = Encoded(wire_ids=(1, 2, 3), train_ids=(1, 2, 3), is_prompt=True)


def step(*, reward: float = 0.5, **info: Any) -> Step:
    observation: Any = {"text": "seen", "images": (), "role": "user"}
    return Step(observation, reward, False, False, info)


def generation(**changes: Any) -> Generation:
    values: dict[str, Any] = {
        "token_ids": (5, 6),
        "logprobs": (-1.0, -2.0),
        "finish_reason": FinishReason.STOP,
        "prompt_tokens": 9,
        "weight_version": "4",
        **changes,
    }
    return Generation(**values)


def reply(record: EpisodeRecord, text: str = "say", *, finish: str = "stop") -> TurnDraft:
    """Start a turn with a reply of two tokens."""
    turn = record.turn
    draft = record.draft = TurnDraft(turn=turn, prompt_tokens=record.ledger.train_length)
    record.ledger.add_reply(
        (5, 6), (-1.0, -2.0), turn=turn, finish_reason=finish, weight_version="4", extras={}
    )
    draft.response_text = text
    record.say(message("assistant", text))
    return draft


def answer(record: EpisodeRecord, *, reward: float = 0.5, seconds: float = 0.25) -> None:
    """Complete the turn in progress with an observation."""
    assert record.draft is not None
    record.draft.step, record.draft.step_hash = step(reward=reward), f"hash {record.turn}"
    record.say(message("user", f"seen {record.turn}"))
    record.add_observation(OBSERVATION, seconds)
    record.close_turn()


def begun(turns: int = 0) -> EpisodeRecord:
    """Return a record with a prompt and some answered turns."""
    record = EpisodeRecord()
    record.task, record.reset_info = {"n": 1}, {"info": 2}
    record.initial_observation_hash = "start"
    record.say(message("user", "begin"))
    record.ledger.start(PROMPT, turn=0)
    for _ in range(turns):
        reply(record)
        answer(record)
    return record


def ask(record: EpisodeRecord, *, purpose: str = "summary") -> None:
    """Ask the model in a turn that the environment never sees, and start a sequence after it."""
    record.before_question = (
        len(record.ledger.segments), len(record.turns), list(record.messages),
    )  # fmt: skip
    record.say(message("user", "Summarise."))
    draft = reply(record, "a summary")
    draft.purpose = purpose
    rewrite = record.rewrite([record.messages[0], message("user", "a summary")], purpose)
    record.add_observation(PROMPT, 0.0, rewrite)
    record.close_turn()


def ended(record: EpisodeRecord, reason: StopReason = StopReason.TERMINATED) -> Trajectory:
    return record.trajectory(reason, SPEC, env_restarts=2, engine="engine")


def texts(messages: Any) -> list[str]:
    return [str(entry["content"]) for entry in messages]


# Drafts of turns.


def test_record_shows_the_codecs_own_tools_until_others_are_given() -> None:
    assert EpisodeRecord().tools is None


def test_draft_of_a_turn_that_never_began_is_an_empty_record() -> None:
    record = TurnDraft(turn=3, prompt_tokens=40).finish()
    assert record == TurnRecord(turn=3, prompt_tokens=40)
    cut = TurnDraft(turn=3, prompt_tokens=40, response_tokens=2, purpose="summary").finish()
    assert cut == TurnRecord(turn=3, prompt_tokens=40, response_tokens=2, purpose="summary")


def test_draft_adds_up_what_the_engine_reports() -> None:
    draft = TurnDraft(turn=0, prompt_tokens=40, response_tokens=1)
    draft.add_generation(generation(cached_tokens=30, queue_seconds=0.5), 1.0)
    draft.add_generation(
        generation(
            finish_reason=FinishReason.LENGTH,
            weight_version="5",
            queue_seconds=0.25,
            cached_tokens=20,
        ),
        2.0,
    )
    assert draft.finish() == TurnRecord(
        turn=0,
        prompt_tokens=40,
        response_tokens=5,
        cached_tokens=20,
        queue_seconds=0.75,
        generate_seconds=3.0,
        finish_reason="length",
        weight_version="5",
    )


@pytest.mark.parametrize(("counted", "expected"), [(9, 9), (0, 0), (None, 0)])
def test_draft_takes_the_counts_of_an_engine_that_returns_text(
    counted: int | None, expected: int
) -> None:
    draft = TurnDraft(turn=0, prompt_tokens=40, response_tokens=1)
    told = generation(
        token_ids=(), logprobs=(), text="said", text_tokens=7, prompt_tokens=counted
    )  # fmt: skip
    draft.add_generation(told, 1.0)
    found = draft.finish()
    assert (found.prompt_tokens, found.response_tokens) == (expected, 7)


def test_draft_keeps_the_step_and_the_observation() -> None:
    draft = TurnDraft(turn=0, prompt_tokens=1)
    call = {"name": "look"}
    draft.step, draft.step_hash = step(tool_call=call, parse_error="bad"), "hash"
    draft.add_observation(OBSERVATION, 0.5)
    draft.add_observation(OBSERVATION, 0.25)
    found = draft.finish()
    assert (found.reward, found.observation_hash, found.tool_call) == (0.5, "hash", call)
    assert (found.parse_error, found.info) == ("bad", {"tool_call": call, "parse_error": "bad"})
    assert (found.observation_tokens, found.neutralised) == (2, 3)
    assert found.encode_seconds == 0.75


# Turns and messages.


def test_turn_counts_every_reply_and_played_only_those_of_the_environment() -> None:
    record = begun()
    assert (record.turn, record.played) == (0, 0)
    reply(record)
    assert (record.turn, record.played) == (0, 0)
    answer(record)
    assert (record.turn, record.played, record.draft) == (1, 1, None)
    ask(record)
    assert (record.turn, record.played) == (2, 1)
    record.close_turn()
    assert (record.turn, record.played) == (2, 1)


def test_observation_belongs_to_the_turn_of_the_reply_before_it() -> None:
    record = begun(1)
    assert record.turns[0].observation_tokens == 2
    assert record.turns[0].encode_seconds == 0.25
    assert [(one.kind, one.turn) for one in record.ledger.segments] == [
        (SegmentKind.PROMPT, 0), (SegmentKind.MODEL, 0), (SegmentKind.OBSERVATION, 1),
    ]  # fmt: skip


def test_observation_after_a_closed_turn_is_recorded_in_the_last_turn() -> None:
    record = begun(1)
    reply(record)
    assert record.draft is not None
    record.draft.encode_seconds = 1.0
    record.close_turn()
    before = record.turns[0]
    record.add_observation(OBSERVATION, 0.5)
    record.note_sanity(SanityStatus.DIFFERENT)
    assert record.turns[0] is before
    assert len(record.turns) == 2
    assert record.turns[1].turn == 1
    assert record.turns[1].observation_tokens == 2
    assert record.turns[1].encode_seconds == 1.5
    assert record.turns[1].sanity is SanityStatus.DIFFERENT
    assert record.ledger.segments[-1].turn == 2


def test_sanity_of_an_observation_belongs_to_the_turn_in_progress() -> None:
    record = begun(1)
    reply(record)
    record.note_sanity(SanityStatus.EQUAL)
    answer(record)
    assert [turn.sanity for turn in record.turns] == [None, SanityStatus.EQUAL]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_unanswered_messages_are_those_after_the_last_reply(count: int) -> None:
    record = EpisodeRecord()
    waiting = [message("user", f"{n}") for n in range(count)]
    for entry in waiting:
        record.say(entry)
    assert record.unanswered() == tuple(waiting)
    for role in ("assistant", "user", "assistant"):
        record.messages.insert(0, message(role, "earlier"))  # pyright: ignore[reportArgumentType]
    assert record.unanswered() == tuple(waiting)
    record.messages = [message("assistant", "first")]
    assert record.unanswered() == ()


def test_rewritten_view_follows_the_conversation_without_changing_it() -> None:
    record = begun(1)
    first, said, _ = record.messages
    note = message("user", "a note")
    rewrite = record.rewrite([first, note], "notes")
    assert rewrite == Rewrite(reason="notes", message_count=3, history=(0, note))
    record.say(said)
    record.say(note)
    record.drop_message()
    assert texts(record.view) == ["begin", "a note", "say"]
    assert texts(record.messages) == ["begin", "say", "seen 0", "say"]


def test_prompt_starts_a_branch_with_the_rewrite_that_made_it() -> None:
    record = begun(1)
    reply(record)
    rewrite = record.rewrite([record.messages[0]], "notes")
    record.add_observation(PROMPT, 0.0, rewrite)
    record.add_observation(PROMPT, 0.0)
    assert record.ledger.branches == [
        Branch(segment=4, parent=0, reason="notes", message_count=4, history=(0,)),
        Branch(segment=5, parent=1, reason="template", message_count=None, history=()),
    ]


# Finished records.


def test_trajectory_holds_the_whole_record() -> None:
    record = begun(1)
    record.env_snapshot = b"state"
    reply(record)
    assert record.draft is not None
    record.draft.step = step(reward=0.25)
    found = ended(record)
    assert (found.episode_id, found.env_id, found.seed, found.group_id) == ("e", "env", 5, "g")
    assert (found.task, found.reset_info, found.metadata) == ({"n": 1}, {"info": 2}, {"note": 1})
    assert (found.initial_observation_hash, found.env_snapshot) == ("start", b"state")
    assert (found.env_restarts, found.engine, found.fault) == (2, "engine", None)
    assert found.duration_seconds >= 0
    assert [turn.turn for turn in found.turns] == [0, 1]
    assert texts(found.messages) == ["begin", "say", "seen 0", "say"]
    assert found.reward == 0.75
    assert [one.reward for one in found.segments] == [None, 0.5, None, 0.25]


@pytest.mark.parametrize("reason", StopReason)
def test_reward_is_the_sum_of_the_turns_unless_a_fault_or_an_abort_ended_it(
    reason: StopReason,
) -> None:
    is_rewarded = not reason.is_fault and reason is not StopReason.ABORTED
    assert ended(begun(3), reason).reward == (1.5 if is_rewarded else None)
    assert ended(begun(), reason).reward == (0.0 if is_rewarded else None)


def test_fault_is_recorded_with_its_place() -> None:
    record = begun(1)
    record.faulted(FaultPlace.STEP, EnvFault("broke", kind=FaultKind.CRASHED))
    fault = ended(record, StopReason.ENV_FAULT).fault
    assert fault is not None
    assert (fault.where, fault.kind, fault.message) == ("step", "crashed", "broke")


def test_last_observation_was_not_sent_so_its_turn_has_none() -> None:
    found = ended(begun(2))
    assert found.segments[-1].kind is SegmentKind.MODEL
    assert [turn.observation_tokens for turn in found.turns] == [2, 0]
    assert [turn.neutralised for turn in found.turns] == [3, None]


def test_turn_without_a_reply_leaves_the_observation_with_the_turn_before() -> None:
    record = begun(2)
    record.draft = TurnDraft(turn=2, prompt_tokens=1)  # the engine failed
    found = ended(record, StopReason.ENGINE_FAULT)
    assert [turn.observation_tokens for turn in found.turns] == [2, 0, 0]


def test_prompt_alone_keeps_its_turn() -> None:
    record = begun()
    record.draft = TurnDraft(turn=0, prompt_tokens=3)
    record.draft.add_observation(OBSERVATION, 0.0)
    found = ended(record)
    assert [one.kind for one in found.segments] == [SegmentKind.PROMPT]
    assert found.turns[0].observation_tokens == 2


def test_record_without_a_ledger_keeps_its_turns() -> None:
    record = EpisodeRecord()
    record.draft = TurnDraft(turn=0, prompt_tokens=3)
    record.draft.add_observation(OBSERVATION, 0.0)
    found = ended(record)
    assert (found.segments, found.turns[0].observation_tokens) == ((), 2)


@pytest.mark.parametrize(("shared", "kept"), [(1, 1), (2, 2), (3, 2)])
def test_origin_shares_no_segment_that_was_removed(shared: int, kept: int) -> None:
    record = begun(1)
    record.origin = Origin(episode_id="parent", segments=shared, turns=1, root="root")
    origin = ended(record, StopReason.ABORTED).origin
    assert origin is not None
    assert (origin.segments, origin.root) == (kept, "root")
    assert ended(begun(1)).origin is None


def test_abort_removes_a_question_that_nothing_followed() -> None:
    record = begun(1)
    ask(record)
    found = ended(record, StopReason.ABORTED)
    assert [turn.purpose for turn in found.turns] == [None]
    assert texts(found.messages) == ["begin", "say", "seen 0"]
    assert (len(found.segments), found.branches) == (2, ())
    assert record.played == 1


def test_abort_keeps_a_question_that_a_turn_followed() -> None:
    record = begun(1)
    ask(record)
    reply(record)
    answer(record)
    found = ended(record, StopReason.ABORTED)
    assert [turn.purpose for turn in found.turns] == [None, "summary", None]
    assert len(found.branches) == 1


@pytest.mark.parametrize("reason", [StopReason.TERMINATED, StopReason.ENV_FAULT])
def test_only_an_abort_removes_a_question(reason: StopReason) -> None:
    record = begun(1)
    ask(record)
    assert [turn.purpose for turn in ended(record, reason).turns] == [None, "summary"]


def test_abort_without_a_question_removes_nothing() -> None:
    assert len(ended(begun(2), StopReason.ABORTED).turns) == 2


# Taking over.


def taken(earlier: Trajectory) -> EpisodeRecord:
    record = EpisodeRecord()
    record.take_over(earlier, earlier.segments)
    return record


def test_take_over_continues_every_part_of_the_record() -> None:
    origin = Origin(episode_id="parent", segments=1, turns=0, root="root")
    earlier = replace(ended(begun(2), StopReason.ABORTED), origin=origin)
    record = taken(earlier)
    assert (record.origin, record.task, record.reset_info) == (origin, {"n": 1}, {"info": 2})
    assert record.initial_observation_hash == "start"
    assert tuple(record.turns) == earlier.turns
    assert (record.turn, record.played) == (2, 2)
    assert tuple(record.ledger.segments) == earlier.segments
    assert texts(record.messages) == texts(earlier.messages)
    assert record.view is record.messages
    assert record.task is not earlier.task
    assert record.reset_info is not earlier.reset_info


@pytest.mark.parametrize("finish", ["abort", "stop"])
def test_take_over_drops_a_turn_that_was_not_answered(finish: str) -> None:
    record = begun(1)
    reply(record, "cut", finish=finish)
    earlier = ended(record, StopReason.ABORTED)
    assert len(earlier.turns) == 2
    again = taken(earlier)
    assert [turn.turn for turn in again.turns] == [0]
    assert texts(again.messages) == ["begin", "say", "seen 0"]
    assert again.ledger.reply_ids(1) == (5, 6)


def test_take_over_keeps_questions_apart_from_played_turns() -> None:
    record = begun(1)
    ask(record)
    reply(record)
    answer(record)
    again = taken(ended(record, StopReason.ABORTED))
    assert (again.turn, again.played, again.questions) == (3, 2, 1)


def test_take_over_sees_the_last_rewritten_history() -> None:
    record = begun(1)
    for text in ("old", "new"):
        reply(record, text)
        rewrite = record.rewrite([record.messages[0], message("user", f"{text} note")], "notes")
        record.add_observation(PROMPT, 0.0, rewrite)
        assert record.draft is not None
        record.draft.step, record.draft.step_hash = step(), "hash"
        record.say(message("user", f"after {text}"))
        record.close_turn()
    reply(record, "last")
    answer(record)
    again = taken(ended(record, StopReason.ABORTED))
    assert texts(again.view) == ["begin", "new note", "after new", "last", "seen 3"]
    assert texts(again.messages)[-4:] == ["new", "after new", "last", "seen 3"]


@pytest.mark.parametrize(
    "change", [{"message_count": None}, {"history": ()}, {"message_count": None, "history": ()}]
)
def test_take_over_of_a_history_that_was_not_recorded_sees_the_whole_conversation(
    change: dict[str, Any],
) -> None:
    record = begun(1)
    ask(record)
    reply(record)
    answer(record)
    earlier = ended(record, StopReason.ABORTED)
    branches = tuple(replace(one, **change) for one in earlier.branches)
    again = taken(replace(earlier, branches=branches))
    assert again.view is again.messages
    assert texts(again.view) == texts(earlier.messages)


def question_at_the_end(*, cut: bool) -> Trajectory:
    """Return an aborted episode that ends with the answer to a question, or with a cut reply."""
    record = begun(1)
    ask(record)
    record.before_question = None
    if cut:
        reply(record, "cut", finish="abort")
    found = ended(record, StopReason.ABORTED)
    return replace(found, turns=found.turns[:2])


def test_take_over_keeps_the_answer_to_a_question_but_not_a_cut_reply() -> None:
    kept, cut = taken(question_at_the_end(cut=False)), taken(question_at_the_end(cut=True))
    expected = ["begin", "say", "seen 0", "Summarise.", "a summary"]
    assert texts(kept.messages) == texts(cut.messages) == expected


def test_take_over_before_the_first_reply_keeps_the_opening() -> None:
    opened: list[Message] = [message("system", "be brief"), message("user", "begin")]
    empty = replace(ended(begun(), StopReason.ABORTED), messages=tuple(opened))
    assert texts(taken(empty).messages) == ["be brief", "begin"]
    assert taken(replace(empty, messages=())).messages == []


def test_take_over_of_the_first_reply_cut_off_keeps_the_opening() -> None:
    record = begun()
    reply(record, "cut", finish="abort")
    again = taken(ended(record, StopReason.ABORTED))
    assert (texts(again.messages), again.turns) == (["begin"], [])
    assert again.ledger.reply_ids(0) == (5, 6)


@pytest.mark.parametrize(
    ("given", "threshold", "found"),
    [
        ({"note": 1}, None, {"note": 1}),
        ({"note": 1}, 0.0, {"note": 1, "reward_threshold": 0.0}),
        ({"note": 1, "reward_threshold": 3.0}, -2.0, {"note": 1, "reward_threshold": -2.0}),
        ({"note": 1, "reward_threshold": 3.0}, None, {"note": 1}),  # of an earlier life
    ],
)
def test_threshold_in_force_is_recorded_beside_the_callers_metadata(
    given: dict[str, Any], threshold: float | None, found: dict[str, Any]
) -> None:
    record = EpisodeRecord()
    record.reward_threshold = threshold
    spec = replace(SPEC, metadata=given)
    made = record.trajectory(StopReason.TERMINATED, spec, env_restarts=0, engine="e")
    assert made.metadata == found
    assert spec.metadata == given
