"""Built-in model functions, each a `model._target_`."""
