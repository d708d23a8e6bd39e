"""Commands and their examples, suggestions and completions, also of commands that plugins bring."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from fakes.command import run_envkit
from fakes.processes import run_python

from envkit import plugins
from envkit.cli import plugin_commands
from envkit.cli.app import app
from envkit.cli.examples import EXAMPLES
from envkit.cli.options import complete_engine, complete_id
from envkit.errors import ConfigurationError, ContractError
from envkit.wrappers.named import wrapping

COMMANDS = typer.main.get_group(app)


def test_every_command_of_envkit_has_examples() -> None:
    own = {name for name in COMMANDS.commands if not name.startswith("serve-")}
    assert own == set(EXAMPLES)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_example_is_read_by_its_command(line: str) -> None:
    name, *arguments = shlex.split(line)
    context = COMMANDS.commands[name].make_context(name, arguments)
    assert not context.args


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_shows_the_examples(name: str) -> None:
    shown = " ".join(run_envkit(name, "--help").out.split())
    assert all(f"envkit {line}" in shown for line in EXAMPLES[name])


PLUGIN_COMMANDS = plugin_commands.plugin_commands()


@pytest.mark.parametrize("name", sorted(PLUGIN_COMMANDS))
def test_plugins_bring_examples_that_their_commands_read(name: str) -> None:
    command = PLUGIN_COMMANDS[name].load()
    shown = [line.strip() for line in (command.epilog or "").splitlines()]
    lines = [line.removeprefix("envkit ") for line in shown if line.startswith("envkit ")]
    assert len(lines) >= 2
    for line in lines:
        first, *arguments = shlex.split(line)
        assert first == name
        assert not command.make_context(name, arguments).args
    text = " ".join(run_envkit(name, "--help").out.split())
    assert all(f"envkit {line}" in text for line in lines)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rollot", "canary-v0"], "Did you mean 'rollout'?"),
        (["publsh"], "Did you mean 'publish'?"),
        (["rollout", "canary-v0", "--enigne", "sglang"], "--engine"),
        (["rollout", "canary-v0", "--on-fualt", "x"], "--on-fault"),
        pytest.param(
            ["info", "reasoning_gym/sudko-v0"],
            "Did you mean 'reasoning_gym/sudoku-v0'?",
            marks=pytest.mark.slow,  # its library is
        ),
        (["list", "reasoning_gm"], "Did you mean 'reasoning_gym'?"),
        (["info", "geo3kk"], "Did you mean 'geo3k-v0'?"),
        (["rollout", "canary-v0", "--wrap", "blank-imge"], "Did you mean 'blank-image'?"),
        (["export", "canary-v0", "--format", "vrl", "--out", "x"], "Did you mean 'verl'?"),
        (["conformance", "--adapter", "trll"], "Did you mean 'trl'?"),
        (
            ["rollout", "canary-v0", "--policy", "oracle", "--env-kwargs", "max_trns=3"],
            "Did you mean 'max_turns'?",
        ),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(arguments: list[str], hint: str) -> None:
    shown = run_envkit(*arguments)
    assert shown.code in (1, 2)
    words = shown.err.replace("│", " ").split()
    assert hint in " ".join(words)


@pytest.mark.parametrize("wrap", ["blank-imge", "resize-image:sid=3", "curriculum:lvl=2"])
def test_a_wrong_wrapper_is_rejected_before_a_model_is_loaded(wrap: str) -> None:
    shown = run_envkit("rollout", "canary-v0", "--wrap", wrap)
    assert shown.code == 2
    assert "Did you mean" in shown.err
    assert "loading" not in shown.err


@pytest.mark.parametrize(
    ("name", "argument", "meant"),
    [("inject-faults", "rat", "rate"), ("curriculum", "windw", "window")],
)
def test_a_misspelt_wrapper_argument_gets_a_suggestion(
    name: str, argument: str, meant: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean '{meant}'"):
        wrapping(name, {argument: 1})


def test_completion_knows_environments_and_engines() -> None:
    assert complete_id("canary") == ["canary-v0"]
    assert complete_id("nothing") == []
    assert complete_engine("sg") == ["sglang"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ver", "verify"),
        ("info geo", "geo3k-v0"),
        pytest.param("certify gym", "gymnasium-v0", marks=pytest.mark.slow),
        pytest.param("rollout canary-v0 --res", "--resume", marks=pytest.mark.slow),
        pytest.param("rollout canary-v0 --sink pro", "prometheus", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_shell_gets_completions_of_a_word(typed: str, offered: str) -> None:
    words = f"envkit {typed}"
    environment = {
        **os.environ,
        "_ENVKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from envkit.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout, done.stderr


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
