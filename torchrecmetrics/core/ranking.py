"""`Ranking`: the ranks of the relevant items of a batch, and the quantities of them that formulas read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.checks import Checks, check_strided, check_tensor, describe, in_words
from torchrecmetrics.core.ranked_items import (
    Cutoffs,
    Discount,
    K,
    RankedItems,
    check_cutoffs,
    column_of,
    derived,
    positions,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class ListedItems(NamedTuple):
    """The ids of the top-ranked items of each row, with the row's relevant items and history."""

    ids: Tensor
    """Int64 [B, K]: item ids, best first; negative = no item."""
    relevant: Tensor
    """Int64 [B, T]: ids of the row's relevant items in any order, -1 = padding."""
    stays: Tensor | None = None
    """Bool [B, K]: which of `ids` have a rank, in this order; None = every column is a rank, empty if the id is
    negative."""
    repeated: Tensor | None = None
    """Bool [B, K]: which of `ids` (or of `entries`) repeat an earlier one of the row; None = none does."""
    num_items: int | None = None
    """All ids are below this number; None = unknown."""
    history: Tensor | None = None
    """Int64 [B, H]: earlier items of the row's user, in any order, negative = padding; None = not given."""
    wants_list: Tensor | None = None
    """Bool [B]: which rows should have a list; None = all rows."""
    entries: Tensor | None = None
    """Bool [B, E]: False = padding, for lists whose entries are codes; None = the entries are `ids`."""
    invalid: Tensor | None = None
    """Bool [B, E]: which entries are codes that no item has; None = no entry is."""
    scores: Tensor | None = None
    """[B, K]: score of each of `ids`, -inf = no item; None = unknown."""


