"""`environment_factory` in TRL's real tool loop, with scripted generations and real steps."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.envs import TOYS
from fakes.lost_backend import LOST, PATIENT, QUICK, killed_backend, register_lost
from fakes.trl_run import byte_tokenizer, grpo_trainer, qwen3_template, spy_on_loss
from transformers.utils.chat_template_utils import get_json_schema

from envkit.errors import (
    ConfigurationError,
    ContractError,
    RunFailedError,
    UnknownNameError,
)
from envkit.registration import make
from envkit.rollout import BreakerSettings, EpisodeRequest
from envkit.tools import ToolSpec
from envkit_trl import environment_factory, final_reply, request_dataset, task_dataset
from envkit_trl.factory import FAILED, OVER
from envkit_trl.tool_methods import tool_method

LETTERS = EpisodeRequest(env_id="toy-letters-v0", task={"name": "ann"}, seed=1)


def _row(request: EpisodeRequest) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": ""}], "envkit": request.to_column()}


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Bench:
    """A trainer whose replies are written by hand, one list for each generation."""

    def __init__(
        self, folder: Path, factory: Any, dataset: Any, replies: Callable[[int, int], str],
        **options: Any,
    ) -> None:  # fmt: skip
        tokenizer = byte_tokenizer(qwen3_template())
        self.prompts: list[list[str]] = []
        self.trainer = grpo_trainer(
            folder,
            dataset,
            tokenizer=tokenizer,
            environment_factory=factory,
            arguments={"max_completion_length": 1024},
            **options,
        )
        self.losses = spy_on_loss(self.trainer)

        def generate(prompt_ids: Sequence[Any], *_: Any, **__: Any) -> Any:
            turn = len(self.prompts)
            self.prompts.append([tokenizer.decode(ids) for ids in prompt_ids])
            texts = [replies(turn, row) for row in range(len(prompt_ids))]
            think = "<think>\n\n</think>\n\n"
            ids = [
                [*tokenizer(think + text)["input_ids"], tokenizer.eos_token_id] for text in texts
            ]
            return ids, None

        self.trainer._generate_single_turn = generate

    def rewards(self) -> list[float]:
        """Train one step and return the rewards that the environments gave."""
        self.trainer.train()
        return [environment.get_reward() for environment in self.trainer.environments]


@pytest.mark.parametrize("env_id", sorted(TOYS))
def test_trl_must_hold_10_only_tools_are_public_methods(env_id: str) -> None:
    """TRL offers every public method to the model, so nothing else may be one."""
    made = environment_factory(env_id)()
    public = {name for name, _ in inspect.getmembers(type(made), inspect.isfunction)
              if not name.startswith("_")}  # fmt: skip
    tools = {tool.name for tool in make(env_id).unwrapped.tools} or {"reply"}  # pyright: ignore[reportAttributeAccessIssue]
    assert public == {"reset", "get_reward"} | tools


def test_trl_must_hold_10_trl_itself_finds_just_the_tools(tmp_path: Path) -> None:
    made = Bench(
        tmp_path,
        environment_factory("toy-adder-v0"),
        task_dataset("toy-adder-v0", style="tools"),
        lambda turn, row: "7",
    )
    assert [tool.__name__ for tool in made.trainer.tools] == ["add"]


def test_trl_schema_that_the_model_reads_is_the_tools_own() -> None:
    made: Any = environment_factory("toy-adder-v0")()
    spec = make("toy-adder-v0").unwrapped.tools[0]  # pyright: ignore[reportAttributeAccessIssue]
    theirs: Any = get_json_schema(made.add)["function"]
    assert theirs["name"] == "add"
    assert theirs["description"] == spec.description
    assert theirs["parameters"] == spec.parameters


def test_trl_schema_keeps_choices_lists_options_and_order() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "description": "How many.", "default": 5},
            "query": {"type": "string", "description": "What to\n  look for."},
            "kind": {"type": "string", "enum": ["web", "news"], "description": "Where."},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Which."},
            "note": {"type": "string", "nullable": True, "description": "A note."},
        },
        "required": ["query", "kind", "tags"],
    }
    spec = ToolSpec(name="search", description="Look\nthings up.", parameters=parameters)
    body = {"search": tool_method(spec), "_call": lambda self, name, arguments: (name, arguments)}  # pyright: ignore[reportUnknownLambdaType]
    made: Any = type("Made", (), body)()
    theirs: Any = get_json_schema(made.search)["function"]["parameters"]
    expected = {name: dict(schema) for name, schema in parameters["properties"].items()}  # type: ignore[attr-defined]
    expected["query"]["description"] = "What to look for."
    del expected["limit"]["default"]
    assert theirs["properties"] == expected
    assert sorted(theirs["required"]) == sorted(parameters["required"])
    assert made.search(query="x", wrong=1) == ("search", {"query": "x", "wrong": 1})


def test_trl_tool_loop_plays_the_environment_and_its_reward_counts(tmp_path: Path) -> None:
    def replies(turn: int, row: int) -> str:
        if turn == 0:
            return _call("add", '{"a": 1, "b": 11}')
        return "12" if row % 2 else "13"

    made = Bench(
        tmp_path,
        environment_factory("toy-adder-v0"),
        request_dataset(
            [EpisodeRequest(env_id="toy-adder-v0", task={"a": 1, "b": 11})] * 4, style="tools"
        ),
        replies,
        reward_funcs=final_reply,
    )
    assert made.rewards() == [0.0, 1.0, 0.0, 1.0]
    assert "What is 1 + 11?" in made.prompts[0][0]
    assert '"name": "add"' in made.prompts[0][0]
    assert "<tool_response>\n12\n</tool_response>" in made.prompts[1][0]
    trained = made.losses[0]["tool_mask"] * made.losses[0]["completion_mask"]
    assert 0 < trained.sum() < made.losses[0]["completion_mask"].sum()
    assert sorted((made.losses[0]["advantages"] > 0).tolist()) == [False, False, True, True]


def test_trl_environment_without_tools_is_played_by_reply(tmp_path: Path) -> None:
    made = Bench(
        tmp_path,
        environment_factory("toy-echo-v0"),
        request_dataset(
            [EpisodeRequest(env_id="toy-echo-v0", task={"word": "beta"})] * 4, style="tools"
        ),
        lambda turn, row: _call("reply", '{"text": "beta"}') if turn == 0 else "Thanks.",
        reward_funcs=final_reply,
    )
    assert made.rewards() == [1.0] * 4  # the text after the end changes nothing
    assert "Answer with the word only." in made.prompts[0][0]
    assert "Right." in made.prompts[1][0]


def test_trl_fault_is_unscorable_and_never_text_with_a_reward() -> None:
    made: Any = environment_factory("toy-flaky-letters-v0")()
    made.reset(**_row(EpisodeRequest(env_id="toy-flaky-letters-v0", task={"name": "bob"})))
    made.reply(text="abc")
    assert made.get_reward() == 1.0
    assert made.reply(text="abc") == FAILED
    assert made.reply(text="abc") == FAILED
    assert made.get_reward() is None
    opening = made.reset(
        **_row(EpisodeRequest(env_id="toy-flaky-letters-v0", task={"name": "ann"}))
    )
    assert (opening, made.get_reward()) == ("Hello ann.", 0.0)


def test_trl_failing_reset_does_not_end_the_training(tmp_path: Path) -> None:
    made = Bench(
        tmp_path,
        environment_factory("toy-dead-letters-v0"),
        request_dataset([EpisodeRequest(env_id="toy-dead-letters-v0", seed=1)] * 4, style="tools"),
        lambda turn, row: "hm",
    )
    assert made.rewards() == [None] * 4
    assert made.losses[0]["advantages"].abs().max() == 0


def _batches(made: Sequence[Any], count: int) -> list[float | None]:
    """Play batches in lock-step, as TRL does."""
    rewards: list[float | None] = []
    for _ in range(count):
        for one in made:
            one.reset(**_row(EpisodeRequest(env_id=LOST, seed=1)))
        for one in made:
            one.reply(text="abc")
        rewards += [one.get_reward() for one in made]
    return rewards


def test_trl_tool_loop_ends_after_its_backend_was_killed() -> None:
    register_lost()
    factory = environment_factory(LOST, breaker=BreakerSettings(**QUICK["breaker"]))
    made = [factory() for _ in range(4)]
    assert _batches(made, 2) == [1.0] * 8
    with killed_backend(), pytest.raises(RunFailedError, match=r"in a row faulted, for .*refused"):
        _batches(made, 10_000)


def test_trl_tool_loop_goes_on_when_its_backend_is_back() -> None:
    register_lost()
    factory = environment_factory(LOST, breaker=BreakerSettings(**PATIENT["breaker"]))
    made = [factory() for _ in range(4)]
    with killed_backend():
        assert _batches(made, 4) == [None] * 16
    assert _batches(made, 3) == [1.0] * 12
    with killed_backend():
        assert _batches(made, 1) == [None] * 4


def test_trl_broken_contract_is_raised_where_trl_does_not_hide_it() -> None:
    made: Any = environment_factory("toy-broken-letters-v0")()
    made.reset(**_row(EpisodeRequest(env_id="toy-broken-letters-v0", seed=1)))
    made.reply(text="abc")
    with pytest.raises(ContractError, match="must return"):
        made.get_reward()


def test_trl_episode_that_is_over_says_so_and_keeps_its_reward() -> None:
    made: Any = environment_factory("toy-letters-v0", max_turns=2)()
    assert made.reply(text="abc") == OVER
    request = EpisodeRequest(
        env_id="toy-letters-v0", env_kwargs={"max_turns": 2}, task={"name": "ann"}
    )
    assert made.reset(**_row(request)) == "Hello ann."
    assert [made.reply(text="abc") for _ in range(3)] == ["3 letters.", "3 letters.", OVER]
    assert made.get_reward() == 2.0


def test_trl_members_of_a_group_start_from_one_seed_and_rows_from_others() -> None:
    made: Any = environment_factory("toy-dots-v0", seed=3)
    one, other = made(), made()
    row = {"prompt": [{"role": "user", "content": "a"}]}
    first, second = one.reset(**row), other.reset(**row)
    assert first[0]["image"].tobytes() == second[0]["image"].tobytes()
    assert [part["type"] for part in first] == ["image", "text"]
    third = one.reset(prompt=[{"role": "user", "content": "b"}])
    assert third[0]["image"].tobytes() != first[0]["image"].tobytes()
    assert [part["type"] for part in one.reply(text="1")] == ["image", "text"]


def test_trl_asynchronous_environments_work_too() -> None:
    made: Any = environment_factory("toy-async-echo-v0")()
    request = EpisodeRequest(env_id="toy-async-echo-v0", task={"word": "red"})
    assert made.reset(**_row(request)) == "Repeat this word: red"
    assert made.reply(text="red") == "Right."
    assert made.get_reward() == 1.0


def test_trl_row_of_another_environment_is_refused() -> None:
    made = environment_factory("toy-echo-v0")()
    with pytest.raises(ConfigurationError, match="dictionary of factories"):
        made.reset(**_row(LETTERS))


def test_trl_factory_of_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="toy-echo-v0"):
        environment_factory("toy-ecco-v0")


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden", "with-dash", "class"])
def test_trl_tool_names_that_trl_cannot_offer_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tool|method"):
        tool_method(ToolSpec(name=name, description="x"))


def test_trl_class_is_named_after_the_environment() -> None:
    assert environment_factory("toy-echo-v0").__name__ == "ToyEchoV0"
