"""The launch files for slime and miles, given to their own parsers and validators.

Both accept unknown flags silently, because Megatron and SGLang add theirs, which are not installed
beside these tests. What their parsers leave over must therefore be a flag of SGLang's form, or one
that scripts of the same checkout pass.
"""

import argparse
import importlib
import importlib.util
import json
import re
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.launch import RUNS, SIZES, Launch, export, run, start
from fakes.models import tiny_model_dir
from fakes.slime_examples import checkout, stand_in
from fakes.slime_run import vision_server

import envkit_geo3k
from envkit.registration import register, registry
from envkit_slime.settings import Settings

pytestmark = [
    pytest.mark.slime,
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),  # in slime's own sources
    pytest.mark.filterwarnings("ignore:.*torch.jit"),
    pytest.mark.filterwarnings("ignore:.*Transformer Engine"),
]
BRIDGE = "--megatron-to-hf-mode"
"""Says which slime it is: later than 2a60f00d, it is gone, and so is Qwen3-VL."""


@pytest.fixture(autouse=True)
def environments_known() -> None:
    """Register geo3k-v0, as installing envkit does."""
    if "geo3k-v0" not in registry():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)


@pytest.fixture
def slime(needs_slime: None) -> Path:
    """Return slime's checkout."""
    return checkout("slime")


@pytest.fixture
def pinned(slime: Path) -> Path:
    """Return a checkout that can train Qwen3-VL, or skip."""
    if BRIDGE not in (slime / "slime/utils/arguments.py").read_text():
        pytest.skip("SLIME_SRC must be slime 2a60f00d")
    return slime


@pytest.fixture
def head(slime: Path) -> Path:
    """Return a checkout of later slime, or skip."""
    if BRIDGE in (slime / "slime/utils/arguments.py").read_text():
        pytest.skip("SLIME_SRC must be slime after 2a60f00d")
    return slime


@pytest.fixture
def miles(needs_miles: None) -> Path:
    """Return miles' checkout."""
    return checkout("miles")


def launched(name: str, folder: Path, source: Path, **variables: str) -> Launch:
    """Start a launch file for a checkout, with a tiny Qwen3-VL as its model."""
    where = {"MILES" if name.startswith("miles") else "SLIME": str(source)}
    model = {"MODEL": str(tiny_model_dir("qwen3_vl"))}
    return start(name, folder, **{**where, **model, **variables})


def known_elsewhere(source: Path) -> set[str]:
    """Return the flags that scripts of a checkout pass, Megatron's among them."""
    found: set[str] = set()
    for folder in ("scripts", "examples", "tests"):
        for path in (source / folder).rglob("*"):
            if path.suffix in (".sh", ".py") and path.is_file():
                found.update(re.findall(r"--[a-z][a-z0-9-]+", path.read_text(errors="replace")))
    return found


def parsed(
    trainer: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Namespace, set[str]]:
    """Return a command line as the trainer's parser reads it, and the flags it leaves over."""
    assert words[0] == "train.py"
    stand_in(monkeypatch)
    monkeypatch.setattr(sys, "argv", words)  # miles reads it once more
    arguments: Any = importlib.import_module(f"{trainer}.utils.arguments")
    provide = getattr(arguments, f"get_{trainer}_extra_args_provider")()
    if "fsdp" in words:
        psutil: Any = types.ModuleType("psutil")
        psutil.__spec__ = importlib.util.spec_from_loader("psutil", None)
        monkeypatch.setitem(sys.modules, "psutil", psutil)
        fsdp: Any = importlib.import_module("miles.backends.fsdp_utils.arguments")
        parser = fsdp.build_fsdp_parser(provide)
    else:
        parser = provide(argparse.ArgumentParser(allow_abbrev=False))
    args, rest = parser.parse_known_args(words[1:])
    for name, value in (
        ("train_backend", "megatron"),
        ("debug_rollout_only", False),
        ("debug_train_only", False),
        ("load_debug_rollout_data", None),
    ):
        if not hasattr(args, name):
            setattr(args, name, value)
    return args, {word for word in rest if word.startswith("--")}


def checked(
    trainer: str, launch: Launch, source: Path, monkeypatch: pytest.MonkeyPatch
) -> Namespace:
    """Parse and validate; fail for a flag that nobody knows."""
    args, rest = parsed(trainer, launch.words, monkeypatch)
    unknown = {one for one in rest if not one.startswith("--sglang-")} - known_elsewhere(source)
    assert not unknown
    arguments: Any = importlib.import_module(f"{trainer}.utils.arguments")
    values = _Reading(**vars(args))
    getattr(arguments, f"{trainer}_validate_args")(values)
    Settings.from_args(values)
    return values


