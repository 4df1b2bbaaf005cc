"""`TestSet`: ground truth, exclusions and groups of users, in batches; the arguments that it is made of."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrecmetrics.collection.by_group import ByGroup
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.kept_rows import KeptRows
from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import as_interactions, describe, ids_beside_rows, is_dense, warn_caller
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.core.options import Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.exclusion import Exclude
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.names import Metrics

if TYPE_CHECKING:
    from torchrecmetrics.data.catalogue import Catalogue

Thing = TypeVar("Thing", Tensor, Interactions)


class TargetDevice(NamedTuple):
    """Device on which scores are computed."""

    device: torch.device
    moves: bool
    """True if the caller named the device: tensors are moved to it; otherwise they must be on it already."""

    @classmethod
    def of(cls, device: str | torch.device | None, default: torch.device) -> TargetDevice:
        """Return the device that the caller named, or else `default`."""
        if device is None:
            return cls(default, False)
        try:
            named = torch.device(device)
        except (RuntimeError, TypeError):
            what = f"got {device!r} ({type(device).__name__})"
            raise ValueError(f"device must be a torch.device or the name of one, such as 'cuda:0', {what}") from None
        return cls(torch.empty(0, device=named).device, True)  # "cuda" is the current one, such as "cuda:0"

    def move(self, name: str, thing: Thing) -> Thing:
        """Return `thing` on the device; raise if it is elsewhere and the caller did not name the device."""
        if thing.device == self.device:
            return thing
        if not self.moves:
            raise ValueError(f"{name} is on {thing.device}, but scores are computed on {self.device}: pass device=")
        return thing.to(self.device)


Matrix: TypeAlias = Tensor | NDArray[Any]
"""Types of a matrix [U, I]: a tensor or an array, dense or sparse; scipy's sparse matrices have no type."""
Histories: TypeAlias = Interactions | Matrix | Sequence[Interactions | Matrix]
"""Types of `exclude=` for a whole catalogue: interactions, a matrix [U, I], bool [I] for all users, or several."""


def exclude_entries(exclude: Any) -> Sequence[Any]:
    """Return what `exclude=` holds, one entry, several or none, as a sequence."""
    if exclude is None:
        return ()
    return exclude if type(exclude) in (tuple, list) else (exclude,)  # SelectedItems and Split are one argument


def wrong_exclusion(excluded: Any, num_items: int) -> TypeError:
    """Return the error for an excluded entry that is neither `Interactions` nor bool [I]."""
    what = f"{excluded.dtype} {list(excluded.shape)}" if isinstance(excluded, Tensor) else type(excluded).__name__
    if isinstance(excluded, SelectedItems):
        what += ": pass the Interactions whole, without select"
    elif (cure := as_interactions("exclude", excluded)) is not None:
        what += f": pass {cure}"
    elif isinstance(excluded, Tensor) and excluded.dtype == torch.uint8 and excluded.shape == (num_items,):
        what += ": pass exclude.bool()"
    return TypeError(f"exclude must be Interactions, bool [{num_items}] or a tuple of these, got {what}")


class Exclusions:
    """Excluded items of each user, as interactions and masks of items."""

    def __init__(self, exclude: Histories | None, num_items: int, target_device: TargetDevice) -> None:
        self.interactions: list[Interactions] = []
        self.masks: list[Tensor] = []
        """Items excluded for all users, bool [I] each."""
        for excluded in exclude_entries(exclude):
            if isinstance(excluded, Interactions):
                if excluded.num_items != num_items:
                    raise ValueError(f"exclude has {excluded.num_items} items, the scores have {num_items}")
                self.interactions.append(target_device.move("exclude", excluded))
            elif isinstance(excluded, Tensor) and excluded.dtype == torch.bool and excluded.shape == (num_items,):
                self.masks.append(target_device.move("exclude", excluded))
            else:
                raise wrong_exclusion(excluded, num_items)

    def lengths(self, others: Tensor) -> Tensor:
        """Return `others` plus the number of excluded items of each user, without masks, int64 [U] on the host."""
        total = others
        for interactions in self.interactions:
            if interactions.num_users != len(others):
                raise ValueError(f"exclude has {interactions.num_users} users, expected {len(others)}")
            total = total + interactions.host_degree
        return total

    def num_without(self, ids: Tensor) -> int:
        """Return the number of users without excluded items, masks aside; 0 without interactions."""
        if not self.interactions:
            return 0
        none = torch.zeros(self.interactions[0].num_users, dtype=torch.int64, device="cpu")
        return int((self.lengths(none)[ids] == 0).sum())

    def select(self, ids: Tensor) -> Exclude | None:
        """Return the excluded items of users as the kernel's `exclude`; None if nothing is excluded."""
        excluded = (*(interactions.select(ids).items for interactions in self.interactions), *self.masks)
        return excluded or None

    def hashes(self) -> list[object]:
        """Return hashes of interactions and masks, to compare exclusions across processes; costs host syncs."""
        return [*(fingerprint(interactions.keys) for interactions in self.interactions), *map(fingerprint, self.masks)]

    def holds(self, target: Interactions) -> Tensor:
        """Return which pairs of the ground truth are excluded, bool [E]."""
        both = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        keys = target.keys
        for interactions in self.interactions:
            if len(interactions):
                excluded = interactions.keys  # ascending
                both |= excluded[torch.searchsorted(excluded, keys).clamp(max=len(excluded) - 1)] == keys
        for mask in self.masks:
            both |= mask[target.items]
        return both

    def check_overlap(self, target: Interactions, ids: Tensor, options: Options, cure: str | None = None) -> None:
        """Raise if relevant items are also excluded, unless the options say what such a pair means.

        Args:
            target: ground truth.
            ids: users to check.
            options: the metrics' options; an item that is padding is not checked.
            cure: how to remove such pairs from the ground truth; None = a method of `Interactions`.
        """
        if options.overlap_rule != "error":
            return
        if cure is None:
            is_single = len(self.interactions) == 1 and not self.masks
            cure = "target.without(exclude)" if is_single else "target.without(part), for each part of exclude,"
        is_checked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        is_checked[ids.to(target.device)] = True
        both = self.holds(target) & is_checked[target.users]
        if options.padding_idx is not None:
            both &= target.items != options.padding_idx
        if target.values is not None:
            both &= target.values > 0
        count = int(both.sum())
        if count:
            lets = "" if self.masks else "; overlap='keep' leaves them as candidates (repeat consumption)"
            pairs = torch.stack([target.users[both][:3], target.items[both][:3]], 1).tolist()
            if target.user_ids is not None and target.item_ids is not None:
                pairs = [[target.user_ids[user], target.item_ids[item]] for user, item in pairs]
            pairs_are = "pair of target is" if count == 1 else "pairs of target are"
            raise ValueError(
                f"{count} (user, item) {pairs_are} also in exclude, such as {pairs}. {cure} takes them out of the test"
                f"{lets}; overlap='miss' counts them as misses"
            )


