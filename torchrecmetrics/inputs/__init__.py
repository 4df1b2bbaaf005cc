"""Inputs of `update`: each kind of data makes a `Ranking`."""
