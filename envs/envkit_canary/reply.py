"""Read the code from a reply."""

import re


def read_code(reply: str, length: int) -> str | None:
    """Return the last run of exactly `length` letters and digits in the reply, in capitals.

    A run with a digit takes precedence over plain words: "The code is K7MX, sure" is read as K7MX.
    Returns None if there is no run of that length.
    """
    runs = re.findall(rf"(?<![A-Za-z0-9])[A-Za-z0-9]{{{length}}}(?![A-Za-z0-9])", reply)
    shaped = [run for run in runs if run.isupper() or any(map(str.isdigit, run))]
    return ((shaped or runs)[-1]).upper() if runs else None
