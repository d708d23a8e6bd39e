"""A pytest plugin that writes down the requests of real clients: `-p fakes.request_recorder`."""

import json
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from envkit_gateway import server
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import Turn

PATH = "ENVKIT_RECORDED_REQUESTS"
"""Variable that names the file: one JSON object per line, with `path`, `body` and `test`."""
_read: Any = vars(server)["_parsed"]


def _recorded(
    data: bytes, dialect: ModuleType, turns: Sequence[Turn], **options: Any
) -> AgentRequest:
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2]
    line = {"path": dialect.PATH, "body": json.loads(data), "test": name}
    with open(os.environ[PATH], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return _read(data, dialect, turns, **options)


def pytest_configure() -> None:
    """Record from now on."""
    recorded: Any = _recorded
    server._parsed = recorded  # pyright: ignore[reportPrivateUsage]
