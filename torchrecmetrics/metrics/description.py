"""`Description`: a metric without state, a record of its formula, options, label and needs."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.options import Needs, Options, RankingOptions
from torchrecmetrics.core.ranking import Ranking

EmptyTargetAction: TypeAlias = Literal["skip", "neg", "pos", "error"]
"""Rows without a relevant item are left out ("skip"), count as 0 ("neg") or 1 ("pos"), or are an error."""
Formula: TypeAlias = Callable[..., Tensor]


class ItemCatalogue(Protocol):
    """The attributes of a `Catalogue` that the core reads."""

    num_items: int

    @property
    def fingerprint(self) -> str:
        """Hash of the catalogue's contents."""
        ...


class MetricOptions(RankingOptions, total=False):
    """Keyword options of every metric, also of collections, callbacks and `evaluate`; see `RankingMetric`."""

    empty_target_action: EmptyTargetAction
    """Value of rows without a relevant item."""
    relevant_from: float | None
    """Lowest grade (gain) of a relevant item, for metrics that do not read grades; None = any above 0."""
    catalogue: ItemCatalogue | None
    """The catalogue that metrics beyond accuracy read."""
    # torchmetrics' own
    compute_on_cpu: bool
    compute_with_cache: bool
    dist_sync_fn: Callable[..., Any] | None
    dist_sync_on_step: bool
    distributed_available_fn: Callable[..., bool] | None
    process_group: Any
    sync_on_compute: bool


METRIC_OPTIONS = tuple(MetricOptions.__annotations__)
TORCHMETRICS_OPTIONS = METRIC_OPTIONS[METRIC_OPTIONS.index("compute_on_cpu") :]
"""Keywords of torchmetrics' own `Metric`."""


class Signature(NamedTuple):
    """Properties of a metric that follow from the parameters of its formula."""

    takes_k: bool
    needs_k: bool
    reads_catalogue: bool
    options: dict[str, Any]
    """Names and defaults of the metric's own options; `inspect.Parameter.empty` = must be given."""

    @classmethod
    def read(cls, owner: str, formula: Formula) -> Signature:
        """Return the properties of a formula, a function of `(ranking, k, *, options)` or `(ranking, *, options)`.

        Raises:
            TypeError: for other parameters, or anything but a function.
        """
        rule = f"{owner}.formula must be a function of (ranking, k, *, ...) or (ranking, *, ...)"
        try:
            ranking, *parameters = inspect.signature(formula).parameters.values()
        except (TypeError, ValueError):
            raise TypeError(f"{rule}, got {formula!r}") from None
        if ranking.name == "self":
            raise TypeError(f"{rule}: it has no self; options are arguments")
        k = parameters.pop(0) if parameters and parameters[0].name == "k" else None
        reads_catalogue = any(parameter.name == "catalogue" for parameter in parameters)
        parameters = [parameter for parameter in parameters if parameter.name != "catalogue"]
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"{rule}, with keyword-only options, got {parameter}")
        options = {parameter.name: parameter.default for parameter in parameters}
        if reserved := [name for name in options if name in (*METRIC_OPTIONS, "k", "weights")]:
            raise TypeError(f"{owner}.formula has the option {', '.join(reserved)}, which every metric has: rename it")
        needs_k = k is not None and k.default is k.empty
        return cls(takes_k=k is not None, needs_k=needs_k, reads_catalogue=reads_catalogue, options=options)


def label_part(option: str, value: Any) -> str:
    """Return an option and its value in letters, digits, '-' and '_', which ModuleDict and file names accept."""
    if isinstance(value, str):
        return re.sub(r"[^A-Za-z0-9_-]", lambda match: f"_{ord(match[0]):x}_", value)
    if isinstance(value, bool) or value is None:
        return option if value else f"no_{option}"
    if isinstance(value, (int, float)):
        # these names are kept so that logged keys stay the same
        short = {"score_threshold": "t", "zero_division": "zero_division_"}.get(option, option)
        return f"{short}{float(value)!r}".removesuffix(".0").replace(".", "_").replace("+", "")
    if isinstance(value, (tuple, list)):
        return "_".join([option, *(label_part("", entry) for entry in value)])
    raise TypeError(f"{option}={value!r}: a label can show numbers, strings, True, False, None and tuples of these")


def option_fingerprint(module: str, name: str, options: dict[str, Any]) -> str:
    """Return a hash that tells objects of the same label apart, equal in all processes and runs.

    Keys of saved states hold it: for classes of this package, `module` is a constant, so that their files can move.
    """
    text = repr((module, name, [(option, type(value), value) for option, value in sorted(options.items())]))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


Kind: TypeAlias = Literal["accuracy", "lists", "counted"]
"""Means over rows with a relevant item, means over rows with a list, or a value that is computed from counts."""


