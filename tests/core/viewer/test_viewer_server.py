"""The server of `envkit ui`: who may ask, what is answered, and that nothing else is read."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from fakes.marked_runs import grouped_run
from fakes.served import WatchedLibrary
from fakes.strangers import AMBIGUOUS, answers_to_ambiguous, connected
from fakes.trajectories import example
from fakes.waiting import until

from envkit.errors import ServiceError
from envkit.images import Image
from envkit.trajectory import load, save
from envkit.trajectory.storage import FILE_NAME, TrajectoryWriter
from envkit.viewer.folder import Folder
from envkit.viewer.library import Library
from envkit.viewer.server import MAX_QUERY, create_app, serve

KEY = "a-key-for-these-tests"
RUNS = {"first": 3, "deep/second": 2}
"""Groups of each run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name, groups in RUNS.items():
        save(grouped_run(groups=groups), root / name / FILE_NAME)
    return root


@asynccontextmanager
async def running(
    root: Path, *, is_in: bool = True, is_read: bool = False
) -> AsyncGenerator[aiohttp.ClientSession]:
    """Serve a folder; give a client, which has the key unless it is not in.

    With `is_read`, the server has read every run by then and has no news until a file changes.
    """
    library = WatchedLibrary(Folder(root))
    server = TestServer(create_app(library, key=KEY))
    jar = aiohttp.CookieJar(unsafe=True)  # keeps cookies of IP addresses
    async with server, aiohttp.ClientSession(server.make_url("/"), cookie_jar=jar) as session:
        if is_in:
            async with session.get("/", params={"key": KEY}) as entered:
                assert entered.status == 200
        if is_read:
            await until(library.is_idle.is_set, seconds=60)
        yield session


async def answer(session: aiohttp.ClientSession, path: str, **query: Any) -> Any:
    async with session.get(path, params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def status(
    session: aiohttp.ClientSession, path: str, headers: dict[str, str] | None = None, **query: Any
) -> int:
    async with session.get(path, params=query, headers=headers) as response:
        return response.status


async def settled(session: aiohttp.ClientSession, count: int) -> dict[str, Any]:
    """Return the table of runs once so many were read to their end."""
    async with asyncio.timeout(60):
        while True:
            found = await answer(session, "/api/runs")
            if sum(run["state"] != "reading" for run in found["runs"]) == count:
                return {run["name"]: run for run in found["runs"]}
            await asyncio.sleep(0.02)


EVERY_PATH = ("/", "/api/runs", "/api/run?name=first", "/api/episode?name=first&number=1",
              "/api/search?name=first&q=a", "/api/changes", "/api/metrics",
              f"/image/{'0' * 64}?name=first",
              "/api/diff?first=first&second=first", "/nothing", "/images/../x")  # fmt: skip


@pytest.mark.parametrize("path", EVERY_PATH)
async def test_server_requires_the_key(folder: Path, path: str) -> None:
    async with running(folder, is_in=False) as session:
        assert await status(session, path) == 401
        async with session.get(path, cookies={"envkit-ui-80": KEY, "key": KEY}) as response:
            assert response.status == 401


async def test_server_takes_the_key_once_and_then_its_cookie(folder: Path) -> None:
    async with running(folder, is_in=False) as session:
        assert await status(session, "/", key="wrong") == 401
        assert await status(session, "/", key="") == 401
        assert await status(session, "/api/runs", key=KEY) == 401  # the page only
        async with session.get("/", params={"key": KEY}) as entered:
            cookie = entered.headers["Set-Cookie"]
            assert entered.status == 200
        assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert await status(session, "/api/runs") == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "localhost.evil.example"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
    ids=str,
)
async def test_server_refuses_other_names_and_other_sites(
    folder: Path, headers: dict[str, str]
) -> None:
    async with running(folder) as session:
        assert await status(session, "/api/runs", headers) in (400, 403)


async def test_server_may_be_entered_by_a_link_of_another_page(folder: Path) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with running(folder, is_in=False) as session:
        assert await status(session, "/", link, key=KEY) == 200
        framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert await status(session, "/", framed, key=KEY) == 403


