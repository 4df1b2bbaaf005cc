"""Accumulators: groups, windows, kept rows, and the base class of your own."""
