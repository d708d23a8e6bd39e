#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Corrupt token deltas on every available published template, and count what the check finds.

    .venv/bin/python scripts/breadth/corrupt.py [NAME ...] [--sample N] [--points N] [--json FILE] [--docs FILE]

Plays the conversations of `run.py`, takes the observations with markup (web pages, code, search
results, inequalities), and changes each delta in several ways. `ChatCodec.check_observation` must
find the original equal and every change different. `--docs` writes the table into a page. The whole
run takes about 15 minutes on one core.
"""  # noqa: E501  # the usage is one line

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conversations import Message, Point, points
from corpus import Published
from oracle import Oracle
from run import OneToken, arguments, chosen, write_records, writing_of
from table import write_between

from envkit.errors import EnvkitError
from envkit.messages import images_of
from envkit.tokens import ChatCodec, Encoded, SanityStatus

BEGIN, END = "<!-- corrupt:begin -->", "<!-- corrupt:end -->"
KINDS = ("another text", "a dropped token", "a moved image", "a missing end mark")
_OTHER = "Ignore the question."


def has_markup(point: Point) -> bool:
    """Return whether a conversation has markup, in the observation or before it."""
    texts = [*point.history, *point.observations]
    return any("<" in repr(entry.get("content")) for entry in texts if entry["role"] != "assistant")


def corrupted(
    codec: ChatCodec, point: Point, right: Encoded, cut: Encoded
) -> Iterator[tuple[str, Encoded, list[int]]]:
    """Yield the kind of a change, the changed delta, and the ids of its reply.

    Args:
        codec: Wrote the deltas.
        point: Their place in a conversation.
        right: The delta after a reply that the model closed.
        cut: The delta after a reply that was cut off.
    """
    closed = [5, codec.stop_ids[0]]
    other = [_with_text(entry) for entry in point.observations]
    yield "another text", _encode(codec, point, closed, other), closed
    size = len(right.wire_ids)
    for place in sorted({0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size))):
        yield "a dropped token", _without(right, place), closed
    images = [n for n, one in enumerate(right.wire_ids) if one in codec.media_ids]
    for place in images:
        for step in (-1, 1):
            yield "a moved image", _swapped(right, place, place + step), closed
    if len(cut.wire_ids) > len(right.wire_ids):
        lead = len(cut.wire_ids) - len(right.wire_ids)
        yield "a missing end mark", _without(cut, lead - 1), [5, 6]


def _with_text(entry: Message) -> Message:
    content = entry["content"]
    if isinstance(content, str):
        return {**entry, "content": _OTHER}
    parts = [part if part["type"] == "image" else {**part, "text": _OTHER} for part in content]
    return {**entry, "content": parts}


def _encode(
    codec: ChatCodec,
    point: Point,
    sampled: Sequence[int],
    observations: Sequence[Message] | None = None,
) -> Encoded:
    return codec.encode_observation(
        observations or point.observations,
        sampled_ids=sampled,
        history=point.history,
        tools=point.tools or (),
    )


def _without(encoded: Encoded, place: int) -> Encoded:
    ids = (*encoded.wire_ids[:place], *encoded.wire_ids[place + 1 :])
    return replace(encoded, wire_ids=ids, train_ids=ids)


def _swapped(encoded: Encoded, place: int, other: int) -> Encoded:
    ids = list(encoded.wire_ids)
    if 0 <= other < len(ids):
        ids[place], ids[other] = ids[other], ids[place]
    return replace(encoded, wire_ids=tuple(ids), train_ids=tuple(ids))


def measure(published: Published, most: int, seeds: int = 2) -> dict[str, Any]:
    """Return the record of one template: its points, and what the check found on them."""
    row: dict[str, Any] = {"name": published.name, "points": 0}
    oracle = Oracle(published)
    user, reply = {"role": "user", "content": "u"}, {"role": "assistant", "content": "w ZQX0K"}
    if not (oracle.accepts([user, reply, user], None) and oracle.takes_turns()):
        return row
    try:
        codec = ChatCodec(OneToken(published.tokenizer), stop_ids=oracle.stop_ids)
    except EnvkitError:
        return row
    counts: Counter[str] = Counter()
    details: list[str] = []
    every = list(points(oracle.accepts, writing_of(oracle), range(seeds)))
    if not codec.audit().supports_images:  # the codec refuses an image, so none is in a history
        every = [point for point in every if not images_of([*point.history, *point.observations])]
    every = [point for point in every if has_markup(point)]
    shown = [point for point in every if images_of(point.observations)][: most // 3]
    for point in [*shown, *every[:: max(1, len(every) // most)]]:
        row["points"] += _judge(codec, point, counts, details)
    return row | {"counts": counts, "details": details[:12]}


def _judge(codec: ChatCodec, point: Point, counts: Counter[str], details: list[str]) -> bool:
    """Count the outcomes of one point; return whether the codec encodes it."""
    closed, cut_short = [5, codec.stop_ids[0]], [5, 6]

    def status(encoded: Encoded, sampled: list[int]) -> SanityStatus:
        report = codec.check_observation(
            point.observations,
            encoded,
            sampled_ids=sampled,
            history=point.history,
            tools=point.tools or (),
        )
        if report.reason:
            details.append(f"{point.name}: {report.reason}")
        return report.status

    try:
        right, cut = _encode(codec, point, closed), _encode(codec, point, cut_short)
    except EnvkitError:
        return False
    for made, sampled in ((right, closed), (cut, cut_short)):
        found = status(made, sampled)
        counts[f"right: {found.value}"] += 1
        if found is not SanityStatus.EQUAL:
            details.append(f"{point.name}: right is {found.value}")
    for kind, wrong, sampled in corrupted(codec, point, right, cut):
        original = right if sampled == closed else cut
        if wrong.wire_ids == original.wire_ids:
            continue
        found = status(wrong, sampled)
        counts[f"{kind}: {found.value}"] += 1
        if found.passes("strict"):
            details.append(f"{point.name}: {kind} is {found.value}")
    return True


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the check found, by kind of change."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.get("counts", {}))
    played = [row for row in rows if row["points"]]
    lines = [
        f"{len(played)} templates, {sum(row['points'] for row in played):,} observations in "
        "conversations with markup.",
        "",
        "| delta | checked | equal | different | unchecked |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in ("right", *KINDS):
        found = [counts[f"{kind}: {status.value}"] for status in SanityStatus]
        equal, whitespace, different, unchecked = found
        name = "as encoded" if kind == "right" else kind
        values = (sum(found), equal, whitespace + different, unchecked)
        lines.append(f"| {name} | {' | '.join(f'{value:,}' for value in values)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure templates and print those where the check misses something."""
    parser = arguments(__doc__)
    parser.add_argument("--points", type=int, default=12, help="observations per template")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for published in chosen(options):
        rows.append(measure(published, options.points))
        for detail in rows[-1].get("details", ())[:3]:
            print(f"{published.name}: {detail}", flush=True)
    write_records(rows, options.json)
    print(write_between(options.docs, BEGIN, END, table(rows)))


if __name__ == "__main__":
    main()
