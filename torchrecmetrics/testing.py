"""`check_metric`: test that a metric of your own keeps the promises of every metric in this package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from typing import NamedTuple, cast

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.kept_rows import KeptRows
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.metrics.names import description_of
from torchrecmetrics.metrics.ranking_metric import RankingMetric


class _Rows(NamedTuple):
    scores: Tensor
    target: Tensor
    gains: Tensor
    history: Tensor | None
    """None for metrics that read no history."""

    def at(self, rows: Tensor, device: str = "cpu") -> Scores:
        """Return the input of some rows."""
        scores, target, gains = (column[rows].to(device) for column in (self.scores, self.target, self.gains))
        history = None if self.history is None else self.history[rows].to(device)
        return Scores(scores, target, gains=gains, history=history)


def check_metric(metric: RankingMetric, *, exact_ties: bool = True, max_relevant: int = 3) -> None:
    """Test the promises of a metric on small data with a fixed seed; raise for the first that does not hold.

    The value must be the same for other splits into batches, for two copies whose states are merged, for rows and items
    in another order, after loading a state dict, in a collection with another cut-off, and with rows without a relevant
    item, which are left out. Values of rows must lie within `bounds`. `update` must not read a value of a tensor, which
    would wait for a GPU: it runs on the device "meta", where reading raises.

    Args:
        metric: an instance, whose own state is not touched.
        exact_ties: also compare the value of equal scores with the mean over all their orders. False for a formula that
            reads `ranking.ranks`, where equal scores have their mean rank: its value for ties then differs from the
            mean over all orders, which other metrics of the collection give.
        max_relevant: number of relevant items of a row; 1 for metrics of one rank.

    Raises:
        AssertionError: for the first promise that does not hold, with both values.
        TypeError: for anything but an instance of a metric, such as its class.

    Examples:
        >>> import torchrecmetrics as trm
        >>> from torchrecmetrics.testing import check_metric
        >>> def rank_biased_precision(ranking, k, *, p=0.8):
        ...     return (1 - p) * ranking.sum_hits(lambda rank: p ** (rank - 1), k)
        >>> class RBP(trm.RankingMetric):
        ...     formula = staticmethod(rank_biased_precision)
        >>> check_metric(RBP(10))
    """
    description_of("check_metric", metric)
    num_items = 12 if metric.catalogue is None else metric.catalogue.num_items
    rows = _random_rows(16, num_items, max_relevant, metric.needs.history)
    order = torch.arange(16)
    value = _value(metric, rows, [order])
    _check_equal(f"{metric.label} in batches", _value(metric, rows, [order[:5], order[5:6], order[6:]]), value)
    _check_equal(f"{metric.label} of rows in another order", _value(metric, rows, [order.flip(0)]), value)
    if metric.catalogue is None:  # items of a catalogue have properties of their own
        _check_equal(f"{metric.label} of items in another order", _value(metric, _renumbered(rows), [order]), value)
    _check_states(metric, rows, value)
    if metric._kind == "accuracy":
        extended = [order, torch.full((2,), 15), torch.zeros(0, dtype=torch.int64)]  # row 15 has no relevant item
        if metric.empty_target_action == "skip":
            _check_equal(f"{metric.label} with rows without a relevant item", _value(metric, rows, extended), value)
        _check_bounds(metric, rows)
        if exact_ties and metric.ranking_options.tie_rule == "expected":
            _check_ties(metric, max_relevant)
    _empty_copy(metric).to("meta").update(rows.at(order, "meta"))


def _random_rows(num_rows: int, num_items: int, max_relevant: int, with_history: bool) -> _Rows:
    """Return rows with distinct scores, the last of which has no relevant item."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(num_rows, num_items, generator=generator).argsort(1)
    target = ids[:, :max_relevant].clone()
    target[:, 1:][torch.rand(num_rows, max_relevant - 1, generator=generator) < 0.3] = -1
    target[-1] = -1
    gains = torch.randint(1, 4, target.shape, generator=generator)
    scores = torch.rand(num_rows, num_items, generator=generator)
    return _Rows(scores, target, gains, ids[:, -4:] if with_history else None)


def _renumbered(rows: _Rows) -> _Rows:
    """Return the same rows with the items numbered in reverse."""
    last = rows.scores.shape[1] - 1
    history = None if rows.history is None else last - rows.history
    return _Rows(rows.scores.flip(1), (last - rows.target).where(rows.target >= 0, -1), rows.gains, history)


def _empty_copy(metric: RankingMetric) -> RankingMetric:
    copy = cast(RankingMetric, metric.clone())
    copy.reset()
    return copy


def _value(metric: RankingMetric, rows: _Rows, batches: Sequence[Tensor]) -> float:
    """Return the value of a copy of the metric after these batches."""
    copy = _empty_copy(metric)
    for batch in batches:
        copy.update(rows.at(batch))
    return copy.compute().item()


