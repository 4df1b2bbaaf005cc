"""Evaluation of models over a whole catalogue: `evaluate` and `recommend`."""
