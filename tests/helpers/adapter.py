"""The library's calls under names of their own, for tests whose values stay while the library's names change.

This is the only module of the fixed point that calls the library: if a name moves, its call is changed here, and the
recorded values stay. Ties are "realistic" unless `ties=` says otherwise, whatever the library's own default is.
"""

import os

import torch

import torchrecmetrics as trm

TIES = "realistic"
DEVICE = torch.device(os.environ.get("FIXED_POINT_DEVICE", "cpu"))
KERNELS = {"kernels": os.environ["FIXED_POINT_KERNELS"]} if "FIXED_POINT_KERNELS" in os.environ else {}


def moved(value):
    """Return a tensor, or the tensors of an argument, on the device that is tried."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    if type(value) in (tuple, list):
        return type(value)(map(moved, value))
    return {key: moved(part) for key, part in value.items()} if type(value) is dict else value


def there(cls):
    """Return a constructor that moves its arguments to the device that is tried."""
    return lambda *args, **more: cls(*map(moved, args), **moved(more))


Scores = there(trm.Scores)
Lists = there(trm.Lists)
Hits = there(trm.Hits)
Sessions = there(trm.Sessions)
Negatives = there(trm.Negatives)
Candidates = there(trm.Candidates)
CollectSessions = trm.CollectSessions


# ------------------------------------------------------------------------------------------------------------- metrics


def metric(name, k=None, **options):
    """Return a metric by its name in collections, "HR" or "NDCG"; `normalize="min"` divides by min(k, R)."""
    cls = {"HR": trm.HitRate, "AdjustedHR": trm.AdjustedHitRate}.get(name) or getattr(trm, name)
    return cls(*([] if k is None else [k]), **{"ties": TIES} | KERNELS | options).to(DEVICE)


def collection(metrics, k=None, *, by_group=(), window=None, half_life=None, keep_rows=False, **options):
    """Return a collection of names or metrics.

    Args:
        metrics: names, metrics, or a dict of metrics by key.
        k: cut-offs of the names.
        by_group: names of groups of rows, each with values of its own.
        window: number of rows, or "n updates", over which values are also given.
        half_life: number of rows after which the weight of a row is halved in values that are also given.
        keep_rows: keep the values of each row for `rows`.
        options: options of all metrics.
    """
    accumulators = [trm.ByGroup(*by_group)] if by_group else []
    if isinstance(window, str):
        accumulators.append(trm.Window(updates=int(window.split()[0])))
    elif window is not None:
        accumulators.append(trm.Window(window))
    if half_life is not None:
        accumulators.append(trm.Decay(half_life))
    if keep_rows:
        accumulators.append(trm.KeptRows())
    options = {"ties": TIES} | KERNELS | options
    return trm.RecMetricCollection(metrics, k=k, accumulators=accumulators, **options).to(DEVICE)


# -------------------------------------------------------------------------------------------------------------- inputs


def Ranks(ranks, depth=None, *, whole=False, **more):
    """Return ranks of the relevant items, 1 = best; `whole=True`: they are those of the whole ranking."""
    return trm.Ranks(moved(ranks), depth, depth_known=whole, **moved(more))


def ItemShard(scores, target, first, num_items, **more):
    """Return scores [B, i] of this process's items, `first`, `first` + 1, ... of `num_items`."""
    return trm.ItemShard(moved(scores), moved(target), first, num_items, **moved(more))


def Beams(codes, beams, target=None, **more):
    """Return generated codes [B, K, L], best first, of items whose codes are [I, L]."""
    return trm.SemanticIds(moved(codes)).beams(moved(beams), moved(target), **moved(more))


def ranking(given, depth=None, **options):
    """Return the ranking of an input, made outside a metric."""
    return given.ranking(depth, **{"ties": TIES} | KERNELS | options)


def topk_ranks(scores, target, k, **options):
    """Return the rank of each target down to rank `k`, int64."""
    return trm.get_topk_ranks(moved(scores), moved(target), k, **{"ties": TIES} | KERNELS | moved(options))


def past(values, offsets):
    """Return the items before each position of packed sequences, for `exclude`."""
    return trm.prefix_history(moved(values), moved(offsets))


# -------------------------------------------------------------------------------------------------------------- update


def update(measured, given, target=None, **more):
    """Add a batch to a metric or a collection: an input, scores and target, ranks, a ranking, or session entries."""
    measured.update(moved(given), moved(target), **moved(more))


def forward(measured, given, target=None, **more):
    """Add a batch, and return its values by key; the key of a metric is "value"."""
    values = measured(moved(given), moved(target), **moved(more))
    return {key: value.item() for key, value in (values if isinstance(values, dict) else {"value": values}).items()}


