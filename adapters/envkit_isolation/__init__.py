"""Environments in worker processes, where a crash, hang or memory leak costs only the worker.

Three processes take part:

- the caller (`source`, `proxy`, `process`) sends calls and reads answers;
- a worker (`worker`) has one environment and answers its calls, one at a time;
- a supervisor (`supervisor`) forks the workers of one environment, keeps the tail of their output,
  and kills the processes that a worker leaves running.

They exchange `frames` of `values`. Nothing from a worker is unpickled: answers are JSON and encoded
images, validated on arrival.
"""

import sys

from envkit.errors import RefusedError

if sys.platform != "linux":
    raise RefusedError(
        f"environments in worker processes need Linux, got {sys.platform}; play without isolation, "
        "or in a Linux container or WSL"
    )

from envkit_isolation.proxy import IsolatedEnv
from envkit_isolation.source import IsolatedSource, isolated

__all__ = ["IsolatedEnv", "IsolatedSource", "isolated"]
