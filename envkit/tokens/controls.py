"""Control tokens that foreign text must never form, and the character that breaks them.

Control tokens are the tokenizer's special tokens, the stop tokens, every added token that the chat
template writes (whole, or built from pieces such as `'<|' + role + '|>'`), every added token that
looks like one (`<|...|>`, `<think>`, `</tool_call>`), and the placeholders of images and other
media. One character inside the token breaks it: the model reads nearly the same words, but the
tokenizer finds no token. The character is tested on the tokenizer itself.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.placeholders import KNOWN_PLACEHOLDERS, OTHER_MEDIA
from envkit.tokens.rules import RoleRule
from envkit.tokens.shape import TailShape
from envkit.tokens.template import ChatTemplate

BREAKERS: Final = ("\u200b", "\u2060", "\u200c", " ", "_")
"""Candidates, in order; the visible ones are for tokenizers that drop invisible characters."""
_LOOKS_LIKE_ONE: Final = re.compile(
    r"<(?:\|.+\||\uff5c.+\uff5c|/?(?:think|thinking|tools|tool_calls?|tool_responses?))>", re.DOTALL
)
_NUMBER: Final = re.compile(r"[0-9]+")
_PIECE: Final = 8
"""Longest constant that a template is assumed to build tokens from, in characters."""
_CHANGERS: Final = frozenset(
    [
        *("replace", "split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix"),
        *("lower", "upper", "title", "capitalize", "swapcase", "casefold", "translate", "reverse"),
        *("striptags", "truncate", "format"),
    ]
)
"""Filters and methods by which a template changes a text."""


class TokenSearch:
    """Finds tokens in a text by name, with a single regular expression."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.firsts = tuple(sorted({name[0] for name in self.names}))
        self._pattern = re.compile(_pattern(self.names))
        self._lengths = tuple(sorted({len(name) for name in self.names}, reverse=True))

    def is_in(self, text: str) -> bool:
        """Whether a text contains a token, or one that differs only in a number."""
        return self._pattern.search(text) is not None

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of the longest token at every position where one starts.

        Tokens may overlap, because breaking one would otherwise reveal another.
        """
        found: list[tuple[int, int]] = []
        match = self._pattern.search(text)
        while match is not None:
            start = match.start()
            for length in self._lengths:
                name = text[start : start + length]  # shorter at the end of the text
                if name in self.names:
                    found.append((start, start + len(name)))
                    break
            match = self._pattern.search(text, start + 1)
        return found


class Controls:
    """The control tokens of one template and tokenizer, and the character that breaks them."""

    def __init__(
        self, template: ChatTemplate, ids: Iterable[int], *, neutralise: bool = True
    ) -> None:
        """Collect the tokens and find a character that breaks them.

        Args:
            template: The template with its tokenizer.
            ids: Tokens to include in any case: the stop tokens and the processor's placeholder.
            neutralise: False needs a character only for the placeholders, and takes the first one
                if none breaks them.

        Raises:
            TemplateError: No character breaks the tokens of this tokenizer.
        """
        self.names = tuple(sorted(_control_names(template, frozenset(ids))))
        self.search = TokenSearch(self.names)
        media = {*KNOWN_PLACEHOLDERS, *OTHER_MEDIA, *(template.added.get(one, "") for one in ids)}
        broken = self.search if neutralise else TokenSearch(media & {*self.names})
        self.breaker = _breaker(template, broken) or ("" if neutralise else BREAKERS[0])
        if not self.breaker:
            raise TemplateError(
                f"none of {list(BREAKERS)} inside the control tokens keeps this tokenizer from "
                "seeing them; pass neutralise=False to leave every text unchanged"
            )
        self.changes_text = _changes_text(template)
        """Whether the template may cut or transform a text."""
        self._normalize = _normalizer(template, self.names)
        self._normalized = TokenSearch(_normalized(self.names, self._normalize))
        self._is_plain_safe = _keeps_ascii(self._normalize, self.names)
        self._heads = {name[:end] for name in self.names for end in range(1, len(name))}
        self._ends = {name[start:] for name in self.names for start in range(1, len(name))}
        self._lasts = tuple({name[-1] for name in self.names})
        self._longest = max(map(len, self.names), default=0)
        self._compared = template.compared

    @property
    def normalizes(self) -> bool:
        """Whether the tokenizer normalizes a text before it looks for some of the tokens."""
        return self._normalize is not None

    @cached_property
    def switches(self) -> re.Pattern[str]:
        """Finds the words that the template looks for and that cannot start or end a token."""
        words = [
            word
            for word in self._compared
            if len(word.strip()) > 1 and not self._can_touch(word) and not self.search.is_in(word)
        ]
        words.sort(key=lambda word: (-len(word), word))
        return re.compile("|".join(map(re.escape, words)) or "(?!)")

    def _can_touch(self, word: str) -> bool:
        """Whether a token can start or end inside a word."""
        sizes = range(1, len(word) + 1)
        return any(word[-size:] in self._heads or word[:size] in self._ends for size in sizes)

    @property
    def breaker_name(self) -> str:
        """Readable name of the character that breaks the tokens."""
        return f"U+{ord(self.breaker):04X} {unicodedata.name(self.breaker, '')}"

    def is_hidden_in(self, text: str) -> bool:
        """Whether the tokenizer's normalization would form a token from other characters."""
        if self._normalize is None or (self._is_plain_safe and text.isascii()):
            return False
        return bool(self._normalized.find(self._normalize(text)))

    def is_open(self, text: str) -> bool:
        """Return whether a text may form a token together with its surroundings."""
        tail, head = text.rstrip()[-self._longest :], text.lstrip()[: self._longest]
        if any(first in tail for first in self.search.firsts) and any(
            tail[start:] in self._heads for start in range(len(tail))
        ):
            return True
        return any(last in head for last in self._lasts) and any(
            head[:end] in self._ends for end in range(1, len(head) + 1)
        )

    def can_join(self, before: str, after: str) -> bool:
        """Whether some text between two fixed ones could become part of a token."""
        return any(before.endswith(head) for head in self._heads) or any(
            after.startswith(end) for end in self._ends
        )


