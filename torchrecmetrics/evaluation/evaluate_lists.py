"""`evaluate_lists`: metrics of recommended lists of any form, matched by id with a ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, warn_caller
from torchrecmetrics.core.cures import Cure
from torchrecmetrics.core.options import OverlapRule
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Reduce
from torchrecmetrics.evaluation.batches import evaluate_on
from torchrecmetrics.evaluation.list_source import FEW, ListSource, check_hits, unmatched_ids
from torchrecmetrics.evaluation.pairs import read_sides
from torchrecmetrics.evaluation.progress import Progress, ProgressBar
from torchrecmetrics.evaluation.recommended_lists import RecommendedLists
from torchrecmetrics.evaluation.session_table import evaluate_sessions
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.test_set import TestSet, empty_collection
from torchrecmetrics.evaluation.user_exclusions import exclude_entries, exclude_note
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.metrics.signature import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.table import SAID_BY_TABLES, Table, column_option

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ELSEWHERE = dict.fromkeys(("train", "num_items"), "metrics of items take catalogue=Catalogue.from_interactions(train)")
_ELSEWHERE["history"] = "items that leave the lists are exclude="
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
            of these. All pairs of a table count, or with `Table(..., value=)` those whose value is above 0; a single
            unread column of flags (0 and 1) is an error.
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
        3 users, 1 without a list ('eve'), 1 list entry with an item that the ground truth lacks ('w')
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
    recommended = RecommendedLists.of(sides.lists, sides.user_ids, sides.item_ids, is_ranked, duplicates == "first")
    source = ListSource(recommended, needs.depth, complete, duplicates)
    if test.exclusions is not None:
        test.exclusions.check_overlap(test.target, users.ranked, rules, Cure.option("overlap", "without"))
    if needs.depth is None or needs.depth > source.longest or collection.catalogue is not None:
        source.check(collection)
    bar = None if progress is False else ProgressBar(progress, len(users.ranked))
    with bar or nullcontext():
        evaluate_on(collection, test, source, users, bar=bar)
    counts = _counts(test, source, sides.num_known_items)
    return collection.evaluation("eager", test.target.user_ids, counts._replace(unread=sides.unread))


def _counts(test: TestSet, source: ListSource, num_known_items: int) -> EvaluationCounts:
    """Return the counts of unmatched users and items, with examples, of repeated entries, and of cut ties."""
    lists, target = source.lists, test.target
    if not source.has_hit:
        check_hits(lists, target)
    has_target, has_list = target.host_degree > 0, source.lengths > 0
    unserved = (has_target & ~has_list).nonzero()[:, 0]
    left_out = torch.cat([(~has_target & has_list).nonzero()[:, 0], lists.left_out])
    num_users = int(has_target.sum())
    num_lists = num_users - len(unserved) + len(left_out)
    few_meet = len(unserved) >= _MOST * num_users and len(left_out) >= _MOST * num_lists
    users = unmatched_ids(lists.user_ids, unserved, left_out)
    if few_meet and min(num_users, num_lists) >= FEW:
        such = "" if users is None else f", such as {users[0]!r} and {users[1]!r}"
        warn_caller(
            f"{len(unserved)} of {num_users} users of target have no list, while {len(left_out)} of {num_lists} lists "
            f"are of users without ground truth{such}: are these ids of one kind, and of one split?"
        )
    listed = lists.items
    if len(left_out):  # items of their lists are listed, too
        listed = lists.entries.items.numbered_in(lists.item_ids)
    num_items = max(target.num_items, len(lists.item_ids or ()), int(listed.max()) + 1 if len(listed) else 0)
    num_listed = torch.bincount(listed, minlength=num_items)
    is_listed = num_listed > 0
    is_relevant = torch.bincount(target.items, minlength=num_items) > 0
    unlisted, unknown = (is_relevant & ~is_listed).nonzero()[:, 0], is_listed[num_known_items:].nonzero()[:, 0]
    items = unmatched_ids(lists.item_ids, unlisted, unknown + num_known_items)
    pairs = {("num_unserved", "num_left_out"): users, ("num_unlisted", "num_unknown"): items}
    examples = {
        name: id_
        for names, pair in pairs.items()
        for name, id_ in zip(names, pair or (), strict=False)
        if id_ is not None
    }
    notes = []
    if test.exclusions is not None and lists.item_ids is not None:
        is_known = is_listed | is_relevant
        notes = [exclude_note(history, lists.item_ids, is_known) for history in test.exclusions.interactions]
    return EvaluationCounts(
        num_unserved=len(unserved),
        num_left_out=len(left_out),
        num_unlisted=len(unlisted),
        num_unknown=int(num_listed[num_known_items:].sum()),
        num_without_history=test.num_without_history(has_target.nonzero()[:, 0]),
        num_repeated=source.num_repeated,
        num_cut_ties=0 if source.complete or lists.scores is None else lists.num_cut_ties(source.depth),
        examples=examples,
        exclude_notes=[note for note in notes if note is not None],
    )