async def test_server_may_be_reached_through_a_forwarded_port(folder: Path) -> None:
    async with running(folder, is_in=False) as session:
        own = {"Host": "localhost:9000", "Origin": "http://localhost:9000"}
        async with session.get("/", params={"key": KEY}, headers=own) as response:
            assert response.status == 200
            assert "envkit-ui-9000=" in response.headers["Set-Cookie"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_server_only_reads(folder: Path, method: str) -> None:
    async with running(folder) as session:
        async with session.request(method, "/api/runs") as response:
            assert response.status == 405
        async with session.request("HEAD", "/api/runs") as response:
            assert response.status == 200


async def test_server_sends_strict_headers_with_everything(folder: Path) -> None:
    async with running(folder) as session:
        for path in (*EVERY_PATH, "/api/run?name=nothing"):
            async with session.get(path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'")
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert "Access-Control-Allow-Origin" not in response.headers
                assert "Server" not in response.headers


async def test_server_answers_what_the_files_hold(folder: Path) -> None:
    async with running(folder) as session:
        runs = await settled(session, 2)
        assert sorted(runs) == sorted(RUNS)
        rewards = [one.reward or 0.0 for one in load(folder / "first")]
        assert runs["first"]["reward"]["mean"] == pytest.approx(sum(rewards) / len(rewards))
        run = await answer(session, "/api/run", name="deep/second")
        assert len(run["rows"]) == 8
        data = await answer(session, "/api/episode", name="deep/second", number=5)
        assert data["id"] == "episode-1-0"
        line = (folder / "deep" / "second" / FILE_NAME).read_bytes().splitlines()[4]
        record = await answer(session, "/api/record", name="deep/second", number=5)
        assert record == json.loads(line)
        assert await status(session, "/api/record", name="deep/second", number=99) == 404
        hits = await answer(session, "/api/search", name="first", q="open ROW 2")
        assert [number for number, _ in hits] == [9, 10, 11, 12]
        diff = await answer(session, "/api/diff", first="first", second="deep/second")
        assert diff["pairs"] == 8


async def test_server_answers_images_of_the_run_alone(folder: Path) -> None:
    async with running(folder) as session:
        await settled(session, 2)
        image: Image = load(folder / "first")[0].images()[0]
        async with session.get(f"/image/{image.sha256}", params={"name": "first"}) as response:
            assert response.status == 200
            assert response.content_type == "image/png"
            assert Image.from_bytes(await response.read()).sha256 == image.sha256
        for name, sha256 in (
            ("first", "0" * 64),
            ("nothing", image.sha256),
            ("../first", image.sha256),
            ("first", image.sha256.upper()),
            ("first", image.sha256[:-1]),
            ("first", "..%2f..%2fsecret"),
        ):
            assert await status(session, f"/image/{sha256}", name=name) == 404


async def test_server_answers_no_image_that_is_something_else(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "run" / FILE_NAME)
    page = tmp_path / "run" / "images" / f"{'a' * 64}.png"
    page.write_text("<script>alert(1)</script>")
    (tmp_path / "run" / "images" / f"{'b' * 64}.png").symlink_to("/etc/hostname")
    async with running(tmp_path) as session:
        await settled(session, 1)
        for letter in "ab":
            assert await status(session, f"/image/{letter * 64}", name="run") == 404


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/api/run", {"name": "nothing"}, 404),
        ("/api/run", {}, 404),
        ("/api/run", {"name": "/etc"}, 404),
        ("/api/run", {"name": "first", "since": "-1", "epoch": "x"}, 200),
        ("/api/run", {"name": "first", "since": "9" * 15, "epoch": "0"}, 200),
        ("/api/episode", {"name": "first", "number": "0"}, 404),
        ("/api/episode", {"name": "first", "number": "99999"}, 404),
        ("/api/episode", {"name": "first", "number": "9" * 400}, 404),
        ("/api/search", {"name": "first", "q": "x" * (MAX_QUERY + 1)}, 400),
        ("/api/search", {"name": "first", "q": "\ud800".encode("utf-8", "replace").decode()}, 200),
        ("/api/search", {"name": "first"}, 200),
        ("/api/diff", {"first": "first", "second": "no"}, 404),
        ("/style.css", {}, 404),
        ("/../../etc/hostname", {}, 404),
    ],
)
async def test_server_survives_any_request(
    folder: Path, path: str, query: dict[str, Any], expected: int
) -> None:
    async with running(folder) as session:
        await settled(session, 2)
        assert await status(session, path, **query) == expected


async def test_server_says_which_runs_cannot_be_compared(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "a" / FILE_NAME)
    others = [replace(one, env_id="other-v0") for one in grouped_run(groups=1)]
    save(others, tmp_path / "b" / FILE_NAME)
    async with running(tmp_path) as session:
        await settled(session, 2)
        async with session.get("/api/diff", params={"first": "a", "second": "b"}) as response:
            assert response.status == 409
            assert "share none" in await response.text()


@pytest.mark.slow
async def test_server_reports_a_growing_run(tmp_path: Path) -> None:
    async with running(tmp_path) as session:
        await settled(session, 0)
        version = (await answer(session, "/api/changes"))["version"]
        with TrajectoryWriter(tmp_path / "run") as writer:
            for count in range(1, 4):
                writer.write(example(count))
                run: dict[str, Any] = {"rows": [], "live": False}
                # The server answers each wait after some seconds.
                while len(run["rows"]) < count or not run["live"]:
                    state = await answer(session, "/api/changes", version=version)
                    version = state["version"]
                    if state["revisions"]:
                        run = await answer(session, "/api/run", name="run")


