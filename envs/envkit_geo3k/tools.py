"""The tools of the geometry environment, as a model sees them."""

from typing import Final

from envkit.tools import ToolSpec

CALC_SCORE: Final = ToolSpec(
    name="calc_score",
    description="Check an answer. Returns score 1 if it is correct, else 0.",
    parameters={
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "description": "The answer as a number, a fraction or a LaTeX expression.",
            }
        },
        "required": ["answer"],
    },
)

ZOOM: Final = ToolSpec(
    name="zoom",
    description="Enlarge a part of the figure. Returns a picture.",
    parameters={
        "type": "object",
        "properties": {
            "region": {
                "type": "array",
                "items": {"type": "number"},
                "minItems": 4,
                "maxItems": 4,
                "description": "left, top, right and bottom as shares of the figure, 0 to 1.",
            }
        },
        "required": ["region"],
    },
)
