"""The ids of each conversation as JSON, which a request extends by what is new in it."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from envkit import fast_json
from envkit.errors import LedgerFault
from envkit_remote.prompt import check_range

_KEPT_BYTES: Final = 64 << 20
"""Ids and their JSON that are kept for the next requests: 800 conversations of 8,000 tokens."""
_ITEM_BYTES: Final = array("i").itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIds:
    """The wire ids of a request."""

    ids: bytes
    """As C integers."""
    json: bytes
    """As a JSON list."""

    def __len__(self) -> int:
        return len(self.ids) // _ITEM_BYTES

    def count(self, token: int) -> int:
        """Return how often an id occurs."""
        return int(np.count_nonzero(np.frombuffer(self.ids, dtype=np.intc) == token))


class Conversations:
    """The ids that each conversation has sent, so that its next request encodes only new ones."""

    def __init__(self, vocabulary_size: int | None, *, kept_bytes: int = _KEPT_BYTES) -> None:
        """Begin without conversations.

        Args:
            vocabulary_size: Ids must be below it; None checks the lower bound only.
            kept_bytes: Bound on what is kept. The conversation unused for longest is forgotten
                first, and encodes all of its ids again.
        """
        self._vocabulary_size = vocabulary_size
        self._kept: OrderedDict[str, PromptIds] = OrderedDict()
        self._room = kept_bytes

    def prompt(self, name: str | None, ids: Sequence[int]) -> PromptIds:
        """Return the ids of a request, checked.

        Args:
            name: The conversation; None keeps nothing.
            ids: Wire ids.

        Raises:
            LedgerFault: There are none, or one is out of range.
        """
        raw = _integers(ids).tobytes()
        known = None if name is None else self._kept.get(name)
        start = len(known.ids) if known is not None and raw.startswith(known.ids) else 0
        new = np.frombuffer(raw, dtype=np.intc, offset=start)
        if known is not None and name is not None and start and not new.size:
            self._kept.move_to_end(name)
            return known
        check_range(new, self._vocabulary_size)
        text = fast_json.dumps(new.tolist())
        if known is not None and start:
            text = b"%b,%b" % (known.json[:-1], text[1:])
        prompt = PromptIds(ids=raw, json=text)
        if name is not None:
            self.forget(name)
            self._keep(name, prompt)
        return prompt

    def forget(self, name: str) -> None:
        """Free what is kept of a conversation."""
        known = self._kept.pop(name, None)
        if known is not None:
            self._room += _size(known)

    def _keep(self, name: str, prompt: PromptIds) -> None:
        self._kept[name] = prompt
        self._room -= _size(prompt)
        while self._room < 0:
            self.forget(next(iter(self._kept)))


def _integers(ids: Sequence[int]) -> "array[int]":
    if isinstance(ids, array) and ids.typecode == "i":
        return ids
    try:
        return array("i", ids)
    except OverflowError as error:
        raise LedgerFault(f"token ids must be 32-bit integers, got {max(ids, key=abs)}") from error


def _size(prompt: PromptIds) -> int:
    return len(prompt.ids) + len(prompt.json)
