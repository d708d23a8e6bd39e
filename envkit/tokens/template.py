"""A chat template as transformers runs it: messages to text, text to ids.

Rendering calls the compiled template directly (`envkit.tokens.jinja`), with inputs prepared as in
`apply_chat_template` of transformers 5: keys whose value is None are dropped, special tokens are
variables, reasoning has three names, and an image is only `{"type": "image"}`. Both ways are
compared when the template is loaded; if they differ, `apply_chat_template` itself is used.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from envkit.errors import TemplateError
from envkit.tokens.chunks import Chunks, cutting_marks

if TYPE_CHECKING:
    from jinja2 import Template, nodes

PlainMessage = dict[str, Any]
"""A message as a template reads it: JSON data only."""
ToolSchemas = Sequence[Mapping[str, Any]] | None
"""Tools as a template reads them; None without tools."""

_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG"
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_SAMPLES = (
    "plain words, 12 + 3 = 15.\n",
    "  \n\n\tedges \u00e9 \u4e16\u754c \U0001f680 \\n \r\n ",
    "<|im_end|>\n<|im_start|>user\n</s> [INST]<end_of_turn>\n<|eot_id|> x",
)


class Tokenizer(Protocol):
    """The tokenizer interface of a codec, which every Hugging Face tokenizer has."""

    @property
    def eos_token_id(self) -> int | list[int] | None:
        """The token, or tokens, that end a text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Turn text into ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Turn ids into text."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens, including added ones."""
        ...

    def get_added_vocab(self) -> dict[str, int]:
        """Return the added tokens, including special ones, by their text."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:  # noqa: ANN401
        """Render messages; called with tokenize=False."""
        ...


class AddedToken(NamedTuple):
    """An added token in a text."""

    start: int
    end: int
    identity: int


class ChatTemplate:
    """One template with its tokenizer and extra variables, without conversation state."""

    def __init__(self, tokenizer: Tokenizer, text: str, *, kwargs: Mapping[str, Any]) -> None:
        """Compile the template and prove the shortcuts for rendering and encoding.

        Args:
            tokenizer: A Hugging Face tokenizer, or anything that behaves like one.
            text: The template, as returned by `template_text`.
            kwargs: Variables for the template, as for `apply_chat_template`.

        Raises:
            TemplateError: The template does not compile.
        """
        self.tokenizer = tokenizer
        self.kwargs = dict(kwargs)
        self.text = text
        self.added: dict[int, str] = {
            identity: name for name, identity in tokenizer.get_added_vocab().items()
        }
        self._variables = _variables(tokenizer, self.kwargs)
        self._compiled: Template | None = _compile(self.text)
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not self._direct_render_is_equal():
            self._compiled = None
        if not self._direct_encode_is_equal():
            self._backend = None

    # ---- text

    def render(
        self,
        messages: Sequence[PlainMessage],
        *,
        generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render plain messages.

        Raises:
            TemplateError: The template rejects the messages; the message quotes its error.
        """
        try:
            if self._compiled is None:
                return self._render_through_tokenizer(messages, generation_prompt, tools)
            return self._compiled.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except Exception as error:  # a template is foreign code and can raise anything
            raise TemplateError(f"the chat template rejects these messages: {error}") from error

    @cached_property
    def syntax_tree(self) -> "nodes.Template | None":
        """The parsed template; None if it is rendered through the tokenizer."""
        return None if self._compiled is None else self._compiled.environment.parse(self.text)

    @cached_property
    def compared(self) -> frozenset[str]:
        """The strings that the template compares text with or searches for."""
        if self.syntax_tree is None:
            return frozenset()
        found: set[str] = set()
        from jinja2 import nodes

        asking = (nodes.Compare, nodes.Call, nodes.Test)
        places: list[nodes.Node] = list(self.syntax_tree.find_all(asking))
        places += [one.node for one in self.syntax_tree.find_all(nodes.Assign)]
        places += [one.iter for one in self.syntax_tree.find_all(nodes.For)]
        found = {value for value in self.kwargs.values() if isinstance(value, str)}
        for place in places:
            if isinstance(place, (*asking, nodes.List, nodes.Tuple, nodes.Dict)):
                inner = place.find_all((nodes.Const, nodes.Add, nodes.Concat))
                found.update(value for value in map(_constant, inner) if value is not None)
            elif (value := _constant(place)) is not None:
                found.add(value)
        return frozenset(found - {self.kwargs.get("chat_template")})

    def _render_through_tokenizer(
        self,
        messages: Sequence[PlainMessage],
        generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=generation_prompt,
            tools=None if tools is None else list(tools),
            **self.kwargs,
        )

    def _direct_render_is_equal(self) -> bool:
        if self._compiled is None:
            return False
        function: dict[str, Any] = {"name": "f", "arguments": {}}
        call = {"type": "function", "id": "call00000", "function": function}
        user: PlainMessage = {"role": "user", "content": _SAMPLES[0]}
        conversations: list[list[PlainMessage]] = [
            [user],
            [{"role": "system", "content": "s"}, user],
            [user, {"role": "assistant", "content": "w", "reasoning": "r"}, user],
            [user, {"role": "assistant", "content": "", "tool_calls": [call]}],
        ]
        for messages in conversations:
            for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
                direct = _outcome(lambda m=messages, t=tools: self.render(plain(m), tools=t))
                theirs = _outcome(
                    lambda m=messages, t=tools: self._render_through_tokenizer(m, True, t)
                )
                if direct != theirs:
                    return False
        return True

    # ---- ids

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without adding special tokens."""
        backend = self._backend
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return backend.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """Turn a rendered conversation into ids; parts of earlier ones are remembered."""
        return self._chunks.encode(text)

    @cached_property
    def _chunks(self) -> Chunks:
        turns: list[PlainMessage] = [{"role": "user", "content": "a"}]
        turns += [{"role": "assistant", "content": "b"}, *turns]
        sample = "" if self._backend is None else _outcome(lambda: self.render(turns)) or ""
        marks = cutting_marks(self.tokenizer, self.encode, sample, ("", *_SAMPLES))
        return Chunks(self.encode, marks)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens written out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def specials_in(self, text: str) -> list[AddedToken]:
        """Return the added tokens in a text, as the tokenizer sees them.

        Found by name and in order rather than by the tokenizer's offsets, which include white space
        around tokens that strip it.
        """
        found: list[AddedToken] = []
        position = 0
        for identity in self.encode(text):
            name = self.added.get(identity)
            if name is None:
                continue
            start = text.find(name, position)
            if start < 0:
                continue
            position = start + len(name)
            found.append(AddedToken(start, position, identity))
        return found

    def _direct_encode_is_equal(self) -> bool:
        if self._backend is None:
            return False
        return all(
            self.encode(sample) == list(self.tokenizer.encode(sample, add_special_tokens=False))
            for sample in _SAMPLES
        )


def _constant(node: "nodes.Node") -> str | None:
    """Return the string that a part of a template always is, or None."""
    from jinja2 import nodes

    try:
        value: Any = node.as_const() if isinstance(node, nodes.Expr) else None
    except Exception:  # noqa: BLE001  # not constant, or an error in the template
        return None
    return value if isinstance(value, str) else None


def plain(messages: Sequence[Mapping[str, Any]]) -> list[PlainMessage]:
    """Return messages as JSON data for a template; images become `{"type": "image"}`."""
    return [_plain_message(entry) for entry in messages]


def _plain_message(entry: Mapping[str, Any]) -> PlainMessage:
    result: PlainMessage = {}
    for key, value in entry.items():
        if value is not None:
            result[key] = value if type(value) is str else _plain_value(value)
    for key in _REASONING_KEYS:
        reasoning = result.get(key)
        if reasoning is not None:
            return {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _plain_value(value: Any) -> Any:  # noqa: ANN401  # foreign data
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        if value.get("type") == "image":  # pyright: ignore[reportUnknownMemberType]
            return {"type": "image"}
        return {str(key): _plain_value(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return str.__str__(value)  # enums and numpy strings have methods that a sandbox rejects
    return value if isinstance(value, (int, float)) else f"<{type(value).__name__}>"


def template_text(tokenizer: Tokenizer, override: object, *, with_tools: bool) -> str:
    """Return the text of the template that a tokenizer uses.

    Args:
        tokenizer: The tokenizer.
        override: The option `chat_template`: a template, or the name of one of several.
        with_tools: Whether tools will be passed; some models have a separate template for them.

    Raises:
        TemplateError: The tokenizer has no template.
    """
    getter: Any = getattr(tokenizer, "get_chat_template", None)
    if getter is None:
        text: Any = override or getattr(tokenizer, "chat_template", None)
    else:
        try:
            text = getter(override, [{}] if with_tools else None)
        except ValueError as error:
            raise TemplateError(_no_template(tokenizer)) from error
    if not isinstance(text, str) or not text:
        raise TemplateError(_no_template(tokenizer))
    return text


def _no_template(tokenizer: Tokenizer) -> str:
    return (
        f"the tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__!r} has "
        "no chat template, as is usual for base models. Use an instruct model, or pass "
        "template_kwargs={'chat_template': ...}"
    )


def _variables(tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    special: Any = getattr(tokenizer, "special_tokens_map", None) or {}
    merged = {**special, **kwargs}
    merged.pop("chat_template", None)
    return {key: _plain_value(value) for key, value in merged.items()}


def _compile(text: str) -> "Template":
    from envkit.tokens.jinja import compile_template  # jinja2 is slow to import

    try:
        return compile_template(text)
    except Exception as error:  # a syntax error, or an error in a template's constants
        raise TemplateError(f"the chat template does not compile: {error}") from error


def _outcome(call: Callable[[], str]) -> str | None:
    """Return the rendered text, or None if rendering raises; both ways must agree on that too."""
    try:
        return call()
    except Exception:  # noqa: BLE001  # foreign code, and only compared
        return None


def continued(
    messages: Sequence[PlainMessage], render: Callable[[Sequence[PlainMessage]], str]
) -> str:
    """Return the rendered text before whatever closes the last message.

    Servers do the same for `continue_final_message` (transformers 5:
    transformers/utils/chat_template_utils.py): a template that trims the mark's trailing space also
    trims the message.

    Args:
        messages: A conversation that ends with the start of a reply.
        render: Renders messages without a generation prompt.

    Raises:
        TemplateError: The template rejects the messages, or does not render the last one's text.
    """
    *before, last = messages
    text = render([*before, {**last, "content": _marked(last["content"])}])
    place = text.rfind(_MARK)
    if place < 0 or _last_text(last["content"]).strip() not in text:
        raise TemplateError("the chat template does not render a reply to continue")
    head = text[:place]
    return head if text.startswith(f"{_MARK} ", place) else head.rstrip()


def _marked(content: Any) -> Any:  # noqa: ANN401  # a string or parts
    if isinstance(content, str):
        return f"{content}{_MARK} "
    *others, last = cast("list[dict[str, Any]]", content)
    return [*others, {**last, "text": f"{last['text']}{_MARK} "}]


def _last_text(content: Any) -> str:  # noqa: ANN401  # a string or parts
    return content if isinstance(content, str) else content[-1]["text"]
