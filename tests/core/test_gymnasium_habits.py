"""A person who knows Gymnasium finds each of its habits here by guessing."""

import copy
import json
import pickle
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import typer
from fakes.codecs import vision_codec
from fakes.command import run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.processes import run_python

import envkit
from envkit.agents import MultiAgentEnv
from envkit.cli.app import app
from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError, ContractError, UnknownNameError
from envkit.random_replies import random_policy
from envkit.rollout import Player, RolloutConfig, ScriptedEngine, play
from envkit.trajectory import load


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    register_toys()


# registry


def test_registry_is_a_mapping_of_ids_to_specs() -> None:
    assert "canary-v0" in envkit.registry
    assert "canery-v0" not in envkit.registry
    assert isinstance(envkit.registry, Mapping)
    assert list(envkit.registry) == sorted(envkit.registry)
    assert len(envkit.registry) == len(envkit.registry.items()) == len([*envkit.registry.values()])
    assert envkit.registry["canary-v0"].distribution == "envkit-rl"
    assert envkit.registry.get("canery-v0") is None
    assert envkit.registry() == envkit.registry


def test_registry_takes_an_id_with_its_namespace() -> None:
    assert "envkit/canary-v0" in envkit.registry
    assert envkit.registry["envkit/canary-v0"] == envkit.registry["canary-v0"]
    assert "envkit/canery-v0" not in envkit.registry
    assert 5 not in envkit.registry


def test_registry_suggests_an_id_and_raises_a_key_error() -> None:
    with pytest.raises(KeyError, match="Did you mean 'canary-v0'"):
        envkit.registry["canary"]
    with pytest.raises(UnknownNameError) as caught:
        envkit.registry["canery-v0"]
    assert str(caught.value).startswith("no environment 'canery-v0' is registered.")


def test_registry_shows_what_is_registered_later_and_its_copies_are_itself() -> None:
    before = envkit.registry()
    envkit.register("later-v0", EchoEnv)
    assert "later-v0" in envkit.registry
    assert "later-v0" not in before
    assert copy.deepcopy(envkit.registry) is envkit.registry
    assert pickle.loads(pickle.dumps(envkit.registry)) is envkit.registry
    del gymnasium.registry["envkit/later-v0"]


def test_registry_cannot_be_changed_by_item() -> None:
    registry: Any = envkit.registry
    with pytest.raises(TypeError):
        registry["mine-v0"] = registry["canary-v0"]
    with pytest.raises(TypeError):
        del registry["canary-v0"]
    with pytest.raises(AttributeError):
        registry.canary = 1
    assert "mine-v0" not in registry
    assert "canary-v0" in registry


def test_pprint_registry_prints_the_ids_by_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    far = ["reasoning_gym"]  # slow to import
    assert envkit.pprint_registry(exclude_namespaces=far) is None
    printed = capsys.readouterr().out
    assert printed.startswith("===== envkit =====\n")
    names = printed.split("=====")[2].split()  # other tests may have registered more
    assert "canary-v0" in names
    assert names == sorted(names)
    assert "===== gymnasium =====" in printed
    assert "gymnasium/CartPole-v1" in printed
    assert "reasoning_gym" not in printed
    text = envkit.pprint_registry(num_cols=1, exclude_namespaces=far, disable_print=True) or ""
    assert text.split() == printed.split()
    assert "canary-v0\n" in text
    assert capsys.readouterr().out == ""


def test_pprint_registry_names_a_collection_that_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(namespace: str) -> Mapping[str, object]:
        raise ContractError(f"the collection {namespace!r} cannot be listed: OSError: gone")

    monkeypatch.setattr("envkit.registration.members", broken)
    text = envkit.pprint_registry(disable_print=True) or ""
    assert "canary-v0" in text
    assert "the collection 'gymnasium' cannot be listed: OSError: gone" in text


# gymnasium.make


@pytest.mark.parametrize(
    ("line", "env_id"),
    [
        ("import gymnasium, envkit", "envkit/canary-v0"),
        ("import gymnasium", "envkit:envkit/canary-v0"),
    ],
)
def test_gymnasium_makes_an_environment_in_a_new_process(line: str, env_id: str) -> None:
    code = (
        f"{line}\n"
        f"env = gymnasium.make({env_id!r})\n"
        "observation, info = env.reset(seed=3)\n"
        "print(env.spec.id, env.observation_space.contains(observation))\n"
        "print(len(env.step(env.action_space.sample())))\n"
    )
    assert run_python("-W", "error", "-c", code).split() == ["envkit/canary-v0", "True", "5"]


