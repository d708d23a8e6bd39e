"""TRL's real classes, or no test of this folder at all."""

import importlib.util
import warnings

import pytest

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("trl") is None:  # `make contract-trl` provides an environment with it
    collect_ignore_glob.append("test_*.py")
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL and torch warn on import
        import datasets
        import fakes.trl_run
        import torch

    assert fakes.trl_run.AsyncGRPOTrainer  # imports everything that the tests use from TRL
    datasets.disable_progress_bars()
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def environments() -> None:
    """Register the toys."""
    from fakes.envs import register_toys
    from fakes.trl_envs import register_trl_envs

    register_toys()
    register_trl_envs()
