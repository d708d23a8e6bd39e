"""Checks of an engine's result before it reaches the ledger.

An engine may be third-party code. Its result is read once, here. Wrong types raise an
`EngineFault`, and tokens that do not belong to the ledger a `LedgerFault`, each for one episode
only.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, Final, NoReturn, cast

import numpy as np

from envkit.errors import EngineFault, LedgerFault, shown
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation
from envkit.rollout.stopping import Decode, check_end
from envkit.trajectory.segment import LOGPROB_SLACK

MAX_EXTRAS_DEPTH: Final = 32
MAX_EXTRAS_BYTES: Final = 256 << 20
"""Routed experts of a long reply are tens of megabytes."""
_MAX_INTEGER_BITS: Final = 128
_NUMBER_BYTES: Final = 8
_PLAIN_TYPES: Final = frozenset({bool, float, type(None)})
_MOST: Final = 1 << 62
"""Exclusive upper bound of counts."""


def checked(
    value: object,
    request: GenerateRequest,
    *,
    engine: str,
    vocabulary_size: int | None,
    decode: Decode | None = None,
) -> tuple[Generation, int]:
    """Return an engine's result in plain Python types, and the number of clamped values.

    Log-probabilities that exceed 0 by at most `LOGPROB_SLACK` become 0.

    Args:
        value: The result of `generate`.
        request: The request that it answers.
        engine: The engine's name, for messages.
        vocabulary_size: Exclusive upper bound of ids. None for a rollout without a codec, whose
            replies are text.
        decode: As for `check_end`.

    Raises:
        EngineFault: A field has the wrong type, the extras cannot be stored, the engine returned
            text instead of ids or ids instead of text, or ids past the end of the reply.
        LedgerFault: The engine's prompt differs from the ledger's, it sampled unknown ids or media
            placeholders, or it sampled nothing without an abort.
    """
    if not isinstance(value, Generation):
        _refuse(engine, "a Generation", value)
    if vocabulary_size is None:
        return _checked_text(value, engine), 0
    if value.text is not None:
        raise EngineFault(
            f"engine {engine!r} returned text instead of token ids: play it without a codec"
        )
    try:
        ids = _numbers(value.token_ids, operator.index, int)
    except (TypeError, ValueError, OverflowError):
        _refuse(engine, "integers as token_ids", value.token_ids)
    try:
        logprobs = _numbers(value.logprobs, _real, float)
    except (TypeError, ValueError, OverflowError):
        _refuse(engine, "numbers as logprobs", value.logprobs)
    finish_reason = _finish_reason(value.finish_reason, engine)
    prompt_tokens = value.prompt_tokens
    if prompt_tokens is not None:
        prompt_tokens = _count(prompt_tokens, "prompt_tokens", engine)
    _check_prompt(prompt_tokens, request, len(ids), is_aborted=finish_reason is FinishReason.ABORT)
    _check_ids(ids, request, vocabulary_size)
    check_end(ids, request.sampling, engine=engine, decode=decode)
    clamped = _check_logprobs(ids, logprobs)
    generation = Generation(
        token_ids=ids,
        logprobs=tuple([min(value, 0.0) for value in logprobs]) if clamped else logprobs,
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        cached_tokens=_count(value.cached_tokens, "cached_tokens", engine),
        weight_version=_weight_version(value.weight_version, engine),
        queue_seconds=_seconds(value.queue_seconds, engine),
        top_logprobs=_top_logprobs(value.top_logprobs, request, len(ids), engine),
        extras=_extras(value.extras, engine),
    )
    return generation, clamped


def _checked_text(value: Generation, engine: str) -> Generation:
    """Return a text reply in plain types."""
    finish_reason = _finish_reason(value.finish_reason, engine)
    text: Any = value.text
    if text is None and finish_reason is not FinishReason.ABORT:
        raise EngineFault(
            f"engine {engine!r} returned no text, which a rollout without a codec needs: pass the "
            "codec of its model"
        )
    if text is not None and not isinstance(text, str):
        _refuse(engine, "a string as text", text)
    prompt_tokens = 0 if value.prompt_tokens is None else value.prompt_tokens
    return Generation(
        token_ids=(),
        logprobs=(),
        text=None if text is None else str(text),
        text_tokens=_count(value.text_tokens, "text_tokens", engine),
        finish_reason=finish_reason,
        prompt_tokens=_count(prompt_tokens, "prompt_tokens", engine),
        cached_tokens=_count(value.cached_tokens, "cached_tokens", engine),
        weight_version=_weight_version(value.weight_version, engine),
        queue_seconds=_seconds(value.queue_seconds, engine),
        extras=_extras(value.extras, engine),
    )


def _numbers(value: object, read: Callable[[Any], Any], kind: type) -> tuple[Any, ...]:
    """Return a column as a tuple of plain numbers.

    Raises:
        TypeError: It is not a sequence of such numbers.
    """
    # `tolist` converts at C's speed what iterating would return as NumPy scalars.
    if isinstance(value, np.ndarray):
        value = value.tolist()
    # Iterables, but not columns: a set has lost the order, a mapping would give its keys.
    if isinstance(value, str | bytes | bytearray | Mapping | set | frozenset):
        raise TypeError
    column = tuple(cast("Iterable[Any]", value))
    kinds = set(map(type, column))
    # A column of plain numbers, the usual case, needs no Python call per token.
    if kinds == {kind}:
        return column
    # `operator.index` accepts a bool, which no engine means as a token.
    if any(issubclass(one, bool | np.bool_ | str | bytes) for one in kinds):
        raise TypeError
    return tuple(map(read, column))


def _real(value: Any) -> float:  # noqa: ANN401  # foreign data
    if not isinstance(value, Real) and not hasattr(value, "item"):  # a tensor of one number
        raise TypeError
    return float(cast("Any", value))


def _finish_reason(value: object, engine: str) -> FinishReason:
    if isinstance(value, str):
        with suppress(ValueError):
            return FinishReason(value)
    _refuse(engine, "a FinishReason as finish_reason", value)


def _count(value: object, name: str, engine: str) -> int:
    if not isinstance(value, bool):
        with suppress(TypeError):
            count = operator.index(cast("Any", value))
            if 0 <= count < _MOST:
                return count
    _refuse(engine, f"a count as {name}", value)


def _weight_version(value: object, engine: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    _refuse(engine, "a str or None as weight_version", value)


def _seconds(value: object, engine: str) -> float:
    if not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            seconds = _real(value)
            if 0 <= seconds < math.inf:
                return seconds
    _refuse(engine, "a finite number of at least 0 as queue_seconds", value)


def _top_logprobs(
    value: object, request: GenerateRequest, count: int, engine: str
) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the most probable tokens of each position; none if the request asks for none."""
    if not request.top_logprobs:
        return ()
    try:
        rows = tuple(
            tuple((operator.index(token), _real(logprob)) for token, logprob in row)
            for row in cast("Iterable[Any]", value)
        )
    except (TypeError, ValueError, OverflowError):
        _refuse(engine, "pairs of an id and a number as top_logprobs", value)
    if len(rows) != count:
        _refuse(engine, f"top_logprobs for each of {count} tokens", value)
    return rows


