"""`RankingMetric`: base class of all metrics: a formula with its options, label, value and standard error."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from types import FunctionType
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.accumulators import Accumulator
from torchrecmetrics.core.checks import check_choice, check_k, check_score_threshold, describe
from torchrecmetrics.core.evaluator import Evaluator
from torchrecmetrics.core.intervals import IntervalMethod, interval
from torchrecmetrics.core.options import OPTIONS, Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.rows import Summary
from torchrecmetrics.core.signature import (
    METRIC_OPTIONS,
    EmptyTargetAction,
    Formula,
    ItemCatalogue,
    Signature,
    check_spelling,
    fingerprint,
    label_part,
    option_hint,
)


class LastResult:
    """Methods of a metric, or of a value of a collection, about the result of the last `compute`."""

    def last_summary(self) -> Summary:
        """Return the result of the last `compute`."""
        summary = self._last_summary()
        if summary is None:
            raise RuntimeError(
                f"{self.label}: counts and standard errors are those of the last compute(); call it first"  # type: ignore[attr-defined]
            )
        return summary

    def _last_summary(self) -> Summary | None:
        """Return the result of the last `compute`; None before it."""
        raise NotImplementedError

    @property
    def num_users(self) -> int:
        """Number of rows that the last `compute` averaged over."""
        return self.last_summary().num_users

    @property
    def num_skipped(self) -> int:
        """Number of rows without a relevant item in the last `compute` (left out under "skip")."""
        return self.last_summary().num_skipped

    @property
    def num_unreachable(self) -> int:
        """Number of rows of the last `compute` with a relevant item that was no candidate, and therefore a miss."""
        return self.last_summary().num_unreachable

    @property
    def num_tied(self) -> int:
        """Number of rows of the last `compute` with a relevant item in a tie that begins within the ranks read.

        Ranks are read up to the largest `k` of all metrics that rank together; by RPrecision up to the row's R.
        """
        return self.last_summary().num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return self.last_summary().standard_error.clone()

    def confidence_interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return a confidence interval for the true mean, (low, high), from the last `compute`.

        Args:
            level: confidence level, between 0 and 1: the share of samples whose interval holds the true mean.
            method: "score": Wilson's, with the number of rows that the standard error implies; it stays within the
                metric's bounds. "student": mean and standard errors. Metrics whose rows can be beyond their bounds, or
                with an unknown bound, get Student's interval, cut off at a known bound.

        Returns:
            Lower and upper end; nan for fewer than two rows. Rows are taken to be independent: if a user has several
            rows, keep the rows with clusters and use `Rows.confidence_interval`.

        Raises:
            ValueError: for a level that is not between 0 and 1, and for an unknown method.

        Examples:
            >>> import torch
            >>> from torchrecmetrics import HitRate
            >>> metric = HitRate(1)
            >>> metric.update(torch.tensor([1] * 30 + [2] * 70))
            >>> metric.compute()
            tensor(0.3000, dtype=torch.float64)
            >>> [round(end, 3) for end in metric.confidence_interval()]
            [0.218, 0.398]
        """
        summary = self.last_summary()
        value, error, size = float(summary.value), float(summary.standard_error), float(summary.effective_size)
        bounds: tuple[float, float] | None = self.bounds  # type: ignore[attr-defined]
        return interval(value, error, size, bounds, level, method)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value of `compute`, or the given values, as torchmetrics' metrics do; return figure and axes."""
        return self._plot(val, ax)  # type: ignore[attr-defined]


