"""Thoughts that a prompt opens and a limit cuts: closed as the template closes them."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from fakes.hearing import Hearing, plain_codec, thinking_codec
from fakes.templates import cache_folder, load_tokenizer, make_codec

from envkit.env import PolicyContext
from envkit.messages import Message, message
from envkit.reply import THOUGHTS, Reply
from envkit.rollout import Sampling, ScriptedEngine, play
from envkit.tokens import ChatCodec
from envkit.tokens.thoughts import TAIL_IDS, closing_of, opened_thought
from envkit.trajectory import SegmentKind, Trajectory

THOUGHT = "Let me see, the third number is larger than the second one, so that I should"
"""What a limit leaves of a thought."""


async def cut_in_thought(codec: ChatCodec, text: str = THOUGHT, **options: Any) -> Trajectory:
    """Play an episode whose first reply is cut before its last word."""
    limit = len(codec.encode_reply(text)) - 1

    def say(context: PolicyContext) -> str:
        return f"{text} and more words" if context.turn == 0 else "</think>\n\nFive."

    sampling = Sampling(max_new_tokens=limit)
    return await play(
        lambda: Hearing(max_turns=2), ScriptedEngine(codec, say), codec, sampling=sampling, seed=1
    )


def test_a_prompt_that_ends_with_a_mark_opens_a_thought() -> None:
    for codec, opened in ((thinking_codec(), "<think>"), (plain_codec(), None)):
        ids = codec.encode_prompt([message("user", "<think>")]).wire_ids
        assert opened_thought(codec, ids[-TAIL_IDS:]) == opened
        assert opened_thought(codec, ids) == opened
    assert opened_thought(plain_codec(), ()) is None
    closed = plain_codec().encode_text("<think>\n\n</think>\n\n")
    assert opened_thought(plain_codec(), closed) is None


class Pieces:
    """A codec whose ids are the places of pieces of bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.decoded = 0

    def decode_all(self, token_ids: Sequence[int]) -> str:
        self.decoded += 1
        return b"".join(self.pieces[one] for one in token_ids).decode(errors="replace")

    def visible_text(self, token_id: int) -> str:
        return self.pieces[token_id].decode(errors="replace").rstrip()

    def thought_ending(self, mark: str) -> str:
        return mark


@pytest.mark.parametrize("mark", THOUGHTS)
def test_a_mark_is_found_wherever_its_tokens_are_cut(mark: str) -> None:
    raw = mark.encode()
    for cut in range(len(raw)):
        for end in ((), (b"\n",), (b" ", b"\n\n")):
            codec = Pieces(b"so ", *filter(None, (raw[:cut], raw[cut:])), *end)
            assert opened_thought(codec, range(len(codec.pieces))) == mark
    whole = Pieces(b"x" + raw + b"\n")
    assert opened_thought(whole, range(1)) == mark
    bytewise = Pieces(*(bytes([one]) for one in raw))
    assert opened_thought(bytewise, range(len(raw))) == mark


def test_a_prompt_is_not_decoded_if_its_last_token_ends_no_mark() -> None:
    codec = Pieces(b"<think>", b"\n", b"ass", b"istant", b"\n", b" ")
    assert opened_thought(codec, range(6)) is None
    assert codec.decoded == 0
    assert opened_thought(codec, range(2)) == "<think>"
    assert codec.decoded == 1
    assert opened_thought(codec, range(4, 6)) is None
    assert codec.decoded == 1


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("hm", "\n</think>\n\n"),
        ("hm\n", "</think>\n\n"),
        ("hm\n\n", "</think>\n\n"),
        ("hm ", "\n</think>\n\n"),
        ("hm</think>", ""),
        ("hm</think>five <think>or", "\n</think>\n\n"),
    ],
)
def test_a_thought_is_closed_on_a_line_of_its_own(text: str, closing: str) -> None:
    assert closing_of(thinking_codec(), Reply(text=text, opened="<think>")) == closing


async def test_the_open_thought_is_closed_with_mask_0_before_the_next_message() -> None:
    codec = thinking_codec()
    trajectory = await cut_in_thought(codec)

    assert trajectory.fault is None
    assert trajectory.turns[0].sanity == "equal"
    reply, observation = trajectory.segments[1:3]
    assert (reply.kind, observation.kind) == (SegmentKind.MODEL, SegmentKind.OBSERVATION)
    assert codec.decode_all(reply.wire_ids) == THOUGHT
    after = codec.decode_all(observation.wire_ids)
    assert after.startswith("\n</think>\n\n<|im_end|>\n<|im_start|>user\n")
    assert not any(observation.loss_mask)
    prompt = trajectory.messages[: -2 if trajectory.messages[-1]["role"] == "user" else -1]
    whole = codec.encode_prompt(prompt).wire_ids
    sent = trajectory.segments[0].wire_ids + reply.wire_ids + observation.wire_ids
    # A full render of an earlier reply does not have the mark that the template opened it with.
    head = len(trajectory.segments[0].wire_ids) - len(codec.encode_text("<think>\n"))
    assert whole[head:] == sent[len(trajectory.segments[0].wire_ids) :]


async def test_nothing_is_closed_where_no_thought_is_open_or_a_stop_token_ended_it() -> None:
    codec = thinking_codec()
    whole = await cut_in_thought(codec, "hm</think>Five is what I say and so on and on")
    assert codec.decode_all(whole.segments[2].wire_ids).startswith("<|im_end|>\n<|im_start|>user")

    stopped = await play(
        lambda: Hearing(max_turns=2), ScriptedEngine(codec, lambda _: "hm"), codec, seed=1
    )
    assert codec.decode_all(stopped.segments[2].wire_ids).startswith("\n<|im_start|>user")


CHATML = ("qwen3_5_think", "qwen3_6", "qwen3_8", "miles/qwen3.5_fixed")
"""Templates of models with the vocabulary of Qwen3."""


def real_codec(name: str) -> ChatCodec:
    if name not in CHATML:
        return make_codec(name)
    text = (cache_folder() / "templates" / f"{name}.jinja").read_text()
    return ChatCodec(load_tokenizer("qwen3"), template_kwargs={"chat_template": text})


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3-thinking-2507", "glm4moe", "deepseek-r1", *CHATML]
)
def test_real_templates_close_a_thought_as_their_full_render_does(name: str) -> None:
    codec = real_codec(name)
    prompt = [message("user", "What is 2+2?")]
    ids = codec.encode_prompt(prompt).wire_ids
    opened = opened_thought(codec, ids[-TAIL_IDS:]) or ""
    text = THOUGHT if opened else f"<think>\n{THOUGHT}"
    reply = Reply(text=text, opened=opened)
    closing = closing_of(codec, reply)
    assert closing.strip() == THOUGHTS[opened or "<think>"]

    answer = message("assistant", text + closing)
    roles: tuple[Literal["tool", "user"], ...] = ("tool", "user")
    for role in roles:
        later: Message = {"role": role, "content": "14"}
        if role == "tool":
            later = {**later, "name": "f", "tool_call_id": "call00000"}
        try:
            whole = codec.decode_all(codec.encode_prompt([*prompt, answer, later]).wire_ids)
        except Exception:  # noqa: BLE001  # a template may reject the conversation
            continue
        if THOUGHT in whole:  # otherwise it drops thoughts from the history
            delta = codec.encode_observation([later], sampled_ids=[0], history=[*prompt, answer])
            assert whole.endswith(THOUGHT + closing + codec.decode_all(delta.wire_ids))
