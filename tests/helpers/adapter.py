"""The library's calls under names of their own, for tests whose values stay while the library's names change.

This is the only module of the fixed point that calls the library: if a name moves, its call is changed here, and the
recorded values stay. Ties are "realistic" unless `ties=` says otherwise, whatever the library's own default is.
"""

from dataclasses import dataclass
from typing import Any

import torch

import torchrecmetrics as trm

TIES = "realistic"
_OPTIONS = ("ties", "padding_idx", "overlap", "validate_args")


# ------------------------------------------------------------------------------------------------------------- metrics


def metric(name, k=None, **options):
    """Return a metric by its name in collections, "HR" or "NDCG"; `normalize="min"` divides by min(k, R)."""
    cls = {"HR": trm.HitRate, "AdjustedHR": trm.AdjustedHitRate}.get(name) or getattr(trm, name)
    return cls(*([] if k is None else [k]), **{"ties": TIES} | options)


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
    return trm.RecMetricCollection(
        metrics,
        k=k,
        groups=by_group or None,
        window=window,
        half_life=half_life,
        keep_rows=keep_rows,
        **{"ties": TIES} | options,
    )


class CollectSessions:
    """A collection of sessions whose entries come in several batches, and on several processes."""

    def __init__(self, collection):
        self.collection = collection

    def update(self, scores, labels, indexes, *, weights=None, groups=None):
        """Add entries [E] of sessions; weights and groups are [E] too, equal within a session."""
        self.collection.update(scores, labels, indexes=indexes, weights=weights, groups=groups)


# -------------------------------------------------------------------------------------------------------------- inputs


class Input:
    """A kind of input of `update`."""

    def arguments(self, options):
        """Return positional and keyword arguments of `update` for a metric with these options."""
        return (self.ranking(**options),), {}

    def ranking(self, **options):
        """Return the ranking of this input."""
        raise NotImplementedError


@dataclass
class Scores(Input):
    """Scores [B, I] with the relevant items, and item ids that the user had before (`history`)."""

    scores: Any
    target: Any = None
    gains: Any = None
    exclude: Any = None
    history: Any = None

    def arguments(self, options):
        more = {"gains": self.gains, "exclude": self.exclude, "history": self.history}
        return (self.scores, self.target), more

    def ranking(self, **options):
        return trm.Ranking.from_scores(self.scores, self.target, gains=self.gains, exclude=self.exclude, **options)


@dataclass
class Lists(Input):
    """Recommended item ids [B, K], best first, negative = no item."""

    item_ids: Any
    target: Any = None
    gains: Any = None
    exclude: Any = None
    complete: bool = False
    duplicates: str = "error"
    history: Any = None

    def arguments(self, options):
        return (self.ranking(**options),), {"history": self.history}

    def ranking(self, *, ties=TIES, **options):
        more = {"gains": self.gains, "exclude": self.exclude, "complete": self.complete, "duplicates": self.duplicates}
        return trm.Ranking.from_topk(self.item_ids, self.target, **more, **options)


@dataclass
class Ranks(Input):
    """Ranks of the relevant items, 1 = best.

    `depth`: number of known ranks; None = not known. `whole=True`: the ranks are those of the whole ranking.
    """

    ranks: Any
    depth: int | None = None
    num_ranked: Any = None
    zero_based: bool = False
    miss: int | None = None
    padding: int | None = None
    whole: bool = False

    def arguments(self, options):
        made_from_options = self.zero_based or self.whole or self.ranks.is_floating_point()
        if not made_from_options and self.num_ranked is self.miss is self.padding is None:
            return (self.ranks,), {"depth": self.depth}
        return super().arguments(options)

    def ranking(self, *, validate_args=True, **options):
        return trm.Ranking.from_ranks(
            self.ranks,
            depth=self.depth,
            num_ranked=self.num_ranked,
            depth_known=self.whole or self.depth is not None,
            padding=self.padding,
            zero_based=self.zero_based,
            miss=self.miss,
            validate_args=validate_args,
        )


@dataclass
class Hits(Input):
    """Flags [B, K] of the hits in a list, with the number of relevant items."""

    flags: Any
    num_relevant: Any
    complete: bool = False

    def ranking(self, *, validate_args=True, **options):
        more = {"num_relevant": self.num_relevant, "complete": self.complete}
        return trm.Ranking.from_hits(self.flags, **more, validate_args=validate_args)


@dataclass
class Sessions(Input):
    """Entries [E] of whole sessions; weights and groups are [E] with `indexes`, and [S] with `lengths`."""

    scores: Any
    labels: Any
    indexes: Any = None
    lengths: Any = None

    def arguments(self, options):
        if self.indexes is None:
            return (self.scores, self.labels), {"lengths": self.lengths}
        return (self.scores, self.labels), {"indexes": self.indexes, "complete": True}

    def ranking(self, *, ties=TIES, validate_args=True, **options):
        return trm.Ranking.from_flat(self.scores, self.labels, self.indexes, ties=ties, validate_args=validate_args)


@dataclass
class Negatives(Input):
    """The score of one relevant item per row [B], and of its negatives, [B, N] or one pool [N]."""

    positive: Any
    negative: Any
    lengths: Any = None

    def ranking(self, *, ties=TIES, validate_args=True, **options):
        more = {"lengths": self.lengths, "ties": ties, "validate_args": validate_args}
        return trm.Ranking.from_negatives(self.positive, self.negative, **more)


