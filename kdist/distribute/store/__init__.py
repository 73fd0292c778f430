"""The store of the synchronous modes, and the optimizer clones that every store updates by."""
