"""The domain grids: worlds of cells seen from above."""

from envkit_visual.grids.carry import DoorKey, Fetch
from envkit_visual.grids.puzzles import Lasers, Sokoban
from envkit_visual.grids.walks import FogMaze, Ice, Lake, Maze

WORLDS = (Maze, FogMaze, Lake, Ice, Sokoban, DoorKey, Fetch, Lasers)
"""Every world of the domain."""