# ------------------------------------------------------------------------------------------------------------- results


def _numbers(summary):
    value, error = summary.value.item(), summary.standard_error.item()
    return [value, error, summary.num_users, summary.num_skipped, summary.num_unreachable, summary.num_tied]


def results(measured):
    """Return value, standard error, num_users, num_skipped, num_unreachable and num_tied by key.

    The key of a metric is "value". An evaluation has value, standard error and num_users by key, and its counts.
    """
    if isinstance(measured, trm.Evaluation):
        found = {key: [value.item(), measured.standard_errors[key].item()] for key, value in measured.items()}
        for key, row in zip(found, measured.result_rows(), strict=True):
            found[key].append(row.num_users)
        return found | {"counts": list(measured.counts().values())}
    measured.compute()
    if not isinstance(measured, trm.RecMetricCollection):
        return {"value": _numbers(measured.last_summary())}
    return {entry.key: _numbers(entry.summary) for entry in measured.found()}


def rows(measured):
    """Return the kept rows as columns, in the order of their ids."""
    if not isinstance(measured, trm.Evaluation):
        measured.compute()
    kept = measured.rows
    columns = {"ids": kept.ids, "weights": kept.weights, "clusters": kept.clusters, **kept.values}
    columns |= {f"own weights of {key}": weights for key, weights in kept.own_weights.items()}
    columns = {name: column for name, column in columns.items() if column is not None}
    for name, column in columns.items():
        columns[name] = column.tolist() if isinstance(column, torch.Tensor) else list(column)
    order = sorted(range(len(columns["ids"])), key=columns["ids"].__getitem__)
    return {name: [column[place] for place in order] for name, column in columns.items()}


def merged(first, *others):
    """Return the first collection or metric with the states of the others added to its own."""
    for other in others:
        first.merge_state(other)
    return first


# ---------------------------------------------------------------------------------------------------------- evaluation


def interactions(users, items, values=None, **sizes):
    """Return the items of each user from columns; `sizes` are num_users and num_items, or user_ids and item_ids."""
    return trm.Interactions.from_columns(users, items, values, **sizes)


def interactions_of_dense(dense):
    """Return the items of each user from a bool matrix [U, I]."""
    return trm.Interactions.from_dense(dense)


def catalogue(num_items, **data):
    """Return a catalogue with popularity, num_users, categories and embeddings, as far as given."""
    return trm.Catalogue(num_items, **data)


def catalogue_of(train, **data):
    """Return a catalogue with the popularity of training interactions, which are also its histories."""
    return trm.Catalogue.from_interactions(train, **data)


def groups_by_degree(train, bins):
    """Return groups of users by their number of interactions."""
    return trm.group_users(train, bins)


def groups_of(codes, names):
    """Return the group of each user from codes."""
    return trm.Groups(codes, names)


def evaluate(metrics, users, items=None, *, bias=None, similarity="dot", allowed=None, candidates=None, **more):
    """Evaluate embeddings, or a function of user ids (`users`), on whole catalogues."""
    given = (lambda ids: moved(users(ids.cpu()))) if callable(users) else users
    if not callable(users):
        given = trm.Embeddings(users, items, bias, similarity, allowed if candidates is None else candidates)
    return trm.evaluate(metrics, given, device=DEVICE, **{"ties": TIES, **more})


def recommend(users, items, k, *, bias=None, **more):
    """Return ids and scores of each user's `k` best items, as lists."""
    found = trm.recommend(trm.Embeddings(users, items, bias), k=k, device=DEVICE, **more)
    return {"ids": found.ids.tolist(), "scores": found.scores.tolist()}


def evaluate_lists(metrics, lists, **more):
    """Evaluate recommended lists of any form."""
    return trm.evaluate_lists(metrics, lists, **{"ties": TIES} | more)


def tally(data, metrics, k, **more):
    """Return the partial sums of a chunk of rows of Arrow."""
    from torchrecmetrics import arrow

    columns = {name: more.pop(name) for name in ("complete", "gains", "exclude", "weights", "ranks") if name in more}
    return arrow.tally(data, _tallied(metrics, k, **more), **columns)


def _tallied(metrics, k, groups=None, **more):
    """Return the collection of a tally; `groups` is a column of the names a and b."""
    accumulators = [] if groups is None else [trm.ByGroup("a", "b", column=groups)]
    return trm.RecMetricCollection(metrics, k=k, accumulators=accumulators, **{"ties": TIES} | more)


def merged_tallies(tallies, metrics, k, **more):
    """Return the evaluation of tallies."""
    from torchrecmetrics import arrow

    return arrow.merge(tallies, _tallied(metrics, k, **more))
