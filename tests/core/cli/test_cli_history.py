"""`envkit rollout` with history policies: from the option to the stored record, and on."""

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import branching
from fakes.chat_server import KEY, MODEL, ChatServer, pictures_of
from fakes.command import Outcome, run_envkit
from fakes.envs import register_toys
from fakes.models import tiny_model_dir

from envkit.env import Policy, PolicyContext, Turn
from envkit.rollout.run_settings import read_settings
from envkit.trajectory import Trajectory, check_trajectory, load, verify_file

SUMMARY = {"summarise": {"at_tokens": 50}}
IMAGES = {"keep_last_images": {"keep": 1, "drop_at": 2}}


TEMPLATE = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last -%}
{{ m.content.split('</think>')[-1].strip() }}
{%- else -%}
{{ m.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif -%}
{%- endif -%}"""
"""Drops the reasoning of earlier replies, as that of Qwen3 does."""


class Screens(branching.Screens):
    """Has images unless they are turned off, and a policy that thinks."""

    interrupted_at: int | None = None

    def __init__(self, *, images: bool = True) -> None:
        super().__init__(images=images)

    @property
    def policies(self) -> Mapping[str, Callable[[], Policy]]:
        return {"thinker": lambda: think}

    def on_turn(self, response_text: str) -> Turn:
        if self.turn + 1 == type(self).interrupted_at:
            signal.raise_signal(signal.SIGINT)
        return super().on_turn(response_text)


class Summarised(Screens):
    """Asks for summaries by default."""

    history_policy = SUMMARY


def think(context: PolicyContext) -> str:
    return f"<think>\nreason {context.turn}\n</think>\n\nAnswer {context.turn}."


@pytest.fixture(autouse=True)
def _registered(toys_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    register_toys({"toy-screens-v0": Screens, "toy-summarised-v0": Summarised})


def reasoning_model() -> Path:
    """Return a model whose template drops the reasoning of earlier replies."""
    folder = Path("reasoning")
    folder.mkdir()
    for source in tiny_model_dir("qwen3").iterdir():
        if source.name != "chat_template.jinja":
            (folder / source.name).symlink_to(source)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def rollout(*options: object, env: str = "toy-screens-v0") -> Outcome:
    return run_envkit("rollout", env, "-n", 2, "-q", "--out", "run", *options)


def scripted(model: Path, *options: object, **env: Any) -> Outcome:
    return rollout(
        "--policy", "thinker", "--model", model,
        *(f"--env-kwargs={name}={json.dumps(value)}" for name, value in env.items()), *options,
    )  # fmt: skip


def evaluate(server: ChatServer, *options: object, env: str = "toy-screens-v0") -> Outcome:
    return run_envkit(
        "eval", env, "--chat", server.url, "--model", MODEL, "-n", 2, "-q", "--out", "out",
        *options,
    )  # fmt: skip


def played() -> tuple[Trajectory, ...]:
    assert verify_file("run").is_sound
    found = tuple(load("run"))
    for one in found:
        assert one.fault is None, one.fault
        assert check_trajectory(one) == ()
    return found


def test_history_rerender_reaches_the_codec() -> None:
    shown = scripted(reasoning_model(), "--set", "history=rerender", images=False)
    assert shown.code == 0, shown.err
    for one in played():
        assert {branch.reason for branch in one.branches} == {"template"}


def test_template_variables_reach_the_codec() -> None:
    lengths: list[int] = []
    model = reasoning_model()
    for thinking in ("true", "false"):
        shown = scripted(
            model, "--overwrite", "--set", f"template_kwargs.enable_thinking={thinking}",
            images=False,
        )  # fmt: skip
        assert shown.code == 0, shown.err
        lengths.append(len(played()[0].segments[0].train_ids))
    assert lengths[0] != lengths[1]


@pytest.mark.parametrize("source", ["set", "file"])
def test_keep_last_images_is_played_and_stored(source: str) -> None:
    Path("config.json").write_text(json.dumps({"history": IMAGES}))
    options = {
        "set": ("--set", f"history={json.dumps(IMAGES)}"),
        "file": ("--config", "config.json"),
    }
    shown = scripted(tiny_model_dir("qwen2_5_vl"), *options[source])
    assert shown.code == 0, shown.err
    assert read_settings(Path("run"))["config"]["history"] == IMAGES
    for one in played():
        assert [branch.reason for branch in one.branches] == ["keep_last_images"] * 2
        assert max(sum(len(s.images) for s in part.segments) for part in one.sequences()) == 2


def test_interrupted_run_continues_with_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Screens, "interrupted_at", 4)
    stopped = scripted(
        tiny_model_dir("qwen2_5_vl"), "--set", f"history={json.dumps(IMAGES)}", "--concurrency", 1
    )
    assert stopped.code != 0
    assert any(one.reward is None for one in load("run"))
    monkeypatch.setattr(Screens, "interrupted_at", None)
    resumed = run_envkit("rollout", "--resume", "run", "-q")
    assert resumed.code == 0, resumed.err
    for one in played():
        assert [branch.reason for branch in one.branches] == ["keep_last_images"] * 2
        assert one.reward == 6.0


def test_chat_endpoint_sees_the_last_images_only() -> None:
    with ChatServer("Fine.") as server:
        shown = evaluate(server, "--set", f"history={json.dumps(IMAGES)}")
        assert shown.code == 0, shown.err
        counts = [len(list(pictures_of(body))) for body in server.requests]
    assert max(counts) == 2
    assert sorted(counts) == sorted([1, 2, 1, 2, 1, 2] * 2)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("toy-screens-v0", ("--set", 'history={"summarise": {"at_tokens": 50}}')),
        ("toy-screens-v0", ("--set", "history=rerender")),
        ("toy-summarised-v0", ()),
    ],
)
def test_chat_endpoint_refuses_policies_that_need_tokens(
    env: str, options: tuple[str, ...]
) -> None:
    with ChatServer("Fine.") as server:
        shown = evaluate(server, *options, env=env)
        assert server.requests == []
    assert shown.code == 2
    assert "chat endpoint" in shown.last_error
