"""Where the relevant items stand in each user's ranking: the only room that sees scores.

`Ranking` is what every metric reads. `get_topk_ranks` is the same kernel's answer as a plain integer tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.inputs import (
    ID_DTYPES,
    SCORE_DTYPES,
    Checks,
    Exclude,
    Excluded,
    Validation,
    check_choice,
    check_cutoffs,
    check_device,
    check_ids,
    check_integer_target,
    check_k,
    check_padding_idx,
    check_score_threshold,
    check_scores,
    count_above,
    count_at_least,
    describe,
    entries,
    float_dtype,
    overlap_detail,
    running_sums,
    search,
    shown,
)
from torchrecmetrics.kernels import KernelChoice, Kernels, Products, choose, count, look_up

Ties: TypeAlias = Literal["optimistic", "realistic", "pessimistic"]
Overlap: TypeAlias = Literal["error", "keep", "miss"]

#: `get_topk_ranks` writes this where a row is invalid and its device cannot raise without waiting.
INVALID_RANK = torch.iinfo(torch.int64).min

DEPTH_UNKNOWN = "depth unknown: pass update(ranks, depth=...), or scores, or a Ranking"


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Where the relevant items of a batch stand: all that a metric needs to know. A row is one ranking.

    Make one with `from_scores`, `from_topk`, `from_ranks` or `from_flat`; the fields are for reading.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3]])
        >>> trm.Ranking.from_scores(scores, torch.tensor([[2, 0]])).ranks
        tensor([[2., 4.]], dtype=torch.float64)
    """

    ranks: Tensor
    """Float [B, T], ascending, 1 = best; `inf` = not ranked, beyond `depth`, or padding."""
    num_relevant: Tensor
    """Int64 [B]: relevant items of the row, ranked or not."""
    tied: Tensor
    """Bool [B]: a relevant item within `depth` shares its score with another candidate."""
    unreachable: Tensor
    """Bool [B]: a relevant item is not a candidate (excluded, `-inf` or NaN)."""
    gains: Tensor | None = None
    """Float [B, T] beside `ranks` (0 = padding), or None where every relevant item gains 1."""
    penalties: tuple[Tensor, Tensor] | None = None
    """(ranks, gains) [B, T] of the items with a negative gain; only NDCG reads them."""
    num_ranked: Tensor | None = None
    """Int64 [B]: how many items were candidates, where known."""
    num_recommended: Tensor | None = None
    """Int64 [B]: length of the list handed in, or candidates with score >= `score_threshold`."""
    score_threshold: float | None = None
    """What `num_recommended` was counted with."""
    depth: int | None = None
    """Ranks are known down to this place; None = all of them."""
    depth_known: bool = True
    """False for bare ranks handed over without a depth: only metrics with a cut-off may read them."""
    row_depth: Tensor | None = None
    """Int64 [B]: places that each row is known to, where that can be less than `depth`."""
    rejected: Tensor | None = None
    """Bool [B]: rows left out because of bad values; None = none."""
    invalid: Tensor | None = None
    """Int64 [len(VIOLATIONS)]: rejected rows by kind, where they did not raise at once."""
    made_with: dict[str, object] | None = None
    """The options (ties, padding_idx, overlap) that shaped the ranks, as far as known."""
    tie_groups: tuple[Tensor, Tensor] | None = None
    """For `ranks` and `penalties`: the slot at which each entry's tie group begins, where gains must be averaged."""

    kernels: Kernels | None = None
    """Which kernels counted the candidates; None = nothing was counted."""

    _cache: dict[object, Tensor] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        depth = ("whole" if self.depth is None else f"first {self.depth}") if self.depth_known else "unknown depth"
        return f"Ranking({len(self)} rows, up to {self.ranks.shape[1]} relevant items, {depth}, {self.ranks.device})"

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
            return self.num_in_front(self._reached(k))
        k = None if k is None else check_cutoffs(k)
        return self.shared(("hits", k), lambda: self.num_in_front(self._all_reached(k)))

    def num_in_front(self, place: int | Tensor | None) -> Tensor:
        """Count hits like `num_hits`, down to a place (or [K, 1] places) that may lie behind what is known."""
        last = torch.finfo(self.ranks.dtype).max if place is None else place
        edge = last[..., None] if isinstance(last, Tensor) else last
        if self.ranks.numel() < 2**15:  # to wake threads for a search would take longer
            return (self.ranks <= edge).sum(-1)
        if isinstance(last, Tensor) and last.dim() == 2:
            edges = last.to(self.ranks.dtype).T.expand(len(self), -1)
            return search(self.ranks, edges, right=True).T
        edge = edge.to(self.ranks.dtype) if isinstance(edge, Tensor) else self.ranks.new_full((len(self), 1), edge)
        return search(self.ranks, edge, right=True)[:, 0]  # ranks ascend

    def cutoffs(self, k: int | tuple[int, ...]) -> int | Tensor:
        """Return one cut-off as it is, several as a column, int64 [K, 1]."""
        if isinstance(k, int):
            return k
        return self.shared(("cutoffs", k), lambda: torch.cat([self.num_relevant.new_full((1, 1), one) for one in k]))

    def _all_reached(self, k: int | tuple[int, ...] | None) -> int | Tensor | None:
        """Return `k` as `cutoffs` do if the ranking is known so far down, else raise."""
        for one in k if isinstance(k, tuple) else (k,):
            self._reached(one)
        return None if k is None else self.cutoffs(k)

    def _reached(self, k: int | Tensor | None) -> int | Tensor | None:
        """Return `k` if the ranking is known so far down, else raise."""
        furthest = self.ranks.shape[1] if isinstance(k, Tensor) else k
        if k is not None and not isinstance(k, Tensor):
            furthest = k = check_k(k)
        if not self.depth_known and not isinstance(k, int):
            raise ValueError(DEPTH_UNKNOWN)
        if self.depth is not None and (furthest is None or furthest > self.depth):
            needed = "the whole ranking" if furthest is None else f"the first {furthest} places"
            raise ValueError(
                f"the metric needs {needed}, but the ranks are known to depth {self.depth} only (if nothing else was "
                "recommended: Ranking.from_topk(..., complete=True))"
            )
        if k is not None and self.invalid is None and (short := self.cut_below(k)) is not None:
            Checks(True, short.device, len(self)).reject(
                "list_short",
                short,
                lambda row: f"row {row} to {int(self.row_depth[row])}",  # type: ignore[index]
            )
        return k

    def shared(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Return what metrics have in common, made by the first that asks (torch.compile shares by itself)."""
        if torch.compiler.is_compiling():
            return make()
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    @property
    def discounts(self) -> Tensor:
        """1 / log2(1 + rank), [B, T]; 0 for what was not found."""
        return self.shared("discounts", lambda: torch.log2(1 + self.ranks).reciprocal_())

    def cut_below(self, k: int | Tensor) -> Tensor | None:
        """Rows whose place `k` is unknown though others' is not, bool [B]; None where there can be none."""
        return None if self.row_depth is None else self.row_depth < k

    @property
    def hit_number(self) -> Tensor:
        """1, 2, 3, ... along a row, [T]: the i of "the i-th best relevant item"."""
        return torch.arange(1, self.ranks.shape[1] + 1, dtype=self.ranks.dtype, device=self.ranks.device)

    def placed_gains(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Return transformed gains at `ranks`, [B, T]; equal scores share their mean."""
        gains = transform(self.ranks.isfinite().to(self.ranks.dtype) if self.gains is None else self.gains)
        return gains if self.tie_groups is None else _group_mean(gains, self.tie_groups[0])

    def placed_penalties(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Return transformed gains at the ranks of `penalties`, [B, T]; equal scores share their mean."""
        if self.penalties is None:
            return torch.zeros_like(self.ranks)
        gains = transform(self.penalties[1])
        return gains if self.tie_groups is None else _group_mean(gains, self.tie_groups[1])

    @property
    def ideal_gains(self) -> Tensor:
        """Gains of all relevant items, ranked or not, best first, 0 behind the last: [B, T]."""
        gains = self.gains
        if gains is None:
            return (self.hit_number <= self.num_relevant[:, None]).to(self.ranks.dtype)
        return self.shared("ideal_gains", lambda: gains.sort(dim=1, descending=True).values)

    @classmethod
    @torch.no_grad()
    def from_scores(
        cls,
        scores: Tensor,
        target: Tensor,
        *,
        gains: Tensor | None = None,
        exclude: Exclude | None = None,
        depth: int | None = None,
        ties: Ties = "realistic",
        padding_idx: int | None = None,
        overlap: Overlap = "error",
        score_threshold: float | None = None,
        max_relevant: int | None = None,
        validate_args: Validation = True,
        kernels: KernelChoice = "auto",
    ) -> Ranking:
        """Rank every item by its score and look up the relevant ones.

        Args:
            scores: float64, float32, float16 or bfloat16 [B, I], higher is better. `-inf` = not a candidate; NaN and
                `+inf` are errors (unchecked, NaN is worse than every number and never a hit). Never modified.
            target: relevant items. Integers [B] or [B, T] are item ids, negative = padding; bool [B, I] is dense;
                floats [B, I] are graded: > 0 relevant, the value is the gain. Dense targets cost one host sync.
            gains: number [B, T] beside id targets: > 0 relevant, 0 not relevant, < 0 a penalty that only NDCG reads.
            exclude: items that leave the candidates (history): ids [B] or [B, H], bool [B, I], bool [I] for every row,
                or a tuple of these. Repeated ids count once.
            depth: places that will be asked for; relevant items behind them get rank `inf`. None = the whole list.
            ties: where an item among equal scores stands: "realistic" (its expected place), "optimistic" or
                "pessimistic".
            padding_idx: this id is padding in target and exclude, and its column is never a candidate.
            overlap: a relevant item that is also excluded is an "error", stays a candidate ("keep"), or is a "miss".
            score_threshold: count the candidates with score >= this in `num_recommended`.
            max_relevant: width for dense targets, which then need no host sync; a row with more entries other than 0 is
                an error.
            validate_args: True = check values at once on the CPU and count violations elsewhere; "deferred" = count
                everywhere; False = no value checks.
            kernels: what counts: "eager" (PyTorch, any device), "triton" (CUDA) or "auto" (Triton's on cards where a
                run is on record, else eager). `Ranking.kernels` says which it was.

        Raises:
            TypeError: for a dtype that is not accepted.
            ValueError: for shapes or devices that do not fit, kernels that cannot run there and, on the CPU, for bad
                values.
        """
        return rank(
            scores,
            target,
            gains=gains,
            exclude=exclude,
            depth=depth,
            ties=ties,
            padding_idx=padding_idx,
            overlap=overlap,
            score_threshold=score_threshold,
            max_relevant=max_relevant,
            validate_args=validate_args,
            kernels=kernels,
        )

    @classmethod
    @torch.no_grad()
    def from_topk(
        cls,
        item_ids: Tensor,
        target: Tensor,
        *,
        gains: Tensor | None = None,
        exclude: Exclude | None = None,
        complete: bool = False,
        padding_idx: int | None = None,
        overlap: Overlap = "error",
        validate_args: Validation = True,
    ) -> Ranking:
        """Read a recommender's lists: `LightGCN.recommend`, FAISS, a two-stage retriever.

        Args:
            item_ids: integer [B, K], best first. A negative id = the recommender had no more items; it takes no
                place. An item listed twice is an error.
            target: integer ids [B] or [B, T], negative = padding.
            gains: as in `from_scores`.
            exclude: ids [B, H], bool [B, I], bool [I] or a tuple: these items leave the list and those behind move up.
                A row left with fewer places than a metric's k is an error unless its recommender had no more items
                (a negative id): fetch k + history.
            complete: the lists are all that is recommended; an item that is not listed is a miss at every k.
            padding_idx: this id is padding in target and exclude, and leaves the list like an excluded item.
            overlap: as in `from_scores`.
            validate_args: as in `from_scores`.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> lists = torch.tensor([[7, 3, 9], [4, 8, -1]])
            >>> trm.Ranking.from_topk(lists, torch.tensor([[9, 1], [4, -1]])).ranks
            tensor([[3., inf],
                    [1., inf]], dtype=torch.float64)
        """
        check_choice("overlap", overlap, get_args(Overlap))
        padding_idx = check_padding_idx(padding_idx)
        check_ids("item_ids", item_ids)
        if item_ids.dim() != 2 or item_ids.shape[1] == 0:
            raise ValueError(f"item_ids must be [rows, places] with at least one place, got {list(item_ids.shape)}")
        check_integer_target(target, "from_topk")
        rows, depth = item_ids.shape
        if target.dim() == 2 and len(target) == 2 != rows:
            raise ValueError(
                f"target ids must be [{rows}] or [{rows}, T], got {list(target.shape)}; an edge_index is "
                "brought to padded ids by Interactions.from_edge_index(...).select(rows).items"
            )
        device = item_ids.device
        checks = Checks(validate_args, device, rows)
        ids, listed, gain = entries(target, gains, (rows, None), device, padding_idx, None, checks)
        excluded = Excluded(exclude, (rows, None), device, padding_idx, checks)

        item_ids = item_ids.long()
        given = item_ids >= 0
        removed = given & excluded.contains(item_ids, given)
        if padding_idx is not None:
            removed |= given & (item_ids == padding_idx)
        relevant = listed if gain is None else listed & (gain > 0)
        shared = relevant & excluded.contains(ids, listed)
        if overlap == "error" and checks.enabled:
            checks.reject("overlap", shared, lambda row: overlap_detail(row, ids, shared))
        by_id, slot = item_ids.where(given, -1).sort(dim=1)
        if checks.enabled:
            again = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)
            if padding_idx is not None:
                again &= by_id[:, 1:] != padding_idx
            checks.reject("list_repeat", again, lambda row: f"row {row} is {shown(item_ids[row])}")
        found = search(by_id, ids).clamp(max=depth - 1)
        at = slot.gather(1, found)
        present = listed & (by_id.gather(1, found) == ids)
        if overlap == "keep":
            kept = (shared & present).to(torch.int64)
            removed &= torch.zeros_like(item_ids).scatter_add_(1, at, kept) == 0
        stays = given & ~removed
        place = stays.cumsum(1)
        kept_target = present & stays.gather(1, at)
        if checks.rejected is not None:
            relevant = relevant & ~checks.rejected[:, None]
        values = place.gather(1, at).to(float_dtype(device))
        ranks, order = values.where(kept_target & relevant, torch.inf).sort(dim=1, stable=True)
        penalties = None
        if gain is not None:
            negative = kept_target & (gain < 0)
            penalties = (values.where(negative, torch.inf), gain.where(negative, 0))
        length = stays.sum(1)
        cut = exclude is not None or padding_idx is not None
        row_depth = None
        if cut and not complete and checks.enabled:
            row_depth = length.where(given.all(1), depth)
        none = torch.zeros(rows, dtype=torch.bool, device=device)
        return cls(
            ranks=ranks,
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=shared.any(1) if overlap == "miss" else none,
            gains=None if gain is None else gain.where(relevant, 0).gather(1, order),
            penalties=penalties,
            num_recommended=length,
            depth=None if complete else depth,
            row_depth=row_depth,
            rejected=checks.rejected,
            invalid=checks.invalid,
            made_with={"padding_idx": padding_idx, "overlap": overlap},
        )

    @classmethod
    @torch.no_grad()
    def from_ranks(
        cls,
        ranks: Tensor,
        *,
        depth: int | None = None,
        num_ranked: int | Tensor | None = None,
        depth_known: bool = True,
        validate_args: Validation = True,
    ) -> Ranking:
        """Take ranks made elsewhere, of the whole list unless a depth is known.

        Args:
            ranks: integers or floats [B], [B, 1] or [B, T], 1 = best; `<= 0` is padding; `inf`, or a rank beyond
                `depth`, is a relevant item that was missed.
            depth: places that were looked at; None = what the tensor says (`get_topk_ranks`), or the whole list.
            num_ranked: candidates a row, a number or integer [B]; AUROC needs it.
            depth_known: False if the ranks may have been cut at a depth nobody told: metrics without a cut-off refuse.
            validate_args: as in `from_scores`.
        """
        return cls._from_ranks(ranks, depth, num_ranked, depth_known, validate_args)

    @classmethod
    @torch.no_grad()
    def _from_ranks(
        cls,
        ranks: Tensor,
        depth: int | None,
        num_ranked: int | Tensor | None,
        depth_known: bool,
        validate_args: Validation,
        columns: int | None = None,
    ) -> Ranking:
        """Take ranks; `columns`: look no further than so many places."""
        if not isinstance(ranks, Tensor) or ranks.dtype not in (*ID_DTYPES, *SCORE_DTYPES):
            raise TypeError(f"ranks must be an integer or float tensor, got {describe(ranks)}")
        cut_at = getattr(ranks, "depth", None)
        if depth is None:
            depth = cut_at
        elif check_k(depth, "depth") > (cut_at or depth):
            raise ValueError(f"depth={depth} was given for ranks that were cut at {cut_at}")
        depth_known = depth_known or depth is not None
        if ranks.dim() == 1:
            ranks = ranks[:, None]
        if ranks.dim() != 2:
            raise ValueError(f"ranks must be [B] or [B, T], got {list(ranks.shape)}")
        if ranks.shape[1] == 0:
            ranks = ranks.new_zeros(len(ranks), 1)
        device = ranks.device
        if isinstance(num_ranked, Tensor):
            check_ids("num_ranked", num_ranked)
            if num_ranked.shape != (len(ranks),) or num_ranked.device != device:
                raise ValueError(
                    f"num_ranked must be a number or [{len(ranks)}] on {device}, got {describe(num_ranked)}"
                )
        elif num_ranked is not None and num_ranked != 0:
            num_ranked = check_k(num_ranked, "num_ranked")
        checks = Checks(validate_args, device, len(ranks))
        dtype = float_dtype(device)
        relevant = ranks > 0
        if ranks.is_floating_point():
            last = torch.inf
            placed = ranks.to(dtype).where(relevant, last).sort(dim=1).values
        else:  # integers sort faster; none of them is as large as this
            kind = torch.int64 if columns is None else torch.int32
            last = torch.iinfo(kind).max
            wanted = relevant if columns is None else relevant & (ranks <= columns)
            placed = ranks.to(kind).where(wanted, last).sort(dim=1).values
            if columns is not None and columns + 1 < placed.shape[1]:
                placed = placed[:, : columns + 1].contiguous()  # of so many in the first places, two share one
        row_depth = None
        if checks.enabled:
            if ranks.is_floating_point():  # places among equal scores may be averages; i of them add up to 1 + ... + i
                wrong = ranks.isnan() | (relevant & (ranks < 1))
                number = torch.arange(1, placed.shape[1] + 1, dtype=dtype, device=device)
                wrong |= running_sums(placed) < number * (number + 1) / 2 * (1 - 1e-9)
            else:
                wrong = ranks == INVALID_RANK
                again = placed[:, 1:] == placed[:, :-1]
                again &= placed[:, 1:] <= depth if depth is not None else placed[:, 1:] < last
                if depth_known:
                    wrong[:, 1 : placed.shape[1]] |= again
                elif ranks.shape[1] > 1 and (device.type != "cpu" or again.any()):
                    # a place taken twice is the k + 1 of somebody's "not in the top k"
                    repeated = placed[:, 1:].where(again, last).amin(1)
                    row_depth = repeated.long() - 1
            if num_ranked is not None:
                beyond = placed > (num_ranked[:, None] if isinstance(num_ranked, Tensor) else num_ranked)
                beyond &= placed <= depth if depth is not None else placed < last
                wrong[:, : placed.shape[1]] |= beyond
            checks.reject("ranks", wrong, lambda row: f"row {row} is {shown(ranks[row])}")
        if columns is not None and columns < placed.shape[1]:
            placed = placed[:, :columns].contiguous()
        if not ranks.is_floating_point():
            placed = placed.to(dtype).masked_fill_(placed == last, torch.inf)
        if checks.rejected is not None:
            relevant &= ~checks.rejected[:, None]
            placed = placed.where(~checks.rejected[:, None], torch.inf)
        if num_ranked is not None and not isinstance(num_ranked, Tensor):
            num_ranked = torch.full((len(ranks),), num_ranked, dtype=torch.int64, device=device)
        none = torch.zeros(len(ranks), dtype=torch.bool, device=device)
        return cls(
            ranks=placed if columns is not None and depth is not None and columns <= depth else _cut(placed, depth),
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=none,
            num_ranked=num_ranked,
            depth=depth,
            depth_known=depth_known,
            row_depth=row_depth,
            rejected=checks.rejected,
            invalid=checks.invalid,
        )

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
    ) -> Ranking:
        """Read torchmetrics' flat retrieval triple: one entry per (query, candidate) pair.

        Rows come out in ascending order of query id; all entries of a query must be in the same call. Costs host
        syncs: how many queries there are is data.

        Args:
            scores: float [E].
            target: [E]; bool or number, > 0 relevant, the value is the gain.
            indexes: integer [E], the query each entry belongs to.
            ties: as in `from_scores`.
            validate_args: as in `from_scores`.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> scores, target = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0, 1, 0])
            >>> trm.Ranking.from_flat(scores, target, torch.tensor([0, 0, 0])).ranks
            tensor([[2.]], dtype=torch.float64)
        """
        check_scores(scores, dims=1)
        check_ids("indexes", indexes)
        if not isinstance(target, Tensor) or not (target.shape == indexes.shape == scores.shape):
            raise ValueError(
                f"scores, target and indexes must be tensors of one shape, got {describe(scores)}, "
                f"{describe(target)} and {describe(indexes)}"
            )
        check_choice("ties", ties, get_args(Ties))
        for name, tensor in (("target", target), ("indexes", indexes)):
            check_device(name, tensor, scores.device)
        # entries by query, best first; where a run of equal scores begins and how long it is
        queries, query = torch.unique(indexes, return_inverse=True)
        rows = len(queries)
        checks = Checks(validate_args, scores.device, rows)
        order = scores.where(~scores.isnan(), -torch.inf).argsort(descending=True, stable=True)
        order = order[query[order].argsort(stable=True)]
        query, scores, target = query[order], scores[order], target[order]
        if checks.enabled:
            unusable = torch.zeros(rows, dtype=torch.bool, device=scores.device)
            unusable[query[scores.isnan() | (scores == torch.inf)]] = True
            checks.reject("scores", unusable, lambda row: f"query {int(queries[row])}")
        usable = scores > -torch.inf
        start = _run_starts(query)
        run = torch.maximum(start, _run_starts(scores))
        run_length = torch.bincount(run, minlength=len(run))[run]
        gain = target.to(float_dtype(scores.device))
        if checks.enabled:
            odd = torch.zeros(rows, dtype=torch.bool, device=scores.device)
            odd[query[~gain.isfinite()]] = True
            checks.reject("gains", odd, lambda row: f"query {int(queries[row])}")

        picked = gain.nonzero()[:, 0]
        row = query[picked]
        size = torch.bincount(row, minlength=rows)
        slot = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
        width = max(1, int(size.max())) if rows else 1

        def table(values: Tensor, fill: int | bool) -> Tensor:
            out = torch.full((rows, width), fill, dtype=values.dtype, device=values.device)
            out[row, slot] = values[picked]
            return out

        listed = table(torch.ones_like(usable), False)
        if checks.rejected is not None:
            listed &= ~checks.rejected[:, None]
        gains = table(gain, 0)
        located = _Located(
            ids=table(order, 0),
            listed=listed,
            relevant=listed & (gains > 0),
            candidate=listed & table(usable, False),
            scores=table(scores, 0),
            better=table(run - start, 0),
            group_size=table(run_length, 0),
            gains=None if target.dtype == torch.bool else gains,
            num_ranked=torch.bincount(query[usable], minlength=rows),
            num_recommended=None,
            checks=checks,
            kernels=None,
        )
        return cls._from_located(located, None, ties, None, {"ties": ties})

    @classmethod
    def _from_located(
        cls,
        located: _Located,
        depth: int | None,
        ties: Ties,
        score_threshold: float | None,
        made_with: dict[str, object],
    ) -> Ranking:
        """Place the located items and keep what metrics need."""
        secondary = None
        if located.gains is not None:
            secondary = located.gains if ties == "pessimistic" else -located.gains
        placed = _place(located, located.relevant & located.candidate, ties, secondary)
        ranks = _cut(placed.ranks, depth)
        group_size = located.group_size.gather(1, placed.order)
        sorted_gains = penalties = tie_groups = None
        if located.gains is not None:
            negative = located.listed & (located.gains < 0)
            # the mirror image: a policy that is kind to relevant items puts unwanted ones at the back
            mirrored: dict[Ties, Ties] = {"optimistic": "pessimistic", "pessimistic": "optimistic"}
            unwanted = _place(located, negative & located.candidate, mirrored.get(ties, ties), secondary)
            sorted_gains = located.gains.where(located.relevant, 0).gather(1, placed.order)
            penalties = (
                _cut(unwanted.ranks, depth),
                located.gains.where(negative, 0).gather(1, unwanted.order),
            )
            tie_groups = (placed.group, unwanted.group) if ties == "realistic" else None
        return cls(
            ranks=ranks,
            num_relevant=located.relevant.sum(1),
            tied=((ranks < torch.inf) & (group_size > 1)).any(1),
            unreachable=(located.relevant & ~located.candidate).any(1),
            gains=sorted_gains,
            penalties=penalties,
            num_ranked=located.num_ranked,
            num_recommended=located.num_recommended,
            score_threshold=score_threshold,
            depth=depth,
            rejected=located.checks.rejected,
            invalid=located.checks.invalid,
            made_with=made_with,
            tie_groups=tie_groups,
            kernels=located.kernels,
        )


