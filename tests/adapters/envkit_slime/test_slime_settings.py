"""What the slime adapter reads from arguments and samples; slime itself is not needed."""

import asyncio
import copy
import json
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from PIL import Image as PilImage

import envkit_slime
from envkit.errors import ConfigurationError, EnvkitError, MissingDependencyError, TemplateError
from envkit.images import Image
from envkit.messages import message
from envkit.rollout import RolloutConfig
from envkit.seeds import derive_seed
from envkit_slime.checks import check_ignored
from envkit_slime.form import Form
from envkit_slime.rollout import roll
from envkit_slime.runtime import Runtime, close_runtimes
from envkit_slime.sample import Sample
from envkit_slime.settings import Settings, episode_of, read_sampling
from envkit_slime.upstream import require

PARAMS: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": -1, "max_new_tokens": 300, "stop": "</s>",
    "stop_token_ids": [7], "skip_special_tokens": False, "no_stop_trim": True,
    "spaces_between_special_tokens": False, "sampling_seed": 5, "min_new_tokens": 2,
    "repetition_penalty": None,
}  # fmt: skip


def arguments(envkit: Any = None, **values: Any) -> Namespace:
    return Namespace(envkit=envkit, rollout_seed=1, n_samples_per_prompt=4, **values)


def sample(**values: Any) -> Sample:
    given: dict[str, Any] = {
        "group_index": 3, "index": 14, "metadata": {}, "prompt": "", "label": None,
        "multimodal_inputs": None,
    }  # fmt: skip
    made: Any = SimpleNamespace(**{**given, **values})
    return made


def plan(args: Namespace, given: Sample, *, evaluation: bool = False) -> Any:
    settings = Settings.from_args(args)
    return episode_of(args, settings, given, PARAMS, evaluation=evaluation)[1]


@pytest.mark.parametrize("row", [{"prompt": "What is x?"}, {"label": "4"}, {"label": ""}])
def test_slime_dataset_that_no_episode_reads_is_refused(row: dict[str, Any]) -> None:
    """As with slime's own flags for geo3k and no `task_fields`: the curve would look healthy."""
    data: dict[str, Any] = {"prompt_data": "geo3k.parquet"}
    args = arguments({"env_id": "toy-echo-v0"}, **data)
    for evaluation in (False, True):
        with pytest.raises(ConfigurationError, match="no episode of toy-echo-v0 reads it"):
            plan(args, sample(**row), evaluation=evaluation)
    drawing = arguments({"env_id": "toy-echo-v0", "draw_tasks": True}, **data)
    assert plan(drawing, sample(**row)).task is None
    column = {"envkit": json.dumps({"task": {"word": "gamma"}})}
    assert plan(args, sample(metadata=column, **row)).task == {"word": "gamma"}
    mapped = arguments({"env_id": "toy-echo-v0", "task_fields": {"word": "label"}}, **data)
    assert plan(mapped, sample(label="gamma")).task == {"word": "gamma"}
    assert plan(args, sample()).task is None  # no dataset


@pytest.mark.parametrize(
    ("flags", "metadata", "message"),
    [
        ({"rm_type": "math"}, {}, "--rm-type math has no effect"),
        ({}, {"rm_type": "boxed_math"}, "--rm-type boxed_math has no effect"),
        ({}, {"tools": [{"name": "calc"}]}, "--tool-key has no effect"),
    ],
)
def test_slime_flags_without_an_effect_are_refused(
    flags: dict[str, Any], metadata: dict[str, Any], message: str
) -> None:
    args = arguments({"env_id": "toy-echo-v0"}, **flags)
    with pytest.raises(ConfigurationError, match=message):
        check_ignored(args, sample(metadata=metadata), evaluation=False)
    own = {**vars(args), "custom_rm_path": "my.rewards"}  # slime calls it
    if not metadata.get("tools"):
        check_ignored(Namespace(**own), sample(metadata=metadata), evaluation=False)


def test_slime_seed_of_the_mapping_wins_even_if_it_is_0() -> None:
    def seed(**given: Any) -> int:
        args = arguments({"env_id": "toy-echo-v0", **given})
        return plan(args, sample()).seed

    assert seed(seed=0) == derive_seed("group", 0, 3)
    assert seed(seed=7) == derive_seed("group", 7, 3)
    assert seed() == derive_seed("group", 1, 3)  # --rollout-seed


def test_slime_sampling_takes_slimes_names_and_drops_what_is_about_text() -> None:
    before = dict(PARAMS)
    sampling = read_sampling(arguments(), PARAMS)
    assert before == PARAMS
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, None)
    assert (sampling.max_new_tokens, sampling.stop, sampling.stop_ids) == (300, ("</s>",), (7,))
    assert sampling.seed == 5
    assert sampling.extras == {"min_new_tokens": 2}
    replayed = read_sampling(arguments(use_rollout_routing_replay=True), PARAMS)
    assert replayed.extras["return_routed_experts"] is True


