"""The token that closes a reply: which one of the text after a reply it is, and what replaces it.

Each template writes one text after a reply in history and another after a final reply.
"""

from typing import Any

import pytest
from fakes.small_chat import identity, small_template, text_writer

from envkit.errors import TemplateError
from envkit.tokens.closer import CloserFinder
from envkit.tokens.rules import ObservationRole, RoleRule, Variant
from envkit.tokens.writer import PLAIN_REPLY

CALLS = Variant(content="empty", calls="all")


class Found:
    """The rule that a finder returns, and its notes."""

    def __init__(
        self,
        between: str,
        final: str | None,
        *,
        stops: tuple[str, ...] = ("<end>",),
        role: ObservationRole = "user",
        variant: Variant = PLAIN_REPLY,
        user: RoleRule | None = None,
    ) -> None:
        template = (
            "{{ raise_exception('a user must start') if messages[0].role != 'user' }}"
            "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}"
            "{% for call in m.tool_calls or [] %}{{ call.function.arguments.a }}{% endfor %}"
            "{{ between if not loop.last else raise_exception('no') if final is none else final }}"
            "{% endif %}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
        )
        self.notes: list[str] = []
        finder = CloserFinder(
            small_template(template, between=between, final=final),
            text_writer(),
            tools=None,
            stop_ids=tuple(identity(stop) for stop in stops),
            notes=self.notes,
        )
        self.rule = finder.find(role, variant, between, user)

    @property
    def facts(self) -> tuple[str, bool, str, bool, str]:
        rule = self.rule
        assert rule.closer_id == identity(rule.closer)
        return rule.closer, rule.closer_is_stop, rule.stand_in, rule.opener, rule.prefix


def rule_of(closer: str) -> RoleRule:
    return RoleRule(
        role="user", variant=PLAIN_REPLY, closer=closer, closer_id=0, closer_is_stop=True
    )


# ---- a stop token between reply and observation


def test_closer_is_the_first_stop_token_after_a_reply() -> None:
    found = Found("<img><end><stop><user>", "<img><end>", stops=("<stop>", "<end>"))
    assert found.facts == ("<end>", True, "", False, "<img>")
    assert found.notes == []
    assert (found.rule.role, found.rule.variant) == ("user", PLAIN_REPLY)


def test_closer_keeps_the_text_before_it_only_after_plain_replies() -> None:
    assert Found("\n<end>\n<user>", "\n<end>\n").rule.prefix == "\n"
    called = Found("\n<end>\n<tool>", "\n<end>\n", role="tool", variant=CALLS)
    assert called.facts == ("<end>", True, "", False, "")
    assert (called.rule.role, called.rule.variant) == ("tool", CALLS)


@pytest.mark.parametrize("final", ["", "\n", "x"])
def test_stop_token_that_a_final_reply_lacks_starts_the_next_message(final: str) -> None:
    assert Found(f"{final}<end>", final).facts == ("<end>", True, "", True, final)


def test_stop_token_starts_the_next_message_if_a_final_reply_goes_on_otherwise() -> None:
    assert Found("a<end>", "ab").facts == ("<end>", True, "", True, "a")
    assert Found("a<end>", "b").facts == ("<end>", True, "", True, "a")


def test_stop_token_ends_a_reply_if_a_final_reply_goes_on_with_its_first_letter() -> None:
    assert Found("a<end>", "a<").facts == ("<end>", True, "", False, "a")


def test_stop_token_of_a_final_reply_keeps_the_closer_an_end() -> None:
    assert Found("<end>", "<stop>", stops=("<end>", "<stop>")).facts[1:4] == (True, "", False)


def test_stop_token_ends_a_reply_if_the_template_takes_no_final_reply() -> None:
    found = Found("<end>", None)
    assert found.facts == ("<end>", True, "", False, "")
    assert found.notes == [
        "a conversation that ends with a reply: the chat template rejects these messages: no"
    ]


def test_final_reply_is_rendered_without_the_next_header() -> None:
    # With the header, the final reply would end with a stop token.
    assert Found("<end>", "", stops=("<end>", "<bot>")).rule.opener


# ---- no stop token, and the next message's token follows


@pytest.mark.parametrize("between", ["<user>", "<user>x<tool>", "<user> "])
def test_next_messages_token_closes_a_reply_that_nothing_ends(between: str) -> None:
    found = Found(between, "", stops=("<stop>",))
    assert found.facts == ("<user>", False, "", True, "")
    assert len(found.notes) == 1
    assert f"'<user>' ({identity('<user>')}) starts the next message" in found.notes[0]


