"""Episodes as data for the front end: the words of `envkit view`, and every token of a turn."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

from envkit.text import utf8
from envkit.tokens import ChatCodec
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer import turn_text
from envkit.viewer.conversation import conversation
from envkit.viewer.episodes import episode
from envkit.viewer.run import RunSource, Source
from envkit.viewer.sequences import sequences
from envkit.viewer.token_texts import TokenTexts
from envkit.viewer.wording import number
from envkit_notebook.game import Game
from envkit_notebook.widget import ImageStore

_SHORTEST_RUN: Final = 4
"""Runs of equal ids shown as one, outside replies: the placeholders of an image."""

View = dict[str, Any]
"""JSON data for the front end."""


def cleaned(data: Any) -> Any:  # noqa: ANN401  # JSON data
    """Return JSON data with texts that UTF-8 can encode."""
    if isinstance(data, str):
        return utf8(data)
    if isinstance(data, dict):
        return {key: cleaned(value) for key, value in cast("View", data).items()}
    if isinstance(data, (list, tuple)):
        return [cleaned(value) for value in cast("list[Any]", data)]
    return data


def game_view(game: Game, store: ImageStore, *, title: str) -> View:
    """Return the view of a game.

    Args:
        game: The episode so far.
        store: Keeps the images.
        title: Name of the environment.
    """
    played = Trajectory(
        episode_id=title,
        env_id=title,
        seed=game.seed,
        task={},
        reward=None,
        stop_reason=StopReason.ABORTED,
        segments=(),
        turns=tuple(game.turns),
        messages=tuple(game.messages),
    )
    view = {
        "title": f"{title}, seed {game.seed}",
        "facts": [
            f"turn {game.turn} of at most {game.max_turns}" if game.messages else "starting",
            f"reward {number(game.reward)}",
        ],
        "steps": _steps(sequences(played, conversation(played, store.keep), store.keep), store),
        "is_over": game.is_over,
        "has_oracle": game.has_oracle,
        "takes_clicks": game.takes_clicks,
        "error": None,
    }
    return cleaned(view)


def episode_view(
    trajectory: Trajectory,
    store: ImageStore,
    *,
    recorded: Certificate | None = None,
    codec: ChatCodec | None = None,
    source: Source = (),
) -> View:
    """Return the full view of a recorded episode.

    Args:
        trajectory: The episode.
        store: Keeps the images.
        recorded: The file's certificate; None for a trajectory in memory.
        codec: Shows tokens as text; None uses the texts that the run stored.
        source: Where the episode was read from; empty for a trajectory in memory.

    Raises:
        StorageError: JSON cannot represent a free-form part.
    """
    found = episode(trajectory, recorded, number=1)
    for image in found.images:
        store.keep(image)
    data = found.data
    steps = _steps(data["sequences"], store)
    token_text = None if codec is None else codec.token_text
    texts = RunSource(source).token_texts(found.token_ids, token_text)
    for turn, step in enumerate(steps):
        step["tokens"] = [_segment(one, texts) for one in trajectory.segments if one.turn == turn]
    origin, certificate = trajectory.origin, data["certificate"]
    view = {
        "title": data["title"],
        "facts": [
            *turn_text.episode_facts(data, trajectory.step_count),
            *filter(None, (texts.note,)),
        ],
        "origin": None
        if origin is None
        else f"Forked from episode {origin.episode_id} at turn {origin.turns + 1}. "
        "The turns before it belong to that episode; only it trains them.",
        "first": 0 if origin is None else origin.turns,
        "proof": {
            "seal": certificate["seal"],
            "status": certificate["status"],
            "holds": certificate["kind"] != "bad",
        },
        "problems": turn_text.warnings(data),
        "steps": steps,
    }
    return cleaned(view)


def _steps(tree: Sequence[View], store: ImageStore) -> list[View]:
    """Return one step for each turn, and a last one that may still wait for a reply."""
    steps = [
        {
            "reads": [_message(entry, store) for entry in turn["heard"]],
            "reply": turn["reply"],
            "summary": turn_text.summary(turn),
            "speaker": turn_text.speaker(turn),
            "parse_error": turn.get("parse_error"),
            "facts": turn_text.turn_facts(turn),
            "start": _start(sequence) if number and not place else None,
        }
        for number, sequence in enumerate(tree)
        for place, turn in enumerate(sequence["turns"])
    ]
    if final := tree[-1]["final"]:
        steps.append({"reads": [_message(entry, store) for entry in final], "reply": None})
    return steps


def _message(entry: View, store: ImageStore) -> View:
    """Return a message; the front end reserves the size of an image before its bytes arrive."""
    images = [[name, store.size(name)] for name in entry["images"]]
    return {**entry, "who": turn_text.role_words(entry["role"]), "images": images}


def _start(sequence: View) -> View:
    prompt = sequence["prompt"]
    saw = [] if prompt is None else list(turn_text.history_lines(prompt))
    return {"lines": turn_text.rewritten(sequence), "saw": saw}


def _segment(segment: Segment, texts: TokenTexts) -> View:
    """Return a segment's tokens as columns; equal ids in a row count as one outside replies."""
    is_reply = segment.kind is SegmentKind.MODEL
    runs = list(_runs(segment.train_ids, is_reply=is_reply))
    known = texts.texts or {}
    return {
        "kind": segment.kind.value,
        "ids": [token for token, _ in runs],
        "counts": [count for _, count in runs],
        "texts": [known.get(token) for token, _ in runs],
        "mask": list(segment.loss_mask) if is_reply else [],
        "logprobs": [round(value, 4) for value in segment.logprobs] if is_reply else [],
        "length": segment.token_count,
        "wire_length": len(segment.wire_ids),
    }


def _runs(ids: Sequence[int], *, is_reply: bool) -> Iterator[tuple[int, int]]:
    for token, group in groupby(ids):
        count = sum(1 for _ in group)
        if count >= _SHORTEST_RUN and not is_reply:
            yield token, count
        else:
            yield from ((token, 1) for _ in range(count))
