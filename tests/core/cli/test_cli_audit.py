"""`envkit audit`: one screen that explains what is exact for a model, and the same as JSON."""

import json
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.templates import default_codec, make_codec

from envkit.tokens.audit_page import DeltaCost, audit_json, audit_page

COSTS = (
    DeltaCost(role="user", turn=1, microseconds=17.25, tokens=203),
    DeltaCost(role="user", turn=50, microseconds=2491.0, tokens=203),
)
JOIN = "Family joins pixel_values along axis 0"


def page(name: str) -> str:
    return "\n".join(audit_page(default_codec(name).audit(), COSTS, JOIN))


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_model_dir("qwen2_5_vl")


def test_audit_explains_a_model_on_one_screen(folder: Path) -> None:
    shown = run_envkit("audit", folder)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert len(lines) <= 40
    for label in (
        "user observations",
        "tool observations",
        "reply starts after",
        "stop ids",
        "history",
        "control tokens",
        "images",
        "delta cost",
        "verified",
    ):
        assert sum(line.startswith(label) for line in lines) == 1, label
    assert "user: " in shown.out
    assert " us at turn 1, " in shown.out
    assert " us at turn 50, on top of tokenizing " in shown.out


@pytest.mark.slow
def test_audit_gives_the_same_facts_as_json(folder: Path) -> None:
    shown = run_envkit("audit", folder, "--json")
    assert shown.code == 0
    facts = json.loads(shown.out)
    assert facts["roles"]["user"]["status"] == "exact"
    assert facts["image_join"] == (
        "Qwen2_5_VLProcessor joins pixel_values along axis 0, image_grid_thw along axis 0"
    )
    assert {"stops", "rewritten", "neutralised", "notes"} <= facts.keys()
    costs = [(cost["role"], cost["turn"]) for cost in facts["delta_cost"]]
    assert costs[:2] == [("user", 1), ("user", 50)]
    assert all(cost["microseconds"] >= 0 and cost["tokens"] > 100 for cost in facts["delta_cost"])


@pytest.mark.slow
def test_page_says_what_is_rewritten_and_what_a_delta_costs() -> None:
    shown = page("qwen3")
    assert "a full render rewrites reasoning before a user message" in shown
    assert "policy: keep" in shown
    assert "151645 '<|im_end|>' closes a reply before user and tool messages" in shown
    assert "user: 17 us at turn 1, 2,491 us at turn 50, on top of tokenizing 203" in shown
    assert "append-only: nothing is rewritten" in page("qwen2.5")
    assert (
        audit_json(default_codec("qwen3").audit(), COSTS, JOIN)["delta_cost"][0]["role"] == "user"
    )


@pytest.mark.slow
def test_page_names_each_stop_token_and_dependency() -> None:
    assert "200002 '<|return|>' is sampled where history has '<|end|>'" in page("gpt-oss")
    assert "the stop token of replies" in page("gpt-oss")
    assert "the observation and system, tools; rendered" in page("mistral-nemo")
    assert "tool observations    refused: " in page("gemma3")
    assert "'<|endoftext|>' ends a reply in place of the closer" in page("glm4moe")
    assert "the next role's token" in page("glm4moe")


@pytest.mark.slow
def test_page_says_whether_control_tokens_are_neutralised() -> None:
    trusting = make_codec("qwen2.5", neutralise=False).audit()
    assert "control tokens       NOT neutralised" in "\n".join(audit_page(trusting, (), JOIN))
    audit = make_codec("qwen2.5").audit()
    assert "<|im_end|>" in audit.neutralised
    (line,) = [line for line in audit_page(audit, (), JOIN) if line.startswith("control tokens")]
    assert "more: neutralised by" in line
