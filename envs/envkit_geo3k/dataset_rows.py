"""Convert a row of a file to a task.

The rules: a data URI's mime type is ignored (published files say `image/None`), transparent images
get a white background, large ones are downscaled, web addresses are never fetched, and prose that
recipes add around the question is removed. `raw` keeps the original text.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage

from envkit.errors import ImageError
from envkit.image_files import decode_image, read_image_file
from envkit.images import Image
from envkit.tasks import Task
from envkit_geo3k.choices import letter_of, read_choices

MAX_PIXELS: Final = 1_048_576
"""Larger images are downscaled, keeping their aspect ratio."""
IMAGE_TAG: Final = "<image>"
_IMAGE_COLUMN: Final = re.compile(r"images?|visuals?|image_\d+")

_SPACE: Final = re.compile(r"\s+")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z<\"'`])|\n+")
_PROTOCOL: Final = re.compile(
    r"""calc_score|calc_geo3k_reward|\\?boxed|</?(?:tool_call|think|answer)>|\bfunction[\s-]call(?:ing)?\b
    |\b(?:call|invoke|use|using|check)\b.*\btools?\b|\btool\s+(?:calls?|protocol|results?)\b
    |reasoning\s+process|internal\s+monologue|step[\s-]by[\s-]step|\bJSON\b
    |\b(?:put|give|provide|enclose|wrap|write|submit|box)\b.*\bfinal\s+answer\b
     (?!.*\b(?:as|in|to|round\w*)\b)
    |^\s*you\s+are\s+an?\b.*\b(?:assistant|agent|expert|model|AI|solver|tutor|mathematician)\b
    |^\s*you\s+(?:must|should|may|can)\s+(?:first\s+|always\s+|then\s+|only\s+)*
     (?:think|reason|respond|reply|submit|output|wait)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Prose about how to reply. It must never match a sentence of the question itself: a constant such
as "You may use pi = 3.14" or "Round your final answer" decides the answer."""


class RowSkippedError(Exception):
    """A row cannot be used. The message is the reason, without details that differ by row."""


def read_row(
    row: Mapping[str, Any], number: int, file: Path, split: str | None, *, as_it_is: bool = False
) -> Task:
    """Return the task of a row.

    Args:
        row: Any of the known layouts.
        number: Position of the row in its file, used as id if the row has none.
        file: The file, for image paths next to it.
        split: Requested split; None keeps the row's own.
        as_it_is: Keep every sentence of the question; remove only image tags.

    Raises:
        RowSkippedError: Something is missing or broken.
    """
    extra = _mapping(row.get("extra_info"))
    raw = _raw_question(row)
    answer = _answer(row, extra)
    if not raw:
        raise RowSkippedError("no question")
    if not answer:
        raise RowSkippedError("no answer")
    try:
        choices, labels = _choices(row)
        if choices:
            answer = letter_of(_stated_answer(row), choices, labels)
    except ValueError as error:
        raise RowSkippedError(str(error)) from error
    pictures = list(_pictures(row))
    tags = raw.count(IMAGE_TAG)
    if not pictures:
        raise RowSkippedError("no image")
    if tags not in (0, len(pictures)):
        raise RowSkippedError("the number of <image> tags is not the number of images")
    clean = extra.get("question") or extra.get("problem")
    question = strip_prose(clean if isinstance(clean, str) and clean.strip() else raw)
    if as_it_is:
        question = raw.replace(IMAGE_TAG, "").strip()
    identity = row.get("id", row.get("doc_id", extra.get("index", number)))
    return {
        **({"choices": list(choices)} if choices else {}),
        "id": f"{file.stem}/{identity}",
        "source": "dataset",
        "split": row.get("split") or extra.get("split") or split,
        "question": question,
        "raw": raw,
        "answer": answer,
        "images": [_read_image(picture, file.parent) for picture in pictures],
    }


def strip_prose(text: str) -> str:
    """Return the question without image tags and without a recipe's instructions.

    Sentences about tools, boxes and reasoning are dropped. If such prose is above the line with the
    image tag, everything above that line is dropped. A text with only such sentences is kept.
    """
    lines = text.splitlines()
    has_words = [IMAGE_TAG in line and line.replace(IMAGE_TAG, "").strip() for line in lines]
    start = next((n for n, found in enumerate(has_words) if found), 0)
    if _PROTOCOL.search("\n".join(lines[:start])):
        text = "\n".join(lines[start:])
    sentences = [s for s in _SENTENCE.split(text.replace(IMAGE_TAG, " ")) if s and s.strip()]
    kept = [sentence for sentence in sentences if not _PROTOCOL.search(sentence)]
    return _SPACE.sub(" ", " ".join(kept or sentences)).strip()


def _raw_question(row: Mapping[str, Any]) -> str | None:
    for column in ("problem", "question", "input", "prompt"):
        if isinstance(row.get(column), str) and row[column].strip():
            return row[column]
    texts: list[str] = []
    for message in _messages(row):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        texts += [str(p["text"]) for p in _dicts(content) if isinstance(p.get("text"), str)]
    return "\n".join(texts).strip() or None


def _answer(row: Mapping[str, Any], extra: Mapping[str, Any]) -> str | None:
    candidates: list[Any] = [_stated_answer(row)]
    for column in ("reward_model", "reward_spec"):
        spec: Any = row.get(column)
        if isinstance(spec, Mapping):
            candidates.append(spec.get("ground_truth"))  # pyright: ignore[reportUnknownMemberType]  # any JSON
    candidates.append(extra.get("answer"))
    for candidate in candidates:
        if isinstance(candidate, str | int | float) and str(candidate).strip():
            return str(candidate).strip()
    return None


def _stated_answer(row: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    """Return the first non-empty answer column; a list of one answer is unwrapped."""
    for column in ("answer", "target", "label"):
        value: Any = row.get(column)
        if isinstance(value, list) and value:
            if len(value) > 1:  # pyright: ignore[reportUnknownArgumentType]  # any JSON
                raise RowSkippedError("more than one answer")
            value = value[0]  # pyright: ignore[reportUnknownVariableType]  # any JSON
        if value is not None and value != "":
            return value  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return None


def _choices(row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices and their labels; empty for an open question.

    Raises:
        ValueError: They cannot be read.
    """
    value: Any = row.get("choices") if row.get("choices") is not None else row.get("options")
    if value in (None, "", [], "[]"):  # suites mark open questions this way
        return (), ()
    return read_choices(value)


