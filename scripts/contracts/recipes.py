"""The environments of contract tests, one per project that envkit is tested against."""

from pathlib import Path

from environment import ExtraFile, Recipe

CONTRACTS = Path(__file__).resolve().parent
SERVERS = CONTRACTS.parent / "servers"

_TORCHVISION_STUB = ExtraFile(
    source=CONTRACTS / "torchvision_stub.py",
    target="envkit_torchvision_stub.py",
    at_start=True,
)

SGLANG = Recipe(
    name="sglang",
    version="0.5.23",
    requirements=SERVERS / "sglang.txt",
    # Everything that the server imports before it loads a model.
    check="""
import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler
import sglang.srt.multimodal.processors.qwen_vl
""",
    files=(
        ExtraFile(source=SERVERS / "sgl_kernel_stub.py", target="sgl_kernel/__init__.py"),
        _TORCHVISION_STUB,
    ),
    variables=(("SGLANG_USE_CPU_ENGINE", "1"),),
    cost="downloads about 0.9 GB, takes 2.8 GB of disk",
)

VLLM = Recipe(
    name="vllm",
    version="0.32.0",
    requirements=SERVERS / "vllm.txt",
    check="""
import vllm.entrypoints.openai.api_server, vllm.v1.worker.cpu_worker
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor
""",
    files=(_TORCHVISION_STUB,),
    variables=(("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")),
    cost="downloads about 1 GB, takes 3.5 GB of disk",
)

