"""Learn how a template writes observations, once per template.

Calibration finds which content the template renders and how it writes images. For each role it then
finds a way to write the stand-in reply, the closer, and what the tail depends on, checks the rule
against full renders, and derives the shortcut for writing the tail. Rejected probes become notes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.closer import CloserFinder
from envkit.tokens.controls import Controls
from envkit.tokens.delta import DeltaRenderer
from envkit.tokens.linearity import measure_linearity
from envkit.tokens.placeholders import KNOWN_PLACEHOLDERS
from envkit.tokens.probes import Cases
from envkit.tokens.proof import check_own_reply, prove, render_cases, shorten, widen
from envkit.tokens.rules import (
    CALL_KEYS,
    Calibration,
    ContentForms,
    Dependency,
    ImageSyntax,
    ObservationRole,
    RoleRule,
    Variant,
)
from envkit.tokens.shape import TailShape, derive_shape
from envkit.tokens.template import ChatTemplate, PlainMessage, Tokenizer, ToolSchemas, template_text
from envkit.tokens.texts import TextPolicy
from envkit.tokens.writer import CALL_ID, PLAIN_REPLY, Writer, call_variants

PROBE = "Oo0bs"
_REJECTED = "the chat template rejects these messages: "
_ROLES: Final[tuple[ObservationRole, ...]] = ("user", "tool")
_CACHED = 24
"""Cached calibrations; each keeps its tokenizer alive."""


class Calibrated:
    """A calibration with its renderer: they share the marks."""

    def __init__(
        self,
        renderer: DeltaRenderer,
        calibration: Calibration,
        controls: Controls,
        tools: ToolSchemas,
    ) -> None:
        self.controls = controls
        self.tools = tools
        """Tool schemas in the templates' form, neutralised if the codec does that."""
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
    neutralise: bool,
) -> Calibrated:
    """Return the calibration of a template, from the cache if known; thread-safe.

    Raises:
        TemplateError: There is no template, or it cannot render [user, assistant, user].
    """
    text = template_text(tokenizer, kwargs.get("chat_template"), with_tools=bool(tools))
    size = len(tokenizer)  # tokens may have been added
    settings = repr((sorted(kwargs.items()), tools, stop_ids, placeholder_id, neutralise, size))
    key = (
        id(tokenizer),
        text,
        settings,
    )  # the cache keeps the tokenizer alive, so its id is not reused
    with _lock:
        known = _cache.get(key)
        if known is None:
            template = ChatTemplate(tokenizer, text, kwargs=kwargs)
            ids = (*stop_ids, *_known(placeholder_id))
            controls = Controls(template, ids, neutralise=neutralise)
            # Tools are foreign text as well: a dataset or an environment of another package wrote
            # them.
            if tools and neutralise:
                tools = TextPolicy(controls, marks=(), media=(), neutralise=True).schemas(tools)
            known = Calibrator(template, tools, stop_ids, placeholder_id).run(controls)
            _cache[key] = known
            if len(_cache) > _CACHED:
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
        self.verified = 0
        self.forms = self._content_forms()
        self.writer = Writer(self.forms)
        self.renderer = DeltaRenderer(template, self.writer)
        self.closers = CloserFinder(
            template, self.writer, tools=tools, stop_ids=stop_ids, notes=self.notes
        )

    def run(self, controls: Controls) -> Calibrated:
        """Probe everything.

        Args:
            controls: Tokens that foreign text must not become; kept with the result.

        Raises:
            TemplateError: User observations cannot be encoded exactly.
        """
        calls = self._call_variant()
        cases = Cases(self.template, self.writer, self.tools, calls)
        rules, refusals = self._rules(cases, PLAIN_REPLY)
        after_calls, call_refusals = self._rules(cases, calls, rules.get("user"))
        # Hunyuan's templates render a tool message after a plain reply, too, but differently than
        # after a call. The rule of calls would be wrong for them.
        if "tool" not in rules and "tool" in after_calls and not self._shows_plain_answers():
            rules["tool"] = after_calls["tool"]
            del refusals["tool"]
            self.renderer.call_variant = calls
        elif "tool" in refusals and "tool" in call_refusals and calls is not None:
            refusals["tool"] = call_refusals["tool"]
        user = rules.get("user")
        images, image_roles = _find_images(self.renderer, user, self.placeholder_id, self.notes)
        if images is not None:
            rules = self._with_images(cases, rules, refusals, numbered=images.numbered)
            after_calls = self._with_images(
                cases, after_calls, call_refusals, numbered=images.numbered
            )
        self._compare_forms(rules, after_calls)
        rules, after_calls = (
            {
                role: widen(
                    self.renderer,
                    cases,
                    shorten(self.renderer, cases, rule, self.notes, images=images is not None),
                )
                for role, rule in each.items()
            }
            for each in (rules, after_calls)
        )
        shaped = {role: replace(rule, shape=self._shape(rule)) for role, rule in rules.items()}
        if images is not None and not images.numbered and "user" in shaped:
            image_shape = self._image_shape(shaped["user"])
            shaped["user"] = replace(shaped["user"], image_shape=image_shape)
        structured = shaped | after_calls
        calibration = Calibration(
            rules=shaped,
            refusals=refusals,
            after_calls=after_calls,
            call_refusals=call_refusals,
            forms=self.forms,
            generation_prompt=self._generation_prompt(),
            linearity=measure_linearity(self.renderer, structured, self.tools),
            images=images,
            image_roles=image_roles,
            groups_tool_results=self._groups(structured.get("tool")),
            renders_calls=calls is not None and self._has_call_mark(calls),
            stop_ids=self._all_stop_ids(*rules.values(), *after_calls.values()),
            verified=self.verified,
            notes=tuple(dict.fromkeys(note.replace(_REJECTED, "") for note in self.notes)),
        )
        return Calibrated(self.renderer, calibration, controls, self.tools)

    def _shows_plain_answers(self) -> bool:
        """Whether the template renders a tool message after a plain reply in any way."""
        say, result = self.writer.say, self.writer.result
        talk = [say("user", "u"), say("assistant", "w"), result(PROBE)]
        for messages in (talk, [*talk, say("assistant", "w"), result(PROBE)]):
            for tools in (self.tools, None):
                with suppress(TemplateError):
                    if PROBE in self.template.render(messages, tools=tools):
                        return True
        return False

    def _rules(
        self, cases: Cases, variant: Variant | None, user: RoleRule | None = None
    ) -> tuple[dict[str, RoleRule], dict[str, str]]:
        """Return the rules after one form of reply, and the reasons for roles without a rule."""
        rules: dict[str, RoleRule] = {}
        refusals: dict[str, str] = {}
        for role in _ROLES:
            try:
                if variant is None:
                    raise TemplateError("the chat template renders no reply with structured calls")
                rules[role] = self._rule(cases, role, variant, user or rules.get("user"))
            except TemplateError as error:
                refusals[role] = str(error)
        return rules, refusals

    def _with_images(
        self,
        cases: Cases,
        rules: Mapping[str, RoleRule],
        refusals: dict[str, str],
        *,
        numbered: bool,
    ) -> dict[str, RoleRule]:
        """Return the rules that also hold for conversations with images."""
        result: dict[str, RoleRule] = {}
        for role, rule in rules.items():
            known = replace(rule, depends=rule.depends | {Dependency.IMAGES}) if numbered else rule
            rendered = render_cases(self.renderer, cases, known, self.notes, images=True)
            try:
                result[role] = prove(self.renderer, known, rendered) if rendered else known
            except TemplateError as error:
                refusals[role] = f"images: {error}"
        return result

    def _compare_forms(self, rules: dict[str, RoleRule], after_calls: dict[str, RoleRule]) -> None:
        """Add a dependency on the form of the reply if it changes what follows."""
        for role in _ROLES:
            plain, calling = rules.get(role), after_calls.get(role)
            if plain is None or calling is None or plain is calling:
                continue
            observed = [self.writer.observation(role, PROBE)]
            history = [self.writer.say("user", "u"), self.writer.say("assistant", "w")]
            tails = {
                self.renderer.tail(rule, observed, history=history, tools=self.tools)[
                    len(rule.closer) :
                ]
                for rule in (plain, calling)
            }
            if len(tails) > 1 or plain.depends != calling.depends:
                rules[role] = replace(plain, depends=plain.depends | {Dependency.REPLY})
                after_calls[role] = replace(calling, depends=calling.depends | {Dependency.REPLY})

    # ---- content

    def _content_forms(self) -> ContentForms:
        strings = self._shows({"role": "user", "content": PROBE})
        parts = self._shows({"role": "user", "content": [{"type": "text", "text": PROBE}]})
        if not strings and not parts:
            raise TemplateError(
                "the chat template does not render a user message: "
                + "; ".join(self.notes or ["its text is nowhere in the output"])
            )
        user = {"role": "user", "content": "u" if strings else [{"type": "text", "text": "u"}]}
        objects = self._shows_call(user, {"a": PROBE})
        texts = self._shows_call(user, PROBE)
        if not (objects or texts):  # it writes no calls, so their form does not matter
            objects = texts = True
        return ContentForms(strings=strings, parts=parts, objects=objects, texts=texts)

    def _shows_call(self, user: PlainMessage, arguments: str | dict[str, str]) -> bool:
        function = {"name": "f", "arguments": arguments}
        calls = [{"type": "function", "id": CALL_ID, "function": function}]
        called: PlainMessage = {"role": "assistant", "tool_calls": calls}
        for reply in ({**called, "content": ""}, called):
            with suppress(TemplateError):
                if PROBE in self.template.render([user, reply], tools=self.tools):
                    return True
        return False

    def _shows(self, message: PlainMessage) -> bool:
        try:
            text = self.template.render([message])
        except TemplateError as error:
            self.notes.append(f"content as {type(message['content']).__name__}: {error}")
            return False
        # A template that knows no parts prints the list itself, in which the probe stands, too.
        return PROBE in text and "{'type'" not in text and '{"type"' not in text

    # ---- one role

    def _rule(
        self, cases: Cases, role: ObservationRole, variant: Variant, user: RoleRule | None
    ) -> RoleRule:
        """Return the proven rule of a role after a form of reply.

        Raises:
            TemplateError: No rule could be proven.
        """
        rule = self.closers.find(role, variant, self._between(role, variant), user)
        if role == "tool":
            rule = replace(rule, depends=self._call_parts(rule))
            own = self._tail_of_call(rule, "f", "functions.f:0", answered="functions.f:0")
            rule = replace(rule, takes_any_call_id=own is not None)
        rendered = render_cases(self.renderer, cases, rule, self.notes)
        rule = prove(self.renderer, rule, rendered)
        check_own_reply(self.renderer, cases, rule)
        self.verified += len(rendered)
        return rule

    def _between(self, role: ObservationRole, variant: Variant) -> str:
        """Return the text between the stand-in reply and an observation.

        Raises:
            TemplateError: The template rejects or drops the observation.
        """
        rule = RoleRule(role=role, variant=variant, closer="", closer_id=-1, closer_is_stop=False)
        observed = self.writer.observation(role, PROBE)
        try:
            text = self.renderer.after_reply(rule, [observed], tools=self.tools)
        except TemplateError as error:
            raise TemplateError(
                f"the chat template cannot render a {role} message after a reply: "
                + str(error).replace(_REJECTED, "")
            ) from error
        if PROBE not in text:
            raise TemplateError(f"the chat template silently drops {role} messages after a reply")
        return text[: text.find(PROBE)]

    def _call_variant(self) -> Variant | None:
        """Return how to write a reply with structured calls; None if the template has no way."""
        fallback: Variant | None = None
        for variant in call_variants():
            try:
                if self._has_call_mark(variant):
                    return variant
                self._between("tool", variant)
            except TemplateError as error:
                self.notes.append(f"a structured call: {error}")
                continue
            fallback = fallback or variant
        return fallback

    def _call_parts(self, rule: RoleRule) -> frozenset[Dependency]:
        """Return which parts of a call the template writes or checks with its result."""
        base = self._tail_of_call(rule, "f", CALL_ID)
        others = {
            Dependency.CALL_NAME: self._tail_of_call(rule, "g", CALL_ID),
            Dependency.CALL_ID: self._tail_of_call(rule, "f", "call00005"),
        }
        found = {part for part, tail in others.items() if tail != base}
        for part, key in CALL_KEYS.items():
            if self._tail_of_call(rule, "f", CALL_ID, without=key) is None:
                found.add(part)
        return frozenset(found)

    def _tail_of_call(
        self,
        rule: RoleRule,
        name: str,
        call_id: str,
        *,
        answered: str = CALL_ID,
        without: str = "",
    ) -> str | None:
        """Return what follows a call with the stand-in result; None if the template rejects it."""
        reply = self.writer.reply(rule.variant, [(name, call_id)])
        messages = [self.writer.say("user", "u"), reply]
        result = self.writer.result(PROBE, call_id=answered)
        messages.append({key: value for key, value in result.items() if key != without})
        try:
            text = self.template.render(messages, tools=self.tools)
            return text[self.writer.after_reply(text) :]
        except TemplateError as error:
            self.notes.append(f"tool, another call: {error}")
            return None

    def _has_call_mark(self, variant: Variant) -> bool:
        reply = self.writer.reply(variant, [("f", CALL_ID)])
        messages = [self.writer.say("user", "u"), reply, self.writer.result(PROBE)]
        return self.writer.call_mark in self.template.render(messages, tools=self.tools)

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
            # The shape has the name and id of one call: it must not depend on them.
            other = tail_of("another_name", "call00007")
            if any(other(probe) != shape.write(probe) for probe in ("x", "y z")):
                return None
        return shape

    def _image_shape(self, rule: RoleRule) -> TailShape | None:
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
            if start < shared < end:  # two tokens with a common prefix
                shared = start
        return opened[shared:]

    def _all_stop_ids(self, *rules: RoleRule) -> tuple[int, ...]:
        """Return the stop ids plus closers that are not among them."""
        missing = [
            rule.closer_id
            for rule in rules
            if not (rule.closer_is_stop or rule.stand_in) and (rule.role == "user" or rule.opener)
        ]
        return tuple(dict.fromkeys((*self.stop_ids, *missing)))

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


