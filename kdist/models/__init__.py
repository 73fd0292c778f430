"""Built-in model functions, each a `model._target_`."""

from kdist.models.cnn import cnn
from kdist.models.mlp import mlp

__all__ = ["cnn", "mlp"]
