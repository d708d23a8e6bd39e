"""How a reply ended crosses OpenEnv, and nothing of a cut reply reaches a foreign server."""

from typing import Any

import pytest

from envkit.reply import CUT_NOTICE, UNFINISHED, FinishReason, Reply
from envkit_openenv.interface import WholeReply

CUT = Reply(text="gold and", finish=FinishReason.LENGTH, opened="<think>")


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (Reply(text="<think>a</think>b"), {"response_text": "<think>a</think>b"}),
        (CUT, {"response_text": "gold and", "finish": "length", "opened": "<think>"}),
        (
            Reply(text="a", opened="<think>"),
            {"response_text": "a", "finish": "stop", "opened": "<think>"},
        ),
    ],
)
def test_an_envkit_server_is_told_how_a_reply_ended(reply: Reply, sent: dict[str, Any]) -> None:
    assert WholeReply("response_text", with_thoughts=True).read(reply).actions == (sent,)


@pytest.mark.parametrize(
    ("reply", "sent", "error"),
    [
        (Reply(text="<think>a</think>\n\nb"), ({"message": "b"},), None),
        (Reply(text="a</think>b", opened="<think>"), ({"message": "b"},), None),
        (Reply(text=""), ({"message": ""},), None),
        (CUT, (), CUT_NOTICE),
        (Reply(text="b", finish=FinishReason.LENGTH), (), CUT_NOTICE),
        (Reply(text="<think>a"), (), UNFINISHED),
    ],
)
def test_a_foreign_server_gets_only_whole_answers(
    reply: Reply, sent: tuple[Any, ...], error: str | None
) -> None:
    found = WholeReply("message", with_thoughts=False).read(reply)
    assert (found.actions, found.error) == (sent, error)
