"""Scores whose columns are candidates: item ids become columns, and lists of columns items again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import search
from torchrecmetrics.checks import Checks, check_choice, check_device, check_ids, check_scores, describe, shown
from torchrecmetrics.data.interactions import Batch
from torchrecmetrics.data.jagged import Spans, as_jagged, as_spans
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.targets import selected

MissingTarget: TypeAlias = Literal["unreachable", "error"]
"""A relevant item that is no candidate is counted as one that cannot be found, or is an error."""


def rank_candidates(
    scores: Tensor,
    target: Any,
    gains: Any,
    exclude: Any,
    candidates: Tensor,
    missing_target: MissingTarget,
    needs: Needs,
    rules: Rules,
) -> Ranking:
    """Rank scores [B, C] of the items `candidates`, [C] for all rows or [B, C]; target and exclude are item ids.

    A negative candidate is padding; of one that a row lists twice the first counts, and `num_repeated` says how many
    did not.
    """
    check_choice("missing_target", missing_target, ("unreachable", "error"))
    check_scores(scores, dims=2)
    rows, width = scores.shape
    _check_candidates(candidates, scores)
    checks = Checks(rules.validate_args, scores.device, rows)
    ids, gains = selected(target, gains, checks, rules.max_relevant)
    if not isinstance(ids, Tensor) or ids.dtype == torch.bool or ids.is_floating_point():
        raise TypeError(f"target beside candidates is item ids [B] or [B, T], got {describe(ids)}")
    check_ids("target", ids)
    check_device("target", ids, scores.device)
    ids = ids[:, None].long() if ids.dim() == 1 else ids.long()
    columns = _Columns.of(candidates.long(), rules.padding_idx)
    if rules.padding_idx is not None:
        ids = ids.where(ids != rules.padding_idx, -1)
    found = columns.of_items(ids)
    absent = (ids >= 0) & (found < 0)
    if missing_target == "error" and checks.enabled:
        checks.reject("missing", absent, lambda row: f"row {row} has {shown(ids[row][absent[row]])}")
    # a column without a score for each of them: nothing is known of where they would be
    found = torch.where(absent, width + torch.arange(ids.shape[1], device=ids.device), found)
    scores = torch.cat([columns.sorted(scores), scores.new_full((rows, ids.shape[1]), -torch.inf)], 1)
    left_out = torch.nn.functional.pad(columns.repeated | (columns.ids < 0), (0, ids.shape[1]))
    parts = [columns.of_items(part) for part in _excluded(exclude, checks)]
    ranking = Ranking.rank(
        scores, found, gains, (*parts, left_out), needs._replace(num_items=None), replace(rules, padding_idx=None)
    )
    ranking = _with_violations(ranking, checks)
    lists = ranking.lists
    if lists is not None:
        inside = (lists.ids >= 0) & (lists.ids < width)
        listed = columns.ids.expand(rows, -1).gather(1, lists.ids.where(inside, 0)).where(inside, -1)
        ranking = ranking.with_lists(
            lists._replace(ids=listed, relevant=ids.where(lists.relevant >= 0, -1), num_items=None)
        )
    made_with = {**ranking.made_with, "padding_idx": rules.padding_idx} if "padding_idx" in ranking.made_with else None
    repeated = columns.repeated.sum(-1).expand(rows)
    return replace(ranking, num_repeated=repeated, made_with=ranking.made_with if made_with is None else made_with)


class _Columns(NamedTuple):
    """Candidates in ascending order, in which lists name items of equal scores, [C] or [B, C]."""

    ids: Tensor
    """-1 = padding."""
    order: Tensor
    """The column of each among the scores."""
    repeated: Tensor
    """Bool: an earlier column has the same item."""

    @classmethod
    def of(cls, candidates: Tensor, padding_idx: int | None) -> _Columns:
        """Sort candidates."""
        padding = candidates < 0
        if padding_idx is not None:
            padding = padding | (candidates == padding_idx)
        ids, order = candidates.masked_fill(padding, -1).sort(dim=-1, stable=True)
        again = torch.nn.functional.pad((ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] >= 0), (1, 0))
        return cls(ids, order, again)

    def of_items(self, items: Tensor) -> Tensor:
        """Return the place of each item, [B, n]; -1 for padding and items that are no candidates."""
        if self.ids.dim() == 1:
            at = torch.searchsorted(self.ids, items.contiguous()).clamp(max=len(self.ids) - 1)
            known = self.ids[at] == items
        else:
            at = search(self.ids, items).clamp(max=self.ids.shape[1] - 1)
            known = self.ids.gather(1, at) == items
        return at.where(known & (items >= 0), -1)

    def sorted(self, scores: Tensor) -> Tensor:
        """Return scores [B, C] in this order."""
        return scores[:, self.order] if self.order.dim() == 1 else scores.gather(1, self.order)


def _check_candidates(candidates: Any, scores: Tensor) -> None:
    check_ids("candidates", candidates)
    check_device("candidates", candidates, scores.device)
    rows, width = scores.shape
    if candidates.shape not in ((width,), (rows, width)):
        raise ValueError(
            f"candidates must be the item ids of the scores' columns, [{width}] for all rows or [{rows}, {width}], got "
            f"{list(candidates.shape)}"
        )


def _excluded(exclude: Any, checks: Checks) -> Sequence[Tensor]:
    """Return excluded item ids, [B, H] each."""
    if exclude is None:
        return ()
    if type(exclude) is tuple and as_jagged("exclude", exclude) is None:
        return [ids for part in exclude for ids in _excluded(part, checks)]
    if isinstance(exclude, Batch):
        exclude = exclude.items
    jagged = as_jagged("exclude", exclude)
    if jagged is not None:
        exclude = as_spans("exclude", jagged, checks)
    if isinstance(exclude, Spans):
        exclude = exclude.padded(-1)
    if isinstance(exclude, Tensor) and exclude.dtype == torch.bool:
        raise TypeError(
            "exclude beside candidates is item ids: a bool could mean items or columns; -inf removes scores"
        )
    check_ids("exclude", exclude)
    check_device("exclude", exclude, checks.device)
    if exclude.dim() not in (1, 2) or len(exclude) != checks.num_rows:
        raise ValueError(
            f"exclude ids must be [{checks.num_rows}] or [{checks.num_rows}, H], got {list(exclude.shape)}"
        )
    return [exclude[:, None].long() if exclude.dim() == 1 else exclude.long()]


def _with_violations(ranking: Ranking, checks: Checks) -> Ranking:
    """Add the rows that were rejected before the ranking was made."""
    ours, theirs = checks.violations, ranking.violations
    if ours.rows is None or ours.counts is None or theirs.rows is None or theirs.counts is None:
        return ranking
    rows = ours.rows | theirs.rows
    return replace(ranking, violations=theirs._replace(rows=rows, counts=ours.counts + theirs.counts))