class RankingMetric(LastResult, Evaluator):
    """Weighted mean over rows of a function of their `Ranking`; base class of all metrics of this package.

    A row is one ranking: a user, a session, an event. A call that raises leaves the metric as it was. Values are
    checked at once on the CPU; elsewhere `update` does not wait for the device, and `compute` raises. `forward` returns
    the value of its batch, so it waits for the device, and raises at once, on this process alone.

    Args:
        k: cut-off, >= 1: number of ranks that count.
        options: options of the formula, and keywords that every metric has:

            - `ties`: "expected" (mean over orders of equal scores; default), "realistic", "optimistic", "pessimistic";
            - `padding_idx`: item id that is padding in target and exclude, and never a candidate;
            - `overlap`: meaning of a relevant item that is also excluded: "error" (default), "keep" or "miss";
            - `empty_target_action`: rows without a relevant item are left out ("skip", default; torchmetrics' default
              is "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error";
            - `max_relevant`: maximum number of relevant items per row; with it, dense and jagged targets need no host
              sync;
            - `validate_args`: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value
              checks);
            - `kernels`: "auto" (default), "eager" or "triton"; "triton" counts scores on CUDA;
            - `catalogue`: a `Catalogue` of the items, for metrics beyond accuracy and formulas with that parameter;
            - torchmetrics' own, such as `sync_on_compute`.

    **A metric of your own** is a subclass with a `formula`: a function of a `Ranking`, a cut-off and options, that
    returns one value per row, [B]. It sees the first `k` ranks only: relevant items below them have rank `inf`.
    Without `k` it sees the whole ranking. Options and their defaults are those of its signature; the label shows
    options that are not the default. Rows without a relevant item follow `empty_target_action`; other rows whose
    value is NaN are left out of the mean. Neither `formula` nor `weights` may write into the ranking's tensors.
    `ListMetric` is the base for metrics of the lists themselves, `ItemCountMetric` for metrics of how many lists
    hold each item.

    Attributes:
        formula: function of a `Ranking`, a cut-off and options.
        weights: a function of the ranking, or of the ranking and `k`, that returns the weight of each row, [B], >= 0,
            by which the weights of `update` are multiplied; None = all 1.
        many_cutoffs: True if `k` may be a list of K cut-offs, with a result [K, B], and the ranking may be deeper
            than the last cut-off; else the formula is called once per cut-off.
        higher_is_better: False lets callbacks monitor the metric with `mode="min"`.
        bounds: lowest and highest value; None or infinite = unknown.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def rank_biased_precision(ranking, k, *, p=0.8):
        ...     return (1 - p) * ranking.sum_hits(lambda rank: p ** (rank - 1), k)
        >>> class RBP(trm.RankingMetric):
        ...     formula = staticmethod(rank_biased_precision)
        >>> metric = RBP(10, p=0.5)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 1]]))
        >>> metric.label, metric.compute()  # 0.5 * (1 + 0.5)
        ('RBP-p0_5@10', tensor(0.7500, dtype=torch.float64))
    """

    higher_is_better: bool | None = True

    formula: ClassVar[Formula]
    weights: Callable[..., Tensor] | None = None
    """A function of the ranking, or of the ranking and `k`, that returns the weight of each row, [B]; None = all 1."""
    many_cutoffs: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float] | None] = None
    of_lists: ClassVar[bool] = False
    """True for means over all rows with a list, with or without relevant items."""
    of_items: ClassVar[bool] = False
    """True for metrics that count over all rows and are not means over rows."""
    infinite: ClassVar[bool] = False
    """True if the value of a row may be infinite although the bounds are finite."""
    graded: ClassVar[bool] = False
    """True if the order of relevant items matters, by their gains, where all items are relevant."""
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _name: ClassVar[str]
    _signature: ClassVar[Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "formula" in cls.__dict__:
            formula = cls.__dict__["formula"]
            formula = formula.__func__ if isinstance(formula, staticmethod) else formula
            formula = inspect.unwrap(formula)  # without the NaN of rows that metrics leave out
            cls._signature = Signature.read(cls.__name__, formula)
            cls.formula = staticmethod(formula)  # a plain function would be bound to the metric
            cls._name = cls.__dict__.get("_name", cls.__name__)
            if not re.fullmatch(r"[A-Za-z0-9_-]+", cls._name):
                raise TypeError(f"{cls._name} becomes a label: letters, digits, '-' and '_' only")
        if isinstance(weights := cls.__dict__.get("weights"), FunctionType):
            cls.weights = staticmethod(weights)
        low, high = cls.bounds or (-math.inf, math.inf)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        cls.bounds = None if math.isinf(low) and math.isinf(high) else (low, high)
        cls.plot_lower_bound, cls.plot_upper_bound = (end if math.isfinite(end) else None for end in (low, high))

    def __init__(self, k: int | None = None, **options: Any) -> None:
        signature = self._signature
        if signature is None:
            raise TypeError(
                f"{type(self).__name__} has no formula: write a subclass with formula = staticmethod(function), a "
                "function of (ranking, k, *, options) that returns one value a row"
            )
        self._check_known(options)
        own_options = (*signature.options, *OPTIONS, "empty_target_action", "catalogue")
        super().__init__(**{name: value for name, value in options.items() if name not in own_options})
        if k is not None and not signature.takes_k:
            raise ValueError(f"{self._name} has no cut-off, got k={k!r}")
        if k is None and signature.needs_k:
            raise TypeError(f"{self._name!r} needs a cut-off: {type(self).__name__}(10)")
        self.k: int | None = None if k is None else check_k(k)
        self.rules: Options = Options(**{name: options[name] for name in OPTIONS if name in options})
        self.empty_target_action: EmptyTargetAction = options.get("empty_target_action", "skip")
        check_choice("empty_target_action", self.empty_target_action, get_args(EmptyTargetAction))
        self.catalogue: ItemCatalogue | None = self._check_catalogue(options.get("catalogue"))
        self.options: dict[str, Any] = {
            name: deepcopy(options.get(name, default)) for name, default in signature.options.items()
        }
        if "score_threshold" in self.options:
            self.options["score_threshold"] = check_score_threshold(self.options["score_threshold"])
        if (self._changed_options() or self.catalogue is not None) and _is_builtin(type(self)):
            self._try_formula()  # so that bad options raise now, not at the first batch

        shaped_by = [self.label, self.rules.tie_rule, self.rules.overlap_rule, self.empty_target_action]
        shaped_by += [] if self.rules.padding_idx is None else [f"padding{self.rules.padding_idx}"]
        shaped_by += [] if self.rules.validate_args is True else [f"validate_{self.rules.validate_args}"]
        if not _is_builtin(type(self)):  # another class may have the same name and options
            shaped_by.append(fingerprint(type(self), self.options))
        if signature.reads_catalogue and self.catalogue is not None:
            shaped_by.append(self.catalogue.fingerprint)
        self.begin({self.label: self}, "-".join(shaped_by))

    def _try_formula(self) -> None:
        """Call the formula on a ranking without rows, so that it raises for bad options now."""
        no_rows = Ranking.without_relevant(0, torch.device("cpu"), self.needs.score_threshold)
        k = (self.k,) if self.takes_k else ()
        self.formula(no_rows, *k, **self.arguments)

    def _check_catalogue(self, catalogue: Any) -> ItemCatalogue | None:
        """Return the catalogue, or raise if the metric needs one and none is given."""
        assert self._signature is not None
        if catalogue is None and self._signature.reads_catalogue:
            k = "10, " if self._signature.takes_k else ""
            raise ValueError(
                f"{self._name} needs a catalogue: {self._name}({k}catalogue=trm.Catalogue.from_interactions(train)); "
                "collections, evaluate and callbacks take catalogue= for all their metrics"
            )
        if catalogue is not None and not (hasattr(catalogue, "num_items") and hasattr(catalogue, "fingerprint")):
            raise TypeError(
                f"catalogue must be a Catalogue, got {describe(catalogue)}: trm.Catalogue.from_interactions(train), "
                "where train is of a frame trm.Interactions.from_frame(frame), of a file "
                "trm.Log.from_file(path).to_interactions()"
            )
        checked: ItemCatalogue | None = catalogue
        return checked

    def _check_known(self, options: dict[str, Any]) -> None:
        """Refuse unknown options, and name required ones that are missing."""
        assert self._signature is not None
        check_spelling(options)
        formula_options = self._signature.options
        known = [*formula_options, *METRIC_OPTIONS]
        for name in options:
            if name not in known:  # a class may have more keywords
                parameters = inspect.signature(type(self).__init__).parameters.values()
                keywords = [param.name for param in parameters if param.kind is param.KEYWORD_ONLY]
                known = list(dict.fromkeys([*keywords, *known]))
                raise ValueError(f"{self._name} has no option {name!r}{option_hint(name, known)}")
        required = (name for name, default in formula_options.items() if default is inspect.Parameter.empty)
        if missing := [f"{name}=" for name in required if name not in options]:
            raise TypeError(f"{self._name} needs {', '.join(missing)}")
        for name in formula_options.keys() & options.keys():
            label_part(name, options[name])  # refuses values that no label can show

    # ------------------------------------------------------------------------------------------ names, options, results

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
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the formula."""
        reads = self._signature is not None and self._signature.reads_catalogue
        return {**self.options, "catalogue": self.catalogue} if reads else self.options

    @property
    def takes_k(self) -> bool:
        """True if the formula has a cut-off."""
        return self._signature is not None and self._signature.takes_k

    @property
    def needs(self) -> Needs:
        """The data that the formula reads: the first `k` ranks, or all; the items that reach `score_threshold`.

        A formula with a parameter `catalogue` also reads the items of the first `k` ranks. If a formula reads
        `Ranking.num_ranked`, override this property: `return super().needs._replace(num_ranked=True)`.
        """
        needs = Needs(self.k, score_threshold=self.options.get("score_threshold"), graded=self.graded)
        if self._signature is None or not self._signature.reads_catalogue or self.catalogue is None:
            return needs
        return needs._replace(list_depth=self.k or 0, num_items=self.catalogue.num_items)

    def row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
        """Return the weight of each row, [B]: `weights` of `update` times those of the metric; or raise."""
        assert self.weights is not None
        takes_k = len(inspect.signature(self.weights).parameters) > 1
        factors: Any = self.weights(ranking, self.k) if takes_k else self.weights(ranking)
        if not isinstance(factors, Tensor) or factors.shape != weights.shape:
            raise TypeError(
                f"weights of {self.label} must return one weight per row, a tensor {list(weights.shape)}, got "
                f"{describe(factors)}"
            )
        return (weights * factors.nan_to_num(0)).to(weights.dtype)

    def may_be_infinite(self) -> bool:
        """Return True if the value of a row may be infinite."""
        low, high = self.bounds or (-math.inf, math.inf)
        return self.infinite or math.isinf(low) or math.isinf(high)

    def _last_summary(self) -> Summary | None:
        return self._results.get(self.label)

    def _as_value(self, results: Mapping[str, Summary]) -> Any:
        return results[self.label].value.clone()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


class CountedMetric(RankingMetric):
    """Base class of metrics that are not means over rows, and are read from counts over all rows."""

    of_items: ClassVar[bool] = True

    @property
    def counts_key(self) -> Hashable:
        """Key that is the same for metrics that read the same counts."""
        raise NotImplementedError

    def make_counts(self) -> Accumulator:
        """Return the accumulator of the counts, which also returns `batch_totals`."""
        raise NotImplementedError

    def summary(self, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> Summary:
        """Return the result from the counts and sums of the accumulator."""
        raise NotImplementedError


def _is_builtin(cls: type) -> bool:
    """Return True for a metric of this package, whose label contains everything that its value depends on."""
    return cls.__module__.startswith("torchrecmetrics.")
