"""SkyRL's types as far as this adapter touches them.

They are those of skyrl/train/generators/base.py and
skyrl/backends/skyrl_train/inference_servers/base.py of SkyRL 0.4.0, written down here so that the
adapter can be read and checked without SkyRL.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

GeneratorOutput = dict[str, Any]
"""One entry per training row in every list; `rollout_metrics` is the only field that is none."""

ROW_FIELDS: Final = (
    "prompt_token_ids",
    "response_ids",
    "rewards",
    "loss_masks",
    "stop_reasons",
    "rollout_logprobs",
    "trajectory_ids",
    "is_last_step",
    "trajectory_generation_times",
    "pixel_values",
    "image_grid_thw",
)
"""The list-valued fields that this adapter fills, those of some modes included."""

STOP: Final = "stop"
"""What SkyRL's overlong filter and its zero reward for unfinished replies take for a clean end."""
LENGTH: Final = "length"
ERROR: Final = "error"
"""Of a placeholder row; any other word than "stop" would do."""


class TrajectoryId(Protocol):
    """Which sample of which prompt."""

    instance_id: str
    """The prompt's; members of a group share it."""
    repetition_id: int
    """The member's index in its group."""

    def to_string(self) -> str:
        """Return both as one key; the class itself is not hashable."""
        ...


class InferenceClient(Protocol):
    """What the adapter calls of SkyRL's `InferenceEngineInterface`."""

    @property
    def model_name(self) -> str:
        """Name of the base model at the server."""
        ...

    async def generate(
        self, input_batch: Mapping[str, Any], model: str | None = None
    ) -> Mapping[str, Any]:
        """Sample from token ids."""
        ...

    async def render_chat_completion(self, request_payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply the chat template and the image processor without sampling."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Say that an episode is over."""
        ...


class GeneratorInput(Protocol):
    """What `generate` gets: a TypedDict at run time."""

    def __getitem__(self, key: str, /) -> Any: ...  # noqa: ANN401

    def get(self, key: str, default: Any = None, /) -> Any:  # noqa: ANN401
        """Return a field, which older versions may leave out."""
        ...
