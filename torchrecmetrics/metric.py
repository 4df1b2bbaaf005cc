"""`RankingMetric`: the mean of a formula over rows; what a batch adds to several of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

import torch
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics.arrays import constant, float_dtype, keep
from torchrecmetrics.checks import (
    VIOLATIONS,
    Checks,
    Validation,
    check_choice,
    check_k,
    check_score_threshold,
    check_strided,
    check_tensor,
    describe,
    in_words,
    nearest,
    no_violations,
)
from torchrecmetrics.interactions import Batch
from torchrecmetrics.kernels import KernelChoice
from torchrecmetrics.options import (
    NOT_K,
    OPTIONS,
    EmptyTargetAction,
    Formula,
    Signature,
    check_spelling,
    fingerprint,
    label_part,
)
from torchrecmetrics.ranking import Exclude, Needs, Overlap, Ranking, Rules, Ties
from torchrecmetrics.ranking.forms import Form, read
from torchrecmetrics.ranking.rules import RULES
from torchrecmetrics.state import Summary, SummedMetric, Tally, summarize

if TYPE_CHECKING:
    from typing_extensions import Self


class RankingMetric(SummedMetric):
    """Weighted mean over rows of a function of their `Ranking`; what all metrics of this package share.

    A row is one ranking: a user, a session, an event. `update` takes one of three forms, positional or by keyword:

    - `update(scores, target, *, gains=None, exclude=None, weights=None)`, as described in `Ranking.from_scores`;
    - `update(ranks, *, depth=None, weights=None)` with integer ranks [B], [B, 1] or [B, T] as `get_topk_ranks` gives
      them (1 = best, `<= 0` = padding);
    - `update(ranking, *, weights=None)` with a `Ranking`.

    A call that raises leaves the metric as it was. Values are checked at once on the CPU; elsewhere nothing
    waits and `compute` raises. `forward` returns the value of its batch; for that it waits for the device, and raises
    on its own process.

    Args:
        k: cut-off, >= 1: places of the ranking that count.
        options: those of the formula, and keywords that every metric has:

            - `ties`: place of an item among equal scores: "realistic" (default), "optimistic" or "pessimistic";
            - `padding_idx`: item id that is padding in target and exclude, and never a candidate;
            - `overlap`: what a relevant item that is also excluded means: "error" (default), "keep" or "miss";
            - `empty_target_action`: rows without a relevant item are left out ("skip", default; torchmetrics' default
              is "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error";
            - `max_relevant`: width for dense targets, which then need no host sync;
            - `validate_args`: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value
              checks);
            - `kernels`: what counts over scores: "auto" (default), "eager" or "triton"; see `Ranking.from_scores`;
            - torchmetrics' own, such as `sync_on_compute`.

    **A metric of your own** is a subclass with a `formula`: a function of a `Ranking`, a cut-off and options, that
    returns one value a row, [B]. It is given the first `k` places: relevant items behind them have rank `inf`. Leave
    `k` out and the whole ranking is read. Options and their defaults are those of its signature; the label shows them
    where they are not the default. Rows without a relevant item are taken care of; other rows whose value is NaN are
    left out of the mean. It must not write into the ranking's tensors. It then works in collections, `evaluate` and
    callbacks like any other.

    Class attributes:
        formula: the function.
        many_cutoffs: True if `k` may be a list of K cut-offs, with a result [K, B], and the ranking known further down;
            else it is called for each.
        higher_is_better: False lets callbacks monitor the metric with `mode="min"`.
        bounds: lowest and highest value, None where unknown.
        always_defined: True if no row with a relevant item has the value NaN (without gains): nobody looks for them.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def rank_biased_precision(ranking, k, *, p=0.8):
        ...     return (1 - p) * (p ** (ranking.ranks - 1) * ranking.hits(k)).sum(-1)
        >>> class RBP(trm.RankingMetric):
        ...     formula = staticmethod(rank_biased_precision)
        >>> metric = RBP(10, p=0.5)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 1]]))
        >>> metric.label, metric.compute()  # 0.5 * (1 + 0.5)
        ('RBP-p0_5@10', tensor(0.7500, dtype=torch.float64))
    """

    higher_is_better: bool = True

    formula: ClassVar[Formula]
    many_cutoffs: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float] | None] = None
    always_defined: bool = False
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _name: ClassVar[str]
    _signature: ClassVar[Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "formula" in cls.__dict__:
            formula = cls.__dict__["formula"]
            formula = formula.__func__ if isinstance(formula, staticmethod) else formula
            cls._signature = Signature.read(cls.__name__, formula)
            cls.formula = staticmethod(formula)  # a plain function would be bound to the metric
            cls._name = cls.__dict__.get("_name", cls.__name__)
            if not re.fullmatch(r"[A-Za-z0-9_-]+", cls._name):
                raise TypeError(f"{cls._name} becomes a label: letters, digits, '-' and '_' only")
        cls.plot_lower_bound, cls.plot_upper_bound = cls.bounds or (None, None)

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Look at how options are spelt, before Python misses a k."""
        if others := NOT_K & options.keys():
            check_spelling(others - inspect.signature(cls.__init__).parameters.keys())
        return super().__new__(cls)

    def __init__(self, k: int | None = None, **options: Any) -> None:
        signature = self._signature
        if signature is None:
            raise TypeError(
                f"{type(self).__name__} has no formula: write a subclass with formula = staticmethod(function), a "
                "function of (ranking, k, *, options) that returns one value a row"
            )
        self._check_known(options)
        ours = (*signature.options, *RULES, "empty_target_action")
        super().__init__(**{name: value for name, value in options.items() if name not in ours})
        if k is not None and not signature.takes_k:
            raise ValueError(f"{self._name} has no cut-off, got k={k!r}")
        self.k: int | None = check_k(k) if signature.needs_k or k is not None else None
        self.rules: Rules = Rules(**{name: options[name] for name in RULES if name in options})
        self.empty_target_action: EmptyTargetAction = options.get("empty_target_action", "skip")
        check_choice("empty_target_action", self.empty_target_action, get_args(EmptyTargetAction))
        self.options: dict[str, Any] = {
            name: deepcopy(options.get(name, default)) for name, default in signature.options.items()
        }
        if "score_threshold" in self.options:
            self.options["score_threshold"] = check_score_threshold(self.options["score_threshold"])
        if self._changed_options() and _is_ours(type(self)):
            # formulas refuse what they do not know; better now than at the first batch
            _values([self], Ranking.without_relevant(0, torch.device("cpu"), self.needs.score_threshold))

        shaped_by = [self.label, self.rules.place_ties, self.rules.take_overlap, self.empty_target_action]
        shaped_by += [] if self.padding_idx is None else [f"padding{self.padding_idx}"]
        if not _is_ours(type(self)):  # others may bear the same name, and spell their options alike
            shaped_by.append(fingerprint(type(self), self.options))
        self._keep_sums("-".join(shaped_by), 5, 4 + len(VIOLATIONS))

    def _check_known(self, options: dict[str, Any]) -> None:
        """Refuse options that there are not, and ask for those that there must be."""
        assert self._signature is not None
        own = self._signature.options
        known = [*own, *OPTIONS]
        for name in options:
            if name not in known:
                raise ValueError(f"{self._name} has no option {name!r}{nearest(name, known)}")
        missing = [f"{name}=" for name, default in own.items() if default is inspect.Parameter.empty]
        if missing := [name for name in missing if name[:-1] not in options]:
            raise TypeError(f"{self._name} needs {', '.join(missing)}")
        for name in own.keys() & options.keys():
            label_part(name, options[name])  # refuses what no label can show

    # ------------------------------------------------------------------------------------------ names, rules, results

    @property
    def name(self) -> str:
        """Label without the cut-off: `NDCG-exponential`."""
        return "-".join([self._name, *(label_part(key, value) for key, value in self._changed_options().items())])

    def _changed_options(self) -> dict[str, Any]:
        assert self._signature is not None
        defaults = self._signature.options
        return {key: value for key, value in self.options.items() if value != defaults[key]}

    @property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def ties(self) -> Ties | None:
        """Place of an item among equal scores, as given; None is "realistic"."""
        return self.rules.ties

    @property
    def padding_idx(self) -> int | None:
        """Item id that is padding."""
        return self.rules.padding_idx

    @property
    def overlap(self) -> Overlap | None:
        """What a relevant item that is also excluded means, as given; None is "error"."""
        return self.rules.overlap

    @property
    def max_relevant(self) -> int | None:
        """Width for dense targets."""
        return self.rules.max_relevant

    @property
    def validate_args(self) -> Validation:
        """When values are checked."""
        return self.rules.validate_args

    @property
    def kernels(self) -> KernelChoice:
        """What counts over scores."""
        return self.rules.kernels

    @property
    def needs(self) -> Needs:
        """What the formula reads of a batch: `k` places, or all; the items that reach an option `score_threshold`.

        A formula that reads `Ranking.num_ranked` says so: `return super().needs._replace(num_ranked=True)`.
        """
        return Needs(self.k, score_threshold=self.options.get("score_threshold"))

    @property
    def num_users(self) -> int:
        """Rows that the last `compute` averaged over."""
        return self.last_summary().num_users

    @property
    def num_skipped(self) -> int:
        """Rows without a relevant item that the last `compute` met (left out under "skip")."""
        return self.last_summary().num_skipped

    @property
    def num_unreachable(self) -> int:
        """Rows of the last `compute` with a relevant item that was no candidate, and so could only be missed."""
        return self.last_summary().num_unreachable

    @property
    def num_tied(self) -> int:
        """Rows of the last `compute` with a relevant item that shared its score, within the places that are read.

        Those are as many as the deepest `k` of all metrics that rank together; RPrecision asks for the row's own R.
        """
        return self.last_summary().num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return self.last_summary().standard_error.clone()

    # ------------------------------------------------------------------------------------------------- update, compute

    @torch.no_grad()
    def update(
        self,
        scores: Tensor | Ranking | None = None,
        target: Tensor | Batch | None = None,
        *,
        gains: Tensor | None = None,
        exclude: Exclude | None = None,
        weights: Tensor | None = None,
        ranks: Tensor | None = None,
        ranking: Ranking | None = None,
        depth: int | None = None,
    ) -> None:
        """Add a batch: `(scores, target)`, `(ranks)` or `(ranking)`; see the class."""
        form = Form(scores, target, gains, exclude, ranks, ranking, depth)
        self.add(self.tally(read(form, self.needs, self.rules), weights))

    @torch.no_grad()
    def forward(
        self,
        scores: Tensor | Ranking | None = None,
        target: Tensor | Batch | None = None,
        *,
        gains: Tensor | None = None,
        exclude: Exclude | None = None,
        weights: Tensor | None = None,
        ranks: Tensor | None = None,
        ranking: Ranking | None = None,
        depth: int | None = None,
    ) -> Tensor:
        """Add a batch and return its value alone; takes what `update` takes and waits for the device."""
        form = Form(scores, target, gains, exclude, ranks, ranking, depth)
        tally = self.tally(read(form, self.needs, self.rules), weights)
        (summary,) = summarize([(self, tally)], "dist_sync_on_step")
        self.add(tally)
        self._forward_cache = summary.value
        return summary.value.clone()

    def tally(self, ranking: Ranking, weights: Tensor | None = None) -> Tally:
        """Compute what `ranking` adds to the state, without touching it; raises if the metric cannot use it."""
        (tally,) = batch_rows([self], ranking, weights).tallies()
        return tally

    def check_usable(self, ranking: Ranking) -> None:
        """Refuse a batch now, a Ranking elsewhere, or one made with other options than the metric was given."""
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before the next batch")
        if (contradiction := self.rules.contradiction(ranking.made_with)) is not None:
            raise ValueError(f"{self.label} {contradiction}")
        device = getattr(self, self._sums_name).device
        if ranking.ranks.device != device:
            raise ValueError(
                f"{self.label} is on {device}, its input on {ranking.ranks.device}: move the metric with .to(device)"
            )

    def row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
        """Return what each row weighs, [B], made of the weights that were given."""
        return weights

    @classmethod
    def summaries(cls, metrics: Sequence[Self], tallies: Sequence[Tally], counts: list[list[int]]) -> list[Summary]:
        """Turn sums over rows into means, standard errors and counts."""
        for metric, (_, _, _, _, *invalid) in zip(metrics, counts, strict=True):
            if any(invalid):
                found = zip(invalid, VIOLATIONS.values(), strict=True)
                what = "; ".join(f"{in_words(rows)} {text}" for rows, text in found if rows)
                raise ValueError(f"{metric.label}: bad input since the last reset: {what}")
        w, wv, w2, w2v, w2v2 = torch.stack([tally.sums for tally in tallies], 1).unbind()
        mean = wv / w
        used = torch.stack([tally.counts[0] for tally in tallies]).to(w.dtype)
        variance = w2v2 - 2 * mean * w2v + mean.square() * w2
        # Each of the sums is off by less than (n + 3) u of its terms' sizes, in whatever order n terms were added, and
        # the mean's own error is of no account where all values are one: less is no spread, but rounding.
        rounding = (used + 8) * torch.finfo(w.dtype).eps * (w2v2 + 2 * (mean * w2v).abs() + mean.square() * w2)
        spread = variance.where(~(variance <= rounding), 0).sqrt() / w
        error = (spread * (used / (used - 1)).sqrt()).where(used > 1, torch.nan)
        return [
            Summary(value, deviation, *numbers[:4])
            for value, deviation, numbers in zip(mean.unbind(), error.unbind(), counts, strict=True)
        ]


