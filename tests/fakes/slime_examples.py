"""The example scripts of slime and miles: their flags, read by their own argument parsers.

The parsers add the flags of SGLang and Megatron too, which are not installed beside these tests:
what a script says about those is left over.
"""

# pyright: reportMissingImports=false

import argparse
import importlib
import importlib.util
import re
import shlex
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGES = Path(__file__).parents[2] / "docs" / "trainers"
_ABSENT = ("wandb", "polars", "mlflow")
"""Packages that only log; stubs stand in for those that are not installed."""


def checkout(trainer: str) -> Path:
    """Return the root of the trainer's checkout, or skip: a wheel has no examples."""
    package: Any = importlib.import_module(trainer)
    root = Path(next(iter(package.__path__))).parent
    if not (root / "examples").is_dir():
        pytest.skip(f"this {trainer} was installed without its examples")
    return root


def shell_flags(script: Path, *arrays: str) -> list[str]:
    """Return the words of a shell script's arrays."""
    text = script.read_text()
    words: list[str] = []
    for name in arrays:
        (body,) = re.findall(rf"^{name}=\((.*?)^\)", text, re.DOTALL | re.MULTILINE)
        words += shlex.split(body, comments=True)
    return words


def python_flags(trainer: str, module: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a Python script of a checkout would start the training with."""
    monkeypatch.syspath_prepend(checkout(trainer))
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)  # both trainers have a package of this name
    script: Any = importlib.import_module(module)
    given: list[str] = []

    def record(*, train_args: str, **_: object) -> None:
        given.extend(shlex.split(train_args))

    monkeypatch.setattr(script, "execute_train", record)
    script.execute()
    return given


def page_section(page: str, title: str) -> str:
    """Return one section of a trainer's page."""
    _, _, after = (PAGES / page).read_text().partition(f"## {title}\n")
    assert after, title
    return after.partition("\n## ")[0]


def changed(flags: list[str], section: str) -> list[str]:
    """Return a script's flags with the changes of a page's `diff` block made."""
    (diff,) = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    words = list(flags)
    for line in diff.splitlines():
        change = shlex.split(line[1:])
        if line.startswith("+"):
            words += change
            continue
        places = [n for n in range(len(words)) if words[n : n + len(change)] == change]
        assert places, f"the example does not say {line[1:].strip()}"
        del words[places[0] : places[0] + len(change)]
    return words


def page_config(section: str) -> dict[str, Any]:
    """Return the file that a page gives to --custom-config-path."""
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    return yaml.safe_load(text)


def parsed(trainer: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Return what the trainer's own parser makes of flags."""
    stand_in(monkeypatch)
    arguments = importlib.import_module(f"{trainer}.utils.arguments")
    provide = getattr(arguments, f"get_{trainer}_extra_args_provider")()
    parser = provide(argparse.ArgumentParser(allow_abbrev=False))
    found, _ = parser.parse_known_args(flags)
    return found


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parsers import and build without what only servers and logs need."""
    from fakes import trainer_stubs

    absent = tuple(name for name in _ABSENT if importlib.util.find_spec(name) is None)
    monkeypatch.setattr(trainer_stubs, "_ROOTS", (*trainer_stubs._ROOTS, *absent))
    board: Any = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = object
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)

    def add_nothing(*_: object, **__: object) -> None:
        """SGLang's own flags, of which the scripts' rollouts read none."""

    for module, name in (
        ("sglang_router.launch_router", "RouterArgs"),
        ("sglang.srt.server_args", "ServerArgs"),
    ):
        known: Any = getattr(importlib.import_module(module), name)
        monkeypatch.setattr(known, "add_cli_args", staticmethod(add_nothing), raising=False)
