"""Machines on which no browser can start: doctor and a run say so alike, and no episode begins."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.containers import AS_USER, NO_NAMESPACES, envkit_inside
from fakes.needs import BROWSER, packages

from envkit.errors import MissingDependencyError, RefusedError
from envkit_browser.driver import Browser, BrowserFault
from envkit_browser.driver import browser as browser_module
from envkit_browser.driver.browser import check_browser
from envkit_browser.driver.process import SANDBOX_VARIABLE, BrowserProcess

REFUSED = (*AS_USER, *NO_NAMESPACES)


@pytest.fixture(autouse=True)
def first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the browsers that other tests started in this process."""
    monkeypatch.setattr(BrowserProcess, "has_answered", False)


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a user who is not root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder, "run")


def _play(out: Path) -> tuple[int, str, dict[str, str]]:
    """Return a run's exit code and its errors, and what doctor says of the browser."""
    run = ("rollout", "computer-use-page-v0", "--policy", "oracle", "-n", 2, "--out", out)
    done = envkit_inside(REFUSED, *run)
    answer = json.loads(envkit_inside(REFUSED, "doctor", "--json").stdout)
    (check,) = [c for c in answer["checks"] if (c["area"], c["name"]) == ("plugin", "browser")]
    return done.returncode, done.stderr, check


@BROWSER.mark
@packages("pyseccomp").mark
@pytest.mark.slow
def test_user_without_namespaces_plays_nothing_and_is_told_the_choice(out: Path) -> None:
    code, errors, check = _play(out)
    assert code == 2, errors
    assert check["status"] == "no"
    for text in (errors, check["found"]):
        for word in (f"{SANDBOX_VARIABLE}=off", "seccomp=unconfined", "may not create user"):
            assert word in text
    assert not list(out.glob("*.jsonl"))


@BROWSER.mark
@packages("pyseccomp").mark
@pytest.mark.slow
def test_user_without_namespaces_can_choose_to_play_without_the_sandbox(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SANDBOX_VARIABLE, "off")
    code, errors, check = _play(out)
    assert code == 0, errors
    assert check["status"] == "ok"


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("value", ["on", "0", "OFF"])
async def test_sandbox_setting_that_is_unknown_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _say("hello", monkeypatch)
    monkeypatch.setenv(SANDBOX_VARIABLE, value)
    with pytest.raises(RefusedError, match=f"must be 'off' or unset, got '{value}'"):
        await Browser.start()


def _say(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the browser be a program that writes this and ends."""
    folder = Path(tempfile.gettempdir())
    script = folder / "says"
    script.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(browser_module, "find_browser", lambda: script)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    ("words", "kind", "fix"),
    [
        ("FATAL: No usable sandbox! Update your kernel", RefusedError, SANDBOX_VARIABLE),
        (
            "x: error while loading shared libraries: libnss3.so: cannot open shared object file",
            MissingDependencyError,
            "libnss3.so",
        ),
    ],
)
async def test_failure_of_every_start_is_a_fault_only_after_one_succeeded(
    words: str, kind: type[Exception], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _say(words, monkeypatch)
    with pytest.raises(kind, match=fix):
        await Browser.start()
    monkeypatch.setattr(BrowserProcess, "has_answered", True)
    with pytest.raises(BrowserFault, match=fix if kind is not RefusedError else "usable"):
        await Browser.start()


@BROWSER.mark
def test_browser_without_fonts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "fonts.conf"
    settings.write_text('<?xml version="1.0"?><fontconfig></fontconfig>')
    monkeypatch.setenv("FONTCONFIG_FILE", str(settings))
    with pytest.raises(RefusedError, match=r"no font.* Install one with: .*liberation"):
        check_browser()
