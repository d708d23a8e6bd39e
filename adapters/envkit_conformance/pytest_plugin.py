"""pytest plugin: an option for other recordings, and the fixture for test functions.

Installing envkit registers the plugin. From a checkout, use `-p envkit_conformance.pytest_plugin`.
"""

from typing import TYPE_CHECKING

from envkit_conformance.testing import OPTION, AdapterConformance, parametrize

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the option that names a folder of recordings."""
    parser.getgroup("envkit").addoption(
        OPTION,
        metavar="DIR",
        default=None,
        help="check adapters with the trajectories of this run directory instead of envkit's own",
    )


def pytest_generate_tests(metafunc: "pytest.Metafunc") -> None:
    """Parametrize functions that request `envkit_recording`; classes do it themselves."""
    if not _is_conformance(metafunc.cls):  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # pytest types it bare
        parametrize(metafunc)


def _is_conformance(owner: object) -> bool:
    return isinstance(owner, type) and issubclass(owner, AdapterConformance)
