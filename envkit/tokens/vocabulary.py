"""Text to ids and back, from a model's tokenizer.json.

The core depends on tiktoken, which reads the vocabulary of envkit's own models. Every other file
needs `tokenizers`, which comes with transformers: it brings 32 MB of packages that download
models. tests/core/tokens/test_tokens_light.py compares the ids of the two.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from envkit.errors import ConfigurationError, MissingDependencyError

_OWN: Final = "f4170b074de9cce1f30c08e6c3ec9822b0f1a115507c0b64a21a91aa8c876992"
"""SHA-256 of everything in the tokenizer.json of envkit's models except their added tokens."""

_MAX_BYTES: Final = 1 << 20
"""envkit's file has 23 kB. Others have many MB, which would take a second to parse and hash."""
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized")
_SPACE: Final = "\u2581"
"""How SentencePiece writes a space."""
_UNKNOWN: Final = "\ufffd"
_BYTE: Final = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece names a byte that no token covers."""
_WORDS: Final = (
    r"[A-Z0-9]|'(?:[stmd]|re|ve|ll)| ?(?:(?![A-Z])\p{L})+| ?(?:(?![0-9])\p{N})+"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?=[A-Z0-9])|\s+(?!\S)|\s+"
)
"""How they split a text: capitals and digits alone, what is between them as GPT-2 does.

White space before a capital or a digit ends there, as it does at the end of a text.
"""


class Vocabulary(Protocol):
    """The ids of a tokenizer."""

    added: dict[str, int]
    """Tokens found in a text before it is split into words, and their ids."""

    def __len__(self) -> int:
        """Return the number of ids, including added ones."""
        ...

    def id_of(self, token: str) -> int | None:
        """Return a token's id; None if there is no such token."""
        ...

    def name_of(self, token_id: int) -> str | None:
        """Return a token as its file names it; None if there is no such id."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids; unknown ids have none."""
        ...


def spelled(text: str, name: object) -> str:
    r"""Return the text of one token for people.

    Args:
        text: The tokenizer's output for the id alone. SentencePiece drops its first space, and a
            part of a character becomes U+FFFD.
        name: The token as the tokenizer names it: text, or bytes; anything else has no effect.

    Returns:
        The text with its spaces; bytes that are not UTF-8 alone are written as `\xe2`.
    """
    if isinstance(name, str) and name.startswith(_SPACE) and text != name:
        return " " * (len(name) - len(name.lstrip(_SPACE))) + text.lstrip(" ")
    if _UNKNOWN not in text:
        return text
    data = _bytes_of(name)
    return text if data is None else data.decode("utf-8", "backslashreplace")


def text_of(vocabulary: Vocabulary, token_id: int) -> str:
    """Return the text of one id for people; empty if there is no such id."""
    text = vocabulary.decode([token_id], skip_special_tokens=False)
    return spelled(text, vocabulary.name_of(token_id))


def read_vocabulary(file: Path) -> Vocabulary:
    """Read a tokenizer.json.

    Raises:
        ConfigurationError: The file is damaged.
        MissingDependencyError: Only `tokenizers` can read it, which is not installed.
    """
    try:
        own = _read_own(file)
        return _HuggingFace(file) if own is None else _BytePairs(own)
    except MissingDependencyError:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise ConfigurationError(f"{str(file)!r} cannot be read as a tokenizer: {error}") from error


class _BytePairs:
    """The vocabulary of envkit's models, merged by tiktoken.

    tiktoken merges any two parts whose union is a token, not only the pairs of the training.
    Other vocabularies could get other ids from it, so it reads only this one.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Take the parsed tokenizer.json."""
        from tiktoken import Encoding

        self.added = {token["content"]: token["id"] for token in data["added_tokens"]}
        self._special = {token["id"] for token in data["added_tokens"] if token["special"]}
        self._names: dict[str, int] = {**data["model"]["vocab"], **self.added}
        by_length = sorted(self.added, key=len, reverse=True)
        self._added_in = re.compile(f"({'|'.join(map(re.escape, by_length))})")
        bytes_of = dict(_byte_names())
        self._pairs = Encoding(
            "envkit",
            pat_str=_WORDS,
            mergeable_ranks={
                bytes(bytes_of[name] for name in token): number
                for token, number in data["model"]["vocab"].items()
            },
            special_tokens=self.added,
        )

    def __len__(self) -> int:
        return len(self._names)

    def id_of(self, token: str) -> int | None:
        return self._names.get(token)

    def name_of(self, token_id: int) -> str | None:
        return self._by_id.get(token_id)

    @cached_property
    def _by_id(self) -> dict[int, str]:
        return {token_id: name for name, token_id in self._names.items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens  # these models have none
        ids: list[int] = []
        for index, part in enumerate(self._added_in.split(text)):
            ids += [self.added[part]] if index % 2 else self._pairs.encode_ordinary(part)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        dropped = self._special if skip_special_tokens else frozenset[int]()
        known = [one for one in ids if 0 <= one < len(self._names) and one not in dropped]
        return self._pairs.decode(known)


class _HuggingFace:
    """Any tokenizer.json, read by `tokenizers`."""

    def __init__(self, file: Path) -> None:
        """Read the file."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependencyError.for_extra(
                f"the tokenizer in {str(file.parent)!r}", "tokenizers", "transformers"
            ) from error
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self.added = {token.content: identity for identity, token in sorted(added.items())}

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def name_of(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


def _read_own(file: Path) -> dict[str, Any] | None:
    """Return a tokenizer.json with the rules of envkit's models and any added tokens, else None."""
    if file.stat().st_size > _MAX_BYTES:
        return None
    data: Any = json.loads(file.read_bytes())
    rules = {name: part for name, part in data.items() if name != "added_tokens"}
    digest = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
    has_flags = any(token[flag] for token in data["added_tokens"] for flag in _FLAGS)
    return None if digest != _OWN or has_flags else data


def _bytes_of(name: object) -> bytes | None:
    """Return the bytes of a token of a byte-level vocabulary, or of one byte; else None."""
    if isinstance(name, bytes) or not isinstance(name, str):
        return name if isinstance(name, bytes) else None
    if (byte := _BYTE.fullmatch(name)) is not None:
        return bytes.fromhex(byte[1])
    bytes_of = dict(_byte_names())
    found = [bytes_of.get(character) for character in name]
    return None if None in found else bytes(one for one in found if one is not None)


def _byte_names() -> Iterator[tuple[str, int]]:
    """Yield the character for each byte of a byte-level vocabulary (encoder.py of GPT-2)."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (byte for byte in range(256) if byte not in shown)
    yield from ((chr(byte), byte) for byte in sorted(shown))
    yield from ((chr(256 + index), byte) for index, byte in enumerate(hidden))
