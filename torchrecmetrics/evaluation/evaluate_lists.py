"""`evaluate_lists`: match lists, which `listed` reads, with the ground truth by id, and update the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, describe
from torchrecmetrics.core.options import Needs, OverlapRule
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions, Reduce
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.batches import largest_batch
from torchrecmetrics.evaluation.few_matches import check_hits, check_users
from torchrecmetrics.evaluation.ground_truth import (
    GroundTruth,
    add_without_target,
    check_target,
    columns_of,
    empty_collection,
    listed_with_target,
    past_of,
    ranks_users_without_target,
)
from torchrecmetrics.evaluation.list_entries import ListEntries, Numbering, opened_lists
from torchrecmetrics.evaluation.matching import IdColumn, called, of_one_kind
from torchrecmetrics.evaluation.progress import Progress, ProgressBar
from torchrecmetrics.evaluation.recommended_lists import RecommendedLists
from torchrecmetrics.evaluation.session_table import evaluate_sessions
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.user_exclusions import Exclusions, exclude_entries, matched
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.metrics.evaluator import Evaluator
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.metrics.signature import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.results.evaluation import Evaluation
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.files import FileSource
from torchrecmetrics.tables.spelling import check_spelling, several_ids
from torchrecmetrics.tables.table import Table, check_read, has_columns, refuse_columns
from torchrecmetrics.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ELSEWHERE = dict.fromkeys(("train", "num_items"), "metrics of items take catalogue=Catalogue.from_interactions(train)")
_ELSEWHERE["history"] = "items that leave the lists are exclude="
_CELLS = 2**19  # listed, relevant and excluded items of a batch, padding included


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
        label: in place of `target`, the name of a column of `lists`, which is a frame or a file: rows with a label > 0
            are relevant, and the label is their gain. Each user is then a session whose rows are all candidates,
            ordered by score or rank, and AUROC is known.
        exclude: items removed from the lists, so that later items move up: any form of `target`, bool [I], or a tuple
            of these. All pairs of a table count, or those whose value is above 0, if `Table(..., value=)` says it.
        k: cut-offs, if `metrics` are names.
        values_reduce: gain of a pair that `target` repeats: "sum", "max" or the "last" gain. None: repeated pairs that
            have gains are an error.
        complete: True if nothing but the lists is recommended: an item that is not listed is a miss at every k.
            Otherwise it is an error if all lists are shorter than a cut-off, or one becomes shorter since excluded or
            repeated items are removed; a list that was shorter before had no more items to recommend.
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
        3 users, 1 without a list, 1 list entry with an item that the ground truth lacks
        ± standard error; no interval for fewer than 10 users
    """
    refuse_columns("evaluate_lists", options)
    for name in options.keys() & _ELSEWHERE.keys():
        raise ValueError(f"evaluate_lists has no option {name!r}: {_ELSEWHERE[name]}")
    check_options("evaluate_lists", options, [*signature(evaluate_lists).parameters, *METRIC_OPTIONS])
    check_choice("duplicates", duplicates, get_args(Duplicates))
    metric_options: Any = dict(options)
    without_excluded = metric_options.get("overlap") == "without"
    if without_excluded or metric_options.get("overlap") is None:
        metric_options.pop("overlap", None)
    check_groups(groups)
    if label is not None:
        for name, argument in {"target": target, "exclude": exclude, "groups": groups}.items():
            if argument is not None:
                raise ValueError(f"{name} was given beside label=, which names the ground truth in the lists")
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
    collection.evaluator.set_sync_on_compute(False)
    pairs = [target, *exclude_entries(exclude)]
    interactions, entries, unread = _read_all(lists, pairs, values_reduce)
    truth = _Truth.of(collection, interactions, groups, without_excluded)
    target = truth.items.target
    has_target = target.host_degree > 0
    is_ranked = has_target | ranks_users_without_target(collection)
    recommended = RecommendedLists.of(entries, target.user_ids, target.item_ids, is_ranked, duplicates == "first")
    ids, without_target = is_ranked.nonzero()[:, 0], (~is_ranked).nonzero()[:, 0]
    longest = int(recommended.lengths.max())
    ranked = _ListRanker(recommended, recommended.lengths, longest, complete=complete, duplicates=duplicates)
    ranked.check(collection, truth.items, ids)
    if len(without_target):
        add_without_target(collection, target, without_target, truth.columns(without_target))
    num_repeated, is_hit = _update_all(collection, truth, ranked, ids, progress)
    counts = _counts(truth, recommended, has_target)
    if not is_hit:
        check_hits(recommended, target)
    check_users(int(has_target.sum()), counts["num_unserved"], counts["num_left_out"])
    counts["num_repeated"] = recommended.num_repeated + num_repeated
    if not complete:
        counts["num_cut_ties"] = recommended.num_cut_ties(collection.evaluator.batch_needs.depth)
    evaluation = collection.evaluation("eager", target.user_ids, **counts)
    evaluation.unread = unread
    return evaluation


