"""`Interactions`: which items each user has, as sorted CSR on one device; ground truth and history alike."""

from __future__ import annotations

import math
import operator
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import date, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from torchrecmetrics.checks import ID_DTYPES, check_choice, describe

Duplicates: TypeAlias = Literal["merge", "error"]
Reduce: TypeAlias = Literal["sum", "max", "last"]
Unknown: TypeAlias = Literal["error", "drop"]

_ID_DTYPES = (*ID_DTYPES, torch.int8)


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
        self.num_users = len(offsets) - 1
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
        _check_integers("edge_index", edge_index)
        if edge_index.dim() != 2 or len(edge_index) != 2:
            hint = "; pass edges.T" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
            raise ValueError(f"edge_index must be [2, E], users above items, got {list(edge_index.shape)}{hint}")
        num_users, num_items = _size("num_users", num_users), _size("num_items", num_items)
        item_offset = _size("item_offset", item_offset)
        _check_container("values", values)
        if values is not None and not isinstance(values, Tensor):
            raise TypeError(f"values must be a tensor, got {type(values).__name__}")
        if num_users * num_items >= 2**63:
            raise ValueError(
                f"{num_users} users x {num_items} items are more cells than int64 can number; hashed ids need a "
                "vocabulary: from_columns(..., user_ids=, item_ids=)"
            )
        users, items = edge_index.as_subclass(Tensor).long()
        _check_range("users (edge_index[0])", users, 0, num_users, "")
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
        _check_range("items (edge_index[1])", items, item_offset, num_items, hint)
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
            if values.is_complex():
                raise TypeError(f"values must be real numbers, got {values.dtype}")
            if values.dtype == torch.uint64 and bool((values.long() < 0).any()):
                raise ValueError("values must be below 2^63 where they are whole: pass values.double()")
            values = values.detach() if values.is_floating_point() else values.long()
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
        rows, users_known, num_users = _codes("users", users, user_ids, num_users, 3)
        columns, items_known, num_items = _codes("items", items, item_ids, num_items, 3)
        if rows.shape != columns.shape:
            raise ValueError(f"users and items must be equally long, got {len(rows)} and {len(columns)}")
        known = users_known & items_known
        dropped = len(known) - int(known.sum())
        if dropped and unknown == "error":
            which, where = ("user", users_known) if not users_known.all() else ("item", items_known)
            at = int((~where).nonzero()[0])
            raise ValueError(
                f"{dropped} of {len(known)} rows hold an id that is not in its vocabulary, the first in row {at}: "
                f"{which} {_listed(users if which == 'user' else items, at)!r}; unknown='drop' leaves them out"
            )
        weights = None if values is None else _values(values)
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
            _check_spread(name, ids, "", 3)
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
            values = _values(coo.data)
        return cls.from_edge_index(edges, int(matrix.shape[0]), int(matrix.shape[1]), values)

    @classmethod
    def from_padded(cls, ids: Tensor, num_items: int) -> Interactions:
        """Build from item ids [U, T], negative = padding."""
        _check_integers("ids", ids)
        if ids.dim() != 2:
            raise ValueError(f"ids must be [users, T], got {list(ids.shape)}")
        user, slot = (ids >= 0).nonzero(as_tuple=True)
        return cls.from_edge_index(torch.stack([user, ids[user, slot].long()]), len(ids), num_items)

    @classmethod
    def from_dense(cls, dense: Tensor) -> Interactions:
        """Build from a bool matrix [U, I]."""
        _check_container("dense", dense)
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
        rows, columns, shape = _events(users, items, user_ids, item_ids, num_users, num_items)
        order = torch.arange(len(rows), device="cpu")
        if times is not None:
            order = torch.from_numpy(_times(times, len(rows))[0].argsort(kind="stable"))
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
        rows, columns, shape = _events(users, items, user_ids, item_ids, num_users, num_items)
        when, bound = _times(times, len(rows))
        first, second = bound("valid_from", valid_from), bound("test_from", test_from)
        if not first <= second:
            raise ValueError(f"valid_from must not be later than test_from, got {valid_from} and {test_from}")
        part = torch.from_numpy((when >= first).astype("i8") + (when >= second))
        for which, name in ((0, f"train, before valid_from={valid_from}"), (2, f"test, from test_from={test_from} on")):
            if len(rows) and not (part == which).any():
                given = _array("times", times)
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
        edges = torch.stack([self.users, self.items + _size("item_offset", item_offset)])
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
        _check_container("users", users)
        ids = users if isinstance(users, Tensor) else _ids("users", users)
        if ids.dim() != 1 or (len(ids) and ids.dtype not in _ID_DTYPES):
            raise ValueError(f"users must be whole numbers [B], got a {ids.dtype} tensor of shape {list(ids.shape)}")
        ids = ids.long()
        max_items = None if max_items is None else _size("max_items", max_items)
        if ids.device.type == "cpu":
            _check_range("users", ids, 0, self.num_users, "")
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


