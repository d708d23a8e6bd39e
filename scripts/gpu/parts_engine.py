"""The embedded engine against transformers itself, on a random Qwen3-VL.

Conversations have one new image per turn. Both sides get the same processed images and sample the
same number of tokens; processing images is outside the timings.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from PIL import Image as PilImage
from transformers import AutoImageProcessor

from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit.tokens.encoded import ImageFeatures, join_features
from envkit_transformers import TransformersEngine, builtin_model_dir
from envkit_transformers.vlm_folder import (
    Architecture,
    VisionSize,
    build_config,
    build_model,
    load_tokenizer,
)

MERGE: Final = 2
SMALLEST_BATCH: Final = 8
NEVER: Final = -1  # a stop id that no reply has
TWO_BILLION: Final[dict[str, Any]] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
}
"""The text model of Qwen3-VL-2B-Instruct, with `TOWER` and 151,936 embeddings."""
TOWER: Final[dict[str, Any]] = {
    "intermediate_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}
TINY: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
}


def make_model(dtype: torch.dtype, device: str, *, small: bool) -> Any:  # noqa: ANN401
    """Return a random model with the ids of the built-in model's tokenizer.

    The output layer has its own weights: with tied ones a random model repeats its last token.
    """
    tower = VisionSize() if small else VisionSize(depth=24, hidden=1024, heads=16)
    config = build_config(
        Architecture.QWEN3_VL,
        load_tokenizer(builtin_model_dir()),
        text=TINY if small else TWO_BILLION,
        rope_theta=5e6,
        vision=tower,
    )
    text = config.text_config
    config.tie_word_embeddings = text.tie_word_embeddings = False
    if small:
        text.initializer_range = config.vision_config.initializer_range = 0.1
    else:
        text.vocab_size = 151_936
        text.rope_parameters["mrope_section"] = [24, 20, 20]
        for name, value in TOWER.items():
            setattr(config.vision_config, name, value)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = build_model(config, seed=0).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None  # every reply has the same length
    model.generation_config.pad_token_id = 0
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Conversations to play."""

    conversations: int
    turns: int
    reply: int
    """Tokens of each reply."""
    size: tuple[int, int]
    """Width and height of each image in pixels."""
    temperature: float = 0.0


@dataclass(slots=True, kw_only=True)
class Talk:
    """A conversation: what the environment says, and the replies so far."""

    openings: Sequence[Sequence[int]]  # one per turn, with one image placeholder each
    images: Sequence[Image]
    features: Sequence[ImageFeatures]
    replies: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    logprobs: list[float] = field(default_factory=list[float])

    def wire(self, turns: int) -> list[int]:
        """Return the ids before the reply of the last of some turns."""
        parts = [list(self.openings[0])]
        for reply, opening in zip(self.replies[: turns - 1], self.openings[1:turns], strict=True):
            parts += [list(reply), list(opening)]
        return [token for part in parts for token in part]

    def expand(self, wire: Sequence[int], image_id: int) -> list[int]:
        """Return the ids with one placeholder per image token."""
        counts = iter(feature.token_count for feature in self.features)
        repeated = ([one] * (next(counts) if one == image_id else 1) for one in wire)
        return [token for part in repeated for token in part]


def make_talks(load: Load) -> list[Talk]:
    """Return new conversations with random images."""
    folder = builtin_model_dir()
    tokenizer = load_tokenizer(folder)
    limits = {"shortest_edge": 64 * 64, "longest_edge": 1 << 20}
    processor: Any = AutoImageProcessor.from_pretrained(str(folder), backend="pil", size=limits)
    pixels = np.random.default_rng(0)
    talks: list[Talk] = []
    for number in range(load.conversations):
        images: list[Image] = []
        features: list[ImageFeatures] = []
        for _ in range(load.turns):
            shape = (load.size[1], load.size[0], 3)
            picture = PilImage.fromarray(pixels.integers(0, 255, shape, dtype=np.uint8))
            tensors = dict(processor(images=[picture], return_tensors="np"))
            count = int(np.prod(tensors["image_grid_thw"])) // MERGE**2
            images.append(Image.from_pil(picture))
            features.append(ImageFeatures(tensors=tensors, token_count=count))
        said = (
            f"{'<|im_end|>' * (turn > 0)}<|im_start|>user\n<|vision_start|><|image_pad|>"
            f"<|vision_end|>What is in image {turn} of {number}?<|im_end|>\n<|im_start|>assistant\n"
            for turn in range(load.turns)
        )
        openings = [tokenizer.encode(text, add_special_tokens=False) for text in said]
        talks.append(Talk(openings=openings, images=images, features=features))
    return talks


