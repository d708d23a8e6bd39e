"""Calculator families: work something out with Galculator and note the result in a file."""

from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Number, Text
from envkit_linux_desktop.tasks.clues import clutter, expect, told
from envkit_linux_desktop.tasks.scenario import Draft, families
from envkit_linux_desktop.tasks.words import listed


def _note(draft: Draft, value: float, *phrasings: str) -> None:
    """Ask for a number in a new file; the phrasings end before the file is named."""
    path = draft.path("txt")
    draft.open("galculator")
    draft.open("mousepad")
    expect(draft, Number(path=path, value=value))
    draft.say(*phrasings)
    draft.also(
        f"Save only the result, as a plain number, in a new text file {path}.",
        f"Write nothing but the result into a new file {path}, in digits without separators.",
        f"Put the result, and nothing else, into the text file {path}.",
    )


def _number(draft: Draft, value: int, what: str = "number") -> str:
    """Return the number, or at level 4 where to find it."""
    if draft.level < 4:
        return str(value)
    low, high = value // 2 + 1, value * 2 + 9
    return told(draft, what, str(value), [str(draft.rng.randint(low, high)) for _ in range(12)])


def calculate_term(draft: Draft) -> None:
    """Work out a term with precedence and brackets."""
    size, rng = draft.at(99, 400, 900, 900), draft.rng
    a, b, c, d = (rng.randint(size // 9, size) for _ in range(4))
    last = _number(draft, d)
    term, value = draft.at(
        (f"{a} * {b} + {last}", a * b + d),
        (f"{a} * {b} - {c} * {last}", a * b - c * d),
        (f"({a} + {b}) * {c} - {last}", (a + b) * c - d),
        (f"({a} + {b}) * {c} minus {last}", (a + b) * c - d),
    )
    _note(
        draft,
        value,
        f"Work out {term} with the calculator.",
        f"Use the calculator to find {term}.",
        f"What is {term}? The calculator is open.",
    )


def add_up(draft: Draft) -> None:
    """Add up the numbers in a file."""
    values = [draft.rng.randint(100, 9999) for _ in range(draft.at(3, 5, 8, 10))]
    rows = [f"{name}: {n}" for name, n in zip(draft.some(words.GOODS, len(values)), values,
                                              strict=True)]  # fmt: skip
    path = draft.add(draft.path("txt"), "\n".join(rows) + "\n")
    draft.open("mousepad", path)
    extra, clause = 0, ""
    if draft.level == 4:
        extra = draft.rng.randint(100, 9999)
        clause = f" plus {_number(draft, extra, 'fee')}"
    _note(
        draft,
        sum(values) + extra,
        f"Add up all the numbers in {path}{clause}.",
        f"What do the amounts in {path} sum to{clause}? Use the calculator.",
        f"Find the total of the amounts in {path}{clause} with the calculator.",
    )


def convert_base(draft: Draft) -> None:
    """Convert a number between bases."""
    value = draft.rng.randint(*draft.at((300, 4000), (5000, 60000), (70000, 10**6), (10**6, 10**7)))
    written, base = draft.one(((f"{value:X}", "hexadecimal"), (f"{value:o}", "octal")))
    others = [f"{draft.rng.randint(300, 10**7):X}" for _ in range(12)]
    said = told(draft, "code", written, others, is_named=False)
    shown = said if draft.level == 4 else written
    _note(
        draft,
        value,
        f"The {base} number {shown} has to be written in decimal.",
        f"Convert {shown}, which is {base}, to a decimal number with the calculator.",
        f"What is {shown} in decimal, if it is a {base} number?",
    )


def apply_discount(draft: Draft) -> None:
    """Work out a price after a discount."""
    percent = draft.one([5, 15, 20, 25, 35, 40, 45])
    goods = draft.one(words.GOODS).lower()
    price, count = draft.rng.randint(40, 400) * 20, draft.at(1, 3, 7, 12)
    said = _number(draft, price, "price")
    boxes = "1 box" if count == 1 else f"{count} boxes"
    _note(
        draft,
        price * count * (100 - percent) / 100,
        f"You buy {boxes} of {goods} for {said} each before a discount of {percent} percent. "
        "Work out the total after the discount.",
        f"How much do {boxes} of {goods} at {said} each, with {percent} percent off the total?",
        f"The price of one box of {goods} is {said}. Find what {count} of them cost after taking "
        f"off {percent} percent.",
    )


def find_mean(draft: Draft) -> None:
    """Work out an average that is exact."""
    count = draft.at(2, 4, 5, 8)
    values = [draft.rng.randint(100, 5000) for _ in range(count)]
    values[-1] += -sum(values) % count
    said = [str(value) for value in values]
    said[-1] = _number(draft, values[-1])
    _note(
        draft,
        sum(values) // count,
        f"Find the average of {listed(said)}.",
        f"What is the mean of {listed(said)}? Use the calculator.",
        f"Work out the average of these numbers: {listed(said)}.",
    )


def root_or_power(draft: Draft) -> None:
    """Work out a square root or a power."""
    base = draft.rng.randint(*draft.at((40, 99), (100, 400), (400, 999), (1000, 3000)))
    is_root = draft.rng.random() < 0.5
    square = base * base
    term = f"the square root of {_number(draft, square)}" if is_root else (
        f"{_number(draft, base)} to the power of {draft.at(2, 3, 3, 2)}"
    )  # fmt: skip
    value = base if is_root else base ** draft.at(2, 3, 3, 2)
    _note(
        draft,
        value,
        f"Work out {term} with the calculator.",
        f"What is {term}?",
        f"Use the calculator to find {term}.",
    )


def split_seconds(draft: Draft) -> None:
    """Convert seconds into hours, minutes and seconds."""
    seconds = draft.rng.randint(
        *draft.at((700, 3500), (4000, 9000), (10**4, 9**5), (9**5, 3 * 9**5))
    )
    path = draft.path("txt")
    said = _number(draft, seconds, "number of seconds")
    draft.open("galculator")
    draft.open("mousepad")
    clutter(draft)
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    draft.expect(Text(path=path, text=f"{hours}:{minutes:02}:{rest:02}"))
    unit = " seconds" if draft.level < 4 else ""
    draft.say(
        f"Write {said}{unit} as hours, minutes and seconds in the form h:mm:ss, and save just "
        f"that as {path}.",
        f"How long is {said}{unit}? Save the answer in the form h:mm:ss, and nothing else, as "
        f"{path}.",
        f"Convert {said}{unit} to the form h:mm:ss. Put only the result into a new file {path}.",
    )


FAMILIES = families(
    "calculator",
    calculate_term,
    add_up,
    convert_base,
    apply_discount,
    find_mean,
    root_or_power,
    split_seconds,
)
