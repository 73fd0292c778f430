"""What callbacks change of a model once its step is made, and what therefore has no effect.

Plain Keras makes the step when the first batch comes, so that a callback may still change the
optimizer's settings, or what is trainable, as training or the first epoch begins.
"""

from typing import Any

import keras

from kdist.config.dotted import flattened
from kdist.errors import ConfigError
from kdist.records.plain import to_plain


class LateChanges:
    """Compares a model with what it was when it was made ready for training."""

    def __init__(self, model: keras.Model):
        """Remember a compiled model's optimizer and trainable variables."""
        self._model = model
        self._before = _facts(model)

    def refuse(self) -> None:
        """Refuse what has changed; learning rates may.

        Raises:
            ConfigError: Naming the first difference.
        """
        now = _facts(self._model)
        changed = [key for key, value in self._before.items() if now.get(key) != value]
        if changed:
            key = changed[0]
            raise ConfigError(
                "A callback changed the model when training began, which comes too late. Received: "
                f"{key} was {self._before.get(key)}, is {now.get(key)}. Change it in the function "
                "that builds the model."
            )


def _facts(model: keras.Model) -> dict[str, Any]:
    optimizer: Any = model.optimizer
    content, _ = to_plain(optimizer.get_config())
    settings = {
        f"optimizer.{key}": value
        for key, value in flattened(content).items()
        if "learning_rate" not in key and " at 0x" not in str(value)
    }
    trainable = {f"trainable of {v.path}": v.trainable for v in model.variables}
    return {"optimizer": type(optimizer).__name__, **settings, **trainable}
