"""Plans for tasks that are solved by typing."""

import datetime
import re
from collections.abc import Iterator

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page


def quoted_text(page: Page) -> Iterator[Action]:
    """Type the quoted text and submit."""
    yield from moves.fill_and_submit(page, "#tt", page.quoted()[0])


def cased_text(page: Page) -> Iterator[Action]:
    """Type the quoted text in upper or lower case and submit."""
    text = page.quoted()[0]
    text = text.upper() if "all upper case" in page.goal else text.lower()
    yield from moves.fill_and_submit(page, "#tt", text)


def password_twice(page: Page) -> Iterator[Action]:
    """Type the password into both fields."""
    for name in ("#password", "#verify"):
        yield from moves.fill(page, page.one(name), page.quoted()[0])
    yield from moves.submit(page)


def login(page: Page) -> Iterator[Action]:
    """Type name and password, dismissing a dialog that may appear in between."""
    cancel = page.first("#popup-cancel")
    if cancel is not None:
        yield moves.press(page, cancel)
    user, password = page.quoted()[:2]
    yield from moves.fill(page, page.one("#username"), user)
    yield from moves.fill_and_submit(page, "#password", password)


def captcha(page: Page) -> Iterator[Action]:
    """Type the slanted letters."""
    text = "".join(letter.text for letter in page.all("#captcha span"))
    yield from moves.fill_and_submit(page, "#tt", text)


def date(page: Page) -> Iterator[Action]:
    """Type month, day and year into a date field."""
    month, day, year = page.asked(r"(\d+/\d+/\d+)").split("/")
    field = page.one("#tt")
    if field.value != f"{year}-{month}-{day}":
        if not field.focused:
            yield moves.press_at(page, (field.box[0] + 12, field.middle[1]))
        yield moves.write(month + day + year)
    yield from moves.submit(page)


def time(page: Page) -> Iterator[Action]:
    """Type hour, minute and AM or PM into a time field."""
    asked = page.asked(r"Enter (\d+:\d+\s[AP]M)")
    moment = datetime.datetime.strptime(re.sub(r"\s", " ", asked), "%I:%M %p")
    field = page.one("#tt")
    if field.value != f"{moment:%H:%M}":
        if not field.focused:
            yield moves.press_at(page, (field.box[0] + 12, field.middle[1]))
        yield moves.write(f"{moment:%I%M%p}")
    yield from moves.submit(page)


def nth_word(page: Page) -> Iterator[Action]:
    """Type the n-th word of the paragraph."""
    place = int(page.asked(r"(\d+)\w\w word"))
    word = re.sub(r"[^a-zA-Z]+", "", page.one("#area p").text.split()[place - 1])
    yield from moves.fill_and_submit(page, "#answer-input", word)


def last_word(page: Page) -> Iterator[Action]:
    """Type the last word of the text area."""
    words = page.one("#text-area").text.split()
    yield from moves.fill_and_submit(page, "#answer-input", words[-1].replace(".", ""))


def table_value(page: Page) -> Iterator[Action]:
    """Type the value that the table has for the key of the goal."""
    key = page.asked(r"value of (.*) into")
    yield from moves.fill_and_submit(page, "#tt", _table(page)[key])


def table_values(page: Page) -> Iterator[Action]:
    """Type the values of the two labels."""
    for label, field in (("#ll1", "#tt1"), ("#ll2", "#tt2")):
        key = page.one(label).text.rstrip(":")
        yield from moves.fill(page, page.one(field), _table(page)[key])
    yield from moves.submit(page)


def _table(page: Page) -> dict[str, str]:
    cells = [cell.text for cell in page.all("#tab td")]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def arithmetic(page: Page) -> Iterator[Action]:
    """Type the result of a sum, a difference or a product."""
    left, sign, right = page.one("#math-problem").text.split()[:3]
    first, second = int(left), int(right)
    result = {"+": first + second, "-": first - second, "x": first * second}[sign]
    yield from moves.fill_and_submit(page, "#math-answer", str(result))


def algebra(page: Page) -> Iterator[Action]:
    """Solve a sum or difference for x and type it."""
    left, sign, right, _, total = page.one("#math-problem").text.split()
    number = int(right if left == "x" else left)
    if sign == "+":
        answer = int(total) - number
    else:
        answer = int(total) + number if left == "x" else number - int(total)
    yield from moves.fill_and_submit(page, "#math-answer", str(answer))


def blocks(page: Page) -> Iterator[Action]:
    """Type the number of blocks."""
    number = len(page.all(".addition-block"))
    yield from moves.fill_and_submit(page, "#math-answer", str(number))


def guess(page: Page) -> Iterator[Action]:
    """Halve the remaining numbers until the guess is right."""
    tried = [int(action.text) for action in page.performed if action.text]
    submitted = sum(action.keys == ("enter",) for action in page.performed)
    low, high = 0, 9
    for number, following in zip(tried[:submitted], [*tried[1:], None], strict=False):
        # The page shows only its last answer; earlier ones follow from the next guesses.
        is_higher = page.one("#higher").is_shown if following is None else following > number
        low, high = (number + 1, high) if is_higher else (low, number - 1)
    yield from moves.fill(page, page.one("#tt"), str((low + high) // 2))
    yield moves.key("enter")


def movie_search(page: Page) -> Iterator[Action]:
    """Fill genre, director and year into forms of many layouts."""
    genre, name, year = re.findall(r"for (.*) movies directed by (.*) from year (\d+)", page.goal)[
        0
    ]
    for words, text in (("Genre", genre), ("Director", name), ("Year|Date", year)):
        yield from moves.fill(page, _labelled(page, words), text)
    buttons = page.shown("#area button") + page.shown(".final") + page.shown(".ui-submit")
    yield moves.press(page, buttons[-1])


def _labelled(page: Page, words: str) -> Element:
    """Return the field whose row has a label with one of the words."""
    for field in page.all("#area input"):
        hint = field.attributes.get("placeholder", "")
        rows = [row.text for row in page.ancestors(field) if len(page.all("input", row)) == 1]
        if any(re.search(words, text) for text in (hint, *rows)):
            return field
    raise LookupError(f"no field of {page.task!r} is labelled {words!r}")
