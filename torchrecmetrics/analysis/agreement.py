"""`agreement`: how far two runs recommend the same lists, as overlap, rank-biased overlap and churn with intervals.

The second list of a user is the ground truth of the first, and the gain of an item is its rank in the second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import EllipsisType
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.beyond.list_metric import ListMetric
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_device, check_ids, warn_caller
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.signature import Formula
from torchrecmetrics.data.files import open_if_path
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.listed import IdMap, Names, RecommendedLists
from torchrecmetrics.inputs.lists import Lists
from torchrecmetrics.result import Evaluation

_ROWS = 2**16
"""Number of lists that are compared at once."""


def _common(ranking: Ranking, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of items that both lists hold in their first 1, 2, ..., k ranks, float64 [B, k], and the
    lengths of the shorter and of the longer list, at most k, int64 [B].
    """
    ranks_b = torch.ones_like(ranking.ranks) if ranking.gains is None else ranking.gains.to(ranking.ranks.dtype)
    rank_in_both = torch.maximum(ranking.ranks, ranks_b)
    first_depth = rank_in_both.clamp(1, k + 1).long() - 1  # k = not in the first k of both
    number = torch.zeros(len(first_depth), k + 1, dtype=ranking.ranks.dtype, device=first_depth.device)
    number.scatter_add_(1, first_depth, torch.ones_like(rank_in_both))
    lengths = torch.stack([(ranking.items[:, :k] >= 0).sum(1), ranking.num_relevant.clamp(max=k).long()])
    shorter, longer = lengths.aminmax(dim=0)
    return number[:, :k].cumsum(1), shorter, longer


def overlap(ranking: Ranking, k: int) -> Tensor:
    """Return the number of common items in the first `k` ranks / the length of the longer list, at most `k`: [B]."""
    common, shorter, longer = _common(ranking, k)
    return (common[:, -1] / longer).masked_fill(shorter == 0, torch.nan)


def churn(ranking: Ranking, k: int) -> Tensor:
    """Return 1 - `overlap`: [B]."""
    return 1 - overlap(ranking, k)


def rank_biased_overlap(ranking: Ranking, k: int, *, p: float = 0.9) -> Tensor:
    """Return the extrapolated rank-biased overlap of the first `k` ranks: [B].

    (1 - p) times the sum over all depths d of p^(d - 1) A_d, where A_d is the share of common items among the first d.
    Behind the end of the shorter list, s, its unknown items are taken to agree as its known ones do, A_d = (X_d + X_s
    (d - s) / s) / d with X_d common items; behind the end of the longer list A_d stays the same.
    """
    common, shorter, longer = _common(ranking, k)
    depth = torch.arange(1, k + 1, dtype=common.dtype, device=common.device)
    known = shorter.clamp(min=1)[:, None]
    unknown = common.gather(1, known - 1) * (depth - known).clamp(min=0) / known
    shares = (common + unknown) / depth
    last = longer.clamp(min=1)[:, None] - 1
    shares = shares.gather(1, torch.minimum(depth.long() - 1, last))
    value = (1 - p) * (shares * p ** (depth - 1)).sum(1) + p**k * shares[:, -1]
    return value.masked_fill(shorter == 0, torch.nan)


class _OfTwoLists(ListMetric):
    """Base class of metrics of two lists, the second of which is the target, with ranks as gains."""

    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    reads_target: ClassVar[bool] = True


class Overlap(_OfTwoLists):
    """Overlap at k: mean over users of `overlap`."""

    formula: ClassVar[Formula] = staticmethod(overlap)


class RBO(_OfTwoLists):
    """Rank-biased overlap at k: mean over users of `rank_biased_overlap`."""

    formula: ClassVar[Formula] = staticmethod(rank_biased_overlap)


class Churn(_OfTwoLists):
    """Churn at k: mean over users of `churn`."""

    formula: ClassVar[Formula] = staticmethod(churn)
    higher_is_better: bool | None = False


def agreement_metrics(k: int | Iterable[int] = 10, p: float = 0.9) -> RecMetricCollection:
    """Return an empty collection of overlap, rank-biased overlap and churn at the cut-offs.

    Raises:
        ValueError: for `p` that is not between 0 and 1, and for a cut-off below 1.
    """
    if isinstance(p, bool) or not 0 < p < 1:
        raise ValueError(f"p, the probability to go on to the next rank, must be between 0 and 1, got {p!r}")
    cutoffs = k if isinstance(k, Iterable) else [k]
    return RecMetricCollection(
        [made for cutoff in cutoffs for made in (Overlap(cutoff), RBO(cutoff, p=p), Churn(cutoff))]
    )


