"""The folder of a sweep: one run folder a job, and the files that tell of all of them."""

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from kdist.errors import ConfigError, EnvironmentFault

_LOCK_NAME = ".sweep.lock"


@dataclass
class SweepFolder:
    """The paths of one sweep. Made by `claim`, it also holds the folder's lock."""

    path: Path
    _made: list[Path] = field(default_factory=list[Path], repr=False)
    _lock_descriptor: int | None = field(default=None, repr=False)

    @classmethod
    def claim(cls, path: Path, *, make_unique: bool) -> "SweepFolder":
        """Make the folder, unless it is there, and lock it for this process.

        Args:
            path: Where.
            make_unique: Where the folder exists, take the next free one of `<path>-2`, ...
                instead. Safe against others that do the same at the same time.

        Raises:
            ConfigError: If another sweep uses it.
            EnvironmentFault: If it cannot be made.
        """
        path = path.absolute()
        made = [folder for folder in path.parents if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            attempt, is_new = 1, _make(path)
            while make_unique and not is_new:
                attempt += 1
                is_new = _make(path.with_name(f"{path.name}-{attempt}"))
            own = path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")
            folder = cls(own, [own, *made] if is_new else [])
            folder._lock()
        except OSError as error:
            raise EnvironmentFault(
                f"The folder of the sweep cannot be made: {error.strerror or error}. Received: "
                f"{path}. Choose another place (hydra.sweep.dir=...)."
            ) from error
        return folder

    @property
    def sweep_csv(self) -> Path:
        """One row a job."""
        return self.path / "sweep.csv"

    @property
    def sweep_png(self) -> Path:
        """The same, drawn."""
        return self.path / "sweep.png"

    def release(self) -> None:
        """Give up the lock, and remove what was made for nothing; may be called again."""
        if self._lock_descriptor is None:
            return
        if [entry.name for entry in self.path.iterdir()] == [_LOCK_NAME]:
            (self.path / _LOCK_NAME).unlink()
            for folder in self._made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        os.close(self._lock_descriptor)
        self._lock_descriptor = None

    def _lock(self) -> None:
        descriptor = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ConfigError(
                f"Another sweep runs in this folder. Received: {self.path}. Wait until it has "
                "ended, or choose another one (hydra.sweep.dir=...)."
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        self._lock_descriptor = descriptor


def _make(path: Path) -> bool:
    """Make a folder; return whether it is new."""
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    return True
