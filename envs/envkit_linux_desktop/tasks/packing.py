"""Zip files whose bytes depend on their contents alone."""

import io
import zipfile
from collections.abc import Mapping
from xml.sax.saxutils import escape as escaped_text
from xml.sax.saxutils import quoteattr

_EPOCH = (2024, 1, 1, 0, 0, 0)
XML_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    """Return a zip archive without compression, whose output differs between zlib versions."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # the default is the host's
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return stream.getvalue()


def text(value: str) -> str:
    """Escape the text of an element."""
    return escaped_text(value)


def attribute(value: str) -> str:
    """Return a quoted attribute value."""
    return quoteattr(value)


def relationships(targets: Mapping[str, tuple[str, str]]) -> str:
    """Return a part of relationships: identity -> (kind, target)."""
    rows = "".join(
        f'<Relationship Id="{key}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for key, (kind, target) in targets.items()
    )
    return f'{XML_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">{rows}</Relationships>'


def content_types(overrides: Mapping[str, str]) -> str:
    """Return the part that names the media type of each other part."""
    rows = "".join(
        f'<Override PartName="/{name}" ContentType='
        f'"application/vnd.openxmlformats-officedocument.{kind}+xml"/>'
        for name, kind in overrides.items()
    )
    return (
        f'{XML_HEAD}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{rows}</Types>'
    )
