"""The verl adapter where verl is not installed."""

import importlib.util
import subprocess
import sys

import pytest

import envkit_verl
from envkit.errors import MissingDependencyError


def test_verl_package_imports_without_verl_and_torch() -> None:
    code = "import sys, envkit_verl; print(sorted({'verl', 'torch', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_verl_package_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[verl\]'"):
        _ = envkit_verl.EnvAgentLoop
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = envkit_verl.Nothing  # pyright: ignore[reportAttributeAccessIssue]
