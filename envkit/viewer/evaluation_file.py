"""The report of an evaluation: its figures, its variants and its runs as one HTML file."""

import os
from pathlib import Path

from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.rollout.vocabulary_file import TokenText
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.document import EVALUATION, Document
from envkit.viewer.documents import EVAL_FILE, read_document
from envkit.viewer.run import RunSource
from envkit.viewer.single_file import MAX_EPISODES, RunPages


def is_evaluation(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder of an evaluation."""
    folder = Path(path)
    return (folder / EVAL_FILE).is_file() and not (folder / FILE_NAME).exists()


def write_evaluation(
    folder: str | os.PathLike[str],
    out_html: str | os.PathLike[str],
    *,
    token_text: TokenText | None = None,
    title: str | None = None,
    max_episodes: int = MAX_EPISODES,
) -> Path:
    """Write the report of an evaluation, with its runs.

    Args:
        folder: The folder with its `eval.json` and its runs.
        out_html: The file to write.
        token_text: Returns the text of a token id; None uses the texts that the runs stored.
        title: Title of the document; None uses the name of the folder.
        max_episodes: Maximum number of episodes to list per run; the figures count all.

    Returns:
        The path of the report.

    Raises:
        StorageError: The folder is not an evaluation or has no readable run, or the report cannot
            be written.
        ConfigurationError: `max_episodes` is below 1.
    """
    place = Path(folder)
    file = place / EVAL_FILE
    with storage_errors(f"cannot read {file}"):
        data = read_document(file.read_bytes())
    if data is None or data["kind"] != "evaluation":
        raise StorageError(f"{file} does not describe an evaluation")
    document = Document()
    runs: list[RunPages] = []
    for name in data["runs"]:
        if Path(name).name == name and (place / name / FILE_NAME).is_file():
            source = RunSource(place / name)
            runs.append(RunPages(source, document, name=name, max_episodes=max_episodes))
            runs[-1].add_all()
    if not runs:
        raise StorageError(f"{place} has no run yet: an evaluation is drawn with its episodes")
    index = {
        "runs": [run.finished().index(most=run.most) for run in runs],
        "diff": None,
        "evaluation": {"name": EVAL_FILE, **data},
    }
    return document.write(
        out_html,
        title=title or f"Evaluation: {place.resolve().name}",
        index=index,
        texts=[run.token_texts(token_text) for run in runs],
        home=EVALUATION,
    )