def _known(identity: int | None) -> tuple[int, ...]:
    return () if identity is None else (identity,)


def _shared_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _find_images(
    renderer: DeltaRenderer,
    user: RoleRule | None,
    placeholder_id: int | None,
    notes: list[str],
) -> tuple[ImageSyntax | None, tuple[str, ...]]:
    """Return the placeholder, or None if the template writes none, and the roles that render it.

    Args:
        renderer: Renders the probes.
        user: The rule of user observations, to detect whether images are numbered.
        placeholder_id: The image token of the processor or tokenizer, if it names one.
        notes: Receives the reasons of rejected probes.
    """
    template, writer = renderer.template, renderer.writer
    text = {"type": "text", "text": PROBE}
    picture = [{"type": "image"}, text]

    def count(role: str, images: int) -> dict[int, int]:
        content = [{"type": "image"}] * images + [text]
        messages: list[PlainMessage] = [{"role": role, "content": content}]
        if role != "user":
            messages.insert(0, writer.say("user", "u"))
        if role == "tool":
            messages[-1] |= {"name": "f", "tool_call_id": "call00000"}
            messages.insert(1, writer.say("assistant", "w"))
        try:
            ids = template.encode(template.render(messages))
        except TemplateError as error:
            notes.append(f"an image in a {role} message: {error}")
            return {}
        return {identity: ids.count(identity) for identity in set(ids) & set(template.added)}

    none, one, two = (count("user", images) for images in (0, 1, 2))
    candidates = [
        identity
        for identity in two
        if [counts.get(identity, 0) - none.get(identity, 0) for counts in (one, two)] == [1, 2]
    ]
    chosen = _choose_placeholder(template, candidates, placeholder_id)
    if chosen is None:
        if candidates:
            names = [template.added[identity] for identity in candidates]
            notes.append(f"images: none of {names} is a known placeholder; pass the processor")
        return None, ()
    roles = ["user"]
    if count("tool", 1).get(chosen, 0) - count("tool", 0).get(chosen, 0) == 1:
        roles.append("tool")
    syntax = ImageSyntax(
        placeholder=template.added[chosen],
        placeholder_id=chosen,
        markup=_markup(template, template.render([{"role": "user", "content": picture}]), chosen),
        numbered=_is_numbered(renderer, user),
    )
    return syntax, tuple(roles)


