"""The policy `random`, which every environment has: a baseline that knows nothing."""

from collections.abc import Callable, Mapping
from typing import Any

from envkit.env import Env, Policy, PolicyContext
from envkit.seeds import derive_seed
from envkit.spaces import UnicodeText


def random_policy(env: Env) -> Policy:
    """Return a policy that plays an environment at random.

    It is the environment's own policy `random`, which writes valid actions, if there is one. Any
    other environment gets random text. The replies depend only on the context's seed and turn.

    Args:
        env: The environment, possibly in wrappers.
    """
    inner: Any = env.unwrapped
    offer: Mapping[str, Callable[[], Policy]] = getattr(inner, "policies", {})  # optional
    return offer.get("random", random_replies)()


def random_replies() -> Policy:
    """Return a policy that writes random text."""

    def reply(context: PolicyContext) -> str:
        seed = derive_seed("random replies", context.seed, context.turn)
        return UnicodeText(seed=seed).sample()

    return reply
