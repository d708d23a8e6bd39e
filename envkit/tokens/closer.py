"""Find the token that closes a reply before an observation, and how a final reply ends."""

from collections.abc import Sequence

from envkit.errors import TemplateError
from envkit.tokens.delta import ToolSchemas
from envkit.tokens.rules import ObservationRole, RoleRule, Variant
from envkit.tokens.template import ChatTemplate
from envkit.tokens.writer import CALL_ID, Writer


class CloserFinder:
    """Finds the end-of-turn token that a template writes between a reply and an observation."""

    def __init__(
        self,
        template: ChatTemplate,
        writer: Writer,
        *,
        tools: ToolSchemas,
        stop_ids: tuple[int, ...],
        notes: list[str],
    ) -> None:
        self.template, self.writer = template, writer
        self.tools, self.stop_ids, self.notes = tools, stop_ids, notes

    def find(
        self, role: ObservationRole, variant: Variant, between: str, user: RoleRule | None
    ) -> RoleRule:
        """Return a role's rule with only its closer determined.

        Args:
            role: Role of the observation.
            variant: The form of the reply.
            between: What the template writes between the reply's text and the observation's.
            user: The rule of user observations, whose closer another role may share.

        Raises:
            TemplateError: No special token closes the reply.
        """
        specials = self.template.specials_in(between)
        last = self._last_reply(variant)
        shared = shared_length(between, last or "")
        last_specials = self.template.specials_in(last or "")
        inside = [found for found in specials if found[1] <= shared]
        stop = next((found for found in specials if found[2] in self.stop_ids), None)
        stand_in = next((f for f in last_specials if f[2] in self.stop_ids), None)
        opens = stop is None and _opens(between, specials, last, stand_in)
        if stop is not None:
            start, end, closer_id = stop
        elif opens:
            start, end, closer_id = specials[0]
            stand_in = None
            self.notes.append(
                f"{role}: nothing closes a reply; {between[:end]!r} ({closer_id}) starts the next "
                "message and was added to the stop ids. If the model samples another stop token, "
                "it stays before this one"
            )
        elif stand_in is not None and specials and stand_in[0] == specials[0][0] <= shared:
            start, end, closer_id = specials[0]
        else:
            start, end, closer_id = self._guess(role, between, inside, user)
        is_stop = closer_id in self.stop_ids
        ends_at_opener = is_stop and last is not None and start >= shared and stand_in is None
        return RoleRule(
            role=role,
            variant=variant,
            closer=between[start:end],
            closer_id=closer_id,
            closer_is_stop=is_stop,
            stand_in=last[stand_in[0] : stand_in[1]] if stand_in and last and not is_stop else "",
            opener=opens or ends_at_opener,
            prefix=between[:start] if variant.calls == "none" else "",
        )

    def _guess(
        self,
        role: ObservationRole,
        between: str,
        inside: Sequence[tuple[int, int, int]],
        user: RoleRule | None,
    ) -> tuple[int, int, int]:
        """Return the closer if no stop id marks it but it is safe."""
        if inside:
            name = between[inside[-1][0] : inside[-1][1]]
            if role == "user" or (user is not None and user.closer == name):
                self.notes.append(
                    f"{role}: the reply is closed by {name!r} ({inside[-1][2]}), which is not one "
                    f"of the stop ids {list(self.stop_ids)}; pass the engine's complete stop_ids"
                )
                return inside[-1]
        raise TemplateError(
            f"no stop token closes the reply before a {role} message (the template writes "
            f"{between[:80]!r} there, the stop ids are {list(self.stop_ids)}); pass the engine's "
            "complete stop_ids, as in the model's generation_config.json. A plain-text boundary "
            "cannot be proven exact"
        )

    def _last_reply(self, variant: Variant) -> str | None:
        """Return the text after a final reply; None if the template rejects it."""
        reply = self.writer.reply(variant, [("f", CALL_ID)])
        try:
            text = self.template.render(
                [self.writer.say("user", "u"), reply], generation_prompt=False, tools=self.tools
            )
            return text[self.writer.after_reply(text) :]
        except TemplateError as error:
            self.notes.append(f"a conversation that ends with a reply: {error}")
            return None


def _opens(
    between: str,
    specials: Sequence[tuple[int, int, int]],
    last: str | None,
    stand_in: tuple[int, int, int] | None,
) -> bool:
    """Return whether the first special token after a reply starts the next message.

    It does if nothing ends a final reply. It also does if a stop token ends a final reply, but in
    history this token is the only text between reply and observation.
    """
    if not specials or specials[0][0] != 0:
        return False
    alone = (
        stand_in is not None and stand_in[0] == 0 and between.strip() == between[: specials[0][1]]
    )
    return last == "" or alone


def shared_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
