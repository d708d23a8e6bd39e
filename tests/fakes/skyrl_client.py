"""SkyRL's inference client as a fake: strict about what it gets, its replies from a policy."""

import base64
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from PIL import Image as PilImage
from yarl import URL

from envkit.images import Image
from envkit.rollout import Sampling
from envkit.rollout.stopping import ended
from envkit.tokens import ChatCodec


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a policy sees of one request."""

    group: str
    """The prompt's id."""
    member: int
    """Of its group."""
    turn: int
    """Requests of this session before, those that were aborted left out."""
    text: str
    images: tuple[PilImage.Image, ...]


Policy = Callable[[Ask], str]


@dataclass
class FakeClient:
    """Answers like `RemoteInferenceClient` with a vLLM server behind it."""

    codec: ChatCodec
    policy: Policy
    model_name: str = "base-model"
    weight_version: int = 3
    aborts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(member, turn) whose first request is aborted half way, as by a server-wide pause."""
    errors: dict[tuple[int, int], list[Exception]] = field(
        default_factory=dict[tuple[int, int], list[Exception]]
    )
    """(member, turn) to what its requests raise, one after the other."""
    resize: int = 0
    """How many patches wider the server's processor makes an image than ours does."""
    logprob: Callable[[int], float] = lambda token: -(token % 7 + 1) / 10
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    models: list[str | None] = field(default_factory=list[str | None])
    rendered: list[str] = field(default_factory=list[str])
    kept: dict[str, str] = field(default_factory=dict[str, str])
    """The server's cache of processed images, by hash; clear it, as a weight update does."""
    finished: list[str] = field(default_factory=list[str])
    _rest: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By session: what an aborted reply goes on with."""
    _turns: Counter[str] = field(default_factory=Counter[str])

    async def generate(
        self, input_batch: Mapping[str, Any], model: str | None = None
    ) -> dict[str, Any]:
        assert input_batch.get("prompts") is None, "only token ids are taken"
        prompts = input_batch["prompt_token_ids"]
        features = input_batch.get("mm_features") or [None] * len(prompts)
        self.models.append(model)
        ids: list[list[int]] = []
        reasons: list[str] = []
        for prompt, session, feature in zip(
            prompts, input_batch["session_ids"], features, strict=True
        ):
            assert all(type(token) is int for token in prompt)
            params = input_batch["sampling_params"] or {}
            self.requests.append(
                {
                    "ids": list(prompt),
                    "session": session,
                    "params": dict(params),
                    "salt": input_batch.get("cache_salt"),
                    "features": feature,
                }
            )
            reply, reason = self._reply(list(prompt), session, params, feature)
            ids.append(reply)
            reasons.append(reason)
        return {
            "responses": [self.codec.decode(reply) for reply in ids],
            "response_ids": ids,
            "stop_reasons": reasons,
            "response_logprobs": [[self.logprob(token) for token in reply] for reply in ids],
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
        }

    async def render_chat_completion(self, request_payload: Mapping[str, Any]) -> dict[str, Any]:
        body = request_payload["json"]
        assert body["model"] == self.model_name
        (message,) = body["messages"]
        (part,) = message["content"]
        uri: str = part["image_url"]["url"]
        self.rendered.append(uri)
        image = Image.from_data_uri(uri)
        (feature,) = self.codec.image_features([image])
        length = feature.token_count + self.resize
        head = [11, 12, 13]
        return {
            "token_ids": [*head, *[self.codec.media_ids[0]] * length, 14],
            "features": {
                "mm_hashes": {"image": [f"hash-{image.sha256[:8]}"]},
                "mm_placeholders": {"image": [{"offset": len(head), "length": length}]},
                "kwargs_data": {"image": [uri]},
            },
        }

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)

    def _reply(
        self, prompt: list[int], session: str, params: Mapping[str, Any], feature: Any
    ) -> tuple[list[int], str]:
        found = re.match(r"(.*)_(\d+)", session)
        assert found is not None, f"a session names its trajectory, got {session!r}"
        number, turn = int(found[2]), self._turns[session]
        waiting = self.errors.get((number, turn))
        if waiting:
            raise waiting.pop(0)
        ask = Ask(
            group=found[1],
            member=number,
            turn=turn,
            text=self.codec.decode(prompt),
            images=self._pictures(prompt, feature),
        )
        reply = self._rest.pop(session, None) or self._sampled(ask, params)
        if (number, turn) in self.aborts:
            self.aborts.discard((number, turn))
            self._rest[session] = reply[len(reply) // 2 :]
            return reply[: len(reply) // 2], "abort"
        self._turns[session] += 1
        limit = params.get("max_tokens") or len(reply)
        if len(reply) > limit:
            return reply[:limit], "length"
        return reply, "stop"

    def _sampled(self, ask: Ask, params: Mapping[str, Any]) -> list[int]:
        """Return a reply that ends at the first stop string, as vLLM's does."""
        ids = self.codec.encode_reply(self.policy(ask))
        stops = Sampling(stop=tuple(params.get("stop") or ()))
        return list(ended(ids, stops, self.codec.decode))

    def _pictures(self, prompt: list[int], feature: Any) -> tuple[PilImage.Image, ...]:
        """Read the images back, after checking that features and placeholders agree."""
        media = self.codec.media_ids[:1]
        if feature is None:
            assert not set(prompt) & set(media), "placeholders came without pictures"
            return ()
        places = feature["mm_placeholders"]["image"]
        data, hashes = feature["kwargs_data"]["image"], feature["mm_hashes"]["image"]
        assert len(places) == len(data) == len(hashes)
        self.kept |= {name: uri for name, uri in zip(hashes, data, strict=True) if uri is not None}
        if not self.kept.keys() >= set(hashes):
            raise cache_miss()
        data = [self.kept[name] for name in hashes]
        covered = 0
        for place in places:
            span = prompt[place["offset"] : place["offset"] + place["length"]]
            assert span == [*media] * place["length"], "a placeholder range is off"
            covered += place["length"]
        assert prompt.count(media[0]) == covered
        pictures = [base64.b64decode(uri.partition("base64,")[2]) for uri in data]
        return tuple(PilImage.open(io.BytesIO(picture)).convert("RGB") for picture in pictures)


def cache_miss() -> aiohttp.ClientResponseError:
    """Return what SkyRL's client raises if vLLM no longer has an image that a request names."""
    info = aiohttp.RequestInfo(URL("http://127.0.0.1"), "POST", CIMultiDictProxy(CIMultiDict()))
    return aiohttp.ClientResponseError(info, (), status=500, message="Internal server error")


def say(*words: str) -> Policy:
    """Policy: the words, one a turn."""
    return lambda ask: words[ask.turn]
