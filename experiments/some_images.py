"""Images that a model has not been trained on, in a file, and how well it read them.

Run: python -m experiments.some_images images.npz                        (writes the images)
     python -m experiments.some_images images.npz <run>/predictions.npz  (compares)
"""

import sys

import numpy as np

NUM_IMAGES = 100


def write(path: str) -> None:
    """Write images that `data=mnist_5k` holds out from training."""
    from kdist.datasets import mnist_5k

    x, y = mnist_5k()["validation"]
    np.savez_compressed(path, x=x[:NUM_IMAGES], y=y[:NUM_IMAGES])
    sys.stdout.write(f"{NUM_IMAGES} images: {path}\n")


def compare(path: str, predictions: str) -> None:
    """Print how many of the images were read as what they show."""
    with np.load(path) as images, np.load(predictions) as found:
        is_right = found["predictions"].argmax(-1) == images["y"]
    sys.stdout.write(f"{is_right.sum()} of {len(is_right)} images are right.\n")


if __name__ == "__main__":
    write(sys.argv[1]) if len(sys.argv) == 2 else compare(*sys.argv[1:])
