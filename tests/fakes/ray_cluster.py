"""The few calls of Ray that envkit makes, in this process, to let workers fail on command.

Strict: what a real actor would refuse is refused here, and everything that travels is pickled. What
real Ray does is shown by `make contract-ray`.
"""

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

_OPTIONS = {
    "num_cpus",
    "max_restarts",
    "max_task_retries",
    "max_concurrency",
    "scheduling_strategy",
    "runtime_env",
}


class RayActorError(Exception):
    """Root of what happens to actors."""


class ActorDiedError(RayActorError):
    """It will not come back."""


class ActorUnavailableError(RayActorError):
    """It is being started again."""


class Actor:
    """One actor: an object that may be replaced by a new one."""

    def __init__(self, make: Callable[[], Any], options: dict[str, Any]) -> None:
        self.options = options
        self.lives = 1
        self.is_unavailable = False
        self.is_killed = False
        self.calls: Counter[str] = Counter()
        """By method."""
        self._make, self._object = make, make()
        self._calls: set[asyncio.Task[Any]] = set()
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Calls without an answer."""
        return len(self._calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(self._object, name)):
            raise AttributeError(name)
        return SimpleNamespace(remote=partial(self._call, name))

    def lose_calls(self, error: type[RayActorError] = ActorUnavailableError) -> None:
        """Break the connection: calls fail, the object goes on."""
        for call in tuple(self._calls):
            if not call.done():
                call.get_loop().call_soon(call.cancel, error("the connection broke"))

    def die(self) -> None:
        """Lose the object with all its calls; calls fail until `come_back`."""
        self._end()
        self.lose_calls()
        self.is_unavailable = True

    def be_killed(self) -> None:
        """Lose the object for good."""
        self.is_killed = True
        self._end()
        self.lose_calls(ActorDiedError)

    def _end(self) -> None:
        """Free what a process holds and the system takes back: threads, episodes, a collector."""
        ending = asyncio.ensure_future(self._object.close())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def come_back(self) -> None:
        """Start a new object in its place."""
        self._object, self.is_unavailable = self._make(), False
        self.lives += 1

    def _call(self, name: str, *arguments: object) -> "asyncio.Future[Any]":
        sent = pickle.dumps(arguments, protocol=5)
        self.calls[name] += 1
        task = asyncio.ensure_future(self._answered(name, sent))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return asyncio.shield(task)  # a caller that stops waiting does not stop the call

    async def _answered(self, name: str, sent: bytes) -> Any:
        try:
            await asyncio.sleep(0)
            if self.is_killed:
                raise ActorDiedError("it was killed")
            if self.is_unavailable:
                raise ActorUnavailableError("it is being started")
            inside = asyncio.ensure_future(getattr(self._object, name)(*pickle.loads(sent)))
            return pickle.loads(pickle.dumps(await asyncio.shield(inside), protocol=5))
        except asyncio.CancelledError as cancelled:
            if cancelled.args and isinstance(cancelled.args[0], RayActorError):
                raise cancelled.args[0] from None
            raise ActorUnavailableError("the worker died") from None


class FakeRay:
    """Stands in for the module `ray`."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.initialized = False
        self.joined: list[dict[str, Any]] = []
        self.shutdowns = 0
        self.room: int | None = None
        """Actors that the cluster starts; None starts all."""
        names = ("NodeDiedError", "ObjectLostError", "WorkerCrashedError", "OutOfMemoryError")
        self.exceptions = SimpleNamespace(
            RayActorError=RayActorError,
            ActorDiedError=ActorDiedError,
            ActorUnavailableError=ActorUnavailableError,
            TaskCancelledError=type("TaskCancelledError", (Exception,), {}),
            **{name: type(name, (Exception,), {}) for name in names},
        )
        self.cloudpickle = SimpleNamespace(dumps=pickle.dumps)

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, **options: Any) -> None:
        assert not self.initialized, "ray.init was called twice"
        self.initialized = True
        self.joined.append(options)

    def shutdown(self) -> None:
        self.initialized = False
        self.shutdowns += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}

    def kill(self, actor: object) -> None:
        if isinstance(actor, Actor):
            actor.be_killed()

    def remote(self, cls: type) -> Any:
        assert self.initialized, "an actor before ray.init"

        def options(**given: Any) -> Any:
            assert set(given) == _OPTIONS, given
            assert given["max_task_retries"] == 0, "Ray must never repeat a call"
            return SimpleNamespace(remote=partial(self._start, cls, given))

        return SimpleNamespace(options=options)

    def _start(
        self, cls: type, options: dict[str, Any], /, *arguments: object, **named: object
    ) -> Any:
        sent = pickle.dumps((arguments, named))

        def make() -> Any:
            inside, also = pickle.loads(sent)
            return cls(*inside, **also)

        if self.room is not None and len(self.actors) >= self.room:
            return _Pending()
        actor = Actor(make, options)
        self.actors.append(actor)
        return actor


class _Pending:
    """An actor that does not fit: its calls wait forever."""

    def __getattr__(self, name: str) -> Any:
        def wait(*_: object) -> "asyncio.Future[Any]":
            return asyncio.get_running_loop().create_future()

        return SimpleNamespace(remote=wait)
