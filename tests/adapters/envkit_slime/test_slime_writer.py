"""Rows as samples of slime and miles, without either: masks, columns, and what is cleared."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.boundaries import at_limit
from fakes.trajectories import Context, Reply, build, picture
from hypothesis import given

from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import (
    Row,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    step_rows,
    whole_row,
)
from envkit_slime.engine import META, GenerateState
from envkit_slime.form import Form
from envkit_slime.sample import FACTS_KEY, RUNS_KEY, STATE_KEY
from envkit_slime.writer import Earlier, clear, meta_info, neutral_experts, write_nothing, write_row

FILLER = 3
ARGS = Namespace()
SEEN = Context(text_ids=(21, 22))


class Tokenizer:
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, ids))


class Plain(Form):
    """Appends tokens and log-probabilities; `fill` adds one column."""

    def __init__(
        self, args: Namespace = ARGS, *, evaluation: bool = False, tokenizer: Any = None
    ) -> None:
        super().__init__(args, evaluation=evaluation)
        self._state: Any = SimpleNamespace(tokenizer=tokenizer or Tokenizer())

    @property
    def state(self) -> GenerateState:
        return self._state

    def session_id(self, sample: Any) -> str:
        return sample.session_id

    def append(self, sample: Any, segments: Sequence[Segment]) -> None:
        for segment in segments:
            sample.tokens = [*sample.tokens, *segment.train_ids]
            sample.response_length += segment.token_count
            sample.rollout_log_probs = [*(sample.rollout_log_probs or ()), *segment.logprobs]

    def fill(self, sample: Any) -> None:
        sample.rollout_routed_experts = len(sample.tokens) - 1


FORM = Plain()


class Info:
    """slime's counters of a sample."""

    def __init__(self) -> None:
        self.count = 0