def _is_ours(cls: type[RankingMetric]) -> bool:
    """Whether a metric is one of this package, whose label says all that its value depends on."""
    return cls.__module__.startswith("torchrecmetrics.")


# ------------------------------------------------------------------------------------------------- what a batch adds


class BatchRows(NamedTuple):
    """What each row of a batch adds to some metrics; a matrix has a row for each of them, or one if all agree."""

    values: Tensor  # float [metrics, B], 0 where the row is not used
    weights: Tensor | None  # float [metrics or 1, B], 0 where the row is not used; None = 1 where it is
    used: Tensor  # bool [metrics or 1, B]
    notes: Tensor  # bool [3, metrics or 1, B]: skipped, unreachable, tied
    invalid: Tensor | None  # int64 [metrics or 1, kinds]: violations of the batch; None = none

    def tallies(self) -> list[Tally]:
        """Add the rows up, for each metric: w, wv, w^2, w^2 v, w^2 v^2; users, notes, violations."""
        weighted = self.values if self.weights is None else self.weights * self.values
        parts = [self.used, weighted, weighted.square(), *self.notes.unbind()]
        if self.weights is not None:
            parts += [self.weights, self.weights.square(), self.weights * weighted]
        # one reduction for all of them; float64 counts up to 2^53
        totals = torch.cat(parts).sum(1)
        picked = totals[_terms(len(self.values), tuple(len(part) for part in parts), totals.device)]
        invalid = no_violations(totals.device) if self.invalid is None else self.invalid
        counts = torch.cat([picked[:, 5:].to(torch.int64), invalid.expand(len(picked), -1)], 1)
        return [Tally(*each) for each in zip(picked[:, :5].unbind(), counts.unbind(), strict=True)]


