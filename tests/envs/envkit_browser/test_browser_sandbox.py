"""Nothing leaves the machine: every way out that a page knows is tried against real listeners."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from fakes.browsers import click, open_page, running_pool
from fakes.needs import BROWSER

from envkit_browser.driver import Browser, PageEvent, PageOptions, Site
from envkit_browser.driver.page import Page
from envkit_browser.driver.process import BrowserProcess

pytestmark = [BROWSER.mark, pytest.mark.slow]

SECRET = "the-secret-of-the-file"
TRIES = {
    "fetch": "fetch('http://HOST/fetch').then(r => r.text()).then(keep, () => 0)",
    "fetch_no_cors": "fetch('http://HOST/nocors', {mode: 'no-cors'}).catch(() => 0)",
    "xhr": "x = new XMLHttpRequest(); x.open('GET', 'http://HOST/xhr'); x.send()",
    "image": "new Image().src = 'http://HOST/image.png'",
    "script": "add('script', {src: 'http://HOST/script.js'})",
    "style": "add('link', {rel: 'stylesheet', href: 'http://HOST/style.css'})",
    "iframe": "add('iframe', {src: 'http://HOST/frame'})",
    "sandboxed_iframe": "add('iframe', {sandbox: 'allow-scripts', srcdoc: "
    "'<img src=http://HOST/inner>'})",
    "data_iframe": "add('iframe', {src: 'data:text/html,<img src=http://HOST/data>'})",
    "object": "add('object', {data: 'http://HOST/object'})",
    "video": "add('video', {src: 'http://HOST/video', autoplay: true})",
    "font": "new FontFace('x', 'url(http://HOST/font)').load().catch(() => 0)",
    "websocket": "new WebSocket('ws://HOST/socket')",
    "eventsource": "new EventSource('http://HOST/events')",
    "beacon": "navigator.sendBeacon('http://HOST/beacon', 'x')",
    "form": "f = add('form', {action: 'http://HOST/form', method: 'post', target: '_blank'}); "
    "f.submit()",
    "popup": "window.open('http://HOST/popup')",
    "link": "a = add('a', {href: 'http://HOST/link', target: '_blank'}); a.click()",
    "ping": "a = add('a', {href: '#x', ping: 'http://HOST/ping'}); a.click()",
    "preconnect": "add('link', {rel: 'preconnect', href: 'http://HOST/'})",
    "dns_prefetch": "add('link', {rel: 'dns-prefetch', href: 'http://localhost:PORT/'})",
    "prefetch": "add('link', {rel: 'prefetch', href: 'http://HOST/prefetch'})",
    "prerender": "s = document.createElement('script'); s.type = 'speculationrules'; "
    "s.text = JSON.stringify({prerender: [{source: 'list', urls: ['http://HOST/pre']}]}); "
    "document.head.append(s)",
    "worker": "new Worker(URL.createObjectURL(new Blob([\"fetch('http://HOST/worker')\"])))",
    "worker_socket": "new Worker(URL.createObjectURL("
    "new Blob([\"new WebSocket('ws://HOST/worker')\"])))",
    "shared_worker": "new SharedWorker('http://HOST/shared.js')",
    "service_worker": "navigator.serviceWorker.register('worker.js').catch(() => 0)",
    "webrtc": "p = new RTCPeerConnection({iceServers: [{urls: 'stun:HOST'}]}); "
    "p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))",
    "iframe_webrtc": "w = add('iframe', {}).contentWindow; "
    "p = new w.RTCPeerConnection({iceServers: [{urls: 'stun:HOST'}]}); "
    "p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))",
    "webtransport": "new WebTransport('https://HOST/transport')",
    "localhost_name": "fetch('http://localhost:PORT/name').catch(() => 0)",
    "location": "location = 'http://HOST/away'",
    "refresh": "add('meta', {httpEquiv: 'refresh', content: '0;url=http://HOST/refresh'})",
}
PAGE = """<body><script>
kept = []; keep = (text) => kept.push(text);
add = (tag, what) => { const e = document.createElement(tag); Object.assign(e, what);
  if (what.sandbox) e.setAttribute('sandbox', what.sandbox); document.body.append(e); return e; };
</script>"""


class Listener:
    """A web server and a UDP socket on one port, which note whoever comes."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.visits.append(request.path)
        return web.Response(text=SECRET, headers={"Access-Control-Allow-Origin": "*"})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.visits.append("udp")

    def error_received(self, exc: Exception) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", listener.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = site._server
    assert server is not None
    listener.port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: listener,  # type: ignore[arg-type]  # a protocol by its methods
        local_addr=("127.0.0.1", listener.port),
    )
    yield listener
    transport.close()
    await runner.cleanup()


async def attempt(page: Page, script: str, port: int) -> None:
    """Run a try in the page and let it have its way for a while, in both kinds of time."""
    script = script.replace("HOST", f"127.0.0.1:{port}").replace("PORT", str(port))
    await page.evaluate(f"try {{ {script} }} catch (error) {{ keep(String(error)) }} void 0")
    await page.advance(300, frames=4)
    await asyncio.sleep(0.05)


async def test_listener_hears_what_does_come(listener: Listener) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        await session.get(f"http://127.0.0.1:{listener.port}/here")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"x", ("127.0.0.1", listener.port))
    await asyncio.sleep(0.1)
    assert sorted(listener.visits) == ["/here", "udp"]


