"""Every red line of `envkit doctor`: made to fail, explained, and fixed by one command."""

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fakes.command import run_envkit
from fakes.needs import BROWSER, BUBBLEWRAP, DESKTOP, REASONING_GYM, TORCH

from envkit import plugins, registration
from envkit.cli import checks, engines, installed
from envkit.cli.checks import Check, Status
from envkit.errors import ConfigurationError, MissingDependencyError

ROOT = Path(__file__).parents[3]
TRAINERS = {"openenv", "ray", "skyrl", "trl", "verifiers", "verl"}
"""Extras that these tests do not need."""
MACHINE = {
    "browser": BROWSER,
    "linux-desktop": DESKTOP,
    "reasoning-gym": REASONING_GYM,
    "terminal": BUBBLEWRAP,
}
"""What not every machine has."""


def _found(area: str, name: str) -> Check:
    (check,) = [c for c in checks.all_checks() if (c.area, c.name) == (area, name)]
    return check


def _is_explained(check: Check) -> bool:
    return bool(check.found and check.matters and check.fix)


@TORCH.mark
def test_doctor_lists_what_is_installed() -> None:
    shown = run_envkit("doctor")
    assert shown.code == 0, shown.out
    for word in ("python", "torch", "transformers", "sglang", "canary-v0", "browser", "cache"):
        assert word in shown.out
    off = {line.split()[-1] for line in shown.out.splitlines() if line.startswith("off: ")}
    assert off - TRAINERS == {name for name, need in MACHINE.items() if not need.is_met}


def test_doctor_writes_json() -> None:
    answer = json.loads(run_envkit("doctor", "--json").out)
    assert answer["is_sound"] is True
    assert re.match(r"\d+", answer["machine"]["cpus"])
    by_name = {(c["area"], c["name"]): c for c in answer["checks"]}
    assert by_name["core", "numpy"]["status"] == "ok"


def test_every_finding_that_is_not_well_is_explained() -> None:
    for check in checks.all_checks():
        assert _is_explained(check) == (check.status is not Status.OK)


def _declare(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    def requires(name: str) -> list[str]:
        return list(lines)

    monkeypatch.setattr(installed, "requires", requires)


def test_a_package_of_the_core_that_is_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    _declare(
        monkeypatch, "no-such-package>=2", "numpy>=999.1", "pillow>=10.3", "ruff; extra == 'dev'"
    )
    missing, old = _found("core", "no-such-package"), _found("core", "numpy")
    assert (missing.status, missing.found) == (Status.FAILED, "missing")
    assert missing.fix == "pip install --upgrade 'no-such-package>=2'"
    assert "is older than 999.1" in old.found
    assert _found("core", "pillow").status is Status.OK
    shown = run_envkit("doctor")
    assert shown.code == 1
    assert "no: core no-such-package" in shown.out
    assert "matters  envkit itself needs it" in shown.out


def test_an_extra_that_is_missing_is_off_and_one_that_is_old_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _declare(
        monkeypatch, "no-such-package>=2; extra == 'hf'", "numpy>=999; extra == 'parquet'",
        "other>=1; python_version >= '99.1' and extra == 'skyrl'",
    )  # fmt: skip
    hf, parquet, skyrl = (_found("extra", name) for name in ("hf", "parquet", "skyrl"))
    assert hf.status is Status.OFF
    assert hf.fix == "pip install --upgrade 'envkit-rl[hf]'"
    assert parquet.status is Status.FAILED
    assert skyrl.found == "other needs Python 99.1"
    assert skyrl.fix == "uv venv --python 99.1"
    assert all(map(_is_explained, (hf, parquet, skyrl)))


def test_every_extra_says_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = set(project["project"]["optional-dependencies"]) - {"all", "dev", "docs"}
    assert set(installed.EXTRAS) == extras


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    check = _found("disk", "current folder")
    assert check.status is Status.FAILED
    assert "/proc cannot be written" in check.found
    assert _is_explained(check)


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize("full", ["current folder", "cache folder"])
def test_a_disk_that_is_almost_full(
    full: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = {"current folder": tmp_path / "here", "cache folder": tmp_path / "cache"}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["current folder"])
    monkeypatch.setenv("ENVKIT_CACHE", str(folders["cache folder"]))

    def usage(path: object) -> _Usage:
        return _Usage(100, 99, 5_000_000 if path == folders[full] else 5 << 30)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    found = {name: _found("disk", name) for name in folders}
    check = found.pop(full)
    assert (check.status, check.found) == (Status.FAILED, "0.0 GiB free")
    assert _is_explained(check)
    assert [other.status for other in found.values()] == [Status.OK]


def test_a_user_without_a_home_is_told_how_to_name_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def homeless(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ENVKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(homeless))
    check = _found("disk", "cache folder")
    assert check.status is Status.FAILED
    assert check.fix.startswith("export ENVKIT_CACHE=")
    assert _is_explained(check)


def test_a_torch_that_is_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libthings.so.1: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    check = _found("torch", "devices")
    assert check.status is Status.FAILED
    assert "libthings.so.1" in check.found
    assert _is_explained(check)


@TORCH.mark
def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = installed.torch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = _found("torch", "devices")
    assert check.status is Status.FAILED
    assert "sees no GPU" in check.found
    assert _is_explained(check)


def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, group: str) -> EntryPoint:
    (tmp_path / "sick_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sick_plugin", raising=False)
    return EntryPoint(name="sick", value="sick_plugin:thing", group=group)


