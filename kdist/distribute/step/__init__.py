"""One step of training as graph code, the same for every mode: pull, compute, reduce, apply."""
