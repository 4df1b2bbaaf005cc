"""`Groups`: named groups of users, by a column or by activity; slices of targets by the popularity of their items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import slices
from torchrecmetrics.core.checks import check_group_names, check_ids, check_k, check_tensor, describe, ids_beside_rows
from torchrecmetrics.data.interactions import Interactions

if TYPE_CHECKING:
    from torchrecmetrics.tables.table import Name
    from torchrecmetrics.tables.vocabulary import Vocabulary


def check_groups(groups: Any) -> None:
    """Refuse anything but `Groups` or None."""
    if groups is not None and not isinstance(groups, Groups):
        raise TypeError(
            f"groups must be Groups, got {describe(groups)}: trm.group_users(train), "
            "trm.Groups.from_frame(users, 'region') of a table, or trm.Groups.from_column(regions, user_ids=...)"
        )


class Groups:
    """The group of each user; made by `group_users`, or from a column by `from_column`.

    Args:
        codes: integers [U], index of each user's group in `names`, users in the order of `user_ids`; -1 = in no group:
            the user counts in the overall value only.
        names: names of the groups, distinct.
        user_ids: a `Vocabulary` of the users, or a list of ids, to match them with the users of a ground truth; None =
            users have the row numbers of the ground truth.

    Raises:
        TypeError: for codes that are not integers, and names that are not a collection.
        ValueError: for codes without a name, repeated names, and a vocabulary of another size.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> trm.Groups(torch.tensor([0, 1, 1, -1]), ["north", "south"])
        Groups(north: 1, south: 2, 1 in none)
        >>> trm.Groups.from_column(["se", "de", None, "se"])
        Groups(de: 1, se: 2, 1 in none)
    """

    def __init__(self, codes: Tensor, names: Iterable[str], *, user_ids: Any = None) -> None:
        check_ids("codes", codes)
        self.names: tuple[str, ...] = check_group_names(names)
        if codes.dim() != 1:
            raise ValueError(f"codes must be [U], one per user, got shape {list(codes.shape)}")
        self.codes: Tensor = codes.detach().to("cpu", torch.int64)
        wrong = (self.codes < -1) | (self.codes >= len(self.names))
        if wrong.any():
            user = int(wrong.nonzero()[0])
            last, code = len(self.names) - 1, int(self.codes[user])
            raise ValueError(f"codes must be 0 to {last}, one for each name, or -1; user {user} has {code}")
        self.user_ids: Vocabulary | None = None
        if user_ids is not None:
            from torchrecmetrics.tables.vocabulary import Vocabulary

            self.user_ids = Vocabulary.named("user_ids", user_ids)
        if self.user_ids is not None and len(self.user_ids) != len(codes):
            raise ValueError(f"user_ids holds {len(self.user_ids)} ids, but codes has {len(codes)}")

    @classmethod
    def from_column(cls, column: Any, *, user_ids: Any = None) -> Groups:
        """Group users by a column: a region, an age band; None and NaN = in no group.

        Args:
            column: a list, numpy array or series of words or whole numbers, one per user.
            user_ids: as in the constructor.
        """
        words = ["" if _is_nothing(value) else str(value) for value in _values(column)]
        names = sorted({word for word in words if word})
        number = {name: place for place, name in enumerate(names)}
        codes = torch.tensor([number.get(word, -1) for word in words], dtype=torch.int64, device="cpu")
        return cls(codes, names, user_ids=user_ids)

    @classmethod
    def from_frame(cls, frame: Any, group: str, *, user: Name = ...) -> Groups:
        """Group the users of a table, which may repeat a user, by a column.

        Args:
            frame: a frame, a path, or a `Table`.
            group: name of the column of groups; rows without a value are in no group.
            user: name of the column of users; not given: as `Table` finds it.

        Raises:
            ValueError: for missing columns, and for a user in two groups; names the row.

        Examples:
            >>> import torchrecmetrics as trm
            >>> users = {"user_id": ["al", "bo", "eve"], "region": ["se", "de", "se"]}
            >>> trm.Groups.from_frame(users, "region")
            Groups(de: 1, se: 2)
        """
        from torchrecmetrics.tables.columns import check_names
        from torchrecmetrics.tables.sources import open_file
        from torchrecmetrics.tables.table import Table
        from torchrecmetrics.tables.vocabulary import ascending

        table = Table.with_columns(open_file(frame) if isinstance(frame, (str, Path)) else frame, user=user)
        check_names([group], table.source.names, table.what, "group is the name of a column")
        columns = table.read(label=group, items=False)
        user_ids, users = ascending(columns.columns["user"])
        of_rows = cls.from_column(columns.columns["label"])
        codes = torch.full((len(user_ids),), -1, device="cpu").scatter_reduce(0, users, of_rows.codes, "amax")
        other = ((codes[users] != of_rows.codes) & (of_rows.codes >= 0)).nonzero()[:, 0]
        if len(other):
            row = int(other[0])
            user_id, code = user_ids[int(users[row])], int(codes[users[row]])
            two_groups = f"{of_rows.names[of_rows.codes[row]]!r} in {columns.row(row)} and {of_rows.names[code]!r}"
            raise ValueError(f"{columns.what} has user {user_id!r} in two groups, {two_groups}: a user has one group")
        return cls(codes, of_rows.names, user_ids=user_ids)

    def __len__(self) -> int:
        """Return the number of users."""
        return len(self.codes)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of users in each group, {name: number}."""
        counts = torch.bincount(self.codes + 1, minlength=len(self.names) + 1)[1:].tolist()
        return dict(zip(self.names, counts, strict=True))

    def __repr__(self) -> str:
        shown = [f"{name}: {size}" for name, size in list(self.sizes.items())[:10]]
        more = [f"{len(self.names) - 10} more"] if len(self.names) > 10 else []
        alone = int((self.codes < 0).sum())
        return f"Groups({', '.join([*shown, *more, *([f'{alone} in none'] if alone else [])])})"

    def of(self, target: Interactions) -> Tensor:
        """Return the group code of each user of `target`, int64 [U]; -1 = the user is not in the groups' `user_ids`.

        For a batch of users, row numbers of `train`, call `update(..., groups=groups.of(train)[users])`; `codes` itself
        is in the order of the groups' own `user_ids`.

        Raises:
            ValueError: for another number of users without ids, and if only one of the two has `user_ids`.
        """
        target_ids = target.user_ids
        if (target_ids is None) != (self.user_ids is None):
            if target_ids is None:
                raise ids_beside_rows("user", "groups", "target", "target.with_ids(user_ids=groups.user_ids)")
            raise ids_beside_rows("user", "target", "groups", "Groups(..., user_ids=target.user_ids)")
        if target_ids is None or self.user_ids is None or target_ids == self.user_ids:
            if len(self) != target.num_users:
                raise ValueError(f"groups have {len(self)} users, but target has {target.num_users}")
            return self.codes
        rows = target_ids.rows_in(self.user_ids)
        if len(rows) and not bool((rows >= 0).any()):
            raise ValueError(f"no user of target is in groups, such as {target_ids[0]!r}: are these ids of one kind?")
        return self.codes[rows.clamp(min=0)].where(rows >= 0, -1)

    def of_rows(self, ids: Tensor | list[str]) -> Tensor:
        """Return the group code of each user by id, int64 [n]; -1 = the id is not in the groups' `user_ids`.

        Args:
            ids: int64 [n] or a list of n texts, as in `Rows`; if the groups have no `user_ids`, row numbers of users.

        Raises:
            TypeError: for ids of another kind.
            ValueError: if the groups have no `user_ids`, for ids that are no row numbers; otherwise if no id is known.
        """
        if self.user_ids is None:
            known = isinstance(ids, Tensor) and bool(((ids >= 0) & (ids < len(self))).all())
            if not isinstance(ids, Tensor) or not known:
                wrong = ids[(ids < 0) | (ids >= len(self))].tolist() if isinstance(ids, Tensor) else ids
                raise ValueError(
                    f"groups have {len(self)} users and no user_ids, but rows have the id {wrong[0]!r}: pass "
                    "user_ids= to Groups"
                )
            return self.codes[ids]
        known_ids = self.user_ids
        if isinstance(ids, list) and known_ids.kind == "bytes":
            known_ids = known_ids.as_text()  # evaluations write ids as text
        rows = known_ids.rows_of("ids of rows", ids, "user_ids of groups")
        if len(rows) and not bool((rows >= 0).any()):
            example = ids[0].item() if isinstance(ids, Tensor) else ids[0]
            raise ValueError(f"none of {len(rows)} rows has a user that is in groups, such as {example!r}")
        return self.codes[rows.clamp(min=0)].where(rows >= 0, -1)


