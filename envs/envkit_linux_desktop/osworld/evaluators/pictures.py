"""Compare images and archives."""

import io
import tarfile
import warnings
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageOps

from envkit_linux_desktop.osworld.evaluators import (
    documents,
    presentations,
    printouts,
    tables,
    texts,
    values,
)
from envkit_linux_desktop.osworld.evaluators.values import Evaluator, File, Options

_WINDOW: Final = 7


def compare_image_list(result: Any, expected: Any, _: Options) -> float:  # noqa: ANN401
    """Check that images have the same pixels; a different size is scaled first."""
    one, two = (
        cast(list[object], value) if isinstance(value, list) else [value]
        for value in (result, expected)
    )
    if len(one) != len(two):
        return 0.0
    return float(all(_same_pixels(a, b) for a, b in zip(one, two, strict=True)))


@values.of_files
def compare_images(result: File, expected: File, options: Options) -> float:
    """Return the structural similarity of two images in grey, at the smaller one's size.

    The option `reference_base_result` is the similarity that scores 0.
    """
    images = [_open(file).convert("L") for file in (result, expected)]
    size = min(image.size for image in images)
    if min(size) < _WINDOW:
        return 0.0
    one, two = (
        np.asarray(image.resize(size, Image.Resampling.LANCZOS), dtype=np.float64)
        for image in images
    )
    found, base = _structural_similarity(one, two), options.get("reference_base_result")
    return found if base is None else values.above_base(found, base)


def _structural_similarity(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Return the mean SSIM (Wang 2004) over windows of 7x7 with sample covariances."""
    mean_one, mean_two = _means(one), _means(two)
    scale = _WINDOW**2 / (_WINDOW**2 - 1)
    spread_one = scale * (_means(one * one) - mean_one * mean_one)
    spread_two = scale * (_means(two * two) - mean_two * mean_two)
    shared = scale * (_means(one * two) - mean_one * mean_two)
    light, contrast = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_one * mean_two + light) * (2 * shared + contrast)
    below = (mean_one**2 + mean_two**2 + light) * (spread_one + spread_two + contrast)
    return float((above / below).mean())


def _means(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of every window that lies inside the image."""
    sums = np.pad(image, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    size = _WINDOW
    inside = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    return inside / size**2


@values.of_file
def check_image_size(result: File, rules: Any, _: Options) -> float:  # noqa: ANN401
    """Check an image's width and height, optionally of its opaque part."""
    image = _open(result)
    size = image.size
    if rules.get("ignore_transparent") and "A" in image.getbands():
        box = image.getchannel("A").getbbox() or (0, 0, 0, 0)
        size = (box[2] - box[0], box[3] - box[1])
    wanted = (rules.get("width"), rules.get("height"))
    pairs = zip(size, wanted, strict=True)
    return float(all(limit is None or own == limit for own, limit in pairs))


def _same_pixels(one: object, two: object) -> bool:
    if not (isinstance(one, File) and isinstance(two, File)):
        return False
    own, gold = _open(one), _open(two)
    if own.size != gold.size:
        own = own.resize(gold.size, Image.Resampling.LANCZOS)
    difference = ImageChops.difference(own.convert("RGBA"), gold.convert("RGBA"))
    return difference.getbbox(alpha_only=False) is None  # the default looks at alpha alone


def _open(file: File) -> Image.Image:
    """Return an image upright, as its orientation tag says."""
    with values.reading(file), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(file.data))
        image.load()
        return ImageOps.exif_transpose(image)


@values.of_files
def compare_zip_files(result: File, expected: File, _: Options) -> float:
    """Check that two zip files hold the same files; PDF files need only like texts."""
    own, gold = _members(result), _members(expected)
    if own.keys() != gold.keys():
        return 0.0
    return float(
        all(
            printouts.have_like_texts(
                File(name=name, data=data, is_result=result.is_result),
                File(name=name, data=gold[name], is_result=expected.is_result),
            )
            if name.lower().endswith(".pdf")
            else data == gold[name]
            for name, data in own.items()
        )
    )


@values.of_files
def compare_archive(result: File, expected: File, options: Options) -> float:
    """Compare the files of two archives with the evaluator for their type."""
    folder = str(options.get("file_path", "")).strip("/")
    own, gold = (_level(_members(file), folder) for file in (result, expected))
    if not gold or own.keys() != gold.keys():
        return 0.0
    compare = BY_TYPE[str(options.get("file_type", "text"))]
    rest = {key: value for key, value in options.items() if key not in ("file_path", "file_type")}
    scores = [
        compare(
            File(name=name, data=data, is_result=result.is_result),
            File(name=name, data=gold[name], is_result=expected.is_result),
            rest,
        )
        for name, data in own.items()
    ]
    return sum(scores) / len(scores)


def _level(members: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Return the files directly in a folder of an archive."""
    return {
        path.name: data
        for path, data in ((PurePosixPath(name), data) for name, data in members.items())
        if str(path.parent).strip(".") == folder
    }


def _members(file: File) -> dict[str, bytes]:
    """Return an archive's files by path; nothing is written to disk."""
    if file.data[:2] == b"PK":
        with values.open_zip(file) as archive, values.reading(file):
            return {
                entry.filename: archive.read(entry)
                for entry in archive.infolist()
                if not entry.is_dir()
            }
    return _tar_members(file)


def _tar_members(file: File) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(file.data), mode="r|*") as archive:
            for count, member in enumerate(archive):
                total += member.size
                if total > values.MAX_EXPANDED or count >= values.MAX_PARTS:
                    raise values.UnreadableError(file, "it expands beyond what any task needs")
                handle = archive.extractfile(member) if member.isreg() else None
                if handle is not None:
                    found[member.name.removeprefix("./")] = handle.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise values.UnreadableError(file, str(error)) from error
    return found


BY_TYPE: Final[dict[str, Evaluator]] = {
    "text": texts.compare_text_file,
    "pdf": printouts.compare_pdfs,
    "docx": documents.compare_docx_files,
    "ppt": presentations.compare_pptx_files,
    "csv": texts.compare_csv,
    "table": tables.compare_table,
    "image": compare_images,
}
"""Evaluators of an archive's members by `file_type`."""
