"""Colour images without a download: pieces of the two photographs that scikit-learn ships."""

import numpy as np

SIZE = 32  # Pixels, as in CIFAR.


def make_data(stride: int = 16, held_out_columns: int = 160) -> dict:
    """Return pieces `(n, 32, 32, 3)`, float32 in [0, 1], and the photograph of each: 0 or 1.

    Validation pieces come from the right edge, which no training piece touches.

    Args:
        stride: Pixels from one training piece to the next; fewer make more pieces.
        held_out_columns: Width of the edge for validation, in pixels.
    """
    from sklearn.datasets import load_sample_images

    photos = [np.asarray(photo, np.float32) / 255 for photo in load_sample_images().images]
    return {
        "train": cut([photo[:, :-held_out_columns] for photo in photos], stride),
        "validation": cut([photo[:, -held_out_columns:] for photo in photos], SIZE),
    }


def cut(photos: list[np.ndarray], stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pieces, `stride` pixels apart, and the index of the photograph of each."""
    pieces, labels = [], []
    for label, photo in enumerate(photos):
        windows = np.lib.stride_tricks.sliding_window_view(photo, (SIZE, SIZE), axis=(0, 1))
        found = windows[::stride, ::stride].reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
        pieces.append(found)
        labels.append(np.full(len(found), label, np.int64))
    return np.ascontiguousarray(np.concatenate(pieces)), np.concatenate(labels)