class _Reading(Namespace):
    """Arguments that Megatron's parser would have added are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


def check_run(args: Namespace, launch: Launch, script: str, paper: str) -> None:
    """Compare the values with those that the folder promises."""
    turns, tokens = SIZES[paper]
    assert args.envkit["env_kwargs"]["max_turns"] == args.envkit["limits"]["max_turns"] == turns
    assert args.rollout_max_response_len == args.eval_max_response_len == tokens
    assert args.rollout_max_context_len == (tokens if paper else None)
    assert args.envkit["env_kwargs"]["data"] is None
    assert args.global_batch_size == args.rollout_batch_size * args.n_samples_per_prompt
    assert args.actor_num_gpus_per_node == (1 if script == "run_small.sh" else 8)
    (dataset,) = args.eval_datasets
    assert (dataset.name, dataset.path) == ("geo3k", str(launch.folder / "test.jsonl"))
    assert (args.eval_interval, args.save_interval) == (20, 20)
    assert args.data_source_path.endswith(".DataSource")
    assert not args.use_wandb


@pytest.mark.parametrize(("script", "paper"), RUNS)
def test_slime_accepts_the_launch_file(
    tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch, script: str, paper: str
) -> None:
    launch = launched(f"slime/{script}", tmp_path, pinned, PAPER=paper)
    args = checked("slime", launch, pinned, monkeypatch)
    check_run(args, launch, script, paper)
    assert args.load == args.hf_checkpoint == str(tiny_model_dir("qwen3_vl"))
    assert "5000000" in launch.words  # the text model's script has another rotary base


def test_slime_launch_file_resumes_from_its_checkpoints(
    tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "out" / "checkpoints"
    saved.mkdir(parents=True)
    (saved / "latest_checkpointed_iteration.txt").write_text("20")
    launch = launched("slime/run.sh", tmp_path, pinned, WANDB="1")
    args = checked("slime", launch, pinned, monkeypatch)
    assert args.load == str(saved)
    assert args.use_wandb


@pytest.mark.parametrize("backend", ["", "http://127.0.0.1:8000"])
def test_slime_accepts_the_launch_file_for_search(
    tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    launch = launched("../search/slime/run.sh", tmp_path, pinned, BACKEND=backend)
    args = checked("slime", launch, pinned, monkeypatch)
    config = yaml.safe_load(Path(args.custom_config_path).read_text())["envkit"]
    assert config["env_kwargs"]["backend"] == (backend or None)
    assert (config["env_id"], config["limits"]["max_turns"]) == ("search-v0", 8)
    (words,) = launch.exports
    assert words[:2] == ["export", "search-v0"]
    assert (f"--env-kwargs=backend={backend}" in words) == bool(backend)


def test_slime_launch_file_refuses_a_slime_that_would_ignore_its_flags(
    tmp_path: Path, head: Path
) -> None:
    done = run("slime/run.sh", tmp_path, variables={"SLIME": str(head), "MODEL": "/m"})
    assert done.returncode == 2
    assert "2a60f00d" in done.stderr


def test_slime_head_launch_file_refuses_the_pinned_slime(tmp_path: Path, pinned: Path) -> None:
    done = run("slime_head/run.sh", tmp_path, variables={"SLIME": str(pinned), "MODEL": "/m"})
    assert done.returncode == 2


def test_slime_accepts_the_launch_file_of_its_main_branch(
    tmp_path: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe"}))
    launch = launched("slime_head/run.sh", tmp_path, head, MODEL=str(model))
    args = checked("slime", launch, head, monkeypatch)
    check_run(args, launch, "run.sh", "")
    assert args.load == str(model)  # None for a model that it cannot load


def test_a_misspelled_flag_is_noticed(
    tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launched("slime/run.sh", tmp_path, pinned)
    launch.words.append("--rollout-shufle")
    with pytest.raises(AssertionError, match="shufle"):
        checked("slime", launch, pinned, monkeypatch)


@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
@pytest.mark.parametrize(("script", "paper"), RUNS)
def test_miles_accepts_the_launch_file(
    tmp_path: Path,
    miles: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    paper: str,
    backend: str,
) -> None:
    launch = launched(f"miles/{script}", tmp_path, miles, PAPER=paper, BACKEND=backend)
    args = checked("miles", launch, miles, monkeypatch)
    check_run(args, launch, script, paper)
    assert args.train_backend == backend
    if backend == "fsdp":
        assert (args.lr, args.weight_decay, args.adam_beta2) == (1e-6, 0.1, 0.98)
    else:
        assert "5000000" in launch.words


def test_slime_launch_file_plays_two_batches(
    tmp_path: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    from envkit_slime import DataSource

    launch = launched("slime/run.sh", tmp_path, pinned, BATCH="2", GROUP="2", EVAL_TASKS="2")
    (words,) = launch.exports
    export(words, tmp_path)
    args, _ = parsed("slime", launch.words, monkeypatch)
    config = yaml.safe_load(Path(args.custom_config_path).read_text())
    with vision_server(lambda _: r"\boxed{5}") as served:
        here = vars(served.args({}))
        places = ("hf_checkpoint", "sglang_router_ip", "sglang_router_port")
        absent = {name: value for name, value in here.items() if name not in vars(args)}
        model = {name: here[name] for name in places}
        small = {"over_sampling_batch_size": 2, "eval_datasets": []}
        args = Namespace(**{**vars(args), **absent, **model, **config, **small})
        init_http_client(args)
        source = DataSource(args)
        batches = [generate_rollout(args, number, source).samples for number in range(2)]
    assert [[len(group) for group in batch] for batch in batches] == [[2, 2], [2, 2]]
    groups = [group for batch in batches for group in batch]
    assert len({str(group[0].tokens) for group in groups}) == 4  # four tasks
    for sample in [sample for group in groups for sample in group]:
        assert sample.status.name == "COMPLETED"
        assert sum(sample.loss_mask) > 0
        assert len(sample.multimodal_train_inputs["image_grid_thw"]) >= 1
