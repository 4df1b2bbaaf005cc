"""Names of metrics and their aliases, and the keys of a collection."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.core.checks import check_k, describe
from torchrecmetrics.core.other_names import METRICS
from torchrecmetrics.metrics import accuracy, item_counts, item_groups, of_lists, one_rank
from torchrecmetrics.metrics.ranking_metric import RankingMetric
from torchrecmetrics.metrics.signature import METRIC_OPTIONS, MetricOptions, check_option_names, option_hint

KeyFormat: TypeAlias = str | Callable[[str, int | None], str]
"""A format string of {name} and {k}, or a function of both, that makes a key."""
Metrics: TypeAlias = Sequence[str | RankingMetric] | Mapping[str, RankingMetric] | str | RankingMetric
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
    metrics: Sequence[str | RankingMetric] | str | RankingMetric,
    k: int | Iterable[int] | None,
    options: MetricOptions,
) -> list[RankingMetric]:
    """Return a metric for each name and cut-off, and the instances, by ascending k; metrics without k come last."""
    if isinstance(k, str):
        raise TypeError(f"k must be whole numbers, got the string {k!r}")
    if k is None:
        cutoffs = []
    elif isinstance(k, Iterable) and getattr(k, "ndim", 1) != 0:
        cutoffs = [check_k(cutoff) for cutoff in k]
    else:
        cutoffs = [check_k(k)]
    instances: list[RankingMetric] = []
    if isinstance(metrics, Tensor):
        raise TypeError("metrics come first, got a tensor: evaluate(['HR'], users, items, target=, k=10)")
    if not isinstance(metrics, (Iterable, Metric)):
        raise TypeError(
            f"metrics must be a name, a metric, a list of them or a dict of metrics, got {describe(metrics)}"
        )
    for metric in [metrics] if isinstance(metrics, (str, Metric)) else metrics:
        if isinstance(metric, str):
            instances += _from_name(metric, cutoffs, options)
        else:
            instances.append(check_instance(describe(metric), metric))
    return sorted(instances, key=lambda metric: metric.k or float("inf"))


def check_instance(key: object, metric: object) -> RankingMetric:
    """Return `metric` if it is a metric of this package; else raise, naming `key`."""
    if not isinstance(metric, RankingMetric):
        if isinstance(metric, type) and issubclass(metric, RankingMetric):
            k = "10" if metric._signature is None or metric._signature.takes_k else ""
            raise TypeError(f"{metric.__name__} is a class: pass an instance, such as {metric.__name__}({k})")
        kind = f"the class {metric.__name__}" if isinstance(metric, type) else type(metric).__name__
        cure = "put others next to it in a torchmetrics.MetricCollection"
        if metric is None or isinstance(metric, (int, list, tuple)):
            cure = "cut-offs go into names, ['HR@5', 'HR@10', 'MRR'], or k=[5, 10]"
        elif hasattr(metric, "shape"):
            cure = "metrics come first: evaluate(['HR'], users, items, target=, k=10)"
        raise TypeError(
            f"{key}: a RecMetricCollection holds instances of torchrecmetrics' metrics (names in its constructor "
            f"only), got {kind}; {cure}"
        )
    return metric


def _instances_with(option: str) -> str:
    """Return code, for a message, that makes the metrics with an option of their own; empty if none has it."""
    parameters_of = {name: inspect.signature(cls.__init__).parameters for name, cls in _CLASSES.items()}
    return " or ".join(
        f"trm.{name}({'10, ' if 'k' in parameters else ''}{option}=...)"
        for name, parameters in parameters_of.items()
        if option in parameters and option not in ("self", "options")
    )


def check_options(what: str, options: Iterable[str], known_names: Sequence[str]) -> None:
    """Refuse options, given with names of metrics, that only some metrics or none have.

    Raises:
        TypeError: for names of the cut-off in other libraries.
        ValueError: for any other option; the message has the nearest name, or the metrics with the option.
    """
    check_option_names(options)
    for name in options:
        if name not in METRIC_OPTIONS:
            instances = _instances_with(name)
            hint = (
                f": only some metrics have this option: pass an instance, {instances}"
                if instances
                else option_hint(name, known_names)
            )
            raise ValueError(f"{what} has no option {name!r}{hint}")


def is_name(text: str) -> bool:
    """Return True if a metric has this name; case is ignored."""
    return text.lower() in _BY_NAME


def _from_name(text: str, cutoffs: list[int], options: MetricOptions) -> list[RankingMetric]:
    name, at, cutoff = text.partition("@")
    cls = _BY_NAME.get(re.sub(r"[\s_-]", "", name).lower())
    if cls is None:
        raise _unknown(text, name)
    signature = cls._signature
    assert signature is not None
    if not signature.takes_k:
        if at:
            raise ValueError(f"{text!r}: {cls._name} has no cut-off")
        return [_make(cls, None, options)]
    if at:
        if not cutoff.strip().isdecimal():
            raise ValueError(
                f"{text!r}: the cut-off after '@' must be a whole number, such as {cls._name}@10; or pass "
                f"{cls._name!r} and k=10"
            )
        return [_make(cls, int(cutoff), options)]
    if cutoffs:
        return [_make(cls, k, options) for k in cutoffs]
    if signature.needs_k:
        raise ValueError(f"{text!r} needs a cut-off: pass k=[...] or write {cls._name}@10")
    return [_make(cls, None, options)]


def _key(name: str) -> str:
    """Return a name as a key of `_BY_NAME` and `METRICS`: lower case, without '-', '_' and other libraries' affixes."""
    return re.sub(r"^(retrieval|linkpred)|score$|[\s_-]", "", name.lower())


