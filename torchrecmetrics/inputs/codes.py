"""`SemanticIds` and `Beams`: codes of items (tuples of integers), looked up in beams of a generative recommender."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import find_first, float_dtype, rowwise_isin, search, sort_rows
from torchrecmetrics.core.checks import Checks, check_choice, check_device, check_ids, check_k
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import ListedItems, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput, no_target
from torchrecmetrics.inputs.exclusion import Exclude
from torchrecmetrics.inputs.from_counts import TargetCounts, rank_counts
from torchrecmetrics.inputs.jagged import Spans
from torchrecmetrics.inputs.scores import check_padding_item
from torchrecmetrics.inputs.targets import Gains, Target, Targets

Shared: TypeAlias = Literal["tie", "first", "code"]
"""Treatment of items that share a code: all are tied, only the first is listed, or the code counts as one item."""
RepeatedBeams: TypeAlias = Literal["first", "keep_place"]
"""Treatment of a beam that repeats a code: dropped, or keeps its rank and is never a hit."""
InvalidBeams: TypeAlias = Literal["keep", "drop"]
"""Treatment of a beam whose code no item has: keeps its rank, or dropped."""

_MAX_SEEDS = 8
_BEHIND = 2**63 - 1  # sorts after positions of items and hashes of codes


class SemanticIds:
    """The codes of all items, for generative recommenders, which write the code of an item in place of its id.

    A code is L integers, and several items may share one. `beams` makes an input of `update` from generated codes: it
    finds the items of each code, and ranks them in the order of the codes. The index for this takes another 20 bytes
    per item on the codes' device.

    Args:
        codes: integers [I, L] >= 0: L levels per item.

    Raises:
        TypeError: for anything but integers.
        ValueError: for other shapes and negative codes.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> codes = trm.SemanticIds(torch.tensor([[0, 1], [0, 2], [0, 1]]))
        >>> codes
        SemanticIds(3 items, 2 codes of 2 levels, 2 items share one)
        >>> # one row of three beams, the last one of no item; items 0 and 2 are tied
        >>> beams = torch.tensor([[[0, 2], [0, 1], [1, 1]]])
        >>> codes.beams(beams, torch.tensor([2])).ranking().ranks
        tensor([[2.5000]], dtype=torch.float64)
    """

    def __init__(self, codes: Tensor) -> None:
        check_ids("codes", codes)
        if codes.dim() != 2 or 0 in codes.shape:
            raise ValueError(f"codes must be [items, levels], got {list(codes.shape)}")
        if int(codes.min()) < 0:
            item = int((codes < 0).any(1).nonzero()[0])
            raise ValueError(f"codes must be 0 or more; item {item} has {codes[item].tolist()}")
        self.codes: Tensor = codes
        for self._seed in range(_MAX_SEEDS):
            self._keys, self._order = _hash(codes, self._seed).sort(stable=True)
            same = self._keys[1:] == self._keys[:-1]
            at = same.nonzero()[:, 0]
            if bool((codes[self._order[at]] == codes[self._order[at + 1]]).all()):
                break  # without collisions, equal hashes are equal codes
        starts = torch.nn.functional.pad(~same, (1, 0), value=True).nonzero()[:, 0]
        lengths = torch.diff(starts, append=starts.new_tensor([len(codes)])).int()
        self._sizes = torch.zeros_like(self._order, dtype=torch.int32).index_put_((starts,), lengths)
        numbers = torch.arange(len(codes), dtype=torch.int32, device=codes.device)
        self.positions: Tensor = torch.empty_like(numbers).scatter_(0, self._order, numbers)
        """Position of each item in the order of hashes, where the items of a code are ascending, int32 [I]."""
        self._order = self._order.int()
        self.num_codes: int = len(starts)
        """Number of distinct codes."""
        self.num_shared: int = int(lengths[lengths > 1].sum())
        """Number of items that share their code with another item."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def num_levels(self) -> int:
        """Number of levels of a code, L."""
        return self.codes.shape[1]

    def __repr__(self) -> str:
        share = "no item shares one" if not self.num_shared else f"{self.num_shared:,} items share one"
        return f"SemanticIds({len(self):,} items, {self.num_codes:,} codes of {self.num_levels} levels, {share})"

    def to(self, device: str | torch.device) -> SemanticIds:
        """Return the same codes on another device."""
        return SemanticIds(self.codes.to(device))

    def report(self, size: int | None = None) -> CodeReport:
        """Return how well the codes use their levels, and how many items share codes; waits for the device.

        `size` is the number of possible values of a level; None = the largest value of all levels + 1.
        """
        fewest = int(self.codes.max()) + 1
        size = fewest if size is None else check_k(size, "size", fewest)
        counts = [torch.unique(level, return_counts=True)[1] for level in self.codes.unbind(1)]
        shares = [count.to(float_dtype(count.device)) / len(self) for count in counts]
        return CodeReport(
            num_items=len(self),
            num_codes=self.num_codes,
            most_items=int(self._sizes.max()),
            size=size,
            num_used=[len(count) for count in counts],
            entropy=[float(-(share * share.log2()).sum()) + 0.0 for share in shares],
            num_sharing=[self.prefix(levels).num_shared for levels in range(1, self.num_levels + 1)],
        )

    def prefix(self, levels: int) -> SemanticIds:
        """Return the codes cut to their first `levels` levels."""
        if not 1 <= check_k(levels, "prefix") <= self.num_levels:
            raise ValueError(f"prefix must be 1 to {self.num_levels} levels, got {levels}")
        return self if levels == self.num_levels else SemanticIds(self.codes[:, :levels])

    def beams(
        self,
        beams: Tensor,
        target: Target | None = None,
        *,
        target_codes: Tensor | None = None,
        gains: Gains | None = None,
        exclude: Exclude | None = None,
        shared: Shared = "tie",
        duplicates: RepeatedBeams = "first",
        invalid: InvalidBeams = "keep",
        prefix: int | None = None,
        complete: bool = False,
        history: Target | Spans | None = None,
    ) -> Beams:
        """Return generated codes as an input of `update`, which ranks their items.

        Metrics of lists read the items of each code in ascending order, or only its first item if codes are compared or
        repeated; the rank of a code without an item is empty. `Repeats` and `Invalid` read the beams.

        Args:
            beams: integers [B, K, L], best first; a row that ends earlier is filled up with -1. A beam whose levels are
                all negative is padding and has no rank; one with some negative levels is a code without an item.
            target: relevant items, row numbers of `codes`, as ids in `Scores`. If codes are compared,
                items of a row that share a code are one relevant item. None = no target, for metrics of lists.
            target_codes: in place of `target`, the code of one relevant item per row, [B, L]; a code without an item is
                always missed.
            gains: as in `Scores`. If codes are compared, gains for two items with one code are an error.
            exclude: item ids as in `Scores`, which are removed from the list; other items of a code stay, and a code is
                removed with its last item.
            shared: a code of m items is a "tie" of m items (default; see the metric's `ties`); or only its "first"
                item, as in repositories that map codes to items; or one item, "code", as in repositories that compare
                codes.
            duplicates: a repeated code is dropped ("first"), or keeps its rank without being a hit ("keep_place").
            invalid: a code that no item has keeps its rank ("keep"), or is dropped ("drop"); `num_invalid` counts all.
            prefix: number of first levels to evaluate, 1 to L; prefixes are compared as codes, whatever `shared` is.
            complete: True if nothing else was recommended; an item that is not listed is then a miss at every k.
            history: as in `Scores`.

        Returns:
            An input whose ranking has depth K, `num_repeated` and `num_invalid`.
        """
        check_choice("shared", shared, get_args(Shared))
        check_choice("duplicates", duplicates, get_args(RepeatedBeams))
        check_choice("invalid", invalid, get_args(InvalidBeams))
        check_ids("beams", beams)
        codes, entries = self, (beams >= 0).any(-1)
        if prefix is not None:
            codes, shared, beams = self.prefix(prefix), "code", beams[..., :prefix]
            target_codes = None if target_codes is None else target_codes[..., :prefix]
        return Beams(
            codes=codes,
            beams=beams,
            entries=entries,
            target=target,
            target_codes=target_codes,
            gains=gains,
            exclude=exclude,
            shared=shared,
            duplicates=duplicates,
            invalid=invalid,
            complete=complete,
            history=history,
        )

    def check(self, name: str, codes: Tensor, dims: int) -> None:
        """Raise unless `codes` have `dims` dimensions, all levels, and the device of the index."""
        check_ids(name, codes)
        check_device(name, codes, self.codes.device)
        if codes.dim() != dims or codes.shape[-1] != self.num_levels or 0 in codes.shape[1:]:
            accepted = "[rows, levels]" if dims == 2 else "[rows, beams, levels]"
            raise ValueError(f"{name} must be {accepted} with {self.num_levels} levels, got {list(codes.shape)}")

    def look_up(self, codes: Tensor) -> _Matches:
        """Look up codes [..., L] in the index of the items' codes."""
        keys = _hash(codes, self._seed).contiguous()
        start = torch.searchsorted(self._keys, keys).clamp_(max=len(self) - 1)
        found_codes = self.codes.index_select(0, self._order[start].flatten()).view_as(codes)
        has_item = (found_codes == codes).all(-1)
        return _Matches(start.where(has_item, -1), self._sizes[start].long().where(has_item, 0), keys)

    def item(self, start: Tensor, number: Tensor | int, removed: Tensor) -> Tensor:
        """Return item 0, 1, ... of the codes at `start` [B, D], without the positions `removed` [B, H], ascending."""
        at = start + number - search(removed, start)  # among the items that stay
        at = at + search(removed - torch.arange(removed.shape[1], device=removed.device), at, right=True)
        return self._order[at.clamp(0, len(self) - 1)].long()


