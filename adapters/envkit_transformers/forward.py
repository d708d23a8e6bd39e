"""One packed forward: from pieces of requests to logits.

Axes: T tokens of the packed row, A position axes, R rows of logits, V vocabulary.
"""

import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from envkit.errors import ConfigurationError
from envkit.tokens import join_features
from envkit_transformers.attention import Segment, packed_row
from envkit_transformers.kv_cache import KeyValueCache
from envkit_transformers.prompt import Ids, ImageSpan, VisionTraits

_LARGEST_DIFFERENCE: Final = {torch.float32: 1e-3, torch.float64: 1e-3}
_LARGEST_MEAN_DIFFERENCE: Final = 0.2
_LAYERS: Final = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """The next tokens of one session."""

    cache: KeyValueCache
    ids: Ids  # (n,)
    positions: Ids  # (A, n)
    spans: Sequence[ImageSpan] = ()
    """Whole images in this piece."""
    wants_logits: bool
    """The piece ends with the last known token, so a token is sampled after it."""


class PackedForward:
    """Runs a model over packed rows."""

    def __init__(self, model: Any, vision: VisionTraits | None) -> None:  # noqa: ANN401
        self._model = model
        self._vision = vision
        self.device: torch.device = model.device
        layers: Any = getattr(model.config.get_text_config(), "layer_types", None)
        kinds: set[str] = set(layers or ())
        if not kinds <= _LAYERS:
            raise ConfigurationError(
                f"the embedded engine runs models whose layers all attend, got {sorted(kinds)} "
                f"in {type(model).__name__}; serve the model with SGLang or vLLM"
            )
        names = inspect.signature(model.forward).parameters
        if "logits_to_keep" not in names or "position_ids" not in names:
            raise ConfigurationError(
                f"{type(model).__name__} accepts no position_ids or logits_to_keep, which the "
                "embedded engine needs; serve the model with SGLang or vLLM"
            )

    @torch.inference_mode()
    def run(self, pieces: Sequence[Piece]) -> Tensor:
        """Return the logits (R, V) of the pieces that need them, and extend the caches."""
        ends = np.cumsum([len(piece.ids) for piece in pieces])
        segments = [
            Segment(piece.cache, int(end) - len(piece.ids), int(end))
            for piece, end in zip(pieces, ends, strict=True)
        ]
        wanted = [
            segment.stop - 1
            for segment, piece in zip(segments, pieces, strict=True)
            if piece.wants_logits
        ]
        arguments = self._arguments(pieces)
        arguments["logits_to_keep"] = torch.tensor(wanted, dtype=torch.long, device=self.device)
        with packed_row(segments):
            logits: Tensor = self._model(use_cache=False, **arguments).logits[0]
        for piece in pieces:
            piece.cache.advance(len(piece.ids))
        return logits

    def _arguments(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        ids = np.concatenate([piece.ids for piece in pieces])
        positions = torch.from_numpy(np.concatenate([piece.positions for piece in pieces], axis=1))
        positions = positions.to(self.device)
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(ids)[None].to(self.device),
            # A three-axis position has a batch axis in the middle; a text one starts with it.
            "position_ids": positions if self._vision is None else positions[:, None],
        }
        spans = [span for piece in pieces for span in piece.spans]
        if spans:
            joined = join_features(span.features for span in spans)
            for name in ("pixel_values", "image_grid_thw"):
                arguments[name] = torch.from_numpy(np.asarray(joined[name])).to(self.device)
        return arguments

    def check(self, vocabulary: int) -> int:
        """Compare packed rows with the model's own forward; return the cache's bytes per token.

        Two short sequences are prefilled together, one of them in two parts, then extended by one
        token each. A model with its own attention, or with state outside the cache, differs.

        Raises:
            ConfigurationError: The model's packed forward is not its own forward.
        """
        numbers = random.Random(0)
        sequences = [
            np.array([numbers.randrange(vocabulary) for _ in range(count)], dtype=np.int64)
            for count in (9, 6)
        ]
        if self._vision is not None:
            for sequence in sequences:
                sequence[np.isin(sequence, self._vision.placeholder_ids)] = 0
        caches = [KeyValueCache() for _ in sequences]
        for start, stop in ((0, 4), (4, -1), (-1, None)):
            pieces = [
                self._text_piece(cache, sequence, range(len(sequence))[start:stop])
                for cache, sequence in zip(caches, sequences, strict=True)
            ]
            logits = self.run(pieces)
        for row, sequence in enumerate(sequences):
            whole = self._text_piece(caches[row], sequence, range(len(sequence)))
            self._compare(logits[row], self._plain_logits(whole))
        return caches[0].bytes_per_token

    def _text_piece(self, cache: KeyValueCache, sequence: Ids, columns: range) -> Piece:
        axes = 1 if self._vision is None else 3
        return Piece(
            cache=cache,
            ids=sequence[columns.start : columns.stop],
            positions=np.tile(np.arange(columns.start, columns.stop, dtype=np.int64), (axes, 1)),
            wants_logits=True,
        )

    @torch.inference_mode()
    def _plain_logits(self, piece: Piece) -> Tensor:
        return self._model(use_cache=False, **self._arguments([piece])).logits[0, -1]

    def _compare(self, packed: Tensor, plain: Tensor) -> None:
        difference = (packed.float().log_softmax(-1) - plain.float().log_softmax(-1)).abs()
        limit = _LARGEST_DIFFERENCE.get(packed.dtype)
        found = float(difference.mean() if limit is None else difference.max())
        limit = _LARGEST_MEAN_DIFFERENCE if limit is None else limit
        if not found <= limit:
            raise ConfigurationError(
                f"the embedded engine cannot run {type(self._model).__name__}: log-probabilities "
                f"of a packed forward differ from the model's own by {found:.2g} (at most {limit} "
                "is rounding). Serve it with SGLang or vLLM"
            )
