"""Notes of what each client did; and no test of a client that this environment does not have."""

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from fakes.client_notes import Note

    from envkit.trajectory import Trajectory

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it looks for prices on import
FILE: Final = "ENVKIT_CLIENT_NOTES"
"""Names the file for the notes of a run that passes."""
NEEDS: Final = {
    "ag2": ["autogen.agentchat"],
    "anthropic": ["anthropic"],
    "autogen": ["autogen_agentchat"],
    "browser_use": ["browser_use"],
    "crewai": ["crewai"],
    "dspy": ["dspy"],
    "google_adk": ["google.adk"],
    "identity": ["anthropic", "langchain_openai", "openai"],
    "inspect_ai": ["inspect_ai"],
    "langgraph": ["langchain_anthropic", "langgraph"],
    "litellm": ["litellm"],
    "llama_index": ["llama_index.llms.openai_like"],
    "openai": ["openai"],
    "openai_agents": ["agents"],
    "pydantic_ai": ["pydantic_ai"],
    "smolagents": ["smolagents"],
    "wire_types": ["anthropic", "openai"],
}
"""Modules that a file's tests import."""


def has(module: str) -> bool:
    """Return whether a module is installed, and its packages."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


collect_ignore = [
    f"test_{name}.py" for name, modules in NEEDS.items() if not all(map(has, modules))
]
NOTES: Final = pytest.StashKey[list[dict[str, Any]]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> "Note":
    """Note what a client did and how the gateway recorded it; ledgers are checked before."""
    notes = request.config.stash.setdefault(NOTES, [])

    def add(trajectory: "Trajectory", *, dialect: str, does: str) -> None:
        from fakes.client_notes import line_of

        line = {"does": does, "dialect": dialect, **line_of(trajectory)}
        if line not in notes:
            notes.append(line)

    return add


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the notes of a run that passed."""
    path, notes = os.environ.get(FILE), session.config.stash.get(NOTES, [])
    if path and notes and not exitstatus:
        notes = sorted(notes, key=lambda one: (one["does"], one["dialect"]))
        Path(path).write_text(json.dumps(notes), encoding="utf-8")
