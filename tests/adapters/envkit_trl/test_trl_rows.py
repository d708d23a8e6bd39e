"""Rows for TRL: what is refused, what of a fault is delivered, and what TRL scores."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.boundaries import at_limit
from fakes.trajectories import IMAGE_TOKEN, Context, Reply, build, picture
from hypothesis import given

from envkit.errors import ConfigurationError, LedgerFault
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import Row, StopReason
from envkit_trl import env_reward
from envkit_trl.factory import ToolEnvironment
from envkit_trl.rows import check_rows, episode_row, leave_out_faults

END = 7
LONGEST = 4
FAULTS = [one for one in StopReason if one.is_fault]


def row(*mask: int, prompt: tuple[int, ...] = (1, 2), **changes: Any) -> Row:
    """Return a row with one response token per entry of the mask."""
    sound = Row(
        prompt_ids=prompt,
        response_ids=tuple(range(10, 10 + len(mask))),
        loss_mask=mask,
        logprobs=(0.0,) * len(mask),
        reward=1.0,
        turns=(0,),
        is_last=True,
    )
    return replace(sound, **changes)


def features(*counts: int) -> tuple[ImageFeatures, ...]:
    tensors = {"pixel_values": np.zeros((1, 1), np.float32)}
    return tuple(ImageFeatures(tensors=tensors, token_count=count) for count in counts)


def check(*rows: Row, image_id: int | None = IMAGE_TOKEN) -> None:
    check_rows(rows, image_id=image_id, max_completion=LONGEST)


@given(at_limit(LONGEST))
def test_trl_completion_has_one_token_to_the_configured_maximum(length: int) -> None:
    if 1 <= length <= LONGEST:
        check(row(*(1,) * length))
        return
    with pytest.raises(LedgerFault, match=r"from 1 to 4 .*got \(. *, ., .\)"):
        check(row(*(1,) * length))


@pytest.mark.parametrize("column", ["loss_mask", "logprobs", "response_ids"])
def test_trl_columns_of_a_row_have_one_length(column: str) -> None:
    sound = row(1, 1)
    for other in ((1,), (1, 1, 1)):
        with pytest.raises(LedgerFault, match="row 1: completion, mask and log-prob"):
            check(sound, replace(sound, **{column: other}))


def test_trl_completion_ends_with_a_sampled_token_or_trains_nothing() -> None:
    check(row(0, 1), row(1, 0, 1), row(0, 0))
    for mask in ((1, 0), (0, 1, 0)):
        with pytest.raises(LedgerFault, match="must end with a sampled token"):
            check(row(*mask))


@given(at_limit(3), at_limit(3))
def test_trl_placeholders_of_prompt_and_completion_match_the_features(
    in_prompt: int, in_response: int
) -> None:
    shown = row(
        *(0,) * in_response,
        1,
        prompt=(1, *(IMAGE_TOKEN,) * in_prompt),
        response_ids=(*(IMAGE_TOKEN,) * in_response, 9),
        images=(picture(0), picture(1)),
        features=features(1, 2),
    )
    found = in_prompt + in_response
    if found == 3:
        check_rows([shown], image_id=IMAGE_TOKEN, max_completion=5)
        return
    with pytest.raises(LedgerFault, match=f"2 features of 3 tokens, got {found} placeholders"):
        check_rows([shown], image_id=IMAGE_TOKEN, max_completion=5)


@pytest.mark.parametrize("count", [0, 2])
def test_trl_each_image_has_features(count: int) -> None:
    one = row(1, prompt=(IMAGE_TOKEN,), images=(picture(0),) * count, features=features(1))
    with pytest.raises(LedgerFault, match=f"{count} images have 1 features"):
        check(one)


def test_trl_any_token_is_text_for_a_processor_without_images() -> None:
    check(row(1, prompt=(0, 1, IMAGE_TOKEN)), image_id=None)
    with pytest.raises(LedgerFault, match="1 images have 1 features of 1 tokens"):
        check(row(1, images=(picture(0),), features=features(1)), image_id=None)


@pytest.mark.parametrize("stop_reason", [*FAULTS, StopReason.ABORTED])
def test_trl_episode_without_a_reward_is_one_untrained_end_token(stop_reason: StopReason) -> None:
    cut = build([Reply(), Reply()], stop_reason=stop_reason)
    scored = replace(cut, reward=0.5) if stop_reason.is_fault else cut
    for one in (cut, scored):
        assert episode_row(one, end_id=END) == Row(
            prompt_ids=(END,),
            response_ids=(END,),
            loss_mask=(0,),
            logprobs=(0.0,),
            reward=None,
            turns=(),
            is_last=True,
            is_placeholder=True,
        )


def test_trl_rewarded_episode_trains_every_sampled_token_once() -> None:
    observed = Context(text_ids=(21, 22))
    episode = build([Reply(ids=(5,), logprobs=(-1.0,), observation=observed), Reply(reward=0.5)])
    found = episode_row(episode, end_id=END)
    assert found.response_ids == (5, 21, 22, 101, 102, 103)
    assert found.loss_mask == (1, 0, 0, 1, 1, 1)
    assert found.logprobs == (-1.0, 0.0, 0.0, -0.5, np.float32(-0.01), -2.25)
    assert (found.reward, found.is_placeholder) == (0.5, False)


def test_trl_reward_of_zero_is_a_reward() -> None:
    found = episode_row(build([Reply(reward=0.0)]), end_id=END)
    assert (found.loss_mask, found.reward) == ((1, 1, 1), 0.0)


def test_trl_episode_without_a_reply_keeps_its_reward_and_trains_nothing() -> None:
    found = episode_row(replace(build([]), reward=0.25), end_id=END)
    assert (found.response_ids, found.loss_mask, found.reward) == ((END,), (0,), 0.25)


def test_trl_several_sequences_are_refused_with_their_number() -> None:
    replies = [Reply(observation=Context(), starts_sequence=True)] * 2
    with pytest.raises(ConfigurationError, match="which makes 3 rows"):
        episode_row(build([*replies, Reply()]), end_id=END)


def test_trl_reward_function_logs_faults_and_truncations() -> None:
    logged: dict[str, float] = {}
    reasons = [StopReason.TERMINATED, StopReason.ENV_FAULT, StopReason.MAX_TURNS, "turn_tokens"]
    stops = [StopReason(reason).value for reason in reasons]
    given_rewards = [1.0, None, 0.0, 0.0]
    rewards = env_reward(given_rewards, env_stop=stops, log_metric=logged.__setitem__)
    assert rewards == given_rewards
    assert logged == {"envkit/faults": 1.0, "envkit/truncated": 0.5}
    logged.clear()
    assert env_reward(given_rewards, log_metric=logged.__setitem__) == given_rewards
    assert env_reward(given_rewards, env_stop=stops) == given_rewards
    assert logged == {}


class Trainer:
    """TRL's trainer as far as `leave_out_faults` uses it; process 0 of two."""

    def __init__(self, environments: Sequence[object] | None = None) -> None:
        self.environments = environments
        self.accelerator = SimpleNamespace(gather=self._gather)
        self.gathered = 0

    def _gather(self, scores: torch.Tensor) -> torch.Tensor:
        self.gathered += 1
        return torch.cat([scores, scores.new_tensor([0.0])])

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, ids: Any
    ) -> torch.Tensor:
        assert (prompts, completions, ids) == ("prompts", "completions", "ids")
        rows = [[float(number), 10.0 + number] for number in range(len(inputs) + 1)]
        return torch.tensor(rows, dtype=torch.float64)

    def scores(self, inputs: list[dict[str, Any]]) -> list[list[float]]:
        found = self._calculate_rewards(inputs, "prompts", "completions", "ids")
        assert found.dtype == torch.float64
        return found.nan_to_num(-1.0).tolist()


