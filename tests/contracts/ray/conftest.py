"""Real Ray, or no test of this folder at all."""

import importlib.util
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from fakes.installed import install_metadata

from envkit_ray.cluster import load_ray

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("ray") is None:  # `make contract-ray` provides an environment with it
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let this process and its children find envkit's entry points, as if it were installed."""
    folder = install_metadata(tmp_path_factory.mktemp("installed"))
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    os.environ.update(RAY_worker_niceness="0")  # a busy machine would starve them


@pytest.fixture(scope="module")
def cluster(installed: None) -> Generator[Any]:
    """Three nodes of one CPU each on this machine; this process is connected to the head."""
    from ray.cluster_utils import Cluster

    ray = load_ray()
    made: Any = Cluster()
    try:
        head = {"include_dashboard": False}
        for options in (head, {}, {}):
            add_node(made, num_cpus=1, **options)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def add_node(cluster: Any, **options: Any) -> None:
    """Add a node to a cluster; Ray gives up after 30 s, which a busy machine may need."""
    for tries_left in (2, 1, 0):
        try:
            cluster.add_node(**options)
            return
        except Exception:
            if not tries_left:
                raise
