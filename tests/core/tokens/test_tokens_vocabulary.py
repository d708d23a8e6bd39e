"""The ids of envkit's own vocabulary without `tokenizers`, and files that need it."""

import json
import random
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fakes.processes import run_python
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tokens.vocabulary import read_vocabulary

FILE = Path(str(files("envkit_transformers"))) / "models" / "seeing" / "tokenizer.json"
DATA: dict[str, Any] = json.loads(FILE.read_text())
OURS = read_vocabulary(FILE)
THEIRS: Any = Tokenizer.from_file(str(FILE))
PIECES = [
    *sorted({THEIRS.decode([number]) for number in range(256, len(DATA["model"]["vocab"]))}),
    *(token["content"] for token in DATA["added_tokens"]),
    *"AZ09 '\n\t_-.",
    "  ",
    "'s",
    "'re",
    "é",
    "½",
    "世",
    "\u0301",
    "\x00",
    "\u00a0",
]


def encoded(text: str) -> list[int]:
    return OURS.encode(text, add_special_tokens=False)


def expected(text: str) -> list[int]:
    return THEIRS.encode(text, add_special_tokens=False).ids


@given(st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40))
def test_vocabulary_encodes_as_tokenizers_does(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert encoded(text) == expected(text)
    assert OURS.encode(text, add_special_tokens=True) == THEIRS.encode(text).ids


@given(st.lists(st.integers(0, len(OURS) + 3), max_size=40), st.booleans())
def test_vocabulary_decodes_as_tokenizers_does(ids: list[int], skips: bool) -> None:
    """Single bytes of a character become a replacement character, and unknown ids nothing."""
    assert OURS.decode(ids, skip_special_tokens=skips) == THEIRS.decode(
        ids, skip_special_tokens=skips
    )


@pytest.mark.slow
def test_vocabulary_encodes_every_character_as_tokenizers_does() -> None:
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        one = chr(code)
        text = f"a{one}b {one}  {one}{one}A"
        assert encoded(text) == expected(text), hex(code)


@pytest.mark.slow
def test_vocabulary_encodes_a_hundred_thousand_mixtures_as_tokenizers_does() -> None:
    rng = random.Random(7)
    for _ in range(100_000):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
        assert encoded(text) == expected(text), text


def test_vocabulary_has_the_facts_of_tokenizers() -> None:
    assert len(OURS) == THEIRS.get_vocab_size(with_added_tokens=True)
    for name in (*THEIRS.get_vocab(), "no such token"):
        assert OURS.id_of(name) == THEIRS.token_to_id(name)
    assert OURS.added == {token["content"]: token["id"] for token in DATA["added_tokens"]}


@pytest.mark.parametrize("change", ["merge", "word", "added"])
def test_vocabulary_of_a_changed_file_comes_from_tokenizers(change: str, tmp_path: Path) -> None:
    """tiktoken could give other ids, so a changed file must not be taken for envkit's own."""
    data = json.loads(FILE.read_text())
    if change == "merge":
        data["model"]["merges"].reverse()
    elif change == "word":
        data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-c]"
    else:
        data["added_tokens"][-1]["lstrip"] = True
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data))
    theirs: Any = Tokenizer.from_file(str(file))
    ours = read_vocabulary(file)
    for text in (" the task  ends", *(f"  {token['content']} a" for token in data["added_tokens"])):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids


_WITHOUT = """
import sys
from pathlib import Path
sys.modules["tokenizers"] = None
from envkit.tokens.vocabulary import read_vocabulary
own, other = map(Path, sys.argv[1:])
print(read_vocabulary(own).encode("move K7", add_special_tokens=False))
try:
    read_vocabulary(other)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_vocabulary_needs_tokenizers_for_other_models_only(tmp_path: Path) -> None:
    file = tmp_path / "model" / "tokenizer.json"
    file.parent.mkdir()
    file.write_text(json.dumps({**DATA, "normalizer": {"type": "NFC"}}))
    own, other = run_python("-c", _WITHOUT, FILE, file).splitlines()
    assert json.loads(own) == expected("move K7")
    assert other.startswith(MissingDependencyError.__name__)
    assert "envkit-rl[hf]" in other


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 3}', '{"model": {"type": "BPE"}}'])
def test_vocabulary_of_a_damaged_file_is_one_clear_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        read_vocabulary(file)
