"""`evaluate_lists`: metrics of recommended lists of any form, matched by id with a ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.options import OverlapRule
from torchrecmetrics.data.edges import Reduce
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.evaluate import Progress, ProgressBar, evaluate_on
from torchrecmetrics.evaluation.ranked_lists import LISTS_MEMORY, ListSource, RankedLists
from torchrecmetrics.evaluation.scorers import RankingSource
from torchrecmetrics.evaluation.sides import read_sides
from torchrecmetrics.evaluation.test_set import Batch, TargetDevice, TestSet, empty_collection, exclude_entries
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.accuracy import warn_of_certain_ones
from torchrecmetrics.metrics.description import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.entries import Entries
from torchrecmetrics.tables.events import Events, events_of
from torchrecmetrics.tables.table import SAID_BY_TABLES, Table, column_option

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ELSEWHERE = dict.fromkeys(("train", "num_items"), "metrics of items take catalogue=Catalogue.from_interactions(train)")
_ELSEWHERE["history"] = "items that leave the lists are exclude="


class ListsOptions(MetricOptions, total=False):
    """Keyword options of metrics that `evaluate_lists` accepts."""

    overlap: OverlapRule | Literal["without"] | None  # type: ignore[misc]  # one choice more than metrics have
    """Meaning of a relevant item that is also excluded; "without" = remove it from the ground truth."""


@torch.no_grad()
def evaluate_lists(
    metrics: Metrics | RecMetricCollection,
    lists: Any,
    *,
    target: Any = None,
    label: str | None = None,
    exclude: Any = None,
    k: int | Iterable[int] | None = None,
    values_reduce: Reduce | None = None,
    complete: bool = False,
    duplicates: Duplicates = "error",
    progress: bool | Progress = False,
    keep_rows: bool = False,
    groups: Groups | None = None,
    **options: Unpack[ListsOptions],
) -> Evaluation:
    """Evaluate recommended lists of any origin against a ground truth, matched by id.

    Args:
        metrics: as in `evaluate`; metrics that need more than lists (AUROC) are refused.
        lists: a `Table`, or a frame or a path whose columns have the names that it reads, with a row per listed item
            or, in cells of lists, per user; a dict {user: [items]}, best first, or {user: {item: score}}; a tuple
            (item ids [B, K], users [B]), best first, short lists padded with -1; or a result of `recommend`. Equal
            scores of a list are tied, as `ties` says (trec_eval orders them by id).
        target: ground truth: a `Table`, a frame, a path, `Interactions`, a `Log`, a dict {user: items} or {user:
            {item: grade}}, a matrix [U, I], or edges, int64 [2, E], as in `evaluate`. Values and grades are gains;
            those below 0 in a table mean not relevant.
        label: instead of `target`, the name of a column of `lists`, which is a frame or a file: rows with a label > 0
            are relevant, and the label is their gain. Each user is then a session whose rows are all candidates,
            ordered by score or rank, and AUROC is defined.
        exclude: items removed from the lists, so that later items move up: any form of `target`, bool [I] in the order
            of its items, or a tuple of these. No value is read: each pair is left out.
        k: cut-offs, if `metrics` are names.
        values_reduce: gain of a pair that `target` repeats: "sum", "max" or the "last" gain. None: repeated pairs that
            have gains are an error.
        complete: True if nothing but the lists is recommended: an item that is not listed is a miss at every k.
            Otherwise it is an error if all lists are shorter than a cut-off, or if one becomes shorter when excluded or
            repeated items are removed; a list that was shorter before is taken as complete.
        duplicates: "error": an item listed twice for a user raises; "first": only its first rank counts; "keep_place":
            the repeat keeps its rank and is a miss.
        progress: as in `evaluate`.
        keep_rows: as in `evaluate`.
        groups: as in `evaluate`; users are matched by id where `target` has ids.
        options: keyword options for metrics given by name. `overlap`, the meaning of a pair in both `target` and
            `exclude`, may also be "without": such pairs are removed from the ground truth, as by
            `Interactions.without`. `catalogue` is for metrics beyond accuracy, as in `evaluate`; ids are looked up in
            its vocabulary, which must have every listed item.

    Users of the ground truth without a list score 0 (`num_unserved`), users of lists without ground truth are left out
    (`num_left_out`). A listed item unknown to the ground truth keeps its rank as a miss (`num_unknown`). If `target`
    has vocabularies, ids are looked up in them, and a history with other vocabularies is matched by id; otherwise,
    dicts and tuples of lists hold row numbers of `target`, and frames and files, which hold ids, are refused.

    The columns that are named are read whole, so lists and ground truth must fit into memory.

    Raises:
        TypeError: for anything without lists, and ids of another kind than those of `target`.
        ValueError: for missing columns or ids, ranks that are not consecutive, two lists of one user, lists that are
            shorter than the metrics' cut-offs, and as in `evaluate`; names file, row and column.

    Examples:
        >>> import torchrecmetrics as trm
        >>> truth = {"user": ["al", "bo"], "item": ["x", "y"]}
        >>> lists = {"al": ["y", "x"], "bo": ["x", "y"]}
        >>> print(trm.evaluate_lists(["HR", "MRR"], lists, target=truth, k=2))
        HR@2   1.0000 ± 0.0000
        MRR@2  0.5000 ± 0.0000
        2 users
        ± standard error; no interval for fewer than 10 users
    """
    if options.keys() & SAID_BY_TABLES:
        raise column_option("evaluate_lists", options)
    for name in options.keys() & _ELSEWHERE.keys():
        raise ValueError(f"evaluate_lists has no option {name!r}: {_ELSEWHERE[name]}")
    check_options("evaluate_lists", options, [*signature(evaluate_lists).parameters, *METRIC_OPTIONS])
    check_choice("duplicates", duplicates, get_args(Duplicates))
    if groups is not None:
        check_groups(groups)
    metric_options: Any = {name: value for name, value in options.items() if name != "overlap"}
    overlap = options.get("overlap")
    if overlap not in (None, "without"):
        metric_options["overlap"] = overlap
    for name, argument in {"target": target, "exclude": exclude, "groups": groups}.items():
        if label is not None and argument is not None:
            raise ValueError(f"{name} cannot be combined with label=, which names the ground truth in lists")
    collection = empty_collection(metrics, k, metric_options, groups, keep_rows).to("cpu")
    collection.evaluator.set_sync_on_compute(False)
    if label is not None:
        return _evaluate_sessions(collection, Table.of(lists, "lists"), label, duplicates, progress)
    sides = read_sides(lists, target, exclude_entries(exclude), values_reduce, collection.catalogue)
    rules = collection.evaluator.ranking_options
    if rules.padding_idx is not None and sides.target.item_ids is not None:
        raise ValueError("padding_idx is a row number, but target has item_ids: leave rows of padding out")
    test = TestSet.of(collection, sides.target, sides.exclude, groups, TargetDevice(sides.target.device, False))
    if overlap == "without" and test.exclusions is not None:
        test = replace(test, target=test.target.take(~test.exclusions.holds(test.target)))
        if not len(test.target):
            raise ValueError("all pairs of target are also in exclude: overlap='without' leaves nothing to evaluate")
    users = test.split_users(torch.arange(test.target.num_users, device="cpu"), collection)
    is_ranked = torch.zeros(test.target.num_users, dtype=torch.bool, device="cpu").index_fill_(0, users.ranked, True)
    ranked = RankedLists.of(sides.lists, is_ranked, sides.user_ids, merges=duplicates == "first")
    source = ListSource(ranked, sides, collection, complete, duplicates)
    if test.exclusions is not None:
        test.exclusions.check_overlap(test.target, users.ranked, rules, "overlap='without'")
    source.check(collection)
    bar = None if progress is False else ProgressBar(progress, len(users.ranked))
    with bar or nullcontext():
        evaluate_on(collection, test, source, users, bar=bar)
    return collection.evaluation("eager", test.target.user_ids, source.counts(test), by_id=True)


# ----------------------------------------------------------------------------------------------------------- sessions


def _evaluate_sessions(
    collection: RecMetricCollection, table: Table, label: str, duplicates: Duplicates, progress: bool | Progress
) -> Evaluation:
    """Rank the rows of each user (a session) by score or rank; rows with a label > 0 are the relevant items.

    With duplicates="first", a repeated item counts at its best rank, with its highest label. Without a column of items,
    each row is an item of its own.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    if table.order is None:
        raise ValueError(
            f"label= needs an order, but {table.what} has no column 'score' or 'rank': pass score= or rank= to "
            "trm.Table"
        )
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' needs target=; with label= it is 'error' or 'first'")
    source = SessionSource.of(table.read("rank", "score", label=label), duplicates)
    test = TestSet.of(collection, source.target, (), None, TargetDevice(source.device, False))
    users = test.split_users(torch.arange(source.target.num_users, device="cpu"), collection)
    bar = None if progress is False else ProgressBar(progress, len(users.ranked))
    with bar or nullcontext():
        evaluate_on(collection, test, source, users, bar=bar)
    unread = [name for name in table.unread("user", "item", "rank", "score") if name != label]
    counts = EvaluationCounts(num_repeated=source.num_repeated, unread={table.what: unread} if unread else {})
    warn_of_certain_ones(collection.metrics, collection.evaluator.compute_results(), int(source.lengths.max()))
    return collection.evaluation("eager", source.target.user_ids, counts, by_id=True)


