"""The domain boards: puzzles and games with pieces."""

from envkit_visual.boards.fields import Lights, Mines, Pegs
from envkit_visual.boards.pieces import Four, Hanoi, Rush
from envkit_visual.boards.tiles import Slide, Sudoku

WORLDS = (Slide, Lights, Rush, Pegs, Mines, Sudoku, Hanoi, Four)