@dataclass(frozen=True, eq=False)
class Description:
    """A metric without state: everything on which its value depends."""

    metric_class: type[Any]
    """The subclass of `RankingMetric`, which has the formula."""
    kind: Kind
    """What the value is computed from."""
    bounds: tuple[float, float] | None
    """Lowest and highest value; None = unknown."""
    higher_is_better: bool | None
    """True if higher values are better; None = neither."""
    name: str
    """Label without the cut-off: `NDCG-exponential`."""
    k: int | None
    """Cut-off; None = the whole ranking, or the metric has none."""
    options: Mapping[str, Any]
    """Options of the formula by name."""
    ranking_options: Options
    """Options of rankings, such as `ties`."""
    empty_target_action: EmptyTargetAction
    """Value of rows without a relevant item."""
    relevant_from: float | None
    """Lowest grade of a relevant item; None = any above 0."""
    catalogue: ItemCatalogue | None
    """The catalogue of the items, if given."""
    needs: Needs
    """The data of a batch that the metric reads."""
    torchmetrics_options: Mapping[str, Any]
    """Keywords of torchmetrics' own `Metric`, such as `sync_on_compute`."""
    own_weights: Callable[..., Tensor] | None = None
    """A function that returns the row weights of this metric; None = that of its class, if it has one."""

    @cached_property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def lacks_catalogue(self) -> bool:
        """True if the formula reads a catalogue, and none was given: a collection, `evaluate` or a callback has it."""
        return self.catalogue is None and bool(self.metric_class._signature.reads_catalogue)

    def with_catalogue(self, catalogue: Any) -> Description:
        """Return the description with a catalogue; raise if that is None, and for options that do not fit it."""
        items = checked_catalogue(catalogue)
        if items is None:
            raise needs_catalogue(self.metric_class._name, "10, " if self.metric_class._signature.takes_k else "")
        needs = self.needs._replace(list_depth=self.k or 0, num_items=items.num_items)
        description = replace(self, catalogue=items, needs=needs)
        if is_builtin(self.metric_class):
            self.metric_class._try_formula(description)
        return description

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """Keyword arguments of the formula: its options and, if it reads one, the catalogue, or raise without it."""
        if self.lacks_catalogue:
            self.with_catalogue(None)
        reads = self.metric_class._signature.reads_catalogue
        return {**self.options, "catalogue": self.catalogue} if reads else self.options

    @property
    def weights(self) -> Callable[..., Tensor] | None:
        """A function of the ranking, or of the ranking and `k`, that returns the row weights, [B]; None = all 1."""
        weights: Callable[..., Tensor] | None = self.own_weights or self.metric_class.weights
        return weights

    def read(self, ranking: Ranking) -> Ranking:
        """Return the ranking of a batch as the metric sees it, with the items from its grade on as relevant."""
        return ranking if self.relevant_from is None else ranking.from_grade(self.relevant_from)

    def row_weights(self, ranking: Ranking, shared: Tensor) -> Tensor:
        """Return the weight of each row, [B]: the `shared` weights of `update` times those of the metric; or raise."""
        assert self.weights is not None
        takes_k = len(inspect.signature(self.weights).parameters) > 1
        seen = self.read(ranking)
        factors: Any = self.weights(seen, self.k) if takes_k else self.weights(seen)
        if not isinstance(factors, Tensor) or factors.shape != shared.shape:
            raise TypeError(
                f"weights of {self.label} must return one weight per row, a tensor {list(shared.shape)}, got "
                f"{describe(factors)}"
            )
        return (shared * factors.nan_to_num(0)).to(shared.dtype)

    def shares_formula(self, other: Description) -> bool:
        """Return True if two metrics differ only in their cut-offs, so that one call of the formula serves both."""
        one, two = self.metric_class, other.metric_class
        takes_several = one.many_cutoffs and self.k is not None and other.k is not None
        same = one.formula is two.formula and self.options == other.options and self.catalogue is other.catalogue
        return takes_several and same and self.relevant_from == other.relevant_from

    @property
    def fingerprint(self) -> str:
        """Text that contains everything on which values depend."""
        options = self.ranking_options
        shaped_by = [self.label, options.tie_rule, options.overlap_rule, self.empty_target_action]
        shaped_by += [] if options.padding_idx is None else [f"padding{options.padding_idx}"]
        shaped_by += [] if options.validate_args is True else [f"validate_{options.validate_args}"]
        if not is_builtin(self.metric_class):  # another class may have the same name and options
            module = self.metric_class.__module__.replace("__mp_main__", "__main__")
            shaped_by.append(option_fingerprint(module, self.metric_class.__qualname__, dict(self.options)))
        if self.metric_class._signature.reads_catalogue and self.catalogue is not None:
            shaped_by.append(self.catalogue.fingerprint)
        return "-".join(shaped_by)

    def __deepcopy__(self, memo: dict[int, Any]) -> Description:
        return self  # never changed, so that copies of a metric share it


def takes_grade(kind: Kind, options: Mapping[str, Any]) -> bool:
    """Return True if a metric has `relevant_from`: it reads relevant items, and not their gains."""
    return kind == "accuracy" and "gain" not in options and not options.get("weighted")


def is_builtin(metric_class: type) -> bool:
    """Return True for a metric of this package, whose label contains everything that its value depends on."""
    return metric_class.__module__.startswith("torchrecmetrics.")


def checked_catalogue(catalogue: Any) -> ItemCatalogue | None:
    """Return the catalogue, or None; raise for anything else."""
    if catalogue is not None and not (hasattr(catalogue, "num_items") and hasattr(catalogue, "fingerprint")):
        raise TypeError(
            f"catalogue must be a Catalogue, got {describe(catalogue)}: pass "
            "trm.Catalogue.from_interactions(train), with train from trm.Interactions.from_frame(frame) "
            "or trm.Log.from_file(path).to_interactions()"
        )
    checked: ItemCatalogue | None = catalogue
    return checked


def needs_catalogue(name: str, k: str) -> ValueError:
    """Return the error for a metric without the catalogue that it reads; `k` is the cut-off in its call."""
    return ValueError(
        f"{name} needs a catalogue: {name}({k}catalogue=trm.Catalogue.from_interactions(train)); collections, evaluate "
        "and callbacks take catalogue= for all their metrics"
    )
