"""The engine: strategies, parameter store, inner loops, data. TensorFlow starts here."""
