"""Compare PDF files by the text of their pages, read by pypdf."""

import difflib
import io
import operator
from collections.abc import Mapping
from typing import Any, Final, cast

from envkit_linux_desktop.osworld.evaluators import values
from envkit_linux_desktop.osworld.evaluators.values import File, Options

_LIKE: Final = 0.95
_RELATIONS: Final = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def compare_pdfs(result: Any, expected: Any, _: Options) -> float:  # noqa: ANN401
    """Return how similar the texts of two PDF files are, or of the pairs of two lists."""
    own, gold = [result], [expected]
    if isinstance(expected, list):
        gold = cast(list[object], expected)
        own = cast(list[object], result) if isinstance(result, list) else [result]
    scores = [_similar(one, two) for one, two in zip(own, gold, strict=False)]
    return sum(scores) / len(gold) if gold else 0.0


def _similar(one: object, two: object) -> float:
    if not (isinstance(one, File) and isinstance(two, File)):
        return 0.0
    texts: list[str] = []
    for file in (one, two):
        try:
            texts.append(_text(file))
        except values.UnreadableError:
            # One broken file of several that the policy left costs only its own part of the score.
            if file.is_result:
                return 0.0
            raise
    return values.similarity(*texts)


def have_like_texts(one: File, two: File) -> bool:
    """Return whether at least 95% of the texts of two PDF files agree, by difflib's measure."""
    matcher = difflib.SequenceMatcher(None, _text(one), _text(two))
    return matcher.ratio() >= _LIKE


def _has_pages(file: File, rules: Mapping[str, Any]) -> float:
    return float(_RELATIONS[rules["relation"]](len(_pages(file)), rules["ref_value"]))


check_pdf_pages = values.of_one_file(_has_pages)


def problem_of(rules: Mapping[str, Any]) -> str | None:
    """Return why the rules of `check_pdf_pages` are not valid, or None."""
    relation = rules["relation"]
    return None if relation in _RELATIONS else f"relation={relation!r:.40}"


def _pages(file: File) -> list[Any]:
    """Return a file's pages.

    Raises:
        UnreadableError: It is not a PDF file.
    """
    import pypdf

    with values.reading(file):
        return list(pypdf.PdfReader(io.BytesIO(file.data)).pages)


def _text(file: File) -> str:
    with values.reading(file):
        return "\n".join(page.extract_text() for page in _pages(file)).strip()
