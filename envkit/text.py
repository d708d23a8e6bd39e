"""Text that any file and any other program can hold."""


def utf8(text: str) -> str:
    """Return the text with lone surrogates, which a model may sample, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def optional_utf8(text: str | None) -> str | None:
    """Return the same; None stays None."""
    return None if text is None else utf8(text)
