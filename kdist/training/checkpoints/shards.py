"""Files of a checkpoint that servers write: rows of a large array, in TensorFlow's own format.

    shard-0000-1-0.index                    which tensor, and its checksum
    shard-0000-1-0.data-00000-of-00001      its bytes

`tf.train.load_checkpoint` opens them. `checkpoint.json` knows the size and the index's checksum.
"""

import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from kdist.distribute.buckets.held_values import ROWS, Held, can_read, can_write
from kdist.distribute.buckets.layout import Rows
from kdist.training.checkpoints import files

SHARD = "shard-"
_INDEX, _DATA = ".index", ".data-00000-of-00001"
_PROBE, _ANSWER = f"{SHARD}seen-by-chief", f"{SHARD}seen-by-servers"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Some rows of an array: a file's name without its endings, its rows, what to check."""

    file: str
    first: int
    stop: int
    step: int
    index_crc32: int
    num_bytes: int

    @property
    def rows(self) -> Rows:
        """Return which rows of the array it has."""
        return Rows(first=self.first, stop=self.stop, step=self.step)


def described(folder: str, file: str, rows: Rows) -> Shard:
    """Return a shard that a server has just written, which is on the disk then.

    Raises:
        OSError: If it is not there.
    """
    path = files.join(folder, file)
    for ending in (_DATA, _INDEX):
        files.sync(path + ending)
    return Shard(
        file=file,
        first=rows.first,
        stop=rows.stop,
        step=rows.step,
        index_crc32=_checksum(path),
        num_bytes=files.size_of(path + _DATA),
    )


def read_shard(folder: str, shard: Shard) -> np.ndarray:
    """Return the rows of a shard.

    Raises:
        OSError: If it is missing, cut off or damaged.
    """
    path = files.join(folder, shard.file)
    if files.size_of(path + _DATA) != shard.num_bytes or _checksum(path) != shard.index_crc32:
        raise OSError("it is damaged")
    try:
        return tf.compat.v1.train.NewCheckpointReader(path).get_tensor(ROWS)
    except (tf.errors.OpError, RuntimeError) as error:
        raise OSError("it is damaged") from error


class SharedFolder:
    """Finds out whether the servers write where the chief reads: once, by trying."""

    def __init__(self, say: Callable[[str], None]):
        """Hold what takes a sentence for the user, once, if they do not."""
        self._say = say
        self._is_seen: bool | None = None

    def is_seen(self, folder: str, held: Iterable[Held]) -> bool:
        """Return whether those who hold something see the chief's folder, and can write into it.

        Nothing is written where the folder is another one. Not at the same time in two threads.

        Raises:
            OSError: If the chief itself cannot write there.
        """
        if self._is_seen is None:
            blind = [device for device, each in _by_device(held) if not _sees(folder, each)]
            self._is_seen = not blind
            if blind:
                self._say(
                    f"{_names(blind)} cannot write into {os.path.dirname(folder)}, which the chief "
                    "writes: large embedding tables pass through the chief, block by block. A "
                    "folder that all tasks share (checkpoint.dir) lets servers write them."
                )
        return self._is_seen


def _sees(folder: str, held: Held) -> bool:
    """Return whether one server sees the chief's file, and the chief the server's."""
    probe, answer = files.join(folder, _PROBE), files.join(folder, _ANSWER)
    content = os.urandom(16)
    try:
        with files.writing(probe) as file:
            file.write(content)
        if not can_read(held.variable, probe, content):
            return False
        if not can_write(held.variable, answer, content):
            return False
        with files.reading(answer) as file:
            return file.read() == content
    except FileNotFoundError:
        return False
    finally:
        for path in (probe, answer):
            files.remove(path)


def _by_device(held: Iterable[Held]) -> list[tuple[str, Held]]:
    return list({each.device: each for each in held}.items())


def _names(devices: Iterable[str]) -> str:
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    return ", ".join(f"{spec.job}-{spec.task}" for spec in specs)


def _checksum(path: str) -> int:
    with files.reading(path + _INDEX) as file:
        return zlib.crc32(file.read())
