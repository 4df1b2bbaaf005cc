"""`RankingData`: the fields of a `Ranking` (ranks, gains, depth, lists), hits and cut-offs, saving and loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, group_mean, is_traced, search
from torchrecmetrics.checks import Checks, Violations, check_cutoffs, check_k, in_words
from torchrecmetrics.data.saving import read, write
from torchrecmetrics.kernels import Kernels

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVarTuple, Unpack

    More = TypeVarTuple("More")

DEPTH_UNKNOWN = "depth unknown: pass update(ranks, depth=...), or scores, or a Ranking (of item ids: Ranking.from_topk)"


class RankedItems(NamedTuple):
    """Ranks and gains of the relevant (or the unwanted) items of each row."""

    ranks: Tensor
    """Float [B, T], ascending, 1 = best; `inf` = not ranked, beyond the depth, or padding."""
    gains: Tensor | None = None
    """Float [B, T]: gains of the items in `ranks` (0 = padding); None = every item gains 1."""
    group: Tensor | None = None
    """Int64 [B, T]: first slot of each entry's tie group, over which gains are averaged; None = no average."""

    def placed(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the transformed gains in the order of the ranks, [B, T]; items of a tie group share the mean gain."""
        gains = transform(self.ranks.isfinite().to(self.ranks.dtype) if self.gains is None else self.gains)
        return gains if self.group is None else group_mean(gains, self.group)


class Depth(NamedTuple):
    """The depth to which ranks are known."""

    depth: int | None = None
    """Number of ranks that are known; None = the whole ranking."""
    known: bool = True
    """False for plain ranks that were given without a depth, which only metrics with a cut-off may read."""
    rows: Tensor | None = None
    """Int64 [B]: number of known ranks of each row, where it can be less than `depth`; None = `depth` in all rows."""


class Lists(NamedTuple):
    """The ids of the top-ranked items of each row, with the row's relevant items and history."""

    ids: Tensor
    """Int64 [B, K]: item ids, best first; negative = no item."""
    relevant: Tensor
    """Int64 [B, T]: ids of the row's relevant items in any order, -1 = padding."""
    stays: Tensor | None = None
    """Bool [B, K]: which of `ids` have a rank, in this order; None = all before the first negative id."""
    repeated: Tensor | None = None
    """Bool [B, K]: which of `ids` repeat an earlier id of the row; None = no id does."""
    num_items: int | None = None
    """All ids are below this number; None = unknown."""
    history: Tensor | None = None
    """Int64 [B, H], items that the row's user had before, in any order, negative = padding; None = not given."""
    asked: Tensor | None = None
    """Bool [B]: which rows were to be given a list; None = all rows."""


@dataclass(frozen=True, eq=False, repr=False)
class RankingData:
    """The fields of `Ranking`: ranks of the relevant items of a batch, with all else that metrics read of the batch."""

    found: RankedItems
    """Ranks and gains of the relevant items."""
    num_relevant: Tensor
    """Int64 [B]: number of relevant items of the row, ranked or not."""
    tied: Tensor
    """Bool [B]: a relevant item shares its score with another candidate, within the ranks that metrics read."""
    unreachable: Tensor
    """Bool [B]: a relevant item is not a candidate (excluded, `-inf` or NaN)."""
    penalties: RankedItems | None = None
    """Ranks and gains of the items with a negative gain, which only NDCG reads."""
    num_ranked: Tensor | None = None
    """Int64 [B]: number of candidates; None = unknown."""
    num_recommended: Tensor | None = None
    """Int64 [B]: length of the given list, or number of candidates with score >= `score_threshold`."""
    num_repeated: Tensor | None = None
    """Int64 [B]: number of entries of the given list that repeat an earlier entry; None = not counted."""
    num_invalid: Tensor | None = None
    """Int64 [B]: number of generated codes that no item has (`SemanticIds`); else None."""
    score_threshold: float | None = None
    """The threshold of `num_recommended`."""
    reach: Depth = field(default_factory=Depth)
    """The depth to which ranks are known."""
    violations: Violations = field(default_factory=Violations)
    """Rows that are left out because of bad values which did not raise at once."""
    made_with: Mapping[str, object] = field(default_factory=dict)
    """The options (ties, padding_idx, overlap) that the ranks were made with, as far as known."""
    kernels: Kernels | None = None
    """The kernels that counted the candidates; None = nothing was counted."""
    lists: Lists | None = None
    """The items of the top ranks; None = not asked for."""

    _derived: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def without_relevant(
        cls, rows: int, device: torch.device, score_threshold: float | None, graded: bool = False
    ) -> Self:
        """Return rows without a relevant item, made without scores; every field that a formula may read is set."""
        none = torch.zeros(rows, dtype=torch.int64, device=device)
        nothing = none.new_full((rows, 1), -1)
        nowhere = torch.full((rows, 1), torch.inf, dtype=float_dtype(device), device=device)
        return cls(
            found=RankedItems(nowhere, torch.zeros_like(nowhere) if graded else None),
            num_relevant=none,
            tied=none.bool(),
            unreachable=none.bool(),
            num_ranked=none,
            num_recommended=none,
            score_threshold=score_threshold,
            lists=Lists(nothing, nothing, num_items=0, history=nothing, asked=none.bool()),
        )

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        depth = "unknown depth"
        if self.reach.known:
            depth = "whole" if self.depth is None else f"first {self.depth}"
        return (
            f"Ranking({in_words(len(self))}, up to {self.ranks.shape[1]} relevant items, {depth}, {self.ranks.device})"
        )

    @property
    def ranks(self) -> Tensor:
        """Ranks of relevant items, float [B, T], ascending; 1 = best, `inf` = not ranked, beyond `depth` or padding."""
        return self.found.ranks

    @property
    def gains(self) -> Tensor | None:
        """Gains of the items in `ranks`, float [B, T] (0 = padding); None = every relevant item gains 1."""
        return self.found.gains

    @property
    def depth(self) -> int | None:
        """Number of ranks that are known; None = the whole ranking."""
        return self.reach.depth

    @property
    def invalid(self) -> Tensor | None:
        """Number of rows left out per kind of violation, int64 [len(VIOLATIONS)]; None = bad values raise at once."""
        return self.violations.counts

    @property
    def near(self) -> Tensor:
        """`ranks` [B, min(T, depth)] without columns beyond `depth`, where all are `inf`; with gains, all columns."""
        return self.ranks if self.depth is None or self.gains is not None else self.ranks[:, : self.depth]

    def hits(self, k: int | Tensor | None) -> Tensor:
        """Return which relevant items are in the top `k` (None = ranked at all; [B] = a `k` <= T per row), bool [B, T].

        Raises:
            ValueError: if ranks are not known down to `k`.
        """
        k = self._check_depth(k)
        if k is None:
            return self.ranks.isfinite()
        return self.ranks <= (k[:, None] if isinstance(k, Tensor) else k)

    def num_hits(self, k: int | Sequence[int] | Tensor | None) -> Tensor:
        """Return the number of relevant items in the top `k`, int64 [B], or [K, B] for several cut-offs.

        `k` is otherwise as in `hits`, and so are the errors.
        """
        if isinstance(k, Tensor):
            return self.num_within(self._check_depth(k))
        return _num_hits(self, None if k is None else check_cutoffs(k))

    def any_hit(self, k: int | Sequence[int] | None) -> Tensor:
        """Return which rows have a relevant item in the top `k`, bool [B], or [K, B] for several cut-offs.

        `k` is otherwise as in `hits`, and so are the errors.
        """
        return _any_hit(self, None if k is None else check_cutoffs(k))

    def num_within(self, rank: int | Tensor | None) -> Tensor:
        """Return the number of relevant items down to a rank (a number, [B], or [K, 1]) that may lie beyond `depth`."""
        if rank is None:
            return self.ranks.isfinite().sum(-1)
        last = rank if isinstance(rank, Tensor) else self.num_relevant.new_full((len(self),), rank)
        edges = last.T.expand(len(self), -1) if last.dim() == 2 else last[:, None]
        found = search(self.near, edges.to(self.ranks.dtype), right=True)  # ranks ascend
        return found.T if last.dim() == 2 else found[:, 0]

    def cutoffs(self, k: int | Sequence[int]) -> int | Tensor:
        """Return one cut-off as an int, several as a column that broadcasts against rows, int64 [K, 1]."""
        k = check_cutoffs(k)
        return k if isinstance(k, int) else _column(self, k)

    @property
    def hit_number(self) -> Tensor:
        """The numbers 1, 2, ..., T of a row's relevant items, best first: float [T]."""
        return torch.arange(1, self.ranks.shape[1] + 1, dtype=self.ranks.dtype, device=self.ranks.device)

    @property
    def ideal_gains(self) -> Tensor:
        """Gains of all relevant items, ranked or not, in descending order, then 0: float [B, T]."""
        if self.gains is None:
            return (self.hit_number <= self.num_relevant[:, None]).to(self.ranks.dtype)
        return _ideal_gains(self)

    @property
    def items(self) -> Tensor:
        """Ids of the top-ranked items, int64 [B, depth], best first; -1 = no item.

        Items of equal scores are in the order of their ids here, whatever `ties` says: a list has one order.

        Raises:
            ValueError: if the ranking was made from ranks, or without lists.
        """
        return _items(self)

    @property
    def relevant_items(self) -> Tensor:
        """Ids of the relevant items, int64 [B, T] in any order, -1 = padding; errors as in `items`."""
        return self.listed().relevant

    @property
    def entries(self) -> Tensor:
        """Mask of the entries of the given list that hold an item, bool [B, K]; errors as in `items`."""
        return self.listed().ids >= 0

    @property
    def repeated(self) -> Tensor:
        """Mask of the `entries` that repeat the item of an earlier entry, bool [B, K]; errors as in `items`."""
        ids, _, _, repeated, *_ = self.listed()
        return torch.zeros_like(ids, dtype=torch.bool) if repeated is None else repeated

    @property
    def history(self) -> Tensor:
        """Ids of the items that the row's user had before, int64 [B, H] in any order, negative = padding.

        Raises:
            ValueError: if the history was not given.
        """
        history = self.listed().history
        if history is None:
            raise ValueError(
                "the history of each row is read: update(..., history=), item ids [B, H], negative = padding; evaluate "
                "and callbacks take it from Catalogue.from_interactions(train)"
            )
        return history

    def listed(self) -> Lists:
        """Return the items of the top ranks as `Lists`; errors as in `items`."""
        if self.lists is None:
            raise ValueError(
                "which items stand first is not known: pass update(scores, ...), lists (Ranking.from_topk) or "
                "Ranking.from_scores(..., depth=, items=True); ranks do not tell"
            )
        return self.lists

    def with_lists(self, lists: Lists) -> Self:
        """Return the ranking with other `lists`."""
        if lists is self.lists:
            return self
        return replace(self, lists=lists)

    def within(self, depth: int | None) -> Self:
        """Return a copy that knows only the first `depth` ranks (None = all).

        Relevant items beyond `depth` count as not found.

        Raises:
            ValueError: if the ranking is not known down to `depth`.
        """
        if depth is not None:
            self._check_depth(depth)
        last = torch.inf if depth is None else depth

        def near(part: RankedItems) -> RankedItems:
            return part._replace(ranks=part.ranks.where(part.ranks <= last, torch.inf))

        penalties = None if self.penalties is None else near(self.penalties)
        reach = self.reach if depth is None else self.reach._replace(depth=depth, known=True)
        lists = self.lists
        if lists is not None and depth is not None:
            lists = lists._replace(ids=self.items[:, :depth], stays=None, repeated=None)
        return replace(self, found=near(self.found), penalties=penalties, reach=reach, lists=lists)

    def save(self, path: str | Path) -> None:
        """Write a file for `load`, and for `torch.load` with its default `weights_only=True`; tensors go to the CPU."""
        fields = {field_.name: getattr(self, field_.name) for field_ in dataclass_fields(self) if field_.init}
        write(path, "Ranking", {name: _plain(value) for name, value in fields.items()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the ranking of a file that `save` wrote, on the CPU.

        Raises:
            ValueError: for any other file.
        """
        held = read(path, "Ranking")
        given = {field_.name: held[field_.name] for field_ in dataclass_fields(cls) if field_.name in held}
        given["found"] = RankedItems(*given["found"])
        given["penalties"] = None if given["penalties"] is None else RankedItems(*given["penalties"])
        given["reach"], given["violations"] = Depth(*given["reach"]), Violations(*given["violations"])
        given["lists"] = None if given["lists"] is None else Lists(*given["lists"])
        return cls(**given)

    def __getstate__(self) -> dict[str, Any]:
        # cached values are left out: their keys hold functions that cannot be pickled
        return {**vars(self), "_derived": {}}

    def cut_short(self, k: int | Tensor) -> Tensor | None:
        """Return which rows are not known down to `k` (a number, [B] or [K, B]), bool in that shape; None = no row.

        Raises:
            ValueError: if there is such a row, and values are checked at once.
        """
        rows = self.reach.rows
        if rows is None:
            return None
        short = rows < k
        if self.violations.counts is not None:
            return short
        checks = Checks(True, rows.device, len(self))
        short_rows = short.any(0) if short.dim() == 2 else short
        twice = "" if self.reach.known else ", since rank {} stands twice in it"  # the only cause with plain ranks
        checks.reject(
            "list_short", short_rows, lambda row: f"row {row} to {int(rows[row])}{twice.format(int(rows[row]) + 1)}"
        )
        return None

    def _check_depth(self, k: int | Tensor | None) -> int | Tensor | None:
        """Return `k`, a number as an int, if the ranking is known down to `k`; else raise."""
        furthest = self.ranks.shape[1] if isinstance(k, Tensor) else k
        if k is not None and not isinstance(k, Tensor):
            furthest = k = check_k(k)
        if not self.reach.known and not isinstance(k, int):
            raise ValueError(DEPTH_UNKNOWN)
        if self.depth is not None and (furthest is None or furthest > self.depth):
            needed = "the whole ranking" if furthest is None else f"the first {furthest} places"
            raise ValueError(
                f"the metric needs {needed}, but the ranks are known to depth {self.depth} only: rank deeper (or, if "
                "nothing but these lists was recommended, Ranking.from_topk(..., complete=True))"
            )
        if k is not None:
            self.cut_short(k)
        return k


def _plain(value: Any) -> Any:
    """Return a field made of tensors on the CPU, numbers, text, lists and dicts, which `torch.load` accepts."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


P = TypeVar("P", bound=RankingData)
Made = TypeVar("Made")


def derived(make: Callable[[P, Unpack[More]], Made]) -> Callable[[P, Unpack[More]], Made]:
    """Cache the result of a function of a ranking in the ranking; torch.compile shares results without a cache."""

    @wraps(make)
    def kept(ranking: P, *arguments: Unpack[More]) -> Made:
        if is_traced():
            return make(ranking, *arguments)
        key = (make, *arguments)
        if key not in ranking._derived:
            ranking._derived[key] = make(ranking, *arguments)
        found: Made = ranking._derived[key]
        return found

    return kept


@derived
def _num_hits(ranking: RankingData, k: int | tuple[int, ...] | None) -> Tensor:
    for cutoff in k if isinstance(k, tuple) else (k,):
        ranking._check_depth(cutoff)
    return ranking.num_within(None if k is None else ranking.cutoffs(k))


@derived
def _any_hit(ranking: RankingData, k: int | tuple[int, ...] | None) -> Tensor:
    for cutoff in k if isinstance(k, tuple) else (k,):
        ranking._check_depth(cutoff)
    first = ranking.ranks[:, 0]
    return first.isfinite() if k is None else first <= ranking.cutoffs(k)


@derived
def _items(ranking: RankingData) -> Tensor:
    ids, _, stays, *_ = ranking.listed()
    if stays is None:
        return ids
    rows, last = ids.shape  # entries without a rank go to one more column, which is cut off
    places = (stays.cumsum(1) - 1).where(stays, last)
    return ids.new_full((rows, last + 1), -1).scatter(1, places, ids)[:, :last]


@derived
def _column(ranking: RankingData, k: tuple[int, ...]) -> Tensor:
    """Return cut-offs as int64 [K, 1], made on the device: a copy from the host could wait for the device."""
    return torch.cat([torch.full((1, 1), cutoff, device=ranking.ranks.device) for cutoff in k])


@derived
def _ideal_gains(ranking: RankingData) -> Tensor:
    assert ranking.gains is not None
    return ranking.gains.sort(dim=1, descending=True).values
