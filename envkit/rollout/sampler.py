"""Asks the engine for a reply, and accepts only an answer that belongs to the ledger."""

import asyncio
import random
import secrets
from dataclasses import replace
from typing import Final

from envkit.env import Env, PolicyContext
from envkit.errors import EngineFault, EnvkitError, LedgerFault
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, Sampling
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Room
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.seeds import derive_seed

_request_ids: Final = random.Random(secrets.randbits(128))
"""Unique among processes, and without a call to the system for every request."""


class Sampler:
    """The engine's side of one episode."""

    def __init__(self, setup: Setup, spec: EpisodeSpec, interrupt: Interrupt) -> None:
        self._setup, self._spec, self._interrupt = setup, spec, interrupt
        self._rng = random.Random(spec.episode_id)
        self._policy_seed = derive_seed(spec.seed, spec.member)
        self._base = replace(
            setup.sampling,
            stop_ids=setup.sampling.stop_ids or setup.codec.stop_ids,
            banned_ids=(*setup.sampling.banned_ids, *setup.codec.media_ids),
        )

    async def generate(
        self, draft: TurnDraft, room: Room, record: EpisodeRecord, env: Env
    ) -> Generation:
        """Sample a reply under the retry budget; failed attempts are counted in the draft.

        Raises:
            EngineFault: The budget is spent, or the fault is not retryable.
            LedgerFault: The answer does not belong to the ledger.
        """
        budget, engine = self._setup.retries, self._setup.engine
        for attempt in range(budget.max_engine_retries_per_turn + 1):
            request = self._request(draft, room, record, env)
            self._interrupt.enter(request.request_id, engine)
            try:
                generation = await engine.generate(request)
            except EngineFault as fault:
                last = attempt == budget.max_engine_retries_per_turn
                if not fault.retryable or last or self._interrupt.reason is not None:
                    raise
                draft.engine_retries += 1
                await asyncio.sleep(budget.backoff.delay(attempt, self._rng))
            except EnvkitError:
                raise
            except Exception as error:
                raise EngineFault(
                    f"engine {engine.name!r} failed: {type(error).__name__}: {error}"
                ) from error
            else:
                _check(generation, request)
                return generation
            finally:
                self._interrupt.leave(request.request_id)
        raise EngineFault("no attempt was made")  # the range above is never empty

    def _request(
        self, draft: TurnDraft, room: Room, record: EpisodeRecord, env: Env
    ) -> GenerateRequest:
        ledger = record.ledger
        return GenerateRequest(
            request_id=f"{_request_ids.getrandbits(128):032x}",
            session_id=self._spec.episode_id,
            wire_ids=tuple(ledger.wire_ids),
            images=tuple(ledger.images),
            features=tuple(ledger.features),
            train_length=ledger.train_length,
            sampling=self._sampling(draft, room.tokens),
            context=PolicyContext(
                env=env,
                task=record.task,
                turn=draft.turn,
                messages=record.messages,
                seed=self._policy_seed,
            ),
        )

    def _sampling(self, draft: TurnDraft, tokens: int) -> Sampling:
        base = self._base
        if base.seed is not None:
            spec = self._spec
            seed = derive_seed(base.seed, spec.seed, spec.member, draft.turn, draft.resamples)
            return replace(base, max_new_tokens=tokens, seed=seed)
        return base if base.max_new_tokens == tokens else replace(base, max_new_tokens=tokens)


def _check(generation: Generation, request: GenerateRequest) -> None:
    """Refuse an answer that does not belong to the ledger.

    Raises:
        LedgerFault: The engine saw another prompt than the ledger holds, sampled a media
            placeholder, or sampled nothing without an abort.
    """
    aborted = generation.finish_reason is FinishReason.ABORT
    if generation.prompt_tokens != request.train_length and not (
        aborted and generation.prompt_tokens is None
    ):
        raise LedgerFault(
            f"the engine saw a prompt of {generation.prompt_tokens} tokens, the ledger holds "
            f"{request.train_length}: images were dropped or placeholders expanded otherwise; "
            "check that engine and codec use the same processor settings"
        )
    if not generation.token_ids and not aborted:
        raise LedgerFault("the engine returned no token and no abort")
    banned = set(request.sampling.banned_ids).intersection(generation.token_ids)
    if banned:
        raise LedgerFault(
            f"the engine sampled media placeholders {sorted(banned)}, which have no image; "
            "it must ban them"
        )
