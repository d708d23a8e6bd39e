"""A Harbor environment over bubblewrap: no image, no daemon, no network, a start in milliseconds.

The root is an overlay whose upper layer lives in memory, with a size. It belongs to mount and
process namespaces that end with process 1, so nothing is left of it, however it ends. Process 1
ends when its input closes, which the kernel does when the worker dies.

The contract is `harbor/environments/base.py` of Harbor 0.26.
"""

import asyncio
import io
import json
import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor_worker import dockerfile
from harbor_worker.processes import Done, run

NOBODY = 65534
_ENTER = Path(__file__).with_name("enter.py")
_START_SECONDS = 20.0
_COPY_SECONDS = 120.0
_MOST_OUTPUT = 1 << 20
_MOST_FILE = 64 << 20
_MIB = 1 << 20
_ETC = ("alternatives", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "debian_version")
_FOLDERS = ("etc", "home", "root", "opt", "srv", "var/tmp", "var/log", "run", "mnt", "tmp", "app")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIRST = """\
echo ready
exec > /dev/null 2>&1
while :; do
    cat
    case $? in 0 | 126 | 127) read -r _; exit ;; esac
done
"""
"""Process 1: reads until its input closes, and collects every orphan meanwhile.

If `cat` is killed, another one starts; if the policy removed it, the shell itself reads. The
command line names the sandbox's folder, so that a sweep finds it.
"""


class SandboxRefusedError(RuntimeError):
    """This machine lacks bubblewrap, or refuses namespaces."""


class SandboxLostError(RuntimeError):
    """The sandbox is gone."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """What a sandbox is made of."""

    root: str | None = None
    """A folder with a whole system; None uses the machine's `/usr`, read-only."""
    disk_mib: int = 1024
    """Size of everything that is written, in memory."""
    processes: int = 256
    memory_mib: int = 4096
    """Data of one process."""


