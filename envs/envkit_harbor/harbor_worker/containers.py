"""Harbor's podman with what a trial here needs: no network on request, no grace, a process limit.

Harbor turns a network off with a sidecar from an image registry and a probe of the kernel. Here the
container simply gets none. Lists of hosts stay refused.
"""

import json
from pathlib import Path
from typing import Any

from harbor.constants import MAIN_SERVICE_NAME
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.podman import PodmanEnvironment
from harbor.models.task.config import NetworkMode

PROCESSES = 512
"""Processes of a container; Harbor sets no limit."""


class PodmanContainer(PodmanEnvironment):
    """One container, or those of the task's compose file."""

    has_terminal = True
    """Harbor's `exec` gives podman-compose a terminal, which writes each newline as two bytes."""

    @staticmethod
    def _requires_egress_control(**policies: Any) -> bool:  # noqa: ANN401  # Harbor's
        """No sidecar: see `_docker_compose_paths`."""
        return False

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The network can be off."""
        return super().capabilities.model_copy(update={"disable_internet": True})

    async def end_processes(self) -> None:
        """Restart the main container: its files stay, what the policy started does not.

        Raises:
            RuntimeError: It does not restart.
        """
        await self._run_docker_compose_command(["restart", "-t", "0", MAIN_SERVICE_NAME])

    @property
    def _docker_compose_paths(self) -> list[Path]:
        """Harbor's files and one of ours, which is the last and so decides."""
        main: dict[str, Any] = {"stop_grace_period": "0s", "pids_limit": PROCESSES}
        if self.network_policy.network_mode == NetworkMode.NO_NETWORK:
            main["network_mode"] = "none"
        path = self.trial_paths.trial_dir / "envkit-compose.json"
        path.write_text(json.dumps({"services": {MAIN_SERVICE_NAME: main}}))  # JSON is YAML
        return [*super()._docker_compose_paths, path]