def _extras(value: object, engine: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(engine, "a mapping as extras", value)
    extras = dict(cast("Mapping[str, Any]", value))
    problem = _unstorable(extras)
    if problem is not None:
        raise EngineFault(
            f"the extras of engine {engine!r} cannot be stored: {problem}. Extras are JSON data, "
            "bytes and arrays of numbers; leave out what a record does not need"
        )
    return extras


def _unstorable(extras: Mapping[str, Any]) -> str | None:
    """Return why a record cannot store the extras; None if it can. Never recurses."""
    # A list instead of recursion: extras of an engine may be nested deeper than Python's stack.
    size, todo = 0, [(cast("Any", extras), 0)]
    while todo:
        value, depth = todo.pop()
        cost, children = _weighed(value)
        if cost is None:
            return f"got {shown(value)}"
        if children and depth == MAX_EXTRAS_DEPTH:
            return f"they are nested deeper than {MAX_EXTRAS_DEPTH} levels"
        size += cost
        if size > MAX_EXTRAS_BYTES:
            return f"they are larger than {MAX_EXTRAS_BYTES >> 20} MiB"
        todo += [(child, depth + 1) for child in children]
    return None


def _weighed(value: object) -> tuple[int | None, Collection[Any]]:
    """Return a value's bytes and its elements; None for the bytes if it cannot be stored."""
    if type(value) in _PLAIN_TYPES:  # faster than trying every kind of value
        return _NUMBER_BYTES, ()
    if isinstance(value, str):
        return (len(value) if _is_text(value) else None), ()
    if isinstance(value, int):
        return (_NUMBER_BYTES if value.bit_length() <= _MAX_INTEGER_BITS else None), ()
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        is_flat = set(map(type, items)) <= _PLAIN_TYPES
        return _NUMBER_BYTES * len(items), () if is_flat else items
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        is_text = all(isinstance(key, str) and _is_text(key) for key in entries)
        return (sum(map(len, entries)) if is_text else None), entries.values()
    if isinstance(value, bytes | bytearray):
        return len(value), ()
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return (None if array.dtype.hasobject else array.nbytes), ()
    is_number = isinstance(value, float | np.integer | np.floating | np.bool_)
    return (_NUMBER_BYTES if is_number else None), ()


def _is_text(value: str) -> bool:
    """Return whether text can be written to a file, which a lone surrogate cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_prompt(
    found: int | None, request: GenerateRequest, count: int, *, is_aborted: bool
) -> None:
    if found != request.train_length and not (is_aborted and found is None):
        raise LedgerFault(
            f"the engine saw a prompt of {found} tokens, but the ledger has "
            f"{request.train_length}: images were dropped or placeholders expanded differently; "
            "check that engine and codec use the same processor settings"
        )
    if not count and not is_aborted:
        raise LedgerFault("the engine returned no token and no abort")


def _check_ids(ids: Sequence[int], request: GenerateRequest, vocabulary_size: int) -> None:
    if ids:
        extreme = min(ids) if min(ids) < 0 else max(ids)
        if not 0 <= extreme < vocabulary_size:
            raise LedgerFault(
                f"sampled ids must be at least 0 and below {vocabulary_size}, got "
                f"{shown(extreme)}; does the codec use the tokenizer of the served model?"
            )
    banned = set(request.sampling.banned_ids)
    if not banned.isdisjoint(ids):
        raise LedgerFault(
            f"the engine sampled media placeholders {sorted(banned.intersection(ids))}, which have "
            "no image; it must ban them"
        )


def _check_logprobs(ids: Sequence[int], logprobs: Sequence[float]) -> int:
    """Check that each token has one value; return how many exceed 0 by a rounding error."""
    if len(ids) != len(logprobs):
        raise LedgerFault(
            "an engine must return one log-probability for each token, got "
            f"{len(ids)} ids and {len(logprobs)} log-probabilities"
        )
    highest = max(logprobs, default=0.0)
    if not all(map(math.isfinite, logprobs)) or highest > LOGPROB_SLACK:
        bad = next(one for one in logprobs if not -math.inf < one <= LOGPROB_SLACK)
        raise LedgerFault(
            "log-probabilities of sampled tokens are finite and at most 0 (rounding of up to "
            f"{LOGPROB_SLACK:g} above it is clamped), got {bad!r}"
        )
    return sum(value > 0.0 for value in logprobs) if highest > 0.0 else 0


def _refuse(engine: str, wanted: str, got: object) -> NoReturn:
    raise EngineFault(f"engine {engine!r} must return {wanted}, got {shown(got)}")
