"""Printed pages: a receipt, a table, and a form with its copy."""

import random
from collections.abc import Sequence
from dataclasses import replace

from envkit_visual.answers import NumberQuestion
from envkit_visual.canvas import SIDE, Canvas, Look, Point
from envkit_visual.world import Asked, Outcome, Record, Staged

Columns = Sequence[tuple[float, str]]
"""Place and anchor, as for `Canvas.text`, of each text of a row."""
Rows = Sequence[Sequence[str]]


def write_rows(
    canvas: Canvas, look: Look, columns: Columns, rows: Rows, *, ends: Point, size: float = 14
) -> None:
    """Write rows of text; the first is a heading.

    Args:
        canvas: To draw on.
        look: How to draw.
        columns: Where the texts of a row are.
        rows: The texts.
        ends: Top of the first row, and bottom of the last one; few rows end higher.
        size: Of the letters.
    """
    top, bottom = ends
    pitch = min(40.0, (bottom - top) / len(rows))
    left, right = columns[0][0] - 8, columns[-1][0] + 8
    canvas.box(left, top, right, top + pitch, fill=(232, 232, 232))
    for at, row in enumerate(rows):
        y = top + pitch * (at + 0.5)
        for (x, anchor), text in zip(columns, row, strict=True):
            canvas.text(x, y, text, color=look.ink, size=size, at=anchor)
        line = ((left, y + pitch / 2), (right, y + pitch / 2))
        canvas.path(line, color=(190, 190, 190) if at else look.ink)


_ITEMS = (
    *("Apples", "Bread", "Butter", "Cheese", "Coffee", "Eggs", "Flour", "Honey", "Jam", "Milk"),
    *("Noodles", "Olives", "Pears", "Rice", "Salt", "Soap", "Sugar", "Tea", "Tomatoes", "Yogurt"),
)


class Line(Record):
    """A line of a receipt."""

    item: str
    count: int
    price: int
    """In cents."""
    amount: int
    """As printed, in cents."""


class ReceiptState(Asked):
    """A receipt; one amount is not count times price."""

    lines: tuple[Line, ...]


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


class Receipt(NumberQuestion[ReceiptState]):
    """Find a receipt's correct total.

    The picture shows a receipt without its total. The amount of a line is its count times its
    price. One printed amount is wrong; counts and prices are right. Find the total with the amount
    corrected.

    An action is an amount such as 12.35.
    """

    difficulty = ("number of lines", 2, 5, 9, 14)
    refusal = "the answer is an amount, such as 12.35"
    question = "What is the correct total?"
    options = tuple(map(_money, range(500, 15000, 245)))

    def create(self, rng: random.Random, size: int) -> ReceiptState:
        """Draw lines, and change one amount."""
        wrong = rng.randrange(size)
        lines: list[Line] = []
        for at, item in enumerate(rng.sample(_ITEMS, size)):
            count, price = rng.randint(1, 6), rng.randrange(105, 995, 5)
            amount = count * price
            if at == wrong:
                amount += rng.choice((-1, 1)) * rng.choice((10, 20, 30, 50, 90, 100))
            lines.append(Line(item=item, count=count, price=price, amount=amount))
        return ReceiptState(lines=tuple(lines))

    def draw(self, state: ReceiptState, canvas: Canvas, look: Look) -> None:
        """Draw a slip of paper with the lines."""
        canvas.box(40, 8, SIDE - 40, SIDE - 8, fill=(255, 255, 255), line=look.ink)
        lines = ((k.item, str(k.count), _money(k.price), _money(k.amount)) for k in state.lines)
        rows = [("item", "count", "price", "amount"), *lines]
        columns = ((64, "lm"), (220, "rm"), (300, "rm"), (SIDE - 64, "rm"))
        write_rows(canvas, look, columns, rows, ends=(20, SIDE - 44))
        canvas.text(64, SIDE - 26, "total", color=look.ink, size=16, at="lm")
        canvas.text(SIDE - 64, SIDE - 26, "?", color=look.ink, size=16, at="rm")

    def tell(self, state: ReceiptState) -> str:
        """List the lines."""
        sums = ((k.item, k.count, _money(k.price), _money(k.amount)) for k in state.lines)
        return "\n".join(f"{item}: {n} x {price} = {total}" for item, n, price, total in sums)

    def value(self, state: ReceiptState) -> float:
        """Add up counts times prices."""
        return sum(line.count * line.price for line in state.lines) / 100

    def answer(self, state: ReceiptState) -> str:
        """Return the total with its cents."""
        return f"{self.value(state):.2f}"


