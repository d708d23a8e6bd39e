"""Fixtures of tests that need a real SGLang server."""

import os

import pytest


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(
            f"{name} is not set: this test needs a real SGLang server. Run `make contract-sglang`, "
            "or `python scripts/sglang/contract.py --serve` and the line that it prints",
            pytrace=False,
        )
    return value


@pytest.fixture
def sglang_url() -> str:
    """Address of a running server, such as http://127.0.0.1:30000."""
    return _from_environment("ENVKIT_SGLANG_URL")


@pytest.fixture
def sglang_model() -> str:
    """The folder that this server serves: a tiny Qwen-VL with a ChatML template."""
    return _from_environment("ENVKIT_SGLANG_MODEL")