# ---------------------------------------------------------------------------------------------------------- columns


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


def _check_container(name: str, value: Any) -> None:
    """Refuse what holds a matrix or a table where a column or edges are expected, and say which way in takes it."""
    matrix = "Interactions.from_scipy takes users x items whole"
    if isinstance(value, Tensor) and value.is_nested:
        what = f"nested tensor: Interactions.from_padded(torch.nested.to_padded_tensor({name}, -1), num_items) takes it"
    elif isinstance(value, Tensor) and value.layout != torch.strided:
        what = f"sparse tensor ({value.layout}): {matrix}; its edges are .to_sparse_coo().coalesce().indices()"
    elif hasattr(value, "tocoo"):
        what = f"scipy {type(value).__name__}: {matrix}"
    elif hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2:
        what = f"{type(value).__name__}: pass its columns, Interactions.from_columns(frame['user'], frame['item'])"
    else:
        return
    raise TypeError(f"{name} is a {what}")


def _array(name: str, column: Any) -> Any:
    """Bring a column to a one-dimensional numpy array; what numpy would round or turn to text stays objects."""
    import numpy as np

    _check_container(name, column)
    if isinstance(column, np.ma.MaskedArray):
        column = column.tolist()  # None where masked
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        column = (column.double() if column.is_floating_point() else column).numpy()
    if getattr(getattr(column, "dtype", None), "tz", None) is not None:  # pandas' datetimes with a time zone, to UTC
        column = getattr(column, "dt", column).tz_convert(None)
    values = np.asarray(column) if hasattr(column, "__array__") else np.asarray(column, dtype=object)
    if values.dtype.kind == "T":
        values = values.astype(object)
    if values.ndim != 1:
        shape = f" of shape {list(values.shape)}" if values.ndim else f": pass list({name})"
        raise ValueError(f"{name} must be one column [E], a list or an array, got {type(column).__name__}{shape}")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _words(name: str, column: Any) -> tuple[Any, Any, str]:
    """Return the values that are there, as a numpy array of one type, which are missing (None, NaN), and their kind."""
    import numpy as np

    values = _array(name, column)
    if values.dtype.kind == "f" and not isinstance(getattr(column, "dtype", None), (np.dtype, torch.dtype)):
        values = np.asarray(column, dtype=object)  # nullable whole numbers of pandas and polars are no floats
    missing = np.zeros(len(values), dtype=bool)
    if values.dtype.kind in "fM":
        missing = np.isnan(values) if values.dtype.kind == "f" else np.isnat(values)
    elif values.dtype.kind == "O":
        plain = (value.item() if isinstance(value, Tensor) and not value.dim() else value for value in values)
        values = np.fromiter(plain, object, len(values))
        missing[:] = [
            type(value).__name__ in ("NoneType", "NAType", "NaTType")
            or (isinstance(value, (float, np.floating, np.datetime64)) and value != value)
            for value in values
        ]
    values = values[~missing]
    kind = _KINDS.get(values.dtype.kind, str(values.dtype))
    if values.dtype.kind == "O":
        kinds = sorted({_kind(each) for each in set(map(type, values))}) or ["missing"]
        if kinds == ["floats", "whole numbers"] and all(isinstance(v, float) or abs(v) <= 2**53 for v in values):
            kinds = ["floats"]
        if len(kinds) > 1:
            raise TypeError(f"{name} are {' and '.join(kinds)} mixed: make them all one kind")
        (kind,) = kinds
        if kind == "whole numbers":
            (values,) = _exact(values)
        elif kind in ("floats", "text", "bytes"):
            values = values.astype({"floats": "f8", "text": "U", "bytes": "S"}[kind])
    if "complex" in kind:
        raise TypeError(f"{name} must not be complex, got {kind}: pass their real part")
    return values, missing, kind


