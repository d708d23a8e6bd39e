"""Request bodies: extras, bans and images."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit import fast_json
from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit_remote.parts import Parts


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
            ConfigurationError: An extra is not a known key, or belongs to a field of `Sampling`; or
                the extras are not JSON.
        """
        unknown = sorted(set(extras) - self.sampling_keys - self.request_keys)
        if unknown:
            raise ConfigurationError(
                f"Sampling.extras for {self.title} may hold {sorted(self.sampling_keys)} or "
                f"{sorted(self.request_keys)}, got {unknown}; temperature, top_p, stop "
                "etc. are fields of Sampling"
            )
        try:
            json.dumps(dict(extras), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Sampling.extras must be JSON without NaN and infinities, got {extras!r:.200}"
            ) from error
        return {key: value for key, value in extras.items() if key in self.request_keys}


def body_parts(fields: Mapping[str, Any], key: str, images: Iterable[Sequence[bytes]]) -> Parts:
    """Return a JSON body in parts.

    Data URIs need no escaping, so images are inserted directly: a JSON encoder would hold the GIL
    while scanning every character of every image.

    Args:
        fields: Fields of the body, without images.
        key: Key of the list of images; omitted if there are none.
        images: Each as the parts of a JSON value.
    """
    head = fast_json.dumps(fields)
    parts: list[bytes] = [head]
    for image in images:
        parts += [b"," if len(parts) > 1 else b'%b,"%b":[' % (head[:-1], key.encode()), *image]
    if len(parts) > 1:
        parts = [*parts[1:], b"]}"]
    return Parts(parts)
