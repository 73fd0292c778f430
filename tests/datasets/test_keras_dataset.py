"""keras.datasets behind a lock: one download a machine, one message without a network."""

import multiprocessing
import socket
import types
from urllib.error import URLError

import numpy as np
import pytest

from kdist.datasets import keras_dataset as module_function
from kdist.datasets.file_lock import machine_lock
from kdist.errors import ConfigError, EnvironmentFault, TaskTimeoutError

module = __import__("sys").modules["kdist.datasets.keras_dataset"]


@pytest.fixture(autouse=True)
def own_lock_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def install(monkeypatch, name, load_data):
    monkeypatch.setitem(module._MODULES, name, types.SimpleNamespace(load_data=load_data))


def fake_images(*shape):
    def images(num_rows):
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (num_rows, *shape), dtype="uint8")
        return x, np.arange(num_rows, dtype="uint8").reshape((-1,) + (1,) * (len(shape) - 2))

    return lambda: (images(40), images(10))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("mnist", (28, 28), (28, 28, 1)), ("cifar10", (32, 32, 3), (32, 32, 3))],
)
def test_images_are_scaled_and_split(monkeypatch, name, shape, expected):
    install(monkeypatch, name, fake_images(*shape))
    parts = module_function(name)
    assert {part: len(x) for part, (x, _) in parts.items()} == {
        "train": 36,
        "validation": 4,
        "test": 10,
    }
    images = fake_images(*shape)()[0][0].reshape(40, *expected)
    for x, y in (parts["train"], parts["validation"]):
        assert x.shape[1:] == expected
        assert (x.dtype, y.dtype, y.ndim) == (np.float32, np.int64, 1)
        assert np.allclose(x, images[y] / 255)


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"mnist, fashion_mnist, cifar10. Received: 'imagenet'"):
        module_function("imagenet")


def test_without_a_network(monkeypatch):
    def fail():
        raise Exception("URL fetch failure on https://example.org/mnist.npz: None -- no route")

    install(monkeypatch, "mnist", fail)
    with pytest.raises(EnvironmentFault, match=r"data=mnist.*URL fetch failure.*data=digits"):
        module_function("mnist")


def test_a_silent_server_is_given_up(monkeypatch):
    seen = []

    def silent():
        seen.append(socket.getdefaulttimeout())
        raise URLError("timed out")

    install(monkeypatch, "mnist", silent)
    with pytest.raises(EnvironmentFault, match="timed out"):
        module_function("mnist", connection_timeout_s=3)
    assert seen == [3]
    assert socket.getdefaulttimeout() is None


def test_a_wait_for_another_download_ends(tmp_path):
    with (
        machine_lock("mnist", timeout_s=1),
        pytest.raises(
            TaskTimeoutError, match=r"0.2 s waiting for another process.*downloads mnist"
        ),
    ):
        module_function("mnist", download_timeout_s=0.2)


def count_alone(folder, results):
    """Hold the lock while a file exists; report whether anyone else was inside."""
    with machine_lock("shared", timeout_s=30, folder=folder):
        marker = f"{folder}/inside"
        try:
            with open(marker, "x"):
                pass
        except FileExistsError:
            results.put(False)
            return
        total = sum(range(200_000))
        __import__("os").remove(marker)
        results.put(total > 0)


def test_only_one_process_at_a_time(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=count_alone, args=(str(tmp_path), results)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [True] * 4
    for process in processes:
        process.join(timeout=10)
        assert process.exitcode == 0