_KINDS = {"i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "text", "S": "bytes", "M": "datetimes"}


def _kind(of: type) -> str:
    import numpy as np

    kinds: dict[str, tuple[type, ...]] = {
        "whole numbers": (int, np.integer),
        "floats": (float, np.floating),
        "text": (str,),
        "bytes": (bytes,),
        "datetimes": (date, np.datetime64),
    }
    return next((kind for kind, types in kinds.items() if issubclass(of, types) and of is not bool), of.__name__)


def _exact(*arrays: Any) -> list[Any]:
    """Bring whole numbers to the first type that holds all of them: int64, uint64 or Python's."""
    import numpy as np

    lowest = min((int(array.min()) for array in arrays if len(array)), default=0)
    highest = max((int(array.max()) for array in arrays if len(array)), default=0)
    signed, unsigned = lowest >= -(2**63) and highest < 2**63, lowest >= 0 and highest < 2**64
    return [array.astype(np.int64 if signed else np.uint64 if unsigned else object) for array in arrays]


def _ids(name: str, column: Any, otherwise: str = "") -> Tensor:
    """Bring a column of row numbers to int64."""
    words, missing, kind = _words(name, column)
    if len(words) and kind != "whole numbers":
        raise TypeError(f"{name} must be whole numbers [E]{otherwise}; got {kind}")
    if missing.any():
        raise ValueError(f"{name} must be whole numbers [E]{otherwise}; row {int(missing.argmax())} is missing")
    (words,) = _exact(words) if len(words) else (words.astype("i8"),)
    if words.dtype.kind != "i":
        raise ValueError(f"{name} must be below 2^63{otherwise}; got {words.max()}")
    return torch.from_numpy(words)


def _codes(name: str, column: Any, vocabulary: Any, size: int | None, stacklevel: int) -> tuple[Tensor, Tensor, int]:
    """Row numbers of a column, which of them are known, and how many rows there are."""
    if vocabulary is None:
        codes = _ids(name, column, f", or come with a vocabulary such as {name[:-1]}_ids=sorted(set({name}))")
        if size is None:
            size = int(codes.max()) + 1 if len(codes) else 0
            _check_spread(name, codes, f", or num_{name}={size} where there are so many", stacklevel + 1)
        size = _size(f"num_{name}", size)
        _check_range(name, codes, 0, size, "")
        return codes, torch.ones_like(codes, dtype=torch.bool), size
    if size is not None:
        raise ValueError(f"num_{name} follows from {name[:-1]}_ids: give one of the two")
    if isinstance(vocabulary, (dict, set, frozenset, str)) or not hasattr(vocabulary, "__len__"):
        raise TypeError(f"{name[:-1]}_ids must be a list or an array, got {type(vocabulary).__name__}: list(...)")
    import numpy as np

    words, missing, kind = _words(name, column)
    entries, empty, expected = _words(f"{name[:-1]}_ids", vocabulary)
    if empty.any():
        raise ValueError(f"{name[:-1]}_ids holds a missing value")
    if (kind, expected) == ("floats", "whole numbers") and (np.abs(words) < 2**53).all() and (words % 1 == 0).all():
        words, kind = words.astype(np.int64), expected  # pandas makes floats of whole numbers where some are missing
    if len(words) and len(entries) and kind != expected:
        raise TypeError(
            f"{name} are {kind} ({_plain(words[0])!r}), {name[:-1]}_ids are {expected} ({_plain(entries[0])!r}): they "
            "cannot be compared; convert one of the two"
        )
    if kind == expected == "whole numbers":
        words, entries = _exact(words, entries)
    order = np.argsort(entries, kind="stable")
    ascending = entries[order]
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(twice):
        raise ValueError(f"{name[:-1]}_ids lists {_plain(twice[0])!r} twice")
    known = np.zeros(len(missing), dtype=bool)
    rows = np.zeros(len(missing), dtype=np.int64)
    if len(words) and len(entries):
        at = np.minimum(np.searchsorted(ascending, words), len(entries) - 1)
        known[~missing] = ascending[at] == words
        rows[~missing] = order[at]
    return torch.from_numpy(rows), torch.from_numpy(known), len(entries)


def _check_spread(name: str, ids: Tensor, otherwise: str, stacklevel: int) -> None:
    """Warn of ids such as hashes, between which far more rows would be empty than there are."""
    distinct = int((ids.sort().values.diff() != 0).sum()) + 1 if len(ids) else 0
    if distinct and int(ids.max()) >= 100 * distinct:
        cure = f"Interactions.from_columns(..., {name[:-1]}_ids=sorted(set({name}))){otherwise}"
        warnings.warn(
            f"{name} hold {distinct} distinct ids up to {int(ids.max())}, and all numbers between count as {name} too; "
            f"a vocabulary leaves them out: {cure}",
            UserWarning,
            stacklevel=stacklevel,
        )


def _values(column: Any) -> Tensor:
    """Bring a column of numbers to a CPU tensor."""
    import numpy as np

    if isinstance(column, Tensor):
        _check_container("values", column)
        return column.cpu()
    values = _array("values", column)
    if values.dtype.kind == "O":
        values = [int(value) if isinstance(value, np.integer) else value for value in values]
    else:
        values = np.require(values, requirements=["C", "W"])  # a view into a data frame is neither
    try:
        return torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"values must be numbers [E], got {type(column).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _listed(column: Any, row: int) -> Any:
    return _plain(_array("column", column)[row])


def _times(column: Any, rows: int) -> tuple[Any, Callable[[str, Any], Any]]:
    """Return times as numbers [E] that are in order, and the function that makes a bound such a number."""
    import numpy as np

    when, missing, second = _moments("times", column)
    if missing.shape != (rows,):
        raise ValueError(f"users, items and times must be equally long, got {rows} users and times {[len(missing)]}")
    if missing.any():
        raise ValueError(f"{int(missing.sum())} of {rows} times are missing, the first in row {int(missing.argmax())}")

    def bound(name: str, value: Any) -> Any:
        given, absent, unit = _moments(name, np.fromiter([value], object, 1), dates=bool(second))
        if absent.any():
            raise ValueError(f"{name} must be a time, got {value!r}")
        if bool(unit) != bool(second) and rows:
            raise TypeError(
                f"{name} is {value!r}, but times are {'datetimes' if second else 'numbers'}: bounds are what times are"
            )
        at = given.tolist()[0]
        if second and unit:
            at = Fraction(at) / unit * second
        return math.ceil(at) if when.dtype.kind != "f" and math.isfinite(at) else at  # of whole times, >= 2.5 is >= 3

    return when, bound


def _moments(name: str, column: Any, dates: bool | None = None) -> tuple[Any, Any, Fraction | None]:
    """Return times as numbers, which are missing, and how many a second has: None for what is no datetime.

    Text is read as numbers if all of it is (`dates=True`: never), as ISO dates otherwise.
    """
    import numpy as np

    values, missing, kind = _words(name, column)
    if kind == "text":
        numbers = None if dates else _numbers(name, values)
        values, kind = (values, "datetimes") if numbers is None else (numbers, "floats")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # bounds are not to be rounded to float32
        missing[~missing] = np.isnan(values)  # text too
    if kind in ("whole numbers", "floats", "missing"):
        return values, missing, None
    if kind != "datetimes":
        raise TypeError(f"{name} must be numbers or datetimes, got {kind}")
    values = _datetimes(name, values)
    missing[~missing] = np.isnat(values)
    unit, step = np.datetime_data(values.dtype)
    return values.astype(np.int64), missing, Fraction(1000 ** _UNITS.index(unit), step)


_UNITS = ("s", "ms", "us", "ns", "ps", "fs", "as")


def _numbers(name: str, words: Any) -> Any:
    """Read text as whole numbers, or else as floats; None if it is neither."""
    import numpy as np

    texts = words.tolist()
    try:
        return _exact(np.fromiter(map(int, texts), object, len(texts)))[0]
    except ValueError:
        pass
    try:
        values = np.fromiter(map(float, texts), float, len(texts))
    except ValueError:
        number = next((text for text in texts if text.strip().lstrip("+-").isdecimal()), None)
        if number is None:
            return None
        raise TypeError(f"{name} are numbers ({number!r}) and other text mixed: make them all one kind") from None
    if not np.isnan(values).any() and len(np.unique(values)) < len(set(map(Decimal, set(texts)))):
        raise ValueError(f"{name} have more digits than float64 holds: pass whole numbers of a smaller unit")
    return values


def _datetimes(name: str, values: Any) -> Any:
    """Bring datetimes, in UTC where they have a time zone, to the finest unit that occurs, seconds at least."""
    import numpy as np

    try:
        if values.dtype.kind == "O":
            values = np.fromiter(map(_without_zone, values), object, len(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns that it brings time zones to UTC
            moments, seconds = values.astype("M8"), values.astype("M8[s]")
    except (ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be numbers or datetimes: {error}") from error
    if np.datetime_data(moments.dtype)[0] not in _UNITS:
        return seconds
    far = (moments.astype("M8[s]") != seconds) & ~np.isnat(seconds)
    if far.any():
        raise ValueError(
            f"{name} hold {seconds[far][0]}, which {moments.dtype} cannot hold: round them to a coarser unit"
        )
    return moments


def _without_zone(value: Any) -> Any:
    """Return a datetime that numpy takes: of pandas with its nanoseconds, and in UTC."""
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()
    return value.astimezone(timezone.utc).replace(tzinfo=None) if getattr(value, "tzinfo", None) else value


def _events(
    users: Any, items: Any, user_ids: Any, item_ids: Any, num_users: int | None, num_items: int | None
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    rows, users_known, num_users = _codes("users", users, user_ids, num_users, 4)
    columns, items_known, num_items = _codes("items", items, item_ids, num_items, 4)
    if rows.shape != columns.shape:
        raise ValueError(f"users and items must be equally long, got {len(rows)} and {len(columns)}")
    for name, known, column in (("users", users_known, users), ("items", items_known, items)):
        if not known.all():
            at = int((~known).nonzero()[0])
            raise ValueError(f"{name} hold {_listed(column, at)!r} in row {at}, which is not in {name[:-1]}_ids")
    return rows, columns, (num_users, num_items)


def _check_integers(name: str, ids: Any) -> None:
    _check_container(name, ids)
    if not isinstance(ids, Tensor) or ids.dtype not in _ID_DTYPES:
        what = f"a {ids.dtype} tensor" if isinstance(ids, Tensor) else type(ids).__name__
        cure = f"{name}.long()" if isinstance(ids, Tensor) else f"torch.as_tensor({name})"
        raise TypeError(f"{name} must be a tensor of signed integers, got {what}: pass {cure}")


def _size(name: str, value: Any) -> int:
    """Bring a whole number >= 0 of any type to int."""
    try:
        size = operator.index(value)
    except TypeError:
        size = None
    if size is None or isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        raise TypeError(f"{name} must be a whole number >= 0, an int, got {type(value).__name__}: {value!r}")
    if size < 0:
        raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
    return size


def _check_range(name: str, ids: Tensor, first: int, size: int, hint: str) -> None:
    if len(ids) and (int(ids.min()) < first or int(ids.max()) >= first + size):
        if not hint and first == 0 and int(ids.min()) == 1 and int(ids.max()) == size:
            hint = ": ids seem to start at 1; subtract 1"
        raise ValueError(
            f"{name} hold ids {int(ids.min())}..{int(ids.max())}, expected {first}..{first + size - 1}{hint}"
        )
