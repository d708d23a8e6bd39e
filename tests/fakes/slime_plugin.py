"""envkit's generate function with a setting that slime's own plugin tests cannot give."""

from typing import Any

import envkit_slime


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    """Name an environment, then generate as `envkit_slime.generate` does."""
    args.envkit = {"env_id": "canary-v0"}
    params = {"max_new_tokens": 8, **sampling_params}
    return await envkit_slime.generate(args, sample, params, evaluation=evaluation)