_CITIES = ("Oslo", "Lima", "Cairo")
_GOODS = ("tea", "wool", "salt")
_COLUMNS = ((24, "lm"), (90, "lm"), (190, "lm"), (342, "rm"), (SIDE - 24, "rm"))


class Sale(Record):
    """A row."""

    city: str
    goods: str
    year: int
    units: int


class TableState(Asked):
    """Sales, and the rows that are asked for."""

    sales: tuple[Sale, ...]
    city: str
    goods: str
    since: int
    """Other goods count too from this year on."""


class Table(NumberQuestion[TableState]):
    """Add up the rows of a table that fit a question.

    The picture shows a table of sales. Add up the units of the rows that are asked for.

    An action is a whole number.
    """

    difficulty = ("number of rows", 5, 8, 12, 17)
    options = tuple(str(units) for units in range(100, 900, 7))

    def create(self, rng: random.Random, size: int) -> TableState:
        """Draw rows and a question that at least two of them fit, but not all."""
        while True:
            sales: list[Sale] = []
            for _ in range(size):
                city, goods = rng.choice(_CITIES), rng.choice(_GOODS)
                year, units = rng.randint(2015, 2024), rng.randint(11, 299)
                sales.append(Sale(city=city, goods=goods, year=year, units=units))
            city, goods, since = rng.choice(_CITIES), rng.choice(_GOODS), rng.randint(2017, 2023)
            state = TableState(sales=tuple(sales), city=city, goods=goods, since=since)
            if 2 <= len(_fitting(state)) <= size // 2:
                return state

    def draw(self, state: TableState, canvas: Canvas, look: Look) -> None:
        """Draw the table."""
        sales = ((k.city, k.goods, str(k.year), str(k.units)) for k in state.sales)
        numbered = ((str(at), *sale) for at, sale in enumerate(sales, start=1))
        rows = [("row", "city", "goods", "year", "units"), *numbered]
        write_rows(canvas, look, _COLUMNS, rows, ends=(10, SIDE - 10), size=15)

    def tell(self, state: TableState) -> str:
        """List the rows."""
        rows = (f"{one.city}, {one.goods}, {one.year}: {one.units}" for one in state.sales)
        return "\n".join(rows)

    def ask(self, state: TableState) -> str:
        """Name the rows."""
        return (
            f"Take the rows for {state.city} that are for {state.goods}, or of {state.since} or "
            f"later, or both. What is the sum of their units?"
        )

    def value(self, state: TableState) -> int:
        """Add up the units."""
        return sum(sale.units for sale in _fitting(state))


def _fitting(state: TableState) -> list[Sale]:
    local = (sale for sale in state.sales if sale.city == state.city)
    return [sale for sale in local if sale.goods == state.goods or sale.year >= state.since]


_DIGITS = "123456789"
_FIELDS = {
    **{"order": "A####", "phone": "### ####", "street no": "###", "postcode": "#####"},
    **{"weight": "##.# kg", "price": "###.##", "tax": "##.##", "customer": "K-####"},
    **{"account": "#### ####", "batch": "#-###", "date": "1#/0#/202#", "time": "1#:3#"},
    **{"room": "###", "parcels": "##"},
}
"""The shape of each field's value."""
_FEWEST = 2
"""Values that are wrong."""


