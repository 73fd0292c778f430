"""Searches: Keras Tuner's oracles choose values, and every trial is a run of its own.

The launcher's side (`request`, `trials`, `journal`, `role`) imports no TensorFlow; the search
itself is a task process, since keras_tuner does.
"""
