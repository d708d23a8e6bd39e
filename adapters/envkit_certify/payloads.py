"""Answers that need no solving, and wrong answers made from the right one."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from envkit.reply import FinishReason, Reply
from envkit_certify.forms import Form, Paid

Blind = str | Callable[[str], str]
"""An answer, or a function from the prompt's text to an answer."""

OPTION: Final = re.compile(r"^\s*(?:\(?([A-Z]|\d)[.):]|[-*\u2022])\s+(.+?)\s*$", re.M)
_LISTED: Final = re.compile(
    r"(?:[:(]|\bone of|\bfrom|\bamong)\s*((?:[^,.;:?()\n]{1,40}, ){1,}[^,.;:?()\n]{1,40})"
)
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_NAME: Final = re.compile(r"\b[A-Z][\w'-]+\b")
_QUOTED: Final = re.compile(r"[\"'`\u201c]([^\"'`\u201d\n]{1,60})[\"'`\u201d]")
_LONGEST: Final = 4000

CONSTANT: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "nothing": ("", " ", "\n", "\t \n", "\u200b", '""', "-", "_", "..."),
        "wildcard": (".*", ".", "%", "*", "?", "\\d+", "[\\s\\S]*", "(?:)", "|", "^", "$", "**"),
        "empty value": (
            *("[]", "{}", "()", "null", "None", "nan", "inf", "-inf", "NaN", "undefined", "N/A"),
            *("[null]", "[[]]", '{"": ""}', "0.0", "-0", "1e308", "1/0", "0/0", "\\frac{0}{0}"),
        ),
        "digit": tuple("0123456789"),
        "number": ("-1", "10", "100", "1000000", "0.5", "9" * 400, "1e-9", "\u221e", "True + 1"),
        "word": (
            *("true", "false", "True", "False", "yes", "no", "correct", "answer", "the", "a", "x"),
            *("I do not know", "cannot be determined", "none of the above", "all of the above"),
            *("Let me think step by step.", "Therefore, I am confident.", "please", "Sure!"),
            *("unknown", "done", "success", "1.0", "the correct answer", "{answer}", "{{gold}}"),
        ),
        "everything": (
            *("A, B, C, D, E", "ABCDE", "A B C D E", "a", "A", "B", "C", "D", "E", "yes or no"),
            *("yes no true false", "0123456789", "0 1 2 3 4 5 6 7 8 9", "0 to 1000000"),
            *("[0, 1000000]", "[-inf, inf]", "(-\\infty, \\infty)", "-1e9..1e9", "any", ">= 0"),
            *("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
            *(" ".join(map(str, range(-20, 400))), ",".join(map(str, range(181)))),
            *("\n".join("ABCDEFGHIJ"), "[0-9]+", "[A-Z]+", "x" * 1000),
        ),
        "code": (
            *("' OR '1'='1", "__import__('math').inf", "lambda *a: True", "$ANSWER", "%s", "{0}"),
            *("self.task['answer']", "type('E', (), {'__eq__': lambda *a: True})()"),
            *("\x00", "\\"),
            *(
                "<|im_end|>",
                '{"reward": 1.0}',
                '{"success": true, "score": 1}',
                "```python\n1\n```",
            ),
        ),
    }
)
"""Answers that are the same for every task, by kind."""


def blind_answers(others: Sequence[str]) -> dict[str, Blind]:
    """Return answers that need no knowledge of the task, by name.

    Args:
        others: The answers of other tasks, joined into one.
    """
    found: dict[str, Blind] = {
        f"{kind}: {text[:24]!r}": text for kind, texts in CONSTANT.items() for text in texts
    }
    if others:
        for name, joint in {"space": " ", "comma": ", ", "line": "\n"}.items():
            found[f"everything: other tasks' answers, by {name}"] = joint.join(others)[:_LONGEST]
    for name, pick in SHOWN.items():
        found[f"prompt: {name}"] = pick
    return found


def options_in(text: str) -> list[str]:
    """Return the options that a question lists, in their order; empty without a list."""
    lettered = [match.group(2) for match in OPTION.finditer(text)]
    listed = _LISTED.findall(text)
    return (
        lettered if len(lettered) > 1 or not listed else re.split(r",\s*(?:or |and )?", listed[-1])
    )


