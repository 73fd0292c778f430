"""One Keras 3 model, one command, every way TensorFlow can distribute it.

Importing this package imports neither TensorFlow nor Hydra: `fit` and `Result` are looked up
when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdist.api import Result, fit  # pyright: ignore

from kdist.version import __version__

__all__ = ["Result", "__version__", "fit"]


def __getattr__(name: str) -> Any:
    """Return `fit` or `Result` from `kdist.api`, imported on first use."""
    if name in ("fit", "Result"):
        import kdist.api

        return getattr(kdist.api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, the lazily imported ones included."""
    return sorted(__all__)
