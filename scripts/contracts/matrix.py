"""The clients that `make contract-clients CLIENT=name` runs, each in its own environment."""

from dataclasses import dataclass
from typing import Final

from environment import Recipe
from recipes import CLIENTS, CONTRACTS

HARNESS: Final = "test_harnesses.py::test_harness_plays_an_episode[{}]"
"""The test of a ready setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client of the matrix.

    Attributes:
        packages: Its pinned packages, the client itself first.
        module: What imports if a Python package is installed; None if they come from npm.
        tests: Its tests, in `tests/contracts/clients`.
    """

    packages: tuple[str, ...]
    module: str | None = None
    tests: tuple[str, ...]

    @property
    def version(self) -> str:
        """The client's own version."""
        return self.packages[0].rpartition("=" if self.module else "@")[2]

    def recipe(self, name: str) -> Recipe:
        """Return the environment of its tests."""
        if self.module is None:
            return CLIENTS
        return Recipe(
            name=f"client-{name}",
            version=self.version,
            requirements=CONTRACTS / "clients" / "testing.txt",
            check=f"import {self.module}, gymnasium, jsonschema, hypothesis, pytest_asyncio",
            pip_options=self.packages,
            cost="downloads up to 0.2 GB, takes up to 0.7 GB of disk",
            has_torch=False,
            resolves=True,
        )


MATRIX: Final = {
    "openai": Client(packages=("openai==3.57.0",), module="openai", tests=("test_openai.py",)),
    "anthropic": Client(
        packages=("anthropic==2.14.0",), module="anthropic", tests=("test_anthropic.py",)
    ),
    "litellm": Client(packages=("litellm==1.110.2",), module="litellm", tests=("test_litellm.py",)),
    "langgraph": Client(
        packages=(
            "langgraph==1.2.24",
            "langchain==1.5.2",
            "langchain-openai==1.7.4",
            "langchain-anthropic==1.7.10",
        ),
        module="langgraph, langchain_openai, langchain_anthropic",
        tests=("test_langgraph.py", HARNESS.format("langgraph")),
    ),
    "openai-agents": Client(
        packages=("openai-agents==0.24.0",), module="agents", tests=("test_openai_agents.py",)
    ),
    "pydantic-ai": Client(
        packages=("pydantic-ai-slim[openai,anthropic]==2.68.0",),
        module="pydantic_ai",
        tests=("test_pydantic_ai.py",),
    ),
    "smolagents": Client(
        packages=("smolagents[openai]==1.26.0",),
        module="smolagents",
        tests=("test_smolagents.py", HARNESS.format("smolagents")),
    ),
    "dspy": Client(packages=("dspy==3.4.1",), module="dspy", tests=("test_dspy.py",)),
    "llama-index": Client(
        packages=(
            "llama-index-core==0.14.25",
            "llama-index-llms-openai==0.8.3",
            "llama-index-llms-openai-like==0.8.1",
        ),
        module="llama_index.llms.openai_like",
        tests=("test_llama_index.py",),
    ),
    "autogen": Client(
        packages=("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"),
        module="autogen_agentchat, autogen_ext",
        tests=("test_autogen.py",),
    ),
    "ag2": Client(packages=("ag2[openai]==1.2.1",), module="ag2", tests=("test_ag2.py",)),
    "crewai": Client(packages=("crewai==1.15.30",), module="crewai", tests=("test_crewai.py",)),
    "google-adk": Client(
        packages=("google-adk==2.13.0", "litellm==1.110.2"),
        module="google.adk, litellm",
        tests=("test_google_adk.py",),
    ),
    "inspect-ai": Client(
        packages=("inspect-ai==0.3.285", "openai==3.57.0", "anthropic==2.14.0"),
        module="inspect_ai",
        tests=("test_inspect_ai.py",),
    ),
    "mini-swe-agent": Client(
        packages=("mini-swe-agent==2.4.6",),
        module="minisweagent",
        tests=(HARNESS.format("mini-swe-agent"),),
    ),
    "browser-use": Client(
        packages=("browser-use==0.13.14",),
        module="browser_use",
        tests=("test_browser_use.py", HARNESS.format("browser-use")),
    ),
    "vercel-ai": Client(
        packages=(
            "ai@7.0.173",
            "@ai-sdk/openai@4.0.118",
            "@ai-sdk/anthropic@4.0.105",
            "@ai-sdk/openai-compatible@3.0.92",
            "zod@4.6.7",
        ),
        tests=("test_vercel_ai.py",),
    ),
    "claude-code": Client(
        packages=("@anthropic-ai/claude-code@2.1.332",), tests=(HARNESS.format("claude-code"),)
    ),
    "codex": Client(packages=("@openai/codex@0.171.0",), tests=(HARNESS.format("codex"),)),
    "opencode": Client(packages=("opencode-ai@1.18.33",), tests=(HARNESS.format("opencode"),)),
    "qwen-code": Client(
        packages=("@qwen-code/qwen-code@0.24.4",), tests=(HARNESS.format("qwen-code"),)
    ),
}
"""The clients by the name that `CLIENT` gives."""
