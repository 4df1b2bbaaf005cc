"""All states of a metric or collection, those of its accumulators included."""

import torch


def evaluator_of(metric):
    """Return what holds the states: a collection's evaluator, or the metric itself."""
    return getattr(metric, "evaluator", metric)


def states(metric):
    """Return all states, tensors or lists, by the number of their owner and their name."""
    evaluator = evaluator_of(metric)
    owners = [evaluator, *evaluator.accumulators]
    return {(at, name): getattr(owner, name) for at, owner in enumerate(owners) for name in owner._defaults}


def tensors(metric):
    """Return the tensors of all states."""
    values = states(metric).values()
    return [tensor for value in values for tensor in (value if isinstance(value, list) else [value])]


def snapshot(metric):
    """Return copies of all states, and the numbers that accumulators keep beside them."""
    evaluator = evaluator_of(metric)
    copies = {
        key: [part.clone() for part in value] if isinstance(value, list) else value.clone()
        for key, value in states(metric).items()
    }
    numbers = [
        {name: value for name, value in vars(owner).items() if name in ("num_updates", "_slots")}
        for owner in evaluator.accumulators
    ]
    return copies, [{**each} for each in numbers], evaluator._update_count


def same(one, other):
    """Return True if two snapshots are equal, bit by bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.shape == other.shape and equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def equal(one, other):
    """Return True if all entries are equal; NaN equals NaN."""
    return one.dtype == other.dtype and bool(((one == other) | ((one != one) & (other != other))).all())
