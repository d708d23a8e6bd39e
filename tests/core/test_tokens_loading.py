"""Loading codecs from folders, and comparing ledgers with full renders."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.templates import default_codec, load_tokenizer

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.messages import Message
from envkit.tokens import SanityStatus, load_codec

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "It is four."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    load_tokenizer("qwen2.5-vl").save_pretrained(str(tmp_path))
    eos = {"eos_token_id": [151645, 151643]}
    (tmp_path / "generation_config.json").write_text(json.dumps(eos))
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    return tmp_path


def test_load_codec_reads_stop_ids_and_image_processor(folder: Path) -> None:
    codec = load_codec(folder)
    assert codec.stop_ids == (151645, 151643)
    assert codec.audit().supports_images
    assert codec._image_encoder is not None
    assert load_codec(str(folder), stop_ids=[7]).stop_ids[0] == 7


def test_load_codec_names_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no model folder"):
        load_codec(tmp_path)
    with pytest.raises(ConfigurationError, match="no model folder"):
        load_codec(tmp_path / "missing")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ConfigurationError, match="no tokenizer can be loaded"):
        load_codec(tmp_path)


def test_load_codec_names_a_broken_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        load_codec(folder)


def test_load_codec_says_how_to_install_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        load_codec(folder)


def play(codec: Any, replies: list[list[int]] | None = None) -> tuple[list[int], list[Any]]:
    ledger, spans = list(codec.encode_prompt(TALK[:2]).wire_ids), []
    for turn, index in enumerate((2, 4)):
        reply = list(codec.encode_reply(str(TALK[index]["content"])))
        if replies is not None:
            reply = replies[turn]
        spans.append((len(ledger), len(ledger) + len(reply)))
        ledger += reply
        if index == 2:
            ledger += codec.encode_observation(TALK[3:4], sampled_ids=reply).wire_ids
    return ledger, spans


@pytest.mark.parametrize("name", ["qwen2.5", "llama3.2", "gemma3", "mistral-7b", "phi3"])
def test_check_ledger_accepts_an_exact_ledger_invariant_3(name: str) -> None:
    codec = default_codec(name)
    ledger, spans = play(codec)
    assert codec.check_ledger(TALK, ledger).status is SanityStatus.EQUAL
    assert codec.check_ledger(TALK, ledger, model_spans=spans).ok
    assert codec.check_ledger(TALK[:4], ledger[: spans[1][0]]).status is SanityStatus.EQUAL


def test_check_ledger_finds_a_lost_newline() -> None:
    codec = default_codec("qwen2.5")
    ledger, spans = play(codec)
    drifted = ledger[: spans[0][1]] + ledger[spans[0][1] + 1 :]
    report = codec.check_ledger(TALK, drifted)
    assert not report.ok
    assert report.status is SanityStatus.WHITESPACE
    assert report.first_difference == spans[0][1]
    assert codec.check_ledger(TALK, drifted, mode="ignore_strippable").ok
    assert codec.check_ledger(TALK, drifted, mode="off").status is SanityStatus.SKIPPED


def test_check_ledger_finds_a_wrong_word() -> None:
    codec = default_codec("qwen2.5")
    ledger, spans = play(codec)
    ledger[spans[0][1] + 4] = 7
    for mode in ("strict", "ignore_strippable"):
        report = codec.check_ledger(TALK, ledger, mode=mode)
        assert (report.status, report.ok) == (SanityStatus.DIFFERENT, False)


def test_check_ledger_accepts_another_split_of_the_models_own_words() -> None:
    codec = default_codec("qwen2.5")
    tokenizer = load_tokenizer("qwen2.5")
    letters = [tokenizer.encode(c, add_special_tokens=False)[0] for c in "It is four."]
    ledger, spans = play(codec, [[*letters, 151645], list(codec.encode_reply("Yes."))])
    for given in (None, spans):
        report = codec.check_ledger(TALK, ledger, model_spans=given)
        assert (report.status, report.ok) == (SanityStatus.RETOKENISED, True)
    elsewhere = [(0, 1), spans[1]]
    assert not codec.check_ledger(TALK, ledger, model_spans=elsewhere).ok


def test_check_ledger_names_a_rewritten_history() -> None:
    codec = default_codec("qwen3")
    ledger, _ = play(codec)
    assert codec.check_ledger(TALK, ledger).ok
    thought = list(codec.encode_reply("<think>\nhm\n</think>\n\nIt is four."))
    ledger, _ = play(codec, [thought, list(codec.encode_reply("Yes."))])
    talk = [*TALK]
    talk[2] = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is four."}
    report = codec.check_ledger(talk, ledger)
    assert (report.status, report.ok) == (SanityStatus.REWRITTEN, True)
