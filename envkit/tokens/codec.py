"""The chat codec: messages to token ids exactly as the model's chat template writes them.

Sampled ids are never encoded again. A prompt is one full render; an observation is a delta, whose
ids equal those that a full render has behind the last reply, at a cost that does not grow with the
history. See `envkit.tokens.calibration` for how that is found out and proven for a template.

Making a codec costs 20 to 300 ms the first time for a template and tokenizer (jinja compiles, some
hundred short renders), and about a millisecond afterwards: calibrations are kept per tokenizer. All
methods are synchronous and thread-safe; a codec has no state of a conversation.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, cast, get_args

from envkit.errors import ConfigurationError, TemplateError
from envkit.images import Image
from envkit.messages import Message, images_of
from envkit.tokens.audit import TemplateAudit, make_audit
from envkit.tokens.calibration import calibrate
from envkit.tokens.delta import CALL_PARTS, ToolSchemas, join
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.tokens.features import ImageEncoder, make_image_encoder, share_count
from envkit.tokens.placeholders import check_count, expand, image_token_id, media_tokens
from envkit.tokens.rules import Dependency, RoleRule
from envkit.tokens.sanity import SanityMode, SanityReport, SanityStatus, compare
from envkit.tokens.template import PlainMessage, Tokenizer
from envkit.tokens.texts import TextPolicy
from envkit.tools import ToolSpec

HistoryPolicy = Literal["keep", "rerender"]
StopMismatch = Literal["accept", "append", "raise"]
_HISTORY_PARTS = CALL_PARTS | {Dependency.HISTORY, Dependency.SYSTEM}
_PICTURE_KEYS, _TEXT_KEYS = {"type", "image"}, {"type", "text"}
_PLAIN_KEYS = frozenset({"role", "content", "name", "tool_call_id"})


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
        sanitize: bool = False,
        sanity: SanityMode = "strict",
        lazy_features: bool = False,
        vocabulary_size: int | None = None,
    ) -> None:
        """Calibrate the template, or take the kept calibration.

        Args:
            tokenizer_or_processor: A Hugging Face tokenizer, or a processor that has one.
            tools: The tools that prompts offer to the model.
            template_kwargs: Variables for the chat template, such as {"enable_thinking": False}.
            stop_ids: Every id that the engine stops on, as in generation_config.json; the
                tokenizer's own end of text is added. None takes that alone.
            history: For templates that rewrite earlier replies. "keep": the ledger keeps what was
                sampled. "rerender": the loop renders each prompt in full and starts a new sequence
                where it no longer continues the ledger.
            image_processor: For a tokenizer without processor, such as
                `AutoImageProcessor.from_pretrained(folder, backend="pil")`.
            stop_mismatch: When another stop token than the template's ended a reply: "accept" lets
                it stand in, "append" adds the template's, "raise" raises.
            sanitize: Neutralise control tokens inside user and tool messages.
            sanity: How `check_ledger` judges.
            lazy_features: Process a picture only when its tensors are read, for engines and
                trainers that process pictures themselves. How many tokens it has is taken from
                the first picture of its size, which is processed at once.
            vocabulary_size: How many ids the model can sample, padding of its embeddings included
                (`vocab_size` of config.json). None takes the tokenizer's, added tokens included.

        Raises:
            ConfigurationError: An argument is none of its choices, or no tokenizer was given.
            TemplateError: The template cannot be made exact; says why and what to do.
        """
        processor, tokenizer = _split(tokenizer_or_processor)
        _check_choice("history", history, get_args(HistoryPolicy))
        _check_choice("stop_mismatch", stop_mismatch, get_args(StopMismatch))
        _check_choice("sanity", sanity, get_args(SanityMode))
        self._tools = _schemas(tools)
        kwargs = dict(template_kwargs or {})
        own_template: Any = getattr(processor, "chat_template", None)
        if isinstance(own_template, str) and own_template != getattr(
            tokenizer, "chat_template", None
        ):
            kwargs.setdefault("chat_template", own_template)
        known = calibrate(
            tokenizer,
            kwargs=kwargs,
            tools=self._tools,
            stop_ids=_stop_ids(tokenizer, stop_ids),
            placeholder_id=image_token_id(processor, tokenizer),
        )
        self._calibration = known.calibration
        self._template, self._renderer, self._writer = known.template, known.renderer, known.writer
        if "user" in self._calibration.refusals:
            raise TemplateError(self._calibration.refusals["user"])
        self._syntax = self._calibration.images
        self._media = media_tokens(self._template, self._syntax)
        self._texts = TextPolicy(
            self._template,
            marks=(self._writer.text_mark, self._writer.call_mark),
            media=self._media,
            sanitize=sanitize,
        )
        self._image_encoder = make_image_encoder(
            processor,
            image_processor,
            None if self._syntax is None else self._syntax.placeholder,
            is_lazy=lazy_features,
        )
        self._vocabulary_size = max(
            vocabulary_size or 0, len(tokenizer), 1 + max(self._template.added, default=-1)
        )
        self._stop_set = frozenset(self._calibration.stop_ids)
        self._stop_mismatch: StopMismatch = stop_mismatch
        self._history: HistoryPolicy = history
        self._sanity: SanityMode = sanity
        self._audit = make_audit(self._calibration, history=history, placeholder=self._syntax)

    # ---- facts

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends a reply; what engines stop on by default."""
        return self._calibration.stop_ids

    @property
    def media_ids(self) -> tuple[int, ...]:
        """Placeholder ids of pictures and other media, never to be sampled; empty for text."""
        return tuple(self._media.values())

    @property
    def vocabulary_size(self) -> int:
        """Every id that a model may sample is below it."""
        return self._vocabulary_size

    @property
    def history(self) -> HistoryPolicy:
        """The policy for templates that rewrite earlier replies."""
        return self._history

    @property
    def rewrites_history(self) -> bool:
        """Whether a full render changes earlier replies, so that the policy matters."""
        return self._audit.rewrites_history

    def audit(self) -> TemplateAudit:
        """Return what calibration proved about the template."""
        return self._audit

    # ---- encoding

    def encode_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
    ) -> Encoded:
        """Render messages in full and encode them, ready for a reply.

        Args:
            messages: A conversation that ends with what the model is to answer.
            tools: Instead of the codec's own; None takes those.

        Raises:
            TemplateError: The template refuses the messages, or they cannot be exact.
            ImageError: A picture cannot be read or processed.
        """
        text = self._full_text(messages, tools)
        return self._encoded(text, self._template.encode(text), images_of(messages))

    def encode_observation(
        self,
        messages: Sequence[Message],
        *,
        sampled_ids: Sequence[int],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        previous_images: int = 0,
    ) -> Encoded:
        """Encode everything between a reply and the next one: what to append to the ledger.

        Args:
            messages: All messages that follow the reply, in one call: either user messages, or tool
                results with user messages after them.
            sampled_ids: The reply as the engine returned it; only its last id is read, to see
                whether the model closed its turn itself.
            history: Every earlier message, the reply included; read only where the audit says that
                the template depends on it.
            tools: Instead of the codec's own; None takes those.
            previous_images: How many pictures the ledger has already.

        Raises:
            TemplateError: The template cannot express the messages here, or needs `history`.
            ImageError: A picture cannot be read or processed.
        """
        rule = self._rule(messages)
        images = images_of(messages)
        if len(messages) == 1 and (tools is None or Dependency.TOOLS not in rule.depends):
            direct = self._direct_tail(rule, messages[0])
            if direct is not None:
                ids = self._template.encode(direct)
                joined = self._join(rule, ids, sampled_ids)
                if not images:
                    return Encoded(wire_ids=tuple(joined), train_ids=tuple(joined))
                return self._encoded(direct, joined, images, whole=ids)
        if not previous_images and history and Dependency.IMAGES in rule.depends:
            previous_images = len(images_of(history))
        tail = self._renderer.tail(
            rule,
            self._writer.fit(self._texts.apply(messages)),
            history=self._needed(rule, history),
            tools=self._tools if tools is None else _schemas(tools),
            earlier_images=previous_images,
        )
        ids = self._template.encode(tail)
        return self._encoded(tail, self._join(rule, ids, sampled_ids), images, whole=ids)

    def image_features(self, images: Sequence[Image]) -> tuple[ImageFeatures, ...]:
        """Return what the processor makes of some pictures, such as those of a stored ledger.

        Raises:
            TemplateError: The codec has no image processor.
            ImageError: A picture cannot be read or processed.
        """
        return tuple(self._encoder().features(image) for image in images)

    def is_quick(self, images: Sequence[Image]) -> bool:
        """Whether encoding some images takes no work on their pixels."""
        encoder = self._image_encoder
        if encoder is None or not encoder.repeats_placeholder:
            return False  # a whole processor works on the pixels to count the tokens of each text
        return all(image.is_ready() and encoder.is_quick(image) for image in images)

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Encode a reply as the model would sample it, its stop token included.

        For scripted replies only: what an engine sampled is never encoded again.
        """
        anchor, head, closer = self._reply_frame
        whole = self._template.encode(anchor + text)
        ids = whole[len(head) :] if whole[: len(head)] == head else self._template.encode(text)
        return (*ids, closer)

    @cached_property
    def _reply_frame(self) -> tuple[str, list[int], int]:
        """What stands before a reply, as text and ids, and the id that ends it."""
        rule = self._calibration.rules["user"]
        anchor = self._calibration.generation_prompt or rule.closer
        closer = self._calibration.stop_ids[0]
        if rule.closer_id in self._stop_set:
            closer = rule.closer_id
        elif rule.stand_in:
            closer = self._template.encode(rule.stand_in)[0]
        return anchor, self._template.encode(anchor), closer

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return a reply as text: its stop token removed, special tokens inside kept."""
        if token_ids and token_ids[-1] in self._stop_set:
            token_ids = token_ids[:-1]
        return self.decode_all(token_ids)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return token ids as text to look at: special tokens and a stop token at the end kept."""
        return self._template.decode(token_ids)

    # ---- checking

    def check_ledger(
        self,
        messages: Sequence[Message],
        wire_ids: Sequence[int],
        *,
        model_spans: Sequence[tuple[int, int]] | None = None,
        tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None,
        mode: SanityMode | None = None,
    ) -> SanityReport:
        """Compare a ledger with one full render of the conversation.

        Args:
            messages: The whole conversation; a last assistant message is compared as text, since
                templates write a last reply differently.
            wire_ids: The ledger, one placeholder per picture.
            model_spans: Start and end of each sampled run. With them, a ledger passes whose only
                difference is how the model split its own words; without, equal text passes.
            tools: Instead of the codec's own; None takes those.
            mode: Instead of the codec's own; None takes that.

        Raises:
            TemplateError: The template cannot render the conversation at all.
        """
        chosen = mode or self._sanity
        if chosen == "off":
            return SanityReport(status=SanityStatus.SKIPPED, mode=chosen, ok=True)
        context, ledger = list(messages), list(wire_ids)
        reply: Message | None = context.pop() if context[-1]["role"] == "assistant" else None
        full = self._template.encode(self._full_text(context, tools))
        cut = len(ledger) if reply is None else self._reply_start(ledger, full, reply)
        spans = [span for span in model_spans or () if span[1] <= cut]

        def is_context(rendered: Sequence[int]) -> bool:
            return model_spans is None or self._respelled(ledger[:cut], spans) == list(rendered)

        return compare(
            self._template,
            ledger[:cut],
            full,
            mode=chosen,
            rewrites=self.rewrites_history,
            is_context=is_context,
        )

    def _reply_start(self, ledger: list[int], full: list[int], reply: Message) -> int:
        """Return where the last reply starts; past the end when the ledger does not have it."""
        content = reply["content"] if isinstance(reply["content"], str) else ""
        if self.decode(ledger[len(full) :]) == content:
            return len(full)
        low, high = 0, len(ledger)
        while low < high:  # the last start from which the text is long enough
            middle = (low + high + 1) // 2
            if len(self.decode(ledger[middle:])) >= len(content):
                low = middle
            else:
                high = middle - 1
        return low if self.decode(ledger[low:]) == content else len(ledger)

    def _respelled(self, ledger: list[int], spans: Sequence[tuple[int, int]]) -> list[int]:
        result: list[int] = []
        position = 0
        for start, end in spans:
            result += ledger[position:start]
            result += self._template.encode(self._template.decode(ledger[start:end]))
            position = end
        return result + ledger[position:]

    # ---- pieces

    def _full_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec | Mapping[str, Any]] | None
    ) -> str:
        if not messages:
            raise TemplateError("a prompt needs at least one message, got none")
        if messages[-1]["role"] == "assistant":
            raise TemplateError(
                "a prompt must end with what the model is to answer, got an assistant message last"
            )
        given = self._tools if tools is None else _schemas(tools)
        return self._template.render(self._writer.fit(self._texts.apply(messages)), tools=given)

    def _direct_tail(self, rule: RoleRule, message: Message) -> str | None:
        """Return what an observation of a proven shape becomes; None to render it."""
        content = message["content"]
        if not _PLAIN_KEYS.issuperset(message):
            return None
        if type(content) is str:
            return None if rule.shape is None else rule.shape.write(self._texts.clean(content))
        text = _text_behind_picture(content)
        if rule.picture_shape is None or text is None:
            return None
        return rule.picture_shape.write(self._texts.clean(text))

    def _join(self, rule: RoleRule, ids: list[int], sampled_ids: Sequence[int]) -> list[int]:
        return join(
            self._template,
            rule,
            ids,
            sampled_ids,
            stop_ids=self._stop_set,
            mismatch=self._stop_mismatch,
        )

    def _rule(self, messages: Sequence[Message]) -> RoleRule:
        roles = [message["role"] for message in messages]
        first = roles[0] if roles else None
        others = roles[roles.count("tool") :] if first == "tool" else roles
        if first not in ("user", "tool") or any(role != "user" for role in others):
            raise TemplateError(
                "an observation is user messages, or tool results with user messages after them, "
                f"got roles {roles}"
            )
        rule = self._calibration.rules.get(first)
        if rule is None:
            raise TemplateError(
                f"{first} observations are refused: {self._calibration.refusals[first]}. "
                "Send tool output in a 'user' message instead"
            )
        return rule

    def _needed(self, rule: RoleRule, history: Sequence[Message]) -> list[PlainMessage]:
        if rule.depends & _HISTORY_PARTS:
            return self._writer.fit(self._texts.apply(history))
        return []

    def _encoded(
        self,
        text: str,
        ids: Sequence[int],
        images: tuple[Image, ...],
        whole: Sequence[int] | None = None,
    ) -> Encoded:
        """Expand the placeholders.

        Args:
            text: What was rendered.
            ids: Its ids, as they go into the ledger.
            images: Its pictures.
            whole: Its ids before they were joined with the reply; None if they are `ids`.
        """
        wire = tuple(ids)
        if self._syntax is None:
            if images:
                raise TemplateError("this chat template does not render images; take a VLM's")
            return Encoded(wire_ids=wire, train_ids=wire)
        check_count(wire, self._media, self._syntax, len(images))
        if not images:
            return Encoded(wire_ids=wire, train_ids=wire)
        encoder, features = self._encoder(), self.image_features(images)
        if encoder.repeats_placeholder:
            train = expand(wire, self._syntax, features)
        else:
            expanded = encoder.expand_text(text, images)
            added = len(wire) - len(
                whole or ids
            )  # before the text; below 0: its closer was sampled
            train = (*wire[:added], *expanded) if added > 0 else expanded[-added:]
            features = share_count(features, len(train) - len(wire))
        return Encoded(wire_ids=wire, train_ids=train, images=images, features=features)

    def _encoder(self) -> ImageEncoder:
        if self._image_encoder is None:
            raise TemplateError(
                "a message has images but the codec has no image processor; pass image_processor= "
                "or the model's processor (envkit.tokens.load_codec does it)"
            )
        return self._image_encoder


def _split(given: Any) -> tuple[Any, Tokenizer]:  # noqa: ANN401  # foreign objects
    """Return (processor or None, tokenizer)."""
    inner: Any = getattr(given, "tokenizer", None)
    processor = given if inner is not None and hasattr(given, "image_processor") else None
    tokenizer: Any = inner if processor is not None else given
    if not callable(getattr(tokenizer, "encode", None)) or not callable(
        getattr(tokenizer, "apply_chat_template", None)
    ):
        raise ConfigurationError(
            "a codec needs a Hugging Face tokenizer or processor, got "
            f"{type(given).__name__}; load one with envkit.tokens.load_codec(path_or_name)"
        )
    return processor, tokenizer


def _text_behind_picture(content: object) -> str | None:
    """Return the text of a content that is one picture and a text; None for any other."""
    if type(content) is not list or len(cast("list[Any]", content)) != 2:
        return None
    first, second = cast("list[dict[str, Any]]", content)
    if first.keys() != _PICTURE_KEYS or second.keys() != _TEXT_KEYS:
        return None
    if first["type"] != "image" or second["type"] != "text" or type(second["text"]) is not str:
        return None
    return second["text"]


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {list(choices)}, got {value!r}")


def _schemas(tools: Sequence[ToolSpec | Mapping[str, Any]]) -> ToolSchemas:
    """Return tools as templates read them, None for none."""
    schemas = [tool.to_json() if isinstance(tool, ToolSpec) else dict(tool) for tool in tools]
    return schemas or None


def _stop_ids(tokenizer: Tokenizer, given: Sequence[int] | None) -> tuple[int, ...]:
    own = tokenizer.eos_token_id
    ends = list(own) if isinstance(own, (list, tuple)) else [] if own is None else [own]
    stops = tuple(dict.fromkeys(int(identity) for identity in [*(given or ()), *ends]))
    if not stops:
        raise ConfigurationError(
            "a codec needs the ids that end a reply: the tokenizer names no eos_token; pass "
            "stop_ids= as in the model's generation_config.json"
        )
    return stops
