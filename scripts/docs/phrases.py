"""Find turns of phrase that native engineers do not write.

    python scripts/docs/phrases.py [FILE ...]

Reads all tracked text files by default. Prints file, line and what to write instead; exits with 1
if it finds any. `# phrases: allow` on a line skips it.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
KINDS: Final = ("*.py", "*.md", "*.tmpl", "*.ipynb", "*.js", "*.css", "*.toml", "Makefile")
UNREAD: Final = frozenset({"scripts/docs/phrases.py"})
_THING: Final = (
    "JSON|valid|date|number|mapping|list|function|file|folder|class|integer|id|object|model|path"
    "|string|text|trajectory|image|PNG|part of"
)
PHRASES: Final = {
    rf"(?<!here )(?<!here, )\bis no (?:{_THING})\b": "is not ...",
    r"\bis to be done\b": "task, or who does what",
    r"\bof one's own\b": "your own ...",
    r"\bmend(?:s|ed|ing)?\b(?!>)": "fix",
    r"\bsmall letters\b": "lowercase letters",
    r"\bgiven? up on\b": "abandon",
    r"\b(?:is|was) gone on with\b": "is resumed",
    r"\bcounts? nowhere\b": "is excluded",
    r"\bstands? once\b": "appears once",
    r"\bwhat flipped\b": "changed outcomes",
    r"\b[Pp]age through\b": "browse",
    r"\bbrings? the [a-z ]+ along\b": "bundles",
    r"\bas far as it (?:holds|tells)\b": "name what is missing",
    r"\b(?:stands?|stood|comes?|lies|cut|goes on|ends) behind\b": "after",
    r"\bbehind (?:the|its|their) (?:last|first|end|reset|step|prompt|reply|turn)\b": "after",
    r"\b(?:the|a) [Ss]eat\b": "slot, or who it is",
    r"\bnobody came\b": "no ... replied",
    r"\bfor ever\b": "forever",
    r"\bsomething else than\b": "... is invalid, or name what is expected",
    r"\b(?:episode|file|function|policy|process) of (?:its|their|your) own\b": "its own ...",
    r"\b[Nn]one where\b": "None if ...",
    r"\bput back\b": "restore",
    r"\bmakes of (?:the|an?|it|some)\b": "its output for ..., its result",
    r"\bso many (?:characters|episodes|folders|rows)\b": "maximum number of ...",
    r"\bdata sets?\b": "dataset",
    r"\blast (?:\w+ )?but one\b": "second-to-last",
    r"\bpages? of (?:another|other) sites?\b": "on another site, from other sites",
    r"\bequal in every bit\b": "bit-identical",
}
PAGE_PHRASES: Final = {
    r"\b(?:edits|episodes|images|problems|queries|requests|steps|tokens|turns) a second\b": "per",
    r"\b(?:line|one|placeholders?|rows?) a (?:reply|row|sample|step|trajectory|turn)\b": "per",
    r"\ban? (?:environment|page|row|trajectory) of (?:its|your) own\b": "its/your own ...",
    r"\bpages of your own\b": "your own pages",
    r"\bas it stands\b": "unchanged",
    r"\banew\b": "again, or the verb with re-",
    r"\bplayed on\b": "continue, or resume",
    r"\bgo(?:es)? on (?:at|from|with)\b": "continue",
    r"\bgiven up\b": "abandon",
    r"\bwhatever (?:its|that|the|their|your)\b": "for any ..., regardless of ...",
    r"\bnobody\b": "say who acts",
    r"\b(?:are|is) told\b": "say who tells whom: the observation says ...",
    r"\btold apart\b": "distinguish",
    r"\bas far as (?:it|they|the)\b": "say what is missing",
    r"\bdigits? off\b": "in",
    r"\bwhat (?:becomes|comes) of\b": "what happens to",
    r"\bwithout eyes\b": "blind",
    r"\bof (?:its|their) own(?=[.,;:)]| (?:and|play|such)\b|$)": "its/their own ..., separate",
    r"\d\u2009%": "no space before %",
    r"\bwithout end\b": "endless, or without limit",
    r"\b(?:conversation|desk|episode|history|model|run|session|task)s? goes on\b": "continues",
    r"\bunfold(?:s|ed)?\b": "expand",
    r"\balso (?:if|those|when|where)\b": "even if, including",
}
"""Looked for in pages and notebooks alone."""
_ALLOWED: Final = "phrases: allow"


def tracked() -> list[Path]:
    """Return the text files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *KINDS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if name not in UNREAD]


def findings(text: str, *, is_page: bool) -> Iterator[tuple[int, str, str]]:
    """Yield line number, what was found and what to write instead."""
    phrases = {**PHRASES, **PAGE_PHRASES} if is_page else PHRASES
    for number, line in enumerate(text.splitlines(), 1):
        if _ALLOWED in line:
            continue
        for phrase, better in phrases.items():
            found = re.search(phrase, line)
            if found is not None:
                yield number, found[0], better


def main() -> int:
    """Print what was found; returns the exit status."""
    is_clean = True
    for path in [Path(name) for name in sys.argv[1:]] or tracked():
        text, is_page = path.read_text(encoding="utf-8"), path.suffix in {".md", ".ipynb"}
        for number, found, better in findings(text, is_page=is_page):
            is_clean = False
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            sys.stdout.write(f'{shown}:{number}: "{found}": {better}\n')
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
