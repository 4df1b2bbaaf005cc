"""`Description`: a metric's formula, options, label and needs; `FormulaBatch`: metrics that share a formula."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from types import FunctionType
from typing import Any, ClassVar, Protocol, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice, check_k, check_score_threshold, describe
from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.core.options import OPTIONS, Needs, Options
from torchrecmetrics.core.other_names import CUTOFFS, explains_names
from torchrecmetrics.core.ranked_items import Cutoffs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import SIDES, Result
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.signature import (
    METRIC_OPTIONS,
    EmptyTargetAction,
    Formula,
    ItemCatalogue,
    Signature,
    check_option_names,
    label_part,
    option_fingerprint,
    option_hint,
)


class Description:
    """A metric without its state: the formula, its cut-off and options, its label and needs."""

    higher_is_better: bool | None = True

    formula: ClassVar[Formula]
    weights: Callable[..., Tensor] | None = None
    """A function of the ranking, or of the ranking and `k`, that returns the row weights, [B]; None = all 1."""
    many_cutoffs: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float] | None] = None
    _is_of_lists: ClassVar[bool] = False
    """True for means over all rows with a list, with or without relevant items."""
    _is_of_items: ClassVar[bool] = False
    """True for metrics that count over all rows and are not means over rows."""
    graded: ClassVar[bool] = False
    """True if the order still matters, through gains, when all items are relevant."""
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _name: ClassVar[str]
    _signature: ClassVar[Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            type.__setattr__(cls, "__init__", explains_names(cls.__init__))  # typed as before
        if "formula" in cls.__dict__:
            formula = cls.__dict__["formula"]
            formula = formula.__func__ if isinstance(formula, staticmethod) else formula
            formula = inspect.unwrap(formula)  # without the NaN of rows that metrics leave out
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

    def _check_signature(self, options: dict[str, Any]) -> None:
        """Refuse a class without a formula, and unknown or missing options."""
        if self._signature is None:
            raise TypeError(
                f"{type(self).__name__} has no formula: write a subclass with formula = "
                "staticmethod(function), a function of (ranking, k, *, options) that returns one value per "
                "row"
            )
        self._check_known(options)

    def _describe(self, k: int | None, options: dict[str, Any]) -> None:
        """Set the cut-off and the options, or raise for those that the formula does not take."""
        signature = self._signature
        assert signature is not None
        if k is not None and not signature.takes_k:
            raise ValueError(f"{self._name} has no cut-off, got k={k!r}")
        if k is None and signature.needs_k:
            raise TypeError(f"{self._name!r} needs a cut-off: {type(self).__name__}(10)")
        self.k: int | None = None if k is None else check_k(k)
        self._rules: Options = Options(**{name: options[name] for name in OPTIONS if name in options})
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

    @property
    def _fingerprint(self) -> str:
        """Text that contains everything on which values depend."""
        shaped_by = [self.label, self._rules.tie_rule, self._rules.overlap_rule, self.empty_target_action]
        shaped_by += [] if self._rules.padding_idx is None else [f"padding{self._rules.padding_idx}"]
        shaped_by += [] if self._rules.validate_args is True else [f"validate_{self._rules.validate_args}"]
        if not _is_builtin(type(self)):  # another class may have the same name and options
            module = type(self).__module__.replace("__mp_main__", "__main__")
            shaped_by.append(option_fingerprint(module, type(self).__qualname__, self.options))
        if self._signature is not None and self._signature.reads_catalogue and self.catalogue is not None:
            shaped_by.append(self.catalogue.fingerprint)
        return "-".join(shaped_by)

    def _try_formula(self) -> None:
        """Call the formula on a ranking without rows, so that it raises for bad options now."""
        no_rows = Ranking.without_relevant(0, torch.device("cpu"), self.needs.score_threshold)
        k = (self.k,) if self._takes_k else ()
        self.formula(no_rows, *k, **self._arguments)

    def _check_catalogue(self, catalogue: Any) -> ItemCatalogue | None:
        """Return the catalogue, or raise if the metric needs one and none is given."""
        assert self._signature is not None
        if catalogue is None and self._signature.reads_catalogue:
            raise needs_catalogue(self._name, "10, " if self._signature.takes_k else "")
        if catalogue is not None and not (hasattr(catalogue, "num_items") and hasattr(catalogue, "fingerprint")):
            raise TypeError(
                f"catalogue must be a Catalogue, got {describe(catalogue)}: pass "
                "trm.Catalogue.from_interactions(train), with train from trm.Interactions.from_frame(frame) "
                "or trm.Log.from_file(path).to_interactions()"
            )
        checked: ItemCatalogue | None = catalogue
        return checked

    def _check_known(self, options: dict[str, Any]) -> None:
        """Refuse unknown options, and name required ones that are missing."""
        assert self._signature is not None
        if self._signature.takes_k:
            check_option_names(options)
        elif cutoffs := [f"{name}={value!r}" for name, value in options.items() if name in CUTOFFS]:
            raise TypeError(f"{self._name} has no cut-off, got {cutoffs[0]}")
        formula_options = self._signature.options
        known = [*formula_options, *METRIC_OPTIONS]
        for name in options:
            if name not in known:  # classes may have further keywords
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
    def _arguments(self) -> dict[str, Any]:
        """Keyword arguments of the formula."""
        reads = self._signature is not None and self._signature.reads_catalogue
        return {**self.options, "catalogue": self.catalogue} if reads else self.options

    @property
    def _takes_k(self) -> bool:
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

    def _empty_result(self, key: str) -> Result:
        """Return the result of this metric without rows, under a key."""
        return Result(key, self.name, self.k, bounds=self.bounds)

    def _row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
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

    def _may_be_infinite(self) -> bool:
        """Return True if the value of a row may be infinite."""
        low, high = self.bounds or (-math.inf, math.inf)
        return math.isinf(low) or math.isinf(high)


def needs_catalogue(name: str, k: str) -> CuredError:
    """Return the error for a metric without the catalogue that it reads; `k` is the cut-off in its call."""
    cure = (
        f"{name}({k}catalogue=trm.Catalogue.from_interactions(train)); collections, evaluate and callbacks take "
        "catalogue= for all their metrics"
    )
    return CuredError(f"{name} needs a catalogue: {cure}", Cure(cure, "catalogue"))


def _is_builtin(cls: type) -> bool:
    """Return True for a metric of this package, whose label contains everything that its value depends on."""
    return cls.__module__.startswith("torchrecmetrics.")


class Counted(Protocol):
    """A metric that is not a mean over rows, but is computed from the totals of an accumulator."""

    @property
    def counts_key(self) -> Hashable:
        """Key that is equal for metrics that read the same counts."""
        ...

    def make_counts(self) -> Accumulator:
        """Return the accumulator of the counts, which also returns `batch_totals`."""
        ...

    def counted_result(self, key: str, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> Result:
        """Return the result from the counts and sums of the accumulator, under a key."""
        ...


class FormulaBatch:
    """One formula with its options, called once for all cut-offs of the metrics that share it."""

    def __init__(self, metrics: Mapping[str, Description]) -> None:
        self.metrics: dict[str, Description] = dict(metrics)
        """Metrics by key, in the order of the values."""
        self._leader = leader = next(iter(metrics.values()))
        self._number = len(metrics)
        self._reads_catalogue = "catalogue" in leader._arguments
        self._k: tuple[Any, ...] = ()
        if leader._takes_k:
            shared = self._number > 1
            self._k = (Cutoffs(metric.k or 0 for metric in metrics.values()) if shared else leader.k,)
        reads_all = leader.many_cutoffs or leader.needs.whole_targets or leader.k is None
        self._depth = None if reads_all else leader.k  # a formula of one cut-off sees only the first k ranks

    def values(self, ranking: Ranking) -> Tensor:
        """Return the value of each row for each metric, float [metrics, B]."""
        metric, number, device = self._leader, self._number, ranking.num_relevant.device
        visible = ranking if self._depth is None else ranking.within(self._depth)
        arguments = {**metric.options, "catalogue": metric.catalogue} if self._reads_catalogue else metric.options
        values = metric.formula(visible, *self._k, **arguments)
        rows = ranking.num_relevant.shape[0]
        shape = (number, rows) if number > 1 else (rows,)
        if not isinstance(values, Tensor) or values.shape != shape or values.device != device:
            expected = f"a row for each of the cut-offs {self._k[0]}, " if number > 1 else "one value per row, "
            raise TypeError(
                f"the formula of {metric.label} must return {expected}a tensor {list(shape)} on {device}, got "
                f"{describe(values)}{f' on {values.device}' if isinstance(values, Tensor) else ''}"
            )
        return (values if number > 1 else values[None]).to(ranking.num_relevant.dtype)


def formula_batches(metrics: Mapping[str, Description]) -> list[FormulaBatch]:
    """Return the formulas of metrics that are means over rows; those with their own row weights come last."""
    with_row_weights: list[dict[str, Description]] = []
    with_own_weights: list[dict[str, Description]] = []
    for key, metric in metrics.items():
        if metric._is_of_items:
            continue
        batches = with_own_weights if metric.weights is not None else with_row_weights
        for batch in batches if metric.many_cutoffs and metric.k is not None else ():
            if _shares_formula(next(iter(batch.values())), metric):
                batch[key] = metric
                break
        else:
            batches.append({key: metric})
    return [FormulaBatch(batch) for batch in with_row_weights + with_own_weights]


def _shares_formula(leader: Description, metric: Description) -> bool:
    """Return True if two metrics differ only in their cut-offs."""
    same = type(metric).formula is type(leader).formula and metric.options == leader.options
    return same and metric.catalogue is leader.catalogue and leader.k is not None
