"""From observations to the text that follows a reply, and from there to the ids to append."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.rules import Dependency, RoleRule
from envkit.tokens.template import ChatTemplate, PlainMessage
from envkit.tokens.writer import Writer

CALL_PARTS: Final = frozenset({Dependency.CALL_NAME, Dependency.CALL_ID})
ToolSchemas = Sequence[Mapping[str, Any]] | None


class DeltaRenderer:
    """Renders observations behind a stand-in conversation: work is O(observation)."""

    def __init__(self, template: ChatTemplate, writer: Writer) -> None:
        self.template = template
        self.writer = writer

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
        """Return the text right behind the stand-in reply.

        Args:
            rule: How this role follows a reply; says which of the rest is read.
            observations: Every message up to the next reply.
            history: Every earlier message, the reply included.
            tools: Tool schemas.
            earlier_images: How many pictures came before.
            generation_prompt: Whether the next reply's header follows.

        Raises:
            TemplateError: The template refuses the observations, or needs history it was not given.
        """
        head = self._head(rule, history, earlier_images)
        calls = self._calls(rule, observations, history)
        used = tools if Dependency.TOOLS in rule.depends else None
        messages = [*head, self.writer.reply(rule.variant, calls), *observations]
        try:
            text = self.template.render(messages, generation_prompt=generation_prompt, tools=used)
        except TemplateError:
            if rule.variant.calls != "all" or len(calls) < 2:
                raise
            messages[len(head)] = self.writer.reply(rule.variant, calls[:1])  # one call per reply
            text = self.template.render(messages, generation_prompt=generation_prompt, tools=used)
        return text[self.writer.after_reply(text) :]

    def tail(self, rule: RoleRule, observations: Sequence[PlainMessage], **context: Any) -> str:  # noqa: ANN401
        """Return the text from the closer on, the closer included; arguments as `after_reply`.

        Raises:
            TemplateError: As `after_reply`, or the closer is not where calibration saw it.
        """
        text = self.after_reply(rule, observations, **context)
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
        if Dependency.HISTORY in rule.depends:
            return list(self._required(rule, history)[:-1])
        head = [self.writer.say("user", "u")]
        if earlier_images and Dependency.IMAGES in rule.depends:
            pictures: list[dict[str, Any]] = [{"type": "image"}] * earlier_images
            head = [{"role": "user", "content": [*pictures, {"type": "text", "text": "u"}]}]
        if Dependency.SYSTEM in rule.depends:
            said = [m for m in self._required(rule, history) if m["role"] == "system"]
            head = [*said, *head]
        return head

    @staticmethod
    def _required(rule: RoleRule, history: Sequence[PlainMessage]) -> Sequence[PlainMessage]:
        if not history:
            needed = ", ".join(sorted(rule.depends & {Dependency.HISTORY, Dependency.SYSTEM}))
            raise TemplateError(
                f"after {rule.role} observations this chat template writes what depends on the "
                f"{needed} of the conversation; pass history= with every earlier message"
            )
        return history

    @staticmethod
    def _calls(
        rule: RoleRule, observations: Sequence[PlainMessage], history: Sequence[PlainMessage]
    ) -> list[tuple[str, str]]:
        """Return name and id of each call that the stand-in reply makes."""
        results = [entry for entry in observations if entry["role"] == "tool"]
        needed = rule.depends & CALL_PARTS
        real: Sequence[Mapping[str, Any]] = ()
        if history and needed:
            real = history[-1].get("tool_calls") or ()
        if real:
            return [
                (call.get("function", call)["name"], call.get("id") or f"call{i:05d}")
                for i, call in enumerate(real)
            ]
        keys = {Dependency.CALL_NAME: "name", Dependency.CALL_ID: "tool_call_id"}
        for entry in results:
            missing = [keys[part] for part in needed if keys[part] not in entry]
            if missing:
                raise TemplateError(
                    f"this chat template needs {missing} of the call that a tool message answers; "
                    f"give tool messages these keys, got {sorted(entry)}"
                )
        return [
            (entry.get("name") or "f", entry.get("tool_call_id") or f"call{i:05d}")
            for i, entry in enumerate(results)
        ]


def join(
    template: ChatTemplate,
    rule: RoleRule,
    ids: list[int],
    sampled_ids: Sequence[int],
    *,
    stop_ids: frozenset[int],
    mismatch: str,
) -> list[int]:
    """Return what to append after the sampled ids; only the last of them is read.

    Args:
        template: Encodes the text between content and closer, where there is some.
        rule: Says what the closer is.
        ids: The encoded tail; its first id is the closer.
        sampled_ids: What the engine returned for the reply.
        stop_ids: Every id that the engine stops on.
        mismatch: "accept": another stop token stands in for the closer; "append": the closer
            follows it; "raise".

    Raises:
        TemplateError: Another stop token than the closer ended it, and the policy is "raise".
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
        return ids if mismatch == "append" or rule.opener else ids[1:]
    if rule.prefix.strip(" ") and not rule.opener:
        return [*template.encode(rule.prefix), *ids]
    return ids
