"""Valid trajectories without a model: a builder, and hypothesis strategies on top of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from fakes.budget import examples
from hypothesis import settings
from hypothesis import strategies as st

from envkit.errors import FaultKind
from envkit.images import Image
from envkit.messages import Message, message
from envkit.tokens import SanityStatus
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    Origin,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    TurnRecord,
)

IMAGE_TOKEN = 9_000
"""The placeholder; no other token of these trajectories has this id."""


@cache
def picture(seed: int, *, size: int = 12) -> Image:
    """Return a small image, the same one for the same seed."""
    rng = np.random.default_rng(seed)
    return Image.from_array(rng.integers(0, 256, (size, size + seed % 3, 3), dtype=np.uint8))


@dataclass(frozen=True, kw_only=True)
class Context:
    """A prompt or an observation."""

    text_ids: tuple[int, ...] = (11, 12, 13, 14)
    images: tuple[Image, ...] = ()
    expansion: int = 4
    """Placeholders of one image in train ids."""

    def wire_ids(self) -> tuple[int, ...]:
        return (*(i for _ in self.images for i in (5, IMAGE_TOKEN, 6)), *self.text_ids)

    def train_ids(self) -> tuple[int, ...]:
        one = (5, *(IMAGE_TOKEN,) * self.expansion, 6)
        return (*(i for _ in self.images for i in one), *self.text_ids)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One turn: what was sampled, and what came back."""

    ids: tuple[int, ...] = (101, 102, 103)
    logprobs: tuple[float, ...] = (-0.5, -0.01, -2.25)
    text: str = "a reply"
    reward: float | None = 0.0
    observation: Context | None = None
    """None on the last turn."""
    observation_text: str = "go on"
    finish_reason: str = "stop"
    weight_version: str | None = "7"
    tool_call: dict[str, Any] | None = None
    parse_error: str | None = None
    env_retries: dict[str, int] | None = None
    info: dict[str, Any] | None = None
    starts_sequence: bool = False
    """The observation is a new prompt: the template rewrote the history."""


def build(
    replies: Sequence[Reply],
    *,
    prompt: Context | None = None,
    stop_reason: StopReason = StopReason.TERMINATED,
    episode_id: str = "episode-0",
    fault: FaultRecord | None = None,
    **overrides: Any,
) -> Trajectory:
    """Build the trajectory that a rollout with these replies would record."""
    start = prompt or Context()
    segments = [_context(SegmentKind.PROMPT, 0, start)]
    messages: list[Message] = [message("user", "solve it", start.images)]
    turns: list[TurnRecord] = []
    length = len(start.train_ids())
    for index, reply in enumerate(replies):
        segments.append(_reply(index, reply))
        turns.append(_turn(index, reply, length))
        messages.append(message("assistant", reply.text))
        length += len(reply.ids)
        if reply.observation is not None:
            kind = SegmentKind.PROMPT if reply.starts_sequence else SegmentKind.OBSERVATION
            segments.append(_context(kind, index + 1, reply.observation))
            messages.append(message("user", reply.observation_text, reply.observation.images))
            length = (0 if reply.starts_sequence else length) + len(reply.observation.train_ids())
    unscored = stop_reason.is_fault or stop_reason is StopReason.ABORTED
    reward = None if unscored else float(sum(turn.reward or 0.0 for turn in turns))
    if stop_reason.is_fault and fault is None:
        fault = FaultRecord(
            where=FaultPlace.STEP, kind=FaultKind.TIMEOUT, message="no answer in 5 s"
        )
    values: dict[str, Any] = {
        "env_id": "fake-v0",
        "seed": 3,
        "task": {"question": "how long is AB?", "gold": 5},
        "duration_seconds": 1.5,
        "engine": "scripted",
        "initial_observation_hash": "start",
        **overrides,
    }
    return Trajectory(
        episode_id=episode_id,
        segments=tuple(segments),
        turns=tuple(turns),
        messages=tuple(messages),
        reward=reward,
        stop_reason=stop_reason,
        fault=fault,
        **values,
    )


SEEN = Context(text_ids=(21, 22))


def turns(*rewards: float | None, **changes: Any) -> Trajectory:
    """Return an episode of one sequence; the replies are 1, 2, ... tokens long."""
    last = len(rewards) - 1
    replies = [
        Reply(
            ids=tuple(range(100 * (n + 1), 101 * (n + 1))),
            logprobs=(-1.0 - n,) * (n + 1),
            reward=reward,
            observation=None if n == last else SEEN,
        )
        for n, reward in enumerate(rewards)
    ]
    return build(replies, **changes)


def example(number: int = 0, **overrides: Any) -> Trajectory:
    """Return a three-turn episode with images, a tool call, a parse error and a retry."""
    values: dict[str, Any] = {"episode_id": f"episode-{number}", **overrides}
    view = Context(images=(picture(number),))
    again = Context(images=(picture(number + 1), picture(0)), expansion=3)
    return build(
        (
            Reply(
                observation=again, tool_call={"name": "calc_score", "arguments": {"answer": "4"}}
            ),
            Reply(observation=Context(text_ids=(21, 22)), parse_error="no call found"),
            Reply(reward=1.0, env_retries={"timeout": 2}, weight_version="8"),
        ),
        prompt=view,
        **values,
    )


