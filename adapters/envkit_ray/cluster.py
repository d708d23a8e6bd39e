"""Join or start a Ray cluster; only stop one that was started here."""

import importlib
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from envkit.errors import ConfigurationError, MissingDependencyError

_LOCAL: Final = "local"
_CONNECT_S: Final = 5.0
_REPLY_BYTES: Final = 4 << 20
"""Answers up to this size travel in Ray's reply. Its default, 100 kB, sends those of most desktop
episodes through the object store, which costs the driver as much again as the call."""


def load_ray() -> Any:  # noqa: ANN401  # a module of an optional dependency
    """Return Ray's module.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError.for_extra("playing with workers", "ray", "ray") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A connection to Ray."""

    ray: Any
    """Ray's module."""
    is_ours: bool
    """Whether `leave` disconnects. False if Ray or a trainer connected this process."""
    default_cpus: float
    """CPUs that a worker reserves by default."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set to end the thread that started Ray."""

    @classmethod
    def join(cls, address: str | None) -> "Cluster":
        """Connect to a cluster; blocks for seconds if Ray must be started.

        Args:
            address: As for `RayOptions.address`.

        Raises:
            MissingDependencyError: Ray is not installed.
            ConfigurationError: No cluster answers, or it cannot be used from here.
        """
        ray = load_ray()
        if ray.is_initialized():
            if address is not None:
                raise ConfigurationError(
                    "this process is connected to a Ray cluster already, got "
                    f"player_options.address={address!r}; drop the address"
                )
            return cls(ray=ray, is_ours=False, default_cpus=0.0)
        where = address or os.environ.get("RAY_ADDRESS") or _LOCAL
        _check_listens(where)
        options: dict[str, Any] = {}
        if where == _LOCAL:
            config = {"max_direct_call_object_size": _REPLY_BYTES}
            options = {"include_dashboard": False, "_system_config": config}
        try:
            left = _init(ray, address=where, log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:  # each layer of Ray raises its own exception
            raise _unreachable(where, error) from error
        return cls(ray=ray, is_ours=True, default_cpus=0.0 if where == _LOCAL else 1.0, left=left)

    def leave(self) -> None:
        """Disconnect, and stop the cluster if it was started here; a trainer's stays."""
        if self.is_ours:
            self.ray.shutdown()
            self.left.set()

    def resources(self) -> str:
        """Describe the cluster's CPUs, for a message."""
        everything: Mapping[str, float] = self.ray.cluster_resources()
        free: Mapping[str, float] = self.ray.available_resources()
        return f"{free.get('CPU', 0.0):g} of the cluster's {everything.get('CPU', 0.0):g} are free"


def _init(ray: Any, **options: Any) -> threading.Event:  # noqa: ANN401  # Ray has no types
    """Call `ray.init` on a thread that lives until the event is set or the process ends."""
    started, left = Future[None](), threading.Event()

    def hold() -> None:
        try:
            ray.init(**options)
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            started.set_exception(error)
        else:
            started.set_result(None)
            left.wait()

    # Linux kills the processes of a local cluster when the thread that started them ends
    # (`set_kill_on_parent_death_linux` in ray/_private/utils.py, PR_SET_PDEATHSIG). A thread of an
    # event loop ends with the loop, before the error that ended the loop is printed.
    threading.Thread(target=hold, name="envkit-ray", daemon=True).start()
    started.result()
    return left


def _check_listens(where: str) -> None:
    """Reject an address where nothing listens; Ray itself would retry for a minute.

    Raises:
        ConfigurationError: The address is invalid, or nothing listens.
    """
    if where in (_LOCAL, "auto"):
        return
    host, separator, port = where.rpartition(":")
    if not separator or not port.isdecimal():
        raise ConfigurationError(
            f"the address of a Ray cluster is HOST:PORT of its head node, such as 10.0.0.1:6379, "
            f"or 'auto', got {where!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(where, error) from error


def _unreachable(where: str, error: Exception) -> ConfigurationError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if where == _LOCAL:
        return ConfigurationError(f"Ray cannot be started on this machine: {reason}")
    return ConfigurationError(
        f"the Ray cluster at {where!r} cannot be joined: {reason}. Start one with `ray start "
        "--head` and give its address, or drop the address to start one on this machine"
    )
