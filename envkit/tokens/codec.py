"""The chat codec: messages to token ids exactly as the model's chat template writes them.

Sampled ids are never encoded again. A prompt is one full render; an observation is a delta, whose
ids equal those after the last reply in a full render, at a cost independent of the history.
`envkit.tokens.calibration` proves this for each template.

Creating a codec takes 20 to 300 ms the first time for a template and tokenizer (compiling jinja, a
few hundred short renders), and about a millisecond afterwards: calibrations are cached per
tokenizer. All methods are synchronous and thread-safe; a codec holds no conversation state.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from envkit.errors import TemplateError
from envkit.images import Image
from envkit.messages import Message, images_of
from envkit.ranges import one_of
from envkit.tokens import arguments
from envkit.tokens.audit import TemplateAudit, make_audit
from envkit.tokens.calibration import calibrate
from envkit.tokens.controls import open_shapes
from envkit.tokens.delta import join, unless_rejected
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.tokens.expansion import Expansion, ImageRules
from envkit.tokens.features import ImageEncoder, make_image_encoder
from envkit.tokens.incoming import AfterReply, check_messages, check_prompt
from envkit.tokens.placeholders import check_count, image_token_id, media_tokens
from envkit.tokens.replies import ReplyEncoder
from envkit.tokens.rules import Dependency, RoleRule
from envkit.tokens.sanity import LastReply, SanityReport, SanityStatus, check_delta
from envkit.tokens.shape import text_after_image
from envkit.tokens.template import PlainMessage, ToolSchemas, continued
from envkit.tokens.texts import TextPolicy, Write
from envkit.tokens.thoughts import thought_ending
from envkit.tokens.vocabulary import spelled
from envkit.tools import ToolSpec

if TYPE_CHECKING:
    from envkit.tokens.served import ServedTemplate

HistoryPolicy = Literal["keep", "rerender"]
StopMismatch = Literal["accept", "append", "raise"]
_PLAIN_KEYS = frozenset({"role", "content", "name", "tool_call_id"})
_CHECKED_IMAGES: Final = 8
"""Images above which a check skips the processor, which works on all their pixels."""
_VARIANTS: Final = 8
"""Codecs with other variables that one keeps."""


class ChatCodec:
    """Encodes prompts and observations for one model; decodes its replies."""

    def __init__(
        self,
        tokenizer_or_processor: Any,  # noqa: ANN401  # foreign objects of an optional dependency
        *,
        tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        stop_ids: Sequence[int] | None = None,
        history: HistoryPolicy = "keep",
        image_processor: Any = None,  # noqa: ANN401  # as above
        stop_mismatch: StopMismatch = "accept",
        neutralise: bool = True,
        lazy_features: bool = False,
        vocabulary_size: int | None = None,
    ) -> None:
        """Calibrate the template, or use the cached calibration.

        Args:
            tokenizer_or_processor: A Hugging Face tokenizer, or a processor that has one.
            tools: The tools that prompts offer to the model.
            template_kwargs: Variables for the chat template, such as {"enable_thinking": False}.
            stop_ids: Every id that the engine stops on, as in generation_config.json; the
                tokenizer's own end of text is added. None uses only that.
            history: For templates that rewrite earlier replies. "keep": the ledger keeps what was
                sampled. "rerender": the loop renders each prompt in full and starts a new sequence
                if it no longer continues the ledger.
            image_processor: For a tokenizer without processor, such as
                `AutoImageProcessor.from_pretrained(folder, backend="pil")`.
            stop_mismatch: If a stop token other than the template's ended a reply, "accept" keeps
                it in place of the template's, "append" adds the template's, and "raise" raises.
            neutralise: Break control tokens in every text except the model's own replies and
                trusted text (`envkit.messages.Trusted`). False leaves text unchanged.
            lazy_features: Process an image only when its tensors are read, for engines and trainers
                that process images themselves. Its token count comes from the first image of its
                size, which is processed immediately.
            vocabulary_size: Number of ids the model can sample, including padding of its embeddings
                (`vocab_size` of config.json). None uses the tokenizer's, including added tokens.

        Raises:
            ConfigurationError: An argument has an unknown value, or no tokenizer was given.
            TemplateError: The template cannot be encoded exactly; the message gives the reason and
                the fix.
        """
        self.variables = dict(template_kwargs or {})
        self._variants: OrderedDict[str, ChatCodec] = OrderedDict()
        self._with = partial(
            ChatCodec,
            tokenizer_or_processor,
            tools=tools,
            stop_ids=stop_ids,
            history=history,
            image_processor=image_processor,
            stop_mismatch=stop_mismatch,
            neutralise=neutralise,
            lazy_features=lazy_features,
            vocabulary_size=vocabulary_size,
        )
        processor, tokenizer = arguments.split_processor(tokenizer_or_processor)
        arguments.check_repeatable(tokenizer)
        one_of("history", history, get_args(HistoryPolicy))
        one_of("stop_mismatch", stop_mismatch, get_args(StopMismatch))
        known = calibrate(
            tokenizer,
            kwargs=arguments.template_arguments(processor, tokenizer, template_kwargs),
            tools=arguments.tool_schemas(tools),
            stop_ids=arguments.all_stop_ids(tokenizer, stop_ids),
            placeholder_id=image_token_id(processor, tokenizer),
            neutralise=neutralise,
        )
        self._calibration = known.calibration
        self._template, self._renderer, self._writer = known.template, known.renderer, known.writer
        if "user" in self._calibration.refusals:
            raise TemplateError(self._calibration.refusals["user"])
        self._syntax = self._calibration.images
        self._media = media_tokens(self._template, self._syntax)
        self._texts = TextPolicy(
            known.controls,
            marks=(self._writer.text_mark, self._writer.call_mark),
            media=self._media,
            image_roles=self._calibration.image_roles,
            neutralise=neutralise,
        )
        self._tools = known.tools
        self._open_shapes = open_shapes(known.controls, self._calibration.rules.values())
        self._image_encoder = make_image_encoder(
            processor,
            image_processor,
            self._template,
            self._syntax,
            anchor=self._calibration.rules["user"].closer,
            is_lazy=lazy_features,
        )
        self._vocabulary_size = max(
            vocabulary_size or 0, len(tokenizer), 1 + max(self._template.added, default=-1)
        )
        self._stop_set = frozenset(self._calibration.stop_ids)
        self._replies = ReplyEncoder(self._template, self._calibration, self._texts)
        self._stop_mismatch: StopMismatch = stop_mismatch
        self._join = partial(join, self._template, stop_ids=self._stop_set, mismatch=stop_mismatch)
        self._history: HistoryPolicy = history
        self._thought_endings: dict[str, str] = {}
        self._visible: dict[int, str] = {}
        self._audit = make_audit(
            self._calibration,
            history=history,
            placeholder=self._syntax,
            names=self._template.added,
            neutralised=self.neutralised,
            neutralised_by=self.breaker if neutralise else "",
        )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a reply; engines stop on them by default."""
        return self._calibration.stop_ids

    @property
    def media_ids(self) -> tuple[int, ...]:
        """Placeholder ids of images and other media, never to be sampled; empty for text."""
        return tuple(self._media.values())

    @cached_property
    def served(self) -> "ServedTemplate":
        """What a server decides about the template."""
        from envkit.tokens.served import ServedTemplate  # jinja2 is slow to import

        return ServedTemplate(self._template)

    def with_variables(self, given: Mapping[str, Any]) -> "ChatCodec":
        """Return a codec with other variables for the template, whose texts are foreign.

        Args:
            given: Values by name. Names that the template does not read are ignored.

        Returns:
            This codec if nothing changes. Others are made once, in up to a second.

        Raises:
            TemplateError: The template cannot be encoded exactly with them.
        """
        read = {name: given[name] for name in sorted(self.served.variables & given.keys())}
        (clean,) = self._texts.schemas([read])
        changed = {
            name: value
            for name, value in clean.items()
            if name not in self.variables or json.dumps(value) != json.dumps(self.variables[name])
        }
        if not changed:
            return self
        key = json.dumps(changed)
        found = self._variants.pop(key, None)
        if found is None:
            found = self._with(template_kwargs={**self.variables, **changed})
        self._variants[key] = found
        # A client chooses the variables, so it must not fill the memory with codecs.
        while len(self._variants) > _VARIANTS:
            self._variants.popitem(last=False)
        return found

    @property
    def vocabulary_size(self) -> int:
        """Upper bound of the ids that the model can sample."""
        return self._vocabulary_size

    @property
    def history(self) -> HistoryPolicy:
        """The policy for templates that rewrite earlier replies."""
        return self._history

    @property
    def rewrites_history(self) -> bool:
        """Whether a full render changes earlier replies, so that the policy matters."""
        return self._audit.rewrites_history

    @property
    def neutralised(self) -> tuple[str, ...]:
        """Control tokens that foreign text cannot form; empty without `neutralise`."""
        return self._texts.controls.names if self._texts.neutralise else ()

    @property
    def breaker(self) -> str:
        """Name of the character inserted into them, such as "U+200B ZERO WIDTH SPACE"."""
        return self._texts.controls.breaker_name

    def audit(self) -> TemplateAudit:
        """Return the audit of the template."""
        return self._audit

    def image_rules(self) -> ImageRules:
        """Return how the processor expands and joins images; the first call proves it.

        Raises:
            TemplateError: The codec has no processor, or the processor is not supported.
        """
        return self._encoder().rules

    def readable(self, entry: Message, *, follows_call: bool = False) -> Message:
        """Return a message in a role that the template renders.

        A tool message becomes a user message if the template has no tool role (Gemma 3, Mistral
        7B), or drops images of tool messages.

        Args:
            entry: The message.
            follows_call: Whether the message before it has structured calls, after which some
                templates have a tool role (Gemma 4).
        """
        if entry["role"] != "tool":
            return entry
        has_role = "tool" in self._calibration.rules or (follows_call and self.served.takes_results)
        if has_role and ("tool" in self._calibration.image_roles or not images_of([entry])):
            return entry
        return {**entry, "role": "user"}

    # ---- encoding

    def encode_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        after_reply: AfterReply = "refuse",
    ) -> Encoded:
        """Render messages in full and encode them, ready for a reply.

        Args:
            messages: A conversation that ends with the message to answer.
            tools: Replaces the codec's own tools; None uses those.
            after_reply: What a prompt that ends with a reply means: an error, an answer to it, or
                the start of the reply to sample.

        Raises:
            TemplateError: The template rejects the messages, or they cannot be encoded exactly.
            ImageError: An image cannot be read or processed.
        """
        check_prompt(messages, after_reply=after_reply)
        is_continued = after_reply == "continue" and messages[-1]["role"] == "assistant"
        write = self._continued_writer(tools) if is_continued else self._prompt_writer(tools)
        text, neutralised = self._texts.render(messages, write)
        ids = self._template.encode_prompt(text)
        return self._encoded(text, ids, images_of(messages), neutralised)

    def encode_observation(
        self,
        messages: Sequence[Message],
        *,
        sampled_ids: Sequence[int],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        previous_images: int | None = None,
    ) -> Encoded:
        """Encode everything between a reply and the next, to append to the ledger.

        Args:
            messages: All messages that follow the reply, in one call: either user messages, or tool
                results with user messages after them.
            sampled_ids: The reply as the engine returned it; only its last id is read, to see
                whether the model closed its turn itself.
            history: All earlier messages, including the reply; read only if the audit says that the
                template depends on it.
            tools: Replaces the codec's own tools; None uses those.
            previous_images: Number of images already in the ledger; None counts those of `history`.
                Read only if the template or the processor numbers images.

        Raises:
            TemplateError: The template cannot express the messages here, or needs `history`.
            ImageError: An image cannot be read or processed.
        """
        rule = self._rule(messages, history)
        images = images_of(messages)
        direct = self._direct_tail(rule, messages, tools)
        if direct is not None:
            tail, neutralised = direct
            ids = self._template.encode(tail)
            joined = tuple(self._join(rule, ids, sampled_ids))
            if not images:
                return Encoded(wire_ids=joined, train_ids=joined, neutralised=neutralised)
            earlier = self._earlier(rule, images, history, previous_images)
            return self._encoded(tail, joined, images, neutralised, whole=ids, earlier=earlier)
        earlier = self._earlier(rule, images, history, previous_images)
        schemas = self._given(tools)

        def written(rule: RoleRule) -> tuple[str, int]:
            write, kept = self._renderer.writer_of(
                rule, history, tools=schemas, earlier_images=earlier
            )
            check_messages(kept)
            return self._texts.render(messages, write, history=kept)

        tail, neutralised = unless_rejected(rule, written)
        ids = self._template.encode(tail)
        joined = self._join(rule, ids, sampled_ids)
        return self._encoded(tail, joined, images, neutralised, whole=ids, earlier=earlier)

    def image_features(self, images: Sequence[Image]) -> tuple[ImageFeatures, ...]:
        """Return the processor's features of images, such as those of a stored ledger.

        Raises:
            TemplateError: The codec has no image processor.
            ImageError: An image cannot be read or processed.
        """
        return tuple(self._encoder().features(image) for image in images)

    def is_quick(self, images: Sequence[Image]) -> bool:
        """Whether encoding some images takes no work on their pixels."""
        encoder = self._image_encoder
        return encoder is not None and all(
            image.is_ready() and encoder.is_quick(image) for image in images
        )

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Encode a reply as the model would sample it, including its stop token.

        Only for scripted replies: sampled ids are never encoded again.
        """
        return self._replies.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return a reply as text: its stop token removed, special tokens inside kept."""
        if token_ids and token_ids[-1] in self._stop_set:
            token_ids = token_ids[:-1]
        return self.decode_all(token_ids)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return token ids as text for display, keeping special tokens and the final stop token."""
        return self._template.decode(token_ids)

    def token_text(self, token_id: int) -> str:
        r"""Return the text of one id for people; a part of a character is written as `\xe2`."""
        name_of: Any = getattr(self._template.tokenizer, "convert_ids_to_tokens", None)
        name: object = None if name_of is None else name_of(token_id)
        return spelled(self.decode_all([token_id]), name)

    def visible_text(self, token_id: int) -> str:
        """Return an id's own text without white space at its end; it is decoded once."""
        known = self._visible.get(token_id)
        if known is None:
            known = self._visible[token_id] = self.decode_all([token_id]).rstrip()
        return known

    def encode_text(self, text: str) -> list[int]:
        """Return a text's ids from the tokenizer alone, without neutralising."""
        return self._template.encode(text)

    def thought_ending(self, mark: str) -> str:
        """Return what the template writes from a thought's end, at `mark`, to its turn's end."""
        known = self._thought_endings
        if mark not in known:  # every reply that is cut in a thought asks several times
            rules, tools = self._calibration.rules, self._tools
            known[mark] = thought_ending(self._template, self._writer, rules, mark, tools=tools)
        return known[mark]

    def check_observation(
        self,
        messages: Sequence[Message],
        encoded: Encoded,
        *,
        sampled_ids: Sequence[int],
        history: Sequence[Message],
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
    ) -> SanityReport:
        """Compare an encoded observation with a full render of the real conversation.

        Takes a few full renders; see `envkit.tokens.sanity` for what equality proves.

        Args:
            messages: The messages after the reply, as given to `encode_observation`.
            encoded: The result of `encode_observation`.
            sampled_ids: As for `encode_observation`.
            history: All messages up to and including the reply.
            tools: As for `encode_observation`.

        Raises:
            TemplateError: The messages are not an observation.
        """
        check_messages(history)
        rule = self._rule(messages, history)
        if not history or history[-1]["role"] != "assistant":
            return SanityReport(status=SanityStatus.UNCHECKED, reason="the history has no reply")
        whole = [*history, *messages]
        images = images_of(whole)
        encoder = self._image_encoder if len(images) <= _CHECKED_IMAGES else None

        def as_rendered(rule: RoleRule) -> list[PlainMessage]:
            write, seen, before = None, messages, rule.read(history)
            # There the whole conversation decides which texts are hardened, as in its prompt.
            if self._history == "rerender" and self.rewrites_history:
                write, seen, before = self._prompt_writer(tools), whole, ()
            elif self._direct_tail(rule, messages, tools) is None:
                earlier = self._earlier(rule, images_of(messages), history, None)
                write, before = self._renderer.writer_of(
                    rule, history, tools=self._given(tools), earlier_images=earlier
                )
            return self._texts.as_rendered(seen, write, history=before, whole=whole)

        def as_encoded() -> list[PlainMessage]:
            clean = unless_rejected(rule, as_rendered)
            return self._renderer.with_calls(self._writer.fit(clean))

        reply = LastReply(
            index=len(history) - 1,
            sampled_ids=sampled_ids,
            rule=rule,
            stop_ids=self._stop_set,
            adds_closer=rule.opener or self._stop_mismatch == "append",
        )
        process = partial(encoder.whole, images) if encoder else None
        return check_delta(
            self._template, as_encoded, encoded, reply, tools=self._given(tools), process=process
        )

    # ---- pieces

    def _rule(self, messages: Sequence[Message], history: Sequence[Message]) -> RoleRule:
        """Return the rule for messages after the last one of a history, if that is known."""
        last = history[-1:]
        check_messages([*messages, *last])
        roles = [entry["role"] for entry in messages]
        rule = self._calibration.rule(roles, *last or (None,))
        try:
            return rule.within(history)
        # Only now: to check the whole history at every turn would be quadratic.
        except (AttributeError, LookupError, TypeError):
            check_messages(history)  # says which message is malformed
            raise

    def _prompt_writer(self, tools: Sequence[ToolSpec | Mapping[str, Any]] | None) -> Write:
        """Return a function that renders cleaned messages in full."""
        given = self._given(tools)
        return lambda clean, _: self._template.render(self._writer.fit(clean), tools=given)

    def _continued_writer(self, tools: Sequence[ToolSpec | Mapping[str, Any]] | None) -> Write:
        """Return a function that renders cleaned messages up to the end of the last one's text."""
        render = partial(self._template.render, generation_prompt=False, tools=self._given(tools))
        return lambda clean, _: continued(self._writer.fit(clean), render)

    def _direct_tail(
        self,
        rule: RoleRule,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None,
    ) -> tuple[str, int] | None:
        """Write an observation by its proven shape, and count the changed texts.

        None means that the template has to render it.
        """
        if len(messages) != 1 or (tools is not None and Dependency.TOOLS in rule.depends):
            return None
        message = messages[0]
        if message["role"] == "system":
            return None
        content: Any = message["content"]
        shape, text = rule.shape, content
        if type(content) is not str:
            shape, text = rule.image_shape, text_after_image(content)
        if shape is None or text is None or not _PLAIN_KEYS.issuperset(message):
            return None
        if shape in self._open_shapes:
            return None
        clean = self._texts.clean(text)
        tail = shape.write(clean)
        return None if tail is None else (tail, int(clean is not text))

    def _given(self, tools: Sequence[ToolSpec | Mapping[str, Any]] | None) -> ToolSchemas:
        """Return tools as schemas for the template, by default the codec's own."""
        if tools is None:
            return self._tools
        schemas = arguments.tool_schemas(tools)
        return self._texts.schemas(schemas) if schemas and self._texts.neutralise else schemas

    def _earlier(
        self,
        rule: RoleRule,
        images: Sequence[Image],
        history: Sequence[Message],
        given: int | None,
    ) -> int:
        """Return the number of earlier images if it changes what follows, else 0."""
        if given is not None or not images:
            return given or 0
        encoder = self._image_encoder
        numbered = encoder is not None and encoder.rules.expansion is Expansion.NUMBERED
        if not numbered and Dependency.IMAGES not in rule.depends:
            return 0
        if not history:
            raise TemplateError(
                "this model numbers the images of a conversation; pass previous_images=, or "
                "history= with every earlier message"
            )
        return len(images_of(history))

    def _encoded(
        self,
        text: str,
        ids: Sequence[int],
        images: tuple[Image, ...],
        neutralised: int,
        whole: Sequence[int] | None = None,
        earlier: int = 0,
    ) -> Encoded:
        """Expand the placeholders.

        Args:
            text: The rendered text.
            ids: Its ids, as they go into the ledger.
            images: Its images.
            neutralised: How many of its texts were changed.
            whole: Its ids before they were joined with the reply; None if they equal `ids`.
            earlier: Number of images in the conversation before these.
        """
        wire = tuple(ids)
        if self._syntax is not None:
            check_count(wire, self._media, self._syntax, len(images))
        elif images:
            raise TemplateError("this chat template does not render images; use a VLM's template")
        if not images:
            return Encoded(wire_ids=wire, train_ids=wire, neutralised=neutralised)
        added = len(wire) - len(whole or ids)
        train, features = self._encoder().expand(wire, text, images, added=added, earlier=earlier)
        return Encoded(
            wire_ids=wire,
            train_ids=train,
            images=images,
            features=features,
            neutralised=neutralised,
        )

    def _encoder(self) -> ImageEncoder:
        if self._image_encoder is None:
            raise TemplateError(
                "a message has images but the codec has no image processor; pass image_processor= "
                "or the model's processor (envkit.tokens.load_codec does so)"
            )
        return self._image_encoder
