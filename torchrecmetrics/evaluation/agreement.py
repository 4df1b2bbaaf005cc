"""`agreement`: compare the lists of two runs by overlap, rank-biased overlap and churn, with intervals.

The second list of a user is the ground truth of the first, and the gain of an item is its rank in the second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_device, warn_caller
from torchrecmetrics.core.checks import check_ids as check_item_ids
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.sides import ListEntries, Side, ask, check_ids, entries_of, numbered_sides, opened
from torchrecmetrics.inputs.lists import Lists
from torchrecmetrics.metrics.of_lists import ListMetric
from torchrecmetrics.results.evaluation import Evaluation
from torchrecmetrics.tables.table import SAID_BY_TABLES, Table, column_option
from torchrecmetrics.tables.vocabulary import Vocabulary

_NAMES = ("lists_a", "lists_b")
_ROWS = 2**16
"""Number of lists that are compared at once."""


class _OfTwoLists(ListMetric, bounds=(0.0, 1.0), reads_target=True):
    """Base class of metrics of two lists: the mean over users who have both."""


def overlap(ranking: Ranking, k: int) -> Tensor:
    """Return the number of common items in the first `k` ranks / the length of the longer list, at most `k`: [B]."""
    common, shorter, longer = _common(ranking, k)
    return (common[:, -1] / longer).masked_fill(shorter == 0, torch.nan)


class Overlap(_OfTwoLists, formula=overlap):
    """Overlap at k: see `agreement`."""


class Churn(_OfTwoLists, formula=lambda ranking, k: 1 - overlap(ranking, k), higher_is_better=False):
    """Churn at k, 1 - overlap: see `agreement`."""


def rank_biased_overlap(ranking: Ranking, k: int, *, p: float = 0.9) -> Tensor:
    """Return the extrapolated rank-biased overlap of the first `k` ranks: [B].

    (1 - p) times the sum over all depths d of p^(d - 1) A_d, where A_d is the share of common items among the first d.
    Beyond the end of the shorter list, s, its unknown items are assumed to agree as often as its known ones: A_d = (X_d
    + X_s (d - s) / s) / d with X_d common items. Beyond the end of the longer list, A_d stays the same.
    """
    common, shorter, longer = _common(ranking, k)
    depth = torch.arange(1, k + 1, dtype=common.dtype, device=common.device)
    known = shorter.clamp(min=1)[:, None]
    unknown = common.gather(1, known - 1) * (depth - known).clamp(min=0) / known
    last = longer.clamp(min=1)[:, None]
    shares = ((common + unknown) / depth).gather(1, torch.minimum(depth.long(), last) - 1)
    value = (1 - p) * (shares * p ** (depth - 1)).sum(1) + p**k * shares[:, -1]
    return value.masked_fill(shorter == 0, torch.nan)


class RBO(_OfTwoLists, formula=rank_biased_overlap):
    """Rank-biased overlap at k: see `agreement`."""


def _common(ranking: Ranking, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of items that both lists hold in their first 1, 2, ..., k ranks, float64 [B, k], and the
    lengths of the shorter and of the longer list, at most k, int64 [B].
    """
    ranks_b = torch.ones_like(ranking.ranks) if ranking.gains is None else ranking.gains.to(ranking.ranks.dtype)
    first_depth = torch.maximum(ranking.ranks, ranks_b).clamp(1, k + 1)  # k + 1 = not in the first k of both
    number = torch.zeros(len(first_depth), k + 1, dtype=first_depth.dtype, device=first_depth.device)
    number.scatter_add_(1, first_depth.long() - 1, torch.ones_like(first_depth))
    lengths = torch.stack([(ranking.items[:, :k] >= 0).sum(1), ranking.num_relevant.clamp(max=k).long()])
    shorter, longer = lengths.aminmax(dim=0)
    return number[:, :k].cumsum(1), shorter, longer


def agreement_metrics(k: int | Iterable[int] = 10, p: float = 0.9) -> RecMetricCollection:
    """Return an empty collection of the metrics of `agreement`; raises the same errors for `k` and `p`."""
    if isinstance(p, bool) or not isinstance(p, Real) or not 0 < p < 1:
        raise ValueError(f"p, the probability of going on to the next rank, must be between 0 and 1, got {p!r}")
    cutoffs = k if isinstance(k, Iterable) else [k]
    return RecMetricCollection([made for n in cutoffs for made in (Overlap(n), RBO(n, p=p), Churn(n))])


