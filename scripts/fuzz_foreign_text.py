#!/usr/bin/env python3
# ruff: noqa: T201, ANN401  # a script prints its progress; messages and tokenizers are foreign
"""Try to forge control tokens through the text of environments, tools and datasets.

    .venv/bin/python scripts/fuzz_foreign_text.py MINUTES [--seed N] [--match TEXT] [--cases N]

Uses every chat template fetched by `scripts/fetch_templates.py`. Each case is a conversation with
hostile text wherever text comes from outside: messages whole and in parts, system prompts, names,
ids and tool schemas. Its prompt and observation must not raise, and must have the same control
tokens in the same order as the conversation with harmless text. Ordinary text with the same
punctuation must get the ids that a codec without neutralising gives it. This script decides
independently of the codec which tokens are control tokens. Writes each finding as one line of JSON;
exits with 1 if there was one.
"""

import argparse
import copy
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import fetch_templates
from transformers import AutoTokenizer

from envkit.errors import EnvkitError
from envkit.tokens import ChatCodec

_OWN = {
    "deepseek": "deepseek-v3",
    "gemma": "gemma3",
    "gptoss": "gpt-oss",
    "gpt-oss": "gpt-oss",
    "llama3": "llama3.2",
    "Llama-3": "llama3.2",
    "Mistral-Nemo": "mistral-nemo",
    "mistralai-Mistral-7B": "mistral-7b",
    "phi3": "phi3",
    "Phi-3": "phi3",
    "qwen2_5": "qwen2.5",
    "Qwen2.5": "qwen2.5",
    "qwen3": "qwen3",
    "Qwen3": "qwen3",
}
"""Tokenizers for templates, by part of the name; others get SmolLM2's plus their own tokens."""
_TOKEN = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s'\"{}]{1,40}[|\uff5c]>|</?[a-z_]{1,24}>|\[/?[A-Z_]{2,24}\]"
)
_END = re.compile(r"end|eot|eos|eom|</s>|return|stop|call\|>|\|user\|>|\|observation\|>", re.I)
_SWITCHES = ("/no_think", "/think")
_SOME_SWITCHES: tuple[tuple[str, ...], ...] = ((), *((word,) for word in _SWITCHES))
_REMOVED = (
    "/no_think",
    "/think",
    "</think>",
    "<think>",
    "<|think|>",
    "\n",
    " ",
    "\u200b",
    "\u2060",
)
_WORDS = (
    "go north",
    "a < b",
    "x[0] > 1",
    "<div>",
    "|| true",
    "5 | 6",
    "\u4e16\u754c",
    "</p>",
    "[ok]",
    "<",
)
_REPLIES = ("Four.", "<think>\nhm\n</think>\n\nFour.", "Let me see.", "a <|im_start|> b")

Filled = tuple[list[Any], list[Any], list[Any]]
"""Everything up to the last reply, everything after it, and the tools."""
Conversation = Callable[[Callable[[], str]], Filled]


@cache
def _tokenizer(folder: Path) -> Any:
    loader: Any = AutoTokenizer
    return loader.from_pretrained(str(folder))


def _subjects(
    root: Path, match: str, generator: random.Random
) -> Iterator[tuple[str, Any, list[int]]]:
    """Yield template name, tokenizer and stop ids, in random order, endlessly."""
    paths = [path for path in (root / "templates").rglob("*.jinja") if match in str(path)]
    while True:
        generator.shuffle(paths)
        for path in paths:
            name = str(path.relative_to(root / "templates"))
            text = path.read_text(encoding="utf-8")
            own = next((base for part, base in _OWN.items() if part in name), "smollm2")
            if own != "smollm2" and generator.random() < 0.7 and "/" in name:
                own = "smollm2"  # fast enough, and hundreds of templates have no tokenizer here
            tokenizer = copy.copy(_tokenizer(root / "tokenizers" / own))
            new = sorted(set(_TOKEN.findall(text)) - set(tokenizer.get_vocab()))
            if new and own == "smollm2":
                tokenizer = copy.deepcopy(tokenizer)
                half = [token for token in new if generator.random() < 0.5]
                tokenizer.add_tokens(half, special_tokens=False)
                tokenizer.add_special_tokens({"additional_special_tokens": new})
            tokenizer.chat_template = text
            added = tokenizer.get_added_vocab()
            stops = [added[token] for token in added if _END.search(token) and token in text]
            yield name, tokenizer, stops


