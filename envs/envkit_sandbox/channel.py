"""Send orders to the first process of a sandbox and read its replies, one JSON object per line."""

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind
from envkit_sandbox.bubblewrap import Sandbox

_MAX_REPLY: Final = 64 << 20


class Channel:
    """The pipes to a sandbox.

    Unusable after a fault, because a late reply could be taken for that of another order.
    """

    def __init__(self, sandbox: Sandbox, name: str, *, most_reply: int = _MAX_REPLY) -> None:
        """Wrap the sandbox's pipes.

        Args:
            sandbox: Started with pipes as standard input and output.
            name: Name of the sandbox, for messages.
            most_reply: Maximum bytes of a reply.
        """
        assert sandbox.stdin is not None
        assert sandbox.stdout is not None
        self._orders, self._replies = sandbox.stdin, sandbox.stdout
        self._sandbox, self._name, self._buffer, self._is_usable = sandbox, name, b"", True
        self._most_reply = most_reply
        os.set_blocking(self._orders.fileno(), False)

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send an order and return its reply.

        Raises:
            EnvFault: The sandbox is gone, does not answer in time, or the order failed.
        """
        until = time.monotonic() + seconds
        self._write(json.dumps(order).encode() + b"\n", until)
        reply = self.reply(max(0.0, until - time.monotonic()))
        if "error" in reply:
            raise EnvFault(
                f"{self._name} could not carry out {next(iter(order))!r}: {reply['error']}",
                kind=FaultKind.PERMANENT,
            )
        return reply

    def reply(self, seconds: float) -> dict[str, Any]:
        """Return the next reply.

        Raises:
            EnvFault: The sandbox is gone, or does not answer in time.
        """
        until = time.monotonic() + seconds
        pieces = [self._buffer]
        try:
            while b"\n" not in pieces[-1]:
                pieces.append(self._read(until))
                if sum(map(len, pieces)) > self._most_reply:
                    raise self._lost("gave a reply without an end", FaultKind.CRASHED)
            line, _, self._buffer = b"".join(pieces).partition(b"\n")
            reply: dict[str, Any] = json.loads(line)
        except (OSError, ValueError) as error:  # ValueError: closed, or not JSON
            raise self._lost("is gone", FaultKind.CRASHED) from error
        return reply

    def _read(self, until: float) -> bytes:
        source = self._replies.fileno()
        self._check()
        if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
            raise self._lost("does not answer", FaultKind.TIMEOUT)
        data = os.read(source, 1 << 20)
        if not data:
            raise self._lost("is gone", FaultKind.CRASHED)
        return data

    def _write(self, data: bytes, until: float) -> None:
        line = memoryview(data)
        try:
            number = self._orders.fileno()
            self._check()
            while line:
                left = max(0.0, until - time.monotonic())
                if not select.select([], [number], [], left)[1]:
                    raise self._lost("does not take orders", FaultKind.TIMEOUT)
                line = line[os.write(number, line) :]
        except (OSError, ValueError) as error:
            raise self._lost("is gone", FaultKind.CRASHED) from error

    def _check(self) -> None:
        if not self._is_usable:
            raise self._lost("failed before", FaultKind.CRASHED)

    def _lost(self, what: str, kind: FaultKind) -> EnvFault:
        self._is_usable = False
        return EnvFault(f"{self._name} {what}{self._sandbox.reason}", kind=kind)
