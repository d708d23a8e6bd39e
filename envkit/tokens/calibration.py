"""Learning how one template writes observations; done once and kept.

The order: which content it renders, pictures, then for each role a way to write the stand-in reply,
the closer, what the tail depends on, the check against full renders, and the short way to write it.
A probe that the template refuses is kept as a note, never dropped.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer, ToolSchemas
from envkit.tokens.gate import verify
from envkit.tokens.linearity import measure_linearity
from envkit.tokens.placeholders import find_image_syntax
from envkit.tokens.probes import find_dependencies
from envkit.tokens.rules import (
    Calibration,
    ContentForms,
    Dependency,
    ObservationRole,
    RoleRule,
    Variant,
)
from envkit.tokens.shape import TailShape, derive_shape
from envkit.tokens.template import ChatTemplate, PlainMessage, Tokenizer, template_text
from envkit.tokens.writer import CALL_ID, Writer, variants

PROBE = "Oo0bs"
_REFUSED = "the chat template refuses these messages: "
_KEPT = 24
"""Calibrations; each keeps its tokenizer alive."""


class Calibrated:
    """A calibration with the renderer that it was made with: they share the marks."""

    def __init__(self, renderer: DeltaRenderer, calibration: Calibration) -> None:
        self.renderer = renderer
        self.template = renderer.template
        self.writer = renderer.writer
        self.calibration = calibration


_cache: OrderedDict[object, Calibrated] = OrderedDict()
_lock = threading.Lock()


def calibrate(
    tokenizer: Tokenizer,
    *,
    kwargs: dict[str, Any],
    tools: ToolSchemas,
    stop_ids: tuple[int, ...],
    placeholder_id: int | None,
) -> Calibrated:
    """Return the calibration of a template, from the cache where it is known; thread-safe.

    Raises:
        TemplateError: There is no template, or it cannot render [user, assistant, user].
    """
    text = template_text(tokenizer, kwargs.get("chat_template"), with_tools=bool(tools))
    size = len(tokenizer)  # tokens may have been added
    settings = repr((sorted(kwargs.items()), tools, stop_ids, placeholder_id, size))
    key = (id(tokenizer), text, settings)  # what is kept holds the tokenizer, so its id stays its
    with _lock:
        known = _cache.get(key)
        if known is None:
            template = ChatTemplate(tokenizer, text, kwargs=kwargs)
            known = Calibrator(template, tools, stop_ids, placeholder_id).run()
            _cache[key] = known
            if len(_cache) > _KEPT:
                _cache.popitem(last=False)
        _cache.move_to_end(key)
        return known


class Calibrator:
    """Runs the probes of one template."""

    def __init__(
        self,
        template: ChatTemplate,
        tools: ToolSchemas,
        stop_ids: tuple[int, ...],
        placeholder_id: int | None,
    ) -> None:
        self.template = template
        self.tools = tools
        self.stop_ids = stop_ids
        self.placeholder_id = placeholder_id
        self.notes: list[str] = []
        self.forms = self._content_forms()
        self.writer = Writer(self.forms)
        self.renderer = DeltaRenderer(template, self.writer)

    def run(self) -> Calibrated:
        """Probe everything.

        Raises:
            TemplateError: User observations cannot be made exact.
        """
        rules: dict[str, RoleRule] = {}
        refusals: dict[str, str] = {}
        verified = 0
        roles: tuple[ObservationRole, ...] = ("user", "tool")
        for role in roles:
            try:
                rule, count = self._rule(role, rules.get("user"))
            except TemplateError as error:
                refusals[role] = str(error)
                continue
            rules[role] = replace(rule, shape=self._shape(rule))
            verified += count
        images, image_roles = find_image_syntax(
            self.renderer, rules.get("user"), self.placeholder_id, self.notes
        )
        if images is not None and images.numbered:
            rules = {
                role: replace(rule, depends=rule.depends | {Dependency.IMAGES}, shape=None)
                for role, rule in rules.items()
            }
        elif images is not None and "user" in rules:
            user = rules["user"]
            rules["user"] = replace(user, picture_shape=self._picture_shape(user))
        calibration = Calibration(
            rules=rules,
            refusals=refusals,
            forms=self.forms,
            generation_prompt=self._generation_prompt(),
            linearity=measure_linearity(self.renderer, rules, self.tools),
            images=images,
            image_roles=image_roles,
            groups_tool_results=self._groups(rules.get("tool")),
            renders_calls=self._renders_calls(rules.get("tool")),
            stop_ids=self._all_stop_ids(rules),
            verified=verified,
            notes=tuple(dict.fromkeys(note.replace(_REFUSED, "") for note in self.notes)),
        )
        return Calibrated(self.renderer, calibration)

    # ---- content

    def _content_forms(self) -> ContentForms:
        strings = self._shows({"role": "user", "content": PROBE})
        parts = self._shows({"role": "user", "content": [{"type": "text", "text": PROBE}]})
        if not strings and not parts:
            raise TemplateError(
                "the chat template does not render a user message: "
                + "; ".join(self.notes or ["its text is nowhere in the output"])
            )
        return ContentForms(strings=strings, parts=parts)

    def _shows(self, message: PlainMessage) -> bool:
        try:
            text = self.template.render([message])
        except TemplateError as error:
            self.notes.append(f"content as {type(message['content']).__name__}: {error}")
            return False
        return PROBE in text and "{'type'" not in text and '{"type"' not in text

    # ---- one role

    def _rule(self, role: ObservationRole, user: RoleRule | None) -> tuple[RoleRule, int]:
        variant, between = self._choose_variant(role)
        rule = self._find_closer(role, variant, between, user)
        rule = replace(rule, depends=find_dependencies(self.renderer, rule, self.tools, self.notes))
        count, problem = verify(self.renderer, rule, self.tools, self.notes)
        if problem:
            whole = rule.depends | {Dependency.HISTORY, Dependency.TOOLS}
            rule = replace(rule, depends=whole)
            count, still = verify(self.renderer, rule, self.tools, self.notes)
            if still:
                raise TemplateError(f"the delta differs from a full render: {still}")
            self.notes.append(f"{role}: needs the whole history: {problem}")
        return rule, count

    def _choose_variant(self, role: ObservationRole) -> tuple[Variant, str]:
        """Return the best way to write the reply, and the text between reply and observation."""
        fallback: tuple[Variant, str] | None = None
        reasons: list[str] = []
        for variant in variants(role):
            probe = RoleRule(
                role=role, variant=variant, closer="", closer_id=-1, closer_is_stop=False
            )
            observation = self.writer.observation(role, PROBE)
            try:
                text = self.renderer.after_reply(probe, [observation], tools=self.tools)
            except TemplateError as error:
                reasons.append(str(error))
                continue
            if PROBE not in text:
                reasons.append(f"{role} messages are dropped without an error")
                continue
            found = variant, text[: text.find(PROBE)]
            if variant.calls == "none" or self._has_call_mark(variant):
                return found
            fallback = fallback or found
        if fallback is not None:
            return fallback
        raise TemplateError(
            f"the chat template cannot render a {role} message after a reply: "
            + "; ".join(dict.fromkeys(reasons))
        )

    def _has_call_mark(self, variant: Variant) -> bool:
        reply = self.writer.reply(variant, [("f", CALL_ID)])
        messages = [self.writer.say("user", "u"), reply, self.writer.result(PROBE)]
        return self.writer.call_mark in self.template.render(messages, tools=self.tools)

    def _last_reply(self, variant: Variant) -> str | None:
        """Return the text after a reply that is the last message; None if that is refused."""
        reply = self.writer.reply(variant, [("f", CALL_ID)])
        try:
            text = self.template.render(
                [self.writer.say("user", "u"), reply], generation_prompt=False, tools=self.tools
            )
            return text[self.writer.after_reply(text) :]
        except TemplateError as error:
            self.notes.append(f"a conversation that ends with a reply: {error}")
            return None

    def _find_closer(
        self, role: ObservationRole, variant: Variant, between: str, user: RoleRule | None
    ) -> RoleRule:
        specials = self.template.specials_in(between)
        last = self._last_reply(variant)
        shared = _shared_length(between, last or "")
        last_specials = self.template.specials_in(last or "")
        inside = [found for found in specials if found[1] <= shared]
        stop = next((found for found in specials if found[2] in self.stop_ids), None)
        stand_in = next((f for f in last_specials if f[2] in self.stop_ids), None)
        if stop is not None:
            start, end, closer_id = stop
        elif stand_in is not None and specials and stand_in[0] == specials[0][0] <= shared:
            start, end, closer_id = specials[0]
        else:
            start, end, closer_id = self._guess(role, between, inside, user)
        is_stop = closer_id in self.stop_ids
        opener = is_stop and last is not None and start >= shared and stand_in is None
        return RoleRule(
            role=role,
            variant=variant,
            closer=between[start:end],
            closer_id=closer_id,
            closer_is_stop=is_stop,
            stand_in=last[stand_in[0] : stand_in[1]] if stand_in and last and not is_stop else "",
            opener=opener,
            prefix=between[:start] if variant.calls == "none" else "",
        )

    def _guess(
        self,
        role: ObservationRole,
        between: str,
        inside: Sequence[tuple[int, int, int]],
        user: RoleRule | None,
    ) -> tuple[int, int, int]:
        """Return the closer although no stop id marks it, where that is safe."""
        if inside:
            name = between[inside[-1][0] : inside[-1][1]]
            if role == "user" or (user is not None and user.closer == name):
                self.notes.append(
                    f"{role}: the reply is closed by {name!r} ({inside[-1][2]}), which is none of "
                    f"the stop ids {list(self.stop_ids)}; pass the engine's complete stop_ids"
                )
                return inside[-1]
        raise TemplateError(
            f"no stop token closes the reply before a {role} message (the template writes "
            f"{between[:80]!r} there, the stop ids are {list(self.stop_ids)}); pass the engine's "
            "complete stop_ids, as in the model's generation_config.json. A boundary of plain text "
            "cannot be proven"
        )

    # ---- the rest

    def _shape(self, rule: RoleRule) -> Any:  # noqa: ANN401  # TailShape | None
        if rule.depends - {Dependency.TOOLS, Dependency.IMAGES}:
            return None
        if not self.forms.strings:
            return None

        def tail_of(name: str, call_id: str) -> Callable[[str], str]:
            def render(content: str) -> str:
                message: PlainMessage = {"role": rule.role, "content": content}
                if rule.role == "tool":
                    message |= {"name": name, "tool_call_id": call_id}
                text = self.renderer.after_reply(rule, [message], tools=self.tools)
                return text[text.find(rule.closer) :]

            return render

        shape = derive_shape(self.template.syntax_tree, tail_of("f", CALL_ID))
        if shape is not None and rule.role == "tool":
            other = tail_of("another_name", "call00007")
            if any(other(probe) != shape.write(probe) for probe in ("x", "y z")):
                return None
        return shape

    def _picture_shape(self, rule: RoleRule) -> TailShape | None:
        if rule.depends - {Dependency.TOOLS} or not self.forms.parts:
            return None

        def tail_of(content: str) -> str:
            parts: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": content}]
            message: PlainMessage = {"role": "user", "content": parts}
            text = self.renderer.after_reply(rule, [message], tools=self.tools)
            return text[text.find(rule.closer) :]

        return derive_shape(self.template.syntax_tree, tail_of)

    def _generation_prompt(self) -> str:
        user = [self.writer.say("user", PROBE)]
        opened = self.template.render(user, tools=self.tools)
        try:
            closed = self.template.render(user, generation_prompt=False, tools=self.tools)
        except TemplateError as error:
            self.notes.append(f"a prompt without generation prompt: {error}")
            return ""
        shared = _shared_length(opened, closed)
        for start, end, _ in self.template.specials_in(opened):
            if start < shared < end:  # two tokens that begin alike
                shared = start
        return opened[shared:]

    def _all_stop_ids(self, rules: dict[str, RoleRule]) -> tuple[int, ...]:
        user = rules.get("user")
        if user is None or user.closer_is_stop or user.stand_in:
            return self.stop_ids
        return (*self.stop_ids, user.closer_id)

    def _groups(self, rule: RoleRule | None) -> bool:
        """Return whether consecutive tool results share one turn."""
        if rule is None:
            return False
        one = [self.writer.result(PROBE)]
        two = [*one, self.writer.result(PROBE, call_id="call00001")]
        history = [self.writer.say("user", "u"), self.writer.reply(rule.variant, [("f", CALL_ID)])]
        context: dict[str, Any] = {"history": history, "tools": self.tools}
        try:
            first = self.renderer.tail(rule, one, **context)
            both = self.renderer.tail(rule, two, **context)
        except TemplateError as error:
            self.notes.append(f"two tool results in a row: {error}")
            return False
        opening = first[: first.find(PROBE)]
        return (
            not both[both.find(PROBE) + len(PROBE) :]
            .partition(PROBE)[0]
            .endswith(opening[len(rule.closer) :].lstrip())
        )

    def _renders_calls(self, rule: RoleRule | None) -> bool:
        return (
            rule is not None and rule.variant.calls != "none" and self._has_call_mark(rule.variant)
        )


def _shared_length(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