@pytest.mark.parametrize("tokens", [0, -1, None, "many"])
def test_slime_sampling_without_room_is_refused(tokens: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        read_sampling(arguments(), {**PARAMS, "max_new_tokens": tokens})


def test_slime_limits_are_the_tightest_of_sample_run_and_flags() -> None:
    given = {"max_turns": 5, "max_images": 2, "max_response_tokens": 400}
    args = arguments(
        {"env_id": "toy-echo-v0", "limits": given},
        rollout_max_context_len=1000,
        eval_max_context_len=2000,
    )
    row = {"envkit": '{"limits": {"max_turns": 3, "max_images": 4}}'}
    limits = plan(args, sample(metadata=row)).limits
    assert (limits.max_turns, limits.max_images) == (3, 2)
    assert (limits.max_response_tokens, limits.max_context_tokens) == (300, 1000)
    assert plan(args, sample(), evaluation=True).limits.max_context_tokens == 2000


def test_slime_group_members_share_a_seed_that_other_groups_do_not() -> None:
    args = arguments({"env_id": "toy-echo-v0"})
    plans = [plan(args, sample(group_index=g, index=4 * g + m)) for g in (0, 1) for m in (0, 1)]
    assert plans[0].seed == plans[1].seed != plans[2].seed == plans[3].seed
    assert [entry.member for entry in plans] == [0, 1, 0, 1]
    assert [entry.group_id for entry in plans] == ["0", "0", "1", "1"]
    evaluated = plan(args, sample(), evaluation=True)
    assert evaluated.group_id is None
    assert evaluated.seed not in {entry.seed for entry in plans}
    seeded = plan(args, sample(metadata={"envkit": {"seed": 9}}))
    assert seeded.seed == 9


def test_slime_evaluation_members_of_one_prompt_share_a_seed() -> None:
    datasets = [SimpleNamespace(n_samples_per_eval_prompt=2)]
    args = arguments({"env_id": "toy-echo-v0"}, eval_datasets=datasets)
    plans = [plan(args, sample(group_index=None, index=n), evaluation=True) for n in range(4)]
    assert plans[0].seed == plans[1].seed != plans[2].seed == plans[3].seed
    assert [entry.member for entry in plans] == [0, 1, 0, 1]


def test_slime_evaluation_datasets_of_other_group_sizes_need_a_seed_or_task() -> None:
    datasets = [SimpleNamespace(n_samples_per_eval_prompt=n) for n in (2, 4)]
    args = arguments({"env_id": "toy-echo-v0"}, eval_datasets=datasets)
    with pytest.raises(ConfigurationError, match="n_samples_per_eval_prompt"):
        plan(args, sample(group_index=None), evaluation=True)
    for row in ({"seed": 9}, {"task": {"word": "kiwi"}}):
        plan(args, sample(group_index=None, metadata={"envkit": row}), evaluation=True)


def test_slime_template_kwargs_follow_slimes_flag_where_the_run_says_nothing() -> None:
    flag = {"enable_thinking": False, "effort": "low"}
    settings = {"env_id": "toy-echo-v0", "template_kwargs": {"effort": "high"}}
    args = arguments(settings, apply_chat_template_kwargs=flag)
    found = Settings.from_args(args).rollout.template_kwargs
    assert found == {"enable_thinking": False, "effort": "high"}
    unset = Namespace(apply_chat_template_kwargs=flag)
    assert Settings.from_args(unset).rollout.template_kwargs == flag


def test_slime_a_task_is_filled_from_prompt_label_and_metadata() -> None:
    fields = {"problem": "prompt", "answer": "label", "number": "metadata.id"}
    args = arguments({"env_id": "toy-echo-v0", "task_fields": fields})
    chat = [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]
    task = plan(args, sample(prompt=chat, label="2", metadata={"id": 8})).task
    assert task == {"problem": "1+1?", "answer": "2", "number": 8}
    with pytest.raises(ConfigurationError, match="metadata"):
        plan(args, sample(prompt="x", label="2"))
    named = sample(metadata={"envkit": {"task": {"word": "kiwi"}}})
    assert plan(args, named).task == {"word": "kiwi"}


def test_slime_task_images_are_data_uris() -> None:
    picture = PilImage.new("RGB", (8, 6), "red")
    args = arguments({"env_id": "toy-dots-v0", "task_fields": {"images": "images"}})
    task = plan(args, sample(multimodal_inputs={"images": [picture], "videos": None})).task
    assert json.loads(json.dumps(task)) == {"images": [Image.from_pil(picture).data_uri()]}


@pytest.mark.parametrize(
    ("envkit", "metadata", "said"),
    [
        (["toy-echo-v0"], {}, "mapping"),
        ({"env": "toy-echo-v0"}, {}, "env_id"),
        ({"fan_out": "all"}, {}, "fan_out"),
        ({"env_id": "toy-echo-v0", "tail": {"then": "park"}}, {}, "--partial-rollout"),
        ({"task_fields": {"a": "answer"}}, {}, "task_fields"),
        ({}, {}, "no environment is named"),
        ({"env_id": "toy-echo-v0"}, {"envkit": "{"}, "JSON"),
        ({"env_id": "toy-echo-v0"}, {"envkit": 3}, "JSON object"),
        ({"env_id": "toy-echo-v0"}, {"envkit": {"limits": 3}}, "limits"),
        ({"env_id": "toy-echo-v0"}, {"envkit": {"taks": {}}}, "taks"),
    ],
)
def test_slime_bad_settings_say_what_is_wrong(
    envkit: Any, metadata: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan(arguments(envkit), sample(metadata=metadata))


def test_slime_settings_without_a_mapping_are_the_defaults() -> None:
    settings = Settings.from_args(Namespace())
    assert settings.rollout.env_id is None
    assert settings.fan_out is envkit_slime.FanOut.NONE


@pytest.mark.skipif("slime" in sys.modules, reason="slime is installed here")
def test_slime_missing_is_said_with_the_line_that_installs_it() -> None:
    with pytest.raises(MissingDependencyError, match="pip install git"):
        require("slime.utils.types")
    register_toys()
    args = arguments({"env_id": "toy-echo-v0"}, buffer_filter_path=None)
    with pytest.raises(MissingDependencyError, match="THUDM/slime"):
        envkit_slime.DataSource(args).get_samples(1)


class PlainForm(Form):
    """A trainer that is not there."""

    def __init__(self, args: Namespace, tokenizer: Any) -> None:
        super().__init__(args, evaluation=False)
        self._state: Any = SimpleNamespace(tokenizer=tokenizer, processor=None, aborted=False)

    @property
    def state(self) -> Any:
        return self._state

    def session_id(self, sample: Any) -> str:
        return f"session-{sample.index}"

    def append(self, sample: Any, segments: Any) -> None:
        raise NotImplementedError

    def fill(self, sample: Any) -> None:
        raise NotImplementedError


def generate(envkit: Any, tokenizer: Any) -> Any:
    register_toys()
    model = tiny_model_dir("qwen2_5_vl")
    args = Namespace(
        envkit=envkit,
        rollout_seed=1,
        n_samples_per_prompt=4,
        hf_checkpoint=str(model),
        sglang_router_ip="127.0.0.1",
        sglang_router_port=9,
        custom_reward_post_process_path="module.function",
    )
    sample: Any = SimpleNamespace(
        group_index=0, index=1, metadata={}, prompt="", label=None, multimodal_inputs=None
    )
    parameters = {"temperature": 1.0, "max_new_tokens": 30}

    async def play() -> Any:
        try:
            return await roll(PlainForm(args, tokenizer), sample, parameters)
        finally:
            await close_runtimes()

    return asyncio.run(play())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_model_dir("qwen2_5_vl")))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"env_id": "no-such-v0"},
        {"env_id": "toy-echo-v0", "env_kwargs": {"no_such": 1}},
        {"env_id": "toy-echo-v0", "limits": {"max_turns": "many"}},
        {"env_id": "toy-echo-v0", "sampling": {"temperature": "hot"}},
        {"env_id": "toy-echo-v0", "engine": {"no_such": 1}},
        {"env_id": "toy-echo-v0", "engine": {"timeout_s": "long"}},
        {"env_id": "toy-echo-v0", "max_server_aborts": "many"},
        {"env_id": "toy-echo-v0", "record_dir": 5},
        {"env_id": "toy-echo-v0", "isolation": "docker"},
    ],
)
@pytest.mark.slow
def test_wrong_setting_ends_the_rollout(settings: Any, tokenizer: Any) -> None:
    with pytest.raises(ConfigurationError):
        generate(settings, tokenizer)


