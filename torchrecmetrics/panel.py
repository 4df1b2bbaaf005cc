"""What a batch adds to metrics that read it together: every formula is asked once, all sums are one reduction."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.arrays import constant, float_dtype, is_traced, keep
from torchrecmetrics.checks import (
    VIOLATIONS,
    Checks,
    Cutoffs,
    check_ids,
    check_strided,
    check_tensor,
    describe,
    no_violations,
    shown,
)
from torchrecmetrics.held import Increments, Summed, Tallies, Tally
from torchrecmetrics.items import Catalogue
from torchrecmetrics.options import EmptyTargetAction, Formula
from torchrecmetrics.pending import Pending
from torchrecmetrics.ranking import Needs, Ranking
from torchrecmetrics.ranking.joined import Rankable, entries_of, placed
from torchrecmetrics.ranking.places import Lists, by_place, half_places
from torchrecmetrics.ranking.rules import Rules
from torchrecmetrics.state import SummedMetric


class Reader(Summed, Protocol):
    """What a `Panel` asks of a metric; see `RankingMetric`."""

    formula: ClassVar[Formula]
    many_cutoffs: ClassVar[bool]
    is_ours: ClassVar[bool]
    weighs_rows: ClassVar[bool]
    of_lists: ClassVar[bool]
    of_items: ClassVar[bool]
    always_defined: bool
    k: int | None
    options: dict[str, Any]
    catalogue: Catalogue | None
    rules: Rules
    empty_target_action: EmptyTargetAction

    @property
    def arguments(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def takes_k(self) -> bool: ...  # noqa: D102
    @property
    def needs(self) -> Needs: ...  # noqa: D102
    def increments(self, listed: ListedRows, made: Made) -> Increments: ...  # noqa: D102
    def row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor: ...  # noqa: D102


Made: TypeAlias = dict[Any, tuple[Tensor, Tensor]]
"""What metrics make of a batch, by what it depends on: those that ask the same share it."""


class Grouped(NamedTuple):
    """Which group each row of a batch belongs to."""

    codes: Tensor
    """Int64 [B], -1 = none."""
    number: int
    """How many groups there are."""


class ListedRows(NamedTuple):
    """The lists of a batch, for those who count in how many each item stands."""

    items: Tensor  # int64 [B, D], best first, -1 = none
    counted: Tensor | None  # bool [B]; None = all rows count
    invalid: Tensor | None  # int64 [metrics or 1, kinds]; None = none
    ranking: Ranking | None = None  # what else is known of the rows; None = they were kept without it


M = TypeVar("M", bound=Reader)

# Numbers from which the CPU adds several matrices up apart sooner than it puts them together.
_MANY = 2**14


class Panel(Generic[M]):
    """Metrics that read the same batches, with the same rules for empty rows and for validation."""

    def __init__(self, metrics: Sequence[M]) -> None:
        of_rows = [metric for metric in metrics if not metric.of_items]
        alike = _alike(of_rows)
        self.given: tuple[M, ...] = tuple(metrics)
        self.metrics: tuple[M, ...] = tuple(of_rows[place] for places in alike for place in places)
        """Those that are means over rows, in the order in which they are asked, which is that of all that follows."""
        self.of_items: tuple[M, ...] = tuple(metric for metric in metrics if metric.of_items)
        """Those that count in how many lists each item stands."""
        self.members: tuple[M, ...] = self.metrics + self.of_items
        """All of them, in the order of `tallies`."""
        self.needs: Needs = Needs.union(metric.needs for metric in metrics)
        self._by_rules = {metric.rules: metric for metric in reversed(self.members)}
        self._always_defined = all(metric.always_defined for metric in self.metrics)
        self._weigh_rows = any(metric.weighs_rows for metric in self.metrics)
        accuracy = tuple(not metric.of_lists for metric in self.metrics)
        # which of them judge accuracy: one entry if none does, and none at all without metrics that are means over rows
        self._accuracy = accuracy if any(accuracy) else accuracy[:1]
        self._reads_lists = bool(self.needs.lists) or not all(accuracy)
        self._questions = [_Question.to([of_rows[place] for place in places]) for places in alike]
        ours = all(metric.is_ours and not metric.of_lists for metric in of_rows)
        beside = self.needs.num_ranked or self.needs.score_threshold is not None
        self._reads_places = ours and not beside and len(alike) > 1  # a single formula takes no longer than a look-up
        self._by_place = constant(self._values_by_place)
        self._all_ours = all(metric.is_ours for metric in metrics)
        self._reset_alike = all(type(metric).reset is SummedMetric.reset for metric in metrics)
        self._counted: set[Hashable] = set()  # kinds of rankings that were counted
        self._pending = Pending(self.members, len(self.of_items), self._count)

    def rows(self, ranking: Ranking, weights: Tensor | None = None, groups: Grouped | None = None) -> BatchRows:
        """Compute what each row of `ranking` adds to the metrics, touching none.

        Raises:
            ValueError: if one of them cannot use it.
        """
        device, rows = ranking.ranks.device, ranking.ranks.shape[0]
        for rules, metric in self._by_rules.items():
            if (contradiction := rules.contradiction(ranking.made_with)) is not None:
                raise ValueError(f"{metric.label} {contradiction}")
        self._pending.check_ready(device)
        metric = self.members[0]
        action, dtype = metric.empty_target_action, float_dtype(device)
        # an error that was asked for is given even where values are not checked otherwise
        checks = Checks(metric.rules.validate_args or action == "error", device, rows)
        accuracy, asked = None, None
        if self._reads_lists:
            lists = _inside(ranking.listed(), self.needs, checks)
            ranking, asked = ranking if lists is ranking.lists else ranking.listing(lists), lists.asked
        if not all(self._accuracy):
            accuracy = _mask(self._accuracy, device)[:, None]
        values = self.values(ranking)
        faults = ranking.faults
        empty = ranking.num_relevant == 0
        if faults.rows is not None:
            empty = empty > faults.rows  # those have no relevant item either
        if action == "error" and not all(each.of_lists or each.of_items for each in self.members):
            checks.reject("empty", empty, lambda row: f"row {row}")
        elif action in ("neg", "pos"):
            filled = empty if accuracy is None else empty & accuracy
            values = values.masked_fill(filled, 0.0 if action == "neg" else 1.0)
        if groups is not None:
            groups = groups._replace(codes=_check_groups(groups, rows, device, checks))
        short = None
        if checks.enabled and ranking.reach.rows is not None:
            whole = ranking.num_relevant
            furthest = [whole if each.k is None else whole.new_full((rows,), each.k) for each in self.members]
            short = ranking.cut_short(torch.stack(furthest))
        counted = None  # all rows; those that are faulty hold nothing that could be noted
        if weights is not None:
            weights = _check_weights(weights, rows, device, checks).to(dtype)
            counted = weights > 0
        found = (faults.counts, None if checks.rejected is None else checks.faults.counts)
        invalid = [counts for counts in found if counts is not None]
        wrong = [rows for rows in (faults.rows, checks.rejected) if rows is not None]
        # under "skip" they leave accuracy by themselves: nothing is relevant in them
        leave = action == "skip" and accuracy is None and not self.of_items
        if wrong and (counted is not None or short is not None or not leave):
            counted = _both(counted, ~(wrong[0] if len(wrong) == 1 else wrong[0] | wrong[1]))
        violations = sum(invalid[1:], invalid[0])[None] if invalid else None
        listed = None
        if self.of_items:
            listed = ListedRows(ranking.items, _both(counted, asked), violations, ranking)
        if short is not None and counted is not None and violations is not None:
            short = short if faults.rows is None else short > faults.rows
            violations = violations.repeat(len(self.members), 1)
            violations[:, list(VIOLATIONS).index("list_short")] += short.sum(1)
            of_rows = len(self.metrics)
            listed = None if listed is None else listed._replace(invalid=violations[of_rows:])
            short, violations = short[:of_rows], violations[:of_rows]
            counted = counted & ~short
        if any(self._accuracy):
            judged = ranking.num_relevant > 0 if action == "skip" else None
            if accuracy is not None:
                of_lists = ~accuracy if asked is None else asked > accuracy
                judged = (accuracy if judged is None else accuracy & judged) | of_lists
        else:
            judged = asked
        used = _both(counted, judged)
        if ranking.gains is not None or not self._always_defined:
            used = _both(used, ~values.isnan())
        used = torch.ones_like(empty) if used is None else used
        used = used if used.dim() == 2 else used[None]
        values = keep(values, used, 0)
        if weights is not None:
            weights = keep(weights, used, 0)
        if self._weigh_rows:
            own = (used.to(dtype) if weights is None else weights).expand(values.shape)
            several = zip(self.metrics, own, strict=True)
            weights = torch.stack([each.row_weights(ranking, row) for each, row in several])
            used = used & (weights > 0)
        notes = torch.stack([empty, ranking.unreachable, ranking.tied])[:, None]
        if accuracy is not None:
            notes = notes & accuracy
        if counted is not None:
            notes = notes & counted
        return BatchRows(values, weights, used, notes, violations, listed, groups)

    def tallies(self, rows: BatchRows) -> Tallies:
        """Return what a batch adds to each of `members`."""
        long: list[Increments] = []
        if (listed := rows.listed) is not None:
            made: Made = {}
            each = [listed] * len(self.of_items)
            if listed.invalid is not None and len(listed.invalid) > 1:
                each = [listed._replace(invalid=one[None]) for one in listed.invalid.unbind()]
            long = [metric.increments(its, made) for metric, its in zip(self.of_items, each, strict=True)]
        return Tallies(rows.tally() if self.metrics else None, long)

    def add(self, tallies: Tallies | None) -> None:
        """Add a batch to `members`; None: it waits."""
        if tallies is not None:
            self._pending.add(tallies)

    def unrecorded(self, kept: bool) -> AbstractContextManager[object]:
        """Read a batch without autograd: in inference mode, where calls cost less.

        What is `kept`, or may be by another's formula, is made as ever, and so is what is traced.
        """
        return torch.inference_mode() if self._all_ours and not kept and not is_traced() else torch.no_grad()

    def take(self, batch: Rankable, given: bool) -> Tallies | None:
        """Let a batch wait for others to be counted with, or return what it adds.

        It may wait if one of its kind has been added: nothing can be wrong with it that was not with that. `given` is
        one that somebody else holds, too.
        """
        strict = self.members[0].empty_target_action == "error"
        # what another's formula refuses, it does at once
        kind = self._pending.kind_of(batch) if self._all_ours and not strict else None
        (rows, width), device = (entries := entries_of(batch)).shape, entries.device
        if kind is not None and self.needs.each_relevant:  # whether it is known so far down
            kind = (kind, width)
        if kind not in self._counted:
            tallies = self.tallies(self.rows(placed(batch)))
            if kind is not None:
                self._counted.add(kind)
            return tallies
        if kind != self._pending.kind:
            self._pending.check_ready(device)
        if self._reads_lists:
            assert batch.lists is not None  # or none of its kind would have been added
            checks = Checks(self.members[0].rules.validate_args, device, rows)
            if checks.at_once:
                _inside(batch.lists, self.needs, checks)
        self._pending.wait(batch, kind, given)
        return None

    def reset(self) -> bool:
        """Forget what waits, and the states of `members` if they are here; return whether they were."""
        self._pending.forget()
        if not self._pending.is_holding or not self._reset_alike:
            return False
        self._pending.reset()
        return True

    def _count(self, batch: Rankable) -> Tallies:
        """Return what a batch that has waited adds."""
        with self.unrecorded(kept=False):
            return self.tallies(self.rows(placed(batch)))

    def values(self, ranking: Ranking) -> Tensor:
        """Value of each row for each metric, float [metrics, B]; anything in rows without a relevant item."""
        if not self._questions:
            return ranking.ranks.new_zeros((0, len(ranking)))
        alone = ranking.ranks.shape[1] == 1 and ranking.gains is None
        if self._reads_places and alone and (depth := ranking.few_places) is not None:
            return by_place(self._by_place(depth, ranking.ranks.device), ranking.ranks[:, 0])
        return self._asked(ranking)

    def _values_by_place(self, depth: int, device: torch.device) -> Tensor:
        """Values of rows whose only relevant item stands at each of `half_places`: [metrics, 2 * depth]."""
        return self._asked(Ranking.from_ranks(half_places(depth, device), depth=depth, validate_args=False))

    def _asked(self, ranking: Ranking) -> Tensor:
        """Ask every formula."""
        parts = [question.ask(ranking) for question in self._questions]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(ranking.ranks.dtype)


class _Question(NamedTuple):
    """A formula with its options, asked once for some metrics."""

    label: str
    kind: type[Reader]
    metrics: int
    k: tuple[Any, ...]
    options: dict[str, Any]
    within: Needs | None  # what an own formula may see; None = everything

    @classmethod
    def to(cls, metrics: Sequence[Reader]) -> _Question:
        """Ask for metrics that differ in their cut-offs alone."""
        first = metrics[0]
        k: tuple[Any, ...] = ()
        if first.takes_k:
            k = (Cutoffs(metric.k or 0 for metric in metrics) if len(metrics) > 1 else first.k,)
        # what is beside an own formula changes nothing, nor does it change that
        beside = first.many_cutoffs or first.needs.each_relevant or first.is_ours
        return cls(first.label, type(first), len(metrics), k, first.arguments, None if beside else first.needs)

    def ask(self, ranking: Ranking) -> Tensor:
        """Return a row for each of the metrics, [metrics, B]."""
        several = self.metrics
        read = ranking if self.within is None else ranking.within(self.within.depth)
        formula = self.kind.formula
        found = getattr(formula, "unmasked", formula)(read, *self.k, **self.options)
        rows, device = ranking.ranks.shape[0], ranking.ranks.device
        shape = (several, rows) if several > 1 else (rows,)
        if not isinstance(found, Tensor) or found.shape != shape or found.device != device:
            what = f"a row for each of the cut-offs {self.k[0]}, " if several > 1 else "one value a row, "
            raise TypeError(
                f"the formula of {self.label} must return {what}a tensor {list(shape)} on {device}, got "
                f"{describe(found)}{f' on {found.device}' if isinstance(found, Tensor) else ''}"
            )
        return found if several > 1 else found[None]


def _alike(metrics: Sequence[Reader]) -> list[list[int]]:
    """Put together the places of metrics whose formula takes all their cut-offs at once."""
    alike: list[list[int]] = []
    for place, metric in enumerate(metrics):
        for places in alike if metric.many_cutoffs and metric.k is not None else ():
            other = metrics[places[0]]
            same = type(metric).formula is type(other).formula and metric.options == other.options
            if same and metric.catalogue is other.catalogue and other.k is not None:
                places.append(place)
                break
        else:
            alike.append([place])
    return alike


class BatchRows(NamedTuple):
    """What each row of a batch adds to some metrics; a matrix has a row for each of them, or one if all agree."""

    values: Tensor  # float [metrics, B], 0 where the row is not used
    weights: Tensor | None  # float [metrics or 1, B], 0 where the row is not used; None = 1 where it is
    used: Tensor  # bool [metrics or 1, B]
    notes: Tensor  # bool [3, metrics or 1, B]: skipped, unreachable, tied
    invalid: Tensor | None  # int64 [metrics or 1, kinds]: violations of the batch; None = none
    listed: ListedRows | None = None  # where items are counted
    groups: Grouped | None = None  # where groups of rows have values of their own

    def tally(self) -> Tally:
        """Add the rows up, a row for each metric: w, wv, w^2, w^2 v, w^2 v^2; users, notes, violations.

        With groups, the five sums of each follow those of all rows, and so do its four counts.
        """
        weighted = self.values if self.weights is None else self.weights * self.values
        parts = [self.used, weighted, weighted.square(), self.notes.flatten(0, 1)]
        if self.weights is not None:
            parts += [self.weights, self.weights.square(), self.weights * weighted]
        metrics = len(self.values)
        terms = _terms(metrics, tuple(part.shape[0] for part in parts), weighted.device)
        if self.groups is not None or weighted.numel() < _MANY or weighted.device.type != "cpu":
            parts = [torch.cat(parts)]  # one reduction for all of them; float64 counts up to 2^53
        totals = [part.sum(1) for part in parts]
        picked = (totals[0] if len(totals) == 1 else torch.cat(totals)).take(terms)
        sums, counts = picked[: 5 * metrics].view(-1, 5), [picked[5 * metrics :].view(-1, 4).to(torch.int64)]
        invalid = no_violations(weighted.device) if self.invalid is None else self.invalid
        counts.append(invalid.expand(metrics, -1))
        if self.groups is not None:
            codes, number = self.groups
            (every,) = parts
            by_group = every.new_zeros(number + 1, len(every))  # those of no group come last
            by_group.index_add_(0, codes.where(codes >= 0, number), every.T.contiguous())
            picked = by_group[:number, terms]
            of_groups = picked[:, : 5 * metrics].view(number, metrics, 5).transpose(0, 1)  # [metrics, groups, 5]
            sums = torch.cat([sums, of_groups.flatten(1)], 1)
            of_groups = picked[:, 5 * metrics :].view(number, metrics, 4).transpose(0, 1)
            counts.append(of_groups.flatten(1).to(torch.int64))
        return Tally(sums, torch.cat(counts, 1))


@constant
def _mask(values: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def _inside(lists: Lists, needs: Needs, checks: Checks) -> Lists:
    """Return lists and a history that hold no item that the catalogue does not have."""
    size = needs.num_items
    if size is None:
        return lists
    if lists.num_items is None or lists.num_items > size:
        ids = lists.ids
        beyond = ids >= size
        if checks.enabled:
            checks.reject("catalogue_range", beyond, lambda row: f"row {row} lists {shown(ids[row])} of {size} items")
        stays = (ids >= 0 if lists.stays is None else lists.stays) & ~beyond
        lists = lists._replace(stays=stays, num_items=size)
    if needs.history and lists.history is not None:
        lists = lists._replace(history=_history_inside(lists.history, size, checks))
    return lists


def _history_inside(history: Tensor, size: int, checks: Checks) -> Tensor:
    """Return a history without what is no item of the catalogue."""
    if checks.clear(lambda: not history.numel() or bool(history.amax() < size)):
        return history
    beyond = history >= size
    if checks.enabled:
        checks.reject("catalogue_range", beyond, lambda row: f"row {row} had {shown(history[row])} of {size} items")
    return keep(history, ~beyond, -1)


@constant
def _terms(metrics: int, rows: tuple[int, ...], device: torch.device) -> Tensor:
    """Where metrics' five sums, and then their four counts, stand among `BatchRows.tally`'s totals: [9 * metrics]."""
    used_rows, *_, noted_rows = rows[:4]
    each = [used_rows, metrics, metrics, *[noted_rows // 3] * 3, *rows[4:]]
    metric, first, places = torch.arange(metrics, device="cpu"), 0, []
    for several in each:
        places.append(metric % several + first)
        first += several
    used, wv, w2v2, *noted = places[:6]
    w, w2, w2v = places[6:] or (used, used, wv)
    every = ([w, wv, w2, w2v, w2v2], [used, *noted])
    return torch.cat([torch.stack(several, 1).flatten() for several in every]).to(device)


def _both(some: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Return the rows that are in both masks; None is all of them."""
    if some is None or others is None:
        return others if some is None else some
    return some & others


def _check_groups(groups: Grouped, rows: int, device: torch.device, checks: Checks) -> Tensor:
    """Return the codes as int64, -1 where there is none; refuse what is none."""
    codes, number = groups
    check_ids("groups", codes)
    if codes.shape != (rows,) or codes.device != device:
        raise ValueError(f"groups must be codes [{rows}] on {device}, got {describe(codes)} on {codes.device}")
    inside = (codes >= -1) & (codes < number)
    if checks.enabled:
        checks.reject("groups", ~inside, lambda row: f"row {row} is of group {int(codes[row])} of {number}")
    return codes.long().where(inside, -1)


def _check_weights(weights: Tensor, rows: int, device: torch.device, checks: Checks) -> Tensor:
    check_tensor("weights", weights)
    check_strided("weights", weights, "0")
    if weights.shape != (rows,) or weights.is_complex() or weights.device != device:
        raise ValueError(f"weights must be numbers [{rows}] on {device}, got {describe(weights)} on {weights.device}")
    if checks.enabled:
        wrong = ~(weights.isfinite() & (weights >= 0))
        checks.reject("weights", wrong, lambda row: f"row {row} weighs {weights[row]}")
    return weights
