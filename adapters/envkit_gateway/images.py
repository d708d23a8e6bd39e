"""Images of an agent's request: data URIs and base64, never fetched."""

import binascii
import hashlib
from typing import Final
from weakref import WeakValueDictionary

from envkit.errors import ImageError
from envkit.images import Image
from envkit.messages import Part
from envkit_gateway.request import bad_request

_known: Final = WeakValueDictionary[bytes, Image]()
"""Images of earlier requests by the digest of their URI, as long as a record holds them: clients
send the whole history each time."""


def image_part(uri: object) -> Part:
    """Return the image of a data URI.

    Raises:
        RequestRefused: It is another URL, which the gateway does not fetch, or not an image.
    """
    if not isinstance(uri, str):
        raise bad_request(f"an image must be a data URI, got {uri!r:.80}")
    if not uri.startswith("data:"):
        raise bad_request(
            f"images must be data URIs such as data:image/png;base64,..., got {uri[:80]!r}; the "
            "gateway fetches nothing: send the image itself"
        )
    digest = hashlib.sha256(uri.encode("utf-8", "surrogatepass")).digest()
    known = _known.get(digest)
    if known is not None:
        return {"type": "image", "image": known}
    try:
        image = Image.from_data_uri(uri)
        image.check()
    except (ImageError, ValueError, binascii.Error) as error:
        raise bad_request(f"cannot read an image: {error}") from error
    _known[digest] = image
    return {"type": "image", "image": image}
