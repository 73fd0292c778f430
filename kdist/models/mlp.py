"""A multilayer perceptron for inputs of any shape."""

import keras


def mlp(
    num_classes: int = 10,
    units: int = 128,
    layers: int = 2,
    dropout: float = 0.1,
    activation: str = "relu",
) -> keras.Model:
    """Return dense layers on the flattened input, and probabilities of the classes.

    Args:
        num_classes: Size of the output.
        units: Size of each hidden layer.
        layers: Number of hidden layers; 0 makes a linear model.
        dropout: Part of the units that each hidden layer drops in training.
        activation: Name of the hidden layers' activation.

    Returns:
        A model that is not compiled, and is built by its first batch.
    """
    stack: list[keras.Layer] = [keras.layers.Flatten()]
    for _ in range(layers):
        stack.append(keras.layers.Dense(units, activation=activation))
        if dropout:
            stack.append(keras.layers.Dropout(dropout))
    # float32 also under mixed precision: probabilities in half precision lose small ones.
    stack.append(keras.layers.Dense(num_classes, activation="softmax", dtype="float32"))
    return keras.Sequential(stack, name="mlp")
