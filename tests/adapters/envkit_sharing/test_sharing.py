"""Sharing environments: the index, and installing from it with the real pip."""

import json
import os
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit

from envkit.errors import ConfigurationError, ServiceError, StorageError, UnknownNameError
from envkit_sharing import Package, read_index, write_index
from envkit_sharing.index import MAX_BYTES, find

ROOT = Path(__file__).parents[3]
PACKAGE = Package(
    requirement="coins @ git+https://example.org/coins@3f2a",
    version="1.2",
    environments=["coin-v0"],
    certificates={"coin-v0": {"passed": True, "target": "coin-v0"}},
)
MODULE = '''
import envkit


class Coin(envkit.Env):
    """Call the coin."""

    def on_reset(self, task):
        return envkit.Turn("Heads or tails?")

    def on_turn(self, response_text):
        return envkit.Turn("", reward=1.0, done=True)
'''


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Give a folder and the address at which it is served."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, directory=str(tmp_path), **options)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_index_is_read_as_it_was_written(served: tuple[Path, str]) -> None:
    folder, address = served
    write_index(folder / "index.json", {"coins": PACKAGE})
    for place in (folder / "index.json", f"{address}/index.json"):
        assert read_index(place) == {"coins": PACKAGE}
    assert PACKAGE.certified == "1 of 1 environments certified"


def test_package_is_found_by_its_name_and_its_environments() -> None:
    assert find({"coins": PACKAGE}, "coins") is find({"coins": PACKAGE}, "coin-v0") is PACKAGE
    with pytest.raises(UnknownNameError, match="Did you mean 'coin-v0'"):
        find({"coins": PACKAGE}, "coin-v9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not an index"),
        ("{", "is not an index"),
        ("[" * 100_000, "is not an index"),
        ('{"schema": 1}', "is not an index"),
        ('{"schema": 2, "packages": {}}', "the schema of an index must be 1, got 2"),
        ('{"schema": 1, "packages": {"a": {"requirement": "a"}}}', "is not an index"),
        ('{"schema": 1, "packages": {"a": 3}}', "is not an index"),
        ('{"schema": 1, "packages": []}', "is not an index"),
    ],
)
def test_file_that_is_no_index_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_index(tmp_path / "index.json")


@pytest.mark.parametrize(
    "change",
    [
        {"requirement": "--index-url=http://example.org coins"},
        {"requirement": "coins\n--pre"},
        {"requirement": 3},
        {"environments": "coin-v0"},
        {"certificates": []},
    ],
)
def test_package_of_an_index_is_checked(change: dict[str, Any], tmp_path: Path) -> None:
    entry = {"requirement": "coins", "version": "1", "environments": [], **change}
    (tmp_path / "index.json").write_text(json.dumps({"schema": 1, "packages": {"coins": entry}}))
    with pytest.raises(ConfigurationError, match=r"requirement|environments|certificates"):
        read_index(tmp_path / "index.json")


def test_index_that_cannot_be_read_is_an_error_of_its_place(served: tuple[Path, str]) -> None:
    folder, address = served
    (folder / "large.json").write_bytes(b" " * (MAX_BYTES + 1))
    for place, error in (
        (folder / "nothing.json", StorageError),
        (folder / "large.json", StorageError),
        (f"{address}/nothing.json", ServiceError),
        (f"{address}/large.json", ServiceError),
        ("http://127.0.0.1:1/index.json", ServiceError),
    ):
        with pytest.raises(error):
            read_index(place)


def test_what_an_index_names_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_index(tmp_path / "index.json", {"coins": PACKAGE})
    monkeypatch.setenv("ENVKIT_INDEX", str(tmp_path / "index.json"))
    shown = run_envkit("install", "coin-v0")
    assert shown.code == 2
    assert "1.2, 1 of 1 environments certified" in shown.err
    assert f"with --yes, got {PACKAGE.requirement}" in shown.last_error
    assert "Did you mean 'coins'" in run_envkit("install", "coinz").last_error
    assert run_envkit("install", "./coins", "--index", "index.json").code == 2
    monkeypatch.delenv("ENVKIT_INDEX")
    assert "must not be an option" in run_envkit("install", "--", "--pre").last_error


def test_publish_needs_a_package_with_environments(tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    for name, message in (("no-such-package", "an installed package"), ("pip", "no environments")):
        shown = run_envkit("publish", name, "--index", index)
        assert shown.code == 2
        assert message in shown.last_error
    report = tmp_path / "report.json"
    report.write_text('{"target": "canary-v0", "passed": false}')
    shown = run_envkit("publish", "envkit-rl", "--index", index, "--requirement=envkit-rl",
                       "--certificate", report)  # fmt: skip
    assert "must be of " in shown.last_error
    report.write_text('{"target": "canary-v0", "passed": true}')
    for _ in range(2):
        shown = run_envkit("publish", "envkit-rl", "--index", index, "--requirement=envkit-rl",
                           "--certificate", report)  # fmt: skip
        assert shown.code == 0, shown.err
    (published,) = read_index(index).values()
    assert published.requirement == "envkit-rl"
    assert {"canary-v0", "gymnasium/..."} < set(published.environments)
    assert published.certificates == {"canary-v0": {"target": "canary-v0", "passed": True}}


def _wheel(folder: Path) -> Path:
    wheel, info = folder / "coins-1.2-py3-none-any.whl", "coins-1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("coins.py", MODULE)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: coins\nVersion: 1.2\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", "[envkit.envs]\ncoin-v0 = coins:Coin\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.mark.slow
def test_installed_package_is_listed_with_its_origin_and_published(tmp_path: Path) -> None:
    wheel, python = _wheel(tmp_path), tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    places = [ROOT, ROOT / "envs", ROOT / "adapters", sysconfig.get_path("purelib")]

    def envkit(*words: object) -> str:
        code = f"import sys; sys.path += {[str(one) for one in places]}; " + (
            "from envkit.cli import main; main()"
        )
        done = subprocess.run(
            [python, "-c", code, *map(str, words)],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    write_index(tmp_path / "index.json", {"coins": Package(
        requirement=f"coins @ {wheel.as_uri()}", version="1.2", environments=["coin-v0"]
    )})  # fmt: skip
    assert envkit("install", "coin-v0", "--index", "index.json", "-y").splitlines()[-1] == "coin-v0"
    (row,) = [row for row in json.loads(envkit("list", "--json")) if row["id"] == "coin-v0"]
    assert (row["from"], row["origin"]) == ("coins", wheel.as_uri())
    envkit("certify", "coin-v0", "-n", 4, "--only", "contract", "--out", "coin.json")
    words = ("--requirement", "coins==1.2", "--index", "published.json")
    envkit("publish", "coins", *words, "--certificate", "coin.json")
    published = read_index(tmp_path / "published.json")["coins"]
    assert (published.version, published.environments) == ("1.2", ["coin-v0"])
    assert published.certified == "1 of 1 environments certified"
