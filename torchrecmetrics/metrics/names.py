"""Names of metrics and their aliases, and the keys of a collection."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.core.checks import check_k, describe, nearest
from torchrecmetrics.metrics import accuracy, item_counts, item_groups, of_lists, one_rank
from torchrecmetrics.metrics.description import METRIC_OPTIONS, Description, MetricOptions, takes_grade
from torchrecmetrics.metrics.ranking_metric import RankingMetric

KeyFormat: TypeAlias = str | Callable[[str, int | None], str]
"""A format string of {name} and {k}, or a function of both, that makes a key."""
Metrics: TypeAlias = (
    Sequence[str | RankingMetric | Description] | Mapping[str, RankingMetric | Description] | str | RankingMetric
)
"""Names such as "NDCG" or "MAP@100" and instances, alone or in a list; or a dict of instances by key."""

_CLASSES: dict[str, type[RankingMetric]] = {
    cls._name: cls
    for module in (accuracy, one_rank, of_lists, item_counts, item_groups)
    for cls in (getattr(module, name) for name in module.__all__)
}
_BY_NAME = {name.lower(): cls for name, cls in _CLASSES.items()} | {
    **dict.fromkeys(("hit", "hits", "hitratio", "hitrate", "success", "successrate"), accuracy.HitRate),
    "p": accuracy.Precision,
    "normalizeddcg": accuracy.NDCG,
    "r": accuracy.Recall,
    **dict.fromkeys(("meanaverageprecision", "averageprecision", "ap"), accuracy.MAP),
    **dict.fromkeys(("meanreciprocalrank", "reciprocalrank", "rr"), accuracy.MRR),
    "mr": one_rank.MeanRank,
    "adjustedhitrate": one_rank.AdjustedHitRate,
    "ild": of_lists.IntraListDiversity,
    "arp": of_lists.AveragePopularity,
    "aplt": of_lists.TailShare,
    **dict.fromkeys(("cov", "itemcoverage", "catalogcoverage", "cataloguecoverage"), item_counts.Coverage),
    "rsp": item_groups.StatisticalParity,
    "reo": item_groups.EqualOpportunity,
}


def make_metrics(
    metrics: Sequence[str | RankingMetric | Description] | str | RankingMetric,
    k: int | Iterable[int] | None,
    options: MetricOptions,
) -> list[Description]:
    """Return a metric for each name and cut-off, and the instances, by ascending k; metrics without k come last."""
    if isinstance(k, str):
        raise TypeError(f"k must be whole numbers, got the string {k!r}")
    if not isinstance(metrics, (Iterable, Metric)) or isinstance(metrics, Tensor):
        raise TypeError(
            f"metrics come first, as a name, a metric, a list of them or a dict of metrics, got {describe(metrics)}"
        )
    several = isinstance(k, Iterable) and getattr(k, "ndim", 1) != 0
    cutoffs = [] if k is None else [check_k(cutoff) for cutoff in (k if several else [k])]  # type: ignore[union-attr]
    described: list[Description] = []
    is_read = not cutoffs
    for metric in [metrics] if isinstance(metrics, (str, Metric)) else metrics:
        if isinstance(metric, str):
            described += (of_name := _from_name(metric, cutoffs, options))
            is_read = is_read or ("@" not in metric and of_name[0].k is not None)
        else:
            described.append(description_of(describe(metric), metric))
    if described and not is_read:
        raise ValueError(
            f"k={k!r} is read by no metric: {', '.join(metric.label for metric in described)}; leave it out"
        )
    return sorted(described, key=lambda metric: metric.k or float("inf"))


def description_of(key: object, metric: object) -> Description:
    """Return the description of a metric of this package; raise for anything else, naming `key`."""
    if isinstance(metric, Description):
        return metric
    if isinstance(metric, RankingMetric):
        return metric.description
    if isinstance(metric, type) and issubclass(metric, RankingMetric):
        k = "10" if metric._signature is None or metric._signature.takes_k else ""
        raise TypeError(f"{metric.__name__} is a class: pass an instance, such as {metric.__name__}({k})")
    raise TypeError(
        f"{key}: a RecMetricCollection holds names such as 'HR@10' and metrics of torchrecmetrics such as "
        f"NDCG(10), got {describe(metric)}; put other metrics next to it in a torchmetrics.MetricCollection"
    )


def check_options(what: str, options: Iterable[str], known_names: Sequence[str]) -> None:
    """Refuse options, given with names of metrics, that only some metrics or none have.

    Raises:
        ValueError: for such an option; the message has the nearest name.
    """
    for name in options:
        if name not in METRIC_OPTIONS:
            owners = [cls for cls in _CLASSES.values() if cls._signature and name in cls._signature.options]
            k = "10, " if owners and owners[0]._signature.takes_k else ""  # type: ignore[union-attr]
            hint = f": pass an instance, such as trm.{owners[0].__name__}({k}{name}=...)" if owners else ""
            raise ValueError(f"{what} has no option {name!r}{hint or nearest(name, known_names)}")


def is_name(text: str) -> bool:
    """Return True if a metric has this name; case is ignored."""
    return text.lower() in _BY_NAME


def _from_name(text: str, cutoffs: list[int], options: MetricOptions) -> list[Description]:
    name, at, cutoff = text.partition("@")
    cls = _BY_NAME.get(re.sub(r"[\s_-]", "", name).lower())
    if cls is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        hint = f"; did you mean {_BY_NAME[close[0]]._name!r}?" if close else "."
        raise ValueError(f"unknown metric {text!r}{hint} Cut-offs follow '@'. Known: {', '.join(_CLASSES)}")
    signature = cls._signature
    assert signature is not None
    if own_options := sorted({*signature.options, *inspect.signature(cls.__init__).parameters} & {*options}):
        raise ValueError(
            f"{', '.join(own_options)}: only {cls._name} has this option: pass an instance, {cls.__name__}(...)"
        )
    if not takes_grade(cls._kind, signature.options):
        options = {name: value for name, value in options.items() if name != "relevant_from"}  # type: ignore[assignment]
    if not signature.takes_k:
        if at:
            raise ValueError(f"{text!r}: {cls._name} has no cut-off")
        return [cls(**options).description]
    if at:
        if not cutoff.strip().isdecimal():
            raise ValueError(f"{text!r}: the cut-off after '@' must be a whole number, such as {cls._name}@10")
        return [cls(int(cutoff), **options).description]
    if not cutoffs and signature.needs_k:
        raise ValueError(f"{text!r} needs a cut-off: pass k=[...] or write {cls._name}@10")
    return [cls(k, **options).description for k in cutoffs] or [cls(**options).description]


def key_of(metric: Description, key_format: KeyFormat) -> str:
    """Return the key of a metric, made by a format string or a function of name and k."""
    if callable(key_format):
        key = key_format(metric.name, metric.k)
        if not isinstance(key, str):
            raise TypeError(f"key_format must return a string, got {key!r} for {metric.label}")
        return key
    if not isinstance(key_format, str):
        raise TypeError(f"key_format must be a string or a function of name and k, got {key_format!r}")
    try:
        return metric.name if metric.k is None else key_format.format(name=metric.name, k=metric.k)
    except (LookupError, ValueError) as error:
        raise ValueError(f"key_format takes {{name}} and {{k}}, got {key_format!r}") from error