def _counts(truth: _Truth, lists: RecommendedLists, has_target: Tensor) -> dict[str, int]:
    """Return the numbers of users and items of one side that the other lacks."""
    target, lengths = truth.items.target, lists.lengths
    is_listed = torch.zeros(target.num_items, dtype=torch.bool, device="cpu")
    is_listed[lists.items[lists.items < target.num_items].long()] = True
    return {
        "num_unserved": int((has_target & (lengths == 0)).sum()),
        "num_left_out": lists.num_left_out + int((~has_target & (lengths > 0)).sum()),
        "num_unlisted": int((~is_listed & (target.popularity > 0)).sum()),
        "num_unknown": int((lists.items >= truth.num_known_items).sum()),
        "num_without_history": truth.items.exclusions.num_without(has_target.nonzero()[:, 0]),
    }


def _update_all(
    collection: RecMetricCollection, truth: _Truth, lists: _ListRanker, ids: Tensor, progress: bool | Progress
) -> tuple[int, bool]:
    """Add the lists of users to the metrics; return the number of repeated entries, and True if there was a hit."""
    depth = collection.evaluator.batch_needs.depth or 1
    sizes = lists.lengths + truth.items.num_entries()
    ids = ids[sizes[ids].argsort(stable=True)]
    num_repeated, is_hit, done = 0, False, 0
    with ProgressBar(progress, len(ids)) as bar:
        while done < len(ids):
            number = largest_batch(sizes[ids[done:]], len(ids), lambda n, largest: n * (depth + largest) <= _CELLS)
            batch = ids[done : done + number]
            ranking = lists.rank(collection.evaluator, truth.items, batch)
            collection.update(ranking, **truth.columns(batch))
            is_hit = is_hit or bool(ranking.ranks.isfinite().any())
            if ranking.num_repeated is not None:
                num_repeated += int(ranking.num_repeated.sum())
            bar.advance(batch, collection)
            done += number
    return num_repeated, is_hit


class _Truth(NamedTuple):
    """Ground truth with exclusions, and columns for accumulators."""

    items: GroundTruth
    num_known_items: int
    """Number of items of the ground truth or the catalogue; items of `exclude` alone have higher row numbers."""
    columns: Callable[[Tensor], dict[str, Any]]
    """Function of user ids [b] that returns the columns of these users for accumulators."""

    @classmethod
    def of(
        cls,
        collection: RecMetricCollection,
        interactions: Sequence[Any],
        groups: Groups | None,
        without_excluded: bool,
    ) -> _Truth:
        """Give the ground truth and the exclusions behind it the same row numbers.

        Raises:
            ValueError: if `without_excluded` leaves no ground truth, and for ids that do not fit.
        """
        truth, *excluded = interactions
        if (catalogue := collection.catalogue) is not None:
            truth = _numbered_as_catalogue(truth, catalogue)
        num_known_items = truth.num_items
        truth, excluded = _in_one_numbering(truth, excluded)
        past, columns = past_of(collection, truth), columns_of(collection, groups, truth)
        if collection.evaluator.ranking_options.padding_idx is not None and truth.item_ids is not None:
            raise ValueError("padding_idx is a row number, but target has item_ids: leave rows of padding out")
        exclusions = Exclusions(tuple(excluded), truth.num_items, TargetDevice.of(None, truth.device))
        if without_excluded:
            truth = truth.take(~exclusions.holds(truth))
            if not len(truth):
                raise ValueError(
                    "all pairs of target are also in exclude: overlap='without' leaves nothing to evaluate"
                )
        return cls(GroundTruth(truth, exclusions, past), num_known_items, columns)