TRL = Recipe(
    name="trl",
    version="1.16.0",
    requirements=CONTRACTS / "trl" / "requirements.txt",
    check="""
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOTrainer
import gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
)

VERL = Recipe(
    name="verl",
    version="0.9.1",
    requirements=CONTRACTS / "verl" / "requirements.txt",
    check="""
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput, AgentLoopWorker
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor
import gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
    files=(_TORCHVISION_STUB,),
    variables=(("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),),
)

SKYRL = Recipe(
    name="skyrl",
    version="0.4.0",
    requirements=CONTRACTS / "skyrl" / "requirements.txt",
    # SkyRL 0.4.0 declares Python >= 3.12, but only needs a TypedDict that pydantic accepts.
    check="""
import typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
import skyrl.train.trainer, skyrl.train.generators.base, skyrl_gym
from transformers import Qwen2VLImageProcessor
import gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
    pip_options=("--ignore-requires-python",),
    files=(_TORCHVISION_STUB,),
)

SLIME = Recipe(
    name="slime",
    version="0.3.1",
    # What slime and miles import for a rollout. slime itself is not on a package index: SLIME_SRC
    # names a checkout of its repository.
    requirements=CONTRACTS / "slime" / "requirements.txt",
    check="""
import torch, httpx, numpy, tqdm, PIL, transformers, aiohttp, pylatexenc, ray, pybase64, pyarrow
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor
import gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
    files=(_TORCHVISION_STUB,),
)

OPENENV = Recipe(
    name="openenv",
    version="0.10.0",
    requirements=CONTRACTS / "openenv" / "requirements.txt",
    check="""
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
import uvicorn, websockets, gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
    cost="downloads about 0.2 GB, takes 0.5 GB of disk",
    has_torch=False,
)

VERIFIERS = Recipe(
    name="verifiers",
    version="0.4.0",
    requirements=CONTRACTS / "verifiers" / "requirements.txt",
    check="""
import verifiers.v1, verifiers.v1.clients.train, reasoning_gym
import gymnasium, jsonschema, pytest_asyncio
""",
    cost="downloads about 0.3 GB, takes 0.8 GB of disk",
    has_torch=False,
)

HARBOR = Recipe(
    name="harbor",
    version="0.26.0",
    requirements=CONTRACTS / "harbor" / "requirements.txt",
    check="""
import harbor.verifier.verifier, harbor.environments.factory, harbor.trial.artifact_handler
import gymnasium, jsonschema, pytest_asyncio
""",
    variables=(("HARBOR_TELEMETRY", "off"),),
    cost="downloads about 0.1 GB, takes 0.4 GB of disk",
    has_torch=False,
    oldest=(3, 12),
)

INSPECT = Recipe(
    name="inspect",
    version="0.3.285",
    requirements=CONTRACTS / "inspect" / "requirements.txt",
    check="""
import inspect_ai.log
import gymnasium, jsonschema, pytest_asyncio
""",
    cost="downloads about 0.2 GB, takes 0.5 GB of disk",
    has_torch=False,
)

MCP = Recipe(
    name="mcp",
    version="2.3.0",
    requirements=CONTRACTS / "mcp" / "requirements.txt",
    check="""
import mcp, mcp_types, httpx2, uvicorn, mcp_server_time, mcp_server_git, mcp_server_fetch
import gymnasium, jsonschema, typer, pytest_asyncio
""",
    cost="downloads about 0.1 GB, takes 0.3 GB of disk",
    has_torch=False,
)

WORLDS = Recipe(
    name="worlds",
    version="1",
    requirements=CONTRACTS / "worlds" / "requirements.txt",
    check="""
import minigrid, ale_py, vizdoom.gymnasium_wrapper, crafter, highway_env, miniworld
import pettingzoo, rlcard, chess, textarena
import gymnasium, jsonschema, pytest_asyncio
""",
    variables=(("PYGLET_HEADLESS", "true"),),
    cost="downloads about 0.3 GB, takes 0.7 GB of disk",
    has_torch=False,
)

CLIENTS = Recipe(
    name="clients",
    version="1",
    requirements=CONTRACTS / "clients" / "requirements.txt",
    check="""
import openai, anthropic, agents, langgraph, langchain_openai, langchain_anthropic
import smolagents, pydantic_ai, browser_use
import gymnasium, jsonschema, hypothesis, pytest_asyncio
""",
    cost="downloads about 0.1 GB, takes 0.5 GB of disk",
    has_torch=False,
)


def _readers(which: str, version: str, *packages: str) -> Recipe:
    return Recipe(
        name=f"readers-{which}",
        version=version,
        requirements=CONTRACTS / "clients" / "testing.txt",
        check="import datasets, pandas, pyarrow.parquet, gymnasium, jsonschema, pytest_asyncio",
        pip_options=(f"datasets=={version}", *packages),
        cost="downloads about 0.1 GB, takes 0.5 GB of disk",
        has_torch=False,
        resolves=True,
    )


READERS_OLDEST = _readers("oldest", "3.0.0", "pyarrow==17.0.0")
"""The oldest datasets library that trainers pin, and the oldest pyarrow that the extras allow."""
READERS_NEWEST = _readers("newest", "5.2.0", "pyarrow==26.0.1")

RAY = Recipe(
    name="ray",
    version="2.60.0",
    requirements=CONTRACTS / "ray" / "requirements.txt",
    check="""
import ray
from ray.cluster_utils import Cluster
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor
import gymnasium, jsonschema, typer, hypothesis, pytest_asyncio
""",
    files=(_TORCHVISION_STUB,),
)

LOWEST = Recipe(
    name="lowest",
    version="1",
    requirements=CONTRACTS / "lowest" / "requirements.txt",
    check="""
import aiohttp, gymnasium, hatchling, jinja2, jsonschema, numpy, PIL, rich, tiktoken, typer
import hypothesis, pytest_asyncio, transformers, xdist
""",
    cost="downloads about 0.1 GB, takes 0.4 GB of disk",
    has_torch=False,
)
"""The core with its lowest direct dependencies, and transformers for the tests' tokenizers."""

_TESTED = (
    *(TRL, VERL, SKYRL, SLIME, OPENENV, VERIFIERS, HARBOR, INSPECT, MCP, WORLDS, CLIENTS, RAY),
    *(READERS_OLDEST, READERS_NEWEST, LOWEST),
)
RECIPES = {recipe.name: recipe for recipe in (SGLANG, VLLM, *_TESTED)}
TESTED = tuple(recipe.name for recipe in _TESTED)
"""Environments with tests: `LOWEST` runs the core's, the others a folder of tests/contracts."""