def _values(column: Any) -> list[Any]:
    is_column = len(getattr(column, "shape", (0,))) == 1
    if isinstance(column, (str, Mapping)) or not hasattr(column, "__iter__") or not is_column:
        raise TypeError(f"a column holds one value per user, got {describe(column)}: of a frame, frame['region']")
    if hasattr(column, "to_pylist"):  # a column of pyarrow
        column = column.to_pylist()
    values = list(column.tolist() if hasattr(column, "tolist") else column)
    for user, value in enumerate(values):
        is_name = isinstance(value, (str, int)) or (isinstance(value, float) and value.is_integer())
        if not (is_name or _is_nothing(value)):
            raise TypeError(
                f"groups are words or whole numbers, user {user} has {value!r}: cut numbers into bands first"
            )
    return [int(value) if isinstance(value, float) and value == value else value for value in values]


def _is_nothing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas: comparisons give no bool
        return True
    return not getattr(value, "shape", ()) and bool(value != value or value == "")  # arrays are no words


def group_users(train: Interactions, bins: Sequence[int] = (0, 1, 5, 20)) -> Groups:
    """Group users by their number of interactions, cold users first.

    Args:
        train: training interactions.
        bins: smallest number of interactions of each group, ascending, >= 0; users below the first bin are in no
            group. Groups are called "0", "1-4", "5-19", "20+".

    Raises:
        TypeError: for anything but `Interactions`, and bins that are not whole numbers.
        ValueError: for bins that do not ascend.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> columns = {"users": [0, 1, 1, 1], "items": [0, 0, 1, 2]}
        >>> train = trm.Interactions.from_columns(**columns, num_users=3, num_items=3)
        >>> trm.group_users(train, bins=[0, 1, 3])
        Groups(0: 1, 1-2: 1, 3+: 1)
    """
    if not isinstance(train, Interactions):
        raise TypeError(
            f"users are grouped by Interactions, got {describe(train)}; of a graph: "
            "torchrecmetrics.pyg.message_passing_interactions(graph, num_users, num_items)"
        )
    starts = [check_k(start, "bins", 0) for start in bins]
    if not starts or sorted(set(starts)) != starts:
        raise ValueError(f"bins must ascend, such as [0, 1, 5, 20], got {list(bins)}")
    ends = [start - 1 for start in starts[1:]]
    names = [str(start) if end == start else f"{start}-{end}" for start, end in zip(starts, ends, strict=False)]
    names.append(f"{starts[-1]}+")
    codes = torch.bucketize(train.host_degree, torch.tensor(starts, device="cpu"), right=True) - 1
    return Groups(codes, names, user_ids=train.user_ids)


