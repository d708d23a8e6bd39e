"""Collections: many environments under one namespace, brought by one entry point."""

import json
import sys
from importlib.metadata import EntryPoint

import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv
from fakes.processes import run_python

import envkit
from envkit import collection, plugins, registration
from envkit.collection import Collection, collections, load_collection
from envkit.errors import ConfigurationError, ContractError, UnknownNameError
from envkit.rollout import EpisodeRequest
from envkit.tasks import ListSource


class WordEnv(EchoEnv):
    """Repeat one word."""

    def __init__(self, *, word: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.tasks = ListSource([{"word": word}])


SHELF = Collection(
    entry_point="shelf_of_words:WordEnv",
    argument="word",
    members=lambda: ("Say-v0", "Repeat-v0", "Repeat-v1"),
    description="Words to repeat.",
)
BAD_ID = Collection(entry_point="shelf_of_words:WordEnv", argument="word", members=lambda: ("say",))
BROKEN = Collection(
    entry_point="shelf_of_words:WordEnv", argument="word", members=lambda: [str(1 // 0)]
)
NO_COLLECTION = 3


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    """Install collections of the namespace "words" whose values are names of this module."""
    monkeypatch.setitem(sys.modules, "shelf_of_words", sys.modules[__name__])
    points = [
        EntryPoint(name="words", value=f"shelf_of_words:{value}", group="envkit.collections")
        for value in values
    ]

    def installed(group: str) -> list[EntryPoint]:
        return points if group == collection.ENTRY_POINT_GROUP else []

    monkeypatch.setattr(plugins, "entry_points", installed)


def test_collection_member_is_made_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "SHELF")
    env = envkit.make("words/Say-v0")

    assert env.unwrapped.spec is not None
    assert env.unwrapped.spec.id == "words/Say-v0"
    assert envkit.spec("words/Say-v0").kwargs == {"word": "Say"}
    assert envkit.spec("envkit/words/Repeat").id == "words/Repeat-v1"
    assert EpisodeRequest(env_id="words/Say-v0").factory()().unwrapped.spec == env.unwrapped.spec


def test_collection_is_listed_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "GONE")

    assert collections() == {"words": "unknown"}
    assert "words" not in str(envkit.registry())


def test_collection_unknown_members_and_namespaces_are_suggested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "SHELF")

    with pytest.raises(UnknownNameError, match="Did you mean 'words/Say-v0'"):
        envkit.make("words/Sey-v0")
    with pytest.raises(UnknownNameError, match="Did you mean 'words'"):
        registration.members("word")
    with pytest.raises(UnknownNameError):
        envkit.make("nowhere/Say-v0")
    assert load_collection("nowhere") is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["GONE"], "fails to import"),
        (["NO_COLLECTION"], "must be a Collection, got int"),
        (["BROKEN"], "cannot be listed: ZeroDivisionError"),
        (["BAD_ID"], "must look like 'name-v0', got 'say'"),
        (["SHELF", "SHELF"], "must come from one distribution"),
    ],
)
def test_collection_that_is_broken_is_named(
    monkeypatch: pytest.MonkeyPatch, values: list[str], said: str
) -> None:
    install(monkeypatch, *values)

    with pytest.raises(ContractError, match=said):
        envkit.make("words/Say-v0")


def test_collection_of_browser_tasks_describes_each() -> None:
    found = envkit.registration.members("miniwob")
    told = [member.description for member in found.values()]

    assert len(set(told)) == len(told) > 100
    assert found["miniwob/click-color-v0"].description.startswith("Click color: click, ")


def test_collection_namespace_cannot_be_registered_by_hand() -> None:
    with pytest.raises(ConfigurationError, match="only installed collections have a namespace"):
        envkit.register("words/Say-v0", "fakes.envs:EchoEnv")


def test_collection_is_listed_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "SHELF")
    everything, members = run_envkit("list"), run_envkit("list", "words", "--json")

    assert "words/..." in everything.out
    assert "a collection: envkit list words" in everything.out
    assert '"id": "words/Repeat-v1"' in members.out
    assert "Words to repeat." in members.out
    install(monkeypatch, "GONE")
    assert "fails to import" in run_envkit("list", "words").err


def test_list_finds_members_by_a_text_of_their_description() -> None:
    grids = json.loads(run_envkit("list", "visual/grids", "--json").out)
    assert [row["id"] for row in grids][:2] == ["visual/maze-v0", "visual/fog-maze-v0"]
    assert all("(grids;" in row["description"] for row in grids)
    mazes = json.loads(run_envkit("list", "visual/Maze", "--json").out)
    assert [row["id"] for row in mazes] == ["visual/maze-v0", "visual/fog-maze-v0"]
    unknown = run_envkit("list", "visual/mze")
    assert (unknown.code, "Did you mean 'visual/maze-v0'?" in unknown.err) == (2, True)


@pytest.mark.parametrize("name", ["grids", "gridz", "grids-v0", "chart"])
def test_domain_in_place_of_an_environment_is_explained(name: str) -> None:
    with pytest.raises(UnknownNameError, match="is a domain, whose worlds `envkit list visual/"):
        envkit.make(f"visual/{name}")


@pytest.mark.parametrize("name", ["visal/maze-v0", "visuall/mase-v0", "visal/maze"])
def test_misspelt_collection_suggests_a_member_of_the_nearest_one(name: str) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'visual/maze-v0'"):
        envkit.make(name)


@pytest.mark.slow
def test_import_of_envkit_imports_no_collection() -> None:
    code = "import sys, envkit; print('envkit_reasoning_gym' in sys.modules)"
    assert run_python("-c", code).strip() == "False"