class _ListRanker(NamedTuple):
    """Recommended lists, with the options that say how to rank them."""

    recommended: RecommendedLists
    lengths: Tensor
    """Number of items in each user's list, int64 [U]."""
    longest: int
    complete: bool
    duplicates: Duplicates

    def check(self, collection: RecMetricCollection, truth: GroundTruth, ids: Tensor) -> None:
        """Raise if relevant items are excluded, lists are too short, or the catalogue lacks listed items."""
        rules, needs = collection.evaluator.ranking_options, collection.evaluator.batch_needs
        if rules.overlap_rule == "error":
            truth.exclusions.check_overlap(truth.target, ids, rules.padding_idx, "overlap='without'")
        for key, metric in collection.metrics.items():
            check_depth(key, metric.needs, self.complete, (self.longest, self.recommended.entries.what))
        if (catalogue := collection.catalogue) is not None and needs.list_depth:
            _check_in_catalogue(self.recommended, catalogue)

    def rank(self, evaluator: Evaluator, truth: GroundTruth, ids: Tensor) -> Ranking:
        """Return the ranking of the given users' lists.

        Raises:
            ValueError: if a list repeats an item or is too short without excluded items, where the options forbid it.
        """
        needs, rules = evaluator.batch_needs, evaluator.ranking_options
        batch, depth = truth.batch(ids), needs.depth
        # padded to the longest list of all users, up to the width from which more padding changes no value
        width = max(depth or 1, batch.target.items.shape[1], int(self.lengths[ids].max()) + 1)
        item_ids, scores = self.recommended.select(ids, min(self.longest, width) or 1)
        lists = Lists(
            item_ids,
            target=batch.target.items,
            gains=batch.target.values,
            exclude=batch.exclude,
            complete=self.complete,
            duplicates=self.duplicates,
            history=batch.history,
            scores=scores,
        )
        try:
            ranking = lists.rank(needs, rules)
        except ValueError:
            _explain_repeat(self.recommended, ids, self.duplicates)
            raise
        if not self.complete and rules.validate_args is not False:
            check_shortened(
                ranking, self.lengths[ids], depth, ids, lambda user: f"user {called(truth.target.user_ids, user)}"
            )
        return listed_with_target(ranking, batch.target)


# ------------------------------------------------------------------------------------------------------- arguments


def _read_all(
    lists: Any, pairs: Sequence[Any], values_reduce: Reduce | None
) -> tuple[list[Any], ListEntries, dict[str, list[str]]]:
    """Read the ground truth, the exclusions behind it in `pairs`, and the lists, with ids that can be compared.

    Returns:
        Interactions, the lists, and the names of columns that were not read, by table.

    Raises:
        ValueError: with one question for all columns that were not read and could be the order or the relevance.
    """
    lists = opened_lists(lists)
    target, *exclude = pairs = [_opened("exclude" if at else "target", pair) for at, pair in enumerate(pairs)]
    _check_not_swapped(lists, target)
    questions = [lists.question("order", "rank", "score")] if isinstance(lists, Table) else []
    if isinstance(target, Log):
        questions.append(target.questions.get("value"))
    check_read(*questions, target.question("value", "value") if isinstance(target, Table) else None)
    truth = _interactions("target", target, values_reduce)
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    interactions = [truth, *(_excluded(argument) for argument in exclude)]
    known = Numbering("target", truth.user_ids, truth.item_ids, (truth.num_users, truth.num_items))
    interactions, entries = _of_one_kind(pairs, interactions, ListEntries.read(lists, known))
    _check_spellings(lists, pairs, interactions, entries)
    return interactions, entries, _unread_columns(lists, target, exclude)


