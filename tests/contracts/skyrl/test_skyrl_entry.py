"""The command line, the experiment and the datasets, by SkyRL's own loaders."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.skyrl_client import FakeClient, say
from fakes.skyrl_envs import register_skyrl_envs
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints import main_base
from skyrl.train.generators.utils import prepare_generator_input
from transformers import AutoTokenizer

import envkit_skyrl
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import text_of
from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest
from envkit_exchange import TaskDraw, TaskFormat, export_tasks
from envkit_skyrl import EnvGenerator, EnvkitExp, EnvkitTrainConfig
from envkit_skyrl import main as command
from envkit_skyrl.experiment import make_generator, prepare_config, prepare_process, read_options

LINE = [
    "envkit.env_id=obey-v0",
    "envkit.env_kwargs.rounds=2",
    "envkit.limits.max_context_tokens=512",
    "envkit.merge=true",
    "generator.step_wise_trajectories=true",
    "generator.max_turns=4",
    f"trainer.policy.model.path={tiny_model_dir('llama')}",
]


@pytest.fixture(autouse=True)
def known() -> None:
    register_skyrl_envs()


def configured(*extra: str) -> Any:
    cfg: Any = EnvkitTrainConfig.from_cli_overrides([*LINE, *extra])
    prepare_config(cfg)
    return cfg


def test_a_command_line_is_parsed_by_skyrl_and_read_by_envkit() -> None:
    cfg = configured()
    assert isinstance(cfg, SkyRLTrainConfig)
    options = read_options(cfg)
    assert options.merge is True
    assert options.rollout.env_kwargs == {"rounds": 2}
    assert options.rollout.limits.max_context_tokens == 512
    assert cfg.generator.max_turns == 4


def test_servers_that_skyrl_starts_report_sampled_logprobs_and_keep_images() -> None:
    assert configured().generator.inference_engine.engine_init_kwargs == {
        "logprobs_mode": "processed_logprobs",
        "mm_processor_cache_gb": 4,
    }
    off = configured("generator.inference_engine.engine_init_kwargs.mm_processor_cache_gb=0")
    assert off.generator.inference_engine.engine_init_kwargs["mm_processor_cache_gb"] == 0
    kept = configured("generator.inference_engine.engine_init_kwargs.logprobs_mode=raw_logprobs")
    assert kept.generator.inference_engine.engine_init_kwargs["logprobs_mode"] == "raw_logprobs"
    foreign = configured("generator.inference_engine.external_proxy_url=http://127.0.0.1:1")
    assert not foreign.generator.inference_engine.engine_init_kwargs


def test_settings_of_skyrls_own_generator_are_named_because_nothing_reads_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    configured("generator.n_samples_per_prompt=2", "trainer.epochs=3")
    assert not caplog.records
    configured("generator.batched=true", "environment.skyrl_gym.search.search_url=http://a")
    assert "generator.batched=True" in caplog.text
    assert "environment.skyrl_gym.search.search_url='http://a'" in caplog.text
    assert caplog.text.count("search_url") == 1
    assert "topk" not in caplog.text


def test_a_misspelt_setting_is_refused_before_ray_starts() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'limits'"):
        configured("envkit.limts.max_turns=3")


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("trainer.algorithm.dynamic_sampling.type=filter", "dynamic_sampling"),
        ("trainer.algorithm.dynamic_sampling.type=replace", "dynamic_sampling"),
        ("trainer.algorithm.advantage_batch_normalize=true", "advantage_batch_normalize"),
        ("trainer.algorithm.use_kl_in_reward=true", "use_kl_in_reward"),
    ],
)
def test_settings_that_count_rows_are_refused_for_step_wise_rows(setting: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        configured(setting)
    configured(setting, "generator.step_wise_trajectories=false", "envkit.merge=false")


def test_skyrls_own_command_finds_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(command, "initialize_ray", ran.append)
    monkeypatch.setattr(command, "validate_cfg", ran.append)
    monkeypatch.setattr(command.ray, "get", ran.append)
    monkeypatch.setattr(command, "train", type("Task", (), {"remote": staticmethod(ran.append)}))
    arguments = ["skyrl", "trainer.override_entrypoint=envkit_skyrl.main", *LINE]
    monkeypatch.setattr(main_base.sys, "argv", arguments)
    main_base.main()
    assert isinstance(ran[0], EnvkitTrainConfig)
    assert len(ran) == 4


def test_the_configuration_passes_skyrls_own_validation() -> None:
    cfg = command.read_config(
        [
            *LINE,
            "trainer.logger=console",
            "trainer.placement.colocate_all=false",
            "trainer.algorithm.advantage_estimator=grpo",
        ]
    )
    assert read_options(cfg).rollout.env_id == "obey-v0"


async def test_the_experiment_makes_our_generator() -> None:
    cfg = configured("envkit.draw_tasks=true")
    experiment = EnvkitExp.__new__(EnvkitExp)  # its constructor needs datasets and GPUs
    client = FakeClient(text_codec(), say("good", "good"))
    generator = experiment.get_generator(cfg, None, client)
    assert isinstance(generator, EnvGenerator)
    batch, _ = prepare_generator_input(
        [{"prompt": [], "env_class": None, "env_extras": {}, "uid": "0"}],
        2, {"temperature": 1.0, "max_tokens": 16}, "obey-v0", "train", 1,
    )  # fmt: skip
    output = await generator.generate(batch)
    assert output["is_last_step"] == [True, True]
    assert client.models == [str(tiny_model_dir("llama"))] * 4


def test_modules_of_the_run_are_imported_in_the_trainers_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_envs.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    prepare_process(configured("envkit.imports=[my_envs]", "envkit.env_id=null"))
    assert importlib.import_module("my_envs").LOADED
    with pytest.raises(ConfigurationError, match=r"envkit\.imports: 'no_such_module' fails"):
        prepare_process(configured("envkit.imports=[no_such_module]"))


def test_a_custom_template_of_skyrls_generator_is_refused() -> None:
    cfg = configured("generator.chat_template.name_or_path=qwen3_without_thinking")
    with pytest.raises(ConfigurationError, match=r"envkit\.template_kwargs\.chat_template"):
        make_generator(cfg, FakeClient(text_codec(), say()))


def test_workers_with_a_ready_made_codec_are_refused() -> None:
    cfg = configured("envkit.workers=2")
    with pytest.raises(ConfigurationError, match="function of a module that makes the codec"):
        make_generator(cfg, FakeClient(text_codec(), say()), codec=text_codec())


async def test_a_dataset_goes_through_skyrls_own_reader(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    with TaskDraw("obey-v0", count=3, env_kwargs={"rounds": 2}, seed=4) as draw:
        export_tasks(draw, file, TaskFormat.SKYRL)
        examples = list(draw)
    loader: Any = AutoTokenizer
    dataset = PromptDataset(
        str(file), loader.from_pretrained(tiny_model_dir("llama")), 256, num_workers=1
    )
    assert len(dataset) == 3
    prompts = dataset.collate_fn([dataset[index] for index in range(3)])
    batch, uids = prepare_generator_input(
        prompts, 2, {"temperature": 1.0, "max_tokens": 16}, "unused", "train", 1
    )
    assert uids == ["0", "0", "1", "1", "2", "2"]
    assert batch["env_classes"] == ["obey-v0"] * 6
    extras: Any = batch["env_extras"]
    requests = [json.loads(extra[ENVKIT_COLUMN]) for extra in extras]
    assert [request["task"]["name"] for request in requests] == [
        f"task {n}" for n in (0, 0, 1, 1, 2, 2)
    ]
    client = FakeClient(text_codec(), say("good", "good"))
    output = await make_generator(configured(), client).generate(batch)
    for row, prompt in enumerate(output["prompt_token_ids"]):
        text = text_codec().decode(prompt)
        assert text_of(examples[row // 2].messages[-1]) in text


def test_every_public_name_exists() -> None:
    for name in envkit_skyrl.__all__:
        assert getattr(envkit_skyrl, name) is not None
    with pytest.raises(AttributeError):
        _ = envkit_skyrl.nothing


class _Tokenizer:
    """All that the length filter needs."""

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        return [0] * len(messages)


@pytest.mark.parametrize("with_images", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_skyrls_dataset_reads_exported_tasks(
    suffix: str, with_images: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    register_toys()
    path = tmp_path / f"tasks{suffix}"
    with TaskDraw("toy-dots-v0", count=3) as draw:
        export_tasks(draw, path, TaskFormat.SKYRL, with_images=with_images)
        examples = list(draw)
    tokenizer: Any = _Tokenizer()
    dataset = PromptDataset(str(path), tokenizer, 100, num_workers=1)

    assert len(dataset) == 3
    for number, example in enumerate(examples):
        messages, env_class, extras, uid = dataset[number]
        assert (env_class, uid) == ("toy-dots-v0", str(number))
        assert EpisodeRequest.from_column(extras["envkit"]) == example.request
        if with_images:
            url = messages[-1]["content"][0]["image_url"]["url"]
            assert Image.from_data_uri(url) == example.images[0]