def with_sanity(trajectory: Trajectory, *found: SanityStatus | None) -> Trajectory:
    """Return a trajectory whose first observations were compared with a full render."""
    turns = [
        replace(turn, sanity=found[n] if n < len(found) else None)
        for n, turn in enumerate(trajectory.turns)
    ]
    return replace(trajectory, turns=tuple(turns))


def _context(kind: SegmentKind, turn: int, context: Context) -> Segment:
    train = context.train_ids()
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=context.wire_ids(),
        train_ids=train,
        loss_mask=(0,) * len(train),
        logprobs=(0.0,) * len(train),
        images=context.images,
    )


def _reply(turn: int, reply: Reply) -> Segment:
    return Segment(
        kind=SegmentKind.MODEL,
        turn=turn,
        wire_ids=reply.ids,
        train_ids=reply.ids,
        loss_mask=(1,) * len(reply.ids),
        logprobs=reply.logprobs,
        reward=reply.reward,
        weight_version=reply.weight_version,
        finish_reason=reply.finish_reason,
    )


def _turn(index: int, reply: Reply, length: int) -> TurnRecord:
    observation = reply.observation
    images = observation.images if observation is not None else ()
    return TurnRecord(
        turn=index,
        prompt_tokens=length,
        cached_tokens=length // 2,
        response_tokens=len(reply.ids),
        observation_tokens=len(observation.train_ids()) if observation is not None else 0,
        image_count=len(images),
        image_bytes=sum(len(image.png_bytes()) for image in images),
        queue_seconds=0.01,
        generate_seconds=0.2 + 0.1 * index,
        env_seconds=0.05,
        encode_seconds=0.002,
        env_retries=reply.env_retries or {},
        response_text=reply.text,
        tool_call=reply.tool_call,
        parse_error=reply.parse_error,
        reward=reply.reward,
        finish_reason=reply.finish_reason,
        weight_version=reply.weight_version,
        info={"turn": index, **(reply.info or {})},
        observation_hash=hashlib.sha256(
            reply.observation_text.encode("utf-8", "replace")
        ).hexdigest(),
    )


quick = settings(max_examples=examples(40))
"""For property tests over trajectories: drawing one takes milliseconds."""

token_ids = st.integers(0, IMAGE_TOKEN - 1)
texts = st.text(st.characters(), max_size=10)  # lone surrogates too: models emit broken text
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=3,
)
json_objects = st.dictionaries(texts, json_data, max_size=2)
pictures = st.integers(0, 5).map(picture)
contexts = st.builds(
    Context,
    text_ids=st.lists(token_ids.filter(lambda i: i not in (5, 6)), min_size=1, max_size=8).map(
        tuple
    ),
    images=st.lists(pictures, max_size=2).map(tuple),
    expansion=st.integers(1, 5),
)


@st.composite
def replies(draw: st.DrawFn, *, is_last: bool) -> Reply:
    """Draw one turn."""
    ids = tuple(draw(st.lists(token_ids, min_size=1, max_size=6)))
    logprob = st.floats(max_value=0.0, allow_infinity=False, allow_nan=False)
    return Reply(
        ids=ids,
        logprobs=tuple(draw(st.lists(logprob, min_size=len(ids), max_size=len(ids)))),
        text=draw(texts),
        reward=draw(st.floats(-10, 10)),
        observation=None if is_last else draw(contexts),
        observation_text=draw(texts),
        weight_version=draw(st.none() | st.sampled_from(("1", "2"))),
        tool_call=draw(st.none() | json_objects),
        parse_error=draw(st.none() | texts),
        env_retries=draw(st.dictionaries(st.sampled_from(("timeout", "crashed")), st.just(1))),
        starts_sequence=draw(st.sampled_from((False, False, False, True))),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Draw a sound trajectory: any number of turns, images anywhere, any ending."""
    count = draw(st.integers(1, 4))
    stop_reason = draw(
        st.sampled_from([s for s in StopReason if s is not StopReason.TURN_TOKENS]),
    )
    return build(
        [draw(replies(is_last=n == count - 1)) for n in range(count)],
        prompt=draw(contexts),
        stop_reason=stop_reason,
        episode_id=draw(texts),
        seed=draw(st.none() | st.integers(0, 2**63)),
        group_id=draw(st.none() | texts),
        task=draw(json_objects),
        reset_info=draw(json_objects),
        metadata=draw(json_objects),
        env_restarts=draw(st.integers(0, 2)),
        duration_seconds=draw(st.floats(0, 1e6)),
        env_snapshot=draw(st.none() | st.binary(max_size=20)),
    )


def leaf(
    name: str, reward: float | None, *, turns: int = 4, origin: tuple[str, int] | None = None
) -> Trajectory:
    """Return an episode of a tree that has no tokens: its reward, and what it forked from."""
    parent = (
        None
        if origin is None
        else Origin(episode_id=origin[0], segments=1, turns=origin[1], root="trunk0")
    )
    return Trajectory(
        episode_id=name,
        env_id="counter-v0",
        seed=0,
        task={},
        reward=reward,
        stop_reason=StopReason.ENV_FAULT if reward is None else StopReason.TERMINATED,
        origin=parent,
        segments=(),
        turns=tuple(TurnRecord(turn=n, prompt_tokens=1) for n in range(turns)),
        messages=(),
    )