class SessionSource(RankingSource):
    """Source of the candidates of users, with their scores and labels, [E] each.

    Args:
        scores: float64, the highest is best.
        labels: float64, above 0 is relevant.
        events: their users and items.
        num_repeated: number of rows that repeat a candidate, and were left out.
    """

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(self, scores: Tensor, labels: Tensor, events: Events, num_repeated: int = 0) -> None:
        order = events.users.argsort(stable=True)
        self.scores: Tensor = scores[order]
        self.labels: Tensor = labels[order]
        self.target: Interactions = Interactions.of_events(replace(events, values=labels).take(labels > 0))
        self.num_repeated = num_repeated
        self.lengths: Tensor = torch.bincount(events.users, minlength=events.num_users)
        """Number of candidates of each user, int64 [U]."""
        self.num_entries: int | Tensor = self.lengths
        self._starts = self.lengths.cumsum(0) - self.lengths

    @classmethod
    def of(cls, entries: Entries, duplicates: Duplicates) -> SessionSource:
        """Return the source of entries with a rank or a score, and a label; see `evaluate_lists`."""
        ranks, scores, labels = (entries.numbers(role) for role in ("rank", "score", "label"))
        scores = scores if ranks is None else -ranks
        assert labels is not None
        assert scores is not None
        scores, labels, events = scores.double(), labels.double(), events_of(entries)
        if bool((labels < 0).any()):
            row = int((labels < 0).nonzero()[0])
            raise ValueError(f"{entries.name('label')} holds a label below 0 in {entries.row(row)}")
        pairs, again = torch.unique(events.users * events.num_items + events.items, return_inverse=True)
        num_repeated = len(events) - len(pairs)
        if not num_repeated:
            return cls(scores, labels, events)
        if duplicates == "error":
            row = int((torch.bincount(again)[again] > 1).nonzero()[0])
            user, item = (entries.columns[role][row].as_py() for role in ("user", "item"))
            raise ValueError(
                f"{entries.what} lists item {item!r} twice for {entries.names['user']} {user!r}, first in "
                f"{entries.row(row)}: it would be two candidates; duplicates='first' keeps its best rank and its "
                "highest label"
            )
        none = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
        best_score, best_label = (
            none.scatter_reduce(0, again, x, "amax", include_self=False) for x in (scores, labels)
        )
        users = pairs.div(events.num_items, rounding_mode="floor")
        once = replace(events, users=users, items=pairs - users * events.num_items)
        return cls(best_score, best_label, once, num_repeated)

    def input(self, batch: Batch, at_once: int) -> Sessions:
        """Return the candidates of a batch of users, those of one user after those of another."""
        lengths = self.lengths[batch.users]
        shift = self._starts[batch.users] - (lengths.cumsum(0) - lengths)
        entries = torch.arange(int(lengths.sum()), device="cpu") + shift.repeat_interleave(lengths)
        return Sessions(self.scores[entries], self.labels[entries], lengths=lengths)
