"""A hub that cannot be reached: the cache is used at once, and the reason is said."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envkit.errors import ConfigurationError
from envkit.tokens import load_codec
from envkit.tokens.hub import hub_or_cache

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
                        ended.wait(20)
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
            thread.join(5)


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
