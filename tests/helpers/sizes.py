"""Sizes of tests: a nightly run tries everything, another one a part of it."""

import os

NIGHTLY = "NIGHTLY" in os.environ


def examples(number):
    """Return how many of `number` random examples this run tries: in a nightly run all, else a quarter, at least 10."""
    return number if NIGHTLY else max(10, number // 4)
