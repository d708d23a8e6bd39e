"""The families of generated problems: name -> the function that drafts one.

A family draws its numbers with `draft.rng`, sets `draft.key`, and follows `draft.level`:
1 one fact; 2 the same with an algebra label; 3 two facts in a chain; 4 like 3, with distractors and
givens moved between figure and text by `envkit_geo3k.source`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from envkit_geo3k.draft import Draft
from envkit_geo3k.families import (
    areas,
    chords,
    circle_angles,
    coordinates,
    parallels,
    quadrilaterals,
    right_triangles,
    similarity,
    triangles,
)

Family = Callable[[Draft], None]

FAMILIES: Final[Mapping[str, Family]] = {
    "altitude_to_hypotenuse": right_triangles.altitude_to_hypotenuse,
    "angle_bisector": similarity.angle_bisector,
    "arc_and_sector": areas.arc_and_sector,
    "areas": areas.areas,
    "centroid": triangles.centroid,
    "chord_distance": chords.chord_distance,
    "coordinates": coordinates.coordinates,
    "cyclic_quadrilateral": circle_angles.cyclic_quadrilateral,
    "incenter": triangles.incenter,
    "inscribed_angle": circle_angles.inscribed_angle,
    "intersecting_chords": chords.intersecting_chords,
    "isosceles": triangles.isosceles,
    "kite": quadrilaterals.kite,
    "midsegment": similarity.midsegment,
    "parallel_lines": parallels.parallel_lines,
    "parallelogram": quadrilaterals.parallelogram,
    "polygon_angles": triangles.polygon_angles,
    "pythagoras": right_triangles.pythagoras,
    "rhombus": quadrilaterals.rhombus,
    "secants": chords.secants,
    "shaded_region": areas.shaded_region,
    "side_splitter": similarity.side_splitter,
    "sine_and_cosine_laws": triangles.sine_and_cosine_laws,
    "special_right_triangle": right_triangles.special_right_triangle,
    "tangents": circle_angles.tangents,
    "triangle_angles": triangles.triangle_angles,
    "trig_ratio": triangles.trig_ratio,
}
