"""SkyRL's trainer with weights, baselines and turns computed per episode.

SkyRL 0.4.0 counts rows where it should count episodes (`sequence_mean` and
`seq_mean_token_sum_norm` over step-wise rows), and includes the placeholder of a faulted episode in
its group's deviation. `EpisodeCredit` corrects both before SkyRL's own code, and compares turns if
`envkit.turn_discount` is set. With another trainer class, put it before that class:

    class Trainer(EpisodeCredit, FullyAsyncRayPPOTrainer): ...
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import torch

from envkit.advantages import TurnRewards, turn_advantages
from envkit_skyrl.contract import CONTRACT
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.rows import ERROR
from envkit_skyrl.validation import GeneratorOutput

CONTRACT.check()

from skyrl.train.trainer import RayPPOTrainer  # noqa: E402  # after the check

_EPISODES: Final = "envkit_episodes"
"""Key of a batch's metadata: the number of each row's episode, without padding rows."""
_FAULTED: Final = "envkit_faulted"
"""Key of a batch's metadata: whether a row stands for an episode without a reward."""


class EpisodeCredit(RayPPOTrainer):
    """Weights episodes, not rows, and excludes faulted episodes from their groups."""

    def convert_to_training_input(self, generator_output: GeneratorOutput, uids: list[str]) -> Any:  # noqa: ANN401  # SkyRL's TrainingInputBatch
        """Record each row's episode, which SkyRL drops before weighting rows."""
        batch = super().convert_to_training_input(generator_output, uids)
        last = generator_output.get("is_last_step") or [True] * len(uids)
        batch.metadata[_EPISODES] = [0, *accumulate(map(int, last))][:-1]
        reasons = generator_output.get("stop_reasons") or [None] * len(uids)
        batch.metadata[_FAULTED] = [reason == ERROR for reason in reasons]
        return batch

    def compute_advantages_and_returns(self, data: Any) -> Any:  # noqa: ANN401  # SkyRL's
        """Compare episodes with the rewarded ones in their group."""
        uids, metadata = data.metadata["uids"], data.metadata
        metadata["uids"] = without_faults(uids, metadata[_EPISODES], metadata[_FAULTED])
        data = super().compute_advantages_and_returns(data)
        data.metadata["uids"] = uids
        faulted = torch.tensor(metadata[_FAULTED]).nonzero().flatten()
        # SkyRL takes the bare reward of a group of one as its advantage.
        data["advantages"][faulted] = data["returns"][faulted] = 0.0
        discount = SkyRLOptions.from_mapping(getattr(self.cfg, "envkit", None)).turn_discount
        if discount is not None:
            algorithm = self.cfg.trainer.algorithm
            _compare_turns(data, discount, is_scaled=algorithm.grpo_norm_by_std)
        return data

    def _normalize_advantages(
        self,
        data: Any,  # noqa: ANN401  # SkyRL's
        mini_batch_boundaries: list[tuple[int, int]],
        prompt_boundaries: list[tuple[int, int]] | None = None,
    ) -> Any:  # noqa: ANN401
        data = super()._normalize_advantages(data, mini_batch_boundaries, prompt_boundaries)
        reduction = self.cfg.trainer.algorithm.loss_reduction
        for start, end in mini_batch_boundaries:
            weights = row_weights(
                reduction, data["loss_mask"][start:end], data.metadata[_EPISODES][start:end]
            )
            data["advantages"][start:end] *= weights[:, None]
        return data


class EnvkitTrainer(EpisodeCredit):
    """SkyRL's synchronous trainer with `EpisodeCredit`."""


def _compare_turns(data: Any, discount: float, *, is_scaled: bool) -> None:  # noqa: ANN401  # SkyRL's
    """Replace the advantages by per-turn ones, against the same turn in the group."""
    episodes, faulted = data.metadata[_EPISODES], data.metadata[_FAULTED]
    rows: dict[int, list[int]] = {}
    for row, episode in enumerate(episodes):
        rows.setdefault(episode, []).append(row)
    turns: list[TurnRewards | None] = []
    for of_one in rows.values():
        # A masked token separates a row's last reply from the next row's first.
        mask = [int(one) for row in of_one for one in (*data["loss_mask"][row], 0)]
        rewards = [float(one) for row in of_one for one in (*data["rewards"][row], 0)]
        turns.append(None if faulted[of_one[0]] else TurnRewards.of_columns(mask, rewards))
    groups = [data.metadata["uids"][of_one[0]] for of_one in rows.values()]
    found = turn_advantages(turns, groups, discount=discount, is_scaled=is_scaled)
    for of_one, advantages in zip(rows.values(), found, strict=True):
        if not faulted[of_one[0]]:
            columns = torch.from_numpy(advantages).reshape(len(of_one), -1)[:, :-1]
            data["advantages"][of_one] = columns * data["response_mask"][of_one]
    data["returns"] = data["advantages"].clone()


def without_faults(
    uids: Sequence[str], episodes: Sequence[int], faulted: Sequence[bool]
) -> list[str]:
    """Return the group of each row; a row without a reward gets its own group.

    A group with fewer than two rewards is unchanged: SkyRL uses the bare reward of a group of one
    as its advantage, whereas placeholders with the mean make it 0.

    Args:
        uids: Uids of all rows, including padding.
        episodes: The number of each row's episode, without padding.
        faulted: Whether a row stands for an episode without a reward, without padding.
    """
    rows = list(zip(uids, episodes, faulted, strict=False))
    scored = Counter(uid for uid, _ in {(uid, episode) for uid, episode, bad in rows if not bad})
    own = [
        f"{uid}/faulted {episode}" if bad and scored[uid] > 1 else uid for uid, episode, bad in rows
    ]
    return [*own, *uids[len(own) :]]


def row_weights(reduction: str, loss_mask: torch.Tensor, episodes: Sequence[int]) -> torch.Tensor:
    """Return the factor of each row's advantage that gives its episode the weight of one row.

    Args:
        reduction: SkyRL's `trainer.algorithm.loss_reduction`; it has divided by the rows already.
        loss_mask: Loss mask of a mini-batch, (rows, response).
        episodes: The number of each row's episode, (rows,).
    """
    rows, count = len(episodes), len(set(episodes))
    if reduction not in ("sequence_mean", "seq_mean_token_sum_norm") or rows == count:
        return torch.ones(rows)
    weights = torch.full((rows,), rows / count)
    if reduction == "sequence_mean":
        numbers = torch.tensor(episodes) - min(episodes)
        tokens = loss_mask.sum(-1)
        totals = torch.zeros(count).index_add(0, numbers, tokens.float())
        weights *= tokens.clamp(min=1) / totals.clamp(min=1)[numbers]
    return weights
