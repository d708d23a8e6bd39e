"""Pictures for SkyRL's inference server: rendered there once, sent with every request.

The server takes expanded token ids and, for each picture, vLLM's own serialisation of what its
processor made of it (`MultiModalFeatures` in skyrl/backends/skyrl_train/inference_servers/base.py).
Only the server can write that, so each new picture is rendered there in a message of its own, as
SkyRL's client does for its sampling interface (`_render_for_sample`). What was rendered is kept by
the picture's hash: a group and its later turns render nothing again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from envkit.errors import EngineFault, LedgerFault
from envkit.images import Image
from envkit.tokens.placeholders import repeat_each

DEFAULT_CACHE_BYTES: Final = 512 * 1024 * 1024


class InferenceClient(Protocol):
    """What the adapter calls of SkyRL's `InferenceEngineInterface`."""

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
        """Say that an episode is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedImage:
    """What the server made of one picture."""

    identity: str
    """vLLM's hash of it."""
    data: str | None
    """Its tensors, serialised by vLLM."""
    token_count: int
    """How many placeholders the server gives it."""


class ImageRenderer:
    """Asks the server for each picture once, while it is kept."""

    def __init__(
        self,
        client: InferenceClient,
        *,
        image_token_id: int,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """Note the client; nothing is sent before the first picture.

        Args:
            client: SkyRL's.
            image_token_id: The placeholder that the server's processor must write.
            cache_bytes: How much serialised data to keep; the least recently used goes first.
        """
        self._client, self._token, self._limit = client, image_token_id, cache_bytes
        self._kept: OrderedDict[str, RenderedImage] = OrderedDict()
        self._running: dict[str, asyncio.Task[RenderedImage]] = {}
        self._bytes = 0
        self._sessions: dict[str, list[tuple[Image, RenderedImage]]] = {}

    async def render(
        self, images: Sequence[Image], *, session_id: str
    ) -> tuple[RenderedImage, ...]:
        """Return what the server made of the pictures, in their order.

        Args:
            images: All pictures of a request. Those that begin like the session's last request are
                not looked up again, and stay here until the session ends, whatever the cache drops.
            session_id: The episode.

        Raises:
            EngineFault: Its answer has not the form that SkyRL documents.
        """
        held = self._sessions.get(session_id, [])
        same = 0
        while same < min(len(held), len(images)) and held[same][0] == images[same]:
            same += 1
        new = images[same:]
        made = await asyncio.gather(*(self._one(image) for image in new))
        held = [*held[:same], *zip(new, made, strict=True)]
        self._sessions[session_id] = held
        return tuple(rendered for _, rendered in held)

    def end_session(self, session_id: str) -> None:
        """Forget what is held for an episode; unknown ones are ignored."""
        self._sessions.pop(session_id, None)

    async def _one(self, image: Image) -> RenderedImage:
        key = image.sha256
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        task = self._running.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._ask(key, image))
            self._running[key] = task
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)  # others may wait for it when this episode is cancelled

    async def _ask(self, key: str, image: Image) -> RenderedImage:
        try:
            uri = await asyncio.to_thread(image.data_uri)
            content = [{"type": "image_url", "image_url": {"url": uri}}]
            answer = await self._client.render_chat_completion(
                {
                    "json": {
                        "model": self._client.model_name,
                        "messages": [{"role": "user", "content": content}],
                    }
                }
            )
            rendered = _parse(answer, self._token)
        finally:
            self._running.pop(key, None)
        self._keep(key, rendered)
        return rendered

    def _keep(self, key: str, rendered: RenderedImage) -> None:
        self._kept[key] = rendered
        self._bytes += len(rendered.data or "")
        while self._bytes > self._limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped.data or "")


def expand(
    wire_ids: Sequence[int], image_token_id: int, rendered: Sequence[RenderedImage]
) -> tuple[list[int], dict[str, Any]]:
    """Return the ids with expanded placeholders, and the `MultiModalFeatures` that go with them.

    Raises:
        LedgerFault: The ids do not hold one placeholder for each picture.
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
        "kwargs_data": {"image": [entry.data for entry in rendered]},
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
            "SkyRL's server must render one picture as one placeholder range with its hash, got "
            f"{str(features)[:200]}; is the served model a vision-language model?"
        ) from error
    if ids != [image_token_id] * length or not ids:
        raise EngineFault(
            f"SkyRL's server writes a picture as tokens {sorted(set(ids))[:8]}, the codec as "
            f"{image_token_id}; SkyRL's trainer takes models whose pictures are one token "
            "repeated, such as Qwen-VL, and codec and server must use the same model"
        )
    return RenderedImage(identity=identity, data=data[0], token_count=length)


def _retrieve(task: "asyncio.Task[RenderedImage]") -> None:
    """Take a failure that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
