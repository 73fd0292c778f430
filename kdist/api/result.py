"""What a call of `kdist.fit` returns."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kdist.errors import ConfigError
from kdist.records.result import read_result

_NO_LOGS = ("epoch", "global_step", "seconds", "examples")


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        run_dir: The run folder.
        content: result.json.
        history: One list an entry of the logs (`loss`, `val_loss`, ...), a value an epoch.
        custom_objects: The user's own classes and functions by name, which a saved model names.
    """

    run_dir: Path
    content: Mapping[str, Any]
    history: Mapping[str, list[float]] = field(default_factory=dict)
    custom_objects: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, run_dir: Path, custom_objects: Mapping[str, Any]) -> "Result":
        """Return what a run folder holds.

        Raises:
            ConfigError: If it holds no result.
        """
        return cls(
            run_dir,
            read_result(run_dir / "result.json"),
            _history(run_dir / "metrics.csv"),
            custom_objects,
        )

    @property
    def metrics(self) -> Mapping[str, float]:
        """Loss and metrics of the last epoch."""
        return self.content["metrics"]

    @property
    def status(self) -> str:
        """`completed` or `stopped`."""
        return self.content["status"]

    @cached_property
    def model(self) -> Any:
        """The trained Keras model, loaded from `model.keras` on first use.

        Raises:
            ConfigError: If it holds classes that nobody has defined here.
        """
        import keras

        from kdist.training.saving import load_model

        try:
            return keras.saving.load_model(self.run_dir / "model.keras")
        except (TypeError, ValueError):  # It names what only the user's own script knows.
            pass
        try:
            return load_model(self.run_dir, is_compiled=True, custom_objects=self.custom_objects)
        except ConfigError as error:
            hint = "In a program: import the module that defines them first."
            raise ConfigError(f"{error} {hint}") from None


def _history(path: Path) -> dict[str, list[float]]:
    if not path.exists():  # No epoch has ended.
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = [name for name in (rows[0] if rows else {}) if name not in _NO_LOGS]
    return {
        name: [float(row[name]) if row[name] else float("nan") for row in rows] for name in names
    }
