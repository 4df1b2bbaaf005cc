"""`differences`: per-row differences of two runs, with counts of wins and losses and a histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from torchrecmetrics.analysis.pairing import Paired, Runs
from torchrecmetrics.analysis.plots import Drawn, draw_histogram
from torchrecmetrics.core.checks import check_k, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Differences:
    """Per-row differences of two runs; `plot` draws their histogram."""

    label: str
    run: str
    against: str
    values: Tensor
    """Values of `run` minus those of `against`, float64 [n], over the rows that are defined in both runs."""

    @property
    def wins(self) -> int:
        """Number of rows in which `run` has the higher value, as in `compare`."""
        return int((self.values > 0).sum())

    @property
    def ties(self) -> int:
        """Number of rows with equal values."""
        return int((self.values == 0).sum())

    @property
    def losses(self) -> int:
        """Number of rows in which `run` has the lower value."""
        return int((self.values < 0).sum())

    def __repr__(self) -> str:
        counts = f"{self.wins} won, {self.ties} tied, {self.losses} lost"
        return f"Differences({self.label}, {self.run} - {self.against}: {counts})"

    def plot(self, ax: Axes | None = None, bins: int = 20) -> Drawn:
        """Draw a histogram of the differences above and below 0; the share of equal rows is in the legend only.

        Args:
            ax: matplotlib axes; None = a new figure.
            bins: number of bins on each side of 0.

        Returns:
            Figure and axes.

        Raises:
            ImportError: without matplotlib.
            ValueError: for fewer than one bin.
        """
        bins, rows = check_k(bins, "bins"), len(self.values)
        shares = [f"{number / rows:.1%}" if rows else "0 rows" for number in (self.wins, self.ties, self.losses)]
        sides = (f"{self.run} better: {shares[0]}", f"equal: {shares[1]}", f"{self.against} better: {shares[2]}")
        name = f"{self.label}, {self.run} - {self.against}"
        return draw_histogram(self.values.tolist(), sides, name, bins, ax)


def differences(runs: Runs, label: str) -> Differences:
    """Return the per-row differences of two runs: the second run minus the first.

    Args:
        runs: two runs, in the form that `compare` takes; several runs of one name are averaged row by row.
        label: label of the metric.

    Raises:
        TypeError: for runs that are no `Rows`.
        ValueError: for other than two runs, an unknown label, infinite values, and runs that do not pair as in
            `compare`.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> ids = torch.arange(50)
        >>> pop, gcn = (trm.Rows({"HR@10": (ids % n == 0).double()}, ids) for n in (4, 3))
        >>> trm.differences({"pop": pop, "gcn": gcn}, "HR@10")
        Differences(HR@10, gcn - pop: 12 won, 30 tied, 8 lost)
    """
    paired = Paired(runs)
    if len(paired.runs) != 2:
        raise ValueError(f"differences are those of two runs, got {len(paired.runs)}: {', '.join(paired.runs)}")
    if label not in paired.labels:
        raise ValueError(f"no label {label!r}{nearest(str(label), paired.labels)}")
    paired.check_finite([label])
    against, run = paired.runs
    return Differences(label, run, against, paired.differences((run, against), label))
