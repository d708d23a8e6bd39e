"""Tasks as the dataset rows that trainers load: one pure function per format.

Every row carries the request that an adapter plays, as JSON text under `ENVKIT_COLUMN`. Prompts are
only for people and length filters, because the environment writes the real one at reset. They
therefore contain `IMAGE_NOTE` instead of images unless images are requested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from envkit.images import Image
from envkit.messages import Message, images_of, text_of
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest

IMAGE_NOTE: Final = "[image]"
"""Placeholder in a prompt for an image that only the environment shows."""
AGENT_NAME: Final = "envkit"
"""Name of verl's agent loop, in the column `agent_name`."""
_MARK: Final = "<image>"
_MARKS: Final = (_MARK, "<video>", "<audio>")
_ANSWERS: Final = ("answer", "ground_truth", "label", "solution")
_EMPTY_PROMPT: Final = "The environment writes the prompt."


class TaskFormat(StrEnum):
    """The dataset loader that the rows are for."""

    SLIME = "slime"
    MILES = "miles"
    VERL = "verl"
    SKYRL = "skyrl"
    TRL = "trl"
    HF = "hf"
    """A folder of parquet files for the datasets library."""
    JSONL = "jsonl"
    """Generic rows, for no particular trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExample:
    """One task and its first messages."""

    index: int
    """Position in the file."""
    split: str
    request: EpisodeRequest
    messages: tuple[Message, ...]
    """System prompt, if there is one, and the first observation."""

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of the first observation."""
        return images_of(self.messages)


def slime_row(example: TaskExample, *, with_images: bool = False) -> dict[str, Any]:
    """Return a row for slime's and miles' `Dataset`.

    The keys are those of `--input-key prompt --label-key label --metadata-key metadata`. Images add
    `--multimodal-keys '{"image": "images"}'` and appear as `<image>` in the text
    (slime/utils/data.py, `_build_messages`).
    """
    return {
        "prompt": _marked(example.messages, with_images=with_images),
        "label": answer_of(example.request),
        "metadata": {ENVKIT_COLUMN: example.request.to_column()},
        # The reader takes a mapping as a whole content part and a string as a URL.
        **({"images": [image.data_uri() for image in example.images]} if with_images else {}),
    }


def verl_row(example: TaskExample, *, with_images: bool = False) -> dict[str, Any]:
    """Return a row for verl's `RLHFDataset`.

    verl's validation reads `data_source` and `reward_model.ground_truth`; `agent_name` selects the
    loop (verl/utils/dataset/rl_dataset.py, `__getitem__`; trainer/ppo/v1/trainer_base.py).
    """
    return {
        "data_source": example.request.env_id,
        "prompt": _marked(example.messages, with_images=with_images),
        "reward_model": {"style": "envkit", "ground_truth": answer_of(example.request)},
        "extra_info": {"index": example.index, "split": example.split},
        "agent_name": AGENT_NAME,
        ENVKIT_COLUMN: example.request.to_column(),
        **_images(example, with_images),
    }


def skyrl_row(example: TaskExample, *, with_images: bool = False) -> dict[str, Any]:
    """Return a row for SkyRL's `PromptDataset`.

    Columns other than `prompt` and `env_class` become a sample's `env_extras`
    (skyrl/train/dataset/dataset.py, `__getitem__`). Images are data URIs in `image_url` parts,
    as in its own geometry example.
    """
    messages = (
        [{"role": entry["role"], "content": _url_parts(entry)} for entry in example.messages]
        if with_images
        else _noted(example.messages)
    )
    return {
        "prompt": messages,
        "env_class": example.request.env_id,
        "data_source": example.request.env_id,
        ENVKIT_COLUMN: example.request.to_column(),
    }


def parts_column(pa: Any) -> dict[str, Any]:  # noqa: ANN401  # pyarrow is untyped
    """Return the arrow type of SkyRL's prompts with images, of which the first rows may have none.

    Args:
        pa: The pyarrow module.
    """
    url = pa.struct([("url", pa.string())])
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("image_url", url)])
    return {"prompt": pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))]))}


