"""Environments of the verifiers library: `verifiers/NAME-v0`, or `verifiers-v0`."""

from typing import TYPE_CHECKING

from envkit.collection import Collection
from envkit.lazy import lazy_names
from envkit.registration import EnvSpec
from envkit_verifiers.names import member_ids

if TYPE_CHECKING:
    from envkit_verifiers.env import VerifiersEnv
    from envkit_verifiers.harness import ChatHarness

SPEC = EnvSpec(
    id="verifiers-v0",
    entry_point="envkit_verifiers.env:VerifiersEnv",
    description="An environment of the verifiers library, named by environment=.",
    nondeterministic=True,
)
COLLECTION = Collection(
    entry_point="envkit_verifiers.env:VerifiersEnv",
    argument="environment",
    members=member_ids,
    description="Installed environments of the verifiers library.",
)

# The library finds its harness plugins by `__all__`: `ChatHarness` makes this package one.
__all__ = ["COLLECTION", "SPEC", "ChatHarness", "VerifiersEnv"]

__getattr__, __dir__ = lazy_names(
    __name__, {"ChatHarness": ".harness", "VerifiersEnv": ".env"}, extra="verifiers"
)
