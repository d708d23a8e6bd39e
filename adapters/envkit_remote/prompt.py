"""Check a prompt before sending, and against the server's account of it."""

import reprlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from envkit.errors import EngineFault, LedgerFault


def check_range(ids: NDArray[np.intc], vocabulary_size: int | None) -> None:
    """Reject ids that kill a server: one outside the vocabulary ends SGLang's scheduler.

    Args:
        ids: Wire ids.
        vocabulary_size: Ids must be below it; None checks the lower bound only.

    Raises:
        LedgerFault: No ids, or an id out of range.
    """
    if not ids.size:
        raise LedgerFault("a request needs at least one token id, got none")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocabulary_size is not None and high >= vocabulary_size):
        bound = "" if vocabulary_size is None else f" and below {vocabulary_size}"
        raise LedgerFault(
            f"token ids must be at least 0{bound}, got {low if low < 0 else high}; does the codec "
            "use the tokenizer of the served model?"
        )


def check_placeholders(placeholders: int, images: int, image_token_id: int) -> None:
    """Reject ids with another number of placeholders than images.

    SGLang drops a surplus image and vLLM embeds a surplus placeholder as a word, both silently.

    Raises:
        LedgerFault: The numbers differ.
    """
    if placeholders != images:
        raise LedgerFault(
            f"wire ids must hold one placeholder ({image_token_id}) per image, got {placeholders} "
            f"placeholders and {images} images; send wire ids, not the expanded train ids"
        )


def clamp_new_tokens(requested: int, *, prompt_length: int, context_length: int | None) -> int:
    """Return how many tokens may be sampled without the server rejecting the request.

    Args:
        requested: Tokens requested by the sampling.
        prompt_length: Length of the prompt, images expanded.
        context_length: The server's bound on prompt plus new tokens; None is unknown.

    Raises:
        EngineFault: The prompt leaves no room for a token.
    """
    if context_length is None:
        return requested
    room = context_length - prompt_length
    if room < 1:
        raise EngineFault(
            f"the prompt has {prompt_length} tokens, which leaves no room in the server's "
            f"context of {context_length}; set Limits(max_context_tokens={context_length}) "
            "or start the "
            "server with a longer context"
        )
    return min(requested, room)


def check_length(prompt_tokens: int | None, train_length: int) -> None:
    """Compare the length of the prompt that the server saw with the ledger's.

    Args:
        prompt_tokens: The server's count, images expanded; None if it did not get that far.
        train_length: The ledger's count.

    Raises:
        LedgerFault: They differ.
    """
    if prompt_tokens is not None and prompt_tokens != train_length:
        raise LedgerFault(
            f"the server saw a prompt of {prompt_tokens} tokens, the ledger has {train_length}; "
            "image size limits must equal those of the server's processor, and the server must "
            "take ids without re-tokenising them"
        )


def check_prompt_ids(
    theirs: Any,  # noqa: ANN401  # whatever JSON holds
    wire_ids: Sequence[int],
    *,
    image_token_id: int | None,
    hint: str,
) -> bool:
    """Compare the prompt that the server used with ours, token by token.

    Runs of placeholders count as one on both sides, since the server's are expanded. If the
    placeholder is unknown, every run counts as one; `prompt_tokens` checks the length elsewhere.

    Args:
        theirs: The prompt returned by the server, if any.
        wire_ids: The ids that were sent.
        image_token_id: The placeholder; None is unknown.
        hint: What makes such a server change a prompt.

    Returns:
        False if there is nothing to compare: an older server, or an aborted request.

    Raises:
        LedgerFault: They differ.
    """
    if not isinstance(theirs, list):
        return False
    expected = _collapsed(wire_ids, image_token_id)
    found = _collapsed(cast("list[int]", theirs), image_token_id)
    if expected != found:
        first = next(
            (index for index, pair in enumerate(zip(expected, found, strict=False))
             if pair[0] != pair[1]),
            min(len(expected), len(found)),
        )  # fmt: skip
        raise LedgerFault(
            f"the server changed the prompt at token {first}: sent {expected[first : first + 8]}, "
            f"it used {reprlib.repr(found[first : first + 8])}; {hint}"
        )
    return True


def _collapsed(ids: Sequence[int], image_token_id: int | None) -> list[int]:
    runs: list[int] = []
    for token, run in groupby(ids):
        runs.extend([token] if image_token_id in (None, token) else run)
    return runs
