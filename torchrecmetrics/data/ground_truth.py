"""`GroundTruth`: relevant, excluded and earlier items of users with the same row numbers, and batches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from torchrecmetrics.data.exclusions import Exclusions
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.exclude import Exclude


class Batch(NamedTuple):
    """Users of a batch, with their items."""

    users: Tensor
    """Row numbers, int64 [b] on the host."""
    target: SelectedItems
    exclude: Exclude | None
    history: Tensor | None
    """Earlier items of the users, int64 [b, H], -1 = padding; None = no metric reads them."""


class GroundTruth(NamedTuple):
    """Ground truth, exclusions and earlier items, on one device and with the row numbers of the ground truth."""

    target: Interactions
    exclusions: Exclusions
    past: Interactions | None
    """Earlier items of the users; None = no metric reads them."""

    def num_entries(self) -> Tensor:
        """Return the number of relevant, excluded and earlier items of every user, int64 [U] on the host."""
        number = self.exclusions.lengths(self.target.host_degree)
        return number if self.past is None else number + self.past.host_degree

    def batch(self, users: Tensor) -> Batch:
        """Return a batch of users with their items."""
        past = None if self.past is None else self.past.select(users).items
        return Batch(users, self.target.select(users), self.exclusions.select(users), past)


def largest_batch(sizes: Tensor, most: int, fits: Callable[[int, int], bool]) -> int:
    """Return the size of the largest batch that fits, at least 1.

    Args:
        sizes: sizes of the users that are left, ascending, int64 [n] on the host; the last user of a batch is its
            largest.
        most: largest batch that is tried.
        fits: function of a number of users and of the largest size among them.
    """
    low, high = 1, min(most, len(sizes))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle, int(sizes[middle - 1])) else (low, middle - 1)
    return low
