"""`envkit eval --vary`: the same tasks in other wrappers, compared with the first."""

import itertools
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.models import tiny_model_dir
from PIL import Image as PilImage

from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import images_of
from envkit.tasks import ListSource, Task
from envkit.trajectory import load
from envkit_eval import compare, read_side
from envkit_eval.variants import combinations, folder_of, label_of

HALVED = "wrap=none|rescale-reward:scale=0.5"
BLANKED = "wrap=none|blank-image"
WORTH = {"black": 1.0, "white": 1.0, "grey": 0.5}


class ShadeEnv(Env):
    """Name the shade of a picture; the oracle only knows what it sees."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)
    default_threshold = 1.0

    def on_reset(self, task: Task) -> Turn:
        shade = 255 * int(self.np_random.integers(2))
        picture = PilImage.new("L", (56, 56), shade)
        return Turn("Which shade?", images=(Image.from_pil(picture),))

    def on_turn(self, response_text: str) -> Turn:
        return Turn("Thanks.", reward=WORTH[response_text.strip()], done=True)

    def oracle(self) -> Policy:
        return seen_shade


def seen_shade(context: PolicyContext) -> str:
    darkest, lightest = images_of(context.messages)[-1].pil().convert("L").getextrema()
    return "black" if lightest == 0 else "white" if darkest == 255 else "grey"


class FreshEnv(EchoEnv):
    """Each instance has other tasks."""

    built = itertools.count()

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.tasks = ListSource([{"word": "alpha", "instance": next(self.built)}])


@pytest.fixture(autouse=True)
def _toys_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    register_toys({"toy-shade-v0": ShadeEnv, "toy-fresh-v0": FreshEnv})


def evaluate(*arguments: object) -> Any:
    return run_envkit(
        "eval", *arguments, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"), "-q",
    )  # fmt: skip


def document() -> dict[str, Any]:
    return json.loads(Path("out/eval.json").read_text())


def test_combinations_are_all_pairs_in_order() -> None:
    variants = combinations(["wrap=none|blank-image", "wrap=none|resize-image:side=56"])
    assert [label_of(one) for one in variants] == [
        "none",
        "resize-image:side=56",
        "blank-image",
        "blank-image+resize-image:side=56",
    ]
    assert combinations([]) == [{}]


def test_variants_may_have_spaces_and_arguments_with_a_plus() -> None:
    variants = combinations(["wrap= none | rescale-reward:scale=1e+3 + blank-image"])
    assert variants == [{}, {"rescale-reward": {"scale": 1000.0}, "blank-image": {}}]


def test_variants_whose_names_differ_in_punctuation_have_their_own_folders() -> None:
    taken: list[str] = []
    for level in ("a b", "a,b", "a" * 300, "a" * 301):
        wraps = {"record-episode": {"folder": level}}
        taken.append(folder_of("toy-echo-v0", wraps, is_only=False, taken=taken))
    assert len(set(taken)) == 4
    assert max(map(len, taken)) < 255


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["blank-image"], r"--vary takes wrap=A\|B"),
        (["wrap=none||blank-image"], r"--vary takes wrap=A\|B"),
        (["level=1|2"], r"--vary takes wrap=A\|B"),
        (["wrap=blank-image+none|none"], "the variant none has no wrappers"),
        (["wrap=none + none|none"], "the variant none has no wrappers"),
        (["wrap=none|none"], "gives none twice"),
        (
            ["wrap=resize-image:side=56|resize-image:side=56.0"],
            "gives resize-image:side=56.0 twice",
        ),
        (["wrap=blank-image"], "got only blank-image: add another"),
        (["wrap=blank-image", "wrap=blank-image"], "each wrapper once"),
    ],
)
def test_a_wrong_variation_is_named(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        combinations(given)


def test_variants_play_the_same_tasks_and_are_paired_with_the_first() -> None:
    shown = evaluate("toy-echo-v0", "-n", 6, "--vary", HALVED, "--out", "out")
    assert shown.code == 0, shown.err
    names = ["toy-echo-v0-none", "toy-echo-v0-rescale-reward-scale=0.5"]
    seeds = [{episode.seed for episode in load(Path("out") / name)} for name in names]
    assert seeds[0] == seeds[1]  # episodes are stored as they end
    assert len(seeds[0]) == 6
    written = document()
    assert [line["env_id"] for line in written["lines"] if line["tag"] is None] == [
        "toy-echo-v0 none",
        "toy-echo-v0 rescale-reward:scale=0.5",
    ]
    (change,) = written["variants"]
    assert (change["first"], change["variant"]) == ("none", "rescale-reward:scale=0.5")
    assert change["difference"]["reward"]["mean"] == pytest.approx(-0.5)
    assert change["difference"]["better"] == change["difference"]["worse"] == 0
    assert "toy-echo-v0 rescale-reward:scale=0.5 minus none" in shown.out


def test_pairs_of_variants_agree_with_a_comparison_of_their_stored_runs() -> None:
    shown = evaluate("toy-shade-v0", "-n", 12, "--group", 2, "--vary", BLANKED, "--out", "out")
    assert shown.code == 0, shown.err
    (change,) = document()["variants"]
    names = [Path("out") / change[one] for one in ("first_run", "run")]
    (stored,) = compare(*(read_side(name, by=()) for name in names), by=()).differences
    assert change["difference"] == json.loads(json.dumps(asdict(stored)))
    assert (stored.better, stored.worse, stored.tied) == (0, 6, 0)


def test_a_reward_threshold_counts_in_the_pairs_of_variants_too() -> None:
    given = ("toy-shade-v0", "-n", 6, "--vary", BLANKED, "--out", "out")
    assert evaluate(*given, "--reward-threshold", 0.5).code == 0
    assert document()["variants"][0]["difference"]["tied"] == 6
    again = run_envkit("eval", "--resume", "out", "-q", "--reward-threshold", 1)
    assert again.code == 0, again.err
    assert document()["variants"][0]["difference"]["worse"] == 6


def test_variants_on_other_tasks_keep_their_figures_and_are_not_compared() -> None:
    shown = evaluate("toy-fresh-v0", "-n", 2, "--vary", HALVED, "--out", "out")
    assert shown.code == 1
    assert "must play the same tasks to be compared" in shown.err
    written = document()
    assert [line["tasks"] for line in written["lines"]] == [2, 2]
    assert written["is_complete"]
    assert written["variants"] == []


def test_a_curriculum_is_refused_in_variants_before_anything_is_played() -> None:
    climb = "curriculum:levels=[1,2]"
    for more in ([f"wrap=none|{climb}"], ["wrap=none|blank-image", "--wrap", climb]):
        refused = evaluate("toy-echo-v0", "-n", 2, "--vary", *more, "--out", "out")
        assert refused.code == 2
        assert "curriculum chooses other tasks for the same seeds" in refused.err
        assert not Path("out").exists()


def test_faulted_episodes_of_a_variant_leave_their_pairs_out() -> None:
    faults = "wrap=none|inject-faults:rate=0.5,seed=1"
    shown = evaluate("toy-shade-v0", "-n", 12, "--vary", faults, "--out", "out", "--max-faults", 1)
    assert shown.code == 0, shown.err
    (change,) = document()["variants"]
    faulted = document()["lines"][-1]["faulted"]
    assert 0 < faulted < 12
    found = change["difference"]
    assert (found["unpaired"], found["tied"], found["worse"]) == (faulted, 12 - faulted, 0)
    assert found["reward"]["mean"] == 0.0


def test_resume_or_start_refuses_variants_in_another_order() -> None:
    def started(vary: str) -> Any:
        given = ("toy-shade-v0", "-n", 2, "--vary", vary, "--out", "out")
        return evaluate(*given, "--resume-or-start")

    assert started(BLANKED).code == 0
    assert started(BLANKED).code == 0
    refused = started("wrap=blank-image|none")
    assert refused.code == 2
    assert (
        "compares its variants with toy-shade-v0-none, got toy-shade-v0-blank-image as"
        in refused.err
    )
    shutil.rmtree("out")
    assert started("wrap=none|blank-image+rescale-reward").code == 0
    refused = started("wrap=none|rescale-reward+blank-image")
    assert refused.code == 2
    assert "begun with other settings" in refused.err


def test_variants_are_resumed_and_a_wrapper_that_does_not_fit_is_refused_before() -> None:
    assert evaluate("toy-echo-v0", "-n", 4, "--vary", HALVED, "--out", "out").code == 0
    before = document()["variants"]
    again = run_envkit("eval", "--resume", "out", "-q")
    assert again.code == 0, again.err
    assert document()["variants"] == before
    refused = evaluate("toy-echo-v0", "--vary", "wrap=none|text-twin", "--out", "other")
    assert refused.code == 2
    assert "toy-echo-v0 has no text twin" in refused.err
    assert not Path("other").exists()
