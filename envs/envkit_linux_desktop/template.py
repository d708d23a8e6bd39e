"""The initial home folder of every session, as a tar archive.

It turns off blinking and animations, which would keep the screen from settling. The first session
on each machine adds files that applications would otherwise create at every start: the LibreOffice
profile and the font cache.
"""

import hashlib
import io
import os
import shutil
import tarfile
import threading
from collections.abc import Callable
from typing import Final

from envkit.files import cache_dir, replace_file, storage_errors

_GTK: Final = "gtk-cursor-blink=0\ngtk-enable-animations=0\ngtk-theme-name=Adwaita\n"
_FOLDERS: Final = ("Desktop", "Documents", "Downloads")
_USER_DIRS: Final = "".join(
    f'XDG_{kind}_DIR="$HOME/{name}"\n'
    for kind, name in (
        ("DESKTOP", "Desktop"),
        ("DOCUMENTS", "Documents"),
        ("DOWNLOAD", "Downloads"),
    )
)
_OFFICE: Final = ".config/libreoffice/4/user/registrymodifications.xcu"
_SETTINGS: Final = (
    ("Office.Common/Misc", "FirstRun", "false"),
    ("Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("Office.Common/Save/Document", "WarnAlienFormat", "false"),
    ("Office.Common/Save/Document", "AutoSave", "false"),
    ("Office.Common/Misc", "CrashReport", "false"),
    ("Setup/Product", "LastTimeDonateShown", "4102444800"),
    ("Setup/Product", "LastTimeGetInvolvedShown", "4102444800"),
    ("Setup/Product", "ooSetupLastVersion", "99.9"),
)
_OPENED_BY: Final = {
    "org.xfce.mousepad": ("text/plain",),
    "chromium": ("text/html",),
    "libreoffice-calc": (
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "application/vnd.oasis.opendocument.spreadsheet",
        "text/csv",
    ),
    "libreoffice-writer": (
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "application/vnd.oasis.opendocument.text",
        "text/rtf",
    ),
}
_DEFAULTS: Final = "".join(
    f"{kind}={application}.desktop\n" for application, kinds in _OPENED_BY.items() for kind in kinds
)
_FILES: Final = {
    ".config/mimeapps.list": f"[Default Applications]\n{_DEFAULTS}",
    ".config/gtk-3.0/settings.ini": f"[Settings]\n{_GTK}",
    ".gtkrc-2.0": "gtk-cursor-blink=0\n",
    ".config/user-dirs.dirs": _USER_DIRS,
    ".Xresources": "*cursorBlink: false\n",
}
_MADE: Final = (".config/libreoffice", ".cache/fontconfig")
_lock: Final = threading.Lock()
_known: Final[dict[str, bytes]] = {}


def plain_template() -> bytes:
    """Return the template with settings only."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path, text in {**_FILES, _OFFICE: _office()}.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return whole.getvalue()


def full_template(make: Callable[[bytes], bytes]) -> bytes:
    """Return the template with the files that applications created in this machine's first session.

    Args:
        make: Takes the plain template, starts applications in a session with it, and returns an
            archive of the files that they created. Called once per machine and version of the
            applications; the result is kept in envkit's cache folder.

    Raises:
        StorageError: The cache folder cannot be written.
    """
    plain = plain_template()
    key = _key(plain)
    with _lock:
        if key not in _known:
            place = cache_dir() / "linux-desktop" / f"{key}.tar"
            if not place.exists():
                made = _merged(plain, make(plain))
                with storage_errors(f"cannot write {place}"):
                    place.parent.mkdir(parents=True, exist_ok=True)
                replace_file(place, made)
            _known[key] = place.read_bytes()
        return _known[key]


def made_paths() -> tuple[str, ...]:
    """Return the paths that applications make at their first start."""
    return _MADE


def _office() -> str:
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}">'
        f'<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>\n'
        for path, name, value in _SETTINGS
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<oor:items xmlns:oor='
        '"http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema" '
        f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">\n{items}</oor:items>\n'
    )


def _key(plain: bytes) -> str:
    """Return a name that changes with the settings and with the applications."""
    found = hashlib.sha256(plain)
    for name in ("soffice", "Xvfb", "fc-cache"):
        place = shutil.which(name)
        status = os.stat(place) if place else None
        found.update(f"{name} {status.st_mtime_ns if status else None}".encode())
    return found.hexdigest()[:24]


def _merged(first: bytes, second: bytes) -> bytes:
    """Return one archive with the entries of both; the later ones win when it is unpacked."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as out:
        for data in (first, second):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for entry in tar:
                    entry.uid = entry.gid = 0
                    entry.uname = entry.gname = ""
                    if entry.isdir() or entry.isreg():
                        out.addfile(entry, tar.extractfile(entry) if entry.isreg() else None)
    return whole.getvalue()
