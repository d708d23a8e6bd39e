"""The script that makes a bare machine, where none can be made, and what it takes over."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """`run` and `takeover`, on a machine without settings."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "NPM_CONFIG", "npm_config", "XDG_")) or "CERT" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENVKIT_TEST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "home").mkdir()
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bare"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    import run  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    import takeover  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    yield SimpleNamespace(run=run, takeover=takeover)
    for name in ("run", "takeover"):
        sys.modules.pop(name, None)


def test_bare_machine_needs_root_and_says_so(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["run.py"])

    def no_handler(number: int, handler: object) -> None:
        pass

    monkeypatch.setattr(scripts.run.signal, "signal", no_handler)
    assert scripts.run.main() == 2
    assert "it needs root" in capsys.readouterr().err


def test_damaged_base_is_built_again(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def debootstrap(target: Path) -> None:
        target.mkdir()
        (target / "file").write_text("fresh " * 1000)

    monkeypatch.setattr(scripts.run, "_debootstrap", debootstrap)
    monkeypatch.setattr(scripts.run, "_ensure_debootstrap", lambda: None)
    base = scripts.run.ensure_base(tmp_path)
    packed = base.read_bytes()
    for damaged in (packed[:-20], packed[:40] + b"\xff" * 9 + packed[49:], b""):
        base.write_bytes(damaged)
        assert scripts.run.ensure_base(tmp_path) == base
        assert scripts.run._call("gzip", "--test", str(base)).returncode == 0
    unchanged = base.stat()
    assert scripts.run.ensure_base(tmp_path).stat().st_ino == unchanged.st_ino
    assert [path.name for path in tmp_path.glob("work-*")] == []


def test_work_folder_of_a_killed_run_is_removed_and_that_of_a_living_one_is_kept(
    scripts: Any, tmp_path: Path
) -> None:
    cache = tmp_path / "bare"
    (cache / "work-killed" / "root").mkdir(parents=True)
    with scripts.run.work_folder(cache) as first, scripts.run.work_folder(cache) as second:
        assert sorted(cache.iterdir()) == sorted((first, second))
    assert list(cache.iterdir()) == []


def test_settings_of_pip_and_npm_are_taken_over(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, index, certificate = tmp_path / "wheels", tmp_path / "index", tmp_path / "own.crt"
    (index / "simple").mkdir(parents=True)
    wheels.mkdir()
    certificate.write_text("")
    config = tmp_path / "home" / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.write_text(
        f"[global]\ntimeout = 7\nextra-index-url =\n    https://index.example/simple\n"
        f"    file://{index}/simple\n[install]\nfind-links = {wheels} https://links.example\n"
    )
    (tmp_path / "home" / ".npmrc").write_text(
        f"registry=https://npm.example/\ncafile={certificate}\nprefix=/opt/node\n"
    )
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "missing.txt"))
    monkeypatch.setenv("UNRELATED", "1")
    assert {wheels, index, certificate} <= set(scripts.takeover.visible(tmp_path))
    assert tmp_path / "missing.txt" not in scripts.takeover.visible(tmp_path)
    root = tmp_path / "root"
    for name in ("etc", "root"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "hosts").symlink_to(tmp_path / "never written")
    scripts.takeover.write_settings(root, tmp_path)
    assert "timeout = 7" in (root / "etc" / "pip.conf").read_text()
    npmrc = (root / "root" / ".npmrc").read_text().splitlines()
    assert "registry=https://npm.example/" in npmrc
    assert "prefix=/opt/node" not in npmrc
    assert not (tmp_path / "never written").exists()
    environment = scripts.takeover.environment()
    assert "PIP_CONSTRAINT" in environment
    assert "UNRELATED" not in environment


def test_path_behind_a_link_of_the_root_is_refused(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    with pytest.raises(scripts.run.BareError, match="var/run is a link"):
        scripts.run._check_place(tmp_path, Path("/var/run/wheels"))


def test_mirror_is_the_one_of_the_suite_in_apt_settings(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()

    def apt_folder(text: str) -> Path:
        return tmp_path

    monkeypatch.setattr(scripts.run, "Path", apt_folder)
    assert scripts.run._mirror() == []
    suite = scripts.run.SUITE
    (folder / "a.sources").write_text(
        f"Types: deb\nURIs: http://security.example\nSuites: {suite}-security\n\n"
        f"Types: deb\nURIs: http://mirror.example/debian\nSuites: {suite} {suite}-updates\n"
    )
    assert scripts.run._mirror() == ["http://mirror.example/debian"]
    (folder / "a.sources").unlink()
    (tmp_path / "sources.list").write_text(f"deb [arch=amd64] http://old.example/d {suite} main\n")
    assert scripts.run._mirror() == ["http://old.example/d"]
