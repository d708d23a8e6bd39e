r"""Reduce an answer to plain text without markup.

Removes boxes, math delimiters, text wrappers, Markdown, tags, and trailing punctuation. Unifies
notations: \pi, \sqrt, \frac, \approx, °. `claims` interprets the rest. Every step is one linear
    pass over a text of bounded length.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from envkit_geo3k.chinese import in_english
from envkit_geo3k.expression import UnreadableError

MAX_LENGTH: Final = 400
"""Maximum answer length in characters. Real answers have fewer than sixty."""

_MAX_TRANSLATED: Final = 3 * MAX_LENGTH
"""The same for an answer whose signs and words have been written out in ASCII."""
_VULGAR_FRACTIONS: Final = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5),
    "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8),
    "⅞": (7, 8),
}  # fmt: skip
_CHARACTERS: Final = str.maketrans(
    {
        **{chr(0xFEE0 + code): chr(code) for code in range(0x21, 0x7F)},  # full-width forms
        **{sign: f" \\frac{{{a}}}{{{b}}}" for sign, (a, b) in _VULGAR_FRACTIONS.items()},
        **{sign: f"^{power} " for power, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **dict.fromkeys("−–", "-"),  # noqa: RUF001  # signs that stand for a minus
        **dict.fromkeys("×·⋅∙", "*"),  # noqa: RUF001
        **dict.fromkeys("÷⁄∕", "/"),  # noqa: RUF001
        **dict.fromkeys("º˚∘", "°"),
        **dict.fromkeys("′’", "'"),  # noqa: RUF001
        **dict.fromkeys("″“”", '"'),
        **dict.fromkeys("✓✔✅", ""),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),  # zero-width
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u205f\u3000", " "),
        "∶": ":",  # noqa: RUF001
        "。": ".",
        "、": ",",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∛": r"\sqrt[3] ",
        "≈": r"\approx ",
        "∠": r"\angle ",
        "△": r"\triangle ",
        **dict.fromkeys("⌒⌢⏜", r"\frown "),
        **{"㎜": " mm ", "㎝": " cm ", "㎞": " km ", "㎏": " kg "},
        **{"㎠": " cm^2 ", "㎡": " m^2 ", "㎢": " km^2 ", "㎤": " cm^3 ", "㎥": " m^3 "},
        "⇒": r"\Rightarrow ",
        "±": r"\pm ",
        "∴": r"\therefore ",
    }
)
_THIN_THOUSANDS: Final = re.compile(r"(?<=[0-9])\\[,!](?=[0-9]{3}(?![0-9]))")
_SPACING: Final = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|big[lr]?|Big[lr]?"
    r"|rm|bf|it|small|normalsize|large|Large|LARGE|huge|Huge|enspace|thinspace|mathop"
    r"|nonumber|notag|blacksquare|checkmark)(?![A-Za-z])"
    r"|\\[,;:! ()\[\]]|\\{1,2}$"
)
_DEGREES: Final = re.compile(
    r"\^?\s*\{\s*\\(?:circ|degree)\s*\}|\^?\s*\\(?:circ|degree|degrees)(?![A-Za-z])"
    r"|\^\s*\{?\s*(?:o(?![A-Za-z])|°)\s*\}?"
)
_PRIMES: Final = re.compile(r"\^\s*\{?\s*((?:\\prime\s*)+)\}?")
_BARS: Final = re.compile(r"\\(?:[lr]?vert|mid)(?![A-Za-z])")
_TEXT_WRAPPER: Final = re.compile(
    r"\\(?:text|textrm|textbf|textit|textsf|texttt|textnormal|emph|mathrm|mathbf|mathit|mathsf"
    r"|mathtt|boldsymbol|bm|pmb|underline|operatorname|mbox)\s*\{([^{}]*)\}"
)
_FONT: Final = re.compile(r"\\(?:text|textbf|mathbf|mathrm|boldsymbol|bm)\s{0,4}(?=\{)")
"""What is left around a group with braces inside."""
_COLOR: Final = re.compile(
    r"\\(?:textcolor|mathcolor|color|colorbox)\s{0,4}(?:\{\s*[A-Za-z#][\w#!.-]{0,30}\s*\}"
    r"|\[[A-Za-z]{3,5}\]\s{0,4}\{[\w,. ]{1,30}\})"
)
_REMARK: Final = re.compile(r"\\(?:hspace|tag)\*?\s{0,4}\{[^{}]{0,20}\}")
_ENVIRONMENT: Final = re.compile(
    r"\\(?:begin|end)\s{0,4}\{(?:aligned|align|flalign|gathered|gather|split|multline|eqnarray|equation|array"
    r"|math|displaymath)"
    r"\*?\}(?:\s{0,4}\[[tcb]\])?(?:\s{0,4}\{[lcr]{1,4}\})?"
)
_ROW_ENDS: Final = re.compile(r"\\\\(?:\[[0-9.]{1,4}[a-z]{2}\])?|&")
_FROWN: Final = re.compile(r"([A-Z]\s?\}?\s{0,4})\^\s{0,4}(?:\\frown|\{\s{0,4}\\frown\s{0,4}\})")
_FRACTIONS: Final = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_APPROXIMATELY: Final = re.compile(r"\\(?:thickapprox|simeq|doteq)(?![A-Za-z])")
_TAG: Final = re.compile(r"</?[a-z]{1,10} ?/?>")
_BOLD: Final = re.compile(
    r"(?<![0-9A-Za-z)}\]*])(?<![0-9)}\]] )(\*\*|__)(?!\s)([^*_]+)(?<!\s)\1(?![0-9*({\\])"
)
_ABBREVIATION_DOT: Final = re.compile(r"(?<=[A-Za-z])\.(?![0-9])")
_PLAIN: Final = re.compile(r"[-+0-9./ ]*")
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_BARE_BOX: Final = re.compile(
    r"\\(?:boxed|fbox)\s{0,8}((?:[-+]\s?)?(?:\.?[0-9]|\(\s?[-+.0-9\\]|\\[dtc]?frac|\\sqrt|\\pi|√|π)[^$\n]{0,100})"
)
r"""A box without braces. LaTeX would box one character; models mean the rest of the formula."""
_FORMULA_END: Final = re.compile(r"\\[)\]]|[.;]\s|,\s(?![^()]{0,60}\))|[.,;]?$")
_OVER: Final = re.compile(r"\\over(?![A-Za-z])")
_BRACE: Final = re.compile(r"[{}]")
_MAX_BOXES: Final = 64
_MAX_BRACES: Final = 3000
"""Openings searched for the last complete box, which takes a millisecond."""


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete \boxed{...} or \fbox{...}; None without one.

    A box without braces, as in `\boxed 12`, ends with the formula or the sentence.

    Searches the last `_MAX_BOXES` openings and a limited number of braces, for about a millisecond.
    """
    braces = _MAX_BRACES
    for start in islice(_box_starts(text), _MAX_BOXES):
        opening = _BOX.match(text, start)
        if opening is None:
            bare = _BARE_BOX.match(text, start)
            if bare is not None:
                return _grouped(_FORMULA_END.split(bare.group(1), maxsplit=1)[0].strip())
            continue
        depth, begin = 0, opening.end()
        for brace in islice(_BRACE.finditer(text, begin - 1, begin + 4 * MAX_LENGTH), braces):
            depth += 1 if brace.group() == "{" else -1
            braces -= 1
            if depth == 0:
                return _grouped(text[begin : brace.start()].strip())
    return None