def trl_row(example: TaskExample, *, with_images: bool = False) -> dict[str, Any]:
    """Return a row for TRL's trainers.

    Without images the prompt is the request itself: TRL passes a rollout function nothing else, so
    it must differ between rows, and the environment writes the real prompt. With images it is what
    the model reads first. TRL puts them before the text of the first user message
    (trl/data_utils.py, `prepare_multimodal_messages`), as envkit does.
    """
    column = example.request.to_column()
    if with_images:
        return {**_opening(example, with_images=True), ENVKIT_COLUMN: column}
    return {"prompt": [{"role": "user", "content": column}], ENVKIT_COLUMN: column}


def plain_row(example: TaskExample, *, with_images: bool = False) -> dict[str, Any]:
    """Return a generic row: the first messages and the request."""
    request = example.request
    return {
        "index": example.index,
        "split": example.split,
        "env_id": request.env_id,
        "seed": request.seed,
        **_opening(example, with_images=with_images),
        ENVKIT_COLUMN: request.to_column(),
    }


ROW_BUILDERS: Final[Mapping[TaskFormat, Callable[..., dict[str, Any]]]] = MappingProxyType(
    {
        TaskFormat.SLIME: slime_row,
        TaskFormat.MILES: slime_row,
        TaskFormat.VERL: verl_row,
        TaskFormat.SKYRL: skyrl_row,
        TaskFormat.TRL: trl_row,
        TaskFormat.HF: plain_row,
        TaskFormat.JSONL: plain_row,
    }
)


def answer_of(request: EpisodeRequest) -> str:
    """Return a task's answer for trainers' tables; "" if it has none."""
    for key in _ANSWERS:
        value = (request.task or {}).get(key)
        if isinstance(value, str | int | float):
            return str(value)
    return ""


def image_struct(image: Image) -> dict[str, Any]:
    """Return an image as the datasets library stores it: PNG bytes and no path."""
    return {"bytes": image.png_bytes(), "path": None}


def marked_text(entry: Message) -> str:
    """Return a message as text with `<image>` exactly where an image belongs.

    Readers would count a literal `<image>` in the text as an image, so it loses its brackets.
    """
    return _text(entry, image=_MARK, is_marked=True)


def _opening(example: TaskExample, *, with_images: bool) -> dict[str, Any]:
    """Return the first messages as text, with separate images or placeholders."""
    if not with_images:
        return {"prompt": _noted(example.messages)}
    prompt = [{"role": entry["role"], "content": text_of(entry)} for entry in example.messages]
    return {"prompt": prompt, **_images(example, True)}


def _images(example: TaskExample, with_images: bool) -> dict[str, Any]:
    return {"images": [image_struct(image) for image in example.images]} if with_images else {}


def _noted(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return the messages as text with a placeholder for each image."""
    return [
        {"role": entry["role"], "content": _text(entry, image=f"{IMAGE_NOTE}\n") or _EMPTY_PROMPT}
        for entry in messages
    ]


def _marked(messages: Sequence[Message], *, with_images: bool) -> list[dict[str, str]]:
    """Return the messages as text with `<image>` exactly where an image belongs.

    Readers would count a literal `<image>` in an environment's text as an image.
    """
    image = _MARK if with_images else f"{IMAGE_NOTE}\n"
    return [
        {
            "role": entry["role"],
            "content": _text(entry, image=image, is_marked=True) or _EMPTY_PROMPT,
        }
        for entry in messages
    ]


def _text(entry: Message, *, image: str, is_marked: bool = False) -> str:
    content = entry["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts: list[str] = []
    for part in parts:
        text = image if part["type"] == "image" else str(part.get("text", ""))
        if is_marked and part["type"] == "text":
            for mark in _MARKS:
                text = text.replace(mark, mark[1:-1])
        texts.append(text)
    return "".join(texts)


def _url_parts(entry: Message) -> list[dict[str, Any]]:
    content = entry["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content, "image_url": None}]
    return [
        {"type": "text", "text": part["text"], "image_url": None}
        if part["type"] == "text"
        else {"type": "image_url", "text": None, "image_url": {"url": part["image"].data_uri()}}
        for part in content
    ]
