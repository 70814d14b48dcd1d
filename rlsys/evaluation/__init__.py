"""Evaluation of a model on many sets of problems: `rlsys eval sets` and `rlsys eval compare`."""
