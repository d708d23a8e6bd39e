"""The comparison of a run's observations with full renders: what it finds, what it leaves alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.faults import say_turn
from fakes.templates import default_codec, load_tokenizer

from envkit.env import Env, Turn
from envkit.errors import ConfigurationError, LedgerFault, RunFailedError
from envkit.images import Image
from envkit.messages import Message, message
from envkit.metrics import aggregate
from envkit.metrics.table import summary_rows
from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.rollout.self_check import SelfCheck
from envkit.tasks import Task
from envkit.tokens import ChatCodec, Encoded, SanityMode, SanityReport, SanityStatus
from envkit.tokens.expansion import Expansion
from envkit.tokens.joining import Joining, JoinRule
from envkit.tokens.sanity import LONG_IDS
from envkit.trajectory import StopReason, Trajectory, load, save

HISTORY: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is four."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "<think>\nhm, hm\n</think>\n\nYes."},
]
OBSERVATION: list[Message] = [{"role": "user", "content": "And 3+3?"}]
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("llama3.2", "gemma3", "mistral-7b", "phi3", "glm4moe", "gpt-oss")
]


class Guess(Env):
    def __init__(self) -> None:
        super().__init__(max_turns=4)

    def on_reset(self, task: Task) -> Turn:
        return Turn("Guess.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn(f"Not {response_text}.", reward=1.0)


class LosesNewline(ChatCodec):
    """Writes deltas without the newline after the closer, as a wrong calibration would."""

    def __init__(self, name: str) -> None:
        super().__init__(load_tokenizer(name), stop_ids=default_codec(name).stop_ids)

    def encode_observation(self, messages: Sequence[Message], **context: Any) -> Encoded:
        encoded = super().encode_observation(messages, **context)
        newline = encoded.wire_ids[0]
        assert self.decode_all([newline]) == "\n"
        return replace(encoded, wire_ids=encoded.wire_ids[1:], train_ids=encoded.train_ids[1:])


def check(
    codec: ChatCodec,
    found: Encoded | None = None,
    *,
    history: list[Message] = HISTORY,
    observation: list[Message] = OBSERVATION,
    sampled: Sequence[int] | None = None,
) -> SanityReport:
    """Check a delta, by default the codec's own after a reply that the model closed."""
    ids = codec.encode_reply("Yes.") if sampled is None else sampled
    if found is None:
        found = codec.encode_observation(observation, sampled_ids=ids, history=history)
    return codec.check_observation(observation, found, sampled_ids=ids, history=history)


async def play(codec: ChatCodec, episodes: int = 1, **settings: Any) -> list[Trajectory]:
    player = Player(ScriptedEngine(codec, say_turn), codec, RolloutConfig(**settings))
    try:
        played = [await player.play(Guess, EpisodeSpec(seed=n)) for n in range(episodes)]
    finally:
        await player.aclose()
    return [one for episode in played for one in episode]


def test_check_reports_a_replaced_observation_where_history_is_rewritten() -> None:
    codec = default_codec("qwen3")
    assert codec.rewrites_history
    assert check(codec).status is SanityStatus.EQUAL
    other = codec.encode_observation(
        [{"role": "user", "content": "Something else."}], sampled_ids=codec.encode_reply("Yes.")
    )
    report = check(codec, other)
    assert report.status is SanityStatus.DIFFERENT
    assert "And 3+3?" in report.expected
    assert "Something else." in report.found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5", *SLOW])
def test_check_reports_every_lost_token(name: str) -> None:
    codec = default_codec(name)
    whole = codec.encode_observation(OBSERVATION, sampled_ids=codec.encode_reply("Yes."))
    for index in range(len(whole.wire_ids)):
        ids = (*whole.wire_ids[:index], *whole.wire_ids[index + 1 :])
        report = check(codec, Encoded(wire_ids=ids, train_ids=ids), history=HISTORY[1:])
        assert report.status in (SanityStatus.DIFFERENT, SanityStatus.WHITESPACE)
    doubled = Encoded(wire_ids=whole.wire_ids * 2, train_ids=whole.wire_ids * 2)
    assert check(codec, doubled, history=HISTORY[1:]).status is SanityStatus.DIFFERENT
    train = replace(whole, train_ids=whole.train_ids[:-1])
    assert check(codec, train, history=HISTORY[1:]).status is not SanityStatus.EQUAL


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", *SLOW])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Yes.\n",
        "<think>\ncut",
        "<tool_call>\n{}\n</tool_call>",
        "a<|im_end|>b",
        "</think>",
    ],
)
def test_check_accepts_replies_of_any_text_and_end(name: str, text: str) -> None:
    codec = default_codec(name)
    history: list[Message] = [*HISTORY[1:4], {"role": "assistant", "content": text}]
    for sampled in (None, [5, 6], []):
        assert check(codec, history=history, sampled=sampled).status is SanityStatus.EQUAL


