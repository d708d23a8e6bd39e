"""Which models the embedded engine runs, and which it refuses when it is made."""

import asyncio
from typing import Any

import pytest
import torch
from fakes.embedded import reference_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    MistralConfig,
    MistralForCausalLM,
)

from envkit.errors import ConfigurationError
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.prompt import PromptBuilder, VisionTraits

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


async def test_sliding_window_is_kept_in_prompts_and_replies() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    engine = TransformersEngine(model, max_batch_tokens=10)
    wire = [3 + 7 * i % 120 for i in range(30)]
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=wire,
        images=(),
        train_length=len(wire),
        sampling=Sampling(max_new_tokens=20, stop_ids=(-1,)),
    )
    generation = await engine.generate(request)
    await engine.aclose()
    ids = torch.tensor([[*wire, *generation.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(wire) - 1 : -1]
    forced = logits.log_softmax(-1).gather(1, ids[0, len(wire) :, None])[:, 0]
    assert float((forced - torch.tensor(list(generation.logprobs))).abs().max()) < 1e-4


class NeighbourMixing(LlamaForCausalLM):
    """Lets every token see the one before it in the row, whoever's it is."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.embed_tokens.register_forward_hook(lambda _, __, out: out + out.roll(1, dims=1))


@pytest.mark.parametrize("name", ["soft cap", "recurrent", "no positions", "mixing"])
def test_model_that_cannot_be_packed_is_refused(name: str) -> None:
    torch.manual_seed(0)
    model: Any = {
        "soft cap": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)),
        "recurrent": lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, full_attn_idxs=[1])),
        "mixing": lambda: NeighbourMixing(LlamaConfig(**SIZES, initializer_range=0.3)),
        "no positions": lambda: BloomForCausalLM(
            BloomConfig(vocab_size=128, hidden_size=32, n_layer=1, n_head=4)
        ),
    }[name]()
    before = model.config._attn_implementation
    with pytest.raises(ConfigurationError, match="SGLang or vLLM"):
        TransformersEngine(model)
    assert model.config._attn_implementation == before


def test_other_vision_models_are_refused() -> None:
    class Llava(torch.nn.Module):
        config = LlavaConfig()

    with pytest.raises(ConfigurationError, match="Qwen2-VL family"):
        TransformersEngine(Llava())


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_positions_equal_the_models_own(kind: str) -> None:
    from fakes.embedded import features_of, ids_of, make_request, picture

    model, processor = reference_model(kind)
    images = [picture(1, (140, 56)), picture(2, (56, 168)), picture(3)]
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    wire = ids_of(kind, f"{pad}a few words{pad}{pad} and more of them")
    config = model.config
    vision = VisionTraits(
        image_token_id=config.image_token_id,
        placeholder_ids=(config.image_token_id,),
        merge_size=2,
    )
    builder = PromptBuilder(
        vocabulary=49216, vision=vision, image_processor=processor.image_processor
    )
    prompt = builder.build(make_request(kind, "s", wire, images))
    ids = torch.from_numpy(prompt.ids)[None]
    grids = [torch.as_tensor(f.tensors["image_grid_thw"]) for f in features_of(kind, images)]
    expected, delta = model.model.get_rope_index(
        ids,
        image_grid_thw=torch.cat(grids),
        mm_token_type_ids=(ids == config.image_token_id).int(),
        attention_mask=torch.ones_like(ids),
    )
    assert torch.equal(torch.from_numpy(prompt.positions), expected[:, 0])
    assert prompt.next_position == len(prompt) + int(delta)


@pytest.mark.slow
def test_unclosed_engine_frees_its_thread() -> None:
    import gc
    import threading

    engine = TransformersEngine(reference_model("qwen3")[0])
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=[1, 2],
        images=(),
        train_length=2,
        sampling=Sampling(max_new_tokens=2),
    )
    asyncio.run(engine.generate(request))
    assert "envkit-transformers" in {thread.name for thread in threading.enumerate()}
    del engine
    gc.collect()
    assert "envkit-transformers" not in {thread.name for thread in threading.enumerate()}
