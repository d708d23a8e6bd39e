"""Search-R1's document format: one string whose first line is the title in quotes."""

from typing import Final

from envkit_search.document import Document

TITLE_CHARACTERS: Final = 200
"""A longer single line is a text without a title."""


def contents_of(document: Document) -> str:
    """Return a document as one string, with the title as its first line."""
    title = " ".join(document.title.split())
    return f'"{title}"\n{document.text}'


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text; a single long line is a text without a title."""
    head, line_break, text = contents.partition("\n")
    if not line_break and len(head) > TITLE_CHARACTERS:
        return "", head
    title = head.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text
