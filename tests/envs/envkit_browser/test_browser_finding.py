"""Where a browser is found, and how one is installed."""

import io
import os
import platform
import re
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.needs import packages

from envkit.errors import MissingDependencyError, RefusedError
from envkit.system_packages import install_line
from envkit_browser import installing
from envkit_browser.driver import binary as binary_module
from envkit_browser.driver import find_browser
from envkit_browser.driver.binary import shell_line

ELF = b"\x7fELF, and no more"
PLAYWRIGHT, PUPPETEER = ".cache/ms-playwright", ".cache/puppeteer/chrome-headless-shell"
LAYOUTS = {
    "playwright": (
        f"{PLAYWRIGHT}/chromium_headless_shell-1187/chrome-linux/headless_shell",
        f"{PLAYWRIGHT}/chromium_headless_shell-999/chrome-linux/headless_shell",
    ),
    "playwright of today": (
        f"{PLAYWRIGHT}/chromium_headless_shell-1229/chrome-headless-shell-linux64/"
        "chrome-headless-shell",
        f"{PLAYWRIGHT}/chromium_headless_shell-1187/chrome-linux/headless_shell",
    ),
    "playwright on a Mac": (
        "Library/Caches/ms-playwright/chromium_headless_shell-1187/chrome-mac/headless_shell",
    ),
    "puppeteer": (
        f"{PUPPETEER}/linux-131.0.6778.204/chrome-headless-shell-linux64/chrome-headless-shell",
        f"{PUPPETEER}/linux-99.0.7000.1/chrome-headless-shell-linux64/chrome-headless-shell",
    ),
    "own": (
        ".cache/envkit/browser/chromium-153.0.0/chromium",
        ".cache/envkit/browser/chromium-99.0.0/chromium",
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser, and an empty home."""
    named = ("ENVKIT_BROWSER", "ENVKIT_CACHE", "XDG_CACHE_HOME")
    for name in (*named, "PLAYWRIGHT_BROWSERS_PATH", "PUPPETEER_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binary_module, "_PLACES", ())
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def put(path: Path, content: bytes = ELF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("paths", LAYOUTS.values(), ids=LAYOUTS)
def test_newest_shell_of_a_cache_is_found(paths: tuple[str, ...], home: Path) -> None:
    files = [put(home / path) for path in paths]
    assert find_browser() == files[0]


@pytest.mark.parametrize(
    ("name", "start"),
    [("PLAYWRIGHT_BROWSERS_PATH", PLAYWRIGHT), ("PUPPETEER_CACHE_DIR", ".cache/puppeteer")],
)
def test_caches_that_the_environment_names_are_searched(
    name: str, start: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LAYOUTS["playwright" if start == PLAYWRIGHT else "puppeteer"][0]
    file = put(home / "elsewhere" / Path(layout).relative_to(start))
    with pytest.raises(MissingDependencyError):
        find_browser()
    monkeypatch.setenv(name, str(home / "elsewhere"))
    assert find_browser() == file


def test_shells_come_before_whole_browsers_and_snaps_are_none(home: Path) -> None:
    snap = put(home / "snap" / "snap")
    (home / "bin").mkdir()
    (home / "bin" / "chromium").symlink_to(snap)
    with pytest.raises(MissingDependencyError, match=re.escape(f"with: {shell_line()}")):
        find_browser()
    whole = put(home / "bin" / "chrome")
    assert find_browser() == whole
    shell = put(home / LAYOUTS["puppeteer"][0])
    assert find_browser() == shell


def test_tilde_in_the_variable_is_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(home / "my" / "shell")
    monkeypatch.setenv("ENVKIT_BROWSER", "~/my/shell")
    assert find_browser() == file


def test_user_without_a_home_has_no_cache_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(homeless))
    with pytest.raises(MissingDependencyError):
        find_browser()


@pytest.mark.parametrize(
    ("system", "playwright", "shell", "sandbox"),
    [
        ("ID=debian", False, "apt-get install", "apt-get install --no-install-recommends deb"),
        ("ID=ubuntu ID_LIKE=debian", True, "playwright install --only-shell", "recommends ubu"),
        ("ID=ubuntu ID_LIKE=debian", False, "envkit browser install", "recommends ubu"),
        ("ID=linuxmint ID_LIKE=ubuntu debian", False, "envkit browser install", "recommends ubu"),
        ("ID=fedora", False, "dnf install chromium-headless", "dnf install fed"),
        ("ID=almalinux ID_LIKE=rhel centos fedora", False, "dnf install", "dnf install fed"),
        ("ID=arch", False, "envkit browser install", "what your distribution calls"),
        ("", True, "playwright install --only-shell", "what your distribution calls"),
        ("darwin", True, "it needs Linux", "it needs Linux"),
    ],
)
def test_install_line_fits_the_system(
    system: str, playwright: bool, shell: str, sandbox: str, home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def release() -> dict[str, str]:
        if not system:
            raise OSError("no os-release")
        name, _, like = system.removeprefix("ID=").partition(" ID_LIKE=")
        return {"ID": name, "ID_LIKE": like} if like else {"ID": name}

    def machine() -> str:
        return "x86_64"

    def spec(name: str) -> None:
        return None

    monkeypatch.setattr(sys, "platform", "darwin" if system == "darwin" else "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", release)
    monkeypatch.setattr(platform, "machine", machine)
    monkeypatch.setattr(binary_module, "find_spec", spec)
    if playwright:
        put(home / "bin" / "playwright")
    assert shell in shell_line()
    assert sandbox in install_line("deb", fedora="fed", ubuntu="ubu")


def _archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _serve(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, version: object, integrity: object, target: Path) -> tuple[str, str]:
        target.write_bytes(content)
        return "7.8.9", "sha512-of-the-index"

    def machine() -> str:
        return "x86_64"

    monkeypatch.setattr(installing, "download", download)
    monkeypatch.setattr(platform, "machine", machine)


@packages("brotli").mark
def test_browser_from_npm_is_unpacked_and_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress: Any = import_module("brotli").compress
    names = ("chromium", "al2023.tar", "fonts.tar")
    contents = (ELF, _archive(**{"lib/libnss3.so": b"a library"}), _archive(**{"../x.ttf": b"x"}))
    files = {f"package/bin/{n}.br": compress(c) for n, c in zip(names, contents, strict=True)}
    _serve(_archive(**files), monkeypatch)
    for _ in range(2):  # again replaces it
        shown = run_envkit("browser", "install")
        assert shown.code == 0, shown.err
        assert "@sparticuz/chromium 7.8.9, sha512-of-the-index" in shown.err
        found = find_browser()
        assert shown.out.strip() == str(found)
        assert found == home / ".cache" / "envkit" / "browser" / "chromium-7.8.9" / "chromium"
        assert (found.parent / "lib" / "libnss3.so").read_bytes() == b"a library"
        assert (found.parent / "fonts" / "x.ttf").is_file()
        assert os.listdir(found.parents[1]) == ["chromium-7.8.9"]


@packages("brotli").mark
def test_package_without_a_browser_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serve(_archive(README=b"nothing here"), monkeypatch)
    shown = run_envkit("browser", "install", "--version", "7.8.9")
    assert shown.code == 1
    assert "has no file 'package/bin/chromium.br'" in shown.err
    assert not os.listdir(home / ".cache" / "envkit" / "browser")


def test_browser_for_another_machine_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine() -> str:
        return "aarch64"

    monkeypatch.setattr(platform, "machine", machine)
    shown = run_envkit("browser", "install")
    assert shown.code == 2
    assert "playwright install --only-shell chromium" in shown.err


def test_variable_that_names_a_script_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVKIT_BROWSER", str(put(home / "launcher", b"#!/bin/sh\n")))
    with pytest.raises(RefusedError, match="not a launcher script"):
        find_browser()
