"""A Ray instance that envkit starts on this machine."""

import os

from fakes.processes import run_python

OUTLIVES = """
import asyncio

from envkit_ray.cluster import Cluster


async def join() -> Cluster:
    return await asyncio.to_thread(Cluster.join, None)


cluster = asyncio.run(join())  # ends the thread that joined
answer = cluster.ray.remote(lambda: 7).remote()
assert cluster.ray.get(answer, timeout=40) == 7
cluster.leave()
print("still there")
"""


def test_local_cluster_outlives_the_event_loop_that_started_it() -> None:
    variables = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    printed = run_python("-c", OUTLIVES, env=variables, timeout_s=120)
    assert printed.strip().endswith("still there")