class NumberingProcessor:
    """Writes a number before each image, as MiniCPM-V's does; two tokens each."""

    chat_template = None
    image_processor: Any = staticmethod(dict)

    def __init__(self, numbers: bool) -> None:
        self.tokenizer, self.numbers = load_tokenizer("qwen2.5-vl"), numbers

    def __call__(self, *, text: list[str], images: list[Any], **_: Any) -> dict[str, Any]:
        pad = "<|image_pad|>"
        parts = text[0].split(pad)
        numbered = "".join(
            f"{n if self.numbers else ''}{pad * 2}{part}" for n, part in enumerate(parts[1:])
        )
        ids = self.tokenizer.encode(parts[0] + numbered, add_special_tokens=False)
        return {"input_ids": np.array([ids]), "pixel_values": np.zeros((len(images), 3))}


def test_check_compares_expanded_ids_with_the_processor() -> None:
    image = Image.from_array(np.zeros((28, 28, 3), np.uint8))
    history = [message("user", "One.", [image]), message("assistant", "Yes.")]
    observation = [message("user", "Two.", [image])]
    for numbers in (False, True):
        codec = ChatCodec(NumberingProcessor(numbers), stop_ids=[151645])
        assert check(codec, history=history, observation=observation).status is SanityStatus.EQUAL
    assert codec._image_encoder is not None
    codec._image_encoder._rules = replace(codec.image_rules(), expansion=Expansion.TEXT)
    report = check(codec, history=history, observation=observation)
    assert report.status is SanityStatus.DIFFERENT, report


def test_check_compares_joined_tensors_with_the_processor() -> None:
    image = Image.from_array(np.zeros((28, 28, 3), np.uint8))
    history = [message("user", "One.", [image]), message("assistant", "Yes.")]
    codec = ChatCodec(NumberingProcessor(False), stop_ids=[151645])
    joining = Joining(family="Numbering", rules={"pixel_values": JoinRule(axis=1)})
    codec.image_rules()
    assert codec._image_encoder is not None
    codec._image_encoder._rules = replace(codec.image_rules(), joining=joining)
    report = check(codec, history=history, observation=[message("user", "Two.", [image])])
    assert report.status is SanityStatus.DIFFERENT
    assert "pixel_values of shape (2, 3)" in report.expected
    assert "pixel_values of shape (1, 6)" in report.found


def test_check_of_many_images_compares_placeholders_alone() -> None:
    image = Image.from_array(np.zeros((28, 28, 3), np.uint8))
    history = [message("user", "Look.", [image] * 8), message("assistant", "Yes.")]
    codec = ChatCodec(NumberingProcessor(False), stop_ids=[151645])
    report = check(codec, history=history, observation=[message("user", "Two.", [image])])
    assert report.status is SanityStatus.EQUAL, report