class ScoreRows(NamedTuple):
    """Scores [B, I] made for some rows at a time, in memory that the kernel may overwrite: the cheapest exclusion."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    parts: Callable[[], Iterable[Tensor]]  # consecutive rows; each part is valid until the next


@torch.no_grad()
def rank(
    scores: Tensor | ScoreRows | Products,
    target: Tensor,
    *,
    depth: int | None,
    ties: Ties,
    padding_idx: int | None,
    overlap: Overlap,
    score_threshold: float | None,
    **options: Any,
) -> Ranking:
    """`Ranking.from_scores`, and what only the package itself says: scores it makes, and whether to `count_ranked`."""
    depth = None if depth is None else check_k(depth, "depth")
    located = _locate(scores, target, depth, ties, padding_idx, overlap, score_threshold, **options)
    made_with: dict[str, object] = {"ties": ties, "padding_idx": padding_idx, "overlap": overlap}
    return Ranking._from_located(located, depth, ties, score_threshold, made_with)


@torch.no_grad()
def get_topk_ranks(
    scores: Tensor,
    target: Tensor,
    k: int,
    *,
    exclude: Exclude | None = None,
    ties: Ties = "realistic",
    padding_idx: int | None = None,
    overlap: Overlap = "error",
    validate_args: Validation = True,
    kernels: KernelChoice = "auto",
) -> Tensor:
    """Rank of each target in its row's ranking, as far as the first `k` places.

    Args:
        scores: float [B, I], higher is better (see `Ranking.from_scores`).
        target: integer ids [B] or [B, T], negative = padding.
        k: places looked at, >= 1.
        exclude: as in `Ranking.from_scores`.
        ties: as in `Ranking.from_scores`; realistic places are rounded up, which changes no hit at any cut-off.
        padding_idx: as in `Ranking.from_scores`.
        overlap: as in `Ranking.from_scores`.
        validate_args: as in `Ranking.from_scores`.
        kernels: as in `Ranking.from_scores`.

    Returns:
        int64 [B, T] beside `target` ([B, 1] for [B]): 1 = first, `k + 1` = not in the top k, 0 = padding. Off the CPU
        an invalid row holds the smallest int64, which `metric.update` counts. The tensor carries `.depth = k`.

    Raises:
        TypeError: for a dtype that is not accepted.
        ValueError: for `k` < 1, shapes or devices that do not fit and, on the CPU, for bad values.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]])
        >>> trm.get_topk_ranks(scores, torch.tensor([[2, 0], [0, -1]]), k=3)
        tensor([[2, 4],
                [1, 0]])
    """
    k = check_k(k)
    check_integer_target(target, "get_topk_ranks")
    located = _locate(
        scores,
        target,
        k,
        ties,
        padding_idx,
        overlap,
        None,
        exclude=exclude,
        validate_args=validate_args,
        kernels=kernels,
        count_ranked=False,
    )
    placed = _place(located, located.relevant & located.candidate, ties, located.ids)
    places = _cut(placed.ranks, k).ceil().nan_to_num(posinf=k + 1).to(torch.int64)
    ranks = torch.empty_like(places).scatter_(1, placed.order, places)
    ranks = ranks.where(located.listed, 0)
    if located.checks.rejected is not None:
        ranks = ranks.where(~located.checks.rejected[:, None], INVALID_RANK)
    if target.dim() == 2:
        ranks = ranks[:, : target.shape[1]]
    ranks.depth = k  # type: ignore[attr-defined]
    return ranks


# ---------------------------------------------------------------------------------------------------------- the kernel


class _Located(NamedTuple):
    """What scores say about the targets; every tensor [B, T] stands beside the given ids."""

    ids: Tensor  # int64, clamped into the catalogue
    listed: Tensor  # bool, not padding
    relevant: Tensor  # bool
    candidate: Tensor  # bool, takes part in the ranking
    scores: Tensor  # float
    better: Tensor  # int64, candidates with a higher score
    group_size: Tensor  # int64, candidates with the same score, itself included
    gains: Tensor | None
    num_ranked: Tensor | None  # int64 [B]
    num_recommended: Tensor | None  # int64 [B]
    checks: Checks
    kernels: Kernels | None


class _Placed(NamedTuple):
    """Members of a class (relevant, or unwanted items) sorted best first."""

    order: Tensor  # int64 [B, T], the slot each came from
    ranks: Tensor  # float [B, T], ascending, inf for non-members
    group: Tensor  # int64 [B, T], the sorted slot at which the tie group begins


def _locate(
    scores: Tensor | ScoreRows | Products,
    target: Tensor,
    depth: int | None,
    ties: Ties,
    padding_idx: int | None,
    overlap: Overlap,
    score_threshold: float | None,
    *,
    gains: Tensor | None = None,
    exclude: Exclude | None = None,
    max_relevant: int | None = None,
    validate_args: Validation = True,
    kernels: KernelChoice = "auto",
    count_ranked: bool = True,
) -> _Located:
    """Count, for every target, the candidates that score higher and those that score the same.

    Without `count_ranked`, and to a depth, `num_ranked` is left out: it costs a read of its own.
    """
    check_choice("ties", ties, get_args(Ties))
    check_choice("overlap", overlap, get_args(Overlap))
    if not isinstance(scores, (ScoreRows, Products)):
        check_scores(scores, dims=2)
    rows, items = scores.shape
    device = scores.device
    chosen = choose(kernels, device)
    padding_idx = check_padding_idx(padding_idx)
    if padding_idx is not None and padding_idx >= items:
        raise ValueError(f"padding_idx must be an item id in 0..{items - 1}, got {padding_idx}")
    score_threshold = check_score_threshold(score_threshold)
    checks = Checks(validate_args, device, rows)
    ids, listed, gain = entries(target, gains, (rows, items), device, padding_idx, max_relevant, checks)
    relevant = listed if gain is None else listed & (gain > 0)
    excluded = Excluded(exclude, (rows, items), device, padding_idx, checks)
    shared, may_rank = torch.zeros_like(listed), listed
    if excluded:
        out_of_play = excluded.contains(ids, listed)
        shared = relevant & out_of_play
        if overlap == "error" and checks.enabled:
            checks.reject("overlap", shared, lambda row: overlap_detail(row, ids, shared))
        may_rank = listed & (shared | ~out_of_play if overlap == "keep" else ~out_of_play)
    floors = [] if score_threshold is None else [_round_up(score_threshold, scores.dtype)]
    if count_ranked or depth is None:
        floors.append(torch.finfo(scores.dtype).min)

    found: list[tuple[Tensor, ...]] = []
    start = 0
    parts: Iterable[Tensor | Products] = scores.parts() if isinstance(scores, ScoreRows) else (scores,)
    for part in parts:
        row = slice(start, start + part.shape[0])
        start += part.shape[0]
        own = look_up(part, ids[row])
        takes_part = may_rank[row] & (own > -torch.inf)
        overwritten = removed = None
        if isinstance(scores, ScoreRows):
            assert isinstance(part, Tensor)
            overwritten = excluded.overwrite(part, row)
        else:
            removed = excluded.subtracted(partial(look_up, part))
        counts = count(
            part,
            own.where(takes_part, torch.nan),
            depth=depth,
            floors=floors,
            masks=[mask[row] if mask.dim() == 2 else mask for mask in excluded.masks],
            removed=removed,
            kernels=chosen,
        )
        highest = counts.highest if overwritten is None else torch.maximum(counts.highest, overwritten)
        found.append((own, takes_part, *counts[:3], highest))
    own, candidate, better, equal, reached, highest = (
        found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    )
    if checks.enabled:
        checks.reject("scores", ~(highest < torch.inf), lambda row: f"the highest of row {row} is {highest[row]}")
    at_least = list(reached.unbind(1))
    if overlap == "keep":  # excluded items were left out: put those back that compete all the same
        kept = own.where(shared, -torch.inf).sort(dim=1).values
        above = count_above(kept, own)
        better, equal = better + above, equal + count_at_least(kept, own) - above
        at_least = [number + (kept >= floor).sum(1) for number, floor in zip(at_least, floors, strict=True)]
    if depth is not None:
        # there `equal` may be anything; no place that is made from this is within reach
        better = better.masked_fill(better >= depth, 2**40)
    if checks.rejected is not None:
        sound = ~checks.rejected[:, None]
        listed, relevant, candidate = listed & sound, relevant & sound, candidate & sound
    return _Located(
        ids=ids,
        listed=listed,
        relevant=relevant,
        candidate=candidate,
        scores=own,
        better=better,
        group_size=equal,
        gains=gain,
        num_ranked=at_least.pop() if count_ranked or depth is None else None,
        num_recommended=at_least.pop() if at_least else None,
        checks=checks,
        kernels=chosen,
    )


def _round_up(threshold: float, dtype: torch.dtype) -> float:
    """Return the smallest number of `dtype` >= `threshold`: comparing with it is comparing with `threshold`."""
    near = torch.tensor(threshold, dtype=dtype, device="cpu")
    if float(near) < threshold:
        near = torch.nextafter(near, torch.tensor(torch.inf, dtype=dtype, device="cpu"))
    return float(near)


def _place(located: _Located, member: Tensor, ties: Ties, secondary: Tensor | None) -> _Placed:
    """Sort members by score, best first, and give each its place; `secondary` orders the members of a tie group."""
    dtype = float_dtype(member.device)
    slot = torch.arange(member.shape[1], device=member.device)
    untied = located.gains is None and member.device.type == "cpu"
    if untied and not (member & (located.group_size > 1)).count_nonzero():
        ranks, order = (located.better + 1).to(dtype).where(member, torch.inf).sort(dim=1)
        return _Placed(order, ranks, slot.expand(member.shape))
    key = located.scores.to(dtype).where(member, -torch.inf)
    if secondary is None:
        key, order = key.sort(dim=1, descending=True)  # which of two equals stands first changes no rank
    else:
        first = secondary.argsort(dim=1, stable=True)
        key, second = key.gather(1, first).sort(dim=1, descending=True, stable=True)
        order = first.gather(1, second)
    group = search(-key, -key)
    members = (search(-key, -key, right=True) - group).to(dtype)
    number = (slot + 1 - group).to(dtype)
    better = located.better.gather(1, order).to(dtype)
    size = located.group_size.gather(1, order).to(dtype)
    if ties == "optimistic":
        ranks = better + number
    elif ties == "pessimistic":
        ranks = better + size - members + number
    else:
        ranks = better + number * (size + 1) / (members + 1)
    return _Placed(order, ranks.where(member.gather(1, order), torch.inf), group)


def _run_starts(values: Tensor) -> Tensor:
    """For each entry the index at which its run of equal values begins, int64 [E]."""
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[1:] = values[1:] != values[:-1]
    return torch.arange(len(values), device=values.device).where(begins, 0).cummax(0).values


def _cut(ranks: Tensor, depth: int | None) -> Tensor:
    return ranks if depth is None else ranks.where(ranks <= depth, torch.inf)


def _group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Replace each value by the mean of its tie group; `group` is the slot at which it begins."""
    total = torch.zeros_like(values).scatter_add(1, group, values)
    count = torch.zeros_like(values).scatter_add(1, group, torch.ones_like(values))
    return (total / count).gather(1, group)
