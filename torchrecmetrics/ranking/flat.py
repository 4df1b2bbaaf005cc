"""`Ranking.from_flat`: rankings from torchmetrics' flat scores, targets and indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, run_starts
from torchrecmetrics.checks import (
    Checks,
    Validation,
    check_device,
    check_ids,
    check_scores,
    check_strided,
    check_tensor,
    describe,
)
from torchrecmetrics.ranking.rules import Rules, Ties
from torchrecmetrics.ranking.ties import FromCounts, TargetCounts

if TYPE_CHECKING:
    from typing_extensions import Self


class FromFlat(FromCounts):
    """Base of `Ranking` with its constructors from flat scores, targets and indexes."""

    @classmethod
    @torch.no_grad()
    def from_flat(
        cls,
        scores: Tensor,
        target: Tensor,
        indexes: Tensor,
        *,
        ties: Ties = "realistic",
        validate_args: Validation = True,
    ) -> Self:
        """Return the ranking of torchmetrics' flat retrieval triple: one entry per (query, candidate) pair.

        Rows are in ascending order of query id; all entries of a query must be in the same call. If they are in several
        calls, `update(scores, target, indexes=indexes)` of metrics and collections joins them. Costs host syncs, since
        the number of queries is data.

        Args:
            scores: float [E].
            target: bool or number [E]; > 0 = relevant, the value is the gain.
            indexes: integer [E], the query each entry belongs to.
            ties: as in `from_scores`.
            validate_args: as in `from_scores`.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> scores, target = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0, 1, 0])
            >>> trm.Ranking.from_flat(scores, target, torch.tensor([0, 0, 0])).ranks
            tensor([[2.]], dtype=torch.float64)
        """
        rules = Rules(ties, validate_args=validate_args)
        check_triple(scores, target, indexes)
        queries, query = torch.unique(indexes, return_inverse=True)
        checks = Checks(validate_args, scores.device, len(queries))
        return cls.from_sessions(scores, target, query, rules, checks, lambda row: f"query {int(queries[row])}")

    @classmethod
    def from_sessions(
        cls,
        scores: Tensor,
        target: Tensor,
        session: Tensor,
        rules: Rules,
        checks: Checks,
        name: Callable[[int], str],
        width: int | None = None,
    ) -> Self:
        """Rank the entries of each session; `session` holds numbers from 0 to `checks.num_rows` - 1 in any order.

        `width` is T of the result: at least the most entries of a session whose gain is not 0; None = just that number.
        """
        rows = checks.num_rows
        # sort entries by session, best first; find where runs of equal scores begin, and their lengths
        order = scores.where(~scores.isnan(), -torch.inf).argsort(descending=True, stable=True)
        order = order[session[order].argsort(stable=True)]
        session, scores, target = session[order], scores[order], target[order]
        usable = scores > -torch.inf
        start = run_starts(session)
        run = torch.maximum(start, run_starts(scores))
        run_length = torch.bincount(run, minlength=len(run))[run]
        gain = target.to(float_dtype(scores.device))
        if checks.enabled:
            for kind, wrong in (("scores", scores.isnan() | (scores == torch.inf)), ("gains", ~gain.isfinite())):
                sessions_of = torch.zeros(rows, dtype=torch.bool, device=scores.device)
                sessions_of[session[wrong]] = True
                checks.reject(kind, sessions_of, name)

        picked = gain.nonzero()[:, 0]
        row = session[picked]
        size = torch.bincount(row, minlength=rows)
        slot = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
        if width is None:
            width = max(1, int(size.max())) if rows else 1

        def table(values: Tensor, fill: int | bool) -> Tensor:
            out = torch.full((rows, width), fill, dtype=values.dtype, device=values.device)
            out[row, slot] = values[picked]
            return out

        listed = checks.without_rejected(table(torch.ones_like(usable), False))
        gains = table(gain, 0)
        counts = TargetCounts(
            relevant=listed & (gains > 0),
            unwanted=None if target.dtype == torch.bool else listed & (gains < 0),
            gains=None if target.dtype == torch.bool else gains,
            candidate=listed & table(usable, False),
            better=table(run - start, 0),
            group_size=table(run_length, 0),
            num_ranked=torch.bincount(session[usable], minlength=rows),
        )
        return cls.from_counts(counts, rules.place_ties, rules.shaping("ties"), violations=checks.violations)


def check_triple(scores: Tensor, target: Tensor, indexes: Tensor) -> None:
    """Raise unless flat scores, targets and session ids have accepted dtypes, one shape and one device."""
    check_scores(scores, dims=1)
    check_ids("indexes", indexes)
    check_tensor("target", target)
    check_strided("target", target)
    if not (target.shape == indexes.shape == scores.shape):
        raise ValueError(
            f"scores, target and indexes must be tensors of one shape, got {describe(scores)}, "
            f"{describe(target)} and {describe(indexes)}"
        )
    if target.is_complex():
        raise TypeError(f"target must be bool or real numbers, got {describe(target)}")
    for name, tensor in (("target", target), ("indexes", indexes)):
        check_device(name, tensor, scores.device)
