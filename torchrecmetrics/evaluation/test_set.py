"""`TestSet`: ground truth, exclusions and groups of users, in batches; the arguments that it is made of."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.collection.by_group import ByGroup
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.kept_rows import KeptRows
from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import as_interactions, describe, is_dense, warn_caller
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.user_exclusions import Exclusions, matched
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.exclusion import Exclude
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.metrics.signature import MetricOptions


class Batch(NamedTuple):
    """Users of a batch, with their items."""

    users: Tensor
    """Row numbers, int64 [b] on the host."""
    target: SelectedItems
    exclude: Exclude | None
    history: Tensor | None
    """Earlier items of the users, int64 [b, H], -1 = padding; None = no metric reads them."""


class Users(NamedTuple):
    """Users to evaluate: row numbers, int64 on the host."""

    ranked: Tensor
    unranked: Tensor
    """Users without ground truth who are not ranked."""
    for_ranking: bool = False
    """True if users without ground truth are ranked for their weight or value alone, and have no lists."""


@dataclass(frozen=True, eq=False)
class TestSet:
    """Users' relevant, excluded and earlier items, and the columns that accumulators read.

    All are on one device, with the row numbers of the ground truth.
    """

    __test__: ClassVar[bool] = False  # pytest takes classes named Test for tests

    target: Interactions
    """Ground truth."""
    exclusions: Exclusions | None
    past: Interactions | None
    """Earlier items of the users; None = no metric reads them."""
    group_codes: Tensor | None
    """Group of each user, int64 [U]; None = no accumulator reads groups."""
    group_column: str
    """Name of the column of groups."""
    keep_rows: bool
    """True if an accumulator keeps rows, by the row numbers of users."""

    @classmethod
    def of(
        cls,
        collection: RecMetricCollection,
        target: Interactions,
        exclude: Sequence[Any],
        groups: Groups | None,
        target_device: TargetDevice,
    ) -> TestSet:
        """Return the test set of a collection.

        Args:
            collection: the metrics, which say what is read.
            target: ground truth, on the device.
            exclude: interactions with the row numbers of the ground truth, and masks of items, bool [I].
            groups: groups of users.
            target_device: device of the test set.

        Raises:
            ValueError: for sizes, ids and devices that do not fit.
        """
        if groups is None and collection.groups:
            names = ", ".join(collection.groups)
            raise ValueError(f"the collection has the groups {names}: pass groups= to say who is in them")
        past = None if collection.catalogue is None else past_of(collection, target)
        return cls(
            target=target,
            exclusions=Exclusions(exclude, target.num_items, target_device) if exclude else None,
            past=None if past is None else target_device.move("the catalogue's interactions", past),
            group_codes=None if groups is None else groups.of(target),
            group_column=next((acc.columns[0] for acc in collection.accumulators if acc.row_groups), "groups"),
            keep_rows=collection.keep_rows,
        )

    def split_users(self, ids: Tensor, collection: RecMetricCollection, all_users: bool = False) -> Users:
        """Return the users to evaluate; those without ground truth are ranked with `all_users`, or if their weight or
        value depends on a ranking.
        """
        has_target = self.target.host_degree.index_select(0, ids) > 0
        if all_users or bool(has_target.all()):
            return Users(ids, ids[:0])
        formulas = collection.evaluator._formulas
        counts_empty = formulas.leader.empty_target_action in ("neg", "pos")
        reads_ranking = [*formulas.defined_when_empty, *formulas.own_weighted]
        if counts_empty and any(reads_ranking):
            return Users(ids, ids[:0], for_ranking=True)
        return Users(ids[has_target], ids[~has_target])

    def num_entries(self) -> Tensor:
        """Return the number of relevant, excluded and earlier items of every user, int64 [U] on the host."""
        number = self.target.host_degree
        number = number if self.exclusions is None else self.exclusions.lengths(number)
        return number if self.past is None else number + self.past.host_degree

    def batch(self, users: Tensor) -> Batch:
        """Return a batch of users with their items."""
        excluded = None if self.exclusions is None else self.exclusions.select(users)
        past = None if self.past is None else self.past.select(users).items
        return Batch(users, self.target.select(users), excluded, past)

    def columns(self, users: Tensor) -> dict[str, Any]:
        """Return the columns that accumulators read of users."""
        columns = {} if self.group_codes is None else {self.group_column: self.group_codes[users.cpu()]}
        columns |= {"row_ids": users} if self.keep_rows else {}
        return {name: column.to(self.target.device) for name, column in columns.items()}

    def facts(self) -> dict[str, Any]:
        """Return the properties, by name, that must be the same on all processes; costs host syncs."""
        return {
            "target": fingerprint(self.target.keys),
            "values of target": fingerprint(self.target.values),
            "groups": None if self.group_codes is None else fingerprint(self.group_codes),
            "history": None if self.exclusions is None else self.exclusions.hashes(),
        }

    def num_without_history(self, ids: Tensor) -> int:
        """Return the number of users with ground truth, but without excluded items, masks aside."""
        has_target = self.target.host_degree.index_select(0, ids) > 0
        return 0 if self.exclusions is None else self.exclusions.num_without(ids[has_target])


def check_target(target: Any, name: str = "target", accepted: str = "Interactions") -> None:
    """Refuse a ground truth, or a history, that is not `Interactions`; the message says what is `accepted`."""
    if not isinstance(target, Interactions):
        hint = as_interactions(name, target) or "Interactions.from_edge_index(edges, num_users, num_items)"
        if isinstance(target, Tensor) and not target.is_nested and not is_dense(target):
            hint += f", from_padded(ids, num_items), or of a matrix from_dense({name}.float())"
        if isinstance(target, SelectedItems):
            hint = "pass the Interactions whole, without select"
        elif isinstance(target, list):
            hint = "Interactions.from_columns(users, items), one entry per pair, or from_jagged(items, offsets)"
        elif hasattr(target, "test"):
            hint = "pass split.test"
        elif hasattr(target, "to_interactions"):
            hint = "target.to_interactions()"
        raise TypeError(f"{name} must be {accepted}, got {describe(target)}: {hint}")


def from_matrix(name: str, argument: Any) -> Any:
    """Return the `Interactions` of a matrix [U, I] of torch, numpy or scipy, dense or sparse; arrays as tensors."""
    argument = as_tensor(argument)
    is_tensor = isinstance(argument, Tensor) and not argument.is_nested
    try:
        if hasattr(argument, "tocoo") or (is_tensor and argument.layout != torch.strided):
            return Interactions.from_scipy(argument)
        if is_tensor and argument.dim() == 2 and is_dense(argument):
            return Interactions.from_dense(argument)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return argument


def from_edges(name: str, argument: Any, num_users: int | None, num_items: int | None) -> Any:
    """Return the `Interactions` of a matrix, or of an edge_index, int64 [2, E], between embedded users and items; other
    arguments as they are.

    Raises:
        TypeError: for an edge_index without both embeddings, which give the numbers of users and items, and for two
            users, where it could also be rows of items.
        ValueError: for ids beyond the embeddings.
    """
    argument = from_matrix(name, argument)
    if not isinstance(argument, Tensor) or argument.is_nested:
        return argument
    if argument.dtype != torch.int64 or argument.dim() != 2 or len(argument) != 2:
        return argument
    if num_users is None or num_items is None:
        raise TypeError(
            f"{name} is an edge_index, which needs embeddings of users and items for their numbers: pass "
            "Interactions.from_edge_index(edge_index, num_users, num_items)"
        )
    if num_users == 2 and argument.shape[1]:
        raise TypeError(
            f"{name} of 2 users, int64 {list(argument.shape)}, is an edge_index or rows of items: pass "
            "Interactions.from_edge_index(edge_index, 2, num_items), Interactions.from_padded(ids, num_items), or of a "
            f"0/1 matrix {name}.bool()"
        )
    if argument.shape[1] and int(argument[1].min()) >= num_users:
        raise ValueError(
            f"{name}: all items (edge_index[1]) are {num_users} or more, the number of users, as PyG numbers items. "
            "Pass Interactions.from_edge_index(edge_index, num_users, num_items), with item_offset=num_users, or else 0"
        )
    try:
        return Interactions.from_edge_index(argument, num_users, num_items)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def user_rows(user_ids: Any, num_users: int | None) -> Tensor:
    """Return user ids as int64 [n] on the host; `num_users` is None if it is not known yet."""
    if user_ids is None:
        return torch.arange(num_users or 0, device="cpu")
    try:
        ids = torch.as_tensor(user_ids, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        what = f"{type(user_ids).__name__} {reprlib.repr(user_ids)}"
        raise TypeError(
            f"user_ids must be row numbers [n] (positions in a vocabulary), not strings or sets, got {what}"
        ) from error
    if ids.dim() != 1:
        raise ValueError(f"user_ids must be row numbers [n], such as [3] for user 3, got {reprlib.repr(user_ids)}")
    if not len(ids):
        return ids.long()
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"user_ids must be whole numbers [n], got {ids.dtype} {list(ids.shape)}")
    if int(ids.min()) < 0 or (num_users is not None and int(ids.max()) >= num_users):
        last = "" if num_users is None else num_users - 1
        raise ValueError(f"user_ids hold {int(ids.min())}..{int(ids.max())}, expected 0..{last}")
    return ids.to(torch.int64, copy=True)  # a copy, since the caller may write into the tensor meanwhile


def empty_collection(
    metrics: Metrics | RecMetricCollection,
    k: int | Iterable[int] | None,
    options: MetricOptions,
    groups: Groups | None = None,
    keep_rows: bool = False,
) -> RecMetricCollection:
    """Return an empty collection of the metrics, with accumulators for the groups and for kept rows."""
    accumulators: list[Accumulator] = []
    if groups is not None:
        accumulators.append(ByGroup(*groups.names))
    if keep_rows:
        accumulators.append(KeptRows())
    return RecMetricCollection.fresh(metrics, k, options, accumulators=accumulators)


def listed_with_target(ranking: Ranking, target: SelectedItems) -> Ranking:
    """Return the ranking, marked so that list metrics leave out users without ground truth."""
    if ranking.lists is None:
        return ranking
    return replace(ranking, lists=ranking.lists._replace(wants_list=(target.items >= 0).any(1)))


def check_catalogue(catalogue: Catalogue, target: Interactions) -> None:
    """Refuse a catalogue whose items are not the items of the target."""
    if catalogue.num_items != target.num_items:
        raise ValueError(f"the catalogue has {catalogue.num_items} items, target has {target.num_items}")
    check_item_ids(catalogue, target, "target")


def check_item_ids(catalogue: Catalogue, other: Interactions, name: str) -> None:
    """Refuse a catalogue whose item ids differ from the item ids of interactions."""
    if catalogue.item_ids is not None and catalogue.item_ids != other.item_ids:
        has = "none" if other.item_ids is None else "others"
        raise ValueError(
            f"the catalogue has item_ids, {name} has {has}: row 5 could mean two items. Splits of one Log share "
            f"them; Catalogue.from_interactions(train.recode(item_ids={name}.item_ids)) numbers train as {name}"
        )


def past_of(collection: RecMetricCollection, target: Interactions) -> Interactions | None:
    """Return the catalogue's interactions, with the row numbers of the ground truth; None if no metric reads them."""
    catalogue: Any = collection.catalogue
    if not collection.evaluator._batch_needs.history:
        return None
    if catalogue.interactions is None:
        reads = next(key for key, metric in collection.metrics.items() if metric.needs.history)
        raise ValueError(
            f"{reads} compares lists with the users' histories: make the catalogue from them, "
            "Catalogue.from_interactions(train)"
        )
    past = matched(catalogue.interactions, target, "the catalogue's train")
    if past.num_users != target.num_users:
        raise ValueError(f"the catalogue's train has {past.num_users} users, target has {target.num_users}")
    return past


def warn_of_item_0(sources: Sequence[Interactions], is_out: bool, cure: str) -> None:
    """Warn if ids seem to start at 1: then item 0, which no user has, competes with all other items.

    `is_out` is True if item 0 is no candidate.
    """
    if is_out or not any(source.num_items_inferred for source in sources):
        return
    if any((source.items == 0).any() for source in sources):
        return
    warn_caller(
        "no interaction has item 0, and the number of items was taken from the largest id: if ids start at 1, pass "
        f"{cure} to keep item 0 from being recommended, or a vocabulary (item_ids=), which numbers items from 0; "
        "if item 0 is an item like the others, pass num_items="
    )
