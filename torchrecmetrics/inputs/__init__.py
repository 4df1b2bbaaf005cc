"""Inputs of `update`: one class per kind of data, which makes a `Ranking`; questions about odd data."""
