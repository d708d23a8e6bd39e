"""Hooks for `envkit certify canary-v0`: blind guesses and a second reader of codes."""

from envkit.certification_hooks import CertificationHooks
from envkit.tasks import Task
from envkit_canary.drawing import shows_code
from envkit_canary.reply import read_code


def hooks(alphabet: str) -> CertificationHooks:
    """Return blind guesses of a code of these characters, and two readers of the first code."""

    def guesses(task: Task) -> list[str]:
        """Return codes guessed without looking at the image."""
        length = len(task["codes"][0])
        return [(alphabet[start:] + alphabet * length)[:length] for start in range(len(alphabet))]

    return CertificationHooks(
        choices=guesses,
        closed_book=lambda task: guesses(task)[0],
        grade=lambda task, reply: float(
            read_code(reply, len(task["codes"][0])) == task["codes"][0]
        ),
        second_grade=lambda task, reply: float(
            _last_code(reply, len(task["codes"][0])) == task["codes"][0]
        ),
        answers=_replies,
        shows=lambda task, images: shows_code(images[0], task["codes"][0]),
    )


def _replies(task: Task) -> list[str]:
    """Return replies that contain the first code of a task, or a near miss."""
    code: str = task["codes"][0]
    other = code[1:] + code[:1]
    return [
        code,
        code.lower(),
        f"The code is {code}, sure.",
        f"<b>{code}</b>",
        f"{other} or {code}",
        f"{code} or {other}",
        f"{code}{code}",
        f"_{code}_",
        f"{code[:-1]} {code[-1]}",
        other,
        code[:-1],
        "",
        "none",
    ]


def _last_code(reply: str, length: int) -> str | None:
    """Read a code as `read_code` does, letter by letter."""
    runs, run = list[str](), ""
    for character in f"{reply} ":
        if character.isascii() and character.isalnum():
            run += character
            continue
        runs += [run] if len(run) == length else []
        run = ""
    likely = [r for r in runs if r == r.upper() or set(r) & set("0123456789")]
    last = (likely or runs)[-1:]
    return last[0].upper() if last else None
