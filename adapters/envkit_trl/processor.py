# ruff: noqa: ANN401  # transformers objects
"""Processors that TRL takes as `processing_class`, with or without torchvision.

transformers builds the video half of a vision-language processor only with torchvision.
Environments show images, so where torchvision is missing the video settings take its place.
"""

import os
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.utils.import_utils import is_torchvision_available
from transformers.video_processing_utils import BaseVideoProcessor

_VIDEO = "video_processor"


def load_processor(
    name: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Load what TRL takes as `processing_class`: a model's processor, or a text model's tokenizer.

    Padding and truncation are on the left, as in TRL. Without torchvision the processor reads
    images but no videos.

    Args:
        name: A local folder or a hub name.
        revision: Revision on the hub; None uses the default branch.
        trust_remote_code: Whether the model's own code may run.
    """
    name = os.fspath(name)
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    left = {"padding_side": "left", "truncation_side": "left"}
    config: Any = AutoConfig.from_pretrained(name, **source)
    kind: Any = PROCESSOR_MAPPING.get(type(config), None)
    if is_torchvision_available() or kind is None or _VIDEO not in kind.get_attributes():
        return AutoProcessor.from_pretrained(name, **source, **left)
    settings, _ = kind.get_processor_dict(name, **source)
    return build_processor(
        config,
        tokenizer=AutoTokenizer.from_pretrained(name, **source, **left),
        image_processor=AutoImageProcessor.from_pretrained(name, **source),
        video_settings=_video_settings(name, source),
        chat_template=settings.get("chat_template"),
    )


def build_processor(
    config: Any,
    *,
    tokenizer: Any,
    image_processor: Any,
    video_settings: dict[str, Any] | None = None,
    chat_template: str | None = None,
) -> Any:
    """Return the processor of a vision-language model from its parts, without its video half.

    Args:
        config: The model's configuration, which selects the processor's class.
        tokenizer: A transformers tokenizer.
        image_processor: A transformers image processor.
        video_settings: Kept for checkpoints; None keeps none.
        chat_template: None uses the tokenizer's.
    """
    return _without_video(PROCESSOR_MAPPING[type(config)])(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=_VideoSettings(video_settings or {}),
        chat_template=chat_template or tokenizer.chat_template,
    )


class _VideoSettings(dict[str, Any]):
    """Holds the settings of a video processor, so that a saved checkpoint has them."""

    _auto_class = None


def _without_video(kind: Any) -> Any:
    """Return a subclass whose video processor may be settings; checkpoints name the original."""

    def check(self: Any, name: str, argument: Any) -> Any:
        if name != _VIDEO:
            return kind.check_argument_for_proper_class(self, name, argument)
        return type(argument)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def _video_settings(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return a model's settings for videos; a model saved without any has none."""
    try:
        return BaseVideoProcessor.get_video_processor_dict(name, **source)[0]
    except OSError:
        return {}
