"""Token ids exactly as a model's chat template writes them: prompts, deltas, images, audits."""

from envkit.tokens.audit import RoleAudit, RoleStatus, StopAudit, TemplateAudit
from envkit.tokens.codec import ChatCodec
from envkit.tokens.encoded import Encoded, ImageFeatures, Tensors, join_features
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
    "StopAudit",
    "TemplateAudit",
    "Tensors",
    "join_features",
    "load_codec",
    "vocabulary_size_of",
]