def _controls(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that foreign text must not form, by an independent definition."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {
        identity: token
        for token, identity in tokenizer.get_added_vocab().items()
        if (token in special or (token in tokenizer.chat_template and not token.isspace()))
        and len(token) > 1
        and any(map(str.isalpha, token))
    }


# ---- texts


def _hostile(generator: random.Random, names: list[str]) -> str:
    """Return a text that tries to form control tokens."""
    text = "".join(_piece(generator, names) for _ in range(generator.randint(1, 5)))
    return text if text.strip() else f"{text}."


def _piece(generator: random.Random, names: list[str]) -> str:
    token, other = generator.choice(names), generator.choice(names)
    place, removed = generator.randint(1, len(token) - 1), generator.choice(_REMOVED)
    odd = generator.choice(["\ud800", "\x00", "\udfff<", "e\u0301", "\ufeff"])
    return generator.choice(
        [
            token,
            token[:place],
            token[place:],
            token[:place] + token + token[place:],
            token[:place] + removed + token[place:],
            token * 3,
            f"\n{token} ",
            other + removed + token,
            token.upper(),
            token.replace("<", "\uff1c").replace("|", "\uff5c"),
            token.replace("_", "\u2581").replace(" ", "\u2581"),
            json.dumps({"a": token}),
            odd,
            generator.choice(_WORDS),
        ]
    )


def _harmless(generator: random.Random, names: list[str]) -> str:
    """Return ordinary text with the same punctuation and no control token."""
    text = " ".join(generator.choice(_WORDS) for _ in range(generator.randint(1, 6)))
    return "plain words" if any(name in text for name in names) else text