def _markup(template: ChatTemplate, text: str, placeholder_id: int) -> str:
    """Return the placeholder in a text, with the added tokens that touch it."""
    tokens = template.specials_in(text)
    first = last = next(i for i, token in enumerate(tokens) if token.identity == placeholder_id)
    while first and tokens[first - 1].end == tokens[first].start:
        first -= 1
    while last + 1 < len(tokens) and tokens[last].end == tokens[last + 1].start:
        last += 1
    return text[tokens[first].start : tokens[last].end]


def _choose_placeholder(
    template: ChatTemplate, candidates: Sequence[int], placeholder_id: int | None
) -> int | None:
    if placeholder_id in candidates:
        return placeholder_id
    known = [i for i in candidates if template.added[i] in KNOWN_PLACEHOLDERS]
    return known[0] if len(known) == 1 else None


def _is_numbered(renderer: DeltaRenderer, user: RoleRule | None) -> bool:
    if user is None:
        return False
    picture: PlainMessage = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": PROBE}],
    }
    reply = renderer.writer.reply(user.variant, [])

    def tail(first: PlainMessage) -> str | None:
        try:
            text = renderer.template.render([first, reply, picture])
        except TemplateError:
            return None  # for example, roles must alternate: the same on both sides
        return text[renderer.writer.after_reply(text) :]

    return tail(renderer.writer.say("user", "u")) != tail(picture)
