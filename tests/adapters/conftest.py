"""Fixtures of tests that need a real SGLang or vLLM server."""

import os
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any

import pytest
import pytest_asyncio

from envkit.tokens import ChatCodec


def _from_environment(server: str, what: str) -> str:
    name = f"ENVKIT_{server.upper()}_{what}"
    value = os.environ.get(name)
    if not value:
        pytest.fail(
            f"{name} is not set: this test needs a real server. Run `make contract-{server}`, or "
            f"`python scripts/servers/contract.py {server} --serve` and the line that it prints",
            pytrace=False,
        )
    return value


@pytest.fixture
def sglang_url() -> str:
    """Address of a running server, such as http://127.0.0.1:30000."""
    return _from_environment("sglang", "URL")


@pytest.fixture
def sglang_model() -> str:
    """The folder that this server serves: a tiny Qwen-VL with a ChatML template."""
    return _from_environment("sglang", "MODEL")


@pytest.fixture
def vllm_url() -> str:
    """Address of a running server, such as http://127.0.0.1:8000."""
    return _from_environment("vllm", "URL")


@pytest.fixture
def vllm_model() -> str:
    """The folder that this server serves, as for `sglang_model`."""
    return _from_environment("vllm", "MODEL")


@pytest.fixture(
    params=[
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ]
)
def server_kind(request: pytest.FixtureRequest) -> str:
    """The engine whose server runs; each kind's tests are run by its own target."""
    return str(request.param)


@pytest.fixture
def server_url(server_kind: str) -> str:
    """Address of the running server."""
    return _from_environment(server_kind, "URL")


@pytest.fixture
def server_model(server_kind: str) -> str:
    """The folder that it serves."""
    return _from_environment(server_kind, "MODEL")


@cache
def _codec(model: str) -> ChatCodec:
    from envkit_transformers.loading import load_processor

    return ChatCodec(load_processor(model))


@pytest.fixture
def codec(server_model: str) -> ChatCodec:
    """The codec of the served model."""
    return _codec(server_model)


@pytest_asyncio.fixture
async def engine(server_kind: str, server_url: str, server_model: str) -> AsyncGenerator[Any]:
    """A client that compares every prompt with the server's."""
    from envkit_sglang import create_engine as sglang
    from envkit_vllm import create_engine as vllm

    create = {"sglang": sglang, "vllm": vllm}[server_kind]
    made = create(server_model, base_url=server_url, timeout_s=120, compare_prompts=1000)
    yield made
    await made.aclose()