def slice_targets(
    target: Interactions, popularity: Tensor, shares: Sequence[float] = (0.2, 0.8)
) -> dict[str, Interactions]:
    """Divide a ground truth by the popularity of its items.

    Args:
        target: ground truth [U, I].
        popularity: number [I], >= 0, such as `train.popularity`.
        shares: shares of the total popularity, ascending, between 0 and 1: the first slice is the fewest items with the
            first share, and so on; of equally popular items at a border the lower ids come first. One share gives
            "head" and "tail", two give "head", "mid" and "tail", more give "1", "2", ...

    Returns:
        The slices by name, each of the shape of `target`: users without an item in a slice have no ground truth in it.

    Raises:
        TypeError: for anything but `Interactions`.
        ValueError: for another length, negative or NaN popularity, shares that do not ascend between 0 and 1.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> test = trm.Interactions.from_columns(users=[0, 0, 1], items=[0, 2, 1], num_items=3)
        >>> slices = trm.slice_targets(test, torch.tensor([90, 6, 4]), shares=[0.8])
        >>> {name: len(part) for name, part in slices.items()}
        {'head': 1, 'tail': 2}
    """
    if not isinstance(target, Interactions):
        raise TypeError(f"target must be Interactions, got {describe(target)}")
    check_tensor("popularity", popularity)
    if popularity.shape != (target.num_items,) or popularity.is_complex():
        raise ValueError(f"popularity must be [{target.num_items}], one number per item, got {describe(popularity)}")
    counts = popularity.to(target.device, torch.float64)
    if not bool(((counts >= 0) & counts.isfinite()).all()) or not float(counts.sum()) > 0:
        raise ValueError("popularity must be >= 0 and finite, and above 0 for some item")
    if not shares or sorted(set(shares)) != list(shares) or not 0 < shares[0] <= shares[-1] < 1:
        raise ValueError(f"shares must ascend between 0 and 1, such as [0.2, 0.8], got {list(shares)}")
    names = {1: ["head", "tail"], 2: ["head", "mid", "tail"]}.get(
        len(shares), [str(n + 1) for n in range(len(shares) + 1)]
    )
    slice_of_item = slices(counts, shares)
    return {name: target.take(slice_of_item[target.items] == number) for number, name in enumerate(names)}
