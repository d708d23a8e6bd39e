"""Find the token that closes a reply before an observation, and how a final reply ends."""

from collections.abc import Sequence

from envkit.errors import TemplateError
from envkit.tokens.rules import ObservationRole, RoleRule, Variant
from envkit.tokens.template import AddedToken, ChatTemplate, ToolSchemas
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
        final = last or ""
        stop = self._first_stop(specials)
        ending = self._first_stop(self.template.specials_in(final))
        stand_in = ""
        if stop is not None:
            closer = stop
            is_shared = final.startswith(between[: stop.start + 1])
            opens = last is not None and ending is None and not is_shared
        elif _opens(between, specials, last, ending):
            closer, opens = specials[0], True
            self.notes.append(
                f"{role}: nothing closes a reply; {between[: closer.end]!r} ({closer.identity}) "
                "starts the next message and was added to the stop ids. If the model samples "
                "another stop token, it stays before this one"
            )
        else:
            closer, opens = self._unstopped(role, between, specials, final, ending, user), False
            if ending is not None:
                stand_in = final[ending.start : ending.end]
        return RoleRule(
            role=role,
            variant=variant,
            closer=between[closer.start : closer.end],
            closer_id=closer.identity,
            closer_is_stop=stop is not None,
            stand_in=stand_in,
            opener=opens,
            prefix=between[: closer.start] if variant.calls == "none" else "",
        )

    def _first_stop(self, specials: Sequence[AddedToken]) -> AddedToken | None:
        return next((found for found in specials if found.identity in self.stop_ids), None)

    def _unstopped(
        self,
        role: ObservationRole,
        between: str,
        specials: Sequence[AddedToken],
        final: str,
        ending: AddedToken | None,
        user: RoleRule | None,
    ) -> AddedToken:
        """Return the closer if no stop id marks it but it is safe.

        It is if it stands where a final reply has its stop token, or if a final reply has it, too.
        """
        first = specials[0] if specials else None
        # Metharme's template ends the last reply with </s> and an earlier one with <|user|>.
        if first and ending and final[: ending.start] == between[: first.start]:
            return first
        inside = [found for found in specials if final.startswith(between[: found.end])]
        if inside:
            found = inside[-1]
            name = between[found.start : found.end]
            if role == "user" or (user is not None and user.closer == name):
                self.notes.append(
                    f"{role}: the reply is closed by {name!r} ({found.identity}), which is not one "
                    f"of the stop ids {list(self.stop_ids)}; pass the engine's complete stop_ids"
                )
                return found
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
    specials: Sequence[AddedToken],
    last: str | None,
    ending: AddedToken | None,
) -> bool:
    """Return whether the first added token after a reply starts the next message.

    It does if nothing ends a final reply. It also does if a stop token ends a final reply, but in
    history this token is the only text between reply and observation.
    """
    if not specials or specials[0].start != 0:
        return False
    is_alone = between.strip() == between[: specials[0].end]
    return last == "" or (is_alone and ending is not None and ending.start == 0)