def is_image_column(name: str) -> bool:
    """Return whether a column holds images: image, images, visual, image_1, ..."""
    return _IMAGE_COLUMN.fullmatch(name) is not None


def _pictures(row: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the row's images, in reading order.

    Raises:
        RowSkippedError: Two columns hold images, so their order is unknown.
    """
    held = {
        name: value
        for name, value in row.items()
        if is_image_column(name) and value is not None and value != []
    }
    if not all(name.startswith("image_") for name in held) and len(held) > 1:
        raise RowSkippedError(f"images in more than one column: {', '.join(sorted(held))}")
    for name in sorted(held, key=lambda name: (len(name), name)):
        column: Any = held[name]
        if isinstance(column, list):
            yield from column
        elif isinstance(column, str | bytes | Mapping):
            yield column
    if held:
        return
    for message in _messages(row):
        for part in _dicts(message.get("content")):
            if part.get("type") in ("image", "image_url"):
                yield part.get("image_url") or part.get("image")


def _messages(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _dicts(row.get("prompt")) or _dicts(row.get("input"))


def _mapping(value: Any) -> Mapping[str, Any]:  # noqa: ANN401  # any JSON
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]  # any JSON


def _dicts(value: Any) -> Sequence[Mapping[str, Any]]:  # noqa: ANN401  # any JSON
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, Mapping)]  # pyright: ignore[reportUnknownVariableType]  # any JSON


def _read_image(value: Any, folder: Path) -> str:  # noqa: ANN401  # any JSON
    """Return an image as a data URI with pixels that are safe to use.

    Raises:
        RowSkippedError: It is not an image, or not available locally.
    """
    try:
        found = decode_image(_image_bytes(value, folder))
    except ImageError as error:
        raise RowSkippedError("an image cannot be decoded") from error
    picture = found.picture
    if picture.width * picture.height > MAX_PIXELS:
        factor = (MAX_PIXELS / (picture.width * picture.height)) ** 0.5
        size = (max(1, int(picture.width * factor)), max(1, int(picture.height * factor)))
        return Image.from_pil(picture.resize(size, PilImage.Resampling.LANCZOS)).data_uri()
    if found.exact is None:
        return Image.from_pil(picture).data_uri()
    payload = base64.b64encode(found.exact).decode()
    return f"data:image/{found.image_format};base64,{payload}"


def _image_bytes(value: Any, folder: Path) -> bytes:  # noqa: ANN401  # any JSON
    if isinstance(value, Mapping):
        stored: Any = value.get("bytes")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # any JSON
        if stored:
            return _image_bytes(stored, folder)
        inner: Any = value.get("url") or value.get("path") or value.get("image")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # any JSON
        return _image_bytes(inner, folder)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or not value.strip():
        raise RowSkippedError("an image is empty")
    if re.match(r"[a-z][a-z0-9+.-]*://", value, re.IGNORECASE):
        raise RowSkippedError("an image is a web address; nothing is fetched")
    if value.startswith("data:") or "base64," in value[:80]:
        return _decoded(value.partition("base64,")[2])
    return _file_or_base64(value, folder)


def _file_or_base64(value: str, folder: Path) -> bytes:
    try:
        path = (folder / value).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            return read_image_file(path)
    except (OSError, ValueError):  # too long or with a null byte: not a path
        pass
    return _decoded(value)


def _decoded(payload: str) -> bytes:
    try:
        data = base64.b64decode("".join(payload.split()), validate=True)
    except ValueError as error:
        raise RowSkippedError("an image is neither a file here nor base64") from error
    if not data:
        raise RowSkippedError("an image is empty")
    return data
