"""Transfer weights from TRL's trainers to an engine with its own copy."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.http_pool import read_start
from envkit.ranges import one_of
from envkit.retry_after import UNAVAILABLE_STATUS
from envkit.rollout.engine import Engine
from envkit.rollout.limits import Backoff
from envkit_trl.loop_thread import LoopThread
from envkit_trl.policy import WeightSink

_ATTEMPTS: Final = 4
_BACKOFF: Final = Backoff(initial_s=0.2)
_MAX_ANSWER_BYTES: Final = 1 << 16


class EngineWeightTransfer:
    """TRL's `WeightTransferProtocol` for an engine in this process (AsyncGRPOTrainer, 1.16).

    The engine changes its weights between two forwards and tags later tokens with the new version;
    running replies continue.
    """

    def __init__(self, engine: Engine, *, version: Callable[[], int]) -> None:
        """Wrap an engine.

        Args:
            engine: An engine with `update_weights`.
            version: Returns the version of the next weights.

        Raises:
            ConfigurationError: The engine has no `update_weights`.
        """
        if not isinstance(engine, WeightSink):
            raise ConfigurationError(
                f"engine {engine.name!r} has no update_weights; give AsyncGRPOTrainer another "
                "weight_transfer"
            )
        self._engine: WeightSink = engine
        self._version = version
        self._loop: LoopThread | None = None

    def init_weight_transfer(self) -> None:
        """Start the thread that talks to the engine."""
        if self._loop is None:
            self._loop = LoopThread("envkit-trl-weights")

    def pause(self) -> None:
        """Do nothing: the engine changes weights between two forwards by itself."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy the trainer's tensors into the engine's model.

        Raises:
            EngineFault: Their names or shapes do not match the engine's model.
        """
        self.init_weight_transfer()
        if self._loop is not None:
            update = dict(iterator)
            self._loop.run(self._engine.update_weights(update, version=str(self._version())))

    def resume(self) -> None:
        """Do nothing: the engine never stops."""

    def destroy(self) -> None:
        """End the thread; safe to call twice."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


class DiskWeightTransfer:
    """Sends each step's weights to an SGLang or vLLM server through a shared folder.

    A `send_weights` for `make_rollout_func` and `EnvGRPOTrainer`. The server empties its caches and
    tags later tokens with the new version. vLLM has these routes only with
    `VLLM_SERVER_DEV_MODE=1`.
    """

    def __init__(
        self, base_url: str, folder: Path | str, *, server: str = "sglang", timeout_s: float = 600.0
    ) -> None:
        """Store the server and the folder.

        Args:
            base_url: URL of the server, such as "http://localhost:30000".
            folder: Overwritten at every step; on a file system that the server can read.
            server: "sglang" or "vllm".
            timeout_s: Seconds for the server to load the weights.

        Raises:
            ConfigurationError: The kind of server is unknown.
        """
        one_of("server", server, ("sglang", "vllm"))
        self._url = base_url.rstrip("/")
        self._folder = Path(folder)
        self._is_vllm = server == "vllm"
        self._timeout_s = timeout_s

    async def __call__(self, model: Any, version: str) -> None:  # noqa: ANN401  # a transformers model
        """Save the model and let the server load it; a failure that may pass is tried again.

        Raises:
            EngineFault: The server cannot be reached, or rejects the weights.
        """
        await asyncio.to_thread(model.save_pretrained, self._folder)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._send(version)
            except EngineFault as fault:
                if fault.kind is not FaultKind.TRANSIENT or attempt + 1 == _ATTEMPTS:
                    raise
            await asyncio.sleep(_BACKOFF.delay(attempt, random.Random(version)))

    async def _send(self, version: str) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        url = self._url
        try:
            async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
                for path, body in self._requests(version):
                    url = self._url + path
                    async with session.post(url, json=body) as answer:
                        text = (await read_start(answer, _MAX_ANSWER_BYTES)).decode(
                            errors="replace"
                        )
                    self._check(answer, text, version)
        except (aiohttp.ClientError, TimeoutError) as error:
            is_late = isinstance(error, TimeoutError)
            raise EngineFault(
                f"the server at {url} failed to load the weights of step {version}: "
                f"{type(error).__name__}: {error}",
                kind=FaultKind.TIMEOUT if is_late else FaultKind.TRANSIENT,
            ) from error

    def _check(self, answer: aiohttp.ClientResponse, text: str, version: str) -> None:
        """Reject an answer other than the server's success.

        Raises:
            EngineFault: The server rejects the weights, or something else answered: TRANSIENT.
        """
        said = "".join(text.split())
        is_refused = answer.status != 200 and answer.status not in UNAVAILABLE_STATUS
        if is_refused or '"success":false' in said:
            raise EngineFault(f"{answer.url} rejected the weights of step {version}: {text:.300}")
        # vLLM's routes may answer 200 without a body.
        is_known = not said.startswith("<") if self._is_vllm else '"success":true' in said
        if not is_known or answer.status in UNAVAILABLE_STATUS:
            raise EngineFault(
                f"{answer.url} did not confirm the weights of step {version}, got {text[:300]!r}; "
                "does a proxy in between send its own page?",
                kind=FaultKind.TRANSIENT,
            )

    def _requests(self, version: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests to post, in order."""
        folder = str(self._folder)
        if not self._is_vllm:
            body = {"model_path": folder, "weight_version": version, "flush_cache": True}
            return [("/update_weights_from_disk", body)]
        load = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        return [
            ("/collective_rpc", load),  # between two forwards of the server
            ("/reset_prefix_cache", {}),
            ("/update_weight_version", {"new_version": version}),
        ]
