"""Render observations as the text after a reply, and encode the ids to append."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

from envkit.errors import TemplateError
from envkit.messages import Message
from envkit.tokens.digest import extrapolate
from envkit.tokens.rules import (
    CALL_KEYS,
    CALL_PARTS,
    CONTEXT_PARTS,
    TURN_PARTS,
    Dependency,
    RoleRule,
    Variant,
)
from envkit.tokens.template import ChatTemplate, PlainMessage, ToolSchemas
from envkit.tokens.writer import CALL_ID, Writer

TailWriter = Callable[[list[PlainMessage], list[PlainMessage]], str]
T = TypeVar("T")


class DeltaRenderer:
    """Renders observations after a stand-in conversation, or after the turns that a rule needs."""

    def __init__(self, template: ChatTemplate, writer: Writer) -> None:
        self.template = template
        self.writer = writer
        self.call_variant: Variant | None = None
        """How to write the call that a plain reply spells out; None if the template takes tool
        messages after plain replies."""

    def after_reply(
        self,
        rule: RoleRule,
        observations: Sequence[PlainMessage],
        *,
        history: Sequence[PlainMessage] = (),
        tools: ToolSchemas = None,
        earlier_images: int = 0,
        generation_prompt: bool = True,
    ) -> str:
        """Return the text right after the stand-in reply.

        Args:
            rule: The role's rule; decides which other arguments are read.
            observations: Every message up to the next reply.
            history: All earlier messages, including the reply.
            tools: Tool schemas.
            earlier_images: Number of images before the observations.
            generation_prompt: Whether the next reply's header follows.

        Raises:
            TemplateError: The template rejects the observations, or `history` is missing.
        """
        calls = self._calls(rule, observations, history)
        head = self._head(rule, history, earlier_images)
        reply = self._reply(rule, history, calls)
        used = tools if Dependency.TOOLS in rule.depends else None
        messages = [*head, reply, *observations]
        try:
            text = self.template.render(messages, generation_prompt=generation_prompt, tools=used)
        except TemplateError:
            # Some templates accept only one call per reply.
            if rule.variant.calls != "all" or len(calls) < 2:
                raise
            messages[len(head)] = self.writer.reply(rule.variant, calls[:1])  # one call per reply
            text = self.template.render(messages, generation_prompt=generation_prompt, tools=used)
        return text[self.writer.after_reply(text) :]

    def tail(
        self,
        rule: RoleRule,
        observations: Sequence[PlainMessage],
        *,
        history: Sequence[PlainMessage] = (),
        skipped: int = 0,
        **context: Any,  # noqa: ANN401  # more arguments of `after_reply`
    ) -> str:
        """Return the text from the closer on, inclusive.

        Args:
            rule: As for `after_reply`.
            observations: As for `after_reply`.
            history: All earlier messages, or those that the rule reads.
            skipped: What the rule skipped to read them (`RoleRule.skipped`).
            **context: The other arguments of `after_reply`.

        Raises:
            TemplateError: As for `after_reply`, the closer is not where calibration found it, or
                the rule's digest does not fit this conversation.
        """
        digest = rule.digest
        if digest is None:
            return self._tail(rule, observations, history, context)
        plain, kept = replace(rule, digest=None), rule.read(history)
        text = self._tail(plain, observations, kept, context)
        more = skipped + rule.skipped(history, kept)
        if not more:
            return text
        # Numbers that a template counts are found by comparing with a conversation of one turn
        # less.
        fewer = digest.shorten(kept, fewer=True)
        shorter = self._tail(plain, observations, fewer, context)
        step = digest.count(kept) - digest.count(fewer)
        return extrapolate(text, shorter, step=step, more=more)

    def writer_of(
        self,
        rule: RoleRule,
        history: Sequence[Message],
        *,
        tools: ToolSchemas,
        earlier_images: int,
    ) -> tuple[TailWriter, Sequence[Message]]:
        """Return a function that writes clean observations and history, and that history."""
        kept = rule.read(history)
        skipped = rule.skipped(history, kept)

        def write(observations: list[PlainMessage], before: list[PlainMessage]) -> str:
            return self.tail(
                rule,
                self.writer.fit(observations),
                history=self.writer.fit(before),
                skipped=skipped,
                tools=tools,
                earlier_images=earlier_images,
            )

        return write, kept

    def _tail(
        self,
        rule: RoleRule,
        observations: Sequence[PlainMessage],
        history: Sequence[PlainMessage],
        context: Mapping[str, Any],
    ) -> str:
        text = self.after_reply(rule, observations, history=history, **context)
        cut = text.find(rule.closer)
        if cut < 0:
            raise TemplateError(
                f"the chat template does not close the reply with {rule.closer!r} before these "
                f"{rule.role} messages, as it did when it was calibrated"
            )
        return text[cut:]

    def _head(
        self, rule: RoleRule, history: Sequence[PlainMessage], earlier_images: int
    ) -> list[PlainMessage]:
        """Return the messages before the reply."""
        depends = rule.depends
        if depends & CONTEXT_PARTS and not history:
            needed = ", ".join(sorted(depends & CONTEXT_PARTS))
            raise TemplateError(
                f"after {rule.role} observations this chat template depends on the "
                f"{needed} of the conversation; pass history= with every earlier message"
            )
        earlier = rule.read(history)[:-1]
        if depends & {Dependency.HISTORY, Dependency.RECENT}:
            return self.with_calls(earlier)
        head = [self.writer.say("user", "u")]
        if earlier_images and Dependency.IMAGES in depends:
            images: list[dict[str, Any]] = [{"type": "image"}] * earlier_images
            head = [{"role": "user", "content": [*images, {"type": "text", "text": "u"}]}]
        return [*earlier, *head]

    def _reply(
        self, rule: RoleRule, history: Sequence[PlainMessage], calls: Sequence[tuple[str, str]]
    ) -> PlainMessage:
        """Return the marked reply: the real one if the rule reads turns, else a stand-in."""
        if rule.depends & TURN_PARTS:
            makes_calls = bool(history[-1].get("tool_calls"))
            # A plain reply that spells out its call is replaced by one with a structured call.
            if makes_calls == (rule.variant.calls != "none"):
                return self.writer.marked(history[-1], rule.variant)
        return self.writer.reply(rule.variant, calls)

    def with_calls(self, history: Sequence[PlainMessage]) -> list[PlainMessage]:
        """Return the history with the calls spelled out in its plain replies, if needed."""
        result = list(history)
        if self.call_variant is None:
            return result
        for index, entry in enumerate(result):
            if entry["role"] != "assistant" or entry.get("tool_calls"):
                continue
            answers = list(takewhile(lambda later: later["role"] == "tool", result[index + 1 :]))
            if answers:
                calls = _named(answers)
                result[index] = self.writer.calling(self.call_variant, calls, text="", argument="x")
        return result

    @staticmethod
    def _calls(
        rule: RoleRule, observations: Sequence[PlainMessage], history: Sequence[PlainMessage]
    ) -> list[tuple[str, str]]:
        """Return the name and id of each call in the stand-in reply."""
        real = (history[-1].get("tool_calls") or ()) if history else ()
        needed = rule.depends & CALL_PARTS
        if real and (needed or rule.role == "user"):
            return [
                (call.get("function", call)["name"], call.get("id") or f"call{i:05d}")
                for i, call in enumerate(real)
            ]
        results = [entry for entry in observations if entry["role"] == "tool"]
        for entry in results:
            missing = [CALL_KEYS[part] for part in needed if CALL_KEYS[part] not in entry]
            if missing:
                raise TemplateError(
                    f"for this chat template, tool messages must have the keys {missing} of the "
                    f"call that they answer, got {sorted(entry)}; add them"
                )
        return _named(results) or [("f", CALL_ID)]


def _named(answers: Sequence[PlainMessage]) -> list[tuple[str, str]]:
    return [
        (entry.get("name") or "f", entry.get("tool_call_id") or f"call{i:05d}")
        for i, entry in enumerate(answers)
    ]


def unless_rejected(rule: RoleRule, use: Callable[[RoleRule], T]) -> T:
    """Return what a rule gives, or what it gives without its digest if the template rejects that.

    Raises:
        TemplateError: Both are rejected.
    """
    try:
        return use(rule)
    except TemplateError:
        if rule.digest is None:
            raise
        return use(replace(rule, digest=None))


def join(
    template: ChatTemplate,
    rule: RoleRule,
    ids: list[int],
    sampled_ids: Sequence[int],
    *,
    stop_ids: frozenset[int],
    mismatch: str,
) -> list[int]:
    """Return the ids to append after the sampled ids, of which only the last is read.

    Args:
        template: Encodes the text between content and closer, if any.
        rule: The rule with the closer.
        ids: The encoded tail; its first id is the closer.
        sampled_ids: The reply's ids from the engine.
        stop_ids: Every id that the engine stops on.
        mismatch: If a stop token other than the closer ended the reply: "accept" keeps it in place
            of the closer, "append" adds the closer after it, and "raise" raises.

    Raises:
        TemplateError: A stop token other than the closer ended the reply, and the policy is
            "raise".
    """
    if not ids or ids[0] != rule.closer_id:
        raise TemplateError(
            f"the tokenizer does not start the text {rule.closer!r}... with that token's id "
            f"{rule.closer_id}, got {ids[:1]}"
        )
    last = sampled_ids[-1] if len(sampled_ids) else None
    if last == rule.closer_id:
        return ids[1:]
    if last in stop_ids:
        if mismatch == "raise":
            raise TemplateError(
                f"the reply ended with stop token {last}, but the template closes it with "
                f"{rule.closer!r} ({rule.closer_id}); choose stop_mismatch='accept' or 'append'"
            )
        # An opener starts the next message, so a stop token before it does not replace it.
        return ids if mismatch == "append" or rule.opener else ids[1:]
    # A reply that was cut: the template writes this text, such as a line break, before its closer.
    if rule.prefix.strip(" ") and not rule.opener:
        return [*template.encode(rule.prefix), *ids]
    return ids
