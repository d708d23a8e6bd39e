"""Rectangles of square cells: their names, their neighbours and how they are drawn."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

from envkit_visual.canvas import Box, Canvas, Color, Point, centered

Cell = tuple[int, int]
"""Row and column, from 0 at the top left."""

MOVES: Final[Mapping[str, Cell]] = MappingProxyType(
    {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
)

LIGHT: Final[Color] = (252, 252, 252)
SHADE: Final[Color] = (206, 210, 218)
DARK: Final[Color] = (98, 102, 114)

LETTERS: Final = "ABCDEFGH"
"""Names of columns."""


def moved(cell: Cell, step: Cell) -> Cell:
    """Return the cell one step away."""
    return cell[0] + step[0], cell[1] + step[1]


def cells_of(rows: int, columns: int) -> list[Cell]:
    """Return all cells, row by row."""
    return [(row, column) for row in range(rows) for column in range(columns)]


def cell_name(cell: Cell) -> str:
    """Return the name of a cell, such as B3: its column's letter and its row's number."""
    return f"{LETTERS[cell[1]]}{cell[0] + 1}"


def around(cell: Cell, rows: int, columns: int, *, diagonal: bool = False) -> list[Cell]:
    """Return the neighbours of a cell that are inside."""
    steps = [(-1, 0), (0, -1), (0, 1), (1, 0)]
    if diagonal:
        steps += [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    near = [moved(cell, step) for step in steps]
    return [(row, column) for row, column in near if 0 <= row < rows and 0 <= column < columns]


def table(words: Sequence[str], columns: int) -> str:
    """Write the words of cells, with the letters of the columns and the numbers of the rows."""
    rows = [LETTERS[:columns], *(words[at : at + columns] for at in range(0, len(words), columns))]
    wide = max(map(len, words))
    return "\n".join(
        f"{number or ' '} " + " ".join(word.ljust(wide) for word in row).rstrip()
        for number, row in enumerate(rows)
    )


class CellPen:
    """Draws square cells, as large as fits."""

    room: ClassVar[Box] = (34, 30, 404, 404)
    """Left, top, width and height of where the cells are. Labels fit beside it."""

    def __init__(self, canvas: Canvas, rows: int, columns: int, *, room: Box | None = None) -> None:
        """Place the cells.

        Args:
            canvas: Where to draw.
            rows: Number of rows.
            columns: Number of columns.
            room: Where the cells are; None is the usual place.
        """
        self.canvas, self.rows, self.columns = canvas, rows, columns
        left, top, width, height = room or self.room
        self.cell = min(height / rows, width / columns)
        self.left = left + (width - columns * self.cell) / 2
        self.top = top + (height - rows * self.cell) / 2
        self.right, self.bottom = self.corner((rows, columns))

    def corner(self, cell: Cell) -> Point:
        """Return the top left corner of a cell."""
        return self.left + cell[1] * self.cell, self.top + cell[0] * self.cell

    def center(self, cell: Cell) -> Point:
        """Return the center of a cell."""
        return self.left + (cell[1] + 0.5) * self.cell, self.top + (cell[0] + 0.5) * self.cell

    def fill(self, cell: Cell, color: Color, *, inset: float = 0, round_by: float = 0) -> None:
        """Fill a cell, or its inner part."""
        half = self.cell / 2 - inset
        self.canvas.box(*centered(*self.center(cell), half, half), fill=color, round_by=round_by)

    def grid(self, color: Color, *, rows: int = 1, columns: int = 1, width: float = 1) -> None:
        """Draw the lines between blocks of cells."""
        for row in range(0, self.rows + 1, rows):
            ends = (self.corner((row, 0)), self.corner((row, self.columns)))
            self.canvas.path(ends, color=color, width=width)
        for column in range(0, self.columns + 1, columns):
            ends = (self.corner((0, column)), self.corner((self.rows, column)))
            self.canvas.path(ends, color=color, width=width)

    def labels(self, color: Color) -> None:
        """Write the letters of the columns on top and the numbers of the rows on the left."""
        for column in range(self.columns):
            x, _ = self.center((0, column))
            self.canvas.text(x, self.top - 15, LETTERS[column], color=color, size=18)
        for row in range(self.rows):
            _, y = self.center((row, 0))
            self.canvas.text(self.left - 16, y, str(row + 1), color=color, size=18)
