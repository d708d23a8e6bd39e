"""Drawing from logits: what may be drawn, how often, and with which log-probability."""

from typing import Any

import pytest
import torch
from fakes.budget import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit.rollout.engine import FinishReason, Sampling
from envkit_transformers.sampling import Draw, sample
from envkit_transformers.stopping import StopRule

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])


def draw(seed: int = 0, banned: tuple[int, ...] = (), **settings_: Any) -> Draw:
    return Draw(Sampling(**settings_), banned=banned, seed=seed, start=0)


def support(**settings_: Any) -> set[int]:
    one = draw(**settings_)
    return {sample(LOGITS, [one])[0][0] for _ in range(400)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    count = 20_000
    one = draw(temperature=temperature)
    tokens, logprobs = sample(LOGITS.repeat(count, 1), [one] * count)
    expected = (LOGITS[0] / temperature).softmax(-1)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=5) / count
    assert (frequencies - expected).abs().max() < 0.015
    assert torch.tensor(logprobs).exp().sub(expected[tokens]).abs().max() < 1e-6


def test_top_k_and_top_p_cut_the_tail_only() -> None:
    assert support(top_k=1) == {4}
    assert support(top_k=2) == {0, 4}
    assert support(top_p=0.5) == {4}
    assert support(top_p=0.7) == {0, 4}
    assert support(top_p=0.7, top_k=1) == {4}
    assert support() == {0, 1, 2, 3, 4}


def test_rows_have_their_own_settings() -> None:
    draws = [draw(temperature=0.0), draw(top_k=1, banned=(4,)), draw(banned=(0, 1, 2, 4))]
    tokens, logprobs = sample(LOGITS.repeat(3, 1), draws)
    assert tokens == [4, 0, 3]
    assert logprobs[2] == pytest.approx(0.0)
    masked = LOGITS[0].clone()
    masked[4] = float("-inf")
    assert logprobs[1] == pytest.approx(float(masked.log_softmax(-1)[0]), abs=1e-6)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=20),
    st.integers(0, 2**32),
    st.floats(0.05, 1.0),
    st.one_of(st.none(), st.integers(1, 30)),
    st.floats(0.01, 5.0),
    st.sets(st.integers(0, 19), max_size=5),
)
def test_drawn_token_is_allowed_and_its_logprob_is_the_tempered_one(
    logits: list[float],
    seed: int,
    top_p: float,
    top_k: int | None,
    temperature: float,
    banned: set[int],
) -> None:
    size = len(logits)
    out = tuple(token for token in banned if token < size - 1)
    one = draw(seed, top_p=top_p, top_k=top_k, temperature=temperature, banned_ids=out)
    (token,), (logprob,) = sample(torch.tensor([logits]), [one])
    scaled = torch.tensor(logits) / temperature
    scaled[list(out)] = float("-inf")
    reference = scaled.log_softmax(-1)
    assert token not in out
    assert logprob == pytest.approx(float(reference[token]), rel=1e-4, abs=1e-4)
    if top_k is not None:
        assert int((reference > reference[token]).sum()) < top_k
    assert float(reference.exp()[reference > reference[token]].sum()) <= top_p + 1e-5


def test_draws_depend_on_seed_and_prompt_length_only() -> None:
    row = torch.zeros(1, 1000)
    tokens = [
        sample(row, [Draw(Sampling(), banned=(), seed=seed, start=start)])[0][0]
        for seed, start in [(1, 10), (1, 10), (2, 10), (1, 11)]
    ]
    assert tokens[0] == tokens[1]
    assert len(set(tokens)) == 3


class BytesTokenizer:
    """Decodes token n as byte n, with replacement characters where bytes are no text."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=30), st.text(min_size=1, max_size=6))
def test_stop_string_is_found_at_the_first_token_that_completes_it(text: str, stop: str) -> None:
    assume("\ufffd" not in stop)  # which every half character decodes to
    rule = StopRule(
        Sampling(stop=(stop,)), default_ids=(), tokenizer=BytesTokenizer(), budget=10_000
    )
    encoded = (text + stop).encode()
    end = encoded.find(stop.encode()) + len(stop.encode())
    found = next(count for count in range(1, len(encoded) + 1) if rule.check(list(encoded[:count])))
    assert found == end
    assert rule.check(list(encoded[:end])) is FinishReason.STOP
