"""Text that is safe for any file or program."""


def utf8(text: str) -> str:
    """Return the text with lone surrogates, which a model may sample, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def optional_utf8(text: str | None) -> str | None:
    """Return the same as `utf8`, or None for None."""
    return None if text is None else utf8(text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 turn", "2 turns", "2 trajectories"."""
    if number == 1:
        return f"{number} {noun}"
    is_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
    return f"{number} {noun[:-1]}ies" if is_ies else f"{number} {noun}s"
