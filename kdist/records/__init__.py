"""What a run leaves behind: run folder, events, result. Imports no TensorFlow."""