async def test_server_waits_for_the_first_episode_of_a_run_to_compare(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "first" / FILE_NAME)
    with TrajectoryWriter(tmp_path / "second") as writer:
        async with running(tmp_path, is_read=True) as session:
            found = await answer(session, "/api/diff", first="first", second="second")
            assert found == {"reading": ["second"], "episodes": 4}
            for episode in grouped_run(groups=1):
                writer.write(episode)
            while "reading" in found:
                found = await answer(session, "/api/diff", first="first", second="second")
                await asyncio.sleep(0.05)
            assert found["pairs"] > 0


async def test_server_answers_others_while_one_waits(folder: Path) -> None:
    async with running(folder, is_read=True) as session:
        state = await answer(session, "/api/changes")
        query = {"version": state["version"]}
        waiting = asyncio.create_task(answer(session, "/api/changes", **query))
        assert len(await answer(session, "/api/search", name="first", q="visits")) == 12
        assert not waiting.done()
        waiting.cancel()


async def test_server_answers_a_changed_file_with_an_error_and_then_rereads_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run" / FILE_NAME
    save((example(n) for n in range(3)), file)
    async with running(tmp_path) as session:
        await settled(session, 1)
        file.write_bytes(b"x" * 10)
        assert await status(session, "/api/episode", name="run", number=2) == 404
        assert await status(session, "/api/record", name="run", number=2) == 404
        os.utime(file, (1, 1))
        async with asyncio.timeout(60):
            while (await answer(session, "/api/run", name="run"))["rows"]:
                await asyncio.sleep(0.02)


async def test_page_holds_no_data_and_runs_only_its_own_script(folder: Path) -> None:
    async with running(folder) as session, session.get("/") as response:
        text, policy = await response.text(), response.headers["Content-Security-Policy"]
    assert KEY not in text
    assert "deep/second" not in text
    assert policy.count("sha256-") == 2
    assert "connect-src 'self'" in policy


async def test_server_says_that_its_port_is_taken(folder: Path) -> None:
    taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    library = Library(Folder(folder))
    first = asyncio.create_task(serve(library, key=KEY, port=0, on_ready=taken.set_result))
    address = await taken
    assert address.startswith("http://127.0.0.1:")
    port = int(address.split(":")[2].split("/")[0])
    with pytest.raises(ServiceError, match=rf"port {port} .* is in use"):
        await serve(library, key=KEY, port=port)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_server_survives_slow_and_broken_clients(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty send no more of a request or read no more of the page; others send broken HTTP."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = serve(Library(Folder(folder)), key=KEY, port=0, on_ready=ready.set_result)
    task = asyncio.create_task(serving)
    address = await ready
    page = f"GET /?key={KEY} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with AsyncExitStack() as stack:
        for said in ("", page[:-2], page * 30, page[:-2] + "Content-Length: 9\r\n\r\n"):
            for _ in range(10):
                await stack.enter_async_context(connected(address, said))
        for name in AMBIGUOUS:
            assert await answers_to_ambiguous(address, name) == 1
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(address) as response:
            assert response.status == 200
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not caplog.records


async def test_server_survives_broken_settings_and_documents(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "run" / FILE_NAME)
    settings = {"engine": [], "config": 3, "episodes": "x", "env_id": {}, "x": float("inf")}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"settings": settings}))
    (tmp_path / "run" / "metrics.json").write_text('{"step": NaN, "episodes": Infinity}')
    (tmp_path / "broken.json").write_text('{"target": 1, "passed": 2, "is_complete": 3')
    (tmp_path / "nested.json").write_text('{"a":' * 5000)
    async with running(tmp_path) as session:
        runs = await settled(session, 1)
        assert runs["run"]["expected"] is None
        assert runs["run"]["step"] is None
        assert (await answer(session, "/api/run", name="run"))["figures"]["episodes"] == 4


async def test_server_answers_valid_json_for_any_number(tmp_path: Path) -> None:
    rows = [replace(one, reward=float("nan")) for one in grouped_run(groups=1)]
    rows.append(replace(rows[0], duration_seconds=float("inf"), episode_id="endless"))
    save(rows, tmp_path / "run" / FILE_NAME)
    async with running(tmp_path) as session:
        await settled(session, 1)
        for path in ("/api/runs", "/api/run?name=run", "/api/episode?name=run&number=5"):
            async with session.get(path) as response:
                assert response.status == 200
                json.loads(await response.read(), parse_constant=pytest.fail)