@dataclass(frozen=True)
class CodeReport:
    """Use of the codes, level by level; the result of `SemanticIds.report`, which prints as a table."""

    num_items: int
    num_codes: int
    most_items: int
    """Largest number of items of one code."""
    size: int
    num_used: list[int]
    """Number of distinct values of each level."""
    entropy: list[float]
    """Entropy of the values of each level, in bits: log2(size) if all are equally frequent, 0 for a single value."""
    num_sharing: list[int]
    """Number of items that share their first 1, 2, ... levels with another item; the last counts collisions."""

    def __str__(self) -> str:
        lines = [f"{'level':>5}  {'used':>11}  {'entropy':>13}  share their code so far"]
        for level, (used, bits, sharing) in enumerate(zip(self.num_used, self.entropy, self.num_sharing, strict=True)):
            entropy, share = f"{bits:.2f} of {math.log2(self.size):.2f}", f"({sharing / self.num_items:.1%})"
            lines.append(f"{level + 1:>5}  {used:>4} of {self.size:>3}  {entropy:>13}  {sharing:,} {share}")
        longest, mean = sum(sharing > 0 for sharing in self.num_sharing), self.num_items / self.num_codes
        lines.append(f"{mean:.2f} items per code, at most {self.most_items}; longest shared prefix: {longest} levels")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Beams(BatchInput):
    """Generated codes with the relevant items; `SemanticIds.beams` makes it and documents its fields."""

    codes: SemanticIds
    beams: Tensor
    entries: Tensor
    """Bool [B, K]: False for padding."""
    target: Target | None
    target_codes: Tensor | None
    gains: Gains | None
    exclude: Exclude | None
    shared: Shared
    duplicates: RepeatedBeams
    invalid: InvalidBeams
    complete: bool
    history: Target | Spans | None = None

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Find the relevant items among the items of the generated codes."""
        index, beams, entries = self.codes, self.beams, self.entries
        index.check("beams", beams, 3)
        check_padding_item(options, len(index))
        rows, depth, _ = beams.shape
        checks = Checks(options.validate_args, beams.device, rows)
        targets, target_matches = self._targets(needs, options, checks)
        matches, removed = index.look_up(beams), self._removed(targets)
        ranked = self._ranked_beams(matches, removed)
        counts = self._counts(targets, target_matches, ranked)
        if needs.list_depth:
            counts = counts._replace(lists=self._lists(targets, target_matches, ranked, removed, needs, checks))
        length = ranked.num_ranks.sum(1)
        needs, depth_of_list = needs._replace(score_threshold=None), None if self.complete else depth
        ranking = rank_counts(counts, needs, options, checks, depth_of_list, made_with=("ties", "overlap"))
        return replace(
            ranking,
            row_depth=None if self.complete else torch.where(entries.all(1), length.clamp(max=depth), depth),
            num_repeated=ranked.repeated.sum(1),
            num_invalid=ranked.without_item.sum(1),
        )

    def _targets(self, needs: Needs, options: Options, checks: Checks) -> tuple[Targets, _Matches]:
        """Return the targets, and the matches of their codes in the index."""
        index, rows = self.codes, len(self.beams)
        if self.target_codes is not None and self.exclude is not None:
            raise ValueError("exclude= needs target= (item row numbers), since target_codes= names no items")
        target, matches = self._target(rows, needs, options)
        targets = Targets.read(target, self.gains, self.exclude, (rows, len(index)), options, checks)
        if targets.excluded is not None and targets.excluded.masks:
            raise TypeError("exclude with codes must be item ids of each row, got a bool")
        if matches is not None:
            return targets._replace(may_rank=targets.may_rank & (matches.size > 0)), matches
        codes = index.codes[targets.ids]
        matches = index.look_up(codes)
        if self.shared == "code" and codes.shape[1] > 1:
            targets = _one_per_code(targets, codes, matches, checks)
        return targets, matches

    def _target(self, rows: int, needs: Needs, options: Options) -> tuple[Target, _Matches | None]:
        """Return the item ids of the targets and, if codes were given, their matches in the index (else None).

        A code without an item gets the id of any item other than padding.
        """
        index, codes = self.codes, self.target_codes
        if self.target is not None and codes is None:
            return self.target, None
        if self.target is not None or (codes is None and needs.target):
            raise ValueError("give either target, item row numbers, or target_codes")
        if codes is None:
            return no_target(rows, self.beams.device), None
        index.check("target_codes", codes, 2)
        if len(codes) != rows:
            raise ValueError(f"target_codes must be [{rows}, {index.num_levels}], got {list(codes.shape)}")
        matches = _Matches(*(field[:, None] for field in index.look_up(codes)))
        ids = index.item(matches.start, 0, torch.full_like(matches.start, _BEHIND))
        return ids.where(matches.size > 0, int(options.padding_idx == 0)), matches

    def _removed(self, targets: Targets) -> Tensor:
        """Return the positions of excluded items in the index, int64 [B, H], ascending."""
        excluded = None if targets.excluded is None else targets.excluded.ids()
        if excluded is None:
            return torch.full_like(targets.ids[:, :1], _BEHIND)
        leaves = excluded >= 0
        leaves[:, 1:] &= excluded[:, 1:] != excluded[:, :-1]  # ids are ascending: count a repeated id once
        if targets.kept is not None:
            leaves = leaves & ~rowwise_isin(excluded, sort_rows(targets.ids.where(targets.kept, -1)))
        return sort_rows(self.codes.positions[excluded.clamp(min=0)].long().where(leaves, _BEHIND))

    def _ranked_beams(self, matches: _Matches, removed: Tensor) -> _RankedBeams:
        """Return the beams with the number of items that each lists, and of ranks that it takes."""
        repeated = self.entries & _repeated(self.beams, matches.key.where(self.entries, _BEHIND))
        size = matches.size.clamp(max=1) if self.shared == "first" else matches.size
        size = size - (search(removed, matches.start + size) - search(removed, matches.start))
        size = size.clamp(max=1) if self.shared == "code" else size
        without_item = self.entries & (matches.size == 0)
        num_ranks = size + without_item.long() if self.invalid == "keep" else size
        num_ranks = num_ranks.clamp(max=int(self.duplicates == "keep_place")).where(repeated, num_ranks)
        return _RankedBeams(matches.start, size, repeated, without_item, num_ranks)

    def _counts(self, targets: Targets, target_matches: _Matches, ranked: _RankedBeams) -> TargetCounts:
        """Return for each target the number of ranks before the beam that lists it, and of items of this beam."""
        beam, present = find_first(ranked.start, target_matches.start)
        size = ranked.size.masked_fill(ranked.repeated, 0).gather(1, beam)
        is_listed = present & (size > 0)
        if self.shared == "first":
            is_listed = is_listed & (self.codes.positions[targets.ids] == target_matches.start)
        better = ranked.num_before.gather(1, beam).to(float_dtype(self.beams.device))
        return TargetCounts(
            relevant=targets.relevant,
            penalised=None if targets.gains is None else targets.penalised,
            gains=targets.gains,
            missing=~targets.may_rank,
            better=better.masked_fill(~is_listed, torch.inf),
            group_size=size.where(is_listed, 1),
            num_ranks=self.beams.shape[1] + len(self.codes),
            num_recommended=ranked.num_ranks.sum(1),
        )

    def _lists(
        self,
        targets: Targets,
        target_matches: _Matches,
        ranked: _RankedBeams,
        removed: Tensor,
        needs: Needs,
        checks: Checks,
    ) -> ListedItems:
        """Return the items at the ranks that metrics read."""
        num_listed = min(needs.list_depth, self.beams.shape[1] + len(self.codes))
        index, (rows, depth, _) = self.codes, self.beams.shape
        ranks = torch.arange(num_listed, device=self.beams.device).expand(rows, -1)
        num_before = ranked.num_before
        beam = search(num_before + ranked.num_ranks, ranks, right=True)
        ended, beam = beam == depth, beam.clamp(max=depth - 1)
        ids = index.item(ranked.start.gather(1, beam), ranks - num_before.gather(1, beam), removed)
        relevant = targets.ids
        if self.shared == "code":  # the item that a code lists represents a relevant item
            relevant = index.item(target_matches.start, 0, removed).where(targets.may_rank, relevant)
        return ListedItems(
            ids.masked_fill(ended | (ranked.size.gather(1, beam) == 0), -1),
            relevant.where(targets.relevant & (target_matches.size > 0), -1),
            repeated=ranked.repeated,
            num_items=len(index),
            history=self.read_history(needs, checks),
            entries=self.entries,
            invalid=ranked.without_item,
        )


class _Matches(NamedTuple):
    """Matches of codes [...] in the index of `SemanticIds`."""

    start: Tensor  # int64: index of the code's first item in the order of hashes; -1 = no item has the code
    size: Tensor  # int64: how many items have the code
    key: Tensor  # int64: hash of the code


class _RankedBeams(NamedTuple):
    """Beams with their items and ranks, [B, K]."""

    start: Tensor  # int64: as in `_Matches`
    size: Tensor  # int64: number of items that the beam lists, whether it is a repeat or not
    repeated: Tensor  # bool: repeats the code of an earlier beam
    without_item: Tensor  # bool: no item has the code
    num_ranks: Tensor  # int64: number of ranks that the beam takes

    @property
    def num_before(self) -> Tensor:
        """Number of ranks that earlier beams take, int64."""
        return self.num_ranks.cumsum(1) - self.num_ranks


def _one_per_code(targets: Targets, codes: Tensor, matches: _Matches, checks: Checks) -> Targets:
    """Keep one target per code: the first that may rank, or else the first."""
    keys = (2 * matches.start - targets.may_rank.long()).where(targets.is_item, _BEHIND)
    twice = targets.is_item & _repeated(codes, keys)
    if targets.gains is not None:
        checks.reject("target_repeat", twice, partial(_gains_detail, targets=targets, twice=twice))
    return targets._replace(
        is_item=targets.is_item & ~twice, relevant=targets.relevant & ~twice, may_rank=targets.may_rank & ~twice
    )


def _repeated(codes: Tensor, keys: Tensor) -> Tensor:
    """Return which codes [B, K, L] equal the code before them in the order of the keys [B, K], bool [B, K]."""
    slot = keys.argsort(dim=1, stable=True)
    in_order = codes.gather(1, slot[..., None].expand_as(codes))
    repeats = torch.nn.functional.pad((in_order[:, 1:] == in_order[:, :-1]).all(-1), (1, 0))
    return torch.zeros_like(repeats).scatter(1, slot, repeats)


def _gains_detail(row: int, targets: Targets, twice: Tensor) -> str:
    return (
        f"row {row} has gains for item {int(targets.ids[row][twice[row]][0])} and for another one of the same "
        "code; if codes are compared, give one item per code, with the gain of the code"
    )


def _hash(codes: Tensor, seed: int) -> Tensor:
    """Return a hash of the levels of each code [..., L], int64 [...]."""
    mixed = torch.full(codes.shape[:-1], seed, dtype=torch.int64, device=codes.device)
    for level in codes.unbind(-1):
        mixed = (mixed ^ level.long()) * -7046029254386353131  # 0x9E3779B97F4A7C15
        mixed = mixed ^ ((mixed >> 29) & (2**35 - 1))
    return mixed