def _check_equal(name: str, value: float, expected: float) -> None:
    if not math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9) and not (
        math.isnan(value) and math.isnan(expected)
    ):
        raise AssertionError(f"{name} is {value:.6g}, expected {expected:.6g}")


def _check_states(metric: RankingMetric, rows: _Rows, value: float) -> None:
    """Compare merged and loaded states, and a collection with another cut-off, with the metric alone."""
    first, second = _empty_copy(metric), _empty_copy(metric)
    first.update(rows.at(torch.arange(7)))
    second.update(rows.at(torch.arange(7, 16)))
    first.merge_state(second)
    _check_equal(f"{metric.label} of two merged copies", first.compute().item(), value)
    first.persistent(True)
    second.load_state_dict(first.state_dict())
    _check_equal(f"{metric.label} of a loaded state", second.compute().item(), value)
    if metric.k is not None:
        other = type(metric)(metric.k + 1, **metric.options, **_ranking_options(metric))
        collection = RecMetricCollection({"metric": _empty_copy(metric), "other": other})
        collection.update(rows.at(torch.arange(16)))
        _check_equal(f"{metric.label} in a collection with {other.label}", collection.compute()["metric"].item(), value)


def _ranking_options(metric: RankingMetric) -> dict[str, object]:
    """Return the keywords that all metrics of a collection share."""
    options = {
        name: getattr(metric.ranking_options, name) for name in ("ties", "padding_idx", "overlap", "validate_args")
    }
    catalogue = {} if metric.catalogue is None else {"catalogue": metric.catalogue}
    return {**options, **catalogue, "empty_target_action": metric.empty_target_action}


def _check_bounds(metric: RankingMetric, rows: _Rows) -> None:
    kept = RecMetricCollection([metric], accumulators=[KeptRows()])
    kept.update(rows.at(torch.arange(16)))
    low, high = metric.bounds or (-math.inf, math.inf)
    for value in kept.rows.values[kept.leading.key].tolist():  # NaN: not in the mean
        if value < low - 1e-9 or value > high + 1e-9:
            raise AssertionError(f"{metric.label} of a row is {value}, beyond its bounds {low} to {high}")


def _tied_rows(k: int) -> dict[str, tuple[list[float], list[int]]]:
    """Return rows with ties before, across and behind the cut-off, by description: scores, and the relevant items."""
    higher = [float(score) for score in range(k + 1, 1, -1)]  # k items without ties
    return {
        "scores [2, 1, 1, 1, 0] with item 1 relevant": ([2.0, 1, 1, 1, 0], [1]),
        "5 equal scores with 2 relevant": ([1.0] * 5, [0, 3]),
        "scores [0, 0, 0, 3, 3] with items 2 and 4 relevant": ([0.0, 0, 0, 3, 3], [2, 4]),
        f"{2 * k + 1} equal scores with 1 relevant": ([1.0] * (2 * k + 1), [0]),
        f"4 equal scores from rank {k} with 2 relevant": ([*higher[1:], *[1.0] * 4, 0.0], [k - 1, k]),
        f"3 equal scores from rank {k + 1} with 1 relevant": ([*higher, *[1.0] * 3], [k]),
    }


def _check_ties(metric: RankingMetric, max_relevant: int) -> None:
    """Compare the value of equal scores with the mean over all their orders, each a row without ties."""
    for description, (scores, relevant) in _tied_rows(metric.k or 5).items():
        if metric.catalogue is not None and len(scores) > metric.catalogue.num_items:
            continue
        target = relevant[:max_relevant]
        places = torch.tensor(_places(scores, target))
        tied, ordered = _empty_copy(metric), _empty_copy(metric)
        tied.update(torch.tensor([scores]), torch.tensor([target]))
        ordered.update(-torch.arange(len(scores)).float().expand(len(places), -1), places)
        value, expected = tied.compute().item(), ordered.compute().item()
        try:
            _check_equal(f"{metric.label} of {description}", value, expected)
        except AssertionError as error:
            raise AssertionError(
                f"{error}, the mean over all orders of equal scores: any_hit, num_hits, sum_hits, reciprocal_first, "
                "sum_of_precisions and their sums are such means; ranks, and thresholds or products of these, are not. "
                "exact_ties=False allows it"
            ) from None


def _places(scores: Sequence[float], relevant: Sequence[int]) -> list[list[int]]:
    """Return the places of the relevant items, best first from 0, in each order of equal scores."""
    choices = []
    for score in sorted(set(scores), reverse=True):
        number = sum(scores[item] == score for item in relevant)
        first = sum(other > score for other in scores)
        choices.append(combinations(range(first, first + scores.count(score)), number))
    return [[place for group in order for place in group] for order in product(*choices)]