def _check_spellings(lists: Any, pairs: Sequence[Any], interactions: Sequence[Any], entries: ListEntries) -> None:
    """Refuse ids of another side in another spelling, and several ids in a cell, of lists, ground truth and exclude."""
    truth, *excluded = interactions
    check_spelling(f"users of {entries.what}", entries.users.ids, "target", truth.user_ids)
    check_spelling(f"items of {entries.what}", entries.items.ids, "target", truth.item_ids)
    for history in excluded:
        if isinstance(history, Interactions):
            check_spelling("items of exclude", history.item_ids, entries.what, entries.items.ids)
    sides = [(lists, entries.items.ids, truth.item_ids), (pairs[0], truth.item_ids, entries.items.ids)]
    for argument, history in zip(pairs[1:], excluded, strict=True):
        sides.append((argument, getattr(history, "item_ids", None), truth.item_ids))
    for table, ids, others in sides:
        if isinstance(table, Table) and table.split is None:
            text = several_ids(f"items of {table.what}", ids, others)
            if text is not None and not table.holds_lists:
                raise ValueError(text)


def _unread_columns(lists: Any, target: Any, exclude: Sequence[Any]) -> dict[str, list[str]]:
    """Return the names of the columns that are not read, by table; those of TREC's files are known."""
    unread = {}
    for table, roles in ((lists, ("rank", "score")), (target, ("value",)), *((history, ()) for history in exclude)):
        if isinstance(table, Table) and not table.trec:
            said = [role for role, name in table.said.items() if name is not None]
            unread[table.what] = table.unread("user", "item", *roles, *said)
    return {what: names for what, names in unread.items() if names}


def _opened(name: str, argument: Any) -> Any:
    """Return frames and paths as a `Table`, and other forms of interactions as they are."""
    if isinstance(argument, (Interactions, Log, Tensor)):
        return argument
    if isinstance(argument, Mapping) and not has_columns(argument):
        return argument
    table = Table.of(argument, name)
    if not table.source.names and not isinstance(table.source, FileSource):
        check_target(argument, name, "Interactions, a Log, a Table, a frame, a dict or a file")
    return table


def _check_not_swapped(lists: Any, target: Any) -> None:
    """Refuse TREC qrels as lists, and TREC runs as ground truth."""
    cure = "lists are runs and target is qrels; are the two swapped?"
    if isinstance(lists, Table) and lists.trec == "qrels":
        raise ValueError(f"{lists.what} is qrels of TREC, got as lists: {cure}")
    if isinstance(target, Table) and target.trec == "run":
        raise ValueError(f"{target.what} is a run of TREC, got as target: {cure}")


def _interactions(name: str, argument: Any, values_reduce: Reduce | None = None) -> Interactions:
    """Return the interactions of any accepted form, on the CPU; those to exclude have no values."""
    if isinstance(argument, Interactions):
        return argument.to("cpu")
    if isinstance(argument, Log):
        log = argument if name == "target" else replace(argument, values=None, questions={})
        return log.to_interactions(values_reduce=values_reduce)
    user_ids, is_dict = None, isinstance(argument, Mapping)
    if is_dict:
        user_ids, _ = Vocabulary.number([*argument], f"the users of {name}")  # those without items, too
        argument = Table.of(_columns_of_dict(name, argument), name)
    reads_value = name == "target" or argument.said.get("value") is not None
    roles = argument.roles("value") if reads_value else argument.roles()
    events = Events.of_table(argument.source.read(roles), roles, user_ids, None, argument.split)
    if name != "target" and events.values is not None:
        events = replace(events.take(events.values > 0), values=None)
    judged = argument.trec == "qrels" or (is_dict and roles.value is not None)
    duplicates: Literal["merge", "error"] = "error" if judged and values_reduce is None else "merge"
    return Interactions.of_events(events, duplicates=duplicates, values_reduce=values_reduce)


