"""Text documents: a small model, docx bytes from it, and the check of a final docx file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from envkit_linux_desktop.tasks import packing, reading
from envkit_linux_desktop.tasks.checks import MAX_BYTES, Home, PathCheck

_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_NAMES: Final = f'xmlns:w="{_WORD}" xmlns:r="{packing.OFFICE}"'
SPAN_LOOKS: Final = ("bold", "italic", "underline", "size")
PARAGRAPH_LOOKS: Final = ("style", "align")
PAGE_LOOKS: Final = ("landscape", "header", "footer")
_STYLES: Final = {
    "Normal": ("Normal", 0),
    "Heading 1": ("Heading1", 36),
    "Heading 2": ("Heading2", 28),
}
"""Name -> identity and size in half points; 0 for the default."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Text with one formatting."""

    text: str
    bold: bool = False
    italic: bool = False
    underline: bool = False
    size: float | None = None
    """In points; None for the style's size."""


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """One paragraph."""

    spans: tuple[Span, ...]
    style: str = "Normal"
    align: str = "left"

    @property
    def text(self) -> str:
        """The text without formatting."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """A document: its paragraphs, then its tables."""

    paragraphs: tuple[Paragraph, ...]
    tables: tuple[tuple[tuple[str, ...], ...], ...] = ()
    landscape: bool = False
    header: str = ""
    footer: str = ""


def paragraph(text: str, **looks: Any) -> Paragraph:  # noqa: ANN401  # fields of Paragraph or Span
    """Return a paragraph of one formatting."""
    span = {name: value for name, value in looks.items() if name in SPAN_LOOKS}
    rest = {name: value for name, value in looks.items() if name not in SPAN_LOOKS}
    return Paragraph(spans=(Span(text=text, **span),), **rest)


def pages(*texts: str) -> Pages:
    """Return a document of plain paragraphs."""
    return Pages(paragraphs=tuple(paragraph(text) for text in texts))


def with_looks(text: Paragraph, part: str, **looks: Any) -> Paragraph:  # noqa: ANN401  # of Span
    """Return a plain paragraph in which the last occurrence of a part has looks."""
    before, _, after = text.text.rpartition(part)
    spans = (Span(text=before), Span(text=part, **looks), Span(text=after))
    return replace(text, spans=tuple(span for span in spans if span.text))


def _span_xml(span: Span) -> str:
    marks = "".join(
        mark
        for mark, is_set in (
            ("<w:b/>", span.bold),
            ("<w:i/>", span.italic),
            ('<w:u w:val="single"/>', span.underline),
            (f'<w:sz w:val="{round(2 * (span.size or 0))}"/>', span.size is not None),
        )
        if is_set
    )
    text = f'<w:t xml:space="preserve">{packing.text(span.text)}</w:t>'
    return f"<w:r><w:rPr>{marks}</w:rPr>{text}</w:r>"


def _paragraph_xml(text: Paragraph) -> str:
    align = f'<w:jc w:val="{text.align}"/>' if text.align != "left" else ""
    style = _STYLES[text.style][0]
    spans = "".join(map(_span_xml, text.spans))
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/>{align}</w:pPr>{spans}</w:p>'


def _table_xml(table: tuple[tuple[str, ...], ...]) -> str:
    width = 9000 // len(table[0])
    grid = f'<w:gridCol w:w="{width}"/>' * len(table[0])
    rows = "".join(
        "<w:tr>"
        + "".join(
            f'<w:tc><w:tcPr><w:tcW w:w="{width}" w:type="dxa"/></w:tcPr>'
            f"{_paragraph_xml(paragraph(cell))}</w:tc>"
            for cell in row
        )
        + "</w:tr>"
        for row in table
    )
    sides = "".join(
        f'<w:{side} w:val="single" w:sz="4" w:space="0" w:color="000000"/>'
        for side in ("top", "left", "bottom", "right", "insideH", "insideV")
    )
    return (
        f'<w:tbl><w:tblPr><w:tblW w:w="9000" w:type="dxa"/><w:tblBorders>{sides}</w:tblBorders>'
        f"</w:tblPr><w:tblGrid>{grid}</w:tblGrid>{rows}</w:tbl><w:p/>"
    )


def _styles_xml() -> str:
    rows: list[str] = []
    for name, (identity, size) in _STYLES.items():
        first = ' w:default="1"' if name == "Normal" else ""
        looks = f'<w:rPr><w:b/><w:sz w:val="{size}"/></w:rPr>' if size else ""
        based = '<w:basedOn w:val="Normal"/><w:next w:val="Normal"/>' if size else ""
        rows.append(
            f'<w:style w:type="paragraph"{first} w:styleId="{identity}">'
            f'<w:name w:val="{name.lower() if size else name}"/>{based}<w:qFormat/>{looks}'
            "</w:style>"
        )
    return (
        f"{packing.XML_HEAD}<w:styles {_NAMES}><w:docDefaults><w:rPrDefault><w:rPr>"
        '<w:rFonts w:ascii="Liberation Serif" w:hAnsi="Liberation Serif"/><w:sz w:val="24"/>'
        '<w:lang w:val="en-US"/></w:rPr></w:rPrDefault></w:docDefaults>'
        f'{"".join(rows)}<w:style w:type="character" w:default="1" w:styleId="DefaultFont">'
        '<w:name w:val="Default Paragraph Font"/></w:style></w:styles>'
    )


def docx(model: Pages) -> bytes:
    """Return the bytes of a document."""
    kinds = {
        "word/document.xml": "wordprocessingml.document.main",
        "word/styles.xml": "wordprocessingml.styles",
    }
    targets = {"rId1": ("styles", "styles.xml")}
    ends: dict[str, str] = {}
    references = ""
    for number, (end, text) in enumerate((("header", model.header), ("footer", model.footer)), 2):
        if text:
            tag = "hdr" if end == "header" else "ftr"
            ends[f"word/{end}1.xml"] = (
                f"{packing.XML_HEAD}<w:{tag} {_NAMES}>{_paragraph_xml(paragraph(text))}</w:{tag}>"
            )
            kinds[f"word/{end}1.xml"] = f"wordprocessingml.{end}"
            targets[f"rId{number}"] = (end, f"{end}1.xml")
            references += f'<w:{end}Reference w:type="default" r:id="rId{number}"/>'
    wide, high = ("16838", "11906") if model.landscape else ("11906", "16838")
    turned = ' w:orient="landscape"' if model.landscape else ""
    body = "".join([*map(_paragraph_xml, model.paragraphs), *map(_table_xml, model.tables)])
    return packing.zipped(
        {
            "[Content_Types].xml": packing.content_types(kinds),
            "_rels/.rels": packing.relationships({"rId1": ("officeDocument", "word/document.xml")}),
            "word/document.xml": f"{packing.XML_HEAD}<w:document {_NAMES}><w:body>{body}<w:sectPr>"
            f'{references}<w:pgSz w:w="{wide}" w:h="{high}"{turned}/><w:pgMar w:top="1134" '
            'w:right="1134" w:bottom="1134" w:left="1134" w:header="709" w:footer="709" '
            'w:gutter="0"/></w:sectPr></w:body></w:document>',
            "word/_rels/document.xml.rels": packing.relationships(targets),
            "word/styles.xml": _styles_xml(),
            **ends,
        }
    )


def _pages(model: Any) -> Pages:  # noqa: ANN401  # plain JSON data from the reader
    texts = [
        Paragraph(
            style=text["style"],
            align=text["align"],
            spans=tuple(Span(**span) for span in text["spans"]),
        )
        for text in model["paragraphs"]
    ]
    tables = tuple(tuple(tuple(row) for row in table) for table in model["tables"])
    return Pages(
        paragraphs=tuple(texts),
        tables=tables,
        **{look: model[look] for look in PAGE_LOOKS},
    )


def _written(model: Pages) -> list[Paragraph]:
    """Return the paragraphs with text: empty ones come and go with tables and headers."""
    return [text for text in model.paragraphs if text.text.strip()]


def _letters(text: Paragraph, look: str) -> Iterator[tuple[str, object]]:
    """Yield every letter with its look; the look of a space is invisible."""
    for span in text.spans:
        for letter in span.text:
            if not letter.isspace():
                yield letter, getattr(span, look)


@dataclass(frozen=True, kw_only=True)
class Document(PathCheck):
    """A docx file has exactly these paragraphs and tables, and the named looks."""

    pages: Pages
    looks: tuple[str, ...] = ()

    def holds(self, home: Home) -> bool:
        """Compare the document."""
        data = home.read(self.path, limit=MAX_BYTES)
        model = reading.read_document("docx", data) if data else None
        if model is None:
            return False
        found = _pages(model)
        texts, expected = _written(found), _written(self.pages)
        return (
            [text.text for text in texts] == [text.text for text in expected]
            and found.tables == self.pages.tables
            and all(self._has_looks(*pair) for pair in zip(texts, expected, strict=True))
            and all(
                getattr(found, look) == getattr(self.pages, look)
                for look in PAGE_LOOKS
                if look in self.looks
            )
        )

    def _has_looks(self, text: Paragraph, expected: Paragraph) -> bool:
        return all(
            list(_letters(text, look)) == list(_letters(expected, look))
            for look in SPAN_LOOKS
            if look in self.looks
        ) and all(
            getattr(text, look) == getattr(expected, look)
            for look in PARAGRAPH_LOOKS
            if look in self.looks
        )

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the document."""
        files[self.path] = docx(self.pages)