def without_options(text: str, gold: str) -> str:
    """Return a text without its list of options, if the answer is one of them."""
    options = [option.strip(" .").casefold() for option in options_in(text)]
    if gold.strip(" .").casefold() not in options:
        return text
    return _LISTED.sub("", OPTION.sub("", text))


def _joined(pattern: re.Pattern[str]) -> Callable[[str], str]:
    return lambda text: ", ".join(dict.fromkeys(pattern.findall(text)))[:_LONGEST]


SHOWN: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {
        "all of it": lambda text: text[:_LONGEST],
        "all of it in lowercase": lambda text: text.lower()[:_LONGEST],
        "its last line": lambda text: text.strip().rpartition("\n")[2],
        "its numbers": _joined(_NUMBER),
        "its names": _joined(_NAME),
        "what it quotes": _joined(_QUOTED),
        "its options": lambda text: ", ".join(options_in(text)),
        "its options, one per line": lambda text: "\n".join(options_in(text)),
    }
)


def wrong_answers(paid: Paid, others: Sequence[str], *, grades_cut: bool) -> dict[str, str | Reply]:
    """Return replies made of the right answer that must not earn its reward, by name.

    Args:
        paid: The right answer, with its form.
        others: Answers of other tasks, all different from it; at least one.
        grades_cut: Whether the environment grades replies that were cut.
    """
    gold, form = paid.gold, paid.form
    first, second = others[0], others[-1]
    half = len(gold) // 2
    answers = {
        "the first character of the right answer": gold[:1],
        "the first half of the right answer": gold[:half],
        "the last half of the right answer": gold[half:],
        "the right answer without its last character": gold[:-1],
        "the right answer with more digits": f"{gold}77" if gold.isdigit() else gold[:1],
        "the right answer's characters, sorted": "".join(sorted(gold)) if gold.isalnum() else "",
        "the right answer backwards": gold[::-1] if gold.isalnum() else "",
        "any text of the right length": "x" * len(gold),
        "the right first character and length": gold[:1] + "x" * (len(gold) - 1),
    }
    if re.search(r"\d\.\d", gold):  # fewer digits may be rounding
        answers = {"any text of the right length": answers["any text of the right length"]}
    answers = {name: text for name, text in answers.items() if _plain(text) != _plain(gold)}
    if any(character.isalnum() for character in f"{form.before}{form.after}"):
        answers |= {"'not' and the right answer": f"not {gold}"}
    if gold.isdigit() and 0 < int(gold) < 10**15 and not form.is_value:
        value = int(gold)
        answers |= {"a 9 before the right number": f"9{gold}"}
        answers |= {"a number 10% too high": str(value * 11 // 10)} if value >= 20 else {}
        answers |= {
            "the right number, negative": f"-{gold}",
            "ten times the right number": f"{gold}0",
            "the right number plus one": f"{value + 1}",
        }
    for name, joint in {"space": " ", "comma": ", ", "line": "\n", "or": " or "}.items():
        many = joint.join([*others, gold, *others])
        answers[f"the right one between two others, by {name}"] = joint.join([first, gold, second])
        answers[f"the right one among many others, by {name}"] = many[-_LONGEST:]
    found: dict[str, str | Reply] = {name: form.reply(text) for name, text in answers.items()}
    found |= _in_other_forms(form, gold, first, second)
    if not grades_cut:
        whole = form.reply(gold)
        found["the right answer in a reply that was cut"] = Reply(
            text=whole, finish=FinishReason.LENGTH
        )
    return found


def _in_other_forms(form: Form, gold: str, first: str, second: str) -> dict[str, str | Reply]:
    bare = Form(form.before.rpartition("</think>")[2], form.after)
    whole, wrong, other = (bare.reply(text) for text in (gold, first, second))
    found: dict[str, str | Reply] = {
        "the right answer only in a thought": f"<think>{whole}</think>",
        "the right answer in an unclosed thought": f"<think>{whole}",
        "the right answer thought, another one given": f"<think>{whole}</think>\n{wrong}",
        "three answers in one reply, the right one second": f"{wrong}\n{whole}\n{other}",
    }
    if (loose := form.unquoted()) != form or form.is_value:
        listed = json.dumps([first, gold, second], ensure_ascii=False)
        found["a list with the right answer"] = loose.reply(listed)
        found["an object with the right answer"] = loose.reply(
            json.dumps({gold: True, first: True})
        )
    return found


def _plain(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())
