"""Common parts of request bodies: extras, bans and images."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRules:
    """Which extras a server accepts, and how it bans tokens."""

    title: str
    """Name of the server, in messages."""
    sampling_keys: frozenset[str]
    """Extras among the sampling parameters, except those that have a field in `Sampling`."""
    request_keys: frozenset[str]
    """Extras next to the sampling parameters."""
    ban_bias: float
    """Bias added to the logit of a banned token."""

    def sampling_params(self, own: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
        """Return sampling parameters with the extras that belong there, and the bans.

        Banned ids become a logit bias, which the reported log-probabilities include: they are those
        of the distribution without the banned ids.

        Args:
            own: Parameters from the fields of `Sampling`.
            sampling: Sampling of the request.
        """
        extras = {key: value for key, value in sampling.extras.items() if key in self.sampling_keys}
        params = {**own, **extras}
        if sampling.banned_ids:
            bans = {str(token): self.ban_bias for token in sampling.banned_ids}
            params["logit_bias"] = {**params.get("logit_bias", {}), **bans}
        return params

    def request_fields(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Return the extras that go next to the sampling parameters.

        Raises:
            ConfigurationError: An extra is not a known key, or belongs to a field of `Sampling`.
        """
        unknown = sorted(set(extras) - self.sampling_keys - self.request_keys)
        if unknown:
            raise ConfigurationError(
                f"Sampling.extras for {self.title} may hold {sorted(self.sampling_keys)} or "
                f"{sorted(self.request_keys)}, got {unknown}; temperature, top_p, stop "
                "etc. are fields of Sampling"
            )
        return {key: value for key, value in extras.items() if key in self.request_keys}


def encode_body(fields: Mapping[str, Any], key: str, images: Iterable[bytes]) -> bytes:
    """Return the JSON bytes of a body.

    Data URIs need no escaping, so images are inserted directly: a JSON encoder would hold the GIL
    while scanning every character of every image.

    Args:
        fields: Fields of the body, without images.
        key: Key of the list of images; omitted if there are none.
        images: Each as a JSON value.
    """
    head = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    joined = b",".join(images)
    return b'%s,"%s":[%s]}' % (head[:-1], key.encode(), joined) if joined else head
