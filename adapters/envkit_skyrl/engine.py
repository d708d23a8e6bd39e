"""SkyRL's inference client as an envkit engine: every turn is one `generate` of one prompt.

The contract is `InferenceEngineInterface` of SkyRL 0.4.0
(skyrl/backends/skyrl_train/inference_servers/base.py): token ids in, token ids with
log-probabilities out. A single request cannot be aborted; the engine cancels it, which closes its
connection and loses its tokens so far.
"""

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import aiohttp

from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit.retry_after import UNAVAILABLE_STATUS, retry_after
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation
from envkit_skyrl.images import ImageRenderer, InferenceClient, SentImages, expand
from envkit_skyrl.sampling import to_params
from envkit_training.engine import ClientEngine

_LOG: Final = logging.getLogger(__name__)
_TRANSIENT_STATUS: Final = frozenset({200, 408, 425})


class SkyRLEngine(ClientEngine):
    """Samples through SkyRL's `InferenceEngineInterface`."""

    def __init__(
        self,
        client: InferenceClient,
        *,
        model: str | None = None,
        image_token_id: int | None = None,
        keeps_images: bool = False,
        timeout_s: float | None = 3600.0,
        cache_salt: Callable[[int], str] | None = None,
        weight_version: Callable[[], int | None] | None = None,
    ) -> None:
        """Store the client; the first request uses it.

        Args:
            client: SkyRL's client; the trainer closes it.
            model: The server's name of the policy, such as a LoRA adapter's; None uses the
                client's own model.
            image_token_id: The placeholder of an image; None rejects requests with images.
            keeps_images: Whether the server has a cache of processed images
                (`mm_processor_cache_gb`), so that a session sends the tensors of each image once.
            timeout_s: Seconds for one turn; the client itself has no limit. Requests freeze while a
                trainer pauses the server to update weights. None waits forever.
            cache_salt: Returns the salt of a weight version, so that only episodes that began with
                the same weights share cached prefixes; None sends none.
            weight_version: Returns the number of weight updates; None asks the client, whose copy
                in another process does not know it.
        """
        super().__init__("skyrl", timeout_s=timeout_s)
        self._client, self._model = client, model
        self._image_token_id, self._cache_salt = image_token_id, cache_salt
        self._weight_version = weight_version or partial(weight_version_of, client)
        self._renderer = (
            None if image_token_id is None else ImageRenderer(client, image_token_id=image_token_id)
        )
        self._sent = SentImages() if keeps_images else None
        self._salts: dict[str, str] = {}

    async def end_session(self, session_id: str) -> None:
        """Tell the router that the episode is over, as a hint."""
        self._salts.pop(session_id, None)
        if self._sent is not None:
            self._sent.forget(session_id)
        try:
            await self._client.finish_session(session_id)
        except Exception as error:  # noqa: BLE001  # a hint that got lost must not cost an episode
            _LOG.debug("finish_session(%r) failed: %r", session_id, error)

    async def _ask(self, request: GenerateRequest) -> Generation:
        version, session = self._weight_version(), request.session_id
        if not request.images:
            return await self._send(request, list(request.wire_ids), None, version)
        if self._renderer is None or self._image_token_id is None:
            raise LedgerFault(
                f"{len(request.images)} images came for a model without an image placeholder"
            )
        rendered = await self._renderer.render(request.images)
        put = partial(expand, list(request.wire_ids), self._image_token_id, rendered)
        cached = () if self._sent is None else self._sent.take(session, version)
        try:
            answer = await self._send(request, *put(cached=cached), version)
        except (aiohttp.ClientResponseError, EngineFault):
            if not cached:
                raise
            _LOG.debug("session %s: sending its images again", session, exc_info=True)
            # The server may have lost an image that it had cached, such as after an update of its
            # weights.
            answer = await self._send(request, *put(), version)
        if self._sent is not None:
            self._sent.add(session, version, rendered)
        return answer

    async def _send(
        self,
        request: GenerateRequest,
        ids: list[int],
        features: dict[str, Any] | None,
        version: int | None,
    ) -> Generation:
        batch: dict[str, Any] = {} if features is None else {"mm_features": [features]}
        if self._cache_salt is not None and version is not None:
            if request.session_id not in self._salts:
                self._salts[request.session_id] = self._cache_salt(version)
            batch["cache_salt"] = self._salts[request.session_id]
        answer = await self._client.generate(
            {
                "prompts": None,
                "prompt_token_ids": [ids],
                "sampling_params": to_params(request.sampling),
                "session_ids": [request.session_id],
                **batch,
            },
            model=self._model,
        )
        return parse_generation(
            answer,
            prompt_tokens=len(ids),
            weight_version=None if version is None else str(version),
        )

    def _fault(self, error: BaseException) -> EngineFault:
        message = f"SkyRL's inference client failed: {type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):
            return EngineFault(message, kind=FaultKind.TIMEOUT)
        if isinstance(error, json.JSONDecodeError):  # a proxy's page, or nothing
            return EngineFault(message, kind=FaultKind.TRANSIENT)
        if isinstance(error, aiohttp.ClientResponseError):
            if error.status in UNAVAILABLE_STATUS:
                return EngineFault(
                    message,
                    kind=FaultKind.TRANSIENT,
                    is_unavailable=True,
                    retry_after_s=retry_after(error.headers or {}),
                )
            # 200 here: a body that is not JSON, such as a proxy's page.
            worth_it = error.status in _TRANSIENT_STATUS or error.status >= 500
            return EngineFault(
                message, kind=FaultKind.TRANSIENT if worth_it else FaultKind.PERMANENT
            )
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
            return EngineFault(message, kind=FaultKind.TRANSIENT, is_unavailable=True)
        if isinstance(error, aiohttp.ClientError | OSError):
            is_unavailable = isinstance(error, ConnectionError)
            return EngineFault(message, kind=FaultKind.TRANSIENT, is_unavailable=is_unavailable)
        return EngineFault(message, kind=FaultKind.PERMANENT)


def weight_version_of(client: InferenceClient) -> int | None:
    """Return a client's number of weight updates; None if it does not count them."""
    return getattr(client, "weight_version", None)


def parse_generation(
    answer: Mapping[str, Any], *, prompt_tokens: int, weight_version: str | None
) -> Generation:
    """Return the generation of an `InferenceEngineOutput` of one prompt.

    Args:
        answer: What the client returned.
        prompt_tokens: Length of the prompt as the server's own processor expands it.
        weight_version: Version of the weights when the request was sent; None if unknown.

    Raises:
        EngineFault: Fields are missing or of unequal length, or the reason to stop is unknown.
    """
    try:
        (ids,), (reason,) = answer["response_ids"], answer["stop_reasons"]
        logprobs = (answer.get("response_logprobs") or [None])[0]
        finish = FinishReason(reason)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFault(
            "SkyRL's client must return one response with a stop reason of "
            f"{[entry.value for entry in FinishReason]}, got {type(error).__name__}: {error}"
        ) from error
    if logprobs is None and ids:
        raise EngineFault(
            "SkyRL's client returned no log-probabilities although they were asked for; the "
            "server must not be started with logprobs switched off (max_logprobs=0)"
        )
    return Generation(
        token_ids=tuple(ids),
        logprobs=tuple(logprobs or ()),
        finish_reason=finish,
        prompt_tokens=prompt_tokens,
        weight_version=weight_version,
    )
