"""Built-in data functions, each a `data._target_`."""

from kdist.datasets.digits import digits

__all__ = ["digits"]