def _grouped(content: str) -> str:
    r"""Return a box's content in braces if it has an \over of its own, which acts on all of it."""
    return f"{{{content}}}" if has_over(content, 0) else content


def has_over(text: str, depth: int) -> bool:
    r"""Return whether the first \over stands inside this many braces."""
    found = _OVER.search(text) if "\\over" in text else None
    if found is None:
        return False
    return text.count("{", 0, found.start()) - text.count("}", 0, found.start()) == depth


def _box_starts(text: str) -> Iterator[int]:
    """Yield possible starts of boxes, from the end of the text backwards."""
    found = {mark: text.rfind(mark) for mark in ("\\boxed", "\\fbox")}
    while (start := max(found.values())) >= 0:
        yield start
        mark = "\\boxed" if found["\\boxed"] == start else "\\fbox"
        found[mark] = text.rfind(mark, 0, start)


def simplify(text: str) -> str:
    """Return the answer without markup.

    Raises:
        UnreadableError: The answer is longer than `MAX_LENGTH`.
    """
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise UnreadableError(f"longer than {MAX_LENGTH} characters")
    if _PLAIN.fullmatch(text):
        return text.rstrip(".")
    for _ in range(4):
        inner = last_boxed(text)
        if inner is None:
            break
        text = inner
    if not text.isascii():
        text = in_english(text.translate(_CHARACTERS))
        if len(text) > _MAX_TRANSLATED:
            raise UnreadableError(f"longer than {_MAX_TRANSLATED} characters in ASCII")
    text = _without_markdown(text)
    if any(sign in text for sign in "\\$^~"):
        text = _without_commands(text)
    if "." in text:
        text = _ABBREVIATION_DOT.sub(" ", text)
    return _without_ends(text)


def _without_markdown(text: str) -> str:
    if "`" in text:
        text = text.replace("`", "")
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "**" in text or "__" in text:
        text = _BOLD.sub(r"\2", text)
    return text.lstrip("# ")


def _without_commands(text: str) -> str:
    text = text.replace("\\$", "\\usd ").replace("\\%", "%").replace("~", " ").replace("$", " ")
    if "color" in text:
        text = _COLOR.sub(" ", text)
    if "\\begin" in text:
        text = _ROW_ENDS.sub(" ", _ENVIRONMENT.sub(" ", text))
    if "\\hspace" in text or "\\tag" in text:
        text = _REMARK.sub(" ", text)
    text = _DEGREES.sub("° ", _THIN_THOUSANDS.sub("{,}", text))
    if "prime" in text:
        text = _PRIMES.sub(lambda match: "'" * match.group(1).count("\\"), text)
    text = _SPACING.sub(" ", text)
    if "\\frown" in text:
        text = _FROWN.sub(r"\1", text)
    for _ in range(3):
        if "\\" not in text:
            break
        text = _TEXT_WRAPPER.sub(r" \1 ", text)
    if "\\" in text:
        text = _FONT.sub(" ", text)
    text = _APPROXIMATELY.sub(r"\\approx", _FRACTIONS.sub(r"\\frac", text))
    return _BARS.sub("|", text).replace("\\colon", ":").replace("{}", "")


def _without_ends(text: str) -> str:
    """Strip punctuation, emphasis and quotes around the whole answer."""
    for _ in range(6):
        before = text
        text = text.strip().rstrip(".,;:").strip()
        if len(text) > 1 and text[0] == text[-1] and text[0] in "*_'\"":
            text = text[1:-1]
        if text == before:
            break
    return text
