"""From what a user names (a run folder, its checkpoints, one checkpoint) to a whole checkpoint."""

from collections.abc import Callable

from kdist.errors import ConfigError
from kdist.training.checkpoints import files
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.format import MARKER, SavedCheckpoint, read_checkpoint


def is_checkpoint(path: str) -> bool:
    """Return whether a path is a checkpoint's folder, whole or not."""
    return MARKER in files.names(path)


def find_checkpoint(path: str, on_broken: Callable[[str], None], *, key: str) -> SavedCheckpoint:
    """Return the checkpoint that a path means: itself, or the newest whole one of a run.

    Args:
        path: A checkpoint's folder, a run folder, or a folder of checkpoints.
        on_broken: Told, in a sentence, of each newer one that is not whole.
        key: The key that named the path, for the message.

    Raises:
        ConfigError: If there is none.
    """
    if is_checkpoint(path):
        found = read_checkpoint(path)
        found.verify()
        return found
    for folder in (files.join(path, "checkpoints"), path):
        newest = CheckpointFolder(folder).newest_whole(on_broken)
        if newest is not None:
            return newest
    raise ConfigError(
        f"There is no whole checkpoint. Received: {key}={path}. Name a run folder, or one of the "
        "folders in its checkpoints/."
    )