class SandboxEnvironment(BaseEnvironment):
    """One sandbox; its files and processes end with `stop`."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # Harbor's
        box: Box,
        folder: Path,
        **kwargs: Any,  # noqa: ANN401  # Harbor's
    ) -> None:
        """Describe the sandbox.

        Args:
            args: As for every environment of Harbor.
            box: What it is made of.
            folder: Its own empty folder on this machine.
            kwargs: As for every environment of Harbor.
        """
        self._box, self._folder = box, folder
        self._process: asyncio.subprocess.Process | None = None
        self._first = 0
        self._image = dockerfile.Image()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Return the backend's name."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """There is no network, whatever a task asks for."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError("a task of several containers needs a backend with docker compose")
        self._image = dockerfile.read(self.environment_dir / "Dockerfile")
        if self.task_env_config.workdir:
            self._image.folder = self.task_env_config.workdir

    async def start(self, force_build: bool) -> None:  # Harbor's contract
        """Start the sandbox and carry out the Dockerfile.

        Raises:
            SandboxRefusedError: This machine cannot start one.
            ImageError: A step of the Dockerfile failed.
        """
        await self._spawn()
        await dockerfile.build(self._image, self.environment_dir, self)
        await self.ensure_dirs([*self._mount_targets(writable_only=True), "/tests", "/solution"])
        await self._upload_environment_dir_after_start()

    async def _spawn(self) -> None:
        missing = [name for name in ("bwrap", "unshare") if shutil.which(name) is None]
        if missing:
            raise SandboxRefusedError(
                f"the backend bubblewrap needs {missing[0]!r}: apt-get install bubblewrap"
            )
        user = NOBODY if os.geteuid() == 0 else None
        lower, upper, merged = (self._folder / name for name in ("lower", "upper", "merged"))
        for path in (lower, upper, merged):
            path.mkdir()
        if self._box.root is None:
            _fill(lower)
        if user is not None:
            for path in (self._folder, *self._folder.rglob("*")):
                if not path.is_symlink():
                    os.chown(path, user, user)
        told, tell = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *("unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-ec"),
                self._script(lower, upper, merged, tell),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(tell,),
                start_new_session=True,
                env={"PATH": _PATH},
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        finally:
            os.close(tell)
        self._first = await self._first_process(told)

    def _script(self, lower: Path, upper: Path, merged: Path, tell: int) -> str:
        """Return the shell commands that mount the root and become bubblewrap."""
        root = lower if self._box.root is None else Path(self._box.root)
        up, lo, me = (shlex.quote(str(path)) for path in (upper, root, merged))
        machine = ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib64"):
            machine += ["--symlink", f"usr/{name}", f"/{name}"]
        words = [
            *("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *("--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"),
            *("--hostname", "main", "--bind", str(merged), "/", "--info-fd", str(tell)),
            *(machine if self._box.root is None else []),
            *("--proc", "/proc", "--dev", "/dev", "--size", str(64 * _MIB), "--tmpfs", "/dev/shm"),
            *("--chdir", "/", "--", "/bin/sh", "-c", _FIRST, str(self._folder)),
        ]
        return "\n".join(
            (
                f"mount -t tmpfs -o size={self._disk_mib}m,mode=755 tmpfs {up}",
                f"mkdir {up}/files {up}/work",
                f"mount -t overlay -o userxattr,lowerdir={lo},upperdir={up}/files,"
                f"workdir={up}/work overlay {me}",
                "echo 0 > /proc/sys/user/max_user_namespaces",
                f"exec {shlex.join(words)}",
            )
        )

    @property
    def _disk_mib(self) -> int:
        return min(self._effective_storage_mb or self._box.disk_mib, self._box.disk_mib)

    async def _first_process(self, told: int) -> int:
        """Wait until process 1 runs, and return its id on this machine.

        bubblewrap tells the id before it has changed the root, and whoever entered then would see
        the machine's files.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(told, "rb")
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                text = await reader.readuntil(b"}")
                await self._process.stdout.readuntil(b"ready\n")
                return int(json.loads(text)["child-pid"])
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            self._process.kill()
            assert self._process.stderr is not None
            said = (await self._process.stderr.read(4096)).decode("utf-8", "replace").strip()
            raise SandboxRefusedError(
                f"this machine refuses the sandbox of the backend bubblewrap: {said or error!r}"
            ) from error
        finally:
            transport.close()

    async def stop(self, delete: bool) -> None:  # Harbor's contract
        """End every process and remove the files."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def end_processes(self) -> None:
        """Kill everything that runs inside, at once; the files stay.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        await self._enter({"do": "end"}, seconds=_START_SECONDS)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in a new shell; a deadline ends it inside.

        Raises:
            TimeoutError: It passed its deadline.
            ValueError: It names a user other than root.
        """
        done = await self.run(command, cwd=cwd, env=env, seconds=timeout_sec, user=user)
        if done.timed_out:
            raise TimeoutError(f"the command passed its deadline of {timeout_sec} s")
        texts = (out.decode("utf-8", "replace") for out in (done.stdout, done.stderr))
        return ExecResult(stdout=next(texts), stderr=next(texts), return_code=done.code)

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        seconds: float | None = None,
        user: str | int | None = None,
    ) -> Done:
        """Run a command; see `exec`. What it started in the background goes on."""
        who = self._resolve_user(user)
        if who not in (None, "root", 0, "0"):
            raise ValueError(
                f"the backend bubblewrap has the user root alone, and the task asks for {who!r}"
            )
        variables = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **self._image.environment}
        variables |= self._merge_env(dict(env or {})) or {}
        shell = "/bin/bash" if self._has_bash else "/bin/sh"
        order = {
            "do": "exec",
            "argv": [shell, "-c", command],
            "cwd": cwd or self._image.folder,
            "env": variables,
            "limits": {
                "RLIMIT_NPROC": self._box.processes,
                "RLIMIT_DATA": self._memory_mib * _MIB,
                "RLIMIT_CORE": 0,
            },
        }
        return await self._enter(order, seconds=seconds)

    @property
    def _has_bash(self) -> bool:
        return Path(self._box.root or "/", "bin/bash").exists()

    @property
    def _memory_mib(self) -> int:
        return min(self._effective_memory_mb or self._box.memory_mib, self._box.memory_mib)

    async def _enter(
        self, order: Mapping[str, Any], *, seconds: float | None, stdin: bytes = b"", most: int = 0
    ) -> Done:
        if self._process is None or self._process.returncode is not None:
            raise SandboxLostError("the sandbox is gone")
        command = [sys.executable, "-I", "-S", str(_ENTER), str(self._first), json.dumps(order)]
        return await run(command, seconds=seconds, stdin=stdin, most=most or _MOST_OUTPUT)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox."""
        target = Path(target_path)
        await self._put(str(target.parent), {target.name: Path(source_path)})

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's content into a folder of the sandbox."""
        source = Path(source_dir)
        await self._put(target_dir, {path.name: path for path in sorted(source.iterdir())})

    async def _put(self, folder: str, files: Mapping[str, Path]) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, path in files.items():
                archive.add(path, arcname=name, filter=_as_root)
        order = {"do": "put", "path": os.path.join(self._image.folder, folder)}
        done = await self._enter(order, seconds=_COPY_SECONDS, stdin=packed.getvalue())
        _check(done, f"files cannot be copied to {folder}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a regular file out of the sandbox.

        Raises:
            FileNotFoundError: There is none.
        """
        found = [*(await self._get(source_path)).values()]
        if not found:
            raise FileNotFoundError(f"the sandbox has no regular file {source_path!r}")
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(found[0])

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the regular files of a folder out of the sandbox; links are left behind."""
        for name, data in (await self._get(source_dir)).items():
            path = Path(target_dir, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    async def _get(self, source: str) -> dict[str, bytes]:
        """Return files by their path below a folder; the policy may have named them."""
        order = {"do": "get", "path": source, "most": _MOST_FILE}
        done = await self._enter(order, seconds=_COPY_SECONDS, most=4 * _MOST_FILE)
        _check(done, f"{source} cannot be read")
        with tarfile.open(fileobj=io.BytesIO(done.stdout), mode="r") as archive:
            found = {}
            for member in archive:
                file = archive.extractfile(member)
                name = Path(member.name)
                if file is not None and not name.is_absolute() and ".." not in name.parts:
                    found[member.name] = file.read()
            return found


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _check(done: Done, what: str) -> None:
    if done.timed_out or done.code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise OSError(f"{what}: {'out of time' if done.timed_out else said or done.code}")


def _fill(lower: Path) -> None:
    """Make the folders and settings that programs of the machine's `/usr` need."""
    for name in _FOLDERS:
        (lower / name).mkdir(parents=True)
    (lower / "tmp").chmod(0o1777)
    (lower / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (lower / "etc/group").write_text("root:x:0:\n")
    (lower / "etc/hosts").write_text("127.0.0.1 localhost main\n")
    for name in _ETC:
        source, target = Path("/etc", name), lower / "etc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy(source, target)