@torch.no_grad()
def agreement(
    lists_a: Any,
    lists_b: Any,
    k: int | Iterable[int] = 10,
    *,
    p: float = 0.9,
    user: str = "user",
    item: str = "item",
    rank: str | EllipsisType | None = ...,
    score: str | EllipsisType | None = ...,
    split: str | None = None,
) -> Evaluation:
    """Compare the lists of two runs for the same users, without a ground truth.

    All values are means over users, with standard errors and intervals as `evaluate` gives them; range 0 to 1:

    - `Overlap@k`: common items in the first `k` ranks / k, or / the length of the longer list if both are shorter;
    - `RBO@k`: rank-biased overlap, which weighs the first ranks most, extrapolated from the first `k` (RBO_ext, also
      for lists of different lengths): (1 - p) times the sum over all depths d of p^(d - 1) times the share of common
      items among the first d, which stays the same behind the lists' ends;
    - `Churn@k`: 1 - overlap, the share of the list that is new.

    Args:
        lists_a: lists of one run: item ids [B, K], best first, short lists padded with -1, whose rows are users; or any
            form that `evaluate_lists` takes, matched by user and item ids.
        lists_b: lists of the other run, in rows of the same users, or with ids.
        k: cut-off or cut-offs.
        p: probability to go on from a rank to the next in RBO, between 0 and 1: .9 gives the first 10 ranks 86 % of the
            weight.
        user: name of the column of users in both tables.
        item: name of the column of items in both tables.
        rank: as in `evaluate_lists`.
        score: as in `evaluate_lists`; equal scores are in the order of their ids.
        split: as in `evaluate_lists`.

    Users with a list in one run alone are left out, with a warning.

    Raises:
        TypeError: for tensors beside other forms, and as in `evaluate_lists`.
        ValueError: for a list that holds an item twice, other numbers of rows, no user with two lists, `p` out of
            range, and as in `evaluate_lists`.

    Source: Webber, Moffat & Zobel, A similarity measure for indefinite rankings, ACM TOIS 28, 2010 (RBO_ext: equation
    32).

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
    collection = agreement_metrics(k, p)
    width = max(metric.k or 1 for metric in collection.metrics.values())
    if isinstance(lists_a, Tensor) and isinstance(lists_b, Tensor):
        collection.to(lists_a.device)
        return _compared(collection, _of_tensors(lists_a, lists_b, width), "row {}".format)
    if isinstance(lists_a, Tensor) or isinstance(lists_b, Tensor):
        raise TypeError(
            "one of the lists is a tensor, whose rows have no ids: pass (lists, users) of it, or two tensors"
        )
    names = Names(user, item, None if rank is ... else rank, None if score is ... else score, split)
    users, items = (IdMap(name, Vocabulary([]), 0, owner="lists_a") for name in ("user", "item"))
    in_order = rank is None or score is None
    runs = [
        RecommendedLists.read(open_if_path(lists), names, users, items, None, in_order, False)
        for lists in (lists_a, lists_b)
    ]
    return _compared(collection, _of_runs(runs, width), lambda row: f"user {users.called(row)}")


def _of_tensors(lists_a: Tensor, lists_b: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `width` items of both lists of the same rows, int64 [b, <= width], for rows at a time."""
    for name, lists in {"lists_a": lists_a, "lists_b": lists_b}.items():
        check_ids(name, lists)
        if lists.dim() != 2 or not lists.numel():
            raise ValueError(f"{name} must be item ids [B, K], best first, got shape {[*lists.shape]}")
    check_device("lists_b", lists_b, lists_a.device)
    if len(lists_a) != len(lists_b):
        raise ValueError(f"lists_a has {len(lists_a)} rows, lists_b {len(lists_b)}: a row is one user in both")
    for start in range(0, len(lists_a), _ROWS):
        rows = slice(start, start + _ROWS)
        yield lists_a[rows, :width].long(), lists_b[rows, :width].long()


def _of_runs(runs: Sequence[RecommendedLists], width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `width` items of both lists of the same users, int64 [b, width], for users at a time."""
    size = len(runs[1].offsets)  # the second run may have more users
    missing = runs[0].offsets[-1:].expand(size - len(runs[0].offsets))
    first = runs[0]._replace(offsets=torch.cat([runs[0].offsets, missing]))
    for start in range(0, size - 1, _ROWS):
        users = torch.arange(start, min(start + _ROWS, size - 1), device="cpu")
        yield first.select(users, width)[0], runs[1].select(users, width)[0]


def _compared(
    collection: RecMetricCollection, pairs: Iterable[tuple[Tensor, Tensor]], called: Callable[[int], str]
) -> Evaluation:
    """Return the metrics of pairs of lists; `called` names a row in messages."""
    num_rows = num_both = num_alone_a = num_alone_b = 0
    for list_a, list_b in pairs:
        for name, lists in (("lists_a", list_a), ("lists_b", list_b)):
            _check_once(name, lists, num_rows, called)
        is_listed = list_b >= 0
        has_a, has_b = (list_a >= 0).any(1), is_listed.any(1)
        num_rows += len(list_a)
        num_both += int((has_a & has_b).sum())
        num_alone_a += int((has_a & ~has_b).sum())
        num_alone_b += int((has_b & ~has_a).sum())
        collection.update(Lists(list_a, list_b, gains=is_listed.cumsum(1).where(is_listed, 0), complete=True))
    if not num_both:
        raise ValueError(f"no user has a list in both runs, of {num_rows} users: are their ids of one kind?")
    if num_alone_a or num_alone_b:
        warn_caller(
            f"{num_alone_a} users have a list in lists_a alone, {num_alone_b} in lists_b alone: they are left out, and "
            f"{num_both} are compared"
        )
    return collection.result()


def _check_once(name: str, lists: Tensor, start: int, called: Callable[[int], str]) -> None:
    """Refuse lists that hold an item twice; `called` names rows, of which the first is `start`."""
    ordered = lists.sort(1).values
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if bool(again.any()):
        row = int(again.nonzero()[0])
        raise ValueError(f"{name} holds an item twice in the list of {called(start + row)}")
