"""One episode of a task: its container, the policy's commands, and Harbor's own verifier.

The order of the phases, the users, the network policies and the deadlines are those of
`harbor/trial/trial.py` and `single_step.py` of Harbor 0.26, with one difference: if the backend can
end them, no process of the policy is alive when the verifier starts.
"""

import asyncio
import logging
import shlex
import shutil
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths
from harbor.trial.artifact_handler import ArtifactHandler
from harbor.trial.errors import EnvironmentStartTimeoutError
from harbor.trial.network_policy import TrialNetworkPlan, resolve_trial_network_plan
from harbor.verifier.verifier import Verifier
from harbor_worker import schema
from harbor_worker.sandbox import Box, SandboxEnvironment

_OWN = "bubblewrap"
_REPLACED = {"podman": "harbor_worker.containers:PodmanContainer"}
"""Backends of Harbor that need more than Harbor gives them."""
_GRACE_SECONDS = 10
_STOP_SECONDS = 120.0
_log = logging.getLogger("harbor_worker")


class VerifierTimeoutError(Exception):
    """The verifier did not end within the task's `timeout_sec`."""


class Session:
    """A task's container and what belongs to it."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        """Describe the session.

        Args:
            request: `task` (its folder), `backend` (a name of Harbor's, "module:Class" or
                "bubblewrap"), `box` (for the last), `options` (for the others).
            folder: Its own empty folder.
        """
        self._request, self._folder = request, folder
        self._paths = TrialPaths(folder / "trial")
        self._stack = AsyncExitStack()
        self._task: Task | None = None
        self._env: BaseEnvironment | None = None
        self._plan: TrialNetworkPlan | None = None

    @property
    def task(self) -> Task:
        """The task, after `start`."""
        assert self._task is not None
        return self._task

    async def start(self) -> None:
        """Read the folder, start the container, and wait until it is healthy.

        Raises:
            Exception: Whatever Harbor raises about the folder, or its backend.
        """
        self._paths.mkdir()
        self._task = task = Task(Path(self._request["task"]))
        config = task.config
        if config.steps:
            raise ValueError("a task of several steps is not supported")
        schema.check(task.paths.config_path, config, ignore_unknown=self._request["ignores"])
        self._plan = plan = resolve_trial_network_plan(
            config,
            AgentConfig(),
            EnvironmentConfig(),
            VerifierConfig(),
            None,
            verifier_mode=resolve_task_verifier_mode(config),
        )
        self._env = env = await self._started(
            "env",
            task.paths.environment_dir,
            config.environment,
            baseline=plan.agent_env_baseline,
            phases=[plan.agent_phase, plan.verifier_phase],
        )
        await env.run_healthcheck()
        await env.set_network_policy(self._policy(plan.agent_phase))

    async def _started(
        self,
        role: str,
        directory: Path,
        config: Any,  # noqa: ANN401  # Harbor's EnvironmentConfig of a task
        *,
        baseline: NetworkPolicy,
        phases: list[NetworkPolicy],
        upload: bool = True,
    ) -> BaseEnvironment:
        """Start a container that ends with the session.

        Raises:
            EnvironmentStartTimeoutError: It did not start within the task's time.
            Exception: Whatever the backend raises.
        """
        env = self._create(role, directory, config, baseline, phases, upload)
        self._stack.push_async_callback(_stop, env)
        seconds = self.task.config.environment.build_timeout_sec
        try:
            async with asyncio.timeout(seconds):
                await env.start(force_build=False)
        except TimeoutError as error:
            raise EnvironmentStartTimeoutError(
                f"the container did not start within {seconds} s"
            ) from error
        return env

    def _create(
        self,
        role: str,
        directory: Path,
        config: Any,  # noqa: ANN401  # Harbor's EnvironmentConfig of a task
        baseline: NetworkPolicy,
        phases: list[NetworkPolicy],
        upload: bool,
    ) -> BaseEnvironment:
        backend: str = self._request["backend"]
        named: dict[str, Any] = {
            "environment_dir": directory,
            "environment_name": self.task.short_name,
            "session_id": f"{self._folder.parent.name}-{self._folder.name}__{role}",
            "trial_paths": self._paths,
            "task_env_config": config,
            "network_policy": self._policy(baseline),
            "enable_environment_dir_upload": upload,
            "logger": _log,
        }
        if backend == _OWN:
            own = self._folder / role
            own.mkdir()
            paths = EnvironmentPaths.for_os(config.os)
            targets = (paths.agent_dir, paths.verifier_dir, paths.artifacts_dir)
            mounts = [{"type": "bind", "source": "", "target": str(path)} for path in targets]
            box = Box(**self._request["box"])
            return SandboxEnvironment(**named, auto_mounts=mounts, box=box, folder=own)
        backend = _REPLACED.get(backend, backend)
        is_path = ":" in backend
        settings = EnvironmentConfig(
            type=None if is_path else backend,
            import_path=backend if is_path else None,
            kwargs=self._request["options"],
        )
        named["phase_network_policies"] = phases
        return EnvironmentFactory.create_environment_from_config(settings, **named)

    def _policy(self, policy: NetworkPolicy) -> NetworkPolicy:
        """Return the policy; where there never is a network, public counts as none.

        Raises:
            ValueError: It lists hosts, and the backend has no network.
        """
        if self._request["backend"] != _OWN:
            return policy
        if policy.network_mode == NetworkMode.ALLOWLIST:
            raise ValueError("the backend bubblewrap has no network, and the task lists hosts")
        return NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)

    async def run(self, command: str, seconds: float) -> dict[str, Any]:
        """Run a command of the policy's in a new shell.

        Args:
            command: Any text.
            seconds: Its deadline, which ends it inside the container.

        Returns:
            Output of both streams, exit code, and whether the deadline passed.

        Raises:
            Exception: The container is gone.
        """
        env = self._environment
        with env.with_default_user(self.task.config.agent.user):
            if isinstance(env, SandboxEnvironment):
                done = await env.run(f"exec 2>&1; {command}", seconds=seconds)
                text = done.stdout.decode("utf-8", "replace")
                return {"output": text, "code": done.code, "timed_out": done.timed_out}
            # `timeout` runs inside: the end of a client does not end the process there
            limited = f"timeout -k 2 {seconds:g} bash -c {shlex.quote(f'exec 2>&1; {command}')}"
            found = await env.exec(limited, timeout_sec=int(seconds) + _GRACE_SECONDS)
        said = _said(found)
        if getattr(env, "has_terminal", False):
            said = said.replace("\r\n", "\n")
        return {
            "output": said,
            "code": found.return_code,
            "timed_out": found.return_code in (124, 137),
        }

    async def grade(self) -> dict[str, Any]:
        """End the policy's processes, run Harbor's verifier, and return its rewards.

        Raises:
            VerifierTimeoutError: It did not end in time.
            Exception: Whatever Harbor's verifier raises.
        """
        await self._end_processes()
        config = self.task.config.verifier
        try:
            async with asyncio.timeout(config.timeout_sec):
                verifier = await self._verifier()
                with verifier.environment.with_default_user(config.user):
                    result = await verifier.verify()
        except TimeoutError as error:
            raise VerifierTimeoutError(
                f"the verifier did not end within {config.timeout_sec} s"
            ) from error
        return dict(result.rewards or {})

    async def _end_processes(self) -> None:
        end = getattr(self._environment, "end_processes", None)
        if end is not None and not self._request["keeps"]:
            await end()

    async def _verifier(self) -> Verifier:
        """Return Harbor's verifier over the container that grades."""
        assert self._plan is not None
        definition = resolve_verifier_environment_definition(self.task.config, self.task.paths)
        if definition is None:
            await self._environment.set_network_policy(self._policy(self._plan.verifier_phase))
            return Verifier(self.task, self._paths, self._environment, logger=_log)
        handler = ArtifactHandler(artifacts=list(self.task.config.artifacts), logger=_log)
        source = EnvironmentPaths.for_os(self._environment.os).artifacts_dir
        for hook in self.task.config.verifier.collect:
            await self._environment.service_exec(
                hook.command,
                service=hook.service,
                timeout_sec=int(hook.timeout_sec),
                user=hook.user,
            )
        await handler.download_artifacts(
            self._environment, self._paths.artifacts_dir, source_artifacts_dir=source
        )
        baseline = self._plan.verifier_env_baseline
        assert baseline is not None
        env = await self._started(
            "verifier",
            definition.directory,
            definition.config,
            baseline=baseline,
            phases=[self._plan.verifier_phase],
            upload=not definition.bundled_tests,
        )
        paths = EnvironmentPaths.for_os(env.os)
        await env.empty_dirs([paths.verifier_dir])
        await handler.upload_artifacts(
            env,
            self._paths.artifacts_dir,
            source_artifacts_dir=source,
            target_artifacts_dir=paths.artifacts_dir,
        )
        return Verifier(
            self.task,
            self._paths,
            env,
            logger=_log,
            skip_tests_upload=definition.bundled_tests,
        )

    @property
    def _environment(self) -> BaseEnvironment:
        assert self._env is not None
        return self._env

    async def stop(self) -> None:
        """End the containers and remove the files."""
        with suppress(Exception):
            await self._stack.aclose()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


async def _stop(env: BaseEnvironment) -> None:
    with suppress(Exception):
        async with asyncio.timeout(_STOP_SECONDS):
            await env.stop(delete=True)


def _said(found: ExecResult) -> str:
    return (found.stdout or "") + (found.stderr or "")
