"""A run's folder: its settings, its finished episodes, and what resuming it needs.

`run.json` holds the settings from the start. Each finished episode is appended to
`trajectories.jsonl` in one write, before its slot starts the next one. A signal appends the
unfinished ones as aborted trajectories. Resuming moves those to `unfinished.jsonl`, continues
them, and plays the missing episodes. On request it also moves faulted ones, to `faulted.jsonl`,
which keeps them, and plays them again.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import ConfigurationError, FaultKind, StorageError
from envkit.files import remove_leftovers, replace_file, storage_errors
from envkit.folder_claim import FolderClaim
from envkit.rollout import run_settings
from envkit.rollout.multi_agent import ROLLOUT_ID, SIBLINGS, can_resume
from envkit.rollout.plan import Played, Progress
from envkit.rollout.vocabulary_file import VOCABULARY_FILE
from envkit.secrets import hidden, stored
from envkit.threads.workers import Mailbox, Worker
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.storage import (
    FILE_NAME,
    PreparedTrajectory,
    StoredEpisode,
    TrajectoryWriter,
    read_index,
    read_lines,
    read_trajectories,
)
from envkit.trajectory.trajectory import ROLE, TAIL, Trajectory

UNFINISHED_FILE: Final = "unfinished.jsonl"
FAULTED_FILE: Final = "faulted.jsonl"
"""Records of faulted episodes that were played again, in the order in which they ended."""
RECEIVED_FILE: Final = "received-{}.txt"
"""Records of what the run's sinks have; see `envkit.sinks.Received`."""
Then = Callable[[Trajectory, PreparedTrajectory], None]
_RESCUED: Final = "envkit-rescued-"


