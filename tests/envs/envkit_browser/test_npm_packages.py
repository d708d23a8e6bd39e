"""Packages of an npm registry, downloaded without npm."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envkit_browser import npm_packages

NAME, VERSION, CONTENT = "@made/words", "1.2.3", b"a tarball"
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(CONTENT).digest()).decode()


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, on a machine without settings of npm."""
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry", "NODE_EXTRA_CA_CERTS", "PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NPM_CONFIG_GLOBALCONFIG", str(tmp_path / "npmrc"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "home").mkdir()

    def no_sleep(seconds: float) -> None:
        pass

    monkeypatch.setattr(npm_packages.time, "sleep", no_sleep)
    return npm_packages


class Registry:
    """A server of one package below a path, as a proxy of a company has it."""

    def __init__(self, prefix: str = "/api/npm/") -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.failures = 0
        self.integrity = INTEGRITY
        self.answers: Callable[[str], tuple[int, bytes, dict[str, str]]] = self.answer
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append((self.path, self.headers["Authorization"]))
                code, body, headers = registry.answers(self.path)
                self.send_response(code)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.prefix = prefix
        self.url = f"http://{self.host}{prefix}"
        self.tarball = f"{self.url}@made/words/-/words-1.2.3.tgz"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if self.failures:
            self.failures -= 1
            return 503, b"busy", {}
        if path == f"{self.prefix}@made%2fwords":
            dist = {"tarball": self.tarball, "integrity": self.integrity}
            index = {"dist-tags": {"latest": VERSION}, "versions": {VERSION: {"dist": dist}}}
            return 200, json.dumps(index).encode(), {}
        if path == f"{self.prefix}@made/words/-/words-1.2.3.tgz":
            return 200, CONTENT, {}
        return 404, b"", {}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


def test_npm_public_registry_is_the_default(npm: Any) -> None:
    assert npm.registry_of(NAME, npm.settings()) == npm.PUBLIC_REGISTRY


def test_npm_settings_nearest_to_the_command_win(
    npm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()

    def chosen() -> str:
        return npm.registry_of(NAME, npm.settings(project))

    (tmp_path / "npmrc").write_text("registry = https://machine.example/npm\n")
    assert chosen() == "https://machine.example/npm/"
    (tmp_path / "home" / ".npmrc").write_text("; a comment\nregistry='https://user.example/'\n")
    assert chosen() == "https://user.example/"
    monkeypatch.setenv("COMPANY", "project.example")
    (project / ".npmrc").write_text("registry=https://${COMPANY}/\n")
    assert chosen() == "https://project.example/"
    monkeypatch.setenv("npm_config_registry", "https://environment.example/")
    assert chosen() == "https://environment.example/"
    (project / ".npmrc").write_text("@made:registry=https://scope.example/\n")
    assert chosen() == "https://scope.example/"
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "other"))
    (tmp_path / "other").write_text("cafile=/etc/own.crt\n")
    assert npm.settings(project)["cafile"] == "/etc/own.crt"


def test_npm_settings_of_a_prefix_are_read(
    npm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPM_CONFIG_GLOBALCONFIG")
    monkeypatch.setenv("NPM_CONFIG_PREFIX", str(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "npmrc").write_text("registry=https://prefix.example/\n")
    assert npm.registry_of(NAME, npm.settings()) == "https://prefix.example/"


def test_npm_package_comes_from_a_registry_below_a_path(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url.rstrip("/"))
    registry.failures = 1  # one busy answer is tried again
    npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert (tmp_path / "words.tgz").read_bytes() == CONTENT


def test_npm_mirror_that_passes_on_the_public_index_serves_the_tarball(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    registry.tarball = f"{npm.PUBLIC_REGISTRY}@made/words/-/words-1.2.3.tgz"
    npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert len(registry.requests) == 2


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        ("//{host}/api/npm/:_authToken=${{TOKEN}}\n", "Bearer secret"),
        ("//{host}/:_auth=YTpi\n", "Basic YTpi"),
        ("//{host}/api/npm/:username=a\n//{host}/api/npm/:_password=Yg==\n", "Basic YTpi"),
        ("//other.example/:_authToken=x\n", None),
    ],
)
def test_npm_credentials_go_to_their_registry_only(
    npm: Any,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    header: str | None,
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    text = f"registry={registry.url}\n" + lines.format(host=registry.host)
    (tmp_path / "home" / ".npmrc").write_text(text)
    npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert {sent for _, sent in registry.requests} == {header}


def test_npm_password_in_an_address_is_sent_and_never_shown(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = registry.url.replace("http://", "http://a:b@")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", address)
    npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert registry.requests[0][1] == "Basic YTpi"
    with pytest.raises(npm.NpmError) as failed:
        npm.download("@made/others", VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert "a:b" not in str(failed.value)
    assert "404" in str(failed.value)


def test_npm_redirect_does_not_carry_credentials(
    npm: Any, registry: Registry, tmp_path: Path
) -> None:
    storage = Registry(prefix="/")
    registry.answers = lambda path: (
        (302, b"", {"Location": storage.tarball})
        if path.endswith(".tgz")
        else registry.answer(path)
    )
    (tmp_path / "home" / ".npmrc").write_text(
        f"registry={registry.url}\n//{registry.host}/api/npm/:_authToken=secret\n"
    )
    try:
        npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    finally:
        storage.close()
    assert [sent for _, sent in registry.requests] == ["Bearer secret"] * 2
    assert [sent for _, sent in storage.requests] == [None]


def test_npm_file_with_another_hash_is_refused(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    wrong = "sha512-" + base64.b64encode(hashlib.sha512(b"other").digest()).decode()
    with pytest.raises(npm.NpmError, match="must have the hash sha512-"):
        npm.download(NAME, VERSION, wrong, tmp_path / "words.tgz")
    assert not (tmp_path / "words.tgz").exists()


def test_npm_index_states_the_latest_version_and_its_integrity(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    target = tmp_path / "words.tgz"
    assert npm.download(NAME, None, None, target) == (VERSION, INTEGRITY)
    assert target.read_bytes() == CONTENT
    target.unlink()
    for wrong in ("", "sha512-" + base64.b64encode(hashlib.sha512(b"other").digest()).decode()):
        registry.integrity = wrong
        with pytest.raises(npm.NpmError, match="@made/words latest"):
            npm.download(NAME, None, None, target)
        assert not target.exists()


def test_npm_registry_that_does_not_answer_is_named_with_the_setting(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.close()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    with pytest.raises(npm.NpmError, match="NPM_CONFIG_REGISTRY") as failed:
        npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")
    assert registry.url in str(failed.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "registry.example"])
def test_npm_registry_that_is_not_a_web_address_is_refused(
    npm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", url)
    with pytest.raises(npm.NpmError, match="must start with https:// or http://"):
        npm.download(NAME, VERSION, INTEGRITY, tmp_path / "words.tgz")


def test_npm_version_that_the_registry_lacks_is_named(
    npm: Any, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", registry.url)
    with pytest.raises(npm.NpmError, match=r"does not have version 9\.9\.9"):
        npm.download(NAME, "9.9.9", INTEGRITY, tmp_path / "words.tgz")
