"""Results of compute, evaluate and Trainers as numbers to compare."""

import pytest


def numbers(values):
    return {key: value.item() for key, value in values.items()}


def near(values, tolerance=1e-12):
    """Return values that compare equal to others within the tolerance."""
    return {key: pytest.approx(value, abs=tolerance) for key, value in numbers(values).items()}