def numbered_as(target: Interactions, exclude: Any) -> tuple[Any, ...]:
    """Return the entries of `exclude`, interactions with the row numbers of the ground truth."""
    return tuple(
        matched(excluded, target) if isinstance(excluded, Interactions) else excluded
        for excluded in exclude_entries(exclude)
    )


def matched(history: Interactions, target: Interactions, name: str = "exclude") -> Interactions:
    """Return a history with the row numbers of the ground truth.

    Raises:
        ValueError: for ids of the ground truth in another spelling, and for a history without a match.
    """
    numbered, text = _matched(history, target, name)
    if text is not None:
        raise ValueError(text)
    return numbered


def warn_of_rows(target: Interactions, exclude: Any, sides: Sequence[str]) -> None:
    """Warn if a model's rows of a side, "user" or "item", could be those of a history with as many other ids."""
    histories = exclude_entries(exclude)
    for index, history in enumerate(histories):
        name = "exclude" if len(histories) == 1 else f"exclude[{index}]"
        for side in sides:
            ids, others = (getattr(pairs, f"{side}_ids", None) for pairs in (target, history))
            if ids is None or others is None or ids == others or len(ids) != len(others):
                continue
            row = int((ids.rows_in(others) != torch.arange(len(ids), device="cpu")).nonzero()[0])
            warn_caller(
                f"row {row} of the model's {side}s is taken as target's {ids[row]!r}, not {name}'s {others[row]!r}: if "
                f"it is {name}'s, pass target.recode({side}_ids={name}.{side}_ids), else "
                f"{name}.recode({side}_ids=target.{side}_ids)"
            )


def histories_that_meet(target: Interactions, exclude: Any) -> Any:
    """Return `exclude` without histories that do not match the ground truth, with a warning for each."""
    if exclude is None:
        return None
    entries = []
    for excluded in exclude_entries(exclude):
        text = _matched(excluded, target, "exclude")[1] if isinstance(excluded, Interactions) else None
        if text is None:
            entries.append(excluded)
        else:
            warn_caller(text)
    return tuple(entries)


def _matched(history: Interactions, target: Interactions, name: str) -> tuple[Interactions, str | None]:
    """Return a history with the row numbers of the ground truth, and an error if no user, or no item, is in both."""
    numbered = history.numbered_as(target, name)
    if len(numbered) or not len(history):
        return numbered, None
    for side, ids, known, cure in (
        ("user", history.user_ids, target.user_ids, f"leave {name}= out if these users are new"),
        ("item", history.item_ids, target.item_ids, "are these ids of one kind?"),
    ):
        if ids is not None and known is not None and (side == "item" or not bool((ids.rows_in(known) >= 0).any())):
            what = f"no {side} of {name} (such as {ids[0]!r}) is {'an' if side == 'item' else 'a'} {side} of target"
            return numbered, f"{what} (such as {known[0]!r}): {cure}"
    return numbered, f"no item of {name} is an item of target: are these ids of one kind?"


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
        formulas = collection.evaluator.formulas
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
    if catalogue.item_ids is None or catalogue.item_ids == other.item_ids:
        return
    if other.item_ids is None:
        raise ids_beside_rows("item", "the catalogue", name, f"{name}.with_ids(item_ids=catalogue.item_ids)")
    raise ValueError(
        f"the catalogue has other item_ids than {name}: Catalogue.from_interactions(train.recode(item_ids={name}."
        f"item_ids)) numbers train as {name}; splits of one Log share their ids"
    )


def past_of(collection: RecMetricCollection, target: Interactions) -> Interactions | None:
    """Return the catalogue's interactions, with the row numbers of the ground truth; None if no metric reads them."""
    catalogue: Any = collection.catalogue
    if not collection.evaluator.formulas.needs.history:
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
