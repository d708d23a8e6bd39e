"""`envkit doctor`: what is installed and answers, whether images arrive, every red line."""

import asyncio
import json
import math
import re
import shutil
import sys
import threading
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.needs import BROWSER, BUBBLEWRAP, DESKTOP, REASONING_GYM, TORCH
from fakes.sglang_server import FakeSGLang
from fakes.sglang_worker import Script
from fakes.vllm_server import FakeVLLM
from hypothesis import given
from hypothesis import strategies as st

from envkit import plugins, registration
from envkit.builtin_models import ENGINES
from envkit.cli import checks, installed
from envkit.cli.checks import Check, Status
from envkit.cli.doctor import _flags
from envkit.cli.engines import Built, EngineChoice, build
from envkit.cli.vision import Probe, VisionResult, difference, judge, look
from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind
from envkit.tokens import ChatCodec, load_codec
from envkit_vllm import VLLMEngine


class BlankingEngine:
    """Shows its model a grey image whatever it is given, as a broken server might."""

    name = "blanking"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def generate(self, request: GenerateRequest) -> Generation:
        grey = [
            Image.from_array(np.full((i.size[1], i.size[0], 3), 127, dtype=np.uint8))
            for i in request.images
        ]
        return await self._inner.generate(replace(request, images=grey, features=()))

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    async def end_session(self, session_id: str) -> None:
        await self._inner.end_session(session_id)

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextmanager
def serving(model: Path, **settings: Any) -> Generator[str]:
    """Run the fake server of a model on its own thread, and give its address."""
    codec = load_codec(model)
    server = FakeSGLang(
        _answer(codec), image_token_id=codec.media_ids[0], eos_ids=codec.stop_ids[:1], **settings
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    try:
        loop.run_until_complete(server.start())
        thread.start()
        yield server.url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(server.stop())
        loop.close()


def _answer(codec: ChatCodec) -> Script:
    reply = list(codec.encode_reply("it says 2222"))
    return lambda _: reply


def test_doctor_says_that_a_server_does_not_answer() -> None:
    shown = run_envkit("doctor", "--engine", "sglang", "--base-url", "http://127.0.0.1:9")
    assert shown.code == 1
    assert "no: answer sglang" in shown.out
    assert "the server at http://127.0.0.1:9 does not answer" in shown.out
    assert "matters  every episode with it would fault" in shown.out
    assert "fix      curl -i http://127.0.0.1:9/health" in shown.out


def test_doctor_says_that_a_model_folder_is_wrong(tmp_path: Path) -> None:
    shown = run_envkit("doctor", "--model", tmp_path)
    assert shown.code == 1
    assert "is not a model folder" in shown.out
    assert "fix      envkit doctor --model DIR_OR_NAME" in shown.out


@pytest.mark.slow
def test_vision_reaches_the_embedded_model(model: Path) -> None:
    shown = run_envkit("doctor", "--vision", "--model", model)
    assert shown.code == 0, shown.out
    assert "answers: 1 token" in shown.out
    assert "the image reaches the model: yes" in shown.out
    assert "the same image again: log-probabilities differ by 0" in shown.out


@pytest.mark.slow
def test_vision_does_not_reach_a_text_model() -> None:
    shown = run_envkit("doctor", "--vision", "--model", tiny_model_dir("llama"))
    assert shown.code == 1
    assert "the image reaches the model: no" in shown.out
    assert "does not support images" in shown.out
    assert "matters  the policy would be trained on images" in shown.out
    assert "--enable-multimodal" in shown.out


@pytest.mark.slow
def test_vision_check_fails_for_a_blanking_engine(model: Path) -> None:
    async def examine() -> VisionResult:
        built = await build(EngineChoice(model=str(model)))
        try:
            broken = Built(engine=BlankingEngine(built.engine), codec=built.codec, model="")
            return await look(broken, seed=1)
        finally:
            await built.engine.aclose()

    verdict = asyncio.run(examine())
    assert not verdict.reaches
    assert any("changes nothing" in reason for reason in verdict.reasons)


@pytest.mark.slow
def test_vision_reaches_a_server(model: Path) -> None:
    with serving(model) as url:
        arguments = ["--engine", "sglang", "--base-url", url, "--model", model]
        shown = run_envkit("doctor", "--vision", *arguments)
    assert shown.code == 0, shown.out
    assert "answers: 1 token" in shown.out
    assert "the image reaches the model: yes" in shown.out


async def test_flags_of_a_server_are_listed_and_a_missing_one_says_what_to_start(
    model: Path,
) -> None:
    codec = load_codec(model)
    server = FakeVLLM(lambda _: [20], is_processed=False, has_details=False)
    async with server:
        engine = VLLMEngine(server.url)
        rows = {row.name: row for row in await _flags(Built(engine=engine, codec=codec, model=""))}
        await engine.aclose()
    assert rows["--enable-scale-out"].status is Status.OK
    missing = rows["--logprobs-mode processed_logprobs"]
    assert missing.status is Status.FAILED
    assert missing.fix == "start the server with --logprobs-mode processed_logprobs"
    assert rows["--enable-prompt-tokens-details"].status is Status.OFF


@pytest.mark.slow
def test_rollout_asks_a_server_for_its_model(model: Path, tmp_path: Path) -> None:
    with serving(model, model_path=str(model)) as url:
        shown = run_envkit(
            "rollout", "canary-v0", "--engine", "sglang", "--base-url", url, "-n", 2,
            "--out", tmp_path / "run",
        )  # fmt: skip
    assert shown.code == 0, shown.err
    assert "terminated 2" in shown.out


def test_a_server_of_a_model_missing_locally_needs_its_name(model: Path) -> None:
    with serving(model, model_path="/srv/elsewhere") as url:
        shown = run_envkit("rollout", "canary-v0", "--engine", "sglang", "--base-url", url)
    assert shown.code == 2
    assert "'/srv/elsewhere'" in shown.last_error
    assert "add --model" in shown.last_error


def _probe(logprobs: list[float], **changes: Any) -> Probe:
    whole = Probe(
        picture="x",
        expected_tokens=20,
        prompt_tokens=20,
        token_ids=tuple(range(len(logprobs))),
        logprobs=tuple(logprobs),
        reply="",
    )
    return replace(whole, **changes)


def _asked(same: list[list[float]], other: list[float], blank: list[float]) -> list[Probe]:
    none = _probe([-9.0], expected_tokens=5, prompt_tokens=5)
    return [*map(_probe, same), _probe(other), _probe(blank), none]


def test_judge_names_a_wrong_token_count() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[2] = replace(asked[2], prompt_tokens=6)
    verdict = judge(asked, code="K7MX")
    assert not verdict.reaches
    assert verdict.reasons == (
        "image x: the engine counted 6 prompt tokens, but the processor gives 20",
    )


def test_judge_says_when_the_engine_does_not_repeat_itself() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[1] = replace(asked[1], token_ids=(7,))
    verdict = judge(asked, code="K7MX")
    assert not verdict.reaches
    assert "deterministic inference" in verdict.reasons[0]


def test_judge_sees_that_the_model_reads_the_code() -> None:
    asked = _asked([[-1.0], [-1.0]], [-2.0], [-3.0])
    asked[0] = replace(asked[0], reply="it is k7mx")
    assert judge(asked, code="K7MX").reads


@given(
    noise=st.floats(0.0, 0.05),
    signal=st.floats(0.0, 1.0),
)
def test_judge_believes_only_differences_above_the_noise(noise: float, signal: float) -> None:
    asked = _asked([[-1.0], [-1.0 - noise], [-1.0]], [-1.0 - signal], [-2.0])
    verdict = judge(asked, code="K7MX")
    measured = difference(asked[0], asked[1])
    heard = difference(asked[0], asked[3])
    assert verdict.reaches == (min(heard, 1.0) > 4 * measured + 1e-6)


@given(values=st.lists(st.floats(-20, 0), max_size=5))
def test_difference_is_zero_for_a_probe_and_itself_and_infinite_for_other_tokens(
    values: list[float],
) -> None:
    one = _probe(values)
    assert difference(one, one) == 0.0
    assert math.isinf(difference(one, replace(one, token_ids=(99,), logprobs=(0.0,))))


ROOT = Path(__file__).parents[3]
TRAINERS = {"harbor", "mcp", "openenv", "ray", "skyrl", "trl", "verifiers", "verl"}
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
        monkeypatch,
        "no-such-package>=2; extra == 'transformers'", "numpy>=999; extra == 'parquet'",
        "other>=1; python_version >= '99.1' and extra == 'skyrl'",
    )  # fmt: skip
    model, parquet, skyrl = (_found("extra", name) for name in ("transformers", "parquet", "skyrl"))
    assert model.status is Status.OFF
    assert model.fix == "pip install --upgrade 'envkit-rl[transformers]'"
    assert parquet.status is Status.FAILED
    assert skyrl.found == "other needs Python 99.1"
    assert skyrl.fix == "uv venv --python 99.1"
    assert all(map(_is_explained, (model, parquet, skyrl)))


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
    point = _plugin(tmp_path, monkeypatch, "import no_such_library\n", ENGINES)
    monkeypatch.setattr(plugins, "entry_points", _only(point))
    missing = _found("engine", "sick")
    assert missing.status is Status.OFF
    assert missing.fix == "pip install 'envkit-rl[sick]'"
    assert _is_explained(missing)
    other = EntryPoint(name="sick", value="shutil:thing", group=ENGINES)
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
