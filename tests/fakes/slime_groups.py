"""Groups of samples through slime's and miles' real rollout, rewards and conversion."""

# pyright: reportMissingImports=false, reportUnknownLambdaType=false

import asyncio
import copy
from argparse import Namespace
from functools import cache
from types import SimpleNamespace
from typing import Any

from fakes.gradients import of_slime
from fakes.slime_run import Served


def params(args: Any) -> dict[str, Any]:
    from slime.rollout.sglang_rollout import GenerateState

    return GenerateState(args).sampling_params.copy()


def group_of(size: int = 2, *, group: int = 0, **fields: Any) -> list[Any]:
    from slime.utils.types import Sample

    return [
        Sample(group_index=group, index=group * size + n, **copy.deepcopy(fields))
        for n in range(size)
    ]


async def roll_group(args: Any, group: list[Any], **options: Any) -> list[Any]:
    from slime.rollout.sglang_rollout import generate_and_rm_group

    return await generate_and_rm_group(args, group, params(args), **options)


def rollout_manager(args: Any) -> Any:
    """Return slime's own conversion to training data, with the function that its flag names."""
    path = args.custom_reward_post_process_path
    return of_slime.rollout_manager(args, None if path is None else load(path))


def load(path: str) -> Any:
    from slime.utils.misc import load_function

    return load_function(path)


def roll(args: Any, rollout_id: int = 0, source: Any = None) -> list[list[Any]]:
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    init_http_client(args)
    source = source or load("envkit_slime.DataSource")(args)
    return generate_rollout(args, rollout_id, source).samples


@cache
def loaded(model: str) -> tuple[Any, Any]:
    """Return tokenizer and processor as miles loads them; text models have no processor."""
    import transformers

    is_vision = "qwen2_5_vl" in model
    processor = transformers.AutoProcessor.from_pretrained(model) if is_vision else None
    return transformers.AutoTokenizer.from_pretrained(model), processor


def miles_state(args: Namespace) -> Any:
    """Return what generate_and_rm_group reads of miles' GenerateState, with the real function."""
    from miles.rollout.inference_rollout.compatibility import load_generate_function

    tokenizer, processor = loaded(args.hf_checkpoint)
    return SimpleNamespace(
        args=args,
        tokenizer=tokenizer,
        processor=processor,
        aborted=False,
        generate_fn_semaphore=asyncio.Semaphore(64),
        generate_function=load_generate_function("envkit_miles.generate"),
    )


def miles_args(served: Served, envkit: dict[str, Any], **overrides: Any) -> Namespace:
    args = served.args(envkit, **overrides)
    args.custom_generate_function_path = "envkit_miles.generate"
    args.sglang_router_policy = None
    args.router_policy = None
    return args


def miles_group(size: int = 2) -> list[Any]:
    from miles.utils.types import Sample

    return [Sample(group_index=0, index=n) for n in range(size)]


PARAMS: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 512, "stop": None,
    "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}  # fmt: skip


async def roll_miles(state: Any, group: list[Any]) -> list[Any]:
    from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm_group

    return await generate_and_rm_group(state, group, dict(PARAMS))