class RunFolder(Closing):
    """The folder of one run, open for writing by one process at a time."""

    def __init__(
        self,
        path: Path,
        writer: TrajectoryWriter,
        settings: Mapping[str, Any],
        progress: Progress,
        run_id: str,
        *,
        own: FolderClaim | None,
    ) -> None:
        self.path: Final = path
        self.settings: Final = settings
        """The settings passed to `create`, as JSON data."""
        self.progress: Final = progress
        """The finished and unfinished episodes of an earlier process."""
        self._writer = writer
        self._id = run_id
        self._own_claim = own
        self._worker: Worker | None = None
        self._waiting: deque[_Delivery] = deque()

    @classmethod
    def create(
        cls,
        path: Path,
        settings: Mapping[str, Any],
        *,
        overwrite: bool = False,
        claim: FolderClaim | None = None,
    ) -> "RunFolder":
        """Start a run.

        Args:
            path: The folder, created if it is missing.
            settings: Everything that determines which episodes are played, as JSON data.
            overwrite: Replace an existing run.
            claim: The folder's claim, which the caller closes; None claims it until `close`.

        Raises:
            StorageError: The folder already holds a run, another process is writing it, or it
                cannot be written.
            ConfigurationError: The settings lack `group_size`.
        """
        if not isinstance(settings.get("group_size"), int):
            raise ConfigurationError("a run's settings must have group_size, an integer")
        _refuse_run(path, overwrite=overwrite)
        with _held(path, claim) as held:
            _refuse_run(path, overwrite=overwrite)  # another process may have begun one meanwhile
            mode = "overwrite" if overwrite else "create"
            writer = TrajectoryWriter(path, mode=mode, claim=held)
            received = path.glob(RECEIVED_FILE.format("*")) if overwrite else ()
            names = (UNFINISHED_FILE, FAULTED_FILE, VOCABULARY_FILE)
            for file in (*map(path.joinpath, names), *received):
                with storage_errors(f"cannot replace {file}"):
                    file.unlink(missing_ok=True)
            run_id = secrets.token_hex(8)
            run_settings.write_settings(path, settings, run_id)
        return cls(path, writer, settings, Progress(), run_id, own=None if claim else held)

    @classmethod
    def resume(
        cls,
        path: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        retry_faults: bool = False,
        claim: FolderClaim | None = None,
    ) -> "RunFolder":
        """Open an interrupted run to complete it.

        Args:
            path: The folder.
            settings: Must equal the run's settings; None uses those.
            retry_faults: Play faulted episodes again. Their records move to `faulted.jsonl`, so
                the trajectory file holds one result per episode.
            claim: The folder's claim, which the caller closes; None claims it until `close`.

        Raises:
            StorageError: The folder is not a run, another process is writing it, or a line cannot
                be read.
            ConfigurationError: Another version of envkit created the run, or its settings changed.
        """
        _recorded(path, settings)  # refuses before the folder changes
        with _held(path, claim) as held:
            recorded = _recorded(path, settings)  # another process may have replaced it meanwhile
            writer = TrajectoryWriter(path, mode="append", claim=held)
            group_size = int(recorded["group_size"])
            run_id = run_settings.read_id(path)
            # Before the progress is read, so that they are not played again.
            rescued = _take_rescued(path, run_id, writer, group_size)
            progress = _recover(path, writer, group_size, retry_faults=retry_faults)
            progress = replace(progress, rescued=rescued)
        return cls(path, writer, recorded, progress, run_id, own=None if claim else held)

    def finished(self) -> Iterator[Trajectory]:
        """Yield the folder's trajectories one at a time.

        Raises:
            StorageError: A line cannot be read.
        """
        return read_trajectories(self.path)

    async def deliver(self, played: Played, *, then: "Then | None" = None) -> Played:
        """Store the records of an episode and return them as stored.

        A record that JSON cannot represent is stored as a fault without its contents. Episodes
        that finish while others are being written share the next write.

        Args:
            played: The records.
            then: Called with each stored record and its line in the order of the file, on the
                writing thread.

        Raises:
            StorageError: The disk is full or gone; the file is unchanged.
        """
        delivery = _Delivery(played, then)
        self._waiting.append(delivery)
        try:
            self._worker = self._worker or Worker(Mailbox())
        except RuntimeError:  # the system has no thread left: better a pause than a lost episode
            self._store_waiting()
        else:
            await self._worker.call(self._store_waiting, timeout_s=None)
        return delivery.outcome()

    def copy_line(self, line: bytes) -> None:
        """Append a record of another run as it is stored there; its images are copied first.

        Raises:
            StorageError: It cannot be written; the file is unchanged.
        """
        self._writer.append(PreparedTrajectory(episode_id="", line=line, images=()))

    @property
    def is_lost(self) -> bool:
        """Whether another program deleted, replaced or changed the trajectory file."""
        return self._writer.is_lost

    def rescue(self, episodes: Sequence[Played]) -> Path:
        """Write finished episodes that this folder could not store to a run folder of their own.

        It is next to this folder or, if it cannot be written there, in the system's folder for
        temporary files. `resume` looks in both and moves the episodes.

        Raises:
            StorageError: Neither can be written.
        """
        failure: StorageError | None = None
        for parent in _rescue_places(self.path):
            folder: Path | None = None
            try:
                with storage_errors(f"cannot create a folder in {parent}"):
                    folder = Path(tempfile.mkdtemp(prefix=f"{_RESCUED}{self._id}-", dir=parent))
                run_settings.write_settings(folder, self.settings, self._id)
                with TrajectoryWriter(folder) as writer:
                    writer.append(*(line for one in episodes for line in _prepared(writer, one)[1]))
            except StorageError as error:
                failure = error
                # A half-written rescue would be taken for episodes when the run is resumed.
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            else:
                return folder
        assert failure is not None  # there are two places
        raise failure

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        self._writer.close()
        if self._own_claim is not None:
            self._own_claim.close()

    def complete(self) -> None:
        """Remove the file that only an unfinished run needs."""
        with storage_errors(f"cannot remove {self.path / UNFINISHED_FILE}"):
            (self.path / UNFINISHED_FILE).unlink(missing_ok=True)

    def _store_waiting(self) -> None:
        """Store all waiting episodes in one write, or in one each if that does not fit."""
        batch: list[_Delivery] = []
        # The loop's thread may append meanwhile, so the queue is emptied item by item.
        with contextlib.suppress(IndexError):
            while True:
                batch.append(self._waiting.popleft())
        self._store(batch)
        # A full disk refuses a whole write although some of its episodes still fit.
        if len(batch) > 1 and batch[0].error is not None:
            for delivery in batch:
                self._store([delivery])
        for delivery in batch:
            delivery.call_back()

    def _store(self, batch: Sequence["_Delivery"]) -> None:
        """Store episodes in one write; all of them get the error of a failed one."""
        error: Exception | None = None
        try:
            lines: list[PreparedTrajectory] = []
            for delivery in batch:
                delivery.stored, delivery.lines = _prepared(self._writer, delivery.played)
                lines += delivery.lines
            self._writer.append(*lines)
        except Exception as failure:  # noqa: BLE001  # re-raised where each of them is awaited
            error = failure
        for delivery in batch:
            delivery.error = error


