"""What tests of the embedded engine share: tiny models, requests, a teacher-forced reference."""

import copy
import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes.models import tiny_model_dir
from PIL import Image as PilImage

from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Generation, Sampling
from envkit.tokens.encoded import ImageFeatures
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.loading import ModelProcessor, load_model

_REQUESTS = itertools.count()


@cache
def _loaded(kind: str) -> tuple[Any, ModelProcessor]:
    """Read a folder once: its tokenizer takes longest. Nothing runs this model."""
    torch.set_num_threads(1)
    return load_model(str(tiny_model_dir(kind)), dtype="float32")


@cache
def reference_model(kind: str) -> tuple[Any, ModelProcessor]:
    """Return a model that no engine touches."""
    model, processor = _loaded(kind)
    return copy.deepcopy(model), processor


def make_engine(kind: str, **options: Any) -> TransformersEngine:
    model, processor = _loaded(kind)
    return TransformersEngine(copy.deepcopy(model), processor, **options)


def folder_of(kind: str) -> Path:
    return tiny_model_dir(kind)


def picture(number: int, size: tuple[int, int] = (84, 56)) -> Image:
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.from_pil(PilImage.fromarray(pixels))


def features_of(kind: str, images: Sequence[Image]) -> list[ImageFeatures]:
    processor: Any = reference_model(kind)[1].image_processor
    merge = 2
    found: list[ImageFeatures] = []
    for image in images:
        tensors = dict(processor(images=[image.pil()], return_tensors="np"))
        count = int(np.prod(tensors["image_grid_thw"])) // merge**2
        found.append(ImageFeatures(tensors=tensors, token_count=count))
    return found


def ids_of(kind: str, text: str) -> list[int]:
    return list(reference_model(kind)[1].tokenizer.encode(text, add_special_tokens=False))


def make_request(
    kind: str,
    session: str,
    wire_ids: Sequence[int],
    images: Sequence[Image] = (),
    *,
    with_features: bool = True,
    request_id: str | None = None,
    **sampling: Any,
) -> GenerateRequest:
    features = features_of(kind, images) if with_features else ()
    extra = sum(feature.token_count - 1 for feature in features_of(kind, images))
    sampling.setdefault("max_new_tokens", 8)
    return GenerateRequest(
        request_id=request_id or f"request-{next(_REQUESTS):08d}",
        session_id=session,
        wire_ids=wire_ids,
        images=images,
        features=features,
        train_length=len(wire_ids) + extra,
        sampling=Sampling(**sampling),
    )


@torch.inference_mode()
def forced_logprobs(
    kind: str,
    request: GenerateRequest,
    tokens: Sequence[int],
    *,
    model: Any = None,
) -> torch.Tensor:
    """Score tokens with one plain forward over the whole context; its positions are its own."""
    model = reference_model(kind)[0] if model is None else model
    sampling = request.sampling
    banned = list(sampling.banned_ids)
    features = features_of(kind, request.images)
    counts = iter(feature.token_count for feature in features)
    ids = list(request.wire_ids)
    arguments: dict[str, Any] = {}
    if "vl" in kind:
        pad, video = model.config.image_token_id, model.config.video_token_id
        ids = [token for wire in ids for token in ([pad] * next(counts) if wire == pad else [wire])]
        banned += [pad, video]
        whole = torch.tensor([[*ids, *tokens]])
        arguments["mm_token_type_ids"] = (whole == pad).long()
        model.model.rope_deltas = None
        if features:
            for name in ("pixel_values", "image_grid_thw"):
                parts = [feature.tensors[name] for feature in features]
                arguments[name] = torch.from_numpy(np.concatenate(parts))
    whole = torch.tensor([[*ids, *tokens]])
    logits = model(input_ids=whole, attention_mask=torch.ones_like(whole), **arguments).logits
    logits = logits[0, len(ids) - 1 : -1].float() / (sampling.temperature or 1.0)
    if banned:
        logits[:, banned] = float("-inf")
    return logits.log_softmax(-1).gather(1, torch.tensor(list(tokens))[:, None])[:, 0]


def largest_error(
    kind: str, request: GenerateRequest, generation: Generation, *, model: Any = None
) -> float:
    forced = forced_logprobs(kind, request, generation.token_ids, model=model)
    return float((forced - torch.tensor(list(generation.logprobs))).abs().max())
