"""Sample one token before a run: a wrong server would otherwise fault every episode."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout.engine import GenerateRequest, Generation, Sampling
from envkit.tokens import ChatCodec
from envkit_remote import faults
from envkit_remote.transport import Transport

_TEXT: Final = "Zürich, 東京: 12 + 30 = 42?\n\tif x != y: pass  # 🙂"
"""Text that different tokenizers split differently."""
_TIMEOUT_S: Final = 30.0


class Samples(Protocol):
    """The part of an engine that a check needs."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Free the state of an episode."""
        ...


async def check_server(
    engine: Samples, http: Transport, codec: ChatCodec, sampling: Sampling
) -> None:
    """Compare the server's tokenizer with the codec's, then sample one token.

    It sends no image: a text run may use a vision model whose server accepts none. An image that
    the server counts differently faults the first episodes, which also stops the run.

    Args:
        engine: Engine of the server.
        http: Transport to the same server.
        codec: Codec of the run.
        sampling: Sampling with a budget of one token.

    Raises:
        ConfigurationError: See the message. Nothing is raised if the server is unavailable or slow,
            since the episodes wait for it.
    """
    await _compare_tokenizers(http, codec)
    encoded = codec.encode_prompt([message("user", "Say hello.")])
    session = uuid.uuid4().hex
    try:
        await engine.generate(
            GenerateRequest(
                request_id=uuid.uuid4().hex,
                session_id=session,
                wire_ids=encoded.wire_ids,
                images=(),
                train_length=len(encoded.train_ids),
                sampling=_complete(sampling, codec),
            )
        )
    except LedgerFault as fault:
        raise ConfigurationError(
            f"the server at {http.base_url} counts a prompt differently from the codec: {fault}. "
            "Give the codec the folder of the served model"
        ) from fault
    except EngineFault as fault:
        if fault.kind is FaultKind.PERMANENT and not fault.retryable:
            raise ConfigurationError(f"the server cannot play this run: {fault}") from fault
    finally:
        await engine.end_session(session)


def _complete(sampling: Sampling, codec: ChatCodec) -> Sampling:
    return replace(
        sampling,
        stop_ids=sampling.stop_ids or tuple(codec.stop_ids),
        banned_ids=sampling.banned_ids or tuple(codec.media_ids),
    )


async def _compare_tokenizers(http: Transport, codec: ChatCodec) -> None:
    """Compare the server's tokenization of a text; skip servers without such a route.

    Raises:
        ConfigurationError: Its ids differ from the codec's.
    """
    ours = codec.encode_text(_TEXT)
    theirs = await _tokenised(http, _TEXT)
    if theirs is not None and list(theirs) != list(ours):
        raise ConfigurationError(
            f"the server at {http.base_url} serves a model with another tokenizer: it makes "
            f"{theirs[:8]} of {_TEXT[:12]!r}, the codec {list(ours)[:8]}. Give --model (or the "
            "codec) the folder of the served model"
        )


async def _tokenised(http: Transport, text: str) -> Sequence[int] | None:
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    with suppress(TimeoutError, EngineFault, *faults.CONNECTION_ERRORS):
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await http.post("/tokenize", body, is_control=True)
        if answer.status == 200:
            with suppress(ValueError, TypeError, LookupError, RecursionError):
                return [int(token) for token in json.loads(answer.body)["tokens"]]
    return None
