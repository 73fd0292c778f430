"""Environment variables that must be set before TensorFlow is imported; a pure decision."""

from collections.abc import Iterable, Mapping

from kdist.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def prepare_environment(
    environ: Mapping[str, str],
    *,
    verbose: bool = False,
    hosts: Iterable[str] = (),
    is_task: bool = False,
) -> dict[str, str]:
    """Return the variables to set, in this process, before the first task starts.

    Args:
        environ: The process environment.
        verbose: Keep TensorFlow's start-up messages.
        hosts: Hosts of the cluster, which no proxy may come between.
        is_task: Whether this process becomes a task, whose output nobody filters: TensorFlow's
            error messages are hidden too, since errors reach the user as exceptions.

    Raises:
        ConfigError: If the environment asks for another Keras backend.
    """
    backend = environ.get("KERAS_BACKEND", "")
    if backend not in ("", "tensorflow"):
        raise ConfigError(
            f"kdist trains with TensorFlow. Received: KERAS_BACKEND={backend}. Unset it."
        )
    unproxied = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    names = [name for name in unproxied.split(",") if name]
    names += [host for host in (*_LOOPBACK, *hosts) if host not in names]
    variables = {
        "KERAS_BACKEND": "tensorflow",  # Wins over keras.json.
        "TF_USE_LEGACY_KERAS": "0",
        # Without it, a call to a task that died is retried for ever and nobody reports the loss.
        "GRPC_FAIL_FAST": "use_caller",
        # An http_proxy would swallow the cluster's own traffic, and every start would hang.
        "no_grpc_proxy": ",".join(dict.fromkeys(names)),
    }
    if not verbose and "TF_CPP_MIN_LOG_LEVEL" not in environ:
        variables["TF_CPP_MIN_LOG_LEVEL"] = "3" if is_task else "2"
    return variables