def fresh(talks: Sequence[Talk]) -> list[Talk]:
    """Return the conversations without replies."""
    return [replace(talk, replies=[], logprobs=[]) for talk in talks]


async def play(engine: TransformersEngine, talks: Sequence[Talk], load: Load) -> None:
    """Play every conversation as its own task on the engine."""

    async def converse(number: int, talk: Talk) -> None:
        for turn in range(1, load.turns + 1):
            wire = talk.wire(turn)
            length = len(talk.expand(wire, engine.model.config.image_token_id))
            request = GenerateRequest(
                request_id=f"{number:04d}-{turn:04d}",
                session_id=f"{number:04d}",
                wire_ids=wire,
                images=talk.images[:turn],
                features=talk.features[:turn],
                train_length=length,
                sampling=Sampling(
                    max_new_tokens=load.reply,
                    temperature=load.temperature,
                    stop_ids=(NEVER,),
                    seed=number,
                ),
            )
            generation = await engine.generate(request)
            if generation.prompt_tokens != length:
                raise ValueError(f"the engine saw {generation.prompt_tokens} tokens, not {length}")
            talk.replies.append(generation.token_ids)
            talk.logprobs += generation.logprobs
        await engine.end_session(f"{number:04d}")

    await asyncio.gather(*(converse(number, talk) for number, talk in enumerate(talks)))


def play_engine(model: Any, talks: Sequence[Talk], load: Load) -> float:  # noqa: ANN401
    """Play on a new engine; return the seconds without its start."""
    tokens = load.turns * (load.reply + sum(map(len, talks[0].openings)))
    tokens += sum(feature.token_count for feature in talks[0].features)
    room = (load.conversations + 4) * (tokens + 64)
    engine = TransformersEngine(model, max_batch_tokens=8192, kv_budget_tokens=room)

    async def run() -> float:
        try:
            await play(engine, fresh(talks[:2]), replace(load, turns=1, reply=2))  # warm-up
            begun = time.perf_counter()
            await play(engine, talks, load)
            return time.perf_counter() - begun
        finally:
            await engine.aclose()

    return asyncio.run(run())


def play_generate(model: Any, talks: Sequence[Talk], load: Load) -> float:  # noqa: ANN401
    """Play with the model's own `generate`, left-padded; return the seconds.

    The whole history is the prompt in each turn. Images are on the device beforehand.
    """
    device, image_id = model.device, model.config.image_token_id
    pictures = [
        [torch.from_numpy(one.tensors["pixel_values"]).to(device, model.dtype) for one in feature]
        for feature in (talk.features for talk in talks)
    ]
    begun = time.perf_counter()
    for turn in range(1, load.turns + 1):
        rows = [talk.expand(talk.wire(turn), image_id) for talk in talks]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        seen = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device
        )
        grids = [one.tensors["image_grid_thw"] for talk in talks for one in talk.features[:turn]]
        output = model.generate(
            input_ids=ids,
            attention_mask=seen,
            mm_token_type_ids=(ids == image_id).long(),
            pixel_values=torch.cat([one for row in pictures for one in row[:turn]]),
            image_grid_thw=torch.from_numpy(np.concatenate(grids)).to(device),
            max_new_tokens=load.reply,
            do_sample=False,
            suppress_tokens=[image_id, model.config.video_token_id],
        )
        for talk, reply in zip(talks, output[:, width:].tolist(), strict=True):
            talk.replies.append(reply)
    return time.perf_counter() - begun


def play_largest_batch(model: Any, talks: Sequence[Talk], load: Load) -> float:  # noqa: ANN401
    """Play with `generate`, in the largest batch that fits into memory; return the seconds."""
    play_generate(model, fresh(talks[:2]), replace(load, turns=1, reply=2))  # warm-up
    batch = len(talks)
    while True:
        starts = range(0, len(talks), batch)
        try:
            return sum(play_generate(model, talks[start : start + batch], load) for start in starts)
        except torch.OutOfMemoryError:
            if batch <= SMALLEST_BATCH:
                raise
        batch //= 2
        sys.stderr.write(f"generate ran out of memory: trying batches of {batch}\n")
        torch.cuda.empty_cache()
        for talk in talks:
            talk.replies.clear()