class _Delivery:
    """An episode on its way to the file."""

    def __init__(self, played: Played, then: Then | None) -> None:
        self.played, self._then = played, then
        self.stored: Played = ()
        self.lines: list[PreparedTrajectory] = []
        self.error: Exception | None = None

    def call_back(self) -> None:
        """Call the callback, which may fail, with each stored record and its line."""
        if self._then is None or self.error is not None:
            return
        try:
            for trajectory, line in zip(self.stored, self.lines, strict=True):
                self._then(trajectory, line)
        except Exception as error:  # noqa: BLE001  # re-raised where it is awaited
            self.error = error
        finally:
            self.lines = []  # of no more use, and as large as the episode

    def outcome(self) -> Played:
        """Return the records as stored.

        Raises:
            Exception: The reason why they were not stored, or the callback's error.
        """
        if self.error is not None:
            raise self.error
        return self.stored


def is_taken(folder: Path) -> bool:
    """Return whether a folder holds a run."""
    file = folder / FILE_NAME
    return (folder / run_settings.RUN_FILE).exists() or (file.is_file() and file.stat().st_size > 0)


def _rescue_places(path: Path) -> tuple[Path, Path]:
    return path.resolve().parent, Path(tempfile.gettempdir())


def _take_rescued(path: Path, run_id: str, writer: TrajectoryWriter, group_size: int) -> int:
    """Move rescued episodes into the run unless it has them; return how many were moved."""
    count = 0
    user = getattr(os, "getuid", int)()  # Windows has none, and says 0
    for parent in _rescue_places(path):
        for folder in sorted(parent.glob(f"{_RESCUED}{run_id}-*")):
            # Anybody may put a folder of this name among temporary files.
            is_own = folder.is_dir() and folder.lstat().st_uid == user and not folder.is_symlink()
            if not is_own or folder == path.resolve() or not (folder / FILE_NAME).is_file():
                continue
            delivered, _ = read_finished(path, group_size)
            known = {one.episode_id for one in read_index(path)}
            missing = [
                writer.prepare(one)
                for one in read_trajectories(folder, skip_cut_line=True)
                if one.episode_id not in known
                and _index(folder, one.metadata, group_size) not in delivered
            ]
            writer.append(*missing)
            shutil.rmtree(folder, ignore_errors=True)
            count += len(missing)
    return count


@contextlib.contextmanager
def _held(path: Path, claim: FolderClaim | None) -> Generator[FolderClaim]:
    """Claim the folder if the caller did not, and remove temporary files of killed writers.

    After an error, what the claim created is removed.
    """
    held = claim or FolderClaim(path, FILE_NAME)
    try:
        # Writing and cleaning up would follow the link.
        if (path / IMAGE_FOLDER).is_symlink():
            raise StorageError(
                f"{path / IMAGE_FOLDER} is a symbolic link, and a run is only written where it is"
            )
        for folder in (path, path / IMAGE_FOLDER):
            remove_leftovers(folder)
        yield held
    except BaseException:
        if claim is None:
            held.remove()
        raise


