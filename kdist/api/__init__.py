"""kdist from Python, notebooks included: `kdist.fit` trains as the command line does."""

from kdist.api.fitting import fit
from kdist.api.result import Result

__all__ = ["Result", "fit"]
