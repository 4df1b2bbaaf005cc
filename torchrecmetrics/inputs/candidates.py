"""`Candidates`: rank scores of some items; item ids are mapped to columns, and listed columns back to item ids."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import search
from torchrecmetrics.core.checks import Checks, check_choice, check_device, check_ids, check_scores, shown
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.exclusion import Exclude
from torchrecmetrics.inputs.jagged import Spans
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.inputs.targets import Gains, Target, Targets, dense_to_ids

MissingTarget: TypeAlias = Literal["unreachable", "error"]
"""Treatment of a relevant item that is not a candidate: counted as a miss, or an error."""


@dataclass(frozen=True, eq=False, repr=False)
class Candidates(BatchInput):
    """Scores [B, C] of some items, whose ids are `items`; target, exclude and history are item ids, too.

    Args:
        scores: float [B, C], as in `Scores`.
        target: as in `Scores`; a dense target has a column per item, and more columns than the scores.
        items: keyword, integers [C] for all rows or [B, C]: the item id of each column, negative = padding. If a row
            repeats an item, its first column counts, and `num_repeated` is the number of further columns.
        missing: a target that is not a candidate is "unreachable" (a miss) or an "error".
        gains: as in `Scores`.
        exclude: item ids as in `Scores`.
        history: as in `Scores`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores, items = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([7, 3, 9])
        >>> trm.Candidates(scores, torch.tensor([9]), items=items).ranking().ranks
        tensor([[2.]], dtype=torch.float64)
    """

    scores: Tensor
    target: Target | None
    _: KW_ONLY
    items: Tensor
    missing: MissingTarget = "unreachable"
    gains: Gains | None = None
    exclude: Exclude | None = None
    history: Target | Spans | None = None

    def __post_init__(self) -> None:
        check_choice("missing", self.missing, get_args(MissingTarget))

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Rank the columns, with target and excluded items mapped to columns, and map the listed columns back."""
        scores, exclude = self.scores, self.exclude
        check_scores(scores, dims=2)
        (rows, width), device = scores.shape, scores.device
        _check_candidates(self.items, scores)
        checks = Checks(options.validate_args, device, rows)
        ids, gains = dense_to_ids(self.target, self.gains, self.items, options, checks)
        targets = Targets.read(ids, gains, exclude, (rows, None), options, checks)
        if targets.excluded is not None and targets.excluded.masks:
            raise TypeError(
                "exclude with Candidates must be item ids, since a bool could mean items or columns; or set "
                "scores to -inf"
            )
        columns = _Columns.of(self.items.long(), options.padding_idx)
        ids = targets.ids.where(targets.is_item, -1)
        slots = columns.of_items(ids)
        absent = (ids >= 0) & (slots < 0)
        if self.missing == "error":
            checks.reject("missing", absent, lambda row: f"row {row} has {shown(ids[row][absent[row]])}")
        valid, violations = checks.finish()  # before ranking, whose checks would count rows again
        if valid is not None:
            ids = ids.where(valid[:, None], -1)
            slots, absent = slots.where(valid[:, None], -1), absent & valid[:, None]
        # each absent item gets its own column without a score, since its rank is unknown
        slots = torch.where(absent, width + torch.arange(ids.shape[1], device=device), slots)
        known_scores = columns.sorted(scores).masked_fill(columns.ids < 0, -torch.inf)
        scores = torch.cat([known_scores, scores.new_full((rows, ids.shape[1]), -torch.inf)], 1)
        left_out: Tensor = torch.nn.functional.pad(columns.repeated | (columns.ids < 0), (0, ids.shape[1]))
        excluded = None if targets.excluded is None else targets.excluded.ids()
        exclusions = (left_out,) if excluded is None else (columns.of_items(excluded), left_out)
        overlap = "miss" if options.overlap_rule == "error" else options.overlap
        inner = replace(options, padding_idx=None, overlap=overlap)
        by_column = Scores(scores, slots, gains=targets.gains, exclude=exclusions)
        ranking = by_column.rank(needs._replace(num_items=None, target=True), inner)
        lists = ranking.lists
        if lists is not None:
            inside = (lists.ids >= 0) & (lists.ids < width)
            listed_ids = columns.ids.expand(rows, -1).gather(1, lists.ids.where(inside, 0)).where(inside, -1)
            history = self.read_history(needs, checks)
            relevant = ids.where(lists.relevant >= 0, -1)
            top_scores = None if lists.scores is None else lists.scores.where(inside, -torch.inf)
            lists = lists._replace(
                ids=listed_ids, relevant=relevant, num_items=None, history=history, scores=top_scores
            )
        return replace(
            ranking.rejecting(valid, violations),
            num_repeated=columns.repeated.sum(-1).expand(rows),
            options=options.of_ranks,
            lists=lists,
        )


class _Columns(NamedTuple):
    """Candidates in ascending order of item ids, [C] or [B, C]; items of equal scores are listed in this order."""

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
        repeated = torch.nn.functional.pad((ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] >= 0), (1, 0))
        return cls(ids, order, repeated)

    def of_items(self, items: Tensor) -> Tensor:
        """Return the index of each item among the candidates, [B, n]; -1 for padding and other items."""
        if self.ids.dim() == 1:
            place = torch.searchsorted(self.ids, items.contiguous()).clamp(max=len(self.ids) - 1)
            matches = self.ids[place] == items
        else:
            place = search(self.ids, items).clamp(max=self.ids.shape[1] - 1)
            matches = self.ids.gather(1, place) == items
        return place.where(matches & (items >= 0), -1)

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