def test_gymnasium_adds_the_wrapper_of_a_render_mode() -> None:
    env = gymnasium.make("envkit/canary-v0", render_mode="rgb_array_list")
    env.reset(seed=3)
    env.step("hello")
    frames: Any = env.render()
    assert [frame.ndim for frame in frames] == [3, 3]
    env.close()


def test_make_takes_a_spec_with_its_arguments() -> None:
    given = replace(envkit.registry["canary-v0"], kwargs={"max_turns": 7}, reward_threshold=0.5)
    env = envkit.make(given)
    assert (env.max_turns, env.reward_threshold) == (7, 0.5)
    assert envkit.make(given, max_turns=2, reward_threshold=0.25).max_turns == 2


async def test_play_says_what_an_engine_is() -> None:
    policy: Any = envkit.make("canary-v0").oracle()
    with pytest.raises(ConfigurationError, match=r"an engine must be .*ScriptedEngine\(codec, "):
        await play("canary-v0", policy, vision_codec())


# random


def test_random_policy_of_an_environment_without_one_writes_seeded_text() -> None:
    env = envkit.make("toy-echo-v0")
    env.reset(seed=3)
    policy = random_policy(env)
    context = envkit.PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=3)
    again = envkit.PolicyContext(env=env, task=env.task, turn=1, messages=(), seed=3)
    assert policy(context) == random_policy(env)(context)
    assert policy(context) != policy(again)


@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_random_policy_is_played_by_commands_and_listed(command: str) -> None:
    for out in ("a", "b"):
        played = run_envkit(command, "toy-echo-v0", "--policy", "random", "-n", 4, "--out", out)
        assert played.code == 0, played.err
    folder = "" if command == "rollout" else "toy-echo-v0"
    first, second = (sorted(one.train_ids() for one in load(Path(o) / folder)) for o in "ab")
    assert first == second
    assert len(set(map(tuple, first))) > 1
    assert "random" in json.loads(run_envkit("info", "toy-echo-v0", "--json").out)["policies"]


# play by id


