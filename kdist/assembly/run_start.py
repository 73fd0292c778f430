"""How a run starts: in a new folder or in one that was used, and from which checkpoint."""

from pathlib import Path

from kdist.config.schema import Config
from kdist.errors import ConfigError
from kdist.launch.request import TaskRequest
from kdist.records.resumption import AUTO, NEVER, Start, Wish, decide
from kdist.records.run_folder import RunFolder
from kdist.training.checkpoints.find import find_checkpoint
from kdist.training.checkpoints.folder import CheckpointFolder
from kdist.training.checkpoints.format import SavedCheckpoint


def wish_of(request: TaskRequest, config: Config) -> Wish:
    """Return what a request asks of its run folder."""
    return Wish(
        run_dir=Path(request.run_dir),
        config=config,
        config_yaml=request.config_yaml,
        attempt=request.attempt,
        is_new_name=request.may_rename_run_dir and request.attempt == 0,
    )


def open_folder(request: TaskRequest, config: Config) -> RunFolder:
    """Make the run folder of a new run, or lock the one that goes on; config.yaml of that stays.

    Raises:
        ConfigError: If the folder is in use, or holds another run.
    """
    if decide(wish_of(request, config)) is Start.NEW:
        is_new_name = request.may_rename_run_dir and request.attempt == 0
        return RunFolder.create(request.run_dir, request.config_yaml, make_unique=is_new_name)
    return RunFolder.reopen(request.run_dir)


def find_own(
    config: Config, checkpoints: CheckpointFolder, *, attempt: int, warnings: list[str]
) -> SavedCheckpoint | None:
    """Return the checkpoint to go on from, or `None` for a run that begins.

    The run folder's own newest comes first: what `resume` names is where the run began. Only a
    checkpoint of the same folder that is named means going back to it.

    Args:
        config: The checked configuration.
        checkpoints: Those of the run folder.
        attempt: How many times this run was started before.
        warnings: Takes a sentence for each checkpoint that is not whole.

    Raises:
        ConfigError: If what `resume` names has no whole checkpoint, or none can be written.
    """
    if config.checkpoint.dir is not None:
        _make(checkpoints)
    checkpoints.tidy()
    if config.resume == NEVER and attempt == 0:
        if not checkpoints.is_empty():  # `checkpoint.dir` of another run, say.
            raise ConfigError(
                "There are checkpoints already. Received: resume=never, "
                f"checkpoint.dir={checkpoints.path}. Choose another place."
            )
        return None
    named = None if config.resume in (AUTO, NEVER) else str(Path(config.resume))
    if "://" in config.resume:
        named = config.resume
    goes_back = named is not None and is_inside(named, checkpoints.path)
    if not (goes_back and attempt == 0):
        own = checkpoints.newest_whole(warnings.append)
        if own is not None or named is None:
            return own
    assert named is not None
    return find_checkpoint(named, warnings.append, key="resume")


def _make(checkpoints: CheckpointFolder) -> None:
    try:
        checkpoints.make()
    except OSError as error:
        raise ConfigError(
            f"Checkpoints cannot be written: {error.strerror or error}. Received: checkpoint.dir="
            f"{checkpoints.path}. Name a folder, or a place where one can be made."
        ) from error


def is_inside(path: str, folder: str) -> bool:
    """Return whether a checkpoint lies right in a folder of checkpoints."""
    return Path(path).absolute().parent == Path(folder).absolute()
