"""A real JupyterLab with headless Chromium in front of it, for tests of the notebook widgets."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from fakes.chromium import running_chromium
from playwright.sync_api import Browser, Page

_START_S = 60


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A running JupyterLab and the folder that it serves."""

    address: str
    folder: Path
    browser: Browser

    def run(
        self, name: str, cells: Sequence[str], *, width: int = 1280, height: int = 1000
    ) -> Page:
        """Open a new notebook with these cells, run them all, and return the page."""
        document: Any = nbformat.v4.new_notebook()
        document.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        document.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(document, self.folder / f"{name}.ipynb")
        page = self.browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(60_000)
        page.goto(f"{self.address}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
        page.wait_for_selector("text=/\\| Idle$/")  # before that, a cell that is run is dropped
        page.locator(".jp-Notebook .cm-content").first.click()
        for _ in cells:
            page.keyboard.press("Shift+Enter")
        return page


@contextlib.contextmanager
def jupyter_lab(folder: Path, *, theme: str = "JupyterLab Light") -> Generator[Lab]:
    """Start JupyterLab on its own folder, and a browser; both end with the block."""
    home, work = folder / "home", folder / "work"
    work.mkdir(parents=True)
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1"),
                *("--ServerApp.token=", "--ServerApp.password=", f"--ServerApp.root_dir={work}"),
            ],
            env={**os.environ, **_own_folders(home)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(address, server, folder / "lab.log")
            with running_chromium() as browser:
                yield Lab(address=address, folder=work, browser=browser)
        finally:
            server.terminate()
            try:
                server.wait(120)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _own_folders(home: Path) -> dict[str, str]:
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {variable: str(home / name) for variable, name in names.items()}


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api", timeout=120):
            return
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")
