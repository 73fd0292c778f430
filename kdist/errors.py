"""The errors that kdist raises, and the exit code that each one means."""


class KdistError(Exception):
    """Root of all kdist errors."""

    exit_code = 1
    tells_all = False  # Whether the message says all that there is, and a traceback nothing more.


class ConfigError(KdistError, ValueError):
    """A configuration value, or a combination of values, cannot work."""

    exit_code = 2
    tells_all = True


class EnvironmentFault(KdistError, OSError):
    """The machine lacks something that the run needs: a file, a port, a package, a device."""

    exit_code = 2
    tells_all = True


class TrainingError(KdistError, RuntimeError):
    """Training started and could not go on."""


class TaskTimeoutError(KdistError, TimeoutError):
    """A wait outlived its deadline; the message names whom it waited for."""

    tells_all = True


class PeerLostError(KdistError, ConnectionError):
    """The chief or a peer vanished; this task should be started again."""

    exit_code = 75
    tells_all = True


def exit_code_of(error: BaseException) -> int:
    """Return the process exit code that reports `error` (see docs/architecture.md)."""
    return error.exit_code if isinstance(error, KdistError) else 1
