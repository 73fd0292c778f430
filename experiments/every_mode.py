"""Question: does one model learn the same in every mode, and how fast is each here?

Run: python -m experiments.every_mode
"""

import sys

import kdist

MODES = {
    "single": {},
    "mirrored": {"devices": 2},
    "multiworker": {"workers": 2},
    "ps": {"workers": 2, "ps": 2},
}


def make_data() -> dict:
    """Return the digits that come with scikit-learn."""
    from kdist.datasets import digits

    return digits()


def build_model() -> object:
    """Return a small network without random layers, so that modes can be compared."""
    import keras

    return keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main(epochs: int = 20) -> None:
    """Train in every mode and print one row for each."""
    rows = []
    for strategy, sizes in MODES.items():
        result = kdist.fit(
            build_model,
            make_data,
            strategy=strategy,
            epochs=epochs,
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            **sizes,
        )
        rows.append((strategy, result.metrics, result.content["steps_per_second"]))
    sys.stdout.write("\nmode          val_loss  val_accuracy  steps/s\n")
    for strategy, metrics, speed in rows:
        sys.stdout.write(
            f"{strategy:<12} {metrics['val_loss']:9.6f} {metrics['val_accuracy']:13.4f} "
            f"{speed or float('nan'):8.0f}\n"
        )


if __name__ == "__main__":
    main()
