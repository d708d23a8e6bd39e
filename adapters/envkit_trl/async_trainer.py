"""TRL's AsyncGRPOTrainer with the images of every turn.

TRL's rows are text: a sample has no field for images, and rows fold into a prefix tree of ids. Here
images travel with a sample's ids (`samples.IdsWithImages`), and the collator adds their tensors to
the model's inputs. Written for TRL 1.16 (trl/experimental/async_grpo); the contract tests pin the
version.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from envkit.errors import ConfigurationError, LedgerFault, MissingDependencyError
from envkit.tokens import join_features
from envkit_trl.contract import CONTRACT
from envkit_trl.policy import without_ids
from envkit_trl.samples import IdsWithImages
from envkit_trl.worker import EnvRolloutWorker

try:
    from trl.experimental.async_grpo import AsyncGRPOTrainer
except ImportError as error:
    raise MissingDependencyError.for_extra("training with TRL", "trl", "trl") from error
CONTRACT.check()

_PREFIX = "envkit_"
"""Prefix of the tensors that the collator adds to a batch."""


class EnvAsyncGRPOTrainer(AsyncGRPOTrainer):
    """AsyncGRPO on environments, with images in any turn and any number of rows per episode.

    Attributes:
        media_ids: Placeholders, which the model never predicts because engines never sample them.
    """

    def __init__(
        self,
        model: str,
        *,
        rollout_worker: EnvRolloutWorker,
        freeze_vision: bool = False,
        **options: Any,  # noqa: ANN401  # of AsyncGRPOTrainer
    ) -> None:
        """Create the trainer.

        Args:
            model: As for AsyncGRPOTrainer: a name or a folder.
            rollout_worker: Plays the episodes and transfers the weights.
            freeze_vision: Train only the language model, as AsyncGRPOTrainer does. By default
                everything is trained, as in GRPOTrainer.
            options: args, train_dataset, processing_class (the tokenizer) and others.

        Raises:
            ConfigurationError: `weight_transfer` is given; the worker's is used.
        """
        if "weight_transfer" in options:
            raise ConfigurationError(
                "EnvAsyncGRPOTrainer transfers weights with "
                "rollout_worker.weight_transfer(), got weight_transfer= too; omit it"
            )
        super().__init__(
            model,
            rollout_worker=rollout_worker,
            weight_transfer=rollout_worker.weight_transfer(),
            **options,
        )
        self.media_ids = rollout_worker.row_settings().media_ids
        if not self._is_vlm:
            return
        rollout_worker.takes_images = True
        own: Any = self.accelerator.unwrap_model(self.model)
        # TRL's packed attention applies only to the language model.
        own.set_attn_implementation({"vision_config": "sdpa"})
        if not freeze_vision and options.get("peft_config") is None:
            own.requires_grad_(True)

    def get_train_dataloader(self) -> Any:  # noqa: ANN401  # a DataLoader
        """Return TRL's loader, whose batches also hold the tensors of the images."""
        loader = super().get_train_dataloader()
        collator: Any = loader.collate_fn
        collator.torch_call = partial(_collated, collator.torch_call)
        return loader

    def compute_loss(
        self,
        model: Any,  # noqa: ANN401
        inputs: dict[str, Any],
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        """Compute TRL's loss with the images, without predicting placeholders."""
        own: Any = self.accelerator.unwrap_model(self.model)
        tensors = {
            name.removeprefix(_PREFIX): inputs[name][0][: int(inputs[f"count_{name}"][0])]
            for name in inputs
            if name.startswith(_PREFIX)
        }
        reader = _Reader(model, own, tensors) if tensors else model
        with without_ids(own, self.media_ids):
            loss: torch.Tensor = super().compute_loss(reader, inputs, *arguments, **options)
        return loss


def _collated(collate: Any, examples: list[Any]) -> dict[str, Any]:  # noqa: ANN401
    """Collate rows and add their image tensors, padded to one size.

    Raises:
        LedgerFault: Only some processes have rows with images.
    """
    batch: dict[str, Any] = collate(examples)
    rows: list[Mapping[str, Any]] = []
    for ids, row in zip(batch["input_ids"], examples[0], strict=True):
        features = {
            number: feature
            for sample in row.samples
            if isinstance(sample["input_ids"], IdsWithImages)
            for number, feature in sample["input_ids"].features.items()
        }
        rows.append(join_features(features[number] for number in _shown(ids)[1]))
    if any(rows) and not all(rows):
        raise LedgerFault(
            "only some processes have rows with images, which would hang the vision model's "
            "collectives; use a larger token_budget, or one process"
        )
    for name in rows[0]:
        parts = [torch.as_tensor(row[name]) for row in rows]
        batch[_PREFIX + name] = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        batch[f"count_{_PREFIX}{name}"] = torch.tensor([len(part) for part in parts])
    return batch


def _shown(ids: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the start and number of each image in a packed row."""
    before = torch.nn.functional.pad(ids[:-1], (1, 0))
    starts = torch.nonzero((ids < 0) & (ids != before))[:, 0]
    return starts, ids[starts].tolist()


class _Reader:
    """Wraps the model while TRL computes its loss: adds images and their positions."""

    def __init__(self, model: Any, own: Any, tensors: Mapping[str, torch.Tensor]) -> None:  # noqa: ANN401
        self._model, self._own, self._tensors = model, own, tensors

    def __call__(
        self,
        *,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        tree_kv_index: torch.Tensor,
        tree_cu_seqlens_k: torch.Tensor,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Call the model with the ids of one packed row, (1, N)."""
        inner = getattr(self._own, "model", None)
        if hasattr(inner, "get_rope_index"):
            paths = tree_kv_index.tensor_split(tree_cu_seqlens_k[1:-1].cpu().long())
            grids = self._tensors["image_grid_thw"]
            position_ids = _positions(input_ids[0], paths, grids, inner)
        return self._model(
            input_ids=input_ids.where(input_ids >= 0, self._own.config.image_token_id),
            position_ids=position_ids,
            tree_kv_index=tree_kv_index,
            tree_cu_seqlens_k=tree_cu_seqlens_k,
            **self._tensors,
            **options,
        )


def _positions(
    ids: torch.Tensor,
    paths: Sequence[torch.Tensor],
    grids: torch.Tensor,
    model: Any,  # noqa: ANN401
) -> torch.Tensor:
    """Return a packed row's positions in time, height and width, (3, 1, N).

    Args:
        ids: Ids of the packed row, (N,).
        paths: For each segment, the indices from the root to its end.
        grids: Grids of the row's images, (number of images, 3).
        model: A model with `get_rope_index`.
    """
    starts, _ = _shown(ids)
    order = torch.zeros_like(ids)
    order[starts] = torch.arange(len(starts), device=ids.device)
    positions = ids.new_full((3, 1, len(ids)), -1)
    for path in sorted(paths, key=len, reverse=True):
        if positions[0, 0, path[-1]] >= 0:
            continue  # a longer path includes all of it
        line = ids[path]
        images = order[path[_shown(line)[0]]]
        found, _ = model.get_rope_index(
            line[None].clamp(min=0),
            mm_token_type_ids=(line < 0).int()[None],
            image_grid_thw=grids[images] if len(images) else None,
        )
        positions[:, 0, path] = found[:, 0]
    return positions
