"""Images for SkyRL's inference server: rendered there once, named in every request.

The server takes expanded token ids and, for each image, vLLM's own serialisation of its processor's
output (`MultiModalFeatures` in skyrl/backends/skyrl_train/inference_servers/base.py). Only the
server can write that, so each new image is rendered there in its own message, as SkyRL's client
does for its sampling interface (`_render_for_sample`). Rendered images are cached by hash, so a
group and its later turns render nothing again. A server with a cache of processed images also keeps
them by hash: later requests of a session send None instead of the tensors, 0.8 MB each.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from envkit.errors import EngineFault, LedgerFault
from envkit.images import Image
from envkit.tokens.placeholders import repeat_each

_CACHE_BYTES: Final = 512 * 1024 * 1024
"""Maximum bytes of serialised data; the least recently used is evicted first."""


class InferenceClient(Protocol):
    """The methods of SkyRL's `InferenceEngineInterface` that the adapter calls."""

    @property
    def model_name(self) -> str:
        """Name of the base model at the server."""
        ...

    async def generate(
        self, input_batch: Mapping[str, Any], model: str | None = None
    ) -> Mapping[str, Any]:
        """Sample from token ids."""
        ...

    async def render_chat_completion(self, request_payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply the chat template and the image processor without sampling."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Report that an episode is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedImage:
    """The server's rendering of one image."""

    identity: str
    """vLLM's hash of it."""
    data: str | None
    """Its tensors, serialised by vLLM."""
    token_count: int
    """Number of placeholders that the server gives it."""


class ImageRenderer:
    """Renders each image on the server once, while it is cached."""

    def __init__(self, client: InferenceClient, *, image_token_id: int) -> None:
        """Store the client; nothing is sent before the first image.

        Args:
            client: SkyRL's.
            image_token_id: The placeholder that the server's processor must write.
        """
        self._client, self._token = client, image_token_id
        self._kept: OrderedDict[str, asyncio.Task[RenderedImage]] = OrderedDict()

    async def render(self, images: Sequence[Image]) -> tuple[RenderedImage, ...]:
        """Return the server's renderings of the images, in order.

        Raises:
            EngineFault: Its answer does not have the form that SkyRL documents.
        """
        return tuple(await asyncio.gather(*map(self._one, images)))

    async def _one(self, image: Image) -> RenderedImage:
        key = image.sha256
        task = self._kept.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._kept[key] = asyncio.create_task(self._ask(image))
            task.add_done_callback(partial(self._trim, key))
        self._kept.move_to_end(key)
        return await asyncio.shield(
            task
        )  # others may still wait for it if this episode is cancelled

    async def _ask(self, image: Image) -> RenderedImage:
        uri = await asyncio.to_thread(image.data_uri)
        content = [{"type": "image_url", "image_url": {"url": uri}}]
        messages = [{"role": "user", "content": content}]
        payload = {"json": {"model": self._client.model_name, "messages": messages}}
        return _parse(await self._client.render_chat_completion(payload), self._token)

    def _trim(self, key: str, task: "asyncio.Task[RenderedImage]") -> None:
        """Drop a failure, so that a retry asks again, and evict entries beyond the limit."""
        if _is_lost(task) and self._kept.get(key) is task:
            del self._kept[key]
        excess = sum(map(_size, self._kept.values())) - _CACHE_BYTES
        while excess > 0 and len(self._kept) > 1:
            excess -= _size(self._kept.popitem(last=False)[1])


def _is_lost(task: "asyncio.Task[RenderedImage]") -> bool:
    return task.cancelled() or task.exception() is not None


def _size(task: "asyncio.Task[RenderedImage]") -> int:
    return len(task.result().data or "") if task.done() and not _is_lost(task) else 0


class SentImages:
    """The images that the server of a session should still have in its cache.

    A router keeps a session on one server. A weight update clears the server's cache.
    """

    def __init__(self) -> None:
        self._by_session: dict[str, tuple[int | None, frozenset[str]]] = {}

    def take(self, session_id: str, version: int | None) -> Collection[str]:
        """Return the images' identities, and forget them until `add`: the request may fail.

        Args:
            session_id: Any session.
            version: Current version of the weights; None if unknown.
        """
        known, identities = self._by_session.pop(session_id, (version, frozenset[str]()))
        return identities if known == version else ()

    def add(self, session_id: str, version: int | None, rendered: Iterable[RenderedImage]) -> None:
        """Remember the images of a request that the server has answered."""
        identities = frozenset(entry.identity for entry in rendered)
        self._by_session[session_id] = (version, identities)

    def forget(self, session_id: str) -> None:
        """Send the session's images again; unknown sessions are ignored."""
        self._by_session.pop(session_id, None)


def expand(
    wire_ids: Sequence[int],
    image_token_id: int,
    rendered: Sequence[RenderedImage],
    *,
    cached: Collection[str] = (),
) -> tuple[list[int], dict[str, Any]]:
    """Return the ids with expanded placeholders, and their `MultiModalFeatures`.

    Args:
        wire_ids: One placeholder per image.
        image_token_id: The placeholder.
        rendered: The images, in order.
        cached: Identities whose tensors the server has; None is sent for them.

    Raises:
        LedgerFault: The ids do not have one placeholder per image.
    """
    count = wire_ids.count(image_token_id)
    if count != len(rendered):
        raise LedgerFault(
            f"wire ids must hold one placeholder ({image_token_id}) per image, got {count} "
            f"placeholders and {len(rendered)} images"
        )
    counts = [entry.token_count for entry in rendered]
    ids = repeat_each(wire_ids, image_token_id, counts)
    places: list[dict[str, int]] = []
    position = 0
    for length in counts:
        offset = ids.index(image_token_id, position)
        places.append({"offset": offset, "length": length})
        position = offset + length
    features = {
        "mm_hashes": {"image": [entry.identity for entry in rendered]},
        "mm_placeholders": {"image": places},
        "kwargs_data": {
            "image": [None if entry.identity in cached else entry.data for entry in rendered]
        },
    }
    return ids, features


def _parse(answer: Mapping[str, Any], image_token_id: int) -> RenderedImage:
    features = answer.get("features") or {}
    try:
        (place,) = features["mm_placeholders"]["image"]
        (identity,) = features["mm_hashes"]["image"]
        data = (features.get("kwargs_data") or {}).get("image") or [None]
        start, length = place["offset"], place["length"]
        ids = list(answer["token_ids"][start : start + length])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFault(
            "SkyRL's server must render one image as one placeholder range with its hash, got "
            f"{str(features)[:200]}; is the served model a vision-language model?"
        ) from error
    if ids != [image_token_id] * length or not ids:
        raise EngineFault(
            f"SkyRL's server writes an image as tokens {sorted(set(ids))[:8]}, the codec as "
            f"{image_token_id}; SkyRL's trainer takes models whose images are one token "
            "repeated, such as Qwen-VL, and codec and server must use the same model"
        )
    return RenderedImage(identity=identity, data=data[0], token_count=length)
