"""Build a model's processor from its files, without its video and audio parts.

transformers builds all parts of a processor or none, and the video part needs torchvision. The
codec only sends text and images, so the other parts are stand-ins with the same settings.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from envkit.errors import TemplateError

_CONFIGS: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_FAILURES: Final = (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError)
ReadJson = Callable[[str], Mapping[str, Any]]
"""Returns a JSON file of the model by name; empty if the model does not have it."""


class Unavailable:
    """Placeholder for a processor that cannot be loaded; rejects images with the reason.

    The model can still be used without images.
    """

    image_processor = None

    def __init__(self, tokenizer: Any, reason: str) -> None:  # noqa: ANN401  # a tokenizer
        """Set the attributes that a codec reads from a processor."""
        self.tokenizer, self.chat_template = tokenizer, getattr(tokenizer, "chat_template", None)
        self._reason = reason

    def __call__(self, **inputs: Any) -> Any:  # noqa: ANN401  # as processors are called
        """Reject the call.

        Raises:
            TemplateError: Always.
        """
        del inputs
        raise TemplateError(self._reason)


def load_processor(name: str, tokenizer: Any, read: ReadJson) -> Any:  # noqa: ANN401  # foreign
    """Return a model's processor as its files describe it; None for a text model.

    Args:
        name: A model folder, or a name on the Hugging Face hub.
        tokenizer: The model's tokenizer, already loaded.
        read: Reads the model's JSON files.
    """
    configs = {file: read(file) for file in _CONFIGS}
    whole, images = configs["processor_config.json"], configs["preprocessor_config.json"]
    if not images and "image_processor" not in whole:
        return None
    named = [
        config["processor_class"] for config in configs.values() if "processor_class" in config
    ]
    class_name: str | None = named[0] if named else _registered(read("config.json"))
    try:
        image_processor = _image_processor(name)
        if class_name is None:
            return SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor)
        return _build(class_name, whole, images, (tokenizer, image_processor))
    except _FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        fix = "install torchvision" if "orchvision" in str(error) else "pass image_processor="
        return Unavailable(
            tokenizer,
            f"images are not supported, since the processor of {name!r} "
            f"({class_name or 'class unknown'}) cannot be loaded: {lines[0]}. To use images, {fix}",
        )


def _registered(config: Mapping[str, Any]) -> str | None:
    """Return the processor class that transformers registers for the model type."""
    auto: Any = importlib.import_module("transformers.models.auto.processing_auto")
    return auto.PROCESSOR_MAPPING_NAMES.get(config.get("model_type"))


def _image_processor(name: str) -> Any:  # noqa: ANN401  # transformers is an optional dependency
    """Return the image processor, in its PIL version if there is one."""
    transformers: Any = importlib.import_module("transformers")
    # The PIL version needs neither torch nor torchvision. Rollout and trainer must use the same
    # one.
    return transformers.AutoImageProcessor.from_pretrained(
        name, backend="pil", trust_remote_code=False
    )


def _build(
    class_name: str, whole: Mapping[str, Any], images: Mapping[str, Any], known: tuple[Any, Any]
) -> Any:  # noqa: ANN401  # a transformers processor
    transformers: Any = importlib.import_module("transformers")
    cls: Any = getattr(transformers, class_name)
    tokenizer, image_processor = known
    parts: dict[str, Any] = {}
    for part in cls.get_attributes():
        if "tokenizer" in part:
            parts[part] = tokenizer
        elif part == "image_processor":
            parts[part] = image_processor
        else:
            parts[part] = SimpleNamespace(**(whole.get(part) or images))
    accepted = set(inspect.signature(cls.__init__).parameters) - set(parts) - {"self"}
    settings = {key: value for key, value in whole.items() if key in accepted}
    settings["chat_template"] = getattr(tokenizer, "chat_template", None)
    processor = cls.__new__(cls)
    processor.check_argument_for_proper_class = _accept  # the original would reject the stand-ins
    processor.__init__(**parts, **settings)
    del processor.check_argument_for_proper_class
    return processor


def _accept(name: str, part: object) -> None:
    del name, part
