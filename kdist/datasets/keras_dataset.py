"""The image sets of keras.datasets, downloaded once for all tasks of a machine."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kdist.datasets.file_lock import machine_lock
from kdist.datasets.splits import held_out
from kdist.errors import ConfigError, EnvironmentFault

_MODULES: dict[str, Any] = {
    "mnist": keras.datasets.mnist,
    "fashion_mnist": keras.datasets.fashion_mnist,
    "cifar10": keras.datasets.cifar10,
}


def keras_dataset(
    name: str,
    validation_fraction: float = 0.1,
    split_seed: int = 0,
    download_timeout_s: float = 600.0,
    connection_timeout_s: float = 20.0,
) -> dict[str, Any]:
    """Return images `(n, rows, columns, channels)`, float32 in [0, 1], and int64 labels.

    Keras' test images are the part `test`.

    Args:
        name: `mnist`, `fashion_mnist` or `cifar10`.
        validation_fraction: Part of the training images that is held out.
        split_seed: Which ones are held out; the split is the same in every task.
        download_timeout_s: How long to wait for another task that downloads.
        connection_timeout_s: How long a server may be silent.

    Raises:
        ConfigError: If there is no set of that name.
        EnvironmentFault: If it is not on this machine yet and cannot be downloaded.
        TaskTimeoutError: If another task downloads for longer than `download_timeout_s`.
    """
    if name not in _MODULES:
        raise ConfigError(f"data.name must be one of {', '.join(_MODULES)}. Received: {name!r}.")
    with machine_lock(name, timeout_s=download_timeout_s), _silence_limit(connection_timeout_s):
        training, test = _loaded(name, _MODULES[name].load_data)
    parts = held_out(tuple(training), validation_fraction, split_seed) | {"test": tuple(test)}
    return {part: _scaled(*arrays) for part, arrays in parts.items()}


def _loaded(name: str, load_data: Callable[[], Any]) -> Any:
    try:
        return load_data()
    except Exception as error:  # keras raises a bare Exception when a download fails
        raise EnvironmentFault(
            f"data={name} is not on this machine and could not be downloaded. Received: {error}. "
            "Connect to the network once, or copy the file into Keras' datasets folder "
            "(~/.keras/datasets); data=digits and data=mnist_5k need no network."
        ) from error


def _scaled(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = images.astype(np.float32)
    x /= 255.0
    return x if x.ndim == 4 else x[..., np.newaxis], labels.reshape(-1).astype(np.int64)


@contextmanager
def _silence_limit(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
