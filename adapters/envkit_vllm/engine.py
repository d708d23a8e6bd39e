"""The vLLM engine and its factory for the command line."""

import os
from collections.abc import Sequence
from typing import Any

from envkit_remote.engine import RemoteEngine
from envkit_remote.model import connect
from envkit_remote.router import RoutedEngine
from envkit_vllm.dialect import VLLMDialect


class VLLMEngine(RemoteEngine):
    """Samples over the token route of a standalone vLLM server.

    Log-probabilities are of the sampled distribution: temperature, bans, penalties, top-p and top-k
    applied and renormalised. A trainer that recomputes them without top-p and top-k gets different
    values, so train with both off. `Sampling.extras` may hold the keys that `dialect` lists; a LoRA
    adapter is named by `extras={"model": NAME}`.
    """

    dialect_type = VLLMDialect


def create_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    base_url: str | Sequence[str],
    **options: Any,  # noqa: ANN401  # forwarded to the constructor, which names them
) -> RemoteEngine | RoutedEngine:
    """Return an engine for running servers; the entry point `envkit.engines: vllm`.

    Args:
        model: Folder or cached hub name of the served model; None skips the checks of ids.
        base_url: The server, such as "http://127.0.0.1:8000". Several addresses, as a list or
            separated by commas, are replicas of one model.
        options: Options of `VLLMEngine`; they override the model folder's values.

    Raises:
        ConfigurationError: A bad address or option, or a model folder without a readable config.
    """
    return connect(VLLMEngine, model, base_url, options)