def _unknown(text: str, name: str) -> ValueError:
    """Return the error for an unknown metric, with the likely metric or spelling, or all names."""
    joined = re.fullmatch(r"(.*?)[\s_-]*((?:at|@)?[\s_-]*(?P<k>\d+)|(?:at|@)[\s_-]*k)", name.lower())
    base = joined[1] if joined else name
    if joined and (cls := _BY_NAME.get(_key(base))):
        return ValueError(f"unknown metric {text!r}; write the cut-off after '@': {cls._name}@{joined['k'] or 10}")
    if meaning := METRICS.get(_key(base)):
        return ValueError(f"unknown metric {text!r}: {meaning}")
    if cls := _BY_NAME.get(_key(name)):
        return ValueError(f"unknown metric {text!r}; here it is {cls._name!r}")
    if "," in text:
        return ValueError(f"unknown metric {text!r}; pass several names as a list, {text.split(',')}")
    if "-" in name and _BY_NAME.get(name.split("-")[0].lower()):
        cure = "pass a metric with options as an instance, such as NDCG(10, gain='exponential')"
        return ValueError(f"unknown metric {text!r}; {cure}")
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
    hint = f"; did you mean {_BY_NAME[close[0]]._name!r}?" if close else "."
    return ValueError(f"unknown metric {text!r}{hint} Known: {', '.join(_CLASSES)}")


def unknown_attribute(name: str) -> AttributeError:
    """Return the error for a name that the package lacks; for another library's metric it names ours."""
    cls = None if name.startswith("_") else _BY_NAME.get(_key(name))
    answer = f": it is {cls.__name__}" if cls else f": {METRICS[_key(name)]}" if _key(name) in METRICS else ""
    return AttributeError(f"module 'torchrecmetrics' has no attribute {name!r}{answer}", name=name)


def _make(cls: type[RankingMetric], k: int | None, options: MetricOptions) -> RankingMetric:
    own_options = set(inspect.signature(cls.__init__).parameters) & set(options) if options else ()
    if own_options:
        raise ValueError(
            f"{', '.join(sorted(own_options))}: only {cls._name} has this option: pass an instance, {cls.__name__}(...)"
        )
    return cls(**options) if k is None else cls(k, **options)


def key_of(metric: RankingMetric, key_format: KeyFormat) -> str:
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