def _columns_of_dict(name: str, argument: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Return a dict {user: items} as a dict of two columns."""
    for user, items in argument.items():
        if isinstance(items, Interactions):
            raise TypeError(
                f"{name} holds several ground truths, lists are looked up in one: "
                "{name: evaluate_lists(..., target=part) for name, part in slices.items()}"
            )
        if isinstance(items, Mapping) and name != "target":
            raise TypeError(f"{name} holds a dict for {user!r}, and {{user: items}} no values: pass lists of items")
        if isinstance(items, (str, bytes)) or not hasattr(items, "__iter__"):
            raise TypeError(
                f"{name} must be a dict {{user: items}}, or of columns, trm.Table({name}, user=..., item=...), got "
                f"{describe(items)} for {user!r}"
            )
    lists = {user: [*items] for user, items in argument.items()}
    users = chain.from_iterable(repeat(user, len(items)) for user, items in lists.items())
    columns = {"user": [*users], "item": [*chain.from_iterable(lists.values())]}
    graded = {user: items for user, items in argument.items() if isinstance(items, Mapping)}
    if graded:
        plain = next((user for user, items in lists.items() if items and user not in graded), None)
        if plain is not None:
            raise TypeError(
                f"{name} holds a dict of grades for {next(iter(graded))!r} and a list without for {plain!r}: make them "
                "all one kind"
            )
        columns["value"] = [grade for items in graded.values() for grade in items.values()]
    return columns


def _excluded(argument: Any) -> Any:
    """Return an entry of `exclude` as `Interactions`, or a mask of items as a tensor, on the CPU."""
    if isinstance(argument, Tensor):
        return argument.cpu()
    return _interactions("exclude", argument)


def _of_one_kind(
    arguments: Sequence[Any], interactions: Sequence[Any], entries: ListEntries
) -> tuple[list[Any], ListEntries]:
    """Return ground truth, exclusions and lists with ids that can be compared; see `of_one_kind`."""
    new: list[Any] = list(interactions)
    is_split = entries.names is not None and entries.names.split is not None
    lists: list[IdColumn] = []
    for side, column in (("user", entries.users), ("item", entries.items)):
        numbered = [at for at, pairs in enumerate(interactions) if isinstance(pairs, Interactions)]
        columns = []
        for at in numbered:
            table = arguments[at] if isinstance(arguments[at], Table) else None
            written = (table is not None and table.source.as_written) or (is_split and side == "item")
            what = f"target's {side}_ids" if not at else f"{side}_ids of {'exclude' if table is None else table.what}"
            ids = getattr(interactions[at], f"{side}_ids")
            columns.append(IdColumn(what, ids, column.rows, written))
        *columns, listed = of_one_kind([*columns, column])
        lists.append(listed)
        for at, made in zip(numbered, columns, strict=True):
            if made.ids is not getattr(interactions[at], f"{side}_ids"):
                new[at] = new[at].with_ids(**{f"{side}_ids": made.ids})
    return new, entries._replace(users=lists[0], items=lists[1])


def _in_one_numbering(truth: Interactions, exclude: list[Any]) -> tuple[Interactions, list[Any]]:
    """Return ground truth and exclusions with the same row numbers; items that exclude alone knows come last."""
    item_ids = truth.item_ids
    for excluded in exclude:
        if item_ids is None or not isinstance(excluded, Interactions) or excluded.item_ids is None:
            continue
        check_spelling("items of exclude", excluded.item_ids, "target", truth.item_ids)
        item_ids = item_ids.union(excluded.item_ids)
    recoded = truth if item_ids is None or item_ids == truth.item_ids else truth.recode(item_ids=item_ids)
    numbered: list[Any] = []
    for excluded in exclude:
        if isinstance(excluded, Interactions):
            numbered.append(matched(excluded, recoded))
        elif excluded.dtype == torch.bool and excluded.shape == (truth.num_items,):
            numbered.append(torch.cat([excluded, excluded.new_zeros(recoded.num_items - truth.num_items)]))
        else:
            numbered.append(excluded)  # refused by Exclusions
    return recoded, numbered


def _numbered_as_catalogue(truth: Interactions, catalogue: Catalogue) -> Interactions:
    """Return the ground truth with the catalogue's row numbers; items that the catalogue lacks come last."""
    if (catalogue.item_ids is None) != (truth.item_ids is None):
        has, lacks = ("target", "the catalogue") if catalogue.item_ids is None else ("the catalogue", "target")
        raise ValueError(
            f"{has} has item_ids, {lacks} has none: row 5 could mean two items; make both with ids "
            "(Catalogue.from_interactions of a Log's train), or both without"
        )
    if catalogue.item_ids is None or truth.item_ids is None:
        if catalogue.num_items != truth.num_items:
            raise ValueError(f"the catalogue has {catalogue.num_items} items, target has {truth.num_items}")
        return truth
    check_spelling("items of target", truth.item_ids, "the catalogue", catalogue.item_ids)
    return truth.recode(item_ids=catalogue.item_ids.union(truth.item_ids))


# ------------------------------------------------------------------------------------------------------- checks


def check_depth(label: str, needs: Needs, complete: bool, longest: tuple[int, str] | None = None) -> None:
    """Refuse a metric that needs more than lists, and lists that are all shorter than the metric's cut-off.

    Args:
        label: label of the metric.
        needs: needs of the metric.
        complete: True if nothing but the lists is recommended.
        longest: length of the longest list, and the name of the lists; None = the lists are not known yet.
    """
    if needs.num_ranked and needs.depth is None:
        raise ValueError(f"{label} compares all items, also those that no list holds: pass scores, or embeddings")
    if complete:
        return
    if longest is None and needs.depth is None:
        raise ValueError(
            f"{label} looks at the whole ranking, of which lists are the beginning: if they are all that is "
            "recommended, complete=True"
        )
    if longest is not None and (needs.depth is None or needs.depth > longest[0]):
        looks = "at the whole ranking" if needs.depth is None else f"at {needs.depth} places"
        raise ValueError(
            f"{label} looks {looks}, but the longest list of {longest[1]} holds {_items_text(longest[0])}: recommend "
            "more, or if the lists are all that is recommended, complete=True"
        )


def _check_in_catalogue(lists: RecommendedLists, catalogue: Catalogue) -> None:
    """Refuse listed items that the catalogue lacks, since their popularity and categories are unknown."""
    beyond = lists.items >= catalogue.num_items
    if bool(beyond.any()):
        number = int(beyond.sum())
        raise ValueError(
            f"{number} list {'entry' if number == 1 else 'entries'} of {lists.entries.what} whose item the catalogue "
            f"does not have, such as {called(lists.item_ids, int(lists.items[beyond][0]))}: make the catalogue of all "
            "items that can be recommended, Catalogue.from_interactions(train.recode(item_ids=every_id)), in whose "
            "order categories and embeddings are"
        )


def check_shortened(
    ranking: Ranking, before: Tensor, depth: int | None, numbers: Tensor, whose: Callable[[int], str]
) -> None:
    """Refuse lists that became shorter than the metrics' cut-off since items were removed from them.

    Args:
        ranking: ranking of the lists.
        before: length of each list as it was passed in, [B].
        depth: largest cut-off of the metrics; None = all ranks.
        numbers: row numbers, [B], for messages.
        whose: function from a row number to the name of the list's user.
    """
    if ranking.lists is None or ranking.lists.stays is None or depth is None:
        return
    left = ranking.lists.stays.sum(1)
    short = (left < depth) & (before >= depth)
    if bool(short.any()):
        row = int(short.nonzero()[0])
        raise ValueError(
            f"the list of {whose(int(numbers[row]))} holds {_items_text(int(left[row]))} after excluded and "
            f"repeated ones have left it, and the metrics look at {depth} places: recommend k + history, or if the "
            "lists are all that is recommended, complete=True"
        )


def _items_text(number: int) -> str:
    return f"{number} {'item' if number == 1 else 'items'}"


def _explain_repeat(lists: RecommendedLists, batch: Tensor, duplicates: str) -> None:
    """Raise an error that names the entry with a repeated item, if repeats are an error and there is such an entry."""
    repeated = lists.repeat(batch) if duplicates == "error" else None
    if repeated is not None:
        user, entry = repeated
        raise ValueError(
            f"{lists.at(entry, 'item')}: user {called(lists.user_ids, user)} has item "
            f"{called(lists.item_ids, int(lists.items[entry]))} for the second time; duplicates='first' "
            "lets its first place stand alone"
        ) from None