async def test_play_takes_an_id() -> None:
    codec = vision_codec()
    engine = ScriptedEngine(codec, envkit.make("canary-v0").oracle())
    for env_id in ("canary-v0", "canary", "envkit/canary-v0"):
        played = await play(env_id, engine, codec, seed=3)
        assert (played.env_id, played.reward) == ("canary-v0", 1.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'canary-v0'"):
        await play("canery-v0", engine, codec)


async def test_player_makes_an_id_with_the_arguments_of_its_configuration() -> None:
    codec = vision_codec()
    engine = ScriptedEngine(codec, lambda _: "no")
    player = Player(engine, codec, RolloutConfig(env_kwargs={"max_turns": 2}))
    try:
        (played,) = await player.play("toy-echo-v0")
        (again,) = await player.play(envkit.make("toy-echo-v0", max_turns=2))
    finally:
        await player.aclose()
    assert len(played.turns) == len(again.turns) == 2


# max_turns


class Plain(Env):
    """An environment whose author chose no number of turns."""

    def on_reset(self, task: Any) -> Turn:
        return Turn("Say something.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("Again.")


class Long(Plain):
    """An environment that sets the attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.max_turns = 5


def test_info_says_that_no_number_of_turns_is_set() -> None:
    envkit.register("plain-v0", Plain)
    assert "1 (not set: an episode ends after one reply)" in run_envkit("info", "plain-v0").out
    facts = json.loads(run_envkit("info", "plain-v0", "--json").out)
    assert (facts["max_turns"], facts["sets_max_turns"]) == (1, False)
    given = run_envkit("info", "plain-v0", "--env-kwargs", "max_turns=1").out
    assert "not set" not in given
    assert "not set" not in run_envkit("info", "canary-v0").out
    assert [env.sets_max_turns for env in (Plain(), Plain(max_turns=1), Long())] == [0, 1, 1]


# async hooks


async def _hook(*_: object) -> Turn:
    return Turn("late")


def _hook_of_a_decorator(*_: object) -> object:
    return _hook()


@pytest.mark.parametrize(
    ("hook", "instead"),
    [
        ("on_reset", "`async def on_areset`"),
        ("on_turn", "`async def on_aturn`"),
        ("reset", "`async def areset`"),
        ("step", "`async def astep`"),
        ("close", "`async def aclose`"),
        ("format_observation", "do what waits in on_areset and on_aturn"),
        ("set_state", "do what waits in on_areset and on_aturn"),
    ],
)
@pytest.mark.parametrize("base", [Env, envkit.AsyncEnv, envkit.ToolEnv])
def test_async_hook_of_a_synchronous_method_is_an_error_when_the_class_is_defined(
    base: type[Env], hook: str, instead: str
) -> None:
    with pytest.raises(ContractError, match=rf"Late\.{hook} must be a plain `def`") as caught:
        type("Late", (base,), {hook: _hook})
    assert instead in str(caught.value)
    assert "AsyncEnv" in str(caught.value)


def test_async_hook_of_a_mixin_or_of_several_agents_is_found() -> None:
    mixin = type("Waits", (), {"on_turn": _hook})
    with pytest.raises(ContractError, match=r"Late\.on_turn must be a plain `def`"):
        type("Late", (mixin, Env), {})
    with pytest.raises(ContractError, match=r"Late\.on_replies must be a plain `def`"):
        type("Late", (MultiAgentEnv,), {"on_replies": _hook})


def test_async_methods_that_take_no_hooks_place_are_allowed() -> None:
    kinds = {
        "on_areset": _hook,
        "on_aturn": _hook,
        "areset": _hook,
        "aclose": _hook,
        "fetch": _hook,
    }
    assert issubclass(type("Mine", (envkit.AsyncEnv,), kinds), envkit.AsyncEnv)
    assert issubclass(type("Mine", (Env,), {"fetch": _hook}), Env)


def test_hook_that_returns_a_coroutine_is_an_error_that_names_async_env() -> None:
    env = type("Late", (Plain,), {"on_turn": _hook_of_a_decorator})()
    env.reset(seed=1)
    with pytest.raises(
        ContractError, match=r"Late\.on_turn .* got a coroutine: derive from envkit.AsyncEnv"
    ):
        env.step("hello")


class _Later:
    """Can be awaited."""

    def __await__(self) -> Iterator[None]:
        yield


def _later(*_: object) -> _Later:
    return _Later()


def _early(*_: object) -> Turn:
    return Turn("early")


async def _events(*_: object) -> AsyncIterator[Turn]:
    yield Turn("late")


def _events_of_a_decorator(*_: object) -> object:
    return _events()


@pytest.mark.parametrize("hook", [_events_of_a_decorator, _later])
def test_hook_that_returns_what_must_be_awaited_is_an_error_that_names_async_env(
    hook: Any,
) -> None:
    env = type("Late", (Plain,), {"on_turn": hook})()
    env.reset(seed=1)
    with pytest.raises(ContractError, match=r"Late\.on_turn .*: derive from envkit.AsyncEnv"):
        env.step("hello")


def test_async_hooks_without_async_env_are_an_error_that_names_it() -> None:
    env = type("Late", (Env,), {"on_areset": _hook, "on_aturn": _hook})()
    with pytest.raises(ContractError, match=r"on_areset is a hook of envkit\.AsyncEnv"):
        env.reset(seed=1)


@pytest.mark.parametrize("hook", [_early, _events])
@pytest.mark.parametrize("name", ["on_areset", "on_aturn"])
def test_synchronous_hook_of_an_async_env_is_an_error(name: str, hook: Any) -> None:
    env = type("Early", (envkit.AsyncEnv,), {"on_areset": _hook, "on_aturn": _hook, name: hook})()
    with pytest.raises(ContractError, match=rf"Early\.{name} must be `async def`"):  # noqa: PT012  # either
        env.reset(seed=1)
        env.step("hello")
    env.close()


# snapshots


class Declared(Plain):
    """Declares a snapshot without one."""

    capabilities = Capabilities(snapshot=True)


class HalfState(Declared):
    """Defines one half."""

    def get_state(self) -> dict[str, Any]:
        return {}


class HalfSnapshot(Declared):
    """Defines the other pair's half."""

    def snapshot(self) -> bytes:
        return b"mine"


class Broken(Declared):
    """Its own code fails."""

    def get_state(self) -> dict[str, Any]:
        raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Plain, "Plain declares no snapshot: define get_state and set_state, and declare"),
        (Declared, r"Declared must define get_state: .*got only Capabilities\(snapshot=True\)"),
        (HalfState, "HalfState must define set_state: .*got get_state"),
        (HalfSnapshot, "HalfSnapshot.restore takes what Env.snapshot returned, .*its own restore"),
        (Broken, "the disk is gone"),
    ],
)
def test_only_an_environment_without_a_snapshot_is_told_that_it_declares_none(
    kind: type[Env], message: str
) -> None:
    env = kind()
    env.reset(seed=1)

    def there_and_back() -> None:
        env.restore(env.snapshot())

    with pytest.raises((ContractError, RuntimeError), match=message) as caught:
        there_and_back()
    assert ("declares no snapshot" in str(caught.value)) == (kind is Plain)


