"""What `import envkit` offers, and what it must not import."""

from functools import partial

from fakes.processes import run_python

import envkit

PROMISED = {
    "Env",
    "EnvFault",
    "Image",
    "ToolSpec",
    "check_env",
    "make",
    "register",
    "registry",
    "spec",
    "tool",
}
HEAVY = (
    "aiohttp",
    "asyncio",
    "hypothesis",
    "jsonschema",
    "pyarrow",
    "rich",
    "tiktoken",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
)


run = partial(run_python, "-W", "error", "-c")


def test_public_names_are_sorted_importable_and_promised() -> None:
    assert envkit.__all__ == sorted(envkit.__all__)
    assert len(envkit.__all__) <= 19
    assert set(envkit.__all__) >= PROMISED
    for name in envkit.__all__:
        assert getattr(envkit, name) is not None


def test_public_names_are_what_a_star_import_gives() -> None:
    space: dict[str, object] = {}
    exec("from envkit import *", space)

    assert sorted(set(space) - {"__builtins__"}) == sorted(envkit.__all__)


def test_import_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, envkit\n"
        f"heavy = {HEAVY!r}\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('envkit_')])"
    )

    assert run(code).split() == ["[]", "[]"]


def test_packages_are_imported_on_first_use() -> None:
    code = (
        "import sys, envkit\n"
        "assert 'envkit.rollout' not in sys.modules\n"
        "print(envkit.rollout.__name__, envkit.tokens.__name__)\n"
        "try:\n"
        "    envkit.no_such_name\n"
        "except AttributeError as error:\n"
        "    print(error)"
    )

    assert run(code).splitlines() == [
        "envkit.rollout envkit.tokens",
        "module 'envkit' has no attribute 'no_such_name'",
    ]


def test_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert envkit.__version__ == version("envkit-rl")
