"""Built-in data functions, each a `data._target_`."""

from kdist.datasets.digits import digits
from kdist.datasets.keras_dataset import keras_dataset
from kdist.datasets.mnist_5k import mnist_5k
from kdist.datasets.npz import npz, read_npz
from kdist.datasets.synthetic import synthetic

__all__ = ["digits", "keras_dataset", "mnist_5k", "npz", "read_npz", "synthetic"]
