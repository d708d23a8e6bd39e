"""Token ids exactly as a model's chat template writes them: prompts, deltas, images, audits."""

from envkit.tokens.audit import RoleAudit, RoleStatus, TemplateAudit
from envkit.tokens.codec import ChatCodec
from envkit.tokens.encoded import Encoded, ImageFeatures, Tensors, concatenate
from envkit.tokens.loading import load_codec, vocabulary_size_of
from envkit.tokens.sanity import SanityMode, SanityReport, SanityStatus

__all__ = [
    "ChatCodec",
    "Encoded",
    "ImageFeatures",
    "RoleAudit",
    "RoleStatus",
    "SanityMode",
    "SanityReport",
    "SanityStatus",
    "TemplateAudit",
    "Tensors",
    "concatenate",
    "load_codec",
    "vocabulary_size_of",
]
