"""Rank scores whose columns are candidates: map item ids to columns, and the columns in lists back to item ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import search
from torchrecmetrics.checks import Checks, check_choice, check_device, check_ids, check_scores, describe, shown
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.targets import Targets, selected

MissingTarget: TypeAlias = Literal["unreachable", "error"]
"""A relevant item that is no candidate counts as an item that cannot be found, or is an error."""


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

    A negative candidate is padding. If a row lists an item twice, the first column counts, and `num_repeated` is the
    number of further columns.
    """
    check_choice("missing_target", missing_target, ("unreachable", "error"))
    check_scores(scores, dims=2)
    rows, width = scores.shape
    _check_candidates(candidates, scores)
    checks = Checks(rules.validate_args, scores.device, rows)
    ids, gains = selected(target, gains, checks, rules.max_relevant)
    if not isinstance(ids, Tensor) or ids.dtype == torch.bool or ids.is_floating_point():
        raise TypeError(f"target beside candidates is item ids [B] or [B, T], got {describe(ids)}")
    if any(isinstance(part, Tensor) and part.dtype == torch.bool for part in _parts(exclude)):
        raise TypeError("exclude beside candidates is item ids: a bool could mean items or columns; give -inf scores")
    targets = Targets.read(ids, gains, exclude, (rows, None), rules, checks)
    columns = _Columns.of(candidates.long(), rules.padding_idx)
    ids = targets.ids.where(checks.without_rejected(targets.listed), -1)
    found = columns.of_items(ids)
    absent = (ids >= 0) & (found < 0)
    if missing_target == "error" and checks.enabled:
        checks.reject("missing", absent, lambda row: f"row {row} has {shown(ids[row][absent[row]])}")
    # each absent item has a column of its own, without a score: its rank is unknown
    found = torch.where(absent, width + torch.arange(ids.shape[1], device=ids.device), found)
    known_scores = columns.sorted(scores).masked_fill(columns.ids < 0, -torch.inf)
    scores = torch.cat([known_scores, scores.new_full((rows, ids.shape[1]), -torch.inf)], 1)
    left_out: Tensor = torch.nn.functional.pad(columns.repeated | (columns.ids < 0), (0, ids.shape[1]))
    excluded = targets.excluded.ids(slice(None))
    parts = (left_out,) if excluded is None else (columns.of_items(excluded), left_out)
    inner = replace(rules, padding_idx=None, overlap="miss" if rules.take_overlap == "error" else rules.overlap)
    ranking = Ranking.rank(scores, found, targets.gains, parts, needs._replace(num_items=None), inner)
    lists = ranking.lists
    if lists is not None:
        inside = (lists.ids >= 0) & (lists.ids < width)
        listed = columns.ids.expand(rows, -1).gather(1, lists.ids.where(inside, 0)).where(inside, -1)
        lists = lists._replace(ids=listed, relevant=ids.where(lists.relevant >= 0, -1), num_items=None)
    return replace(
        _with_violations(ranking, checks),
        num_repeated=columns.repeated.sum(-1).expand(rows),
        made_with=rules.shaping(),
        lists=lists,
    )


def _parts(exclude: Any) -> Sequence[Any]:
    return exclude if type(exclude) is tuple else (exclude,)


class _Columns(NamedTuple):
    """Candidates in ascending order of item ids, [C] or [B, C]; lists name items of equal scores in this order."""

    ids: Tensor
    """Item ids, int64, ascending; -1 = padding."""
    order: Tensor
    """Int64: the column of the scores that belongs to each candidate."""
    repeated: Tensor
    """Bool: the candidate repeats the item of an earlier column."""

    @classmethod
    def of(cls, candidates: Tensor, padding_idx: int | None) -> _Columns:
        """Return the candidates in ascending order of item ids."""
        padding = candidates < 0
        if padding_idx is not None:
            padding = padding | (candidates == padding_idx)
        ids, order = candidates.masked_fill(padding, -1).sort(dim=-1, stable=True)
        again = torch.nn.functional.pad((ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] >= 0), (1, 0))
        return cls(ids, order, again)

    def of_items(self, items: Tensor) -> Tensor:
        """Return the index of each item among the candidates, [B, n]; -1 for padding and items that are not there."""
        if self.ids.dim() == 1:
            at = torch.searchsorted(self.ids, items.contiguous()).clamp(max=len(self.ids) - 1)
            known = self.ids[at] == items
        else:
            at = search(self.ids, items).clamp(max=self.ids.shape[1] - 1)
            known = self.ids.gather(1, at) == items
        return at.where(known & (items >= 0), -1)

    def sorted(self, scores: Tensor) -> Tensor:
        """Return the columns of scores [B, C] in the order of the candidates."""
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


def _with_violations(ranking: Ranking, checks: Checks) -> Ranking:
    """Return the ranking with the violations that were found before it was made."""
    ours, theirs = checks.violations, ranking.violations
    if ours.rows is None or ours.counts is None or theirs.rows is None or theirs.counts is None:
        return ranking
    rows = ours.rows | theirs.rows
    return replace(ranking, violations=theirs._replace(rows=rows, counts=ours.counts + theirs.counts))