async def test_page_reaches_no_listener_by_any_way(listener: Listener) -> None:
    async with running_pool(recycle_pages=1000) as pool:
        for script in TRIES.values():
            page = await open_page(pool, PAGE)
            await attempt(page, script, listener.port)
            await pool.release(page)
        await asyncio.sleep(0.5)
        assert listener.visits == []
        assert pool.started == 1


async def test_network_is_blocked_without_interception_too(listener: Listener) -> None:
    async with running_pool() as pool:
        for name in ("fetch", "websocket", "iframe", "localhost_name", "worker", "image"):
            page = await open_page(pool, PAGE)
            await page.send("Fetch.disable")
            await attempt(page, TRIES[name], listener.port)
            assert SECRET not in json.dumps(await page.evaluate("kept"))
        await asyncio.sleep(0.5)
        assert listener.visits == []


async def test_browser_listens_on_no_port() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, PAGE)
        main = psutil.Process(page.browser.process.pid)
        connections = {main.pid: main.net_connections("inet")}
        for child in main.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # short-lived helpers
                connections[child.pid] = child.net_connections("inet")
        assert len(connections) > 1
        assert not any(connections.values())


@pytest.mark.parametrize(
    "way",
    [
        "fetch('URL').then(r => r.text()).then(keep, () => 0)",
        "x = new XMLHttpRequest(); x.open('GET', 'URL'); x.onload = () => keep(x.response); "
        "x.send()",
        "f = add('iframe', {src: 'URL'}); setTimeout(() => "
        "keep(f.contentDocument?.body?.innerText), 200)",
        "add('script', {src: 'URL', onload: () => keep(String(window.stolen))})",
        "location = 'URL'",
        "window.open('URL')",
        "a = add('a', {href: 'URL'}); a.click()",
    ],
)
async def test_page_reads_no_file(way: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.js"
    file.write_text(f"window.stolen = {SECRET!r}")
    async with running_pool() as pool:
        page = await open_page(pool, PAGE)
        await attempt(page, way.replace("URL", file.as_uri()), 0)
        assert SECRET not in json.dumps(await page.evaluate("[window.kept, window.stolen ?? '']"))
        assert SECRET not in await page.evaluate("document.documentElement.outerHTML")
        assert await page.evaluate("location.protocol") in ("https:", "chrome-error:")


async def test_site_serves_nothing_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    (folder / "index.html").write_text(PAGE)
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    paths = ["../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "link.txt", "/etc/passwd"]
    async with running_pool() as pool:
        site = Site(folder=folder)
        page = await pool.open(PageOptions(width=400, height=300, site=site))
        await page.goto()
        for path in paths:
            await page.evaluate(f"void fetch({path!r}).then(r => keep([r.status, r.url]))")
        await page.advance(300)
        statuses = [status for status, _ in await page.evaluate("kept")]
        assert statuses == [404] * len(paths)


async def test_blocked_requests_are_counted_and_the_site_is_served() -> None:
    async with running_pool() as pool:
        html = PAGE + "<img src='https://example.com/a.png'><script src='app.js'></script>"
        page = await open_page(pool, html, app_js="window.app = 5")
        assert await page.evaluate("app") == 5
        assert page.take_events().counts[PageEvent.BLOCKED] == 1


@pytest.mark.parametrize(
    "html",
    [
        "<a href='b.html' target='_blank' style='font-size:60px'>link</a>",
        "<form action='b.html' target='_blank'><button style='font-size:60px'>send</button></form>",
        "<button style='font-size:60px' onclick='opened()'>open</button><script>"
        "opened = () => { const a = document.createElement('a'); a.href = 'b.html';"
        "a.target = 'other'; a.click(); }</script>",
    ],
)
async def test_popup_is_refused_and_counted(html: str) -> None:
    async with running_pool() as pool:
        page = await open_page(pool, html, b_html="<p>b")
        await click(page, 40, 50)
        await page.advance(300)
        assert page.take_events().counts[PageEvent.POPUP] == 1
        targets = await page.browser.send("Target.getTargets")
        pages = [target for target in targets["targetInfos"] if target["type"] == "page"]
        assert not any(target["url"].endswith("b.html") for target in pages)


async def test_no_name_is_looked_up_and_no_address_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "net.json"
    begin = BrowserProcess.__init__

    def logging(self: BrowserProcess, binary: Path, flags: tuple[str, ...]) -> None:
        begin(self, binary, (*flags, f"--log-net-log={log}"))

    monkeypatch.setattr(BrowserProcess, "__init__", logging)
    browser = await Browser.start()
    try:
        page = await Page.open(
            browser, PageOptions(width=400, height=300, site=Site({"index.html": PAGE}))
        )
        await page.goto()
        await page.send("Fetch.disable")  # the second wall alone
        script = "add('link', {rel: 'dns-prefetch', href: 'https://dns.example.com/'});"
        await attempt(page, script + "fetch('https://name.example.com/').catch(() => 0)", 0)
        await page.browser.send("Browser.close")
        for _ in range(100):
            if not browser.process.is_alive:
                break
            await asyncio.sleep(0.05)
    finally:
        await browser.aclose()
    text = log.read_text()
    data = json.loads(text if text.rstrip().endswith("}") else text.rstrip().rstrip(",") + "]}")
    names = {number: name for name, number in data["constants"]["logEventTypes"].items()}
    seen = {names[event["type"]] for event in data["events"]}
    assert "URL_REQUEST_START_JOB" in seen
    # UDP_CONNECT sends no packet: Chromium uses it to ask the kernel for an IPv6 route.
    dialled = {"TCP_CONNECT_ATTEMPT", "UDP_BYTES_SENT", "DNS_TRANSACTION"}
    assert not seen & dialled