class CrosscheckState(Record):
    """A form and its copy."""

    fields: tuple[str, ...]
    right: tuple[str, ...]
    """Values on the form."""
    copied: tuple[str, ...]
    """Values on the copy."""
    wrong: int
    """Fields that differed at first."""


class Crosscheck(Staged[CrosscheckState]):
    """Correct the fields of a copy that differ from the form.

    The picture shows a form at the left and a copy of it at the right, in another order. Some
    values of the copy are wrong. Correct them, so that every field has the same value on both
    pages.

    An action is a field and its new value on the copy, such as time: 12:34.
    """

    difficulty = ("number of fields", 4, 7, 10, 14)
    options = tuple(f"{field}: {shape.replace('#', '5')}" for field, shape in _FIELDS.items())

    def create(self, rng: random.Random, size: int) -> CrosscheckState:
        """Fill in a form, and change a digit of some values of its copy."""
        fields = tuple(rng.sample(sorted(_FIELDS), size))
        right = tuple(_digits(rng, _FIELDS[field]) for field in fields)
        copied = list(right)
        wrong = rng.randint(_FEWEST, max(_FEWEST, size // 2))
        for at in rng.sample(range(size), wrong):
            copied[at] = _changed(rng, right[at], _FIELDS[fields[at]])
        return CrosscheckState(fields=fields, right=right, copied=tuple(copied), wrong=wrong)

    def draw(self, state: CrosscheckState, canvas: Canvas, look: Look) -> None:
        """Draw both pages."""
        middle, count = SIDE / 2, len(state.fields)
        order = look.rng("order").sample(range(count), count)
        pages = ((6, "form", state.right, range(count)), (middle + 3, "copy", state.copied, order))
        for left, title, values, places in pages:
            right = left + middle - 9
            canvas.box(left, 8, right, SIDE - 8, fill=(255, 255, 255), line=look.ink)
            rows = [(title, ""), *((state.fields[at], values[at]) for at in places)]
            columns = ((left + 14, "lm"), (right - 14, "rm"))
            write_rows(canvas, look, columns, rows, ends=(14, SIDE - 14), size=15)

    def tell(self, state: CrosscheckState) -> str:
        """List the fields of both pages."""
        rows = zip(state.fields, state.right, state.copied, strict=True)
        return "\n".join(f"{name}: {one} on the form, {two} on the copy" for name, one, two in rows)

    def act(self, state: CrosscheckState, action: str) -> Outcome[CrosscheckState]:
        """Change a field of the copy."""
        field, colon, value = (part.strip() for part in action.partition(":"))
        if not colon or not value or len(value) > 12:
            return Outcome(state=state, error="a move is a field and a value, such as time: 12:34")
        if field.casefold() not in state.fields:
            return Outcome(state=state, text="The copy has no such field.")
        at = state.fields.index(field.casefold())
        copied = (*state.copied[:at], value, *state.copied[at + 1 :])
        return Outcome(state=replace(state, copied=copied), text="Changed.")

    def progress(self, state: CrosscheckState) -> float:
        """Return the part of the first errors that is corrected."""
        return max(0.0, 1 - len(self.plan(state)) / state.wrong)

    def plan(self, state: CrosscheckState) -> list[str]:
        """Correct each field that differs."""
        rows = zip(state.fields, state.right, state.copied, strict=True)
        return [f"{field}: {right}" for field, right, copied in rows if right != copied]

    def goal(self, state: CrosscheckState) -> CrosscheckState | None:
        """Return the corrected copy."""
        return replace(state, copied=state.right)


def _changed(rng: random.Random, value: str, shape: str) -> str:
    """Return a value with another digit in one place."""
    at = rng.choice([at for at, mark in enumerate(shape) if mark == "#"])
    digit = rng.choice([digit for digit in _DIGITS if digit != value[at]])
    return value[:at] + digit + value[at + 1 :]


def _digits(rng: random.Random, shape: str) -> str:
    """Return a text with a digit for each # of a shape."""
    return "".join(rng.choice(_DIGITS) if mark == "#" else mark for mark in shape)
