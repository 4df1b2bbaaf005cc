"""`Description`: a metric without state, a record of its formula, options, label and needs; `Formulas` calls them."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant
from torchrecmetrics.core.checks import Checks, describe, shown
from torchrecmetrics.core.options import Needs, Options, RankingOptions
from torchrecmetrics.core.ranked_items import Cutoffs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Layout, Result, RowValues

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
    """Data that the value is computed from."""
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


class Formulas:
    """The formulas of metrics that share a ranking; those that differ only in their cut-offs are called once.

    Args:
        metrics: descriptions by key, with the same options of rankings.
        suffixes: endings of the keys of means over some rows: "/cold".
    """

    def __init__(self, metrics: Mapping[str, Description], suffixes: Sequence[str] = ()) -> None:
        self.metrics: dict[str, Description] = dict(metrics)
        """All metrics by key."""
        self.leader: Description = next(iter(metrics.values()))
        """The first metric, whose options are those of all."""
        self.needs: Needs = Needs.union(metric.needs for metric in metrics.values())
        """The data of a batch that the metrics read, taken together."""
        self.calls: list[dict[str, Description]] = _calls(metrics)
        """Metrics whose values one call of their formula returns, by key."""
        self.means: dict[str, Description] = {key: metric for call in self.calls for key, metric in call.items()}
        """Metrics that are means over rows, by key; those with their own row weights come last."""
        self.own_weighted: list[Description] = [metric for metric in self.means.values() if metric.weights is not None]
        """The last of `means`, which weigh rows themselves."""
        self.layout: Layout = Layout(
            [empty_result(key, metric) for key, metric in self.means.items()],
            num_plain=len(self.means) - len(self.own_weighted),
            of_lists=[metric.kind == "lists" for metric in self.means.values()],
        )
        """Layout of the sums of row values."""
        self.defined_when_empty: tuple[bool, ...] = tuple(
            bool(metric.options.get("zero_division")) for metric in self.means.values()
        )
        """Which of `means` have a `zero_division` other than 0, the value of rows without a relevant item."""
        self.metric_of_key: dict[str, tuple[str, str]] = {}
        """Key of the metric and its ending, empty for all rows, for each key of a result, in their order."""
        for key in metrics:
            for suffix in ["", *suffixes] if key in self.means else [""]:
                if key + suffix in self.metric_of_key:
                    raise ValueError(f"{key + suffix!r} would be the key of two values")
                self.metric_of_key[key + suffix] = key, suffix
        accuracy = [metric for metric in metrics.values() if metric.kind == "accuracy"]
        self._leading: Description = (accuracy or [self.leader])[0]  # whose rows without a relevant item are counted
        self._by_grade = {metric.relevant_from: metric for metric in self.means.values()}
        kinds = {metric.kind for metric in metrics.values()}
        self._reads_lists = bool(self.needs.list_depth) or "lists" in kinds
        self._reads_relevant = "accuracy" in kinds

    def check(self, ranking: Ranking, checks: Checks) -> Ranking:
        """Reject rows that the metrics cannot read, and return the ranking without ids beyond the catalogue."""
        if self._reads_lists:
            ranking = inside_catalogue(ranking, self.needs, checks)
        if self.leader.empty_target_action == "error" and self._reads_relevant:
            for metric in self._by_grade.values():
                checks.reject("empty", metric.read(ranking).num_relevant == 0, lambda row: f"row {row}")
        if ranking.row_depth is not None:
            cutoffs = [metric.k for metric in self.metrics.values()]
            short = ranking.short_rows(max((k for k in cutoffs if k is not None), default=0))
            short = short | ranking.short_rows(None) if None in cutoffs else short
            checks.reject("list_short", short, ranking.describe_short_row)
        return ranking

    def values(self, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Tensor]) -> RowValues:
        """Return the values of the rows of a checked ranking; rows that do not count in a mean are undefined there."""
        # formulas raise for short rows, which have been rejected
        readable = ranking if ranking.row_depth is None else replace(ranking, row_depth=None)
        by_call = [_values_of(list(call.values()), readable) for call in self.calls]
        values = torch.cat(by_call) if by_call else ranking.num_relevant.new_zeros(0, len(ranking))
        empty = no_relevant = self._leading.read(ranking).num_relevant == 0
        if len(self._by_grade) > 1:
            empty = torch.stack([metric.read(ranking).num_relevant == 0 for metric in self.means.values()])
        values, undefined = self._of_empty_rows(values, empty, ranking)
        masks = [mask for mask in (ranking.rows.valid, ranking.rows.own) if mask is not None]
        if weights is not None:
            masks.append(weights > 0)
        counted = reduce(torch.logical_and, masks) if masks else None
        if counted is not None:
            undefined = undefined | ~counted
        own_weights = None
        if self.own_weighted:
            shared = torch.ones_like(ranking.num_relevant) if weights is None else weights
            own_weights = torch.stack([metric.row_weights(ranking, shared) for metric in self.own_weighted])
            number = self.layout.num_plain
            unweighted = undefined[number:] | ~(own_weights > 0)
            undefined = torch.cat([undefined[:number], unweighted])
            own_weights = own_weights.masked_fill(unweighted, 0)
        return RowValues(
            values=values.masked_fill(undefined, 0),
            undefined=undefined,
            flags=torch.stack([no_relevant, ranking.unreachable, ranking.tied]),
            weights=weights,
            own_weights=own_weights,
            counted=counted,
            ranking=ranking,
            columns=columns,
        )

    def _of_empty_rows(self, values: Tensor, empty: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
        """Return the values with those of `empty` rows, bool [B] or [metrics, B], and which are undefined."""
        of_lists, action = None, self.leader.empty_target_action
        if any(self.layout.of_lists):  # metrics of lists also read rows without a relevant item
            of_lists = _column_of(self.layout.of_lists, values.device)
            empty = empty & ~of_lists
        if action == "neg" and any(self.defined_when_empty):  # the formula decides first
            empty = empty & ~_column_of(self.defined_when_empty, values.device)
        if action in ("neg", "pos"):
            values = values.masked_fill(empty, float(action == "pos"))
            undefined = values.isnan()
        else:
            undefined = values.isnan() | empty
        wants_list = None if of_lists is None else ranking.listed().wants_list
        if of_lists is not None and wants_list is not None:
            undefined = undefined | (of_lists & ~wants_list)
        return values, undefined


def _calls(metrics: Mapping[str, Description]) -> list[dict[str, Description]]:
    """Return metrics that are means over rows, those of one call together; those with their own weights come last."""
    plain: list[dict[str, Description]] = []
    own_weighted: list[dict[str, Description]] = []
    for key, metric in metrics.items():
        if metric.kind == "counted":
            continue
        calls = plain if metric.weights is None else own_weighted
        for call in calls:
            if metric.shares_formula(next(iter(call.values()))):
                call[key] = metric
                break
        else:
            calls.append({key: metric})
    return plain + own_weighted


def _values_of(metrics: list[Description], ranking: Ranking) -> Tensor:
    """Return the value of each row for metrics that share a formula, float [metrics, B]."""
    metric, number, rows = metrics[0], len(metrics), ranking.num_relevant
    ranking = metric.read(ranking)
    metric_class, k = metric.metric_class, metric.k if number == 1 else Cutoffs(metric.k or 0 for metric in metrics)
    if metric.k is not None and not metric_class.many_cutoffs and not metric.needs.whole_targets:
        ranking = ranking.within(metric.k)  # a formula of one cut-off sees only the first k ranks
    values: Any = metric_class.formula(ranking, *((k,) if metric_class._signature.takes_k else ()), **metric.arguments)
    shape = (number, len(rows)) if number > 1 else (len(rows),)
    if not isinstance(values, Tensor) or values.shape != shape or values.device != rows.device:
        expected = f"a row for each of the cut-offs {k}, " if number > 1 else "one value per row, "
        raise TypeError(
            f"the formula of {metric.label} must return {expected}a tensor {list(shape)} on {rows.device}, got "
            f"{describe(values)}{f' on {values.device}' if isinstance(values, Tensor) else ''}"
        )
    return (values if number > 1 else values[None]).to(rows.dtype)


def empty_result(key: str, metric: Description) -> Result:
    """Return the result of a metric without rows, under a key."""
    return Result(key, metric.name, metric.k, bounds=metric.bounds)


@cached_constant
def _column_of(flags: tuple[bool, ...], device: torch.device) -> Tensor:
    """Return flags as bool [n, 1], created on the device, since a copy from the host could wait for it."""
    return torch.cat([torch.full((1, 1), flag, device=device) for flag in flags])


def inside_catalogue(ranking: Ranking, needs: Needs, checks: Checks) -> Ranking:
    """Return the ranking without ids beyond the catalogue in its lists and history."""
    lists, size = ranking.listed(), needs.num_items
    if size is None:
        return ranking
    if lists.num_items is None or lists.num_items > size:
        ids = lists.ids
        beyond = ids >= size
        checks.reject("catalogue_range", beyond, lambda row: f"row {row} lists {shown(ids[row])} of {size} items")
        stays = ~beyond if lists.stays is None else lists.stays & ~beyond
        lists = lists._replace(stays=stays, num_items=size)
    if needs.history and lists.history is not None:
        history = lists.history
        past = history >= size
        checks.reject("catalogue_range", past, lambda row: f"row {row} had {shown(history[row])} of {size} items")
        lists = lists._replace(history=history.where(~past, -1))
    return replace(ranking, lists=lists)
