"""Environments in worker processes: a crash, a hang or a memory leak loses the worker alone.

Three processes take part:

- the caller (`source`, `proxy`, `process`) sends calls and reads answers;
- a worker (`worker`) has one environment and answers its calls, one at a time;
- a supervisor (`supervisor`) forks the workers of one environment, keeps the end of what they
  print, and kills whatever a worker leaves behind.

They exchange `frames` of `values`. Nothing that a worker sends is unpickled: answers are JSON and
encoded images, checked on arrival.
"""

from envkit.isolation.proxy import IsolatedEnv
from envkit.isolation.source import IsolatedSource

__all__ = ["IsolatedEnv", "IsolatedSource"]
