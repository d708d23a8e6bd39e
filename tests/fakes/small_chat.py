"""Small chat templates on a real tokenizer of bytes and a few control tokens."""

import copy
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from envkit.tokens.rules import ContentForms
from envkit.tokens.template import ChatTemplate
from envkit.tokens.writer import Writer

if TYPE_CHECKING:
    from tokenizers import AddedToken

TOKENS = ("<end>", "<stop>", "<user>", "<bot>", "<tool>", "<img>", "<end>!")
"""The control tokens; the last one starts with another."""
_CORPUS = ("user",) * 9


def byte_tokenizer(
    tokens: "Iterable[str | AddedToken]",
    *,
    corpus: Iterable[str] = (),
    end: str = "<end>",
    named: Mapping[str, str] | None = None,
) -> Any:
    """Return a byte-level tokenizer with control tokens; a corpus adds merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner: Any = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=inner,
        eos_token=end,
        pad_token="<|endoftext|>",
        extra_special_tokens=dict(named or {}),
    )
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


@cache
def small_tokenizer() -> Any:
    """Return the tokenizer of `TOKENS` and one word, made once; tests must not change it."""
    return byte_tokenizer(TOKENS, corpus=_CORPUS)


def identity(token: str) -> int:
    """Return the id of a control token."""
    return small_tokenizer().convert_tokens_to_ids(token)


def ids_of(text: str) -> list[int]:
    """Return a text's ids, by transformers alone."""
    return list(small_tokenizer().encode(text, add_special_tokens=False))


def template_with(token: Any, text: str) -> ChatTemplate:
    """Return a chat template whose tokenizer has one more control token."""
    tokenizer = byte_tokenizer([*TOKENS, token], corpus=_CORPUS)
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer, text, kwargs={})


@cache
def small_template(text: str, **variables: Any) -> ChatTemplate:
    """Return a chat template with the small tokenizer, shared by all tests."""
    tokenizer = copy.copy(small_tokenizer())
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer, text, kwargs=variables)


def text_writer() -> Writer:
    """Return the writer of a template that takes strings and parts."""
    return Writer(ContentForms(strings=True, parts=True))
