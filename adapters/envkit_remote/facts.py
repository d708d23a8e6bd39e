"""A server's facts: limits, model, health and flags."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The facts that a client needs. None means not reported."""

    version: str | None = None
    model: str | None = None
    """Folder or name of the served model."""
    served_model_name: str | None = None
    """The server's name of the model. It stays the same when new weights are loaded."""
    context_length: int | None = None
    """Bound on prompt plus new tokens, images expanded."""
    max_prompt_length: int | None = None
    """Prompts must be shorter than this; a little less than the context length."""
    weight_version: str | None = None
    is_deterministic: bool = False
    """True when the server honours `Sampling.seed`; others ignore it."""
    returns_routed_experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Whether a server answers."""

    url: str
    healthy: bool
    detail: str
    """What is wrong and what to check, or the served version and model."""
    seconds: float
    """How long the answer took; a healthy idle SGLang server samples one token for it."""
    info: ServerInfo | None = None
    """None if the server could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagCheck:
    """Whether a server was started with one flag, as `envkit doctor` lists it."""

    flag: str
    """As on the server's command line."""
    is_set: bool
    is_required: bool
    """False for an optional flag."""
    matters: str
    """What happens without it."""
