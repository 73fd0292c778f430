"""The configuration: schema, cross-field rules, targets by name. Imports no TensorFlow."""
