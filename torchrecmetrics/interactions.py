"""`Interactions`: which items each user has, as sorted CSR on one device; ground truth and history alike."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from torchrecmetrics.checks import check_choice, describe
from torchrecmetrics.columns import (
    SIGNED,
    array_of,
    check_container,
    check_integers,
    check_range,
    check_size,
    check_spread,
    codes_of,
    events_of,
    listed_at,
    real_numbers,
    row_numbers,
    values_of,
)
from torchrecmetrics.times import times_of

Duplicates: TypeAlias = Literal["merge", "error"]
Reduce: TypeAlias = Literal["sum", "max", "last"]
Unknown: TypeAlias = Literal["error", "drop"]


class Batch(NamedTuple):
    """Rows of some users, side by side."""

    items: Tensor  # int64 [B, T], ascending, -1 = padding; T >= 1
    values: Tensor | None  # [B, T] beside them, 0 = padding


class Split(NamedTuple):
    """A data set split in three; all parts have one shape."""

    train: Interactions
    valid: Interactions
    test: Interactions
    num_unseen_users: int
    """Users of the validation or test part without an event in train."""
    num_unseen_items: int
    """Items of the validation or test part without an event in train."""


class Interactions:
    """Which items each user has: an immutable users x items matrix in O(edges), on one device.

    Items are ascending within a user and occur once; `values`, if any, stand beside them. Make one with
    `from_edge_index`, `from_columns`, `from_text`, `from_scipy`, `from_padded` or `from_dense`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import Interactions
        >>> train = Interactions.from_edge_index(torch.tensor([[0, 1, 0], [4, 2, 1]]), num_users=3, num_items=5)
        >>> train
        Interactions(3 users x 5 items, 3 edges, density 0.2, cpu)
        >>> train.select([0, 2]).items
        tensor([[ 1,  4],
                [-1, -1]])
    """

    def __init__(self, offsets: Tensor, items: Tensor, num_items: int, values: Tensor | None = None) -> None:
        self.offsets = offsets
        self.items = items
        self.values = values
        self.num_users: int = len(offsets) - 1
        self.num_items = num_items
        self._host_offsets = offsets.cpu()

    # ------------------------------------------------------------------------------------------------------- in

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_users: int,
        num_items: int,
        values: Tensor | None = None,
        item_offset: int = 0,
        *,
        duplicates: Duplicates = "merge",
        values_reduce: Reduce = "sum",
    ) -> Interactions:
        """Build from edges in any order.

        Args:
            edge_index: signed integer [2, E]: users in row 0, items in row 1.
            num_users: users are 0 .. num_users - 1.
            num_items: items are item_offset .. item_offset + num_items - 1.
            values: number [E], such as ratings.
            item_offset: id of the first item, `num_users` in a homogeneous bipartite graph; taken off on the way in.
            duplicates: an edge that occurs twice is "merge"d or an "error".
            values_reduce: value of merged edges: "sum", "max" or the "last" one given.

        Raises:
            TypeError: if edge_index holds no signed integers, or a size is no whole number.
            ValueError: for shapes that do not fit, ids out of range (says which side and the range), or duplicates.
        """
        check_integers("edge_index", edge_index)
        if edge_index.dim() != 2 or len(edge_index) != 2:
            hint = "; pass edges.T" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
            raise ValueError(f"edge_index must be [2, E], users above items, got {list(edge_index.shape)}{hint}")
        num_users, num_items = check_size("num_users", num_users), check_size("num_items", num_items)
        item_offset = check_size("item_offset", item_offset)
        check_container("values", values)
        if values is not None and not isinstance(values, Tensor):
            raise TypeError(f"values must be a tensor, got {type(values).__name__}")
        if num_users * num_items >= 2**63:
            raise ValueError(
                f"{num_users} users x {num_items} items are more cells than int64 can number; hashed ids need a "
                "vocabulary: from_columns(..., user_ids=, item_ids=)"
            )
        users, items = edge_index.as_subclass(Tensor).long()
        check_range("users (edge_index[0])", users, 0, num_users, "")
        hint = ""
        if len(items) and item_offset and int(items.max()) < num_items:
            hint = ": items seem to be numbered from 0; pass item_offset=0"
        elif (
            len(items)
            and not item_offset
            and num_users <= int(items.min())
            and int(items.max()) < num_users + num_items
        ):
            hint = f": items seem to be numbered behind the users; pass item_offset={num_users}"
        check_range("items (edge_index[1])", items, item_offset, num_items, hint)
        return cls._from_keys(
            users * max(num_items, 1) + (items - item_offset), num_users, num_items, values, duplicates, values_reduce
        )

    @classmethod
    def _from_keys(
        cls,
        keys: Tensor,
        num_users: int,
        num_items: int,
        values: Tensor | None,
        duplicates: Duplicates = "merge",
        values_reduce: Reduce = "sum",
    ) -> Interactions:
        """Build from user * num_items + item, unsorted."""
        check_choice("duplicates", duplicates, ("merge", "error"))
        check_choice("values_reduce", values_reduce, ("sum", "max", "last"))
        if values is not None and values.shape != keys.shape:
            raise ValueError(f"values must be [{len(keys)}], one for each edge, got {list(values.shape)}")
        if values is not None and values.device != keys.device:
            raise ValueError(f"values are on {values.device}, the edges on {keys.device}")
        if values is not None:
            values = real_numbers(values)
        keys, order = keys.sort(stable=True)
        values = None if values is None else values[order]
        first = torch.ones_like(keys, dtype=torch.bool)
        first[1:] = keys[1:] != keys[:-1]
        repeated = len(keys) - int(first.sum())
        if repeated and duplicates == "error":
            user, item = divmod(int(keys[~first][0]), max(num_items, 1))
            raise ValueError(f"{repeated} edges occur more than once, such as user {user}, item {item}")
        if repeated and values is not None:
            group = first.cumsum(0) - 1
            size = len(keys) - repeated
            if values_reduce == "last":
                last = torch.ones_like(first)
                last[:-1] = first[1:]
                values = values[last]
            elif values_reduce == "sum":
                values = values.new_zeros(size).index_add_(0, group, values)
            else:
                values = values.new_zeros(size).scatter_reduce_(0, group, values, "amax", include_self=False)
        keys = keys[first]
        users = torch.div(keys, max(num_items, 1), rounding_mode="floor")
        offsets = torch.zeros(num_users + 1, dtype=torch.int64, device=keys.device)
        offsets[1:] = torch.bincount(users, minlength=num_users).cumsum(0)
        return cls(offsets, keys - users * num_items, num_items, values)

    @classmethod
    def from_columns(
        cls,
        users: Any,
        items: Any,
        values: Any = None,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        num_users: int | None = None,
        num_items: int | None = None,
        unknown: Unknown = "error",
        duplicates: Duplicates = "merge",
        values_reduce: Reduce = "sum",
    ) -> Interactions:
        """Build from two columns of any array-likes: lists, numpy, pandas, polars, tensors.

        Args:
            users: [E], whole numbers from 0 (of any type), or anything that `user_ids` lists.
            items: [E], whole numbers from 0, or anything that `item_ids` lists.
            values: [E], such as ratings.
            user_ids: vocabulary: user `user_ids[u]` becomes row u; of the kind of the ids (text is no number).
            item_ids: vocabulary: item `item_ids[i]` becomes column i.
            num_users: users without a vocabulary; default: the largest one + 1.
            num_items: items without a vocabulary; default: the largest one + 1.
            unknown: an id that is not in its vocabulary is an "error", or its row is "drop"ped (`num_dropped`).
            duplicates: as in `from_edge_index`.
            values_reduce: as in `from_edge_index`.

        Warns:
            UserWarning: if ids without vocabulary or number run to 100 times as many as there are.
        """
        check_choice("unknown", unknown, ("error", "drop"))
        inferred = num_items is None and item_ids is None
        rows, users_known, num_users = codes_of("users", users, user_ids, num_users, 3)
        columns, items_known, num_items = codes_of("items", items, item_ids, num_items, 3)
        if rows.shape != columns.shape:
            raise ValueError(f"users and items must be equally long, got {len(rows)} and {len(columns)}")
        known = users_known & items_known
        dropped = len(known) - int(known.sum())
        if dropped and unknown == "error":
            which, where = ("user", users_known) if not users_known.all() else ("item", items_known)
            at = int((~where).nonzero()[0])
            raise ValueError(
                f"{dropped} of {len(known)} rows hold an id that is not in its vocabulary, the first in row {at}: "
                f"{which} {listed_at(users if which == 'user' else items, at)!r}; unknown='drop' leaves them out"
            )
        weights = None if values is None else values_of(values)
        if weights is not None and weights.shape != rows.shape:
            raise ValueError(f"values must be as long as users ({len(rows)}), got {list(weights.shape)}")
        edges = torch.stack([rows[known], columns[known]])
        built = cls.from_edge_index(
            edges,
            num_users,
            num_items,
            None if weights is None else weights[known],
            duplicates=duplicates,
            values_reduce=values_reduce,
        )
        built.num_dropped, built.num_items_inferred = dropped, inferred
        return built

    num_dropped = 0
    """Rows that `from_columns(unknown="drop")` left out."""
    num_items_inferred = False
    """Whether there are as many items as the largest id says, for want of a number or a vocabulary."""

    @overload
    @classmethod
    def from_text(cls, path: str | Path, /) -> Interactions: ...

    @overload
    @classmethod
    def from_text(cls, path: str | Path, other: str | Path, /, *more: str | Path) -> tuple[Interactions, ...]: ...

    @classmethod
    def from_text(cls, *paths: str | Path) -> Interactions | tuple[Interactions, ...]:
        """Read files of `user item item ...` lines (LightGCN's format); several files share one shape.

        Returns:
            Interactions for one path, a tuple of them for several.

        Warns:
            UserWarning: if ids run to 100 times as many as there are (`from_columns` has vocabularies for such).

        Raises:
            ValueError: for lines of anything but whole numbers, and for files of edges such as `user item rating time`:
                three or four columns in every line, and a user in several lines.
        """
        if not paths:
            raise ValueError("from_text needs at least one path")
        read = [_read_lines(Path(path)) for path in paths]
        users, items = torch.cat([users for _, users in read]), torch.cat([edges[1] for edges, _ in read])
        for name, ids in (("users", users), ("items", items)):
            check_spread(name, ids, "", 3)
        num_users, num_items = (int(ids.max()) + 1 if len(ids) else 0 for ids in (users, items))
        built = tuple(cls.from_edge_index(edges, num_users, num_items) for edges, _ in read)
        for each in built:
            each.num_items_inferred = True
        return built[0] if len(built) == 1 else built

    @classmethod
    def from_scipy(cls, matrix: Any) -> Interactions:
        """Build from a sparse matrix [users, items] of scipy or torch: stored entries are edges, data values."""
        sparse = isinstance(matrix, Tensor) and matrix.layout != torch.strided and not matrix.is_nested
        if not sparse and not hasattr(matrix, "tocoo"):
            raise TypeError(
                f"matrix must be a scipy sparse matrix or a sparse tensor, got {type(matrix).__name__}; dense ones: "
                "from_dense(torch.as_tensor(matrix) != 0), or with values from_scipy(scipy.sparse.csr_array(matrix))"
            )
        if len(matrix.shape) != 2:
            raise ValueError(f"matrix must be [users, items], got {list(matrix.shape)}")
        if sparse:
            coo = matrix.to_sparse(layout=torch.sparse_coo).coalesce()
            edges, values = coo.indices(), coo.values()
        else:
            coo = matrix.tocoo()
            edges = torch.stack([torch.as_tensor(coo.row).long(), torch.as_tensor(coo.col).long()])
            values = values_of(coo.data)
        return cls.from_edge_index(edges, int(matrix.shape[0]), int(matrix.shape[1]), values)

    @classmethod
    def from_padded(cls, ids: Tensor, num_items: int) -> Interactions:
        """Build from item ids [U, T], negative = padding."""
        check_integers("ids", ids)
        if ids.dim() != 2:
            raise ValueError(f"ids must be [users, T], got {list(ids.shape)}")
        user, slot = (ids >= 0).nonzero(as_tuple=True)
        return cls.from_edge_index(torch.stack([user, ids[user, slot].long()]), len(ids), num_items)

    @classmethod
    def from_dense(cls, dense: Tensor) -> Interactions:
        """Build from a bool matrix [U, I]."""
        check_container("dense", dense)
        if not isinstance(dense, Tensor) or dense.dtype != torch.bool or dense.dim() != 2:
            raise TypeError(f"dense must be a bool tensor [users, items], got {describe(dense)}")
        return cls.from_edge_index(dense.nonzero().T, *dense.shape)

    # ------------------------------------------------------------------------------------------------------- splits

    @classmethod
    def leave_last_out(
        cls,
        users: Any,
        items: Any,
        times: Any = None,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        num_users: int | None = None,
        num_items: int | None = None,
    ) -> Split:
        """Put each user's last event into test, the one before into validation, the rest into train.

        Args:
            users: [E], whole numbers from 0, or anything that `user_ids` lists.
            items: [E], whole numbers from 0, or anything that `item_ids` lists.
            times: [E], numbers or datetimes, both also as text, of any range and resolution; datetimes with a time zone
                are brought to UTC, those without count as UTC. None = events are in order. Equal times keep the order
                of the input.
            user_ids: vocabulary, as in `from_columns`.
            item_ids: vocabulary, as in `from_columns`.
            num_users: without a vocabulary; default: the largest user + 1.
            num_items: without a vocabulary; default: the largest item + 1.

        Users with fewer than three events stay in train whole.
        """
        rows, columns, shape = events_of(users, items, user_ids, item_ids, num_users, num_items)
        order = torch.arange(len(rows), device="cpu")
        if times is not None:
            order = torch.from_numpy(times_of(times, len(rows))[0].argsort(kind="stable"))
        order = order[rows[order].argsort(stable=True)]
        count = torch.bincount(rows, minlength=shape[0])
        place_from_end = count.cumsum(0)[rows[order]] - torch.arange(len(order), device="cpu")
        part = torch.zeros_like(rows)
        part[order] = (3 - place_from_end).clamp(min=0) * (count[rows[order]] >= 3)
        return cls._split(rows, columns, part, shape, num_items is None and item_ids is None)

    @classmethod
    def split_by_time(
        cls,
        users: Any,
        items: Any,
        times: Any,
        valid_from: Any,
        test_from: Any,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        num_users: int | None = None,
        num_items: int | None = None,
    ) -> Split:
        """Put events before `valid_from` into train, those before `test_from` into validation, the rest into test.

        The other arguments are those of `leave_last_out`; the bounds are what the times are, numbers or datetimes.
        The result counts the users and items of validation and test that train has never seen.

        Raises:
            ValueError: also if no event is left for train or for test.
        """
        rows, columns, shape = events_of(users, items, user_ids, item_ids, num_users, num_items)
        when, bound = times_of(times, len(rows))
        first, second = bound("valid_from", valid_from), bound("test_from", test_from)
        if not first <= second:
            raise ValueError(f"valid_from must not be later than test_from, got {valid_from} and {test_from}")
        part = torch.from_numpy((when >= first).astype("i8") + (when >= second))
        for which, name in ((0, f"train, before valid_from={valid_from}"), (2, f"test, from test_from={test_from} on")):
            if len(rows) and not (part == which).any():
                given = array_of("times", times)
                ends = f"{given[when.argmin()]} to {given[when.argmax()]}"
                raise ValueError(f"no event is left for {name}; times run from {ends}")
        return cls._split(rows, columns, part, shape, num_items is None and item_ids is None)

    @classmethod
    def _split(cls, users: Tensor, items: Tensor, part: Tensor, shape: tuple[int, int], inferred: bool) -> Split:
        edges = torch.stack([users, items])
        train, valid, test = (cls.from_edge_index(edges[:, part == p], *shape) for p in range(3))
        train.num_items_inferred = valid.num_items_inferred = test.num_items_inferred = inferred
        unseen = [int((~torch.isin(side[part > 0].unique(), side[part == 0])).sum()) for side in edges]
        return Split(train, valid, test, *unseen)

    # ------------------------------------------------------------------------------------------------------- out

    @property
    def device(self) -> torch.device:
        """Where the edges are."""
        return self.items.device

    @property
    def degree(self) -> Tensor:
        """Items of each user, int64 [U]."""
        return self.offsets.diff()

    @property
    def host_degree(self) -> Tensor:
        """Items of each user, int64 [U], on the host wherever the edges are."""
        return self._host_offsets.diff()

    @property
    def users(self) -> Tensor:
        """The user of each edge, int64 [E]."""
        return torch.repeat_interleave(self.degree, output_size=len(self))

    @property
    def keys(self) -> Tensor:
        """One number per edge, user * num_items + item, ascending, int64 [E]."""
        return self.users * self.num_items + self.items

    def to(self, device: str | torch.device) -> Interactions:
        """Return the same interactions on another device."""
        values = None if self.values is None else self.values.to(device)
        moved = Interactions(self.offsets.to(device), self.items.to(device), self.num_items, values)
        moved.num_dropped, moved.num_items_inferred = self.num_dropped, self.num_items_inferred
        return moved

    def to_edge_index(self, item_offset: int = 0, *, undirected: bool = False) -> Tensor:
        """Return edges [2, E], users above items + item_offset; `undirected` appends the mirror image of each."""
        edges = torch.stack([self.users, self.items + check_size("item_offset", item_offset)])
        return torch.cat([edges, edges.flip(0)], 1) if undirected else edges

    def to_scipy(self, *, matrix: bool = False) -> Any:
        """Return a scipy.sparse.csr_array [users, items], 1.0 where there are no values; `matrix`: a csr_matrix."""
        from scipy.sparse import csr_array, csr_matrix

        values = torch.ones(len(self), device="cpu") if self.values is None else self.values.cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # numpy has none
        parts = (values.numpy(), self.items.cpu().numpy(), self._host_offsets.numpy())
        shape = (self.num_users, self.num_items)
        return csr_matrix(parts, shape=shape, copy=True) if matrix else csr_array(parts, shape=shape, copy=True)

    def select(self, users: Any, *, max_items: int | None = None) -> Batch:
        """Return the items (and values) of some users, padded with -1.

        Args:
            users: ids [B], on the host (list, array, CPU tensor: never waits for the device) or on the device: then the
                width is looked up with one host sync, unless `max_items` is at least the largest degree of all users.
            max_items: width; a user who has more is an error.
        """
        check_container("users", users)
        ids = users if isinstance(users, Tensor) else row_numbers("users", users)
        if ids.dim() != 1 or (len(ids) and ids.dtype not in SIGNED):
            raise ValueError(f"users must be whole numbers [B], got a {ids.dtype} tensor of shape {list(ids.shape)}")
        ids = ids.long()
        max_items = None if max_items is None else check_size("max_items", max_items)
        if ids.device.type == "cpu":
            check_range("users", ids, 0, self.num_users, "")
            degree = self._host_offsets[ids + 1] - self._host_offsets[ids]
            width = int(degree.max()) if len(ids) else 0
            ids = ids.to(self.device, non_blocking=True)
        elif max_items is not None and max_items >= self.max_degree:
            width = max_items
        else:
            width = int((self.offsets[ids + 1] - self.offsets[ids]).max()) if len(ids) else 0
        if max_items is not None:
            if width > max_items:
                raise ValueError(f"a user has {width} items, more than max_items={max_items}")
            width = max_items
        place = torch.arange(max(width, 1), device=self.device)
        start, degree = self.offsets[ids, None], (self.offsets[ids + 1] - self.offsets[ids])[:, None]
        listed = place < degree
        if not len(self):
            return Batch(
                torch.full(listed.shape, -1, device=self.device),
                None if self.values is None else listed.to(self.values.dtype),
            )
        at = (start + place).clamp(max=len(self) - 1)
        values = None if self.values is None else self.values[at].where(listed, 0)
        return Batch(self.items[at].where(listed, -1), values)

    @cached_property
    def max_degree(self) -> int:
        """Items of the user who has most."""
        return int(self.host_degree.max()) if self.num_users else 0

    def without(self, other: Interactions) -> Interactions:
        """Return these interactions less those that `other` has too, such as train items left in a test set."""
        self._check_shape(other)
        kept = ~torch.isin(self.keys, other.keys, assume_unique=True)
        values = None if self.values is None else self.values[kept]
        left = self._from_keys(self.keys[kept], self.num_users, self.num_items, values)
        left.num_items_inferred = self.num_items_inferred
        return left

    def union(self, other: Interactions, *, values_reduce: Reduce = "last") -> Interactions:
        """Return what either has, such as train and validation as history of a test; values need both to have them."""
        self._check_shape(other)
        values = None
        if self.values is not None and other.values is not None:
            values = torch.cat([self.values, other.values])
        keys = torch.cat([self.keys, other.keys])
        joined = self._from_keys(keys, self.num_users, self.num_items, values, values_reduce=values_reduce)
        joined.num_items_inferred = self.num_items_inferred or other.num_items_inferred
        return joined

    def _check_shape(self, other: Interactions) -> None:
        if not isinstance(other, Interactions):
            raise TypeError(f"expected Interactions, got {type(other).__name__}")
        if (self.num_users, self.num_items) != (other.num_users, other.num_items) or self.device != other.device:
            raise ValueError(f"shapes and devices must be equal: {self} and {other}")

    def __len__(self) -> int:
        """Return the number of edges."""
        return len(self.items)

    def __repr__(self) -> str:
        cells = self.num_users * self.num_items
        density = len(self) / cells if cells else 0.0
        return (
            f"Interactions({self.num_users} users x {self.num_items} items, {len(self)} edges, "
            f"density {density:.2g}, {self.device})"
        )


_EDGE_FILES = (
    "a file of edges, such as 'user item rating time', is read column by column, for instance with pandas.read_csv or "
    "numpy.loadtxt, and built with Interactions.from_columns(user, item, rating), or split with "
    "Interactions.leave_last_out(user, item, time)"
)


def _read_lines(path: Path) -> tuple[Tensor, Tensor]:
    """Read the edges [2, E] of a file of `user item item ...` lines, and the user of each line."""
    users, counts, items = [], [], []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(
                f"{path}, line {number}: expected whole numbers 'user item item ...', got {line[:60]!r}; {_EDGE_FILES}"
            )
        user, *rest = map(int, words)
        users.append(user)
        counts.append(len(rest))
        items += rest
    if set(counts) in ({2}, {3}) and len(set(users)) < len(users):
        user = next(user for user, times in Counter(users).items() if times > 1)
        raise ValueError(
            f"{path} has {1 + counts[0]} columns in every line and user {user} in several: these seem to be edges, not "
            f"'user item item ...'; {_EDGE_FILES}"
        )
    columns = tuple(torch.tensor(x, dtype=torch.int64, device="cpu") for x in (users, counts, items))
    return torch.stack([columns[0].repeat_interleave(columns[1]), columns[2]]), columns[0]