def test_template_that_cannot_be_made_exact_ends_the_rollout(tokenizer: Any) -> None:
    broken = copy.copy(tokenizer)
    broken.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(TemplateError):
        generate({"env_id": "toy-echo-v0"}, broken)


@pytest.mark.parametrize("path", [None, "template.jinja"])
def test_slime_template_file_of_the_trainer_reaches_a_codec_with_a_processor(
    tokenizer: Any, path: str | None
) -> None:
    """miles gives the file of --chat-template-path to the tokenizer, and not to the processor."""
    given = copy.copy(tokenizer)
    given.chat_template = tokenizer.chat_template.replace("<|im_start|>", "<|im_start|>new ")
    processor = SimpleNamespace(
        tokenizer=given, chat_template=tokenizer.chat_template, image_processor=None
    )
    state: Any = SimpleNamespace(tokenizer=given, processor=processor, aborted=False)
    args = Namespace(hf_checkpoint=str(tiny_model_dir("qwen2_5_vl")), chat_template_path=path)

    async def prompt(config: RolloutConfig) -> str:
        runtime = Runtime(args, state, "http://127.0.0.1:9", {})
        await runtime.player(config)
        (codec,) = runtime._codecs.values()
        await runtime.aclose()
        return codec.decode(codec.encode_prompt([message("user", "Hi")]).train_ids)

    assert ("new user" in asyncio.run(prompt(RolloutConfig()))) == (path is not None)
    own = RolloutConfig(template_kwargs={"chat_template": tokenizer.chat_template})
    assert "new user" not in asyncio.run(prompt(own))


def test_invalid_tokenizer_ends_the_rollout() -> None:
    with pytest.raises(EnvkitError):
        generate({"env_id": "toy-echo-v0"}, object())