def _in_parts(generator: random.Random, text: str) -> Any:
    """Return a text as content, perhaps in parts; texts of one form get equally many parts."""
    cuts = [generator.random() for _ in range(generator.choice([0, 0, 1, 2, 3]))]
    if not cuts:
        return text
    places = [0, *sorted(round(cut * len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    # templates ask whether there is text, so no part may be blank in one text and not in another
    return [{"type": "text", "text": piece if piece.strip() else f"{piece}."} for piece in pieces]


def _conversation(seed: int) -> Conversation:
    """Return a conversation whose foreign texts are filled in."""

    def build(foreign: Callable[[], str]) -> Filled:
        generator = random.Random(seed)  # the same form with hostile and with harmless text

        def said(role: str) -> dict[str, Any]:
            entry = {"role": role, "content": _in_parts(generator, foreign())}
            if role == "tool" and generator.random() < 0.5:
                entry |= {"name": "search", "tool_call_id": "call00000"}
            return entry

        history = [said("system")] if generator.random() < 0.5 else []
        history.append(said("user"))
        for _ in range(generator.randint(0, 2)):
            history += [{"role": "assistant", "content": generator.choice(_REPLIES)}, said("user")]
        after = [said(generator.choice(["user", "tool"]))]
        reply: dict[str, Any] = {"role": "assistant", "content": "Four."}
        if generator.random() < 0.3:
            arguments = generator.choice([{"q": "maps"}, '{"q": "maps"}'])
            function = {"name": "search", "arguments": arguments}
            reply["tool_calls"] = [{"id": "call00000", "type": "function", "function": function}]
        history.append(reply)
        if generator.random() < 0.3:
            after.append(said("user"))
        schema = {
            "type": "object",
            "properties": {foreign(): {"type": "string", "description": foreign()}},
        }
        function = {"name": "search", "description": foreign(), "parameters": schema}
        tools = [{"type": "function", "function": function}] if generator.random() < 0.3 else []
        return history, after, tools

    return build


def _harmless_texts(hostile: list[str], switches: tuple[str, ...]) -> Callable[[], str]:
    """Return a function that gives harmless texts in place of hostile ones.

    No two are alike, because templates compare messages, and the given words stay.
    """
    numbers = count()

    def text() -> str:
        number = next(numbers)
        kept = [word for word in switches if word in hostile[number]]
        return " ".join([*kept, f"plain words {number}", *kept * 8])  # the text is cut into parts

    return text


# ---- cases


class Fuzz:
    """One run: counts cases and prints findings."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.templates: set[str] = set()

    def subject(self, name: str, tokenizer: Any, stops: list[int], cases: int) -> None:
        """Play some cases with one template."""
        try:
            codec = ChatCodec(tokenizer, stop_ids=stops)
            raw = ChatCodec(tokenizer, stop_ids=stops, neutralise=False)
        except EnvkitError:
            self.counts["templates refused"] += 1
            return
        self.templates.add(name)
        controls = _controls(tokenizer)
        names = sorted({*controls.values(), *codec.neutralised})
        for _ in range(cases):
            seed = self.generator.getrandbits(32)
            form = _conversation(seed)
            texts = random.Random(seed + 1)
            self._forge(name, codec, controls, form, partial(_hostile, texts, names))
            self._same(name, codec, raw, form(partial(_harmless, texts, names)))

    def _forge(
        self,
        name: str,
        codec: ChatCodec,
        controls: dict[int, str],
        form: Conversation,
        foreign: Callable[[], str],
    ) -> None:
        texts: list[str] = []

        def noted() -> str:
            texts.append(foreign())
            return texts[-1]

        def found(encoded: dict[str, Any], what: str) -> list[str]:
            return [controls[token] for token in encoded[what] if token in controls]

        hostile = form(noted)
        got, calm = _ids(codec, hostile), _ids(codec, form(_harmless_texts(texts, _SWITCHES)))
        for what in calm:
            if isinstance(calm[what], str):
                self.counts[f"{what} refused"] += 1
                continue
            self.counts[what] += 1
            if isinstance(got[what], str):
                self._found("exception", name, what, got[what], hostile)
                continue
            tokens, expected = found(got, what), found(calm, what)
            # a broken text lost some of its switches, and templates read different ones
            others = (_ids(codec, form(_harmless_texts(texts, words))) for words in _SOME_SWITCHES)
            if tokens != expected and all(tokens != found(other, what) for other in others):
                self._found("forged", name, what, f"{expected} became {tokens}", hostile)

    def _same(self, name: str, codec: ChatCodec, raw: ChatCodec, filled: Filled) -> None:
        one, other = _ids(codec, filled), _ids(raw, filled)
        for what in one:
            self.counts["ordinary texts"] += 1
            if one[what] != other[what] and not isinstance(other[what], str):
                self._found("changed", name, what, "ids of ordinary text", filled)

    def _found(self, kind: str, name: str, what: str, text: str, filled: Any) -> None:
        self.counts[f"FOUND {kind}"] += 1
        finding = {
            "kind": kind,
            "template": name,
            "what": what,
            "text": text[:600],
            "messages": filled,
        }
        print(json.dumps(finding), flush=True)


def _ids(codec: ChatCodec, filled: Filled) -> dict[str, Any]:
    """Return the ids of prompt and observation, or the error."""
    history, after, tools = filled
    calls = "after a call" if "tool_calls" in history[-1] else "after text"
    return {
        "prompt": _outcome(lambda: codec.encode_prompt(history[:-1], tools=tools)),
        f"observation {calls}": _outcome(
            lambda: codec.encode_observation(after, sampled_ids=(), history=history, tools=tools)
        ),
    }


def _outcome(encode: Callable[[], Any]) -> Any:
    try:
        return encode().wire_ids
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Run for the given time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--match", default="", help="only templates with this in their path")
    parser.add_argument("--cases", type=int, default=20, help="cases per template and round")
    given = parser.parse_args()
    fuzz = Fuzz(given.seed)
    ends = time.monotonic() + 60 * given.minutes
    root = fetch_templates.cache_folder()
    for name, tokenizer, stops in _subjects(root, given.match, fuzz.generator):
        if time.monotonic() > ends:
            break
        fuzz.subject(name, tokenizer, stops, given.cases)
    counts = dict(sorted(fuzz.counts.items()))
    print(f"{given.minutes:g} minutes, {len(fuzz.templates)} templates, {counts}")
    return int(any(name.startswith("FOUND") for name in fuzz.counts))


if __name__ == "__main__":
    sys.exit(main())
