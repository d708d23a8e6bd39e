"""The domain graphs: networks, cables, trees, charts and circuits to trace."""

from envkit_visual.graphs.diagrams import Family, Flow, Gates
from envkit_visual.graphs.networks import Colour, Metro, Route, Tree, Wires

WORLDS = (Route, Wires, Tree, Colour, Metro, Flow, Gates, Family)