@constant
def _terms(metrics: int, rows: tuple[int, ...], device: torch.device) -> Tensor:
    """Where a metric's five sums and four counts stand among `BatchRows.tallies`' totals: int64 [metrics, 9]."""
    metric, first, places = torch.arange(metrics), 0, []
    for several in rows:
        places.append(metric % several + first)
        first += several
    used, wv, w2v2, *noted = places[:6]
    w, w2, w2v = places[6:] or (used, used, wv)
    return torch.stack([w, wv, w2, w2v, w2v2, used, *noted], 1).to(device)


def batch_rows(metrics: Sequence[RankingMetric], ranking: Ranking, weights: Tensor | None = None) -> BatchRows:
    """Compute what each row of `ranking` adds to the metrics, touching none; raises if one of them cannot use it.

    The metrics have the same rule for empty rows and for validation; they share every operation over the rows.
    """
    device, rows = ranking.ranks.device, len(ranking)
    for metric in metrics:
        metric.check_usable(ranking)
    action, dtype = metrics[0].empty_target_action, float_dtype(device)
    # an error that was asked for is given even where values are not checked otherwise
    checks = Checks(metrics[0].validate_args or action == "error", device, rows)
    values = _values(metrics, ranking)
    faults = ranking.faults
    empty = ranking.num_relevant == 0
    relevant = ~empty
    if faults.rows is not None:
        empty = empty > faults.rows  # those have no relevant item either
    if action == "error":
        checks.reject("empty", empty, lambda row: f"row {row}")
    elif action in ("neg", "pos"):
        values = values.masked_fill(empty, 0.0 if action == "neg" else 1.0)
    short = None
    if checks.enabled and ranking.reach.rows is not None:
        furthest = [
            ranking.num_relevant if m.k is None else ranking.num_relevant.new_full((rows,), m.k) for m in metrics
        ]
        short = ranking.cut_short(torch.stack(furthest))
    counted = None  # all rows; those that are faulty hold nothing that could be noted
    if weights is not None:
        weights = _check_weights(weights, rows, device, checks).to(dtype)
        counted = weights > 0
    found = (faults.counts, None if checks.rejected is None else checks.faults.counts)
    invalid = [counts for counts in found if counts is not None]
    wrong = [rows for rows in (faults.rows, checks.rejected) if rows is not None]
    if wrong and (counted is not None or short is not None or action != "skip"):
        counted = _both(counted, ~(wrong[0] if len(wrong) == 1 else wrong[0] | wrong[1]))
    violations = sum(invalid[1:], invalid[0])[None] if invalid else None
    if short is not None and counted is not None and violations is not None:
        short = short if faults.rows is None else short > faults.rows
        violations = violations.repeat(len(metrics), 1)
        violations[:, list(VIOLATIONS).index("list_short")] += short.sum(1)
        counted = counted & ~short
    used = _both(counted, relevant if action == "skip" else None)
    if ranking.gains is not None or not all(metric.always_defined for metric in metrics):
        used = _both(used, ~values.isnan())
    used = torch.ones_like(empty) if used is None else used
    used = used if used.dim() == 2 else used[None]
    values = keep(values, used, 0)
    if weights is not None:
        weights = keep(weights, used, 0)
    if any(type(metric).row_weights is not RankingMetric.row_weights for metric in metrics):
        own = (used.to(dtype) if weights is None else weights).expand(values.shape)
        weights = torch.stack([metric.row_weights(ranking, row) for metric, row in zip(metrics, own, strict=True)])
        used = used & (weights > 0)
    notes = torch.stack([empty, ranking.unreachable, ranking.tied])[:, None]
    if counted is not None:
        notes = notes & counted
    return BatchRows(values, weights, used, notes, violations)