@pytest.fixture
def trainer_class(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    module = ModuleType("trl.trainer.grpo_trainer")
    fresh = type("GRPOTrainer", (Trainer,), dict(Trainer.__dict__))
    vars(module)["GRPOTrainer"] = fresh
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fresh


def test_trl_fault_is_scored_by_no_reward_function(trainer_class: type[Trainer]) -> None:
    leave_out_faults()
    inputs = [{"env_reward": 1.0}, {"env_reward": None}, {"env_reward": 0.0}, {}]
    expected = [[0.0, 10.0], [-1.0, -1.0], [2.0, 12.0], [3.0, 13.0], [4.0, 14.0]]
    assert trainer_class().scores(inputs) == expected


def test_trl_fault_of_the_tool_loop_is_scored_by_no_reward_function(
    trainer_class: type[Trainer],
) -> None:
    environments = [ToolEnvironment(), ToolEnvironment(), SimpleNamespace(get_reward=lambda: None)]
    assert isinstance(environments[1], ToolEnvironment)
    environments[1]._fault = OSError("gone")
    inputs: list[dict[str, Any]] = [{"env_reward": None}] * 3  # not read: a dataset may have one
    scores = trainer_class(environments).scores(inputs)
    assert scores == [[0.0, 10.0], [-1.0, -1.0], [2.0, 12.0], [3.0, 13.0]]


def test_trl_scoring_is_wrapped_once(trainer_class: type[Trainer]) -> None:
    leave_out_faults()
    leave_out_faults()
    trainer = trainer_class()
    trainer.scores([{"env_reward": None}])
    assert trainer.gathered == 1


@pytest.mark.parametrize("module", [None, ModuleType("trl.trainer.grpo_trainer")])
def test_trl_scoring_of_another_trainer_stays(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    if module is None:
        monkeypatch.delitem(sys.modules, "trl.trainer.grpo_trainer", raising=False)
    else:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    before = Trainer._calculate_rewards
    leave_out_faults()
    assert Trainer._calculate_rewards is before
