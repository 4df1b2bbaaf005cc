"""`evaluate_lists`: metrics of recommended lists of any form, matched by id with a ground truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, warn_caller
from torchrecmetrics.core.options import OverlapRule
from torchrecmetrics.data.edges import Reduce
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.evaluate import Progress, ProgressBar, evaluate_on
from torchrecmetrics.evaluation.list_source import FEW, LISTS_MEMORY, ListSource, check_hits
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.scorers import RankingSource
from torchrecmetrics.evaluation.sides import Sides, number_of, read_sides
from torchrecmetrics.evaluation.test_set import Batch, TargetDevice, TestSet, empty_collection, exclude_entries
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.description import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.table import SAID_BY_TABLES, Table, column_option
from torchrecmetrics.tables.vocabulary import called

if TYPE_CHECKING:
    from typing_extensions import Unpack


def evaluate_sessions(
    metrics: Metrics | RecMetricCollection,
    table: Table,
    label: str,
    k: int | Iterable[int] | None,
    *,
    duplicates: Duplicates,
    keep_rows: bool,
    options: MetricOptions,
) -> Evaluation:
    """Rank the rows of each user (a session) by score or rank; rows with a label > 0 are the relevant items.

    With duplicates="first", a repeated item counts at its best rank, with its highest label. Without a column of items,
    each row is an item of its own.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    sessions = _read_candidates(table, label, duplicates)
    collection = empty_collection(metrics, k, options, keep_rows=keep_rows).to("cpu")
    collection.evaluator._set_sync_on_compute(False)
    target = Interactions.of_events(sessions.relevant())
    test = TestSet.of(collection, target, (), None, TargetDevice(target.device, False))
    users = test.split_users(torch.arange(target.num_users, device="cpu"), collection)
    evaluate_on(collection, test, SessionSource(sessions), users)
    unread = [name for name in table.unread("user", "item", "rank", "score") if name != label]
    counts = EvaluationCounts(num_repeated=sessions.num_repeated, unread={table.what: unread} if unread else {})
    return collection.evaluation("eager", sessions.events.user_ids, counts, by_id=True)


class _Candidates(NamedTuple):
    """Candidates of all sessions, each once, [E] each."""

    scores: Tensor
    """Float64; the highest is best."""
    labels: Tensor
    """Float64; above 0 is relevant."""
    events: Events
    num_repeated: int = 0
    """Number of rows that repeat a candidate, and were left out."""

    def relevant(self) -> Events:
        """Return the candidates with a label above 0, which is their value."""
        return replace(self.events, values=self.labels).take(self.labels > 0)


def _read_candidates(table: Table, label: str, duplicates: Duplicates) -> _Candidates:
    """Read the candidates of all sessions."""
    if table.order is None:
        raise ValueError(
            f"label= needs an order, but {table.what} has no column 'score' or 'rank': pass score= or rank= to "
            "trm.Table"
        )
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' needs target=; with label= it is 'error' or 'first'")
    entries = table.read("rank", "score", label=label)
    ranks, scores, labels = (entries.numbers(role) for role in ("rank", "score", "label"))
    assert labels is not None
    scores = -ranks if ranks is not None else scores
    assert scores is not None
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise ValueError(f"{entries.name('label')} holds a label below 0 in {entries.row(row)}")
    events = Events.of_entries(entries)
    candidates = _Candidates(scores.double(), labels.double(), events)
    pairs, again = torch.unique(events.users * events.num_items + events.items, return_inverse=True)
    num_repeated = len(events) - len(pairs)
    if not num_repeated:
        return candidates
    if duplicates == "error":
        row = int((torch.bincount(again)[again] > 1).nonzero()[0])
        user, item = called(events.user_ids, int(events.users[row])), called(events.item_ids, int(events.items[row]))
        fault = f"{table.what} lists item {item} twice for {table.columns['user']} {user}, first in {entries.row(row)}"
        cure = "duplicates='first' keeps its best rank and its highest label"
        raise ValueError(f"{fault}: it would be two candidates; {cure}")
    none = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    best_score = none.scatter_reduce(0, again, candidates.scores, "amax", include_self=False)
    best_label = none.scatter_reduce(0, again, candidates.labels, "amax", include_self=False)
    users = pairs.div(events.num_items, rounding_mode="floor")
    once = replace(events, users=users, items=pairs - users * events.num_items)
    return _Candidates(best_score, best_label, once, num_repeated)


