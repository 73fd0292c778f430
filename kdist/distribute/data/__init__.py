"""Data: global batches by index, and each worker's block of them."""

from kdist.distribute.data.array_source import ArraySource
from kdist.distribute.data.make import make_source
from kdist.distribute.data.source import BatchSource, DataSettings

__all__ = ["ArraySource", "BatchSource", "DataSettings", "make_source"]