def sample(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "index": 4, "prompt": "ask", "tokens": [], "response": "", "response_length": 0,
        "loss_mask": None, "rollout_log_probs": None, "weight_versions": [],
        "rollout_routed_experts": None, "multimodal_train_inputs": None, "reward": None,
        "remove_sample": False, "status": "pending", "non_generation_time": 0.0,
        "spec_info": Info(), "prefix_cache_info": Info(), "metadata": {},
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def episode(*lengths: int, prompt: Context | None = None) -> Trajectory:
    """Return an episode with replies of these lengths, each from other weights."""
    last = len(lengths) - 1
    replies = [
        Reply(
            ids=tuple(range(100 * (n + 1), 100 * (n + 1) + length)),
            logprobs=(-1.0 - n,) * length,
            weight_version=str(n),
            observation=None if n == last else SEEN,
        )
        for n, length in enumerate(lengths)
    ]
    return build(replies, prompt=prompt)


ENDED = episode(1)
"""Sets the status of every sample, whose columns are those of its row."""


def row_of(*lengths: int) -> Row:
    return whole_row(episode(*lengths), filler_id=FILLER)


def written(row: Row, *, into: Any = None, earlier: Earlier | None = None) -> Any:
    found = sample() if into is None else into
    write_row(FORM, found, ENDED, row, earlier=earlier)
    return found


def earlier(row: Row, count: int, *, mask: tuple[int, ...] | None = None) -> Earlier:
    """Return the state of a sample that had `count` tokens of the row's response."""
    tokens = (*row.prompt_ids, *row.response_ids)[: len(row.prompt_ids) + count]
    return Earlier(tokens=tokens, response_length=count, loss_mask=mask or (0,) * count)


def test_slime_sample_trains_each_sampled_token_once() -> None:
    found = written(row_of(1, 2))
    assert found.tokens == [11, 12, 13, 14, 100, 21, 22, 200, 201]
    assert found.response_length == len(found.loss_mask) == 5
    assert found.loss_mask == [1, 0, 0, 1, 1]
    assert found.rollout_log_probs == [-1.0, 0.0, 0.0, -2.0, -2.0]
    assert found.response == "100 21 22 200 201"
    assert found.metadata == {RUNS_KEY: [(0, 1, "0"), (3, 5, "1")]}
    assert found.multimodal_train_inputs is None
    assert found.rollout_routed_experts is None


def test_slime_steps_have_the_shared_tokens_in_their_prompt() -> None:
    first, second = step_rows(episode(1, 2), filler_id=FILLER)
    assert (written(first).loss_mask, written(second).loss_mask) == ([1], [1, 1])
    assert written(second).tokens == [11, 12, 13, 14, 100, 21, 22, 200, 201]
    assert written(second).metadata == {RUNS_KEY: [(0, 2, "1")]}


def test_slime_faulted_sample_keeps_its_tokens_with_mask_zero() -> None:
    lost = replace(episode(1, 2), stop_reason=StopReason.ENV_FAULT)
    found = written(whole_row(lost, filler_id=FILLER))
    assert found.loss_mask == [0, 0, 0, 0, 0]
    assert len(found.rollout_log_probs) == found.response_length == 5


class Noting(Plain):
    """Notes what `annotate` gets."""

    def __init__(self, args: Namespace, *, evaluation: bool) -> None:
        super().__init__(args, evaluation=evaluation)
        self.annotated: list[tuple[Any, ...]] = []

    def annotate(self, sample: Any, trajectory: Trajectory) -> None:
        self.annotated.append((sample, trajectory))


def finished(
    ended: Trajectory, *, row: Row | None = None, evaluation: bool = False, **args: Any
) -> Any:
    """Return the sample of a trajectory, written with the trainer's arguments."""
    form = Noting(Namespace(**args), evaluation=evaluation)
    found = sample(metadata={FACTS_KEY: {}}, multimodal_inputs=None)
    row = whole_row(ended, filler_id=FILLER) if row is None else row
    write_row(form, found, ended, row)
    assert form.annotated == [(found, ended)]
    return found


@pytest.mark.parametrize(
    ("reason", "status", "reward"),
    [
        (StopReason.TERMINATED, "completed", 2.5),
        (StopReason.MAX_TURNS, "truncated", 2.5),
        (StopReason.CONTEXT_TOKENS, "truncated", 2.5),
        (StopReason.ABORTED, "aborted", None),
        (StopReason.ENV_FAULT, "failed", 0.0),
        (StopReason.ENGINE_FAULT, "failed", 0.0),
    ],
)
def test_slime_sample_says_how_its_episode_ended(
    reason: StopReason, status: str, reward: float | None
) -> None:
    ended = build([Reply(reward=2.5)], stop_reason=reason)
    found = finished(ended)
    assert (found.status, found.reward) == (status, reward)
    is_lost = status == "failed"
    assert found.remove_sample is is_lost
    assert found.metadata[FACTS_KEY] == ({"removed": True} if is_lost else {})


def test_slime_sample_is_removed_only_if_there_is_nothing_to_train_on() -> None:
    silent = build([], stop_reason=StopReason.CONTEXT_TOKENS)
    assert finished(silent).remove_sample is True
    assert finished(silent, row=row_of(1)).remove_sample is False
    untrained = replace(row_of(1), loss_mask=(0,))
    assert finished(ENDED, row=untrained).remove_sample is False


@pytest.mark.parametrize(
    ("args", "reward"),
    [({}, 2.5), ({"group_rm": True}, None), ({"custom_rm_path": "mine.score"}, None)],
    ids=str,
)
def test_slime_sample_has_the_reward_unless_a_function_of_the_user_sets_it(
    args: dict[str, Any], reward: float | None
) -> None:
    assert finished(build([Reply(reward=2.5)]), **args).reward == reward
    lost = build([Reply()], stop_reason=StopReason.ENV_FAULT)
    assert finished(lost, **args).reward == (None if "group_rm" in args else 0.0)


def test_slime_reward_functions_get_the_images_of_the_row() -> None:
    shown = build([Reply(observation=replace(SEEN, images=(picture(0),))), Reply(reward=1.0)])
    assert finished(shown).multimodal_inputs is None  # nobody reads them
    for name in ("group_rm", "recompute_logprobs_via_prefill"):
        given_args: dict[str, Any] = {name: True}
        inputs = finished(shown, **given_args).multimodal_inputs
        assert [one.size for one in inputs["images"]] == [picture(0).size]
        assert inputs["videos"] is None
    assert finished(build([Reply()]), group_rm=True).multimodal_inputs is None  # no image
    lost = replace(shown, stop_reason=StopReason.ENV_FAULT, reward=None)
    assert finished(lost, group_rm=True).multimodal_inputs is None  # scores nothing


def test_slime_log_says_why_a_sample_is_not_trained(caplog: pytest.LogCaptureFixture) -> None:
    finished(build([Reply()], stop_reason=StopReason.ENV_FAULT))
    assert [record.getMessage() for record in caplog.records] == [
        "sample 4 is excluded from training: timeout in step: no answer in 5 s"
    ]
    caplog.clear()
    finished(ENDED)
    assert not caplog.records


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ({"eos_token_id": 7, "pad_token_id": 8}, 7),
        ({"eos_token_id": None, "pad_token_id": 8}, 8),
        ({"eos_token_id": [7], "pad_token_id": None}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_slime_filler_is_the_tokenizers_end_or_padding(tokens: Any, expected: int) -> None:
    assert Plain(tokenizer=SimpleNamespace(**tokens)).filler_id == expected


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("partial", [{"partial_rollout": True}, {"partial_rollout": False}, {}])
def test_slime_form_resumes_samples_in_training_only(
    partial: dict[str, bool], evaluation: bool
) -> None:
    expected = partial == {"partial_rollout": True} and not evaluation
    assert Plain(Namespace(**partial), evaluation=evaluation).keeps_partial is expected


def test_slime_text_has_wire_ids_and_the_model_gets_the_images() -> None:
    """A placeholder is one wire id, however many train ids an image has."""
    shown = replace(SEEN, images=(picture(0),))
    replies = [Reply(observation=shown), Reply()]
    whole = build(replies)
    features = ImageFeatures(tensors={"pixels": np.arange(6.0).reshape(3, 2)}, token_count=4)
    segments = [replace(one, features=(features,)) if one.images else one for one in whole.segments]
    found = written(whole_row(replace(whole, segments=tuple(segments)), filler_id=FILLER))
    assert found.response.split().count("9000") == 1
    assert found.tokens.count(9000) == 4
    (pixels,) = found.multimodal_train_inputs.values()
    assert isinstance(pixels, torch.Tensor)
    assert pixels.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_slime_placeholder_is_one_token_with_mask_zero_and_every_column() -> None:
    silent = build([], stop_reason=StopReason.CONTEXT_TOKENS)
    found = written(whole_row(silent, filler_id=FILLER))
    assert found.tokens == [11, 12, 13, 14, FILLER]
    assert (found.response_length, found.loss_mask, found.rollout_log_probs) == (1, [0], [0.0])
    assert found.rollout_routed_experts == 4  # one for each token but the last
    assert (found.response, found.metadata) == ("", {})


@pytest.mark.parametrize("tokens", [[], None])
def test_slime_sample_without_a_prompt_has_two_tokens(tokens: Any) -> None:
    """A row needs a prompt, which a failure before the first one lacks."""
    found = sample(tokens=tokens)
    write_nothing(FORM, found, FILLER)
    assert found.tokens == [FILLER, FILLER]
    assert (found.response_length, found.loss_mask, found.rollout_log_probs) == (1, [0], [0.0])


@given(at_limit(5))
def test_slime_zeros_stay_up_to_the_end_of_the_earlier_part(count: int) -> None:
    row = row_of(1, 2)
    count = min(count, 5)
    found = written(row, earlier=earlier(row, count))
    assert found.loss_mask == [0] * count + [1, 0, 0, 1, 1][count:]


def test_slime_an_earlier_mask_never_trains_an_observation() -> None:
    row = row_of(1, 2)
    assert earlier(row, 4, mask=(1, 1, 1, 0)).masked(row) == [1, 0, 0, 0, 1]


def test_slime_zeros_of_another_response_are_dropped() -> None:
    row = row_of(1, 2)
    mask = list(row.loss_mask)
    same = earlier(row, 2)
    changed = replace(same, tokens=(*same.tokens[:-1], 9))
    longer = replace(earlier(row, 5), tokens=(*row.prompt_ids, *row.response_ids, 9))
    moved = replace(same, response_length=3, loss_mask=(0, 0, 0))
    for other in (changed, replace(longer, response_length=6), moved):
        assert other.masked(row) == mask
    assert replace(same, loss_mask=None).masked(row) == mask


def test_slime_earlier_part_is_a_copy_of_the_samples_columns() -> None:
    given_sample = sample(tokens=[1, 2, 3], response_length=2, loss_mask=[0, 1])
    found = Earlier.of(given_sample)
    assert found == Earlier(tokens=(1, 2, 3), response_length=2, loss_mask=(0, 1))
    assert Earlier.of(sample()) == Earlier(tokens=(), response_length=0, loss_mask=None)


def used(**metadata: Any) -> Any:
    """Return a sample with something in every column."""
    counted = [Info(), Info()]
    for one in counted:
        one.count = 3
    return sample(
        tokens=[1, 2], response="text", response_length=1, loss_mask=[1], reward=1.0,
        rollout_log_probs=[-1.0], weight_versions=["3"], rollout_routed_experts=5,
        multimodal_train_inputs={"pixels": 1}, remove_sample=True, non_generation_time=2.0,
        spec_info=counted[0], prefix_cache_info=counted[1], metadata=metadata,
    )  # fmt: skip


@pytest.mark.parametrize("is_ours", [False, True])
def test_slime_cleared_sample_keeps_only_identity_prompt_and_its_own_metadata(
    is_ours: bool,
) -> None:
    facts = {FACTS_KEY: {"removed": True} if is_ours else {"reward": 1.0}}
    found = used(source="math", **facts, **{STATE_KEY: b"", RUNS_KEY: []})
    clear(found)
    infos = (vars(found).pop("spec_info"), vars(found).pop("prefix_cache_info"))
    assert [one.count for one in infos] == [0, 0]
    fresh = vars(sample(metadata={"source": "math"}, remove_sample=not is_ours))
    assert vars(found) == {key: one for key, one in fresh.items() if not key.endswith("_info")}
    assert found.remove_sample is not is_ours  # what slime or a filter removed stays removed


def test_slime_sample_without_our_metadata_is_cleared() -> None:
    found = used()
    clear(found)
    assert (found.metadata, found.remove_sample) == ({}, True)


def test_slime_server_information_is_that_of_the_reply() -> None:
    segment = Segment(
        kind=SegmentKind.MODEL,
        turn=0,
        wire_ids=(1,),
        train_ids=(1,),
        finish_reason="length",
        weight_version="7",
        extras={"experts": 1, META: {"cached_tokens": 5}},
    )
    expected = {"experts": 1, "cached_tokens": 5, "finish_reason": {"type": "length"}}
    assert meta_info(segment) == {**expected, "weight_version": "7"}
    assert segment.extras == {"experts": 1, META: {"cached_tokens": 5}}
    bare = replace(segment, weight_version=None, extras={})
    assert meta_info(bare) == {"finish_reason": {"type": "length"}}
    seen = replace(bare, kind=SegmentKind.OBSERVATION, loss_mask=(0,))
    assert meta_info(seen) is None


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_slime_experts_of_unrouted_tokens_are_the_first_at_every_layer(rows: int) -> None:
    args = Namespace(moe_router_topk=3, num_layers=2)
    found = neutral_experts(args, rows)
    assert found.dtype == np.int32
    assert found.tolist() == [[[0, 1, 2]] * 2] * rows
    assert found.flags.writeable


def test_slime_form_adds_nothing_of_its_own() -> None:
    form, one = Plain(), sample()
    attributes = {"tokens": 3}
    with form.span(one)(attributes) as given_attributes:
        assert given_attributes is attributes
    assert form.attributes(attributes) is attributes
    assert form.request_fields(one) == {}
    form.check_rows(one, [row_of(1), row_of(1)])
    form.annotate(one, episode(1))
    assert one.metadata == {}