class SessionSource(RankingSource):
    """Source of the candidates of users, with their scores and labels, [E] each."""

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(self, candidates: _Candidates) -> None:
        users = candidates.events.users
        order = users.argsort(stable=True)
        self.scores: Tensor = candidates.scores[order]
        self.labels: Tensor = candidates.labels[order]
        self.lengths: Tensor = torch.bincount(users, minlength=candidates.events.num_users)
        self.num_entries: int | Tensor = self.lengths
        self._starts = self.lengths.cumsum(0) - self.lengths

    def input(self, batch: Batch, at_once: int) -> Sessions:
        """Return the candidates of a batch of users, those of one user after those of another."""
        lengths = self.lengths[batch.users]
        shift = self._starts[batch.users] - (lengths.cumsum(0) - lengths)
        entries = torch.arange(int(lengths.sum()), device="cpu") + shift.repeat_interleave(lengths)
        return Sessions(self.scores[entries], self.labels[entries], lengths=lengths)


_ELSEWHERE = dict.fromkeys(("train", "num_items"), "metrics of items take catalogue=Catalogue.from_interactions(train)")
_ELSEWHERE["history"] = "items that leave the lists are exclude="
_OTHERS = {
    "num_unserved": "num_left_out",
    "num_left_out": "num_unserved",
    "num_unlisted": "num_unknown",
    "num_unknown": "num_unlisted",
    "num_unmet": "listed",
}
"""Counts of unmatched ids, and where ids of the other side are found."""
_MOST = 0.9
"""Share of unmatched users, on both sides, from which on a warning is given."""


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
            or, in cells of lists, per user; a dict {user: [items]}, best first; a tuple (item ids [B, K], users [B]),
            best first, short lists padded with -1; or a result of `recommend`. Equal scores of a list are tied, as
            `ties` says (trec_eval orders them by id).
        target: ground truth: a `Table`, a frame, a path, `Interactions`, a `Log`, or a dict {user: items} or {user:
            {item: grade}}. Values and grades are gains; those below 0 in a table mean not relevant.
        label: instead of `target`, the name of a column of `lists`, which is a frame or a file: rows with a label > 0
            are relevant, and the label is their gain. Each user is then a session whose rows are all candidates,
            ordered by score or rank, and AUROC is defined.
        exclude: items removed from the lists, so that later items move up: any form of `target`, bool [I], or a tuple
            of these. Of a table with values, the pairs whose value is above 0 count, and otherwise all.
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
    dicts and tuples hold row numbers of `target`, and frames and files, which hold ids, are refused.

    The columns that are named are read whole, so lists and ground truth must fit into memory.

    Raises:
        TypeError: for anything without lists, and ids of another kind than those of `target`.
        ValueError: for missing columns or ids, ranks that are not consecutive, two lists of one user, lists that are
            shorter than the metrics' cut-offs, and as in `evaluate`; names file, row and column.

    Examples:
        >>> import torchrecmetrics as trm
        >>> truth = {"user": ["al", "bo", "eve"], "item": ["x", "y", "z"]}
        >>> lists = {"al": ["y", "x"], "bo": ["z", "w"]}
        >>> print(trm.evaluate_lists(["HR", "MRR"], lists, target=truth, k=2))
        HR@2   0.3333 ± 0.3333
        MRR@2  0.1667 ± 0.1667
        3 users, 1 without a list (such as 'eve'), 1 list entry with an item that the ground truth lacks (such as 'w')
        ± standard error; no interval for fewer than 10 users
    """
    if options.keys() & SAID_BY_TABLES:
        raise column_option("evaluate_lists", options)
    for name in options.keys() & _ELSEWHERE.keys():
        raise ValueError(f"evaluate_lists has no option {name!r}: {_ELSEWHERE[name]}")
    check_options("evaluate_lists", options, [*signature(evaluate_lists).parameters, *METRIC_OPTIONS])
    check_choice("duplicates", duplicates, get_args(Duplicates))
    metric_options: Any = dict(options)
    without_excluded = metric_options.get("overlap") == "without"
    if without_excluded or metric_options.get("overlap") is None:
        metric_options.pop("overlap", None)
    if groups is not None:
        check_groups(groups)
    if label is not None:
        for name, argument in {"target": target, "exclude": exclude, "groups": groups}.items():
            if argument is not None:
                raise ValueError(f"{name} cannot be combined with label=, which names the ground truth in lists")
        return evaluate_sessions(
            metrics,
            Table.of(lists, "lists"),
            label,
            k,
            duplicates=duplicates,
            keep_rows=keep_rows,
            options=metric_options,
        )
    collection = empty_collection(metrics, k, metric_options, groups, keep_rows).to("cpu")
    collection.evaluator._set_sync_on_compute(False)
    needs, rules = collection.evaluator._batch_needs, collection.evaluator._ranking_options
    histories = () if exclude is None else exclude_entries(exclude)
    sides = read_sides(lists, target, histories, values_reduce, collection.catalogue)
    if rules.padding_idx is not None and sides.target.item_ids is not None:
        raise ValueError("padding_idx is a row number, but target has item_ids: leave rows of padding out")
    test = TestSet.of(collection, sides.target, sides.exclude, groups, TargetDevice(sides.target.device, False))
    if without_excluded and test.exclusions is not None:
        test = replace(test, target=test.target.take(~test.exclusions.holds(test.target)))
        if not len(test.target):
            raise ValueError("all pairs of target are also in exclude: overlap='without' leaves nothing to evaluate")
    users = test.split_users(torch.arange(test.target.num_users, device="cpu"), collection)
    is_ranked = torch.zeros(test.target.num_users, dtype=torch.bool, device="cpu").index_fill_(0, users.ranked, True)
    ranked = RankedLists.of(sides.lists, is_ranked, sides.user_ids, duplicates == "first")
    source = ListSource(ranked, sides, needs.depth, complete, duplicates)
    if test.exclusions is not None:
        test.exclusions.check_overlap(test.target, users.ranked, rules, "overlap='without'")
    if needs.depth is None or needs.depth > source.longest or collection.catalogue is not None:
        source.check(collection)
    bar = None if progress is False else ProgressBar(progress, len(users.ranked))
    with bar or nullcontext():
        evaluate_on(collection, test, source, users, bar=bar)
    counts = _counts(test, source, sides)
    return collection.evaluation("eager", test.target.user_ids, counts, by_id=True)


def _counts(test: TestSet, source: ListSource, sides: Sides) -> EvaluationCounts:
    """Return the counts of unmatched users and items, with examples, of repeated entries, and of cut ties."""
    target, lists = test.target, source.lists
    if not source.has_hit:
        check_hits(lists, sides._replace(target=target))
    num_users = max(target.num_users, number_of(sides.lists.owners))
    num_items = max(target.num_items, number_of(sides.lists.items))
    has_list, has_target = _mask(sides.lists.owners, num_users), _mask(target.users, num_users)
    served = _mask(source.lengths.nonzero()[:, 0], num_users)
    has_others = bool((has_list & ~has_target).any())
    listed = sides.lists.items if has_others else lists.items  # items in lists of users left out are listed, too
    num_listed = torch.bincount(listed, minlength=num_items)
    is_listed, is_relevant = num_listed > 0, _mask(target.items, num_items)
    histories = [] if test.exclusions is None else [history.items for history in test.exclusions.interactions]
    unmet = [items for items in histories if not bool((is_listed | is_relevant)[items].any())]
    rows = {
        "num_unserved": (has_target & ~served).nonzero()[:, 0],
        "num_left_out": (has_list & ~has_target).nonzero()[:, 0],
        "num_unlisted": (is_relevant & ~is_listed).nonzero()[:, 0],
        "num_unknown": is_listed[sides.num_known_items :].nonzero()[:, 0] + sides.num_known_items,
        "num_unmet": torch.unique(torch.cat([listed[:0], *unmet])),
        "listed": is_listed.nonzero()[:, 0],
    }
    numbers = {name: len(rows[name]) for name in _OTHERS}
    numbers["num_unknown"] = int(num_listed[sides.num_known_items :].sum())
    examples = _examples(rows, sides)
    _warn_of_other_users(numbers, int(has_target.sum()), examples)
    return EvaluationCounts(
        **numbers,
        num_without_history=test.num_without_history(target.host_degree.nonzero()[:, 0]),
        num_repeated=source.num_repeated,
        num_cut_ties=0 if source.complete else lists.num_cut_ties(source.depth),
        examples=examples,
        unread=sides.unread,
    )


def _examples(rows: Mapping[str, Tensor], sides: Sides) -> dict[str, list[Any]]:
    """Return an id of each count, and one of the other side where that has any; `rows` are the row numbers by count."""
    examples = {}
    for name, other in _OTHERS.items():
        ids = sides.user_ids if name in ("num_unserved", "num_left_out") else sides.item_ids
        if ids is not None and len(rows[name]):
            examples[name] = [ids[int(found[0])] for found in (rows[name], rows[other]) if len(found)]
    return examples


def _mask(rows: Tensor, size: int) -> Tensor:
    """Return a mask, bool [size], that marks the given rows."""
    return torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, rows.long(), True)


def _warn_of_other_users(numbers: Mapping[str, int], num_users: int, examples: Mapping[str, Sequence[Any]]) -> None:
    """Warn if most users have no list, and most lists are of users without ground truth."""
    num_unserved, num_left_out = numbers["num_unserved"], numbers["num_left_out"]
    num_lists = num_users - num_unserved + num_left_out
    few_meet = num_unserved >= _MOST * num_users and num_left_out >= _MOST * num_lists
    if few_meet and min(num_users, num_lists) >= FEW:
        such = f", such as {' and '.join(map(repr, examples['num_unserved']))}" if examples else ""
        warn_caller(
            f"{num_unserved} of {num_users} users of target have no list, while {num_left_out} of {num_lists} lists "
            f"are of users without ground truth{such}: are these ids of one kind, and of one split?"
        )