def split(text: str, places: Iterable[int]) -> list[str]:
    """Split a text at the given positions."""
    bounds = [0, *sorted(set(places)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def _kind(name: str) -> str:
    """Replace every number in a name by 0, since thousands of names differ only in a number."""
    return _NUMBER.sub("0", name)


def _pattern(names: Iterable[str]) -> str:
    """Return a regular expression for names, in which a number matches any number."""
    tree: dict[str, Any] = {}
    for kind in sorted(set(map(_kind, names))):
        node = tree
        for symbol in kind:
            node = node.setdefault("[0-9]+" if symbol == "0" else re.escape(symbol), {})
        node[""] = {}
    return _branches(tree) if tree else "(?!)"


def _branches(node: dict[str, Any]) -> str:
    if "" in node:  # a token ends here; a longer one with this prefix does not matter
        return ""
    found = [symbol + _branches(child) for symbol, child in node.items()]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _control_names(template: ChatTemplate, ids: frozenset[int]) -> set[str]:
    special: Any = getattr(template.tokenizer, "all_special_tokens", None) or ()
    decoder: Any = getattr(template.tokenizer, "added_tokens_decoder", None) or {}
    names = {str(name) for name in special}
    names |= {token.content for token in decoder.values() if getattr(token, "special", False)}
    texts = list(map(_kind, _fixed_texts(template)))
    written = "\0".join(texts)
    heads = {text[-size:] for text in texts for size in range(1, min(len(text), _PIECE) + 1)}
    ends = {text[:size] for text in texts for size in range(1, min(len(text), _PIECE) + 1)}
    kinds: dict[str, list[str]] = {}
    for identity, name in template.added.items():
        if identity in ids or name in KNOWN_PLACEHOLDERS or name in OTHER_MEDIA:
            names.add(name)
        kinds.setdefault(_kind(name), []).append(name)
    for kind, alike in kinds.items():
        is_written = kind in written or _is_built(kind, heads, ends)
        if _LOOKS_LIKE_ONE.fullmatch(kind) or (is_written and _is_markup(kind)):
            names.update(alike)
    return {name for name in names if len(name) > 1 and not name.isspace()}


def _fixed_texts(template: ChatTemplate) -> list[str]:
    """Return the texts that the template can write by itself."""
    from jinja2 import nodes

    if template.syntax_tree is None:
        return [template.text]
    data = [node.data for node in template.syntax_tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in template.syntax_tree.find_all(nodes.Const)]
    return [text for text in (*data, *constants) if text and isinstance(text, str)]


def _is_markup(name: str) -> bool:
    """Return whether an added token is neither a word nor punctuation nor a run of spaces."""
    return not name.isalnum() and any(character.isalpha() for character in name)


def _is_built(name: str, heads: set[str], ends: set[str]) -> bool:
    sizes = range(1, min(_PIECE, len(name) - 1) + 1)
    return (
        not name[0].isalnum()
        and any(name[:size] in heads for size in sizes)
        and any(name[-size:] in ends for size in sizes)
    )


def _changes_text(template: ChatTemplate) -> bool:
    from jinja2 import nodes

    tree = template.syntax_tree
    if tree is None:
        return True
    return (
        any(node.name in _CHANGERS for node in tree.find_all(nodes.Filter))
        or any(node.attr in _CHANGERS for node in tree.find_all(nodes.Getattr))
        or tree.find(nodes.Slice) is not None
    )


def _breaker(template: ChatTemplate, search: TokenSearch) -> str:
    """Return the first character with which the tokenizer finds none of the tokens, or ""."""
    unknown: Any = getattr(template.tokenizer, "unk_token_id", None)
    ids = {identity for identity, name in template.added.items() if name in search.names}
    # Without byte fallback, the unknown token stands for every rare character.
    ids.discard(unknown)
    kinds = list({_kind(name): name for name in sorted(search.names)}.values())
    # adjacent, between spaces and right after words, for tokens that depend on their neighbours
    text = "\n".join([joint.join(kinds) for joint in ("", " ", "x")])
    pieces = split(text, [start + 1 for start, _ in search.find(text)])
    for candidate in BREAKERS:
        if ids.isdisjoint(template.encode(candidate.join(pieces))):
            return candidate
    return ""


def _normalizer(template: ChatTemplate, names: Sequence[str]) -> Callable[[str], str] | None:
    """Return the tokenizer's normalization if it runs before the search for tokens, else None."""
    decoder: Any = getattr(template.tokenizer, "added_tokens_decoder", None) or {}
    backend: Any = getattr(template.tokenizer, "backend_tokenizer", None)
    normalizer: Any = getattr(backend, "normalizer", None)
    wanted = frozenset(names)
    if normalizer is None or not any(
        token.content in wanted and getattr(token, "normalized", False)
        for token in decoder.values()
    ):
        return None
    # Without surrogates, which no tokenizer takes.
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000)]))
    is_idle = normalizer.normalize_str(everything) == everything  # such as an empty sequence
    return None if is_idle else normalizer.normalize_str


def _normalized(names: Iterable[str], normalize: Callable[[str], str] | None) -> set[str]:
    """Return names as they appear in a normalized text; some normalizers prepend a space."""
    if normalize is None:
        return set()
    return {form for name in names if (form := normalize(name).lstrip("\u2581 "))}


def _keeps_ascii(normalize: Callable[[str], str] | None, names: Iterable[str]) -> bool:
    if normalize is None:
        return True
    visible = "".join(map(chr, range(33, 127)))
    has_space = any(" " in name or "\u2581" in name for name in names)
    return not has_space and normalize(visible).endswith(visible)


def open_shapes(controls: Controls, rules: Iterable[RoleRule]) -> tuple[TailShape, ...]:
    """Return the shapes whose fixed text could become a token together with an observation."""
    shapes = [shape for rule in rules for shape in (rule.shape, rule.image_shape) if shape]
    return tuple(shape for shape in shapes if controls.can_join(shape.before, shape.after))
