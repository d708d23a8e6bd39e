"""`envkit audit`: check a model's chat template, and measure the cost of observations."""

from typing import Annotated

import typer

from envkit.cli.console import say, say_json
from envkit.cli.options import AsJson


def audit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="As --model of rollout; loads only its tokenizer and processor."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check incremental tokenization against the full chat template, and explain the result.

    The exit code is 1 if user messages cannot be made exact.
    """
    from envkit.builtin_models import model_source
    from envkit.tokens import load_codec
    from envkit.tokens.audit_page import audit_json, audit_page, describe_join, measure_cost

    codec = load_codec(model_source(model))
    verdict, costs, join = codec.audit(), measure_cost(codec), describe_join(codec)
    if as_json:
        say_json(audit_json(verdict, costs, join))
        return
    for line in audit_page(verdict, costs, join):
        say(line)