@pytest.mark.slow
def test_check_accepts_a_stop_token_that_stands_in_for_the_closer() -> None:
    codec = default_codec("gpt-oss")
    ended = load_tokenizer("gpt-oss").convert_tokens_to_ids("<|return|>")
    said = "<|channel|>final<|message|>Yes."  # which the template refuses in a message
    history: list[Message] = [*HISTORY[1:4], {"role": "assistant", "content": said}]
    assert check(codec, history=history, sampled=[5, ended]).status is SanityStatus.EQUAL


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-oss", "llama3.1", "qwen3", "glm4moe"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_check_locates_a_reply_with_structured_calls(name: str, role: str) -> None:
    codec, ids = default_codec(name), load_tokenizer(name).convert_tokens_to_ids
    call = {"name": "add", "arguments": {"a": 1}}
    reply: Any = {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    history: list[Any] = [*HISTORY[1:4], {**reply, "content": ""}]
    observation: list[Any] = [{"role": role, "content": "4", "name": "add"}]
    for end in ("<|call|>", "<|eot_id|>", "<|im_end|>", "<|observation|>"):
        sampled = [5, ids(end)]
        if sampled[1] not in codec.stop_ids:
            continue
        found = codec.encode_observation(observation, sampled_ids=sampled, history=history)
        report = check(codec, found, history=history, observation=observation, sampled=sampled)
        assert report.status is SanityStatus.EQUAL, report


def test_check_counts_what_it_cannot_locate_as_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = default_codec("qwen3")
    found = codec.encode_observation(OBSERVATION, sampled_ids=[5], history=HISTORY)
    assert check(codec, found, history=HISTORY[:-1]).status is SanityStatus.UNCHECKED

    def refuse(*_: object, **__: object) -> str:
        raise ValueError("no")

    monkeypatch.setattr(load_tokenizer("qwen3"), "apply_chat_template", refuse)
    report = check(codec, found)
    assert report.status is SanityStatus.UNCHECKED
    assert "rejects the conversation: no" in report.reason


async def test_play_faults_a_miscalibrated_delta_and_stops_the_run() -> None:
    codec = LosesNewline("qwen2.5")
    (trajectory,) = await play(codec)
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0
    assert trajectory.turns[0].sanity is SanityStatus.WHITESPACE
    assert trajectory.fault is not None
    assert r"'<|im_end|>\n<|im_start|>user\nNot" in trajectory.fault.message
    assert "'<|im_end|><|im_start|>user\\nNot" in trajectory.fault.message
    with pytest.raises(RunFailedError, match="3 trajectories have an observation whose tokens"):
        await play(codec, 3)


async def test_play_lets_white_space_pass_where_that_is_the_mode() -> None:
    (trajectory,) = await play(LosesNewline("qwen2.5"), sanity="ignore_strippable")
    assert trajectory.fault is None
    assert trajectory.turns[0].sanity is SanityStatus.WHITESPACE
    (trajectory,) = await play(LosesNewline("qwen2.5"), sanity="off")
    assert trajectory.fault is None
    assert trajectory.turns[0].sanity is None


@pytest.mark.parametrize("make", [text_codec, pytest.param(vision_codec, marks=pytest.mark.slow)])
async def test_play_checks_the_first_episodes_and_then_a_share(make: Any) -> None:
    played = await play(make(), 12, sanity_share=0.0)
    drawn = [any(turn.sanity for turn in one.turns) for one in played]
    assert drawn == [True] * 8 + [False] * 4
    assert [turn.sanity for turn in played[0].turns] == [SanityStatus.EQUAL] * 3 + [None]
    metrics = aggregate(played)
    assert metrics["sanity/equal"] == 24
    rows = summary_rows(metrics)
    assert rows[0] == (
        "health",
        "100% of sampled tokens trained, 66.7% of observations checked, 0% of episodes faulted",
    )
    assert dict(rows)["full render"] == "equal 24"


def test_draws_follow_the_share_and_the_mode() -> None:
    always, never, tenth = (SelfCheck(share=share) for share in (1.0, 0.0, 0.1))
    for one in (always, never, tenth):
        for n in range(8):
            assert one.draws("guess-v0", f"first-{n}", 0, length=LONG_IDS)
    names = [f"later-{n}" for n in range(2000)]
    assert all(always.draws("guess-v0", name, 1, length=10) for name in names)
    assert not any(never.draws("guess-v0", name, 1, length=10) for name in names)
    drawn = [name for name in names if tenth.draws("guess-v0", name, 1, length=LONG_IDS)]
    assert 100 < len(drawn) < 300
    again = [name for name in names if tenth.draws("guess-v0", name, 1, length=LONG_IDS)]
    assert drawn == again
    assert never.draws("another-v0", "later-0", 1, length=10)
    assert not SelfCheck("off", 1.0).draws("guess-v0", "first", 0, length=10)


def drawn(check: SelfCheck, episode: str, turns: range, length: int) -> list[int]:
    return [one for one in turns if check.draws("guess-v0", episode, one, length=length)]


def test_draws_of_a_long_conversation_fall_with_its_length_and_spread_evenly() -> None:
    check = SelfCheck(share=0.0)
    for n in range(8):
        assert drawn(check, f"first-{n}", range(100), LONG_IDS) == list(range(100))
        # The first long one is compared, wherever the draws would put it.
        assert check.draws("guess-v0", f"first-{n}", 100, length=1 << 40)
        assert not check.draws("guess-v0", f"first-{n}", 101, length=1 << 40)
        for times in (2, 10, 50):
            found = drawn(check, f"first-{n}", range(101, 101 + 40 * times), times * LONG_IDS)
            assert 38 <= len(found) <= 42
            gaps = [later - one for one, later in pairwise(found)]
            assert max(gaps) <= 3 * times
        # A rewrite may shorten it for a while.
        assert drawn(check, f"first-{n}", range(9), 1) == list(range(9))
        assert not check.draws("guess-v0", f"first-{n}", 101, length=1 << 40)
    assert not drawn(check, "later", range(100), LONG_IDS + 1)


def test_draws_of_later_long_conversations_are_a_share_of_the_share() -> None:
    check, whole = SelfCheck(share=0.5), SelfCheck(share=1.0)
    for n in range(8):
        assert drawn(check, f"first-{n}", range(3), 1) == drawn(whole, f"first-{n}", range(3), 1)
    found = drawn(check, "later", range(1000), 5 * LONG_IDS)
    assert 95 <= len(found) <= 105
    assert len(drawn(check, "later", range(1000), LONG_IDS)) in range(495, 506)
    for episode in ("first-0", "later"):
        assert drawn(whole, episode, range(50), 1 << 40) == list(range(50))


class Reader(Env):
    """Sends a long text first, then short ones."""

    def __init__(self) -> None:
        super().__init__(max_turns=40)

    def on_reset(self, task: Task) -> Turn:
        return Turn("go on " * 20)

    def on_turn(self, response_text: str) -> Turn:
        return Turn("word " * 60)


async def test_play_compares_a_share_of_a_long_conversation_and_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("envkit.rollout.self_check", "envkit.metrics.facts"):
        monkeypatch.setattr(f"{module}.LONG_IDS", 400)
    codec = text_codec()
    player = Player(ScriptedEngine(codec, say_turn), codec, RolloutConfig())
    try:
        # The id decides what is drawn.
        (trajectory,) = await player.play(Reader, EpisodeSpec(seed=3, episode_id="reader"))
    finally:
        await player.aclose()
    lengths = [turn.prompt_tokens + turn.response_tokens for turn in trajectory.turns[:-1]]
    found = [turn.sanity is SanityStatus.EQUAL for turn in trajectory.turns[:-1]]
    short = sum(one <= 400 for one in lengths)
    assert 2 < short < 20
    assert all(found[: short + 1])  # and the first long one
    metrics = aggregate([trajectory])
    assert metrics["sanity/long/observations"] == len(lengths) - short
    assert metrics["sanity/long/checked"] == sum(found[short:])
    expected = sum(min(1.0, 400 / one) for one in lengths[short:])
    assert abs(sum(found[short:]) - expected) < 3
    row = dict(summary_rows(metrics))["full render"]
    assert (
        row
        == f"equal {sum(found)}; {sum(found[short:])} of {len(lengths) - short} after 16,000 tokens"
    )


@pytest.mark.parametrize(
    ("mode", "passing"),
    [
        ("strict", {SanityStatus.EQUAL, SanityStatus.UNCHECKED}),
        ("ignore_strippable", set(SanityStatus) - {SanityStatus.DIFFERENT}),
        ("off", set(SanityStatus)),
    ],
)
def test_judge_accepts_what_its_mode_names(mode: SanityMode, passing: set[SanityStatus]) -> None:
    for status in SanityStatus:
        report = SanityReport(status=status, expected="a" * 9000 + "b", found="a" * 9000)
        if status in passing:
            SelfCheck(mode).judge(report)
            continue
        with pytest.raises(LedgerFault, match="from character 7500") as caught:
            SelfCheck(mode).judge(report)
        assert len(str(caught.value)) < 16_384


def test_settings_refuse_a_wrong_mode_or_share() -> None:
    with pytest.raises(ConfigurationError, match="sanity must be one of"):
        RolloutConfig.from_mapping({"sanity": "lax"})
    with pytest.raises(ConfigurationError, match="sanity_share must be 0 to 1, got 2"):
        RolloutConfig.from_mapping({"sanity_share": 2})


def test_record_keeps_the_status(tmp_path: Any) -> None:
    (trajectory,) = asyncio.run(play(text_codec()))
    save(trajectory, tmp_path / "run.jsonl")
    (stored,) = load(tmp_path / "run.jsonl")
    assert [turn.sanity for turn in stored.turns] == [turn.sanity for turn in trajectory.turns]
