"""The environment's messages of one episode, as token ids that extend its ledger."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from envkit.messages import Message, images_of, message, text_of
from envkit.reply import Reply
from envkit.rollout.limits import observation_stop
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.threads.pool import WorkerPool
from envkit.tokens.codec import ChatCodec
from envkit.tokens.encoded import Encoded
from envkit.tokens.incoming import AfterReply
from envkit.tokens.thoughts import TAIL_IDS, closing_of, opened_thought
from envkit.trajectory.segment import Segment
from envkit.trajectory.stop import StopReason

_INLINE_CHARACTERS: Final = 20_000
"""Text up to this length is tokenized on the event loop, in about 5 ms. Longer text, and every
image whose pixels still need processing, goes to a worker thread, because nothing may block the
loop for longer than 50 ms."""


class EpisodeEncoder:
    """Encodes one episode's messages with the rollout's codec."""

    def __init__(
        self,
        setup: Setup,
        codec: ChatCodec,
        spec: EpisodeSpec,
        pool: WorkerPool,
        record: EpisodeRecord,
    ) -> None:
        self._setup, self._codec, self._spec, self._pool = setup, codec, spec, pool
        self._record = record

    def decode(self, turn: int) -> str:
        """Return the text of a turn's sampled ids."""
        return self._codec.decode(self._record.ledger.reply_ids(turn))

    def opened(self, turn: int) -> str | None:
        """Return the mark with which the context of a turn's reply opened a thought, or None."""
        return opened_thought(self._codec, self._record.ledger.before_reply(turn, TAIL_IDS))

    def closing(self, turn: int) -> str:
        """Return the text that closes the thought in which a turn's reply was cut, or ""."""
        ids = self._record.ledger.reply_ids(turn)
        if not ids or ids[-1] in self._codec.stop_ids:
            return ""  # nothing can stand between a stop token and the next message
        text = self._codec.decode(ids)
        return closing_of(self._codec, Reply(text=text, opened=self.opened(turn) or ""))

    def close_thought(self, turn: int) -> None:
        """Close the thought in which a turn's reply was cut, in its message."""
        closing = self.closing(turn)
        if closing:
            text = text_of(self._record.messages[-1])
            self._record.drop_message()
            self._record.say(message("assistant", text + closing))

    async def prompt(self, after_reply: AfterReply = "refuse") -> Encoded:
        """Encode all messages so far as the start of a sequence.

        Args:
            after_reply: As for `ChatCodec.encode_prompt`.
        """
        return await self._encode(self._record.view, lambda: self._prompt(after_reply))

    async def observation(self, pending: tuple[Message, ...]) -> Encoded:
        """Encode the pending messages as a continuation of the ledger, or as a new prompt."""
        return await self._encode(pending, lambda: self._delta(pending))

    async def with_features(self, segments: Sequence[Segment]) -> list[Segment]:
        """Recompute the processor's outputs that a file did not store."""
        codec, whole = self._codec, list(segments)
        for index, segment in enumerate(whole):
            if segment.images and not segment.features:
                images = segment.images
                features = await self._pool.computing.run(
                    lambda images=images: codec.image_features(images)
                )
                whole[index] = replace(segment, features=features)
        return whole

    async def check(self, pending: tuple[Message, ...], encoded: Encoded) -> None:
        """Compare the tokens to append with a full render, if the self-check draws them.

        Raises:
            LedgerFault: The ids differ.
        """
        setup, spec, ledger = self._setup, self._spec, self._record.ledger
        turn = ledger.segments[-1].turn
        if encoded.is_prompt or not setup.self_check.draws(
            spec.env_id, spec.episode_id, turn, length=ledger.wire_length
        ):
            return
        context, codec = self._context(pending), self._codec
        # A full render does not have the tokens that close the thought of a cut reply.
        closed = len(codec.encode_text(self.closing(turn)))
        rest = replace(
            encoded, wire_ids=encoded.wire_ids[closed:], train_ids=encoded.train_ids[closed:]
        )
        report = await self._pool.computing.run(
            lambda: codec.check_observation(pending, rest, **context)
        )
        self._record.note_sanity(report.status)
        setup.self_check.judge(report)

    def overshoot(self, encoded: Encoded) -> StopReason | None:
        """Return why an observation must not be appended, or None."""
        ledger, added, images = self._record.ledger, len(encoded.train_ids), len(encoded.images)
        starts_anew = encoded.is_prompt
        return observation_stop(
            self._setup.limits,
            response_tokens=ledger.response_tokens + (0 if starts_anew else added),
            context_tokens=added + (0 if starts_anew else ledger.train_length),
            images=images + (0 if starts_anew else len(ledger.images)),
        )

    def space(self, encoded: Encoded, tokens: int) -> int:
        """Return the maximum tokens of an observation, leaving one for the reply.

        Args:
            encoded: Contains the observation.
            tokens: How many of its tokens are the observation's.
        """
        limits, ledger = self._setup.limits, self._record.ledger
        others = len(encoded.train_ids) - tokens
        used = [(limits.max_context_tokens, others)]
        if not encoded.is_prompt:  # a prompt does not count as a response
            used = [
                (limits.max_context_tokens, others + ledger.train_length),
                (limits.max_response_tokens, others + ledger.response_tokens),
            ]
        bounds = [bound - count - 1 for bound, count in used if bound is not None]
        return max(0, min(bounds, default=sys.maxsize))

    def _prompt(self, after_reply: AfterReply = "refuse") -> Encoded:
        record = self._record
        return self._codec.encode_prompt(record.view, tools=record.tools, after_reply=after_reply)

    def _delta(self, pending: tuple[Message, ...]) -> Encoded:
        """Encode an observation as a continuation of the ledger, or as a new prompt."""
        ledger, codec = self._record.ledger, self._codec
        # The template decides how the history looks. If that still begins with the ledger, the rest
        # is the delta; otherwise a new sequence starts.
        if codec.history == "rerender" and codec.rewrites_history:
            whole = self._prompt()
            sent = tuple(ledger.wire_ids)
            length = len(sent)
            if whole.wire_ids[:length] != sent:
                return replace(whole, is_prompt=True)
            known = len(ledger.images)
            return Encoded(
                wire_ids=whole.wire_ids[length:],
                train_ids=whole.train_ids[ledger.train_length :],
                images=whole.images[known:],
                features=whole.features[known:],
            )
        encoded = codec.encode_observation(
            pending, **self._context(pending), previous_images=len(ledger.images)
        )
        text = self.closing(ledger.segments[-1].turn)
        if not text:
            return encoded
        closing = tuple(codec.encode_text(text))
        return replace(
            encoded,
            wire_ids=(*closing, *encoded.wire_ids),
            train_ids=(*closing, *encoded.train_ids),
        )

    def _context(self, pending: tuple[Message, ...]) -> dict[str, Any]:
        """Return the codec's arguments about the conversation before an observation."""
        ledger = self._record.ledger
        return {
            "sampled_ids": ledger.reply_ids(ledger.segments[-1].turn),
            "history": self._record.view[: -len(pending)],
            "tools": self._record.tools,
        }

    async def _encode(self, messages: Sequence[Message], encode: Callable[[], Encoded]) -> Encoded:
        """Encode on this thread if it is quick, else on a worker thread."""
        light = sum(len(text_of(entry)) for entry in messages) <= _INLINE_CHARACTERS
        images = images_of(messages)
        if light and (not images or self._codec.is_quick(images)):
            return encode()

        def work() -> Encoded:
            encoded = encode()
            for image in encoded.images:
                image.encoded(image.file_format)  # for the record; too slow for the event loop
            return encoded

        return await self._pool.computing.run(work)
