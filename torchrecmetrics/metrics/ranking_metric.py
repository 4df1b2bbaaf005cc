"""`RankingMetric`: base class of all metrics, a torchmetrics Metric of one `Description`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from torchrecmetrics.core.result import LastResult, Result
from torchrecmetrics.metrics.description import Description
from torchrecmetrics.metrics.evaluator import Evaluator, outside_graphs
from torchrecmetrics.metrics.signature import TORCHMETRICS_OPTIONS

if TYPE_CHECKING:
    from torchrecmetrics.results.evaluation import Evaluation


class RankingMetric(Description, LastResult, Evaluator):
    """Weighted mean over rows of a function of their `Ranking`; base class of all metrics of this package.

    A row is one ranking: a user, a session, an event. A call that raises leaves the metric as it was. Values are
    checked at once on the CPU; elsewhere `update` does not wait for the device, and `compute` raises. `forward` returns
    the value of its batch, so it waits for the device, and raises at once, on this process only.

    Args:
        k: cut-off, >= 1: number of ranks that count.
        options: options of the formula, and keywords that every metric has:

            - `ties`: "expected" (mean over orders of equal scores; default), "realistic", "optimistic", "pessimistic";
            - `padding_idx`: item id that is padding in target and exclude, and never a candidate;
            - `overlap`: meaning of a relevant item that is also excluded: "error" (default), "keep" or "miss";
            - `empty_target_action`: rows without a relevant item are left out ("skip", default; torchmetrics' default
              is "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error";
            - `max_relevant`: maximum number of relevant items per row; with it, dense and jagged targets need no host
              sync;
            - `validate_args`: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value
              checks);
            - `kernels`: "auto" (default), "eager" or "triton"; "triton" counts scores on CUDA;
            - `catalogue`: a `Catalogue` of the items, for metrics beyond accuracy and formulas with that parameter;
            - torchmetrics' own, such as `sync_on_compute`.

    **A metric of your own** is a subclass with a `formula`: a function of a `Ranking`, a cut-off and options, that
    returns one value per row, [B]. It sees the first `k` ranks only: relevant items below them have rank `inf`. Without
    `k` it sees the whole ranking. Options and their defaults are those of its signature; the label shows options that
    are not the default. Rows without a relevant item follow `empty_target_action`; other rows whose value is NaN are
    left out of the mean. Neither `formula` nor `weights` may write into the ranking's tensors. `ListMetric` is the base
    for metrics of the lists themselves, `ItemCountMetric` for metrics of the number of lists that hold each item.

    Attributes:
        formula: function of a `Ranking`, a cut-off and options.
        weights: a function of the ranking, or of the ranking and `k`, that returns row weights, [B], >= 0, which
            multiply the weights of `update`; None = all 1.
        many_cutoffs: True if `k` may be a list of K cut-offs, with a result [K, B], and the ranking may be deeper
            than the last cut-off; else the formula is called once per cut-off.
        higher_is_better: False lets callbacks monitor the metric with `mode="min"`.
        bounds: lowest and highest value; None or infinite = unknown.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def rank_biased_precision(ranking, k, *, p=0.8):
        ...     return (1 - p) * ranking.sum_hits(lambda rank: p ** (rank - 1), k)
        >>> class RBP(trm.RankingMetric):
        ...     formula = staticmethod(rank_biased_precision)
        >>> metric = RBP(10, p=0.5)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 1]]))
        >>> metric.label, metric.compute()  # 0.5 * (1 + 0.5)
        ('RBP-p0_5@10', tensor(0.7500, dtype=torch.float64))
    """

    def __init__(self, k: int | None = None, **options: Any) -> None:
        self._check_signature(options)
        super().__init__(**{name: value for name, value in options.items() if name in TORCHMETRICS_OPTIONS})
        self._describe(k, options)
        self._begin({self.label: self}, self._fingerprint)

    def _stored_result(self) -> Result | None:
        return self._last_results.get(self.label)

    @outside_graphs
    def forward(self, scores: Any = None, target: Any = None, **arguments: Any) -> Tensor:
        """Add a batch and return its own value; takes the arguments of `update` and waits for the device."""
        value: Tensor = super().forward(scores, target, **arguments)[self.label]
        self._forward_cache = self._batch_values[self.label]
        return value

    def compute(self) -> Tensor:
        """Return the value over all processes; NaN and a warning if there was no row.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        value: Tensor = super().compute()[self.label]
        return value

    def result(self) -> Evaluation:
        """Return the value with its interval and counts, as a collection does; all processes must call it.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> metric = trm.MRR(3)
            >>> scores = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5]])
            >>> metric.update(scores, torch.tensor([1, 2]))
            >>> print(metric.result())
            MRR@3  0.7500 ± 0.2500
            2 users
            ± standard error; no interval for fewer than 10 users
        """
        from torchrecmetrics.results.evaluation import Evaluation  # metrics themselves need no tables

        result = self._compute_results()[self.label]
        return Evaluation([result], result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


class CountedMetric(RankingMetric):
    """Base class of metrics that are not means over rows, but computed from counts over all rows; see `Counted`."""

    _is_of_items: ClassVar[bool] = True
