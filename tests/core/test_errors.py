"""The error tree: what a caller can catch, what survives a process boundary, what is suggested."""

import pickle

import pytest
from fakes.hostile_values import BadRepr, MuteError, OddTextError

from envkit import errors
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    EnvFault,
    EnvkitError,
    Fault,
    FaultKind,
    LedgerFault,
    MissingDependencyError,
    UnknownNameError,
    describe,
    message_of,
    shown,
    traceback_of,
)


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("ConfigurationError", ValueError),
        ("UnknownNameError", LookupError),
        ("MissingDependencyError", ImportError),
        ("RefusedError", ImportError),
        ("ContractError", TypeError),
        ("EpisodeStateError", RuntimeError),
        ("TemplateError", ValueError),
        ("DatasetError", ValueError),
        ("ImageError", ValueError),
        ("StorageError", OSError),
        ("Fault", RuntimeError),
    ],
)
def test_every_error_is_ours_and_a_standard_one(name: str, standard: type[Exception]) -> None:
    error = getattr(errors, name)("what went wrong")

    assert isinstance(error, EnvkitError)
    assert isinstance(error, standard)
    assert str(pickle.loads(pickle.dumps(error))) == "what went wrong"


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("fault_class", [EnvFault, EngineFault, LedgerFault])
def test_fault_keeps_its_kind_across_processes(fault_class: type[Fault], kind: FaultKind) -> None:
    fault = fault_class("browser gone", kind=kind, retryable=True)

    back = pickle.loads(pickle.dumps(fault))

    assert type(back) is fault_class
    assert (str(back), back.kind, back.retryable) == ("browser gone", kind, True)


def test_fault_is_retryable_by_its_kind_by_default() -> None:
    retryable = {kind for kind in FaultKind if EnvFault("x", kind=kind).retryable}

    assert retryable == {FaultKind.TIMEOUT, FaultKind.TRANSIENT, FaultKind.CRASHED}
    assert not EnvFault("x", kind=FaultKind.TIMEOUT, retryable=False).retryable
    assert not EnvFault("x").retryable


def test_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    error = UnknownNameError.suggest("environment", "geo3", ["sokoban-v0", "geo3k-v0"])

    assert str(error) == (
        "no environment 'geo3' is registered. Did you mean 'geo3k-v0'? "
        "Registered: ['geo3k-v0', 'sokoban-v0']"
    )
    assert "Did you mean" not in str(UnknownNameError.suggest("environment", "zzz", ["geo3k-v0"]))


def test_missing_dependency_says_what_to_install() -> None:
    error = MissingDependencyError.for_extra("the embedded engine", "torch", "transformers")

    assert "pip install 'envkit-rl[transformers]'" in str(error)
    assert isinstance(error, ConfigurationError)


@pytest.mark.parametrize("kind", [ImportError, ModuleNotFoundError, RuntimeError])
def test_broken_dependency_is_not_called_missing(kind: type[Exception]) -> None:
    try:
        raise kind("libthings.so.1: cannot open")
    except kind:
        broken = MissingDependencyError.for_extra("the page", "pytest", "transformers")
        missing = MissingDependencyError.for_extra("the page", "no-such-thing", "transformers")

    assert "libthings.so.1" in str(broken)
    assert "not installed" not in str(broken)
    assert "not installed" in str(missing)


@pytest.mark.parametrize("error", [MuteError(), OddTextError()])
def test_an_exception_that_has_no_text_is_described_by_its_type(error: Exception) -> None:
    name = type(error).__name__

    assert message_of(error) == "(its __str__ raises)"
    assert describe(error).startswith(name)
    assert name in traceback_of(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "int: 7"),
        ("reply", "str: 'reply'"),
        (BadRepr(), "BadRepr"),
        (10**10_000, "int (its __repr__ raises)"),
        (["x" * 1000] * 1_000_000, "list: ['xxx"),
    ],
    ids=["number", "text", "mute", "long_number", "long_list"],
)
def test_a_foreign_value_is_shown_by_its_type_and_the_start_of_its_text(
    value: object, text: str
) -> None:
    assert shown(value).startswith(text)
    assert len(shown(value)) < 300
