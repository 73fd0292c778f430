"""Built-in data functions, each a `data._target_`."""
