"""Plans, starts and supervises task processes. Imports no TensorFlow."""
