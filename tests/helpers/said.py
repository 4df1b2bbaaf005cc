"""`evaluate_lists` and `agreement` of tables whose columns have the same names on all sides, said once by keywords."""

from collections.abc import Mapping

import torch

import torchrecmetrics as trm


def table_of(argument, **columns):
    """Return a frame or a path as a `Table` of those columns that were said; return other forms as they are."""
    forms = (trm.Interactions, trm.Log, trm.Recommendations, trm.Table, tuple, torch.Tensor, type(None), int)
    columns = {role: name for role, name in columns.items() if name is not ...}
    is_wide = isinstance(argument, Mapping) and not {"user", "item", *map(str, columns.values())} & {*argument}
    if isinstance(argument, forms) or is_wide or not columns:
        return argument
    return trm.Table(argument, **columns)


def evaluate_lists(metrics, lists, *, target=None, exclude=None, **options):
    said = {role: options.pop(role, ...) for role in ("user", "item", "rank", "score", "value", "split")}
    common = {role: said[role] for role in ("user", "item", "split")}
    if exclude is not None:
        excluded = [table_of(each, **common) for each in (exclude if type(exclude) in (tuple, list) else [exclude])]
        exclude = excluded[0] if len(excluded) == 1 else tuple(excluded)
    return trm.evaluate_lists(
        metrics,
        table_of(lists, rank=said["rank"], score=said["score"], **common),
        target=table_of(target, value=said["value"], **common),
        exclude=exclude,
        **options,
    )


def agreement(lists_a, lists_b, k=10, *, p=0.9, **columns):
    return trm.agreement(table_of(lists_a, **columns), table_of(lists_b, **columns), k, p=p)