def _refuse_run(path: Path, *, overwrite: bool) -> None:
    if not overwrite and (path / run_settings.RUN_FILE).exists():
        raise StorageError(
            f"{path} already holds a run: resume it, overwrite it, or choose another folder"
        )


def _recorded(path: Path, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the run's settings, which must equal the given ones."""
    recorded = run_settings.read_settings(path)
    if settings is not None:
        _check_same(path, recorded, settings)
    return recorded


def _check_same(path: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    changed = run_settings.changed_settings(recorded, stored(settings))
    if changed:
        raise ConfigurationError(
            f"{path} can only be resumed with its own settings: {'; '.join(changed)}; start a new "
            "run for other ones"
        )


def _move_faulted(path: Path, writer: TrajectoryWriter) -> int:
    """Move faulted episodes of the batch to their own file; return how many there were."""
    stored = list(read_index(path))
    # Episodes that the tail stopped are not part of the batch, whatever ended them.
    batch = (one for one in stored if TAIL not in one.metadata)
    faulted = {_episode(one) for one in batch if one.stop_reason.is_fault}
    lines = {one.line for one in stored if _episode(one) in faulted}
    _set_apart(path, FAULTED_FILE, lines, writer)
    return len(faulted)


def read_finished(
    path: Path, group_size: int
) -> tuple[dict[int, list[StoredEpisode]], frozenset[int]]:
    """Return the records of each finished episode by its index, and the lines of unfinished ones.

    Episodes that the tail stopped are in neither.

    Raises:
        StorageError: A line cannot be read, a run did not write it, or an episode is stored twice.
    """
    stored = list(read_index(path))
    whole = _whole_episodes(path, stored)
    finished = [one for one in stored if one.is_finished and whole[_episode(one)]]
    delivered: dict[int, list[StoredEpisode]] = {}
    for one in finished:
        if TAIL not in one.metadata:
            delivered.setdefault(_index(path, one.metadata, group_size), []).append(one)
    if any(len(set(map(_episode, records))) > 1 for records in delivered.values()):
        raise _stored_twice(path)
    return delivered, frozenset(one.line for one in stored) - {one.line for one in finished}


def _recover(
    path: Path, writer: TrajectoryWriter, group_size: int, *, retry_faults: bool
) -> Progress:
    """Move unfinished episodes to their own file and return the run's progress."""
    # First: such a line may look finished, and its episode must be played again.
    _drop_lines_without_images(path, writer)
    retried = _move_faulted(path, writer) if retry_faults else 0
    delivered, left = read_finished(path, group_size)
    _set_apart(path, UNFINISHED_FILE, left, writer)
    starts: dict[int, str] = {}
    for index, (*_, one) in delivered.items():
        if one.initial_observation_hash is not None:
            starts.setdefault(index // group_size, one.initial_observation_hash)
    unfinished: dict[int, Trajectory] = {}
    if (path / UNFINISHED_FILE).is_file():
        for line in read_lines(path / UNFINISHED_FILE):
            one = line.trajectory
            if one is not None and _can_continue(one):
                unfinished[_index(path, one.metadata, group_size)] = one
    return Progress(
        delivered=frozenset(delivered),
        unfinished={n: one for n, one in unfinished.items() if n not in delivered},
        starts=starts,
        retried=retried,
    )


def _drop_lines_without_images(path: Path, writer: TrajectoryWriter) -> None:
    """Drop trajectories whose image files a power cut left empty; they are played again."""
    with storage_errors(f"cannot read {path}"):
        images = ImageFolder(path / IMAGE_FOLDER).files()
        empty = [file for file in images if not file.stat().st_size]
        if not empty:
            return
        hashes = [file.stem.encode() for file in empty]
        with (path / FILE_NAME).open("rb") as stream:
            kept = {
                number
                for number, line in enumerate(stream, start=1)
                if not any(name in line for name in hashes)
            }
        writer.keep_lines(kept)
        for file in empty:
            file.unlink()


def _episode(stored: StoredEpisode) -> str:
    """Return the id that the siblings of an episode share."""
    return str(stored.metadata.get(ROLLOUT_ID, stored.episode_id))


def _can_continue(trajectory: Trajectory) -> bool:
    is_aborted = trajectory.stop_reason is StopReason.ABORTED
    return is_aborted and can_resume(trajectory) and bool(trajectory.segments)


def _stored_twice(path: Path) -> StorageError:
    return StorageError(f"{path / FILE_NAME} holds an episode twice; remove one of the two")


def _whole_episodes(path: Path, stored: Iterable[StoredEpisode]) -> dict[str, bool]:
    """Return for each episode whether all its siblings are stored.

    Raises:
        StorageError: The file holds more siblings than the episode has.
    """
    counts: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for one in stored:
        counts[_episode(one)] = counts.get(_episode(one), 0) + 1
        wanted[_episode(one)] = _number(path, {SIBLINGS: 1, **one.metadata}, SIBLINGS)
    if any(counts[name] > wanted[name] for name in counts):
        raise _stored_twice(path)
    return {name: counts[name] == wanted[name] for name in counts}


def _index(path: Path, metadata: Mapping[str, Any], group_size: int) -> int:
    return _number(path, metadata, "group") * group_size + _number(path, metadata, "member")


def _number(path: Path, metadata: Mapping[str, Any], name: str) -> int:
    found = metadata.get(name)
    if type(found) is not int:
        raise StorageError(
            f"{path / FILE_NAME} holds an episode whose {name} must be an integer, got "
            f"{found!r:.80}; a run did not write it"
        )
    return found


def _set_apart(path: Path, name: str, numbers: Collection[int], writer: TrajectoryWriter) -> None:
    """Move lines of the trajectory file to another file, which gets each line once."""
    if not numbers:
        return
    apart, kept = path / name, set[int]()
    with storage_errors(f"cannot read {path}"):
        lines = apart.read_bytes().splitlines(keepends=True) if apart.is_file() else []
        known = set(lines)  # of a process that was killed before it removed them here
        with (path / FILE_NAME).open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number not in numbers:
                    kept.add(number)
                elif line not in known:
                    lines.append(line)
    # Written before the lines are removed here: a crash between the two leaves them twice, which
    # `known` finds, and never loses them.
    replace_file(apart, lines, durable=True)
    writer.keep_lines(kept)


def _prepared(writer: TrajectoryWriter, played: Played) -> tuple[Played, list[PreparedTrajectory]]:
    """Encode the records of an episode; one that JSON cannot represent becomes a fault."""
    stored: list[Trajectory] = []
    lines: list[PreparedTrajectory] = []
    for trajectory in played:
        try:
            prepared = writer.prepare(trajectory)
        except StorageError as error:
            trajectory = _emptied(trajectory, error)
            prepared = writer.prepare(trajectory)
        stored.append(trajectory)
        lines.append(prepared)
    return tuple(stored), lines


def _emptied(trajectory: Trajectory, error: StorageError) -> Trajectory:
    """Return a faulted record to replace one that cannot be stored."""
    message = hidden(str(error))
    fault = FaultRecord(where=FaultPlace.LEDGER, kind=FaultKind.PERMANENT, message=message)
    metadata = {
        name: trajectory.metadata[name]
        for name in ("group", "member", ROLE, ROLLOUT_ID, SIBLINGS)
        if name in trajectory.metadata
    }
    return replace(
        trajectory,
        task={},
        segments=(),
        turns=(),
        messages=(),
        reward=None,
        stop_reason=StopReason.LEDGER_FAULT,
        fault=fault,
        reset_info={},
        env_snapshot=None,
        metadata=metadata,
    )
