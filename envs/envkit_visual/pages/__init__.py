"""The domain pages: printed pages, maps and cards."""

from envkit_visual.pages.papers import Crosscheck, Receipt, Table
from envkit_visual.pages.tabletop import Cards, Map

WORLDS = (Receipt, Table, Crosscheck, Map, Cards)