def _both(some: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Return the rows that are in both masks; None is all of them."""
    if some is None or others is None:
        return others if some is None else some
    return some & others


def _values(metrics: Sequence[RankingMetric], ranking: Ranking) -> Tensor:
    """Value of each row for each metric, [metrics, B]; a formula is asked once for all the cut-offs that it takes."""
    alike: list[list[int]] = []
    for place, metric in enumerate(metrics):
        for places in alike if metric.many_cutoffs and metric.k is not None else ():
            other = metrics[places[0]]
            same = type(metric).formula is type(other).formula and metric.options == other.options
            if same and other.k is not None:
                places.append(place)
                break
        else:
            alike.append([place])
    values: list[Tensor] = [ranking.ranks] * len(metrics)
    for places in alike:
        first = metrics[places[0]]
        cutoffs = tuple(metrics[place].k for place in places)
        k: tuple[Any, ...] = ()
        if first._signature is not None and first._signature.takes_k:
            k = (cutoffs if len(places) > 1 else first.k,)
        read = ranking
        if not first.many_cutoffs and not first.needs.each_relevant and not _is_ours(type(first)):
            read = ranking.within(first.needs.depth)  # what is beside it changes nothing, nor does it change that
        formula = type(first).formula
        found = getattr(formula, "unmasked", formula)(read, *k, **first.options)
        shape = (len(places), len(ranking)) if len(places) > 1 else (len(ranking),)
        if not isinstance(found, Tensor) or found.shape != shape or found.device != ranking.ranks.device:
            what = f"a row for each of the cut-offs {cutoffs}, " if len(places) > 1 else "one value a row, "
            raise TypeError(
                f"the formula of {first.label} must return {what}a tensor {list(shape)} on {ranking.ranks.device}, got "
                f"{describe(found)}{f' on {found.device}' if isinstance(found, Tensor) else ''}"
            )
        if not _is_ours(type(first)):
            found = found.to(ranking.ranks.dtype)
        for place, value in zip(places, found.unbind() if len(places) > 1 else (found,), strict=True):
            values[place] = value
    return torch.stack(values).to(ranking.ranks.dtype)


def _check_weights(weights: Tensor, rows: int, device: torch.device, checks: Checks) -> Tensor:
    check_tensor("weights", weights)
    check_strided("weights", weights, "0")
    if weights.shape != (rows,) or weights.is_complex() or weights.device != device:
        raise ValueError(f"weights must be numbers [{rows}] on {device}, got {describe(weights)} on {weights.device}")
    if checks.enabled:
        wrong = ~(weights.isfinite() & (weights >= 0))
        checks.reject("weights", wrong, lambda row: f"row {row} weighs {weights[row]}")
    return weights
