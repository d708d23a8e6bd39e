"""Commands that plugins bring: listed without an import, run like envkit's own."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.processes import run_python

from envkit import plugins
from envkit.cli import plugin_commands
from envkit.errors import ContractError

WORDS = '''
import typer
from envkit.errors import ConfigurationError, MissingDependencyError

def greet(name: str, times: int = 1) -> None:
    """Greet somebody.

    More than once if you like.
    """
    if times < 1:
        raise ConfigurationError(f"times must be at least 1, got {times}")
    typer.echo(" ".join([f"hello {name}"] * times))

def odd(first: int | str) -> None:
    """Take what no command line has."""

number = 3
'''
BROKEN = 'def run() -> None:\n    """Run away."""\n\n1 / 0\n'
NEEDY = (
    "from envkit.errors import MissingDependencyError\n"
    "raise MissingDependencyError.for_extra('needy', 'thing', 'things')\n"
)
PLUGINS = {"greeting_plugin", "broken_plugin", "needy_plugin"}
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """Give a function that installs commands whose values are names of plugins on disk."""
    (tmp_path / "greeting_plugin").mkdir()
    (tmp_path / "greeting_plugin" / "__init__.py").write_text("")
    (tmp_path / "greeting_plugin" / "words.py").write_text(WORDS)
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    (tmp_path / "needy_plugin.py").write_text(NEEDY)
    monkeypatch.syspath_prepend(tmp_path)

    def add(*named: tuple[str, str]) -> None:
        points = [EntryPoint(name=n, value=v, group="envkit.commands") for n, v in named]

        def installed(group: str) -> list[EntryPoint]:
            return points if group == plugin_commands.ENTRY_POINT_GROUP else []

        monkeypatch.setattr(plugins, "entry_points", installed)

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0] in PLUGINS]:
        del sys.modules[name]


def test_help_lists_commands_of_plugins_without_importing_them(install: Install) -> None:
    install(
        ("greet", "greeting_plugin.words:greet"),
        ("flee", "broken_plugin:run"),
        ("lost", "no_such_plugin:run"),
        ("unsaid", "greeting_plugin.words:number"),
    )

    shown = run_envkit("--help").out

    lines = {line.split()[1]: line for line in shown.splitlines() if len(line.split()) > 2}
    assert "Greet somebody." in lines["greet"]
    assert "Run away." in lines["flee"]
    assert "From unknown." in lines["lost"]
    assert "From unknown." in lines["unsaid"]
    assert not PLUGINS & {name.partition(".")[0] for name in sys.modules}


def test_command_of_a_plugin_is_run_with_its_options(install: Install) -> None:
    install(("greet", "greeting_plugin.words:greet"))

    assert run_envkit("greet", "Ada", "--times", 2).out == "hello Ada hello Ada\n"
    assert "More than once if you like." in run_envkit("greet", "-h").out
    assert run_envkit("greet").code == 2
    assert "Usage: envkit greet" in run_envkit("greet").err


def test_error_of_a_plugin_is_one_line(install: Install) -> None:
    install(("greet", "greeting_plugin.words:greet"))

    done = run_envkit("greet", "Ada", "--times", 0)

    assert (done.code, done.err) == (2, "envkit: error: times must be at least 1, got 0\n")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("broken_plugin:run", "fails to import: ZeroDivisionError"),
        ("no_such_plugin:run", "fails to import: ModuleNotFoundError"),
        ("greeting_plugin.words:missing", "fails to import: AttributeError"),
        ("greeting_plugin.words:number", "must be a function, got int"),
        ("greeting_plugin.words:odd", "has a signature that typer rejects"),
        ("needy_plugin:run", "pip install 'envkit-rl[things]'"),
    ],
)
def test_broken_plugin_says_what_is_wrong(install: Install, value: str, said: str) -> None:
    install(("trouble", value))

    done = run_envkit("trouble")

    assert done.code == (2 if "install" in said else 1)  # a missing package is not a defect
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_name_that_two_distributions_bring_is_refused(install: Install) -> None:
    install(("greet", "greeting_plugin.words:greet"), ("greet", "broken_plugin:run"))

    assert " greet " in run_envkit("--help").out
    assert "must come from one distribution" in run_envkit("greet", "Ada").err
    with pytest.raises(ContractError, match="one distribution"):
        run_envkit("--debug", "greet", "Ada")


def test_plugin_cannot_replace_a_command_of_envkit(install: Install) -> None:
    install(("list", "broken_plugin:run"))

    assert run_envkit("list").code == 0


def test_mistyped_command_of_a_plugin_is_suggested(install: Install) -> None:
    install(("greet", "greeting_plugin.words:greet"))

    done = run_envkit("gret")

    assert done.code == 2
    assert "greet" in done.err


def test_help_imports_no_plugin_and_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from envkit.cli import main\n"
        "for arguments in (['rollout', '--help'], ['--help']):\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "named = ('envkit_search', 'torch', 'transformers', 'aiohttp', 'tokenizers', 'pyarrow')\n"
        "loaded = set(named) & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    assert "serve-search" in run_python("-c", code)
