"""Find installed distributions that are environments of the verifiers library."""

import re
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec

_REQUIRES: str = r"verifiers\b(?![-_.])"


def member_ids() -> list[str]:
    """Return the ids of installed environments; imports none of them.

    An environment is a distribution that requires verifiers and provides the module that verifiers
    imports.
    """
    names = {dist.name for dist in distributions() if _is_environment(dist)}
    return sorted(f"{re.sub(r'[-_.]+', '-', name)}-v0" for name in names)


def _is_environment(dist: Distribution) -> bool:
    if not any(re.match(_REQUIRES, line, re.IGNORECASE) for line in dist.requires or ()):
        return False
    if any("extra ==" in line for line in dist.requires or () if re.match(_REQUIRES, line)):
        return False  # an optional dependency, as in envkit itself
    return find_spec(re.sub(r"[-_.]+", "_", dist.name).lower()) is not None
