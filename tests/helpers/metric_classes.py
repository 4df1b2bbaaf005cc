"""Classes of all metrics, from the package's own lists, and the plain Python of their formulas."""

import inspect

import pytest
import reference

import torchrecmetrics as trm


def classes_of(module):
    """Return the metric classes of a module, once each: `HR` is `HitRate`."""
    return list(dict.fromkeys(getattr(module, name) for name in module.__all__))


ACCURACY = classes_of(trm.metrics.accuracy)
RANK = classes_of(trm.metrics.one_rank)


def cutoffs_of(formula, k):
    """Return the arguments behind the ranking that a formula takes: (k,), () for the whole ranking, or either."""
    parameter = inspect.signature(formula).parameters.get("k")
    if parameter is None:
        return [()]
    return [(k,)] if parameter.default is parameter.empty else [(k,), ()]


def reference_of(formula):
    """Return the function of tests/helpers/reference.py that has the name of the formula, over all orders of ties."""
    name = formula.__name__
    function = getattr(reference, name, None)
    if not hasattr(function, "__wrapped__"):  # as decorated; without, it would read mean ranks of equal scores
        pytest.fail(
            f"tests/helpers/reference.py needs {name}(user, ...), decorated by @over_orders: the value of one user in "
            "plain Python, with the formula's cut-off and defaults"
        )
    return function
