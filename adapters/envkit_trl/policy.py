"""Engines that sample with the weights under training."""

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Engine

_NEVER: Final = -1e4
"""A logit with probability 0 in every dtype; minus infinity would make the entropy NaN."""
SendWeights = Callable[[Any, str], Coroutine[Any, Any, None]]
"""Sends a model's weights to an engine under a version name."""


@runtime_checkable
class WeightSink(Protocol):
    """An engine that accepts new weights, such as the embedded engine."""

    async def update_weights(self, update: Any, *, version: str) -> None:  # noqa: ANN401
        """Load tensors by parameter name; later generations carry the version."""
        ...


class Policy:
    """An engine, and how it gets the trainer's latest weights."""

    def __init__(self, engine: Engine, send_weights: SendWeights, *, is_owned: bool) -> None:
        """Wrap an engine.

        Args:
            engine: Samples the replies.
            send_weights: Sends weights to the engine.
            is_owned: Whether `aclose` closes the engine.
        """
        self.engine = engine
        self._send_weights = send_weights
        self._is_owned = is_owned
        self._version: str | None = None

    async def sync(self, model: Any, version: str) -> None:  # noqa: ANN401  # a transformers model
        """Send the model's weights to the engine, unless it has this version."""
        if self._version != version:
            await self._send_weights(model, version)
            self._version = version

    async def aclose(self) -> None:
        """Close the engine if it was created here."""
        if self._is_owned:
            await self.engine.aclose()


def external_policy(engine: Engine, send_weights: SendWeights | None) -> Policy:
    """Return a policy around the caller's engine.

    Raises:
        ConfigurationError: The engine has no `update_weights`, and there is no `send_weights`.
    """
    if send_weights is not None:
        return Policy(engine, send_weights, is_owned=False)
    if not isinstance(engine, WeightSink):
        raise ConfigurationError(
            f"engine {engine.name!r} has no update_weights, so it would keep sampling with "
            "the initial weights; give send_weights=, a coroutine function of model and "
            "version, such as "
            "envkit_trl.DiskWeightTransfer for SGLang"
        )
    sink: WeightSink = engine

    async def update(model: Any, version: str) -> None:  # noqa: ANN401
        await sink.update_weights(model.state_dict(), version=version)

    return Policy(engine, update, is_owned=False)


def embedded_policy(
    trainer: Any,  # noqa: ANN401  # a trl.GRPOTrainer
    options: Mapping[str, Any],
) -> Policy:
    """Return a policy that samples from the trainer's own model, in place.

    Nothing is copied: an optimizer step only has to free the engine's caches.

    Args:
        trainer: Its model is unsharded.
        options: Options of `TransformersEngine`.

    Raises:
        ConfigurationError: The model is sharded, or is one that the embedded engine cannot run.
    """
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(
        trainer, "is_deepspeed_enabled", False
    ):
        raise ConfigurationError(
            "the embedded engine cannot sample from a model that FSDP or DeepSpeed shards; give "
            "engine= and send_weights=, such as an SGLangEngine and envkit_trl.DiskWeightTransfer"
        )
    from envkit_transformers import TransformersEngine

    model = trainer.accelerator.unwrap_model(trainer.model)
    with evaluating(model):
        engine = TransformersEngine(model, trainer.processing_class, **options)

    async def forget(_model: Any, version: str) -> None:  # noqa: ANN401
        await engine.update_weights(_unchanged, version=version)

    return Policy(engine, forget, is_owned=True)


@contextmanager
def evaluating(model: Any) -> Generator[None]:  # noqa: ANN401  # a torch module
    """Switch a model to evaluation mode, without dropout, inside the block."""
    was_training: bool = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def without_ids(model: Any, ids: Sequence[int]) -> Generator[None]:  # noqa: ANN401
    """Remove ids from the model's distribution by a bias on its head.

    A head with its own bias, which no current model has, is unchanged.
    """
    import torch

    head: Any = model.get_output_embeddings()
    if not ids or head.bias is not None:
        yield
        return
    bias = head.weight.new_zeros(head.weight.shape[0])
    bias[list(ids)] = _NEVER
    head.bias = torch.nn.Parameter(bias, requires_grad=False)
    try:
        yield
    finally:
        head.bias = None


def _unchanged(_model: Any) -> None:  # noqa: ANN401
    """Do nothing: the engine runs the trainer's own weights."""
