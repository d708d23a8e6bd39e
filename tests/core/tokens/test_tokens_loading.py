"""Loading codecs: from folders without running code, and from a hub that may not answer."""

import json
import shutil
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.models import tiny_model_dir

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.tokens import load_codec
from envkit.tokens.hub import hub_or_cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(tiny_model_dir("qwen2_5_vl"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    return tmp_path


@pytest.mark.slow
def test_load_codec_reads_stop_ids_and_image_processor(folder: Path) -> None:
    codec = load_codec(folder)
    assert codec.stop_ids == (2, 9)
    assert codec.audit().supports_images
    assert load_codec(str(folder), stop_ids=[7]).stop_ids[0] == 7


def test_load_codec_names_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a model folder"):
        load_codec(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no model folder"):
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
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        load_codec(folder)


def test_model_with_its_own_code_is_refused_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    for file in Path(tiny_model_dir("qwen2_5_vl")).iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["tokenizer_class"] = "PlantedTokenizer"
    settings["auto_map"] = {"AutoTokenizer": ["planted.PlantedTokenizer", None]}
    file.write_text(json.dumps(settings))
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"model_type": "planted", "auto_map": {"AutoConfig": "planted.PlantedConfig"}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **own}))
    witness = tmp_path / "imported"
    (tmp_path / "planted.py").write_text(f"open({str(witness)!r}, 'w').close()\n")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    from envkit_transformers.loading import load_processor

    for load in (load_codec, load_processor):
        with pytest.raises(ConfigurationError):
            load(str(tmp_path))
    assert asked == []
    assert not witness.exists()


constants: Any = pytest.importorskip("huggingface_hub.constants")
NAME = "nobody/no-such-model"


@contextmanager
def hub(answer: bytes | None) -> Generator[tuple[str, list[bytes]]]:
    """Listen as a hub that gives one answer, or none; give its address and the requests."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    if answer is None:
                        ended.wait(120)
                    requests.append(client.recv(65536))
                    client.sendall(answer or b"")

        ended = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(120)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("is_listening", [True, False])
def test_hub_that_does_not_answer_leaves_the_cache(
    is_listening: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hub(None) as (address, _):
        monkeypatch.setattr(constants, "ENDPOINT", address if is_listening else "http://0.0.0.0:1")
        with hub_or_cache(NAME):
            assert constants.HF_HUB_OFFLINE
            with hub_or_cache(NAME):  # does not ask again
                assert constants.HF_HUB_OFFLINE
            assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    assert "does not answer" in caplog.text
    assert caplog.text.count(NAME) == 1


@pytest.mark.usefixtures("online")
def test_hub_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as (address, requests):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with hub_or_cache(NAME):
            assert not constants.HF_HUB_OFFLINE
    assert [request.split()[0] for request in requests] == [b"HEAD"]


@pytest.mark.usefixtures("online")
def test_folder_asks_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://0.0.0.0:1")
    with hub_or_cache(str(tmp_path)):
        assert not constants.HF_HUB_OFFLINE


@pytest.mark.usefixtures("online")
def test_codec_of_a_model_that_is_not_in_the_cache_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(constants, "ENDPOINT", "http://0.0.0.0:1")
    with pytest.raises(ConfigurationError, match=NAME):
        load_codec(NAME)