# options


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[tuple[object, ...]]] = {}
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        command = command.load() if hasattr(command, "load") else command
        for option in command.params:
            for typed in option.opts if option.opts[0].startswith("-") else ():
                known = meanings.setdefault(typed, set())
                known.add((option.opts[-1], option.is_flag))
    assert {typed: known for typed, known in meanings.items() if len(known) > 1} == {}
    assert meanings["-n"] == {("--episodes", False)}


def test_eval_counts_episodes_as_rollout_does() -> None:
    played = run_envkit(
        "eval", "toy-echo-v0", "--policy", "oracle", "-n", 6, "--group", 2, "--out", "out"
    )
    assert played.code == 0, played.err
    (line,) = json.loads(Path("out/eval.json").read_text())["lines"]
    assert (line["tasks"], line["episodes"]) == (3, 6)
    for command in ("rollout", "eval"):
        odd = run_envkit(command, "toy-echo-v0", "--policy", "oracle", "-n", 5, "--group", 2)
        assert odd.code == 2
        assert "got 5 episodes in groups of 2" in odd.last_error


def test_report_compares_two_runs() -> None:
    for policy in ("oracle", "random"):
        run_envkit("rollout", "toy-echo-v0", "--policy", policy, "-n", 2, "--out", policy, "-q")
    assert run_envkit("report", "oracle", "random").out == "oracle/diff.html\n"
    assert Path("oracle/diff.html").is_file()


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("rollout canary-v0 --n 5", "-n"),
        ("rollout canary-v0 --num-episodes 5", "--episodes"),
        ("rollout canary-v0 --group-size 2", "--group"),
        ("eval canary-v0 -k 5", "--group"),
        ("eval canary-v0 --samples 5", "--group"),
        ("certify canary-v0 --n 5", "-n"),
        ("export canary-v0 -n 5", "--rows"),
        ("rollout canary-v0 --engine hf", "transformers"),
        ("eval canary-v0 --engine HuggingFace", "transformers"),
        ("rollout canary-v0 --engine sglan", "sglang"),
        ("rollout canary --policy oracel", "oracle"),
        ("rollout canery-v0 --policy oracle", "canary-v0"),
    ],
)
def test_wrong_option_or_name_gets_a_suggestion(line: str, meant: str) -> None:
    shown = run_envkit(*line.split())
    assert shown.code == 2
    assert f"Did you mean '{meant}'?" in " ".join(shown.err.replace("│", " ").split())


def test_option_unlike_any_other_gets_no_suggestion() -> None:
    shown = run_envkit("rollout", "canary-v0", "--zzq", "1")
    assert shown.code == 2
    assert "No such option" in shown.err  # the quotes differ between versions of click
    assert "--zzq" in shown.err
    assert "Did you mean" not in shown.err


def test_extra_of_an_engine_has_its_name() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    engines: dict[str, str] = project["entry-points"]["envkit.engines"]
    assert set(engines) <= set(project["optional-dependencies"])
    assert not [value for value in engines.values() if "[" in value]
