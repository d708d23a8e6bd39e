"""The SGLang engine and its factory for the command line."""

import os
from collections.abc import Sequence
from typing import Any

from envkit_remote.engine import RemoteEngine
from envkit_remote.model import connect
from envkit_remote.router import RoutedEngine
from envkit_sglang.dialect import SGLangDialect


class SGLangEngine(RemoteEngine):
    """Samples over the native HTTP API of an SGLang server or router.

    Log-probabilities are of the sampled distribution: temperature applied, banned ids excluded,
    top-p and top-k not applied, as SGLang reports them. `Sampling.seed` only matters on a server
    started for deterministic inference. `Sampling.extras` may hold the documented keys that
    `dialect` lists.
    """

    dialect_type = SGLangDialect


def create_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    base_url: str | Sequence[str],
    **options: Any,  # noqa: ANN401  # forwarded to the constructor, which names them
) -> RemoteEngine | RoutedEngine:
    """Return an engine for running servers; the entry point `envkit.engines: sglang`.

    Args:
        model: Folder or cached hub name of the served model; None skips the checks of ids.
        base_url: The server or its router, such as "http://127.0.0.1:30000". Several addresses,
            as a list or separated by commas, are replicas of one model.
        options: Options of `SGLangEngine`; they override the model folder's values.

    Raises:
        ConfigurationError: A bad address or option, or a model folder without a readable config.
    """
    return connect(SGLangEngine, model, base_url, options)
