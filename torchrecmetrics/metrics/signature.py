"""`MetricOptions` and `Signature`: keyword options of all metrics, and of a formula; their labels."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from torchrecmetrics.core.options import RankingOptions

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
