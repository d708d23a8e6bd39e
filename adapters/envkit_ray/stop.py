"""Stop workers' episodes when the driver's interrupt fires."""

import uuid

from envkit.rollout import Interrupt
from envkit.trajectory.stop import StopReason
from envkit_ray.workers import Workers


class Stop:
    """Forwards a caller's interrupt to the workers, as if it were a request."""

    def __init__(self, interrupt: Interrupt, workers: Workers) -> None:
        self.name = uuid.uuid4().hex
        self.users = 0
        """Episodes that the interrupt ends."""
        self._interrupt, self._workers = interrupt, workers

    @property
    def reason(self) -> StopReason | None:
        """Why the interrupt has fired; None if it has not."""
        return self._interrupt.reason

    async def abort(self, request_id: str) -> None:
        """Fire it in every worker; the interrupt repeats this until all episodes are back."""
        reason = self.reason
        if reason is not None:
            for member in self._workers.members:
                self._workers.tell(member, "stop", request_id, reason, self._interrupt.grace_s)