def _only(point: EntryPoint) -> Callable[[str], list[EntryPoint]]:
    def entry_points(group: str) -> list[EntryPoint]:
        return [point] if group == point.group else []

    return entry_points


def test_an_engine_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point = _plugin(tmp_path, monkeypatch, "import no_such_library\n", engines.GROUP)
    monkeypatch.setattr(plugins, "entry_points", _only(point))
    missing = _found("engine", "sick")
    assert missing.status is Status.OFF
    assert missing.fix == "pip install 'envkit-rl[sick]'"
    assert _is_explained(missing)
    other = EntryPoint(name="sick", value="shutil:thing", group=engines.GROUP)
    monkeypatch.setattr(plugins, "entry_points", _only(other))
    broken = _found("engine", "sick")
    assert broken.status is Status.FAILED
    assert "pip install --force-reinstall" in broken.fix


def test_an_environment_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    healthy = registration.spec

    def spec(id: str) -> Any:  # noqa: A002
        if id == "canary-v0":
            raise ConfigurationError("canary-v0 is sick")
        if id == "search-v0":
            raise MissingDependencyError.for_extra("search", "tantivy", "search")
        return healthy(id)

    monkeypatch.setattr(registration, "spec", spec)
    canary, search = _found("environment", "canary-v0"), _found("environment", "search-v0")
    assert (canary.status, canary.found) == (Status.FAILED, "canary-v0 is sick")
    assert "pip" not in canary.fix
    assert (search.status, search.fix) == (Status.OFF, "pip install 'envkit-rl[search]'")
    assert _is_explained(canary)


def test_a_browser_missing_from_its_configured_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENVKIT_BROWSER", str(tmp_path / "nowhere"))
    check = _found("plugin", "browser")
    assert check.status is Status.FAILED
    assert check.fix == "unset ENVKIT_BROWSER"


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENVKIT_CACHE", str(tmp_path / "file"))
    check = _found("disk", "cache folder")
    assert check.status is Status.FAILED
    assert "cannot be written" in check.found
    assert check.fix.startswith("export ENVKIT_CACHE=")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("MissingDependencyError('no xvfb. Install them with: apt-get install xvfb')", "apt-get"),
        ("MissingDependencyError('the program xvfb is not there')", "do what the message says"),
        ("StorageError('the disk is gone')", "do what the message says"),
        ("ContractError('the plugin cannot be read')", "pip install --force-reinstall"),
    ],
)
def test_pip_is_the_cure_only_for_broken_packages(
    error: str, fix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"from envkit.errors import *\ndef thing():\n    raise {error}\n"
    point = _plugin(tmp_path, monkeypatch, text, checks.GROUP)
    monkeypatch.setattr(plugins, "entry_points", _only(point))
    check = _found("plugin", "sick")
    assert check.fix.startswith(fix)
    assert _is_explained(check)


def test_a_check_that_fails_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point = _plugin(tmp_path, monkeypatch, "def thing():\n    return 1 / 0\n", checks.GROUP)
    monkeypatch.setattr(plugins, "entry_points", _only(point))
    check = _found("plugin", "sick")
    assert check.status is Status.FAILED
    assert "ZeroDivisionError" in check.found
    assert _is_explained(check)


def _version_2(**quotas: str) -> dict[str, str]:
    return {f"{name.replace('_', '/')}cpu.max": f"{one} 100000" for name, one in quotas.items()}


def _version_1(folder: str, quota: str) -> dict[str, str]:
    names = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"}
    return {f"{folder}/{name}": one for name, one in names.items()}


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "50000 100000"}, "0.5"),
        ("0::/", {"cpu.max": "max 100000"}, ""),
        ("0::/job/step", _version_2(job_="15000", job_step_="max"), "0.15"),
        ("0::/job/step", _version_2(job_="25000", job_step_="90000"), "0.25"),
        ("4:memory:/a\n1:cpu:/a", _version_1("cpu", "50000"), "0.5"),
        ("1:cpu:/a", _version_1("cpu/a", "-1"), ""),
        ("1:cpu,cpuacct:/", _version_1("cpu,cpuacct", "10000"), "0.1"),
        ("nonsense", {}, ""),
    ],
)
def test_processors_say_what_a_control_group_leaves_of_them(
    own: str, files: dict[str, str], quota: str, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    said = installed.cpus(tmp_path).partition("a quota of ")[2]
    assert said.partition(":")[0] == quota
