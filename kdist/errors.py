"""The errors that kdist raises, and the exit code that each one means."""


class KdistError(Exception):
    """Root of all kdist errors."""

    exit_code = 1


class ConfigError(KdistError, ValueError):
    """A configuration value, or a combination of values, cannot work."""

    exit_code = 2


class EnvironmentFault(KdistError, OSError):
    """The machine lacks something that the run needs: a file, a port, a package, a device."""

    exit_code = 2


class TrainingError(KdistError, RuntimeError):
    """Training started and could not go on."""


class TaskTimeoutError(KdistError, TimeoutError):
    """A wait outlived its deadline; the message names whom it waited for."""


class PeerLostError(KdistError, ConnectionError):
    """The chief or a peer vanished; this task should be started again."""

    exit_code = 75


def exit_code_of(error: BaseException) -> int:
    """Return the process exit code that reports `error` (see docs/architecture.md)."""
    return error.exit_code if isinstance(error, KdistError) else 1
