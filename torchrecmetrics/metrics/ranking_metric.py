"""`RankingMetric`: base class of all metrics, a torchmetrics Metric of one formula; `CountedMetric`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from numbers import Real
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.checks import NAMES_OF_OTHERS, check_choice, check_k, check_score_threshold, nearest
from torchrecmetrics.core.options import OPTIONS, Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import SIDES, LastResult, Result
from torchrecmetrics.metrics.accumulator import State, Summed
from torchrecmetrics.metrics.description import (
    METRIC_OPTIONS,
    TORCHMETRICS_OPTIONS,
    Description,
    EmptyTargetAction,
    Formula,
    ItemCatalogue,
    Kind,
    Signature,
    checked_catalogue,
    is_builtin,
    label_part,
    takes_grade,
)
from torchrecmetrics.metrics.evaluator import Evaluator, outside_graphs

if TYPE_CHECKING:
    from typing_extensions import Self

    from torchrecmetrics.results.evaluation import Evaluation


class RankingMetric(LastResult, Evaluator):
    """Weighted mean over rows of a function of their `Ranking`; base class of all metrics of this package.

    A row is one ranking: a user, a session, an event. A call that raises leaves the metric as it was. Values are
    checked at once on the CPU; elsewhere `update` does not wait for the device, and `compute` raises. `forward` returns
    the value of its batch, so it waits for the device, and raises at once, on this process only.

    Args:
        k: cut-off, >= 1: number of ranks that count.
        options: options of the formula, and keywords that every metric has:

            - `ties`: "expected" (mean over orders of equal scores; default), "realistic", "optimistic", "pessimistic";
            - `padding_idx`: item id that is padding in target and exclude, and never a candidate;
            - `overlap`: meaning of a relevant item that is also excluded: "error" (default), "keep" or "miss";
            - `empty_target_action`: rows without a relevant item are left out ("skip", default; torchmetrics' default
              is "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error";
            - `relevant_from`: lowest grade (gain) of a relevant item, such as 2 of judgements 0 to 3; the label shows
              it, `MRR-from2@10`. Metrics that read grades themselves (NDCG, DCG, weighted Recall) and those of lists do
              not take it. None (default) = every grade above 0;
            - `max_relevant`: maximum number of relevant items per row; with it, dense and jagged targets need no host
              sync;
            - `validate_args`: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value
              checks);
            - `kernels`: "auto" (default), "eager" or "triton"; "triton" counts scores on CUDA;
            - `catalogue`: a `Catalogue` of the items, for metrics beyond accuracy and formulas with that parameter;
            - torchmetrics' own, such as `sync_on_compute`.

    **A metric of your own** is a subclass with a `formula`: a function of a `Ranking`, a cut-off and options, that
    returns one value per row, [B]. It sees the first `k` ranks only: relevant items below them have rank `inf`. Without
    `k` it sees the whole ranking. Options and their defaults are those of its signature; the label shows options that
    are not the default. Rows without a relevant item follow `empty_target_action`; other rows whose value is NaN are
    left out of the mean. Neither `formula` nor `weights` may write into the ranking's tensors. `ListMetric` is the base
    for metrics of the lists themselves, `ItemCountMetric` for metrics of the number of lists that hold each item.

    Attributes:
        formula: function of a `Ranking`, a cut-off and options.
        weights: a function of the ranking, or of the ranking and `k`, that returns row weights, [B], >= 0, which
            multiply the weights of `update`; None = all 1.
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

    formula: ClassVar[Formula]
    weights: Callable[..., Tensor] | None = None
    many_cutoffs: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float] | None] = None
    higher_is_better: bool | None = True
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _kind: ClassVar[Kind] = "accuracy"
    _empty_target_actions: ClassVar[tuple[str, ...]] = get_args(EmptyTargetAction)
    _name: ClassVar[str]
    _signature: ClassVar[Signature | None] = None

    def __init_subclass__(cls, **attributes: Any) -> None:
        """Set the keywords of a class as its attributes: `class HR(RankingMetric, formula=hit_rate, bounds=(0, 1))`."""
        super().__init_subclass__()
        for name, value in attributes.items():
            if not hasattr(cls, name) and name not in ("formula", "_name"):
                raise TypeError(f"{cls.__name__}: metrics have no attribute {name!r}")
            setattr(cls, name, staticmethod(value) if name in ("formula", "weights") else value)
        if "formula" in cls.__dict__:
            formula = cls.__dict__["formula"]
            formula = formula.__func__ if isinstance(formula, staticmethod) else formula
            cls._signature = Signature.read(cls.__name__, formula)
            cls.formula = staticmethod(formula)  # a plain function would be bound to the metric
            cls._name = cls.__dict__.get("_name", cls.__name__)
            if not re.fullmatch(r"[A-Za-z0-9_-]+", cls._name):
                raise TypeError(f"{cls._name} becomes part of a label: use only letters, digits, '-' and '_'")
            SIDES[cls._name] = cls.higher_is_better
        if isinstance(weights := cls.__dict__.get("weights"), FunctionType):
            cls.weights = staticmethod(weights)
        low, high = cls.bounds or (-math.inf, math.inf)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        cls.bounds = None if math.isinf(low) and math.isinf(high) else (low, high)
        cls.plot_lower_bound, cls.plot_upper_bound = (end if math.isfinite(end) else None for end in (low, high))

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Explain another library's name of `k` before Python reports that `k` is missing."""
        needs_k = cls._signature is not None and cls._signature.needs_k
        for name in options.keys() - inspect.signature(cls.__init__).parameters:
            if needs_k and NAMES_OF_OTHERS.get(name) == "k":
                raise ValueError(f"{cls._name} has no option {name!r}{nearest(name, ['k'])}")
        return super().__new__(cls)

    def __init__(self, k: int | None = None, **options: Any) -> None:
        self._check_known(k, options)
        super().__init__(**{name: value for name, value in options.items() if name in TORCHMETRICS_OPTIONS})
        self.description: Description = self._described(k, options)  # which `needs` and `_full_name` of a class read
        grade = self.description.relevant_from
        name = self._full_name() if grade is None else f"{self._full_name()}-{label_part('from', grade)}"
        self.description = replace(self.description, needs=self.needs, name=name)
        changed = self._signature is not None and self.options != self._signature.options
        tries = (changed or self.catalogue is not None) and not self.description.lacks_catalogue
        if tries and is_builtin(type(self)):
            self._try_formula(self.description)  # so that bad options raise now, not at the first batch
        self._begin({self.label: self.description}, self.description.fingerprint)

    def _described(self, k: int | None, options: Mapping[str, Any]) -> Description:
        """Return the description, without needs and full name, or raise for values that are not accepted."""
        assert self._signature is not None
        defaults = self._signature.options
        own_options = {name: deepcopy(options.get(name, default)) for name, default in defaults.items()}
        if "score_threshold" in own_options:
            own_options["score_threshold"] = check_score_threshold(own_options["score_threshold"])
        empty_target_action = options.get("empty_target_action", "skip")
        check_choice("empty_target_action", empty_target_action, self._empty_target_actions)
        return Description(
            metric_class=type(self),
            kind=self._kind,
            bounds=self.bounds,
            higher_is_better=self.higher_is_better,
            name=self._name,
            k=None if k is None else check_k(k),
            options=own_options,
            ranking_options=Options(**{name: options[name] for name in OPTIONS if name in options}),
            empty_target_action=empty_target_action,
            relevant_from=self._check_grade(options.get("relevant_from"), own_options),
            catalogue=checked_catalogue(options.get("catalogue")),
            needs=Needs(),
            torchmetrics_options={name: getattr(self, name) for name in TORCHMETRICS_OPTIONS},
            own_weights=vars(self).get("weights"),
        )

    def _check_grade(self, grade: float | None, options: Mapping[str, Any]) -> float | None:
        """Return `relevant_from`, or raise if it is no grade, or one that the metric does not take."""
        if grade is None:
            return None
        if isinstance(grade, bool) or not isinstance(grade, Real) or not 0 < grade < math.inf:
            raise ValueError(f"relevant_from must be a grade above 0, got {grade!r}")
        if not takes_grade(self._kind, options):
            raise ValueError(f"{self._name} does not take relevant_from: it reads the grades themselves, or no target")
        return float(grade)

    def _check_known(self, k: int | None, options: Mapping[str, Any]) -> None:
        """Refuse a class without a formula, a cut-off that it does not take, and unknown or missing options."""
        signature = self._signature
        if signature is None:
            raise TypeError(
                f"{type(self).__name__} has no formula: write a subclass with formula = staticmethod(function), a "
                "function of (ranking, k, *, options) that returns one value per row"
            )
        if k is not None and not signature.takes_k:
            raise ValueError(f"{self._name} has no cut-off, got k={k!r}")
        for name in options:
            if name not in signature.options and name not in METRIC_OPTIONS:  # classes may have further keywords
                parameters = inspect.signature(type(self).__init__).parameters.values()
                keywords = [param.name for param in parameters if param.kind is param.KEYWORD_ONLY]
                known = ["k"] * signature.takes_k + keywords + [*signature.options, *METRIC_OPTIONS]
                raise ValueError(f"{self._name} has no option {name!r}{nearest(name, dict.fromkeys(known))}")
        if k is None and signature.needs_k:
            raise TypeError(f"{self._name!r} needs a cut-off: {type(self).__name__}(10)")
        required = (name for name, default in signature.options.items() if default is inspect.Parameter.empty)
        if missing := [f"{name}=" for name in required if name not in options]:
            raise TypeError(f"{self._name} needs {', '.join(missing)}")
        for name in signature.options.keys() & options.keys():
            label_part(name, options[name])  # refuses values that no label can show

    @classmethod
    def _try_formula(cls, metric: Description) -> None:
        """Call the formula on a ranking without rows, so that it raises for bad options."""
        assert cls._signature is not None
        no_rows = Ranking.without_relevant(0, torch.device("cpu"), metric.needs.score_threshold)
        cls.formula(no_rows, *((metric.k,) if cls._signature.takes_k else ()), **metric.arguments)

    # ------------------------------------------------------------------------------------------------ names and needs

    @property
    def k(self) -> int | None:
        """The cut-off; None = the whole ranking, or the metric has none."""
        return self.description.k

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the formula by name."""
        return self.description.options

    @property
    def empty_target_action(self) -> EmptyTargetAction:
        """Value of rows without a relevant item."""
        return self.description.empty_target_action

    @property
    def catalogue(self) -> ItemCatalogue | None:
        """The catalogue that the metric was made with."""
        return self.description.catalogue

    @property
    def name(self) -> str:
        """Label without the cut-off: `NDCG-exponential`."""
        return self.description.name

    @property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.description.label

    def _full_name(self) -> str:
        """Return the name of the class and the options that are not the default."""
        assert self._signature is not None
        defaults, options = self._signature.options, self.options.items()
        return "-".join([self._name, *(label_part(key, value) for key, value in options if value != defaults[key])])

    @property
    def needs(self) -> Needs:
        """The data that the formula reads: the first `k` ranks, or all; the items that reach `score_threshold`.

        A formula with a parameter `catalogue` also reads the items of the first `k` ranks. If a formula reads
        `Ranking.num_ranked`, override this property: `return super().needs._replace(num_ranked=True)`.
        """
        graded = "gain" in self.options or self.description.relevant_from is not None
        needs = Needs(self.k, score_threshold=self.options.get("score_threshold"), graded=graded)
        if self._signature is None or not self._signature.reads_catalogue or self.catalogue is None:
            return needs
        return needs._replace(list_depth=self.k or 0, num_items=self.catalogue.num_items)

    # -------------------------------------------------------------------------------------------------------- results

    @property
    def last_result(self) -> Result:
        """The result of the last `compute`, or of the state if it has changed since."""
        return (self._last_results or self.compute_results())[self.label]

    @outside_graphs
    def forward(self, *args: Any, **arguments: Any) -> Tensor:
        """Add a batch and return its own value; takes the arguments of `update` and waits for the device."""
        value: Tensor = super().forward(*args, **arguments)[self.label]
        self._forward_cache = self._forward_cache[self.label]
        return value

    def compute(self) -> Tensor:
        """Return the value over all processes; NaN and a warning if there was no row.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        value: Tensor = super().compute()[self.label]
        return value

    def result(self) -> Evaluation:
        """Return the value with its interval and counts, as a collection does; all processes must call it.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> metric = trm.MRR(3)
            >>> scores = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5]])
            >>> metric.update(scores, torch.tensor([1, 2]))
            >>> print(metric.result())
            MRR@3  0.7500 ± 0.2500
            2 users
            ± standard error; no interval for fewer than 10 users
        """
        from torchrecmetrics.results.evaluation import Evaluation  # metrics themselves need no tables

        result = self.compute_results()[self.label]
        return Evaluation([result], result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


class CountedMetric(RankingMetric):
    """Base class of metrics that are not means over rows, but computed from counts over all rows.

    Metrics whose accumulators have the same `option` share one.
    """

    _kind: ClassVar[Kind] = "counted"

    @classmethod
    def make_counts(cls, metric: Description) -> Summed:
        """Return the accumulator of the counts."""
        raise NotImplementedError

    @classmethod
    def counted_value(cls, metric: Description, totals: State) -> tuple[Tensor, int]:
        """Return the value from the totals of the accumulator, and the number of rows."""
        raise NotImplementedError
