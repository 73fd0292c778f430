"""The outer loop, callbacks and saving."""
