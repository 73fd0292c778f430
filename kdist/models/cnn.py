"""A small convolutional network for images."""

from collections.abc import Sequence

import keras


def cnn(
    num_classes: int = 10,
    filters: Sequence[int] = (32, 64),
    dropout: float = 0.25,
    activation: str = "relu",
) -> keras.Model:
    """Return convolutions with pooling, then probabilities of the classes.

    Args:
        num_classes: Size of the output.
        filters: Filters of each 3x3 convolution; each but the last is followed by 2x2 pooling.
        dropout: Part of the features that is dropped before the output in training.
        activation: Name of the convolutions' activation.

    Returns:
        A model for images `(rows, columns, channels)` that is not compiled, and is built by its
        first batch.
    """
    stack: list[keras.Layer] = []
    for index, num_filters in enumerate(filters):
        if index:
            stack.append(keras.layers.MaxPooling2D())
        stack.append(keras.layers.Conv2D(num_filters, 3, padding="same", activation=activation))
    stack.append(keras.layers.Flatten())
    if dropout:
        stack.append(keras.layers.Dropout(dropout))
    stack.append(keras.layers.Dense(num_classes, activation="softmax", dtype="float32"))
    return keras.Sequential(stack, name="cnn")
