"""Published templates, each with a tokenizer and the tokens that end its replies.

Most templates' vocabularies are in no package. A template therefore gets the first merges of
Qwen3's vocabulary and, as added tokens, the control tokens in its text. Tokens that end a reply are
listed by hand, so nothing here comes from the codec.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

_MERGES = 6000
_CONTROL = re.compile(
    r"<\|[^|<>\n'\" ]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|<\|?[a-zA-Z_]+_of_[a-zA-Z_]+\|?>"
    r"|</?s>|</?role>"
    r"|\[/?[A-Z_]{3,}\]|\]~b\]|\]~!b\[|\[e~\[|\[\|[a-zA-Z_]+\|\]|<\|\"\|>|<\|[a-z_]+>|<[a-z_]+\|>"
    r"|<(?:eos|bos|pad|image)>|</?(?:think|tool_call|tool_response)>|<[a-z]+_[a-z_]+>"
    r"|</[a-z_]*_s>|</assistant>|<longcat_\w+>|<SPECIAL_\d+>|<seed:\w+>|<sep>|<step>|<mend>|<_[a-z]+>|<eos:\w+>"
    r"|<extra_id_\d+>|<start_assistant>|<[A-Za-z]+▁[^>]{1,30}>|<[A-Z]+_CONTEXT>"
)
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<end_of_turn>", "<turn|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>"),
    *("<\uff5cend▁of▁sentence\uff5c>", "[e~[", "<end_of_utterance>", "[|endofturn|]", "<|eot|>"),
    *("<|endofturn|>", "<|role_end|>", "<|EOT|>", "<|eom|>", "<|eos|>", "<|endofresponse|>"),
    *("<|end_of_turn|>", "<end_of_sentence>", "<|end_turn|>", "<|end_of_sentence|>", "<eos>"),
    *("<|assistant_end|>", "<|END|>", "<|message_sep|>", "<\uff5chy_eos\uff5c>", "<|end_text|>"),
    *("<|endofmessage|>", "<|CALL_END|>", "<|calls|>", "<|role:end|>", "<|tool_response>"),
    *("<start_function_response>", "<|stop|>", "<|im_sep|>", "<startofturn|>", "<|END_TEXT|>"),
    *("<|endofassistant|>", "</longcat_s>", "</assistant>"),
    *("<SPECIAL_12>", "<SPECIAL_68>", "<seed:eos>", "<sep>", "<step>", "<mend>", "<_end>"),
    *("<|im:end|>", "<|close|>", "<|separator|>", "<|tool_call_end_turn|>"),
)  # fmt: skip
"""Tokens that end a reply or a call, according to the families' model cards."""
_END = re.compile(r"<\uff5chy_eos[^>]*>|<eos:\w+>")
_WRITES_EOS = re.compile(r"(?:[+~]|\{\{-?)\s*eos_token")
_LITERAL = r"""['"]([^'"\n\\]{2,40})['"]"""
_LOOKS_FOR = re.compile(
    rf"{_LITERAL}\s+(?:not\s+)?in\b|{_LITERAL}\s*[!=]=|[!=]=\s*{_LITERAL}"
    rf"|(?:startswith|endswith|find|split|replace|count)\(\s*{_LITERAL}"
)
_MEDIA = re.compile(r"image|video|audio|vision|IMG|media", re.IGNORECASE)
_OPENERS = ("<|user|>", "<|observation|>", "<extra_id_1>", "<SPECIAL_11>")
"""GLM: no token ends a reply; the model samples the next role's token."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One template, ready to render."""

    name: str
    text: str
    tokenizer: Any
    stops: tuple[str, ...]


def find(folder: Path) -> dict[str, str]:
    """Return every unique template in the cache, by name."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        if text.strip() and text not in found.values():
            found[str(path.relative_to(folder).with_suffix(""))] = text
    return found


def load(folder: Path, name: str, text: str) -> Published:
    """Give a template its tokenizer and stop tokens."""
    control = set(_CONTROL.findall(text)) | set(_CONTROL.findall(_rendered(text)))
    eos = _eos(text, control)
    tokenizer = _tokenizer(folder, control | {"<s>", eos}, eos)
    tokenizer.chat_template = text
    stops = [token for token in control if token in ENDS or _END.fullmatch(token)]
    if not set(stops) - {"<|endoftext|>", "<|tool_response>"} and not _WRITES_EOS.search(text):
        stops += [token for token in _OPENERS if token in control]
    return Published(
        name=name,
        text=text,
        tokenizer=tokenizer,
        stops=tuple(dict.fromkeys([eos, *stops])),
    )


def switches(published: Published, most: int) -> list[str]:
    """Return words that a template looks for in its messages, such as "/no_think".

    Keys, roles, media and the tokens that end a reply are not among them.
    """
    found = {word for groups in _LOOKS_FOR.findall(published.text) for word in groups if word}
    kept = [
        word
        for word in sorted(found)
        if not word.strip().isidentifier()
        and len(word.strip()) > 1
        and not _MEDIA.search(word)
        and not any(name in word for name in (*published.stops, *_OPENERS))
    ]
    return kept[:: max(1, -(-len(kept) // most))]


def _rendered(text: str) -> str:
    """Return a short conversation as text, since some templates assemble control tokens."""
    said = [("user", "u"), ("assistant", "w"), ("user", "u")]
    chat = [{"role": role, "content": content} for role, content in said]
    try:
        made, _ = render_jinja_template([chat], chat_template=text, add_generation_prompt=True)
    except Exception:  # noqa: BLE001  # templates raise anything
        return ""
    return made[0]


def _eos(text: str, control: set[str]) -> str:
    """Return the value of `eos_token`, by which a ChatML-like template ends a turn."""
    known = (t for t in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>") if t in control)
    return "</s>" if "eos_token" in text else next(known, "</s>")


@cache
def _base(folder: Path) -> str:
    data = json.loads((folder / "tokenizers/qwen3/tokenizer.json").read_text(encoding="utf-8"))
    model = data["model"]
    size = 256 + _MERGES
    model["vocab"] = {piece: number for piece, number in model["vocab"].items() if number < size}
    model["merges"] = [
        pair
        for pair in model["merges"]
        if "".join(pair if isinstance(pair, list) else pair.split(" ")) in model["vocab"]
    ]
    data["added_tokens"] = []
    return json.dumps(data)


def _tokenizer(folder: Path, control: set[str], eos: str) -> Any:  # noqa: ANN401  # transformers is untyped
    backend = Tokenizer.from_str(_base(folder))
    named = [AddedToken(name, special=True, normalized=False) for name in sorted(control)]
    backend.add_special_tokens(named)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token=eos, unk_token=None, pad_token=None
    )


def sample(names: Iterator[str], size: int, always: tuple[str, ...]) -> list[str]:
    """Return an even sample of names, plus those that contain one of some words."""
    every = sorted(names)
    step = max(1, len(every) // size)
    wanted = {name for name in every if any(word.lower() in name.lower() for word in always)}
    return sorted({*every[::step], *wanted})