class RankedRows(NamedTuple):
    """Which rows of a ranking count, and how columns of `update`, such as weights, belong to them."""

    valid: Tensor | None = None
    """Bool [B]: False in rows with bad values that did not raise at once, which are left out; None = all are valid."""
    violations: Tensor | None = None
    """Int64 [len(VIOLATIONS)]: number of bad rows per kind; None = 0."""
    own: Tensor | None = None
    """Bool [B]: rows that this process counts, where several processes hold the same rows; None = all rows."""
    num_holders: int = 1
    """Number of processes that hold the same rows, of which each counts a share."""
    ids: Tensor | None = None
    """Int64 [B]: ids of the rows, where the input has them, such as session ids."""
    of_entries: Tensor | None = None
    """Int64 [E]: row of each entry, where columns are given per entry; None = they are per row."""


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The ranks of the relevant items of a batch, and the other data that metrics read; each row is one ranking.

    Inputs make it: `Scores(scores, target).ranking(depth=10)`, also `Lists`, `Ranks`, `Hits`, `Sessions`, `Negatives`,
    `Candidates`. Do not change its fields.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3]])
        >>> trm.Scores(scores, torch.tensor([[2, 0]])).ranking().ranks
        tensor([[2., 4.]], dtype=torch.float64)
    """

    relevant: RankedItems
    """Ranks and gains of the relevant items."""
    num_relevant: Tensor
    """Float [B]: number of relevant items of the row, ranked or not."""
    tied: Tensor
    """Bool [B]: a relevant item shares its score with another candidate, within the ranks that metrics read."""
    unreachable: Tensor
    """Bool [B]: a relevant item is not a candidate (excluded, `-inf` or NaN)."""
    penalties: RankedItems | None = None
    """Ranks and gains of the items with a negative gain, which only NDCG reads."""
    num_ranked: Tensor | None = None
    """Float [B]: number of candidates; None = unknown."""
    num_recommended: Tensor | None = None
    """Float [B]: length of the given list, or number of candidates with score >= `score_threshold`."""
    score_threshold: float | None = None
    """The threshold of `num_recommended`."""
    depth: int | None = None
    """Number of ranks that are known; None = the whole ranking."""
    row_depth: Tensor | None = None
    """Int64 [B]: number of known ranks of each row, where it can be less than `depth`; None = `depth` in all rows."""
    rows: RankedRows = field(default_factory=RankedRows)
    """Which rows count, and how columns of `update` belong to them."""
    num_repeated: Tensor | None = None
    """Int64 [B]: number of entries of the given list that repeat an earlier entry; None = not counted."""
    num_invalid: Tensor | None = None
    """Int64 [B]: number of generated codes that no item has (`SemanticIds`); else None."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The options (ties, padding_idx, overlap) that the ranks were made with, if known."""
    kernels: str | None = None
    """The kernels that counted the candidates, "eager" or "triton"; None = nothing was counted."""
    lists: ListedItems | None = None
    """The items of the top ranks; None = not requested."""

    _cache: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def without_relevant(
        cls, rows: int, device: torch.device, score_threshold: float | None = None, graded: bool = False
    ) -> Self:
        """Return a ranking of rows without a relevant item, with every field that a formula may read."""
        none = torch.zeros(rows, dtype=float_dtype(device), device=device)
        nothing = torch.full((rows, 1), -1, dtype=torch.int64, device=device)
        nowhere = torch.full((rows, 1), torch.inf, dtype=float_dtype(device), device=device)
        return cls(
            relevant=RankedItems(nowhere, torch.zeros_like(nowhere) if graded else None),
            num_relevant=none,
            tied=none.bool(),
            unreachable=none.bool(),
            num_ranked=none,
            num_recommended=none,
            score_threshold=score_threshold,
            lists=ListedItems(nothing, nothing, num_items=0, history=nothing, wants_list=none.bool()),
        )

    def __len__(self) -> int:
        return len(self.num_relevant)

    def __repr__(self) -> str:
        depth = "whole" if self.depth is None else f"first {self.depth}"
        widest, device = self.relevant.width, self.num_relevant.device
        return f"Ranking({in_words(len(self))}, up to {widest} relevant items, {depth}, {device})"

    @property
    def ranks(self) -> Tensor:
        """Ranks of relevant items, float [B, T], ascending; 1 = best, `inf` = not ranked, beyond `depth` or padding."""
        return self.relevant.ranks

    @property
    def gains(self) -> Tensor | None:
        """Gains of the items in `ranks`, float [B, T] (0 = padding); None = every relevant item gains 1."""
        return self.relevant.gains

    # ------------------------------------------------------------------------------------------ what formulas read

    def hits(self, k: int | Tensor | None) -> Tensor:
        """Return which relevant items are in the top `k` (None = are ranked; [B] = one `k` per row), bool [B, T].

        Raises:
            ValueError: if ranks are not known down to `k`; likewise in the next five methods.
        """
        return self.relevant.hits(self.check_depth(k))

    def num_hits(self, k: K, *, min_score: float | None = None) -> Tensor:
        """Return the (expected) number of relevant items in the top `k`, float [B], or [K, B] for several cut-offs.

        Only items with score >= `min_score` are hits; likewise in the next two methods.
        """
        return self.relevant.num_hits(self.check_depth(k, min_score))

    def any_hit(self, k: K, *, min_score: float | None = None) -> Tensor:
        """Return 1 if a relevant item is in the top `k`, else 0, or its probability: float [B], or [K, B]."""
        return self.relevant.any_hit(self.check_depth(k, min_score))

    def sum_hits(
        self, discount: Discount, k: K, gains: Tensor | None = None, *, min_score: float | None = None
    ) -> Tensor:
        """Return the (expected) sum over hits in the top `k` of discount(rank), times their `gains` [B, T] if given."""
        return self.relevant.sum_hits(discount, self.check_depth(k, min_score), gains)

    def reciprocal_first(self, k: K) -> Tensor:
        """Return (expected) 1 / rank of the best relevant item if it is in the top `k`, else 0."""
        return self.relevant.reciprocal_first(self.check_depth(k))

    def sum_of_precisions(self, k: K) -> Tensor:
        """Return the (expected) sum over the hits in the top `k` of i / rank, the precision at the i-th hit."""
        return self.relevant.sum_of_precisions(self.check_depth(k))

    def cutoffs(self, k: int | Sequence[int]) -> int | Tensor:
        """Return one cut-off as an int, several as a column that broadcasts against rows, float [K, 1]."""
        k = k if isinstance(k, (int, Cutoffs)) else check_cutoffs(k)
        return k if isinstance(k, int) else column_of(k, self.num_relevant.dtype, self.num_relevant.device)

    def num_reaching(self, min_score: float) -> Tensor:
        """Return the number of candidates with score >= `min_score`, float [B].

        Raises:
            ValueError: if the ranking was made without this threshold.
        """
        if self.num_recommended is None or self.score_threshold != min_score:
            raise ValueError(
                f"the metric counts items with score >= {min_score}, but the ranking was made with "
                f"score_threshold={self.score_threshold}: pass scores, or name it in Scores(...).ranking(...)"
            )
        return self.num_recommended

    @property
    def hit_number(self) -> Tensor:
        """The numbers 1, 2, ..., T of a row's relevant items, best first: float [T]."""
        return positions(self.relevant.width, self.num_relevant.dtype, self.num_relevant.device)

    @property
    @derived
    def ideal_gains(self) -> Tensor:
        """Gains of all relevant items, ranked or not, in descending order, then 0: float [B, T]."""
        if self.gains is None:
            return (self.hit_number <= self.num_relevant[:, None]).to(self.num_relevant.dtype)
        return self.gains.sort(dim=1, descending=True).values

    # ---------------------------------------------------------------------------------------------------- listed items

    @property
    @derived
    def items(self) -> Tensor:
        """Ids of the top-ranked items, int64 [B, depth], best first; -1 = no item, as at the rank of an invalid code.

        Items of equal scores are in the order of their ids, or of the given list, whatever `ties` is.

        Raises:
            ValueError: if the ranking was made from ranks, or without lists.
        """
        lists = self.listed()
        ids, stays = lists.ids, lists.stays
        if stays is None:
            return ids
        rows, width = ids.shape  # entries without a rank go to one more column, which is cut off
        places = (stays.cumsum(1) - 1).where(stays, width)
        return ids.new_full((rows, width + 1), -1).scatter(1, places, ids)[:, :width]

    @property
    def relevant_items(self) -> Tensor:
        """Ids of the relevant items, int64 [B, T] in any order, -1 = padding; errors as in `items`."""
        return self.listed().relevant

    @property
    def entries(self) -> Tensor:
        """Mask of the entries of the given list that are not padding, bool [B, K]; errors as in `items`."""
        ids, entries = self.listed().ids, self.listed().entries
        return ids >= 0 if entries is None else entries

    @property
    def repeated(self) -> Tensor:
        """Mask of the `entries` that repeat the item of an earlier entry, bool [B, K]; errors as in `items`."""
        repeated = self.listed().repeated
        return torch.zeros_like(self.entries) if repeated is None else repeated

    @property
    def history(self) -> Tensor:
        """Ids of earlier items of the row's user, int64 [B, H] in any order, negative = padding.

        Raises:
            ValueError: if the history was not given.
        """
        history = self.listed().history
        if history is None:
            raise ValueError(
                "a metric needs the history of each row: pass update(Scores(scores, target, history=)), item "
                "ids [B, H], negative = padding; evaluate and callbacks take it from "
                "Catalogue.from_interactions(train)"
            )
        return history

    def listed(self) -> ListedItems:
        """Return the items of the top ranks; errors as in `items`."""
        if self.lists is None:
            raise ValueError(
                "the top items are unknown, since ranks do not name them: pass update(scores, ...), Lists or "
                "Scores(...).ranking(depth=, items=True)"
            )
        return self.lists

    # ------------------------------------------------------------------------------------------------- depth, columns

    def within(self, depth: int) -> Self:
        """Return a copy that knows only the first `depth` ranks.

        Relevant items beyond `depth` count as not found.

        Raises:
            ValueError: if the ranking is not known down to `depth`.
        """
        self.check_depth(depth)
        penalties = None if self.penalties is None else self.penalties.within(depth)
        lists = self.lists
        if lists is not None:
            lists = lists._replace(ids=self.items[:, :depth], stays=None, entries=self.entries)
        relevant = self.relevant.within(depth)
        return replace(self, relevant=relevant, penalties=penalties, lists=lists, depth=depth)

    @derived
    def from_grade(self, grade: float) -> Self:
        """Return the ranking in which only items with a gain >= `grade` are relevant, each with gain 1.

        Raises:
            ValueError: if the relevant items have no gains, or were placed by `ties="realistic"`: the place of an item
                in its tie group then depends on how many others are relevant.
        """
        if self.gains is None:
            raise ValueError(
                f"relevant_from={grade:g} reads the grade of each relevant item, but the target has none: pass gains=, "
                "a float target [B, I], or a ground truth with values"
            )
        if self.options.get("ties") == "realistic":
            raise ValueError("relevant_from= needs ties='expected', 'optimistic' or 'pessimistic', got 'realistic'")
        kept = self.gains.float() >= grade  # as torch compares float32 grades: 0.7 reaches 0.7
        num_relevant = kept.sum(1).to(self.num_relevant.dtype)
        return replace(self, relevant=self.relevant.only(kept), num_relevant=num_relevant, penalties=None)

    def rejecting(self, valid: Tensor | None, violations: Tensor | None) -> Self:
        """Return a copy that also rejects the rows that are not `valid`, bool [B]; see `Checks.finish`."""
        if valid is None or violations is None:
            return self
        if self.rows.valid is not None and self.rows.violations is not None:
            valid, violations = valid & self.rows.valid, violations + self.rows.violations
        return replace(self, rows=self.rows._replace(valid=valid, violations=violations))

    def check_depth(self, k: K, min_score: float | None = None) -> int | Cutoffs | Tensor | None:
        """Return the checked cut-off, or raise if the ranking is not known down to it.

        A tensor of cut-offs, one per row, needs as many ranks as a row can have relevant items. With `min_score`,
        return at most the number of candidates that reach it, float [B] or [K, B].
        """
        if not isinstance(k, (int, Cutoffs, Tensor)) and k is not None:
            k = check_cutoffs(k)
        if min_score is not None:
            return self.num_reaching(min_score).clamp(max=self.cutoffs(self.check_depth(k)))  # type: ignore[arg-type]
        if self.depth is None:
            return k
        if isinstance(k, Tensor):
            deepest: int | None = self.relevant.width
        else:
            deepest = max(k) if isinstance(k, Cutoffs) else k
        if deepest is None or deepest > self.depth:
            needed = "the whole ranking" if deepest is None else f"the first {deepest} ranks"
            raise ValueError(
                f"the metric needs {needed}, but the ranks are known to depth {self.depth} only: rank deeper "
                "(or, if nothing else was recommended, pass complete=True with the lists, beams, hits or ranks)"
            )
        if self.row_depth is not None:
            checks = Checks(True, self.row_depth.device, len(self))
            short = self.short_rows(None if k is None or isinstance(k, Tensor) else deepest)
            checks.reject("list_short", short, self.describe_short_row)
            checks.finish()
        return k

    def short_rows(self, depth: int | None) -> Tensor:
        """Return which valid rows are not known down to `depth` (None = their number of relevant items), bool [B]."""
        assert self.row_depth is not None
        short = self.row_depth < (self.num_relevant if depth is None else depth)
        return short if self.rows.valid is None else short & self.rows.valid

    def describe_short_row(self, row: int) -> str:
        """Return a description of the known depth of a row, for a message."""
        assert self.row_depth is not None
        return f"row {row} to {int(self.row_depth[row])}"

    def per_row(self, name: str, values: Tensor, checks: Checks) -> Tensor:
        """Return a column of `update` with one value per row, [B]; `checks` rejects sessions with several values.

        Raises:
            TypeError: for anything but a tensor.
            ValueError: for another shape or device.
        """
        of_entries, ids = self.rows.of_entries, self.rows.ids
        num_values = len(self) if of_entries is None else len(of_entries)
        check_tensor(name, values, "; encode text with a Vocabulary" if isinstance(values, (list, tuple)) else "")
        check_strided(name, values, "0")
        if values.shape != (num_values,) or values.device != self.num_relevant.device:
            unit = "row" if of_entries is None else "entry and equal within a session"
            raise ValueError(
                f"{name} must be [{num_values}], one per {unit}, on {self.num_relevant.device}, got {describe(values)} "
                f"on {values.device}"
            )
        if of_entries is None:
            return values
        of_row = values.new_zeros(len(self)).scatter(0, of_entries, values)
        differs = (of_row[of_entries] != values).long()
        differs = torch.zeros_like(self.tied, dtype=torch.int64).scatter_add(0, of_entries, differs)
        checks.reject("session", differs > 0, lambda row: f"session {row if ids is None else int(ids[row])}")
        return of_row

    def __getstate__(self) -> dict[str, Any]:
        # without cached values, whose keys hold functions that cannot be pickled
        return {**vars(self), "_cache": {}}
