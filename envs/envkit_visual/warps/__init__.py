"""The domain warps: pictures that were cut, turned, mirrored, magnified or folded."""

from envkit_visual.warps.dials import Tint, Unrotate
from envkit_visual.warps.figures import Spots, Stick
from envkit_visual.warps.solids import Cubes, FoldedSheet
from envkit_visual.warps.views import Jigsaw, Zoom

WORLDS = (Jigsaw, Unrotate, Cubes, Tint, Stick, Zoom, Spots, FoldedSheet)
