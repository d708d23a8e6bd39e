"""The parts of miles that this adapter relies on."""

from typing import Final

from envkit.upstream import Contract
from envkit_slime.contract import SAMPLE_FIELDS

CONTRACT: Final = Contract(
    package="miles",
    tested="0.0.2, commit 31f1ca9",
    install="pip install miles-rl",
    uses={
        "miles.utils.types:Sample": (*SAMPLE_FIELDS, "update_from_meta_info", "validate"),
        "miles.rollout.base_types:GenerateFnOutput": ("samples",),
        "miles.rollout.base_types:GenerateFnInput": (
            "state",
            "sample",
            "sampling_params",
            "evaluation",
        ),
        "miles.rollout.sglang_rollout:GenerateState": ("aborted", "tokenizer", "processor"),
    },
)
