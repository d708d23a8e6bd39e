"""What a bare machine takes over from this one: how to reach the package indexes."""

import configparser
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "envs"))
from envkit_browser import npm_packages

ENVIRONMENT: Final = re.compile(
    r"PIP_.+|SSL_CERT_(FILE|DIR)|(REQUESTS_CA|CURL_CA)_BUNDLE|NODE_EXTRA_CA_CERTS"
    r"|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY|CI|WORKERS"
)
"""Variables that pass; npm's become lines of `.npmrc`."""
CERTIFICATES: Final = (
    "/etc/ssl/certs",
    "/usr/local/share/ca-certificates",
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    "NODE_EXTRA_CA_CERTS",
)
"""Paths, and variables that hold one."""
_PIP_PATHS: Final = (
    "find-links",
    "cert",
    "client-cert",
    "constraint",
    "index-url",
    "extra-index-url",
)
_NPM_LOCAL: Final = ("prefix", "globalconfig", "userconfig", "cache")
"""Settings of npm that are about this machine's folders."""


def environment() -> dict[str, str]:
    """Return the variables that the bare machine inherits."""
    return {name: text for name, text in os.environ.items() if ENVIRONMENT.fullmatch(name)}


def visible(checkout: Path) -> list[Path]:
    """Return the files and folders of this machine that must be visible inside, outermost only."""
    named = [os.environ.get(text, "") if "/" not in text else text for text in CERTIFICATES]
    named += _pip_paths()
    named.append(npm_packages.settings(checkout).get("cafile", ""))
    found = {Path(os.path.abspath(Path(text).expanduser())) for text in named if text}
    existing = {path for path in found if path.exists()}
    return sorted(path for path in existing if not existing & {*path.parents})


def write_settings(root: Path, checkout: Path) -> None:
    """Write pip's and npm's settings, host names and passwords below a root folder."""
    with (root / "etc" / "pip.conf").open("w", encoding="utf-8") as file:
        _pip_settings().write(file)
    npm = npm_packages.settings(checkout)
    lines = [f"{name}={text}\n" for name, text in npm.items() if name not in _NPM_LOCAL]
    npmrc = root / "root" / ".npmrc"
    npmrc.touch(mode=0o600)
    npmrc.write_text("".join(lines), encoding="utf-8")
    netrc = Path.home() / ".netrc"
    if netrc.is_file():
        shutil.copy(netrc, root / "root" / ".netrc")
    for name in ("resolv.conf", "hosts"):
        target, source = root / "etc" / name, Path("/etc") / name
        target.unlink(missing_ok=True)  # it may be a link to a file of this machine
        if source.exists():
            target.write_bytes(source.read_bytes())


def _pip_settings() -> configparser.RawConfigParser:
    """Merge pip's configuration files: machine, user, PIP_CONFIG_FILE."""
    home = Path.home()
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    own = os.environ.get("XDG_CONFIG_HOME") or str(home / ".config")
    files = [Path(folder) / "pip" / "pip.conf" for folder in shared.split(":")]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", Path(own) / "pip" / "pip.conf"]
    given = os.environ.get("PIP_CONFIG_FILE")
    merged = configparser.RawConfigParser()
    merged.read([*files, given] if given else files, encoding="utf-8")
    return merged


def _pip_paths() -> Iterator[str]:
    """Yield the local paths in pip's settings."""
    settings = _pip_settings()
    for name in _PIP_PATHS:
        values = [os.environ.get(f"PIP_{name.upper().replace('-', '_')}", "")]
        values += [settings[section].get(name, "") for section in settings.sections()]
        for value in " ".join(values).split():
            parts = urlsplit(value)
            if parts.scheme == "file":
                path = Path(unquote(parts.path))
                # The pages of an index link to files beside its folder.
                yield str(path.parent if name.endswith("index-url") else path)
            elif not parts.scheme:
                yield value
