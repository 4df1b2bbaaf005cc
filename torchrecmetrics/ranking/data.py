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
    """Items of one kind at their places."""

    ranks: Tensor
    """Float [B, T], ascending, 1 = best; `inf` = not ranked, beyond the depth, or padding."""
    gains: Tensor | None = None
    """Float [B, T] beside them (0 = padding), or None where each gains 1."""
    group: Tensor | None = None
    """Int64 [B, T], the slot at which each entry's tie group begins, where its gains are to be averaged."""

    def placed(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Return transformed gains at the ranks, [B, T]; equal scores share their mean."""
        gains = transform(self.ranks.isfinite().to(self.ranks.dtype) if self.gains is None else self.gains)
        return gains if self.group is None else group_mean(gains, self.group)


class Depth(NamedTuple):
    """How far down ranks are known."""

    depth: int | None = None
    """This many places; None = all of them."""
    known: bool = True
    """False for bare ranks handed over without a depth: only metrics with a cut-off may read them."""
    rows: Tensor | None = None
    """Int64 [B]: places of each row, where that can be less."""


class Lists(NamedTuple):
    """The items in the first ranks, with history and relevant items."""

    ids: Tensor
    """Int64 [B, K], best first; negative = none."""
    relevant: Tensor
    """Int64 [B, T], ids of the row's relevant items in any order, -1 = padding."""
    stays: Tensor | None = None
    """Bool [B, K]: which of `ids` take a place, one after the other; None = all before the first negative one."""
    repeated: Tensor | None = None
    """Bool [B, K]: which of `ids` stand in front of it already; None = none."""
    num_items: int | None = None
    """All ids are below; None = that is not known."""
    history: Tensor | None = None
    """Int64 [B, H], items that the row's user had before, in any order, negative = padding; None = not given."""
    asked: Tensor | None = None
    """Bool [B]: which rows were to be given a list; None = all."""


@dataclass(frozen=True, eq=False, repr=False)
class RankingData:
    """Where the relevant items of a batch stand: the fields of `Ranking`."""

    found: RankedItems
    """The relevant items."""
    num_relevant: Tensor
    """Int64 [B]: relevant items of the row, ranked or not."""
    tied: Tensor
    """Bool [B]: a relevant item shares its score with another candidate, within the places that are read of its row."""
    unreachable: Tensor
    """Bool [B]: a relevant item is not a candidate (excluded, `-inf` or NaN)."""
    penalties: RankedItems | None = None
    """The items with a negative gain; only NDCG reads them."""
    num_ranked: Tensor | None = None
    """Int64 [B]: how many items were candidates, where known."""
    num_recommended: Tensor | None = None
    """Int64 [B]: length of the list handed in, or candidates with score >= `score_threshold`."""
    num_repeated: Tensor | None = None
    """Int64 [B]: entries of the list handed in that repeated an earlier one, where they leave it; else None."""
    num_invalid: Tensor | None = None
    """Int64 [B]: generated codes of no item (`SemanticIds`); else None."""
    score_threshold: float | None = None
    """Threshold of `num_recommended`."""
    reach: Depth = field(default_factory=Depth)
    """How far down this is known."""
    violations: Violations = field(default_factory=Violations)
    """Rows left out because of bad values that could not raise at once."""
    made_with: Mapping[str, object] = field(default_factory=dict)
    """The options (ties, padding_idx, overlap) that shaped the ranks, as far as known."""
    kernels: Kernels | None = None
    """Which kernels counted the candidates; None = nothing was counted."""
    lists: Lists | None = None
    """The items in the first places, where somebody asked for them."""

    _derived: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def without_relevant(
        cls, rows: int, device: torch.device, score_threshold: float | None, graded: bool = False
    ) -> Self:
        """Return rows that need no scores: nothing of theirs can be found; whatever a formula asks for is known."""
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
        """Float [B, T], ascending, 1 = best; `inf` = not ranked, beyond `depth`, or padding."""
        return self.found.ranks

    @property
    def gains(self) -> Tensor | None:
        """Float [B, T] beside `ranks` (0 = padding), or None where every relevant item gains 1."""
        return self.found.gains

    @property
    def depth(self) -> int | None:
        """Ranks are known down to this place; None = all of them."""
        return self.reach.depth

    @property
    def invalid(self) -> Tensor | None:
        """Int64 [len(VIOLATIONS)]: rows left out by kind, where they did not raise at once."""
        return self.violations.counts

    @property
    def near(self) -> Tensor:
        """`ranks` without the columns that no item within `depth` can reach, where all gain 1: [B, min(T, depth)]."""
        return self.ranks if self.depth is None or self.gains is not None else self.ranks[:, : self.depth]

    def hits(self, k: int | Tensor | None) -> Tensor:
        """Which relevant items stand in the first `k` places (None: anywhere; [B]: a row's own k <= T), bool [B, T].

        Raises:
            ValueError: if the ranking is not known so far down.
        """
        k = self._reached(k)
        if k is None:
            return self.ranks.isfinite()
        return self.ranks <= (k[:, None] if isinstance(k, Tensor) else k)

    def num_hits(self, k: int | Sequence[int] | Tensor | None) -> Tensor:
        """How many relevant items stand in the first `k` places, int64 [B], or [K, B] for several cut-offs.

        `k` and errors otherwise as in `hits`.
        """
        if isinstance(k, Tensor):
            return self.num_within(self._reached(k))
        return _num_hits(self, None if k is None else check_cutoffs(k))

    def any_hit(self, k: int | Sequence[int] | None) -> Tensor:
        """Return which rows have a relevant item in the first `k` ranks, bool [B], or [K, B] for several cut-offs.

        `k` and errors otherwise as in `hits`.
        """
        return _any_hit(self, None if k is None else check_cutoffs(k))

    def num_within(self, rank: int | Tensor | None) -> Tensor:
        """Count hits like `num_hits`, down to a rank (a number, [B], or [K, 1]) that may lie beyond `depth`."""
        if rank is None:
            return self.ranks.isfinite().sum(-1)
        last = rank if isinstance(rank, Tensor) else self.num_relevant.new_full((len(self),), rank)
        edges = last.T.expand(len(self), -1) if last.dim() == 2 else last[:, None]
        found = search(self.near, edges.to(self.ranks.dtype), right=True)  # ranks ascend
        return found.T if last.dim() == 2 else found[:, 0]

    def cutoffs(self, k: int | Sequence[int]) -> int | Tensor:
        """Return one cut-off as it is, several as a column that broadcasts against rows, int64 [K, 1]."""
        k = check_cutoffs(k)
        return k if isinstance(k, int) else _column(self, k)

    @property
    def hit_number(self) -> Tensor:
        """1, 2, 3, ... along a row, [T]: the i of "the i-th best relevant item"."""
        return torch.arange(1, self.ranks.shape[1] + 1, dtype=self.ranks.dtype, device=self.ranks.device)

    @property
    def ideal_gains(self) -> Tensor:
        """Gains of all relevant items, ranked or not, best first, 0 behind the last: [B, T]."""
        if self.gains is None:
            return (self.hit_number <= self.num_relevant[:, None]).to(self.ranks.dtype)
        return _ideal_gains(self)

    @property
    def items(self) -> Tensor:
        """Which items stand in the first places, int64 [B, depth], best first; -1 = none.

        Equal scores stand in the order of their ids here, whatever `ties` says: a list has one order.

        Raises:
            ValueError: if the ranking was made without them, or of ranks.
        """
        return _items(self)

    @property
    def relevant_items(self) -> Tensor:
        """Which items are relevant, int64 [B, T] in any order, -1 = padding; errors as in `items`."""
        return self.listed().relevant

    @property
    def entries(self) -> Tensor:
        """Which entries of the list, as it was handed in, hold an item, bool [B, K]; errors as in `items`."""
        return self.listed().ids >= 0

    @property
    def repeated(self) -> Tensor:
        """Which of `entries` hold an item that stands in front of them already, bool [B, K]; errors as in `items`."""
        ids, _, _, repeated, *_ = self.listed()
        return torch.zeros_like(ids, dtype=torch.bool) if repeated is None else repeated

    @property
    def history(self) -> Tensor:
        """Which items the row's user had before, int64 [B, H] in any order, negative = padding.

        Raises:
            ValueError: if it was not given.
        """
        history = self.listed().history
        if history is None:
            raise ValueError(
                "the history of each row is read: update(..., history=), item ids [B, H], negative = padding; evaluate "
                "and callbacks take it from Catalogue.from_interactions(train)"
            )
        return history

    def listed(self) -> Lists:
        """Return the items in the first ranks; errors as in `items`."""
        if self.lists is None:
            raise ValueError(
                "which items stand first is not known: pass update(scores, ...), lists (Ranking.from_topk) or "
                "Ranking.from_scores(..., depth=, items=True); ranks do not tell"
            )
        return self.lists

    def with_lists(self, lists: Lists) -> Self:
        """Return the same ranks with other lists."""
        if lists is self.lists:
            return self
        return replace(self, lists=lists)

    def within(self, depth: int | None) -> Self:
        """Return a copy that knows only the first ranks (None: all).

        Relevant items behind them count as not found.

        Raises:
            ValueError: if the ranking is not known so far down.
        """
        if depth is not None:
            self._reached(depth)
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
        """Write a file that `load` reads, and `torch.load` with its default `weights_only=True`; from the CPU."""
        fields = {field_.name: getattr(self, field_.name) for field_ in dataclass_fields(self) if field_.init}
        write(path, "Ranking", {name: _plain(value) for name, value in fields.items()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a file of `save`, to the CPU.

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
        # derived values are computed again; their keys are functions
        return {**vars(self), "_derived": {}}

    def cut_short(self, k: int | Tensor) -> Tensor | None:
        """Rows whose place `k` (a number, [B] or [K, B]) is unknown, bool in that shape; None where there are none.

        Raises:
            ValueError: if there are any, and values were checked at once.
        """
        rows = self.reach.rows
        if rows is None:
            return None
        short = rows < k
        if self.violations.counts is not None:
            return short
        checks = Checks(True, rows.device, len(self))
        short_rows = short.any(0) if short.dim() == 2 else short
        twice = "" if self.reach.known else ", since rank {} stands twice in it"  # of ranks, no other row is cut short
        checks.reject(
            "list_short", short_rows, lambda row: f"row {row} to {int(rows[row])}{twice.format(int(rows[row]) + 1)}"
        )
        return None

    def _reached(self, k: int | Tensor | None) -> int | Tensor | None:
        """Return `k` if the ranking is known so far down, else raise."""
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
    """Return a field as tensors on the CPU, numbers, text, and lists and dicts of these."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


P = TypeVar("P", bound=RankingData)
Made = TypeVar("Made")


def derived(make: Callable[[P, Unpack[More]], Made]) -> Callable[[P, Unpack[More]], Made]:
    """Cache a function of a ranking for the next formula (torch.compile shares by itself)."""

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
        ranking._reached(cutoff)
    return ranking.num_within(None if k is None else ranking.cutoffs(k))


@derived
def _any_hit(ranking: RankingData, k: int | tuple[int, ...] | None) -> Tensor:
    for cutoff in k if isinstance(k, tuple) else (k,):
        ranking._reached(cutoff)
    first = ranking.ranks[:, 0]
    return first.isfinite() if k is None else first <= ranking.cutoffs(k)


@derived
def _items(ranking: RankingData) -> Tensor:
    ids, _, stays, *_ = ranking.listed()
    if stays is None:
        return ids
    rows, last = ids.shape  # excluded items go behind the last rank
    places = (stays.cumsum(1) - 1).where(stays, last)
    return ids.new_full((rows, last + 1), -1).scatter(1, places, ids)[:, :last]


@derived
def _column(ranking: RankingData, k: tuple[int, ...]) -> Tensor:
    """Return cut-offs as int64 [K, 1]; without a copy from the host, which could wait."""
    return torch.cat([torch.full((1, 1), cutoff, device=ranking.ranks.device) for cutoff in k])


@derived
def _ideal_gains(ranking: RankingData) -> Tensor:
    assert ranking.gains is not None
    return ranking.gains.sort(dim=1, descending=True).values
