"""The domain scenes: scattered objects, cards, cups and blocks."""

from envkit_visual.scenes.memory import Pairs, Shells
from envkit_visual.scenes.puzzles import Matrix, Stack
from envkit_visual.scenes.scattered import Click, Count, MarkWorld, Relate

WORLDS = (Count, Click, Relate, MarkWorld, Pairs, Shells, Stack, Matrix)