@pytest.mark.parametrize("between", ["x<user>", "x<user><tool>", "<", "", "x"])
def test_next_messages_token_must_follow_the_reply_directly(between: str) -> None:
    with pytest.raises(TemplateError, match="no stop token closes the reply before a user"):
        Found(between, "", stops=("<stop>",))


@pytest.mark.parametrize("between", ["<user>", "<user>\n"])
@pytest.mark.parametrize("after", ["", "<img>", "\n"])
def test_next_messages_token_alone_stands_for_a_stop_token_that_only_a_final_reply_has(
    between: str, after: str
) -> None:
    found = Found(between, f"<stop>{after}", stops=("<stop>",))
    assert found.facts == ("<user>", False, "", True, "")
    assert "starts the next message" in found.notes[0]


# ---- another token in place of the stop token


@pytest.mark.parametrize("before", ["", "\n", "<img"])
def test_token_where_a_final_reply_has_its_stop_token_closes_the_reply(before: str) -> None:
    found = Found(f"{before}<end>x<user>", f"{before}<stop>", stops=("<stop>",))
    assert found.facts == ("<end>", False, "<stop>", False, before)
    assert found.notes == []


def test_token_where_a_final_reply_has_its_stop_token_is_the_first_one() -> None:
    found = Found("<end><tool>x", "<stop><img>", stops=("<stop>",))
    assert found.facts == ("<end>", False, "<stop>", False, "")


@pytest.mark.parametrize("final", ["b<stop>", "<stop>", "ab<stop>"])
def test_token_after_other_text_than_that_of_a_final_reply_is_refused(final: str) -> None:
    with pytest.raises(TemplateError, match="plain-text boundary"):
        Found("a<end>x", final, stops=("<stop>",))


def test_stop_token_of_a_final_reply_replaces_nothing_without_a_token_in_history() -> None:
    with pytest.raises(TemplateError, match="pass the engine's complete stop_ids"):
        Found("\nuser: ", "<stop>", stops=("<stop>",))


# ---- a token that ends final replies, too, but is not a stop id


@pytest.mark.parametrize("final", ["<end>", "<end>\n"])
def test_token_of_final_replies_closes_the_reply_with_a_note(final: str) -> None:
    found = Found("<end><user>", final, stops=("<stop>",))
    assert found.facts == ("<end>", False, "", False, "")
    assert len(found.notes) == 1
    assert f"closed by '<end>' ({identity('<end>')}), which is not one of" in found.notes[0]


def test_last_token_that_final_replies_share_closes_the_reply() -> None:
    found = Found("\n<img><end>\n<user>", "\n<img><end>\n", stops=("<stop>",))
    assert found.facts == ("<end>", False, "", False, "\n<img>")


def test_token_of_final_replies_may_precede_their_stop_token() -> None:
    found = Found("<end><user>", "<end><stop>", stops=("<stop>",))
    assert found.facts == ("<end>", False, "<stop>", False, "")


@pytest.mark.parametrize("final", ["<en", "<bot>", "x<end>"])
def test_token_that_final_replies_lack_is_refused(final: str) -> None:
    with pytest.raises(TemplateError, match="no stop token closes the reply"):
        Found("<end><user>", final, stops=("<stop>",))


@pytest.mark.parametrize("user", [None, rule_of("<img>")])
def test_token_of_final_replies_closes_no_reply_before_a_tool_message_alone(user: Any) -> None:
    with pytest.raises(TemplateError, match="before a tool message"):
        Found("<end><tool>", "<end>", stops=("<stop>",), role="tool", user=user)


def test_token_of_final_replies_closes_a_reply_before_tool_messages_as_before_user_messages() -> (
    None
):
    found = Found("<end><tool>", "<end>", stops=("<stop>",), role="tool", user=rule_of("<end>"))
    assert found.facts == ("<end>", False, "", False, "")


def test_closer_is_found_with_the_tools_of_the_conversation() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    template = small_template(
        "{% for m in messages %}{{ m.content }}{% if tools %}<end>{% endif %}{% endfor %}"
    )
    finder = CloserFinder(
        template, text_writer(), tools=tools, stop_ids=(identity("<end>"),), notes=[]
    )
    assert not finder.find("user", PLAIN_REPLY, "<end>", None).opener
