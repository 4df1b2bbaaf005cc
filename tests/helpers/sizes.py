"""How many random examples a test tries: all of them in a nightly run, a quarter otherwise."""

import os


def examples(number):
    """Return how many of `number` examples this run tries."""
    return number if os.environ.get("NIGHTLY") else max(10, number // 4)
