"""Download packages of an npm registry without npm.

The registry, its credentials, its certificate and the proxies come from npm's own settings: the
environment (`NPM_CONFIG_REGISTRY`), then the `.npmrc` of the project, of the user and of the
machine. npm's public registry is the default, as it is for npm.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

PUBLIC_REGISTRY: Final = "https://registry.npmjs.org/"
ATTEMPTS: Final = 3
_TIMEOUT_S: Final = 60.0
_ENVIRONMENT: Final = re.compile(r"npm_config_(.+)", re.IGNORECASE | re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{([^}]+)\}")


class NpmError(Exception):
    """A package cannot be downloaded."""


def download(
    name: str, version: str | None, integrity: str | None, target: Path
) -> tuple[str, str]:
    """Download a package's tarball and return its version and integrity.

    Args:
        name: With its scope, such as "@scope/name".
        version: An exact version; None takes the one that the registry calls "latest".
        integrity: What the file must hash to, as in a lock file: "sha512-" and base64; None takes
            it from the registry's index.
        target: The file to write.

    Raises:
        NpmError: The registry does not answer, has no such version, or serves another file.
    """
    given = settings()
    registry = registry_of(name, given)
    last: Exception | None = None
    for attempt in range(ATTEMPTS):
        time.sleep(3 * attempt)
        try:
            found, listed, url = _listed(name, version, registry, given)
            target.write_bytes(_checked(_get(url, given), integrity or listed))
            return found, integrity or listed
        except urllib.error.HTTPError as error:
            last = error
            error.close()
            if error.code < 500 and error.code != 429:
                break
        except (OSError, HTTPException, ValueError, _WrongFileError) as error:
            last = error
    raise NpmError(
        f"cannot download {name} {version or 'latest'} from {_shown(registry)}: {last}. npm's "
        "settings name the registry: set NPM_CONFIG_REGISTRY, or a line registry=URL in ~/.npmrc, "
        "to one that this machine can reach"
    )


# ---- npm's settings


def settings(folder: Path | None = None) -> dict[str, str]:
    """Return npm's settings as npm merges them: environment, project, user, machine.

    Args:
        folder: Where the project's `.npmrc` stands; None is the current folder.
    """
    environment = dict(_from_environment())
    project = _read((folder or Path()) / ".npmrc")
    user = _read(Path(environment.get("userconfig") or "~/.npmrc").expanduser())
    nearer = {**user, **project, **environment}
    machine: dict[str, str] = {}
    for path in _machine_files(nearer):
        machine = {**_read(path), **machine}
    return {**machine, **nearer}


def registry_of(name: str, given: Mapping[str, str]) -> str:
    """Return the address of the registry that has a package, with a slash at the end."""
    scope = name.partition("/")[0] if name.startswith("@") else ""
    chosen = given.get(f"{scope}:registry") or given.get("registry") or PUBLIC_REGISTRY
    return chosen.rstrip("/") + "/"


def _from_environment() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        match = _ENVIRONMENT.fullmatch(name)
        if match is not None and value:
            key = match[1]
            yield (key if key.startswith("//") else key.lower().replace("_", "-")), value


def _machine_files(given: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of the whole machine, the one with the highest rank first."""
    if given.get("globalconfig"):
        yield Path(given["globalconfig"]).expanduser()
        return
    prefix = given.get("prefix") or os.environ.get("PREFIX")
    if prefix:
        yield Path(prefix).expanduser() / "etc" / "npmrc"
        return
    node = shutil.which("node")
    if node is not None:
        yield Path(node).resolve().parents[1] / "etc" / "npmrc"
    yield from map(Path, ("/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"))


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith((";", "#")):
            found[_expanded(key.strip())] = _expanded(value.strip().strip("\"'"))
    return found


def _expanded(text: str) -> str:
    """Replace ${NAME} by a variable; as in npm, an unset one stays."""
    return _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), text)


# ---- requests


class _WrongFileError(Exception):
    """A file is not the expected one."""


def _listed(
    name: str, version: str | None, registry: str, given: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return a version, and its integrity and tarball's address as the registry's index states."""
    try:
        index = _get(f"{registry}{name.replace('/', '%2f')}", given)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        error.close()
        index = _get(f"{registry}{name}", given)  # a server of plain files
    listed: Mapping[str, Any] = json.loads(index)
    versions: Mapping[str, Any] = listed.get("versions", {})
    found = version or str(listed.get("dist-tags", {}).get("latest"))
    if found not in versions:
        raise ValueError(f"the registry does not have version {found}")
    entry: Mapping[str, Any] = versions[found]["dist"]
    url = urljoin(registry, str(entry["tarball"]))
    if url.startswith(PUBLIC_REGISTRY) and registry != PUBLIC_REGISTRY:
        # A mirror that passes the public index on; npm replaces the host in the same way.
        url = registry + url.removeprefix(PUBLIC_REGISTRY)
    return found, str(entry.get("integrity", "")), url


def _checked(content: bytes, integrity: str) -> bytes:
    kind, _, wanted = integrity.partition("-")
    got = base64.b64encode(hashlib.new(kind, content).digest()).decode()
    if got != wanted:
        raise _WrongFileError(
            f"the file of {len(content)} bytes must have the hash {integrity}, got {kind}-{got}"
        )
    return content


def _get(url: str, given: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"an address must start with https:// or http://, got {_shown(url)!r}")
    request = urllib.request.Request(
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])),
        headers={"Accept": "application/vnd.npm.install-v1+json, application/json; q=0.8, */*"},
    )
    authorization = _authorization(parts, given)
    if authorization is not None:  # a redirect must not carry it to another host
        request.add_unredirected_header("Authorization", authorization)
    with _opener(given).open(request, timeout=_TIMEOUT_S) as answer:
        return answer.read()


def _opener(given: Mapping[str, str]) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    for file in (given.get("cafile"), os.environ.get("NODE_EXTRA_CA_CERTS")):
        if file:
            context.load_verify_locations(Path(file).expanduser())
    if given.get("strict-ssl") == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    proxies = urllib.request.getproxies()
    plain = given.get("proxy")
    for scheme, proxy in (("https", given.get("https-proxy") or plain), ("http", plain)):
        if proxy and proxy not in ("null", "false"):
            proxies[scheme] = proxy
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
    )


def _authorization(parts: SplitResult, given: Mapping[str, str]) -> str | None:
    """Return the header for an address: from the address, or of the nearest folder above it."""
    if parts.username is not None:
        return _basic(unquote(parts.username), unquote(parts.password or ""))
    folders = parts.path.split("/")
    for count in range(len(folders), 0, -1):
        for end in ("/", ""):
            key = f"//{parts.netloc}{'/'.join(folders[:count]).rstrip('/')}{end}:"
            if token := given.get(f"{key}_authToken"):
                return f"Bearer {token}"
            if both := given.get(f"{key}_auth"):
                return f"Basic {both}"
            if (user := given.get(f"{key}username")) and (secret := given.get(f"{key}_password")):
                return _basic(user, base64.b64decode(secret).decode())
    return None


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _shown(url: str) -> str:
    """Return an address without a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
