"""Store an aborted trajectory in a sample's metadata, as plain data that survives pickling.

slime's buffer keeps `Sample` objects, which cross processes through `to_dict` and pickle. The
trajectory is stored as its JSON record and PNG bytes, so unpickling needs no class of envkit, and
reading checks its certificate.
"""

from collections.abc import Mapping
from typing import Any, cast

from envkit.errors import StorageError
from envkit.images import Image
from envkit.trajectory.certificate import certify
from envkit.trajectory.record import decode, encode
from envkit.trajectory.trajectory import Trajectory


def to_state(trajectory: Trajectory) -> dict[str, Any]:
    """Return the trajectory as plain data.

    Raises:
        StorageError: A task or info holds data that is not JSON.
    """
    images: dict[str, bytes] = {}

    def keep(image: Image) -> None:
        images[image.sha256] = image.png_bytes()

    record = encode(trajectory, certify(trajectory), keep)
    return {"record": record, "images": images}


def from_state(state: object) -> Trajectory:
    """Return the trajectory of `to_state`.

    Raises:
        StorageError: The data was changed or is incomplete.
    """
    if not isinstance(state, dict) or set(cast("dict[str, Any]", state)) != {"record", "images"}:
        raise StorageError(f"a kept trajectory has a record and images, got {state!r:.80}")
    images = cast("Mapping[str, bytes]", state["images"])

    def find(sha256: str) -> Image:
        if sha256 not in images:
            raise StorageError(f"the image {sha256} of a kept trajectory is missing")
        return Image.deferred(lambda: images[sha256], sha256=sha256)

    trajectory, recorded = decode(state["record"], find)
    difference = recorded.difference(certify(trajectory))
    if difference is not None:
        raise StorageError(f"a kept trajectory was changed: {difference}")
    return trajectory