@dataclass
class Candidates(Input):
    """Scores [B, C] of the candidates `items`, [C] or [B, C]; targets, excluded items and history are item ids."""

    scores: Any
    target: Any
    items: Any
    missing: str = "unreachable"
    gains: Any = None
    exclude: Any = None
    history: Any = None

    def arguments(self, options):
        more = {"candidates": self.items, "missing_target": self.missing}
        more |= {"gains": self.gains, "exclude": self.exclude, "history": self.history}
        return (self.scores, self.target), more


@dataclass
class ItemShard(Input):
    """Scores [B, i] of this process's items, `first`, `first` + 1, ... of `num_items`."""

    scores: Any
    target: Any
    first: int
    num_items: int
    gains: Any = None
    exclude: Any = None
    history: Any = None

    def arguments(self, options):
        more = {"gains": self.gains, "exclude": self.exclude, "history": self.history}
        return (self.scores, self.target), more | {"shard": trm.ItemShard(self.first, self.num_items)}


@dataclass
class Beams(Input):
    """Generated codes [B, K, L], best first, of items whose codes are [I, L]."""

    codes: Any
    beams: Any
    target: Any = None
    target_codes: Any = None
    gains: Any = None
    exclude: Any = None
    shared: str = "tie"
    duplicates: str = "first"
    invalid: str = "keep"
    prefix: int | None = None
    complete: bool = False

    def ranking(self, *, padding_idx=None, **options):
        more = {"target_codes": self.target_codes, "gains": self.gains, "exclude": self.exclude}
        more |= {"shared": self.shared, "duplicates": self.duplicates, "invalid": self.invalid}
        more |= {"prefix": self.prefix, "complete": self.complete}
        return trm.SemanticIds(self.codes).ranking(self.beams, self.target, **more, **options)


def ranking(given, depth=None, **options):
    """Return the ranking of an input, made outside a metric; only scores are ranked to a depth."""
    return given.ranking(**{"ties": TIES} | options, **({} if depth is None else {"depth": depth}))


def topk_ranks(scores, target, k, **options):
    """Return the rank of each target down to rank `k`, int64."""
    return trm.get_topk_ranks(scores, target, k, **{"ties": TIES} | options)


def past(values, offsets):
    """Return the items before each position of packed sequences, for `exclude`."""
    return trm.prefix_history(values, offsets)


# -------------------------------------------------------------------------------------------------------------- update


def _arguments(measured, given, target, options):
    """Return positional and keyword arguments of `update` and `forward`, without those that are None."""
    given = given if target is None else Scores(given, target)
    args, more = (given,), {}
    if isinstance(given, Input):
        leading = measured.leading if isinstance(measured, trm.RecMetricCollection) else measured
        rules = leading.rules
        chosen = (rules.place_ties, rules.padding_idx, rules.take_overlap, rules.validate_args)
        args, more = given.arguments(dict(zip(_OPTIONS, chosen, strict=True)))
    return args, {name: value for name, value in (more | options).items() if value is not None}


def update(measured, given, target=None, *, weights=None, groups=None, row_ids=None, clusters=None, **more):
    """Add a batch to a metric or a collection: an input, scores and target, ranks, or a ranking."""
    options = {"weights": weights, "groups": groups, "row_ids": row_ids, "clusters": clusters, **more}
    args, kwargs = _arguments(measured, given, target, options)
    measured.update(*args, **kwargs)


def forward(measured, given, target=None, *, weights=None, groups=None, row_ids=None, clusters=None, **more):
    """Add a batch, and return its values by key; the key of a metric is "value"."""
    options = {"weights": weights, "groups": groups, "row_ids": row_ids, "clusters": clusters, **more}
    args, kwargs = _arguments(measured, given, target, options)
    found = measured(*args, **kwargs)
    return {key: value.item() for key, value in (found if isinstance(found, dict) else {"value": found}).items()}


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
    if isinstance(measured, CollectSessions):
        return results(measured.collection)
    measured.compute()
    if not isinstance(measured, trm.RecMetricCollection):
        return {"value": _numbers(measured.last_summary())}
    found = {entry.key: _numbers(entry.summary) for entry in measured.found()}
    return found | {key: _numbers(summary) for key, summary in measured._window_summaries().items()}


def rows(measured):
    """Return the kept rows as columns, in the order of their ids."""
    if isinstance(measured, CollectSessions):
        return rows(measured.collection)
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


def evaluate(metrics, users, items=None, *, bias=None, similarity="dot", allowed=None, **more):
    """Evaluate embeddings, or a function of user ids (`users`), on whole catalogues."""
    more = {"item_bias": bias, "items_allowed": allowed, "similarity": similarity, "ties": TIES, **more}
    return trm.evaluate(metrics, users, items, **more)


def recommend(users, items, k, *, bias=None, **more):
    """Return ids and scores of each user's `k` best items, as lists."""
    found = trm.recommend(users, items, k, item_bias=bias, **more)
    return {"ids": found.ids.tolist(), "scores": found.scores.tolist()}


def evaluate_lists(metrics, lists, **more):
    """Evaluate recommended lists of any form."""
    return trm.evaluate_lists(metrics, lists, **{"ties": TIES} | more)


def tally(data, metrics, k, **more):
    """Return the partial sums of a chunk of rows of Arrow."""
    from torchrecmetrics import arrow

    return arrow.tally(data, metrics, k, **{"ties": TIES} | more)


def merged_tallies(tallies, metrics, k, **more):
    """Return the evaluation of tallies."""
    from torchrecmetrics import arrow

    return arrow.merge(tallies, metrics, k, **{"ties": TIES} | more)