@torch.no_grad()
def agreement(
    lists_a: Any,
    lists_b: Any,
    k: int | Iterable[int] = 10,
    *,
    p: float = 0.9,
    **columns: Any,
) -> Evaluation:
    """Compare the lists of two runs for the same users, without a ground truth: means over users from 0 to 1.

    - `Overlap@k`: common items in the first `k` ranks / k, or the length of the longer list if both are shorter;
    - `RBO@k`: rank-biased overlap, which weighs the first ranks most, extrapolated from the first `k` (RBO_ext, also
      for lists of different lengths): (1 - p) times the sum over all depths d of p^(d - 1) times the share of common
      items among the first d, which stays the same beyond the lists' ends;
    - `Churn@k`: 1 - overlap, the share of the list that is new.

    Args:
        lists_a: lists of one run: item ids [B, K], best first, padded with -1, one row per user; or any form that
            `evaluate_lists` takes, matched by user and item ids, where equal scores are ordered by id.
        lists_b: lists of the other run, in rows of the same users, or with ids.
        k: cut-off or cut-offs.
        p: probability of going on from a rank to the next in RBO: .9 gives the first 10 ranks 86 % of the weight.
        columns: refused: name the columns of lists with a `Table`.

    Users with a list in only one run are left out, with a warning.

    Raises:
        TypeError: if only one of the two is a tensor, and as in `evaluate_lists`.
        ValueError: for a list that repeats an item, unequal numbers of rows, no user with two lists, `p` not between
            0 and 1, and as in `evaluate_lists`.

    Source: Webber, Moffat & Zobel, A similarity measure for indefinite rankings, ACM TOIS 2010, equation 32.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> before = torch.tensor([[7, 3, 9], [4, 8, 5]])
        >>> after = torch.tensor([[7, 9, 2], [4, 8, 5]])
        >>> print(trm.agreement(before, after, k=3))
        Overlap@3  0.8333 ± 0.1667
        RBO@3      0.8425 ± 0.1575
        Churn@3    0.1667 ± 0.1667
        2 users
        ± standard error; no interval for fewer than 10 users
    """
    if columns.keys() & SAID_BY_TABLES:
        raise column_option("agreement", columns)
    collection = agreement_metrics(k, p)
    collection.evaluator.set_sync_on_compute(False)
    width = max(metric.k or 1 for metric in collection.metrics.values())
    if isinstance(lists_a, Tensor) and isinstance(lists_b, Tensor):
        collection.to(lists_a.device)
        return _compared(collection, _of_tensors(lists_a, lists_b, width), "row {}".format)
    runs, user_ids = _read_runs([opened(name, lists) for name, lists in zip(_NAMES, (lists_a, lists_b), strict=True)])
    return _compared(collection, _of_runs(runs, width), lambda row: f"user {user_ids[row]!r}")


def _read_runs(runs: Sequence[Any]) -> tuple[list[RankedLists], Vocabulary]:
    """Return the lists of both runs with one numbering, and the ids of their users."""
    ask(*(lists.question("order") for lists in runs if isinstance(lists, Table)))
    sources = [entries_of(lists) for lists in runs]
    of_runs = [entries if isinstance(lists, Table) else lists for lists, entries in zip(runs, sources, strict=True)]
    check_ids(dict(zip(_NAMES, of_runs, strict=True)))
    sides = [Side(name, source, source.written) for name, source in zip(_NAMES, sources, strict=True)]
    users, items = numbered_sides("user", sides), numbered_sides("item", sides)
    everyone = torch.ones(len(users.ids), dtype=torch.bool, device="cpu")
    entries = map(ListEntries.of, sources, users.rows, items.rows)
    return [RankedLists.of(of_run, everyone, users.ids) for of_run in entries], users.ids


def _of_tensors(lists_a: Tensor, lists_b: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `width` items of both lists of the same rows, int64 [b, <= width], in chunks of rows."""
    for name, lists in {"lists_a": lists_a, "lists_b": lists_b}.items():
        check_item_ids(name, lists)
        if lists.dim() != 2 or not lists.numel():
            raise ValueError(f"{name} must be item ids [B, K], best first, got shape {[*lists.shape]}")
    check_device("lists_b", lists_b, lists_a.device)
    if len(lists_a) != len(lists_b):
        raise ValueError(f"lists_a has {len(lists_a)} rows, lists_b {len(lists_b)}: a row is one user in both")
    for start in range(0, len(lists_a), _ROWS):
        rows = slice(start, start + _ROWS)
        yield _without_gaps(lists_a[rows], width), _without_gaps(lists_b[rows], width)


def _without_gaps(lists: Tensor, width: int) -> Tensor:
    """Return the first `width` items of each list, int64 [b, <= width], padded at the end."""
    order = (lists < 0).sort(dim=1, stable=True).indices
    return lists.gather(1, order[:, :width]).long()


def _of_runs(runs: Sequence[RankedLists], width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `width` items of both lists of the same users, int64 [b, width], in chunks of users."""
    num_users = len(runs[0].lengths)
    for start in range(0, num_users, _ROWS):
        users = torch.arange(start, min(start + _ROWS, num_users), device="cpu")
        yield runs[0].select(users, width)[0], runs[1].select(users, width)[0]


def _compared(
    collection: RecMetricCollection, pairs: Iterable[tuple[Tensor, Tensor]], called: Callable[[int], str]
) -> Evaluation:
    """Return the metrics of pairs of lists; `called` names a row in messages."""
    num_rows = num_any = num_both = 0
    lone_users: dict[str, str] = {}
    for pair in pairs:
        for name, lists in zip(_NAMES, pair, strict=True):
            ordered = lists.sort(1).values
            again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
            if bool(again.any()):
                row = num_rows + int(again.nonzero()[0])
                raise ValueError(f"{name} holds an item twice in the list of {called(row)}")
        in_a, in_b = (lists >= 0 for lists in pair)
        has_a, has_b = in_a.any(1), in_b.any(1)
        for name, alone in zip(_NAMES, (has_a & ~has_b, has_b & ~has_a), strict=True):
            if name not in lone_users and bool(alone.any()):
                lone_users[name] = called(num_rows + int(alone.nonzero()[0]))
        num_rows += len(has_a)
        num_any += int((has_a | has_b).sum())
        num_both += int((has_a & has_b).sum())
        collection.update(Lists(*pair, gains=in_b.cumsum(1).where(in_b, 0), complete=True))
    such = " and ".join(f"{user} of {name}" for name, user in lone_users.items())
    if not num_both:
        raise ValueError(f"none of {num_any} users has a list in both runs, such as {such}: are these ids of one kind?")
    if num_both < num_any:
        warn_caller(
            f"{num_any - num_both} of {num_any} users have a list in only one run, and are left out, such as {such}"
        )
    return collection.result()
