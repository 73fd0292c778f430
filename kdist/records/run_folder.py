"""The run folder: where a run's files stand, and the lock that keeps a second run out."""

import contextlib
import errno
import fcntl
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from kdist.errors import ConfigError, EnvironmentFault, KdistError
from kdist.records.atomic import write_text_atomically

_LOCK_NAME = ".lock"
_RUN_FILES = (
    "config.yaml",
    "result.json",
    "metrics.csv",
    "events.jsonl",
    "model.keras",
    "checkpoints",
)


class RunFolderTakenError(ConfigError):
    """The folder is in use by another run, or already holds one."""


@dataclass
class RunFolder:
    """The paths of one run. Made by `create` or `reopen`, it also holds the folder's lock."""

    path: Path
    lock_descriptor: int | None = None
    _made: list[Path] = field(default_factory=list[Path], repr=False, compare=False)

    @classmethod
    def create(
        cls,
        path: Path | str,
        config_yaml: str,
        *,
        make_unique: bool = False,
    ) -> "RunFolder":
        """Make a run folder, lock it for this process, and write its config.yaml.

        The lock ends with the process, however it ends. When this raises, nothing new is left
        on disk.

        Args:
            path: Where; missing parents are made. A folder without a run in it may exist.
            config_yaml: The content of config.yaml.
            make_unique: Where the folder is taken, take the next free one of `<path>-2`,
                `<path>-3`, ... instead. Safe against others that do the same at the same time.

        Raises:
            RunFolderTakenError: (a ConfigError) If it is in use, or holds a run.
            EnvironmentFault: If it cannot be made or written.
        """
        attempt = 1
        while True:
            try:
                return _create(_numbered(Path(path), attempt), config_yaml)
            except RunFolderTakenError:
                if not make_unique:
                    raise
                attempt += 1

    @classmethod
    def reopen(cls, path: Path | str) -> "RunFolder":
        """Lock a folder in which a run goes on; nothing in it is changed.

        Raises:
            RunFolderTakenError: (a ConfigError) If it is in use.
            EnvironmentFault: If it cannot be written.
        """
        folder = RunFolder(Path(path).absolute())
        try:
            folder.lock_descriptor = _lock(folder.path / _LOCK_NAME, folder._made)
        except OSError as error:
            if isinstance(error, KdistError):
                raise
            raise _not_made(folder.path, error) from error
        return folder

    def write_config(self, config_yaml: str) -> None:
        """Replace config.yaml, whole.

        Raises:
            EnvironmentFault: If it cannot be written.
        """
        write_text_atomically(self.config_yaml, config_yaml)

    @property
    def config_yaml(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def result_json(self) -> Path:
        """What the run came to."""
        return self.path / "result.json"

    @property
    def metrics_csv(self) -> Path:
        """One row an epoch."""
        return self.path / "metrics.csv"

    @property
    def events_jsonl(self) -> Path:
        """What happened, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def model_keras(self) -> Path:
        """The trained model."""
        return self.path / "model.keras"

    @property
    def curves_png(self) -> Path:
        """The metrics, drawn."""
        return self.path / "curves.png"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def logs(self) -> Path:
        """The folder of what each task printed."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The folder of resumable state."""
        return self.path / "checkpoints"

    @property
    def is_new(self) -> bool:
        """Whether `create` has made it for this run."""
        return self.config_yaml in self._made

    def holds_run(self) -> bool:
        """Whether a run has written here."""
        return any((self.path / name).exists() for name in _RUN_FILES)

    def undo(self) -> None:
        """Remove what `create` or `reopen` has made, parents included: the run was refused.

        What others have put there stays, and so does a folder that is not empty then.
        """
        while self._made:
            path = self._made.pop()
            if path.name == _LOCK_NAME:
                self.release()  # Some file systems keep a file that is open.
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def release(self) -> None:
        """Give up the lock; may be called again."""
        if self.lock_descriptor is not None:
            os.close(self.lock_descriptor)
            self.lock_descriptor = None

    def __enter__(self) -> "RunFolder":
        """Return the folder."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give up the lock."""
        self.release()


def _numbered(path: Path, attempt: int) -> Path:
    """Return the name to try at the given attempt (from 1)."""
    return path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")


def _create(path: Path, config_yaml: str) -> RunFolder:
    folder = RunFolder(path.absolute())
    refuse_used(folder.path)
    made = folder._made
    try:
        _make_folders(folder.path, made)
        folder.lock_descriptor = _lock(folder.path / _LOCK_NAME, made)
        refuse_used(folder.path)
        folder.write_config(config_yaml)
        made.append(folder.config_yaml)
    except BaseException as error:
        folder.undo()
        folder.release()
        if isinstance(error, OSError) and not isinstance(error, EnvironmentFault):
            raise _not_made(folder.path, error) from error
        raise
    return folder


def _not_made(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"The run folder cannot be made: {error.strerror or error}. Received: {path}. Choose "
        "another place (hydra.run.dir=...)."
    )


def refuse_used(path: Path | str) -> None:
    """Refuse a folder in which a run has written; it may still be taken a moment later.

    Raises:
        RunFolderTakenError: (a ConfigError) If it holds a run.
    """
    if RunFolder(Path(path)).holds_run():
        raise RunFolderTakenError(
            f"The run folder already holds a run. Received: {path}. Choose another one "
            "(hydra.run.dir=...), remove it, or go on with that run (resume=auto)."
        )


def refuse_in_use(path: Path | str) -> None:
    """Refuse a folder whose run is still going on; it may still be taken a moment later.

    Raises:
        RunFolderTakenError: (a ConfigError) If it is in use.
    """
    lock = Path(path) / _LOCK_NAME
    if lock.exists():
        with contextlib.suppress(EnvironmentFault):
            RunFolder.reopen(path).release()


def _make_folders(path: Path, made: list[Path]) -> None:
    """Make a folder and its missing parents, and note in `made` which ones are new."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            made.append(folder)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file")


def _lock(path: Path, made: list[Path]) -> int:
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise RunFolderTakenError(
            f"The run folder is in use{f' by {owner}' if owner else ''}. Received: {path.parent}. "
            "Choose another one (hydra.run.dir=...), or wait until that run has ended."
        ) from error
    except OSError:
        os.close(descriptor)
        raise
    if is_new:
        made.append(path)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return descriptor
