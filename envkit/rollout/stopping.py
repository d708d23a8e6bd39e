"""Check that sampled ids end where the request said: at a stop token, a stop string, or the limit.

Some engines return what speculative decoding sampled past the end. Those ids come from a context
that no reply has, so none of them may be trained.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from envkit.errors import EngineFault
from envkit.rollout.engine import Sampling

_LEAST: Final = ("min_tokens", "min_new_tokens")
"""Keys of `Sampling.extras` with which engines take a minimum length."""

Decode = Callable[[Sequence[int]], str]


def check_end(
    ids: Sequence[int], sampling: Sampling, *, engine: str, decode: Decode | None = None
) -> None:
    """Accept ids that end at the first thing that ends a reply.

    Args:
        ids: The sampled ids.
        sampling: What was asked for. Its extras may ask to ignore stop tokens (`ignore_eos`), or
            for a minimum length, before which nothing ends the reply.
        engine: The engine's name, for messages.
        decode: Returns ids as text, special tokens included; None checks no stop strings.

    Raises:
        EngineFault: There are more ids than asked for, or ids after a stop token or after the token
            in which a stop string ends.
    """
    if len(ids) > sampling.max_new_tokens:
        raise EngineFault(
            f"engine {engine!r} must return at most max_new_tokens ids, "
            f"{sampling.max_new_tokens}, got {len(ids)}"
        )
    least = _least(sampling)
    early = first_stop(ids[max(0, least - 1) : -1], sampling)
    if early is not None:
        place = max(0, least - 1) + early
        raise EngineFault(
            f"engine {engine!r} must stop at a stop token, got {len(ids) - place - 1} ids after "
            f"the stop token {ids[place]}, which is number {place + 1} of the reply"
        )
    if sampling.stop and decode is not None and len(ids) > 1:
        text = decode(ids[least:-1])
        found = next((stop for stop in sampling.stop if stop and stop in text), None)
        if found is not None:
            raise EngineFault(
                f"engine {engine!r} must stop at the token in which a stop string ends, got ids "
                f"after {found!r}"
            )


def first_stop(ids: Sequence[int], sampling: Sampling) -> int | None:
    """Return the place of the first stop token; None without one, or if they are ignored."""
    if not sampling.stop_ids or sampling.extras.get("ignore_eos"):
        return None
    stops = frozenset(sampling.stop_ids)
    if stops.isdisjoint(ids):
        return None
    return next(place for place, one in enumerate(ids) if one in stops)


def ended(ids: Sequence[int], sampling: Sampling, decode: Decode) -> tuple[int, ...]:
    """Return ids up to the first stop token, or the token in which a stop string ends."""
    stop = first_stop(ids, sampling)
    kept = tuple(ids if stop is None else ids[: stop + 1])

    def has_stop(count: int) -> bool:
        text = decode(kept[:count])
        return any(one in text for one in sampling.stop)

    if not (sampling.stop and has_stop(len(kept))):
        return kept
    return kept[: bisect_left(range(len(kept)), True, key=has_stop)]


def _least(sampling: Sampling) -> int:
    given = [sampling.extras.get(key) for key in _LEAST]
    return max([0, *(value for value in given if type(value) is int)])
