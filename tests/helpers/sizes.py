"""Number of random examples that a test tries: all in a nightly run, otherwise a quarter and at least 10."""

import os


def examples(number):
    """Return how many of `number` examples this run tries."""
    return number if os.environ.get("NIGHTLY") else max(10, number // 4)