def compare_speed(figures: dict[str, Any], *, device: str, small: bool) -> None:
    """Play the same conversations with the engine and with batched `generate`, both greedy."""
    load = Load(conversations=64, turns=8, reply=32, size=(672, 448))
    if small:
        load = Load(conversations=3, turns=2, reply=4, size=(96, 64))
    dtype = torch.float32 if small else torch.bfloat16
    model = make_model(dtype, device, small=small)
    figures["parameters"] = sum(weights.numel() for weights in model.parameters())
    figures["load"] = {name: getattr(load, name) for name in ("conversations", "turns", "reply")}
    talks = make_talks(load)
    figures["image_tokens"] = talks[0].features[0].token_count
    played: dict[str, list[Talk]] = {}
    turns = load.conversations * load.turns
    for name, method in (("engine", play_engine), ("generate", play_largest_batch)):
        played[name] = fresh(talks)
        seconds = method(model, played[name], load)
        figures[name] = {
            "seconds": seconds,
            "turns_per_second": turns / seconds,
            "tokens_per_second": turns * load.reply / seconds,
        }
    pairs = list(zip(played["engine"], played["generate"], strict=True))
    # In bfloat16, rounding decides between near ties, and conversations diverge.
    figures["same_first_replies"] = sum(list(a.replies[0]) == b.replies[0] for a, b in pairs)
    figures["same_conversations"] = sum(
        [list(reply) for reply in a.replies] == b.replies for a, b in pairs
    )
    figures["speedup"] = figures["generate"]["seconds"] / figures["engine"]["seconds"]


@torch.inference_mode()
def forced(model: Any, talk: Talk) -> tuple[list[int], torch.Tensor]:  # noqa: ANN401
    """Score a conversation in one plain forward.

    Returns:
        The most probable id for each token of the replies, and each token's log-probability (T,).
    """
    image_id = model.config.image_token_id
    places: list[int] = []
    for turn, reply in enumerate(talk.replies, 1):
        start = len(talk.expand(talk.wire(turn), image_id))
        places += range(start, start + len(reply))
    whole = talk.expand([*talk.wire(len(talk.openings)), *talk.replies[-1]], image_id)
    ids = torch.tensor([whole], device=model.device)
    model.model.rope_deltas = None
    tensors = join_features(talk.features)
    logits = (
        model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == image_id).long(),
            logits_to_keep=torch.tensor(places, device=model.device) - 1,
            **{name: torch.from_numpy(tensors[name]).to(model.device) for name in tensors},
        )
        .logits[0]
        .float()
    )
    logits[:, [image_id, model.config.video_token_id]] = float("-inf")
    found = logits.log_softmax(-1)
    chosen = ids[0, torch.tensor(places, device=model.device)]
    return found.argmax(-1).tolist(), found.gather(1, chosen[:, None])[:, 0].cpu()


def compare_exactly(figures: dict[str, Any], *, device: str, small: bool) -> None:
    """Compare ids and log-probabilities of the engine with a teacher-forced forward."""
    load = Load(conversations=6, turns=4, reply=16, size=(672, 448))
    if small:
        load = Load(conversations=2, turns=3, reply=6, size=(96, 64))
    talks = make_talks(load)
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model(dtype, device, small=small)
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            tried = fresh(talks)
            play_engine(model, tried, replace(load, temperature=temperature))
            scored = [forced(model, talk) for talk in tried]
            ids = [token for talk in tried for reply in talk.replies for token in reply]
            differences = torch.cat([logprobs for _, logprobs in scored]) - torch.tensor(
                [one for talk in tried for one in talk.logprobs]
            )
            entry: dict[str, Any] = {
                "tokens": len(ids),
                "distinct_tokens": len(set(ids)),
                "largest_difference": float(differences.abs().max()),
                "mean_difference": float(differences.abs().mean()),
            }
            if temperature == 0.0:
                best = [token for ids, _ in scored for token in ids]
                entry["same_ids"] = sum(a == b for a, b in zip(ids, best, strict=True))
            figures.setdefault(str(dtype).removeprefix("torch."), {})[name] = entry
        del model
        gc.collect()
