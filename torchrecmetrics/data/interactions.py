"""`Interactions`: the items of each user as sorted CSR, for targets and histories; tables are loaded to read them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import Checks, describe, ids_beside_rows, is_dense
from torchrecmetrics.core.numbers import (
    SIGNED,
    check_container,
    check_integers,
    check_not_binary,
    check_range,
    check_size,
    check_spread,
    real_numbers,
    row_numbers,
    values_of,
)
from torchrecmetrics.core.saving import read, write
from torchrecmetrics.data.edges import DuplicatePairs, Reduce, checked_edges, sorted_edges
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.jagged import as_jagged, broken_rows, side_by_side

if TYPE_CHECKING:
    from torchrecmetrics.tables.events import Events, Unknown
    from torchrecmetrics.tables.table import Name
    from torchrecmetrics.tables.vocabulary import Vocabulary


_SAVED = ("offsets", "items", "num_items", "values", "user_ids", "item_ids", "num_dropped", "num_items_inferred")
"""Arguments of the constructor, which are the fields of a saved file."""


class Interactions:
    """The items of each user: an immutable users x items matrix in O(edges) memory, on one device.

    The items of a user are ascending and distinct; `values`, if any, hold one value per edge. `user_ids` and `item_ids`
    are the ids of the row numbers, if known. Make interactions with `from_frame`, `from_edge_index`, `from_columns`,
    `from_dict`, `from_text`, `from_scipy`, `from_padded`, `from_jagged` or `from_dense`.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import Interactions
        >>> edges = torch.tensor([[0, 1, 0], [4, 2, 1]])
        >>> train = Interactions.from_edge_index(edges, num_users=3, num_items=5)
        >>> train
        Interactions(3 users x 5 items, 3 edges, density 0.2, cpu)
        >>> train.select([0, 2]).items
        tensor([[ 1,  4],
                [-1, -1]])
    """

    def __init__(
        self,
        offsets: Tensor,
        items: Tensor,
        num_items: int,
        values: Tensor | None = None,
        *,
        user_ids: Vocabulary | None = None,
        item_ids: Vocabulary | None = None,
        num_dropped: int = 0,
        num_items_inferred: bool = False,
    ) -> None:
        self.offsets = offsets
        self.items = items
        self.values = values
        self.num_users: int = len(offsets) - 1
        self.num_items = num_items
        self.user_ids: Vocabulary | None = user_ids
        """Ids of the users, in the order of the rows; None = unknown."""
        self.item_ids: Vocabulary | None = item_ids
        """Ids of the items, in the order of the columns; None = unknown."""
        self.num_dropped = num_dropped
        """Number of rows that `from_columns(unknown="drop")` left out, or of pairs that `recode` left out."""
        self.num_items_inferred = num_items_inferred
        """True if the number of items was taken from the largest id."""
        self._host_offsets = offsets.cpu()
        for name, ids, size in (("user", user_ids, self.num_users), ("item", item_ids, num_items)):
            if ids is not None and len(ids) != size:
                raise ValueError(f"{name}_ids holds {len(ids)} ids, but there are {size} {name}s: {self}")

    # ----------------------------------------------------------------------------------------------------- constructors

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_users: int,
        num_items: int,
        values: Tensor | None = None,
        item_offset: int | None = None,
        *,
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
    ) -> Interactions:
        """Build from edges in any order.

        Args:
            edge_index: signed integer [2, E]: users in row 0, items in row 1.
            num_users: users are 0 .. num_users - 1.
            num_items: items are item_offset .. item_offset + num_items - 1.
            values: number [E], such as ratings.
            item_offset: id of the first item, `num_users` in a homogeneous bipartite graph; subtracted from the items.
                None = 0, with a warning if there are many items and none is below `num_users`.
            duplicates: an edge that occurs twice is "merge"d or an "error".
            values_reduce: value of an edge that occurs more than once: "sum", "max" or the "last" one given.
                None = an error if such edges have values.

        Raises:
            TypeError: if edge_index does not hold signed integers, or a size is not a whole number.
            ValueError: for shapes that do not fit, ids out of range (says which side and the range), duplicates,
                repeated edges with values and no `values_reduce`, or more than four edges of only 0 and 1, without
                values and `item_offset`, which look like a 0/1 matrix.
        """
        edges = checked_edges(edge_index, num_users, num_items, values, item_offset)
        return cls.of_edges(edges, (int(num_users), int(num_items)), values, duplicates, values_reduce)

    @classmethod
    def of_edges(
        cls,
        edges: tuple[Tensor, Tensor],
        shape: tuple[int, int],
        values: Tensor | None = None,
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
        **named: Any,
    ) -> Interactions:
        """Build from row numbers of users and items in any order, int64 [E]; `named` are the constructor's keywords."""
        ids = (named.get("user_ids"), named.get("item_ids"))
        offsets, items, values = sorted_edges(edges, shape, values, duplicates, values_reduce, ids)
        return cls(offsets, items, shape[1], values, **named)

    @classmethod
    def of_events(
        cls, events: Events, *, duplicates: DuplicatePairs = "merge", values_reduce: Reduce | None = None
    ) -> Interactions:
        """Build from events whose users and items all have row numbers (no -1); values below 0 become 0, and the
        "last" value is that of the latest time, if there are times.
        """
        if values_reduce == "last" and events.times is not None:
            events.check_times()
            events = events.take(events.times.argsort(stable=True))
        values = None if events.values is None else events.values.clamp(min=0)
        named = {"user_ids": events.user_ids, "item_ids": events.item_ids}
        return cls.of_edges((events.users, events.items), events.shape, values, duplicates, values_reduce, **named)

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
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
    ) -> Interactions:
        """Build from two columns of any array-likes: lists, numpy, pandas, polars, tensors.

        Args:
            users: [E], whole numbers from 0 (of any type), or anything that `user_ids` lists.
            items: [E], whole numbers from 0, or anything that `item_ids` lists.
            values: [E], such as ratings.
            user_ids: vocabulary: user `user_ids[u]` becomes row u; of the same kind as `users` ("7" is not 7).
            item_ids: vocabulary: item `item_ids[i]` becomes column i.
            num_users: number of users if they have no vocabulary; default: the largest user + 1.
            num_items: number of items if they have no vocabulary; default: the largest item + 1.
            unknown: an id that is not in its vocabulary is an "error", or its row is "drop"ped (`num_dropped`).
            duplicates: as in `from_edge_index`.
            values_reduce: as in `from_edge_index`.

        Warns:
            UserWarning: if ids without a vocabulary or a given number reach 100 times the number of distinct ids.
        """
        from torchrecmetrics.tables.events import events_of_columns

        ids, shape = (user_ids, item_ids), (num_users, num_items)
        events = events_of_columns((users, items), values, ids, shape, unknown)
        named = {"user_ids": events.user_ids, "item_ids": events.item_ids, "num_dropped": len(users) - len(events)}
        named["num_items_inferred"] = num_items is None and item_ids is None
        edges = (events.users, events.items)
        return cls.of_edges(edges, events.shape, events.values, duplicates, values_reduce, **named)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        user: Name = ...,
        item: Name = ...,
        value: Name = ...,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
    ) -> Interactions:
        """Build from a frame, as `Log.from_frame(...).to_interactions()` does.

        Args:
            frame: of pandas, polars, pyarrow or another library with Arrow's interface; a dict of columns; a structured
                array; or a `Table`, which says its columns itself.
            user: name of the column of users: whole numbers, text or bytes; default: user, user_id, userId.
            item: name of the column of items: as users; default: item, item_id, itemId or movieId.
            value: name of the column of values, such as ratings; those below 0 become 0. None = no values. Not given:
                the column `value`, if there is one; any other column that could say which rows are relevant is an
                error.
            user_ids: vocabulary of the users, as in `from_columns`; default: the users that occur, ascending.
            item_ids: vocabulary of the items, as in `from_columns`; default: the items that occur, ascending.
            duplicates: as in `from_edge_index`.
            values_reduce: as in `from_edge_index`; "last" is the value at the latest time, if a column of times is
                found (time or timestamp) or named by a `Table`.

        Raises:
            TypeError: for anything but a frame, or a column of mixed kinds.
            ValueError: if there is no such column (names the nearest), for missing entries (names column and row), and
                ids that a given vocabulary does not hold.

        Examples:
            >>> import torchrecmetrics as trm
            >>> train = trm.Interactions.from_frame({"user": ["bo", "al"], "item": [7, 9]})
            >>> train.user_ids, train.items
            (Vocabulary(2 ids, text: 'al', 'bo'), tensor([1, 0]))
        """
        from torchrecmetrics.tables.events import events_of
        from torchrecmetrics.tables.table import Table

        table = Table.with_columns(frame, user=user, item=item, value=value)
        if question := table.question("value"):
            raise ValueError(question)
        roles = ("value", "time") if values_reduce == "last" else ("value",)
        events = events_of(table.read(*roles), user_ids, item_ids)
        return cls.of_events(events, duplicates=duplicates, values_reduce=values_reduce)

    @classmethod
    def from_dict(cls, relevant: Mapping[Any, Any], *, user_ids: Any = None, item_ids: Any = None) -> Interactions:
        """Build from a dict {user: items}, such as the relevant documents of queries.

        Args:
            relevant: a list or a set of items per user, or {user: {item: grade}}, whose grades are the values; those
                below 0 become 0.
            user_ids: vocabulary: ids in the order of the embeddings' rows; default: the users of the dict, ascending.
            item_ids: vocabulary: as `user_ids`; default: the items that occur, ascending.

        Raises:
            TypeError: for anything but such a dict, and ids of mixed kinds.
            ValueError: for ids that a given vocabulary does not hold.

        Examples:
            >>> import torchrecmetrics as trm
            >>> relevant = {"q2": {"d1", "d3"}, "q1": {"d2"}}
            >>> queries, corpus = ["q1", "q2"], ["d1", "d2", "d3", "d4"]
            >>> test = trm.Interactions.from_dict(
            ...     relevant, user_ids=queries, item_ids=corpus
            ... )
            >>> test.select([0, 1]).items
            tensor([[ 1, -1],
                    [ 0,  2]])
        """
        from torchrecmetrics.tables.entries import entries_of_dict
        from torchrecmetrics.tables.events import events_of
        from torchrecmetrics.tables.table import has_columns

        if not isinstance(relevant, Mapping) or has_columns(relevant):
            raise TypeError(f"relevant must be {{user: items}}, got {describe(relevant)}: from_frame reads columns")
        return cls.of_events(events_of(entries_of_dict("relevant", relevant), user_ids, item_ids))

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
            UserWarning: if ids reach 100 times the number of distinct ids (`from_columns` takes vocabularies for such).

        Raises:
            ValueError: for lines of anything but whole numbers, and for files of edges such as `user item rating time`:
                three or four columns in every line, and a user in several lines.
        """
        from torchrecmetrics.tables.sources import read_item_lines

        if not paths:
            raise ValueError("from_text needs at least one path")
        read = [read_item_lines(Path(path)) for path in paths]
        users, items = torch.cat([users for _, users in read]), torch.cat([edges[1] for edges, _ in read])
        for name, ids in (("users", users), ("items", items)):
            check_spread(name, ids, "")
        num_users, num_items = (int(ids.max()) + 1 if len(ids) else 0 for ids in (users, items))
        built = tuple(cls.from_edge_index(edges, num_users, num_items, item_offset=0) for edges, _ in read)
        for interactions in built:
            interactions.num_items_inferred = True
        return built[0] if len(built) == 1 else built

    @classmethod
    def from_scipy(cls, matrix: Any) -> Interactions:
        """Build from a sparse matrix [users, items] of scipy or torch: entries are edges; values below 0 become 0."""
        sparse = isinstance(matrix, Tensor) and matrix.layout != torch.strided and not matrix.is_nested
        if not sparse and not hasattr(matrix, "tocoo"):
            raise TypeError(
                f"matrix must be a scipy sparse matrix or a sparse tensor, got {type(matrix).__name__}; dense ones of "
                "bools or floats: from_dense(matrix)"
            )
        if len(matrix.shape) != 2:
            raise ValueError(f"matrix must be [users, items], got {list(matrix.shape)}")
        if sparse:
            coo = matrix.to_sparse(layout=torch.sparse_coo).coalesce()
            edges, values = coo.indices(), coo.values()
        else:
            coo = matrix.tocoo()
            edges = torch.stack([torch.as_tensor(ids, dtype=torch.int64, device="cpu") for ids in (coo.row, coo.col)])
            values = values_of(coo.data)
        return cls.from_edge_index(edges, matrix.shape[0], matrix.shape[1], real_numbers(values).clamp(min=0), 0)

    @classmethod
    def from_padded(cls, ids: Tensor, num_items: int) -> Interactions:
        """Build from item ids [U, T], negative = padding; a 0/1 matrix of all items is refused."""
        check_integers("ids", ids)
        if ids.dim() != 2:
            raise ValueError(f"ids must be [users, T], got {list(ids.shape)}")
        if ids.shape[1] == num_items > 2:
            check_not_binary("ids", ids, "")
        user, slot = (ids >= 0).nonzero(as_tuple=True)
        return cls.from_edge_index(torch.stack([user, ids[user, slot].long()]), len(ids), num_items, item_offset=0)

    @classmethod
    def from_jagged(
        cls,
        values: Any,
        offsets: Tensor | None = None,
        num_items: int | None = None,
        *,
        gains: Tensor | None = None,
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
    ) -> Interactions:
        """Build from rows of uneven length, one per user: TorchRec's `JaggedTensor` or jagged nested tensors.

        Args:
            values: items [E], the users' rows one after the other; or a nested tensor of the jagged layout, or a
                `Jagged`, both with their own offsets.
            offsets: int64 or int32 [U + 1], from 0 to E, never descending: user u has
                `values[offsets[u] : offsets[u + 1]]`.
            num_items: items are 0 .. num_items - 1.
            gains: number [E], one per item, such as ratings: the values of the interactions.
            duplicates: as in `from_edge_index`.
            values_reduce: as in `from_edge_index`.

        Raises:
            TypeError: for values or offsets of another dtype, and nested tensors of the strided layout.
            ValueError: for offsets that do not start at 0, descend or end elsewhere (says which row), and as in
                `from_edge_index`.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> items, offsets = torch.tensor([4, 1, 2]), torch.tensor([0, 2, 2, 3])
            >>> trm.Interactions.from_jagged(items, offsets, num_items=5).select([0, 1, 2]).items
            tensor([[ 1,  4],
                    [-1, -1],
                    [ 2, -1]])
        """
        jagged = as_jagged("matrix", values if offsets is None else (values, offsets))
        if jagged is None:
            raise TypeError(
                f"values must be [E] with offsets, a jagged nested tensor or Jagged, got {describe(values)}"
            )
        items, ends, _ = jagged
        check_integers("values", items)
        num_users = len(ends) - 1
        checks = Checks(True, torch.device("cpu"), num_users)  # raises on any device
        broken_rows("matrix", jagged, checks)
        checks.finish()
        users = torch.repeat_interleave(ends.diff(), output_size=len(items))
        edges, size = torch.stack([users, items.long()]), check_size("num_items", num_items)
        return cls.from_edge_index(edges, num_users, size, gains, 0, duplicates=duplicates, values_reduce=values_reduce)

    @classmethod
    def from_dense(cls, dense: Any) -> Interactions:
        """Build from a matrix [U, I] of torch or numpy: bool, or floats, where values above 0 are edges.

        Integers, which could be item ids, and numbers below 0, NaN and infinity are errors.
        """
        dense = as_tensor(dense)
        check_container("dense", dense)
        if not is_dense(dense) or dense.dim() != 2:
            cure = ": dense.bool(), dense.float(), or from_padded(ids)" if isinstance(dense, Tensor) else ""
            raise TypeError(f"dense must be a bool or float matrix [users, items], got {describe(dense)}{cure}")
        edges, values = dense.nonzero().T, None
        if dense.dtype != torch.bool:
            values = dense[edges[0], edges[1]]
            wrong = values[~((values > 0) & values.isfinite())]
            if len(wrong):
                raise ValueError(f"dense holds {wrong[0].item()}: values must be finite, >= 0 (NaN: nan_to_num(dense))")
        return cls.from_edge_index(edges, len(dense), dense.shape[1], values, item_offset=0)

    # ----------------------------------------------------------------------------------------- contents and conversions

    @property
    def device(self) -> torch.device:
        """Device of the edges."""
        return self.items.device

    @property
    def degree(self) -> Tensor:
        """Number of items of each user, int64 [U]."""
        return self.offsets.diff()

    @property
    def host_degree(self) -> Tensor:
        """Number of items of each user, int64 [U], on the CPU whatever the device of the edges."""
        return self._host_offsets.diff()

    @property
    def users(self) -> Tensor:
        """The user of each edge, int64 [E]."""
        return torch.repeat_interleave(self.degree, output_size=len(self))

    @property
    def keys(self) -> Tensor:
        """One number per edge, user * num_items + item, ascending, int64 [E]."""
        return self.users.mul_(self.num_items).add_(self.items)  # in place: keys of 20 M edges are 160 MB

    def to(self, device: str | torch.device) -> Interactions:
        """Return the same interactions on another device."""
        values = None if self.values is None else self.values.to(device)
        named = {**self._named, "num_dropped": self.num_dropped}
        return Interactions(self.offsets.to(device), self.items.to(device), self.num_items, values, **named)

    @property
    def _named(self) -> dict[str, Any]:
        """Vocabularies and `num_items_inferred`, which go with these row numbers, as arguments of the constructor."""
        names = ("user_ids", "item_ids", "num_items_inferred")
        return {name: getattr(self, name) for name in names}

    def with_ids(self, user_ids: Any = None, item_ids: Any = None) -> Interactions:
        """Return the same interactions with vocabularies of their row numbers.

        Args:
            user_ids: a `Vocabulary`, or a list of ids, with one id per user; None = the present `user_ids`.
            item_ids: a `Vocabulary`, or a list of ids, with one id per item; None = the present `item_ids`.

        Raises:
            ValueError: for a vocabulary of another length.
        """
        from torchrecmetrics.tables.vocabulary import Vocabulary

        said = {"user_ids": user_ids, "item_ids": item_ids}
        new_ids = {name: Vocabulary.named(name, ids) for name, ids in said.items() if ids is not None}
        named = {**self._named, "num_dropped": self.num_dropped, **new_ids}
        return Interactions(self.offsets, self.items, self.num_items, self.values, **named)

    def recode(self, user_ids: Any = None, item_ids: Any = None) -> Interactions:
        """Return the interactions with the row numbers of other vocabularies; users and items are matched by id.

        Args:
            user_ids: a `Vocabulary`, or a list of ids; None = users stay as they are.
            item_ids: a `Vocabulary`, or a list of ids; None = items stay as they are.

        Returns:
            Interactions of the pairs whose user and item the new vocabularies hold; `num_dropped` counts the rest.

        Raises:
            TypeError: for vocabularies of ids of another kind.
            ValueError: if these interactions have no vocabulary to match.
        """
        from torchrecmetrics.tables.vocabulary import Vocabulary

        sides = []
        for name, ids, new_ids, size, rows in (
            ("user", self.user_ids, user_ids, self.num_users, self.users),
            ("item", self.item_ids, item_ids, self.num_items, self.items),
        ):
            if new_ids is None:
                sides.append((rows, size, ids))
                continue
            if ids is None:
                raise ValueError(f"{self} has no {name}_ids to match: name them, with_ids({name}_ids=...)")
            vocabulary = Vocabulary.named(f"{name}_ids", new_ids)
            sides.append((ids.recode(rows, vocabulary), len(vocabulary), vocabulary))
        (users, num_users, users_named), (items, num_items, items_named) = sides
        is_known = (users >= 0) & (items >= 0)
        values = None if self.values is None else self.values[is_known]
        return self.of_edges(
            (users[is_known], items[is_known]),
            (num_users, num_items),
            values,
            user_ids=users_named,
            item_ids=items_named,
            num_dropped=len(is_known) - int(is_known.sum()),
            num_items_inferred=self.num_items_inferred and item_ids is None,
        )

    def numbered_as(self, other: Interactions, name: str = "exclude", others_name: str = "target") -> Interactions:
        """Return the interactions with the row numbers of `other`, so that a row means the same user in both.

        Vocabularies that differ are matched by id; users and items that `other` does not know are left out
        (`num_dropped`). If neither has vocabularies, row numbers are taken to mean the same.

        Args:
            other: interactions whose row numbers are used.
            name: name of these interactions in messages.
            others_name: name of `other` in messages.

        Raises:
            ValueError: if only one of the two has a vocabulary.
        """
        self.check_ids_like(other, name, others_name)
        user_ids = None if self.user_ids == other.user_ids else other.user_ids
        item_ids = None if self.item_ids == other.item_ids else other.item_ids
        return self if user_ids is None and item_ids is None else self.recode(user_ids, item_ids)

    def check_ids_like(self, other: Interactions, name: str, others_name: str) -> None:
        """Refuse interactions of which only one has a vocabulary; the arguments are those of `numbered_as`."""
        for side, ids, other_ids in (("user", self.user_ids, other.user_ids), ("item", self.item_ids, other.item_ids)):
            if (ids is None) != (other_ids is None):
                has, lacks = (name, others_name) if other_ids is None else (others_name, name)
                raise ids_beside_rows(side, has, lacks, f"{lacks}.with_ids({side}_ids={has}.{side}_ids)")

    @property
    def popularity(self) -> Tensor:
        """Number of users who have each item, int64 [I]; `Embeddings(bias=)` of it is the baseline to beat."""
        return torch.bincount(self.items, minlength=self.num_items)

    def save(self, path: str | Path) -> None:
        """Write a file of CPU tensors that `load` reads, and `torch.load` with its default `weights_only=True`."""
        on_host = self.to("cpu")
        fields: dict[str, Any] = {name: getattr(on_host, name) for name in _SAVED}
        for name in ("user_ids", "item_ids"):
            fields[name] = None if fields[name] is None else fields[name].state()
        write(path, "Interactions", fields)

    @classmethod
    def load(cls, path: str | Path) -> Interactions:
        """Load a file that `save` wrote, to the CPU.

        Raises:
            ValueError: for any other file, and for fields that contradict each other.
        """
        from torchrecmetrics.tables.vocabulary import Vocabulary

        saved = read(path, "Interactions")
        fields = {name: saved[name] for name in _SAVED}
        for name in ("user_ids", "item_ids"):
            fields[name] = None if fields[name] is None else Vocabulary.from_state(fields[name])
        return cls(**fields)

    def to_edge_index(self, item_offset: int = 0, *, undirected: bool = False) -> Tensor:
        """Return edges int64 [2, E], users above items + item_offset; `undirected` appends the reversed edges."""
        edges = torch.stack([self.users, self.items + check_size("item_offset", item_offset)])
        return torch.cat([edges, edges.flip(0)], 1) if undirected else edges

    def to_scipy(self, *, matrix: bool = False) -> Any:
        """Return a scipy.sparse.csr_array [users, items] (`matrix`: a csr_matrix); 1.0 if there are no values."""
        from scipy.sparse import csr_array, csr_matrix

        values = torch.ones(len(self), device="cpu") if self.values is None else self.values.cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
        parts = (values.numpy(), self.items.cpu().numpy(), self._host_offsets.numpy())
        shape = (self.num_users, self.num_items)
        return csr_matrix(parts, shape=shape, copy=True) if matrix else csr_array(parts, shape=shape, copy=True)

    def select(self, users: Any, *, max_items: int | None = None) -> SelectedItems:
        """Return the items (and values) of some users, padded with -1.

        Args:
            users: row numbers [B], on the host (list, array, CPU tensor: no host sync) or on the device: the width then
                takes one host sync, unless `max_items` is at least the largest degree of all users.
            max_items: width of the result; a user with more items is an error. None = the most items of one of `users`.
        """
        check_container("users", users)
        ids = users if isinstance(users, Tensor) else row_numbers("users", users)
        if ids.dim() != 1 or (len(ids) and ids.dtype not in SIGNED):
            raise ValueError(f"users must be whole numbers [B], got a {ids.dtype} tensor of shape {list(ids.shape)}")
        ids = ids.long()
        max_items = None if max_items is None else check_size("max_items", max_items)
        if ids.device.type == "cpu":
            check_range("users", ids, 0, self.num_users, "")
            start, stop = (ends.index_select(0, ids) for ends in (self._host_offsets, self._host_offsets[1:]))
            width = int((stop - start).max()) if len(ids) else 0
            if self.device.type != "cpu":
                ids = ids.to(self.device, non_blocking=True)
                start, stop = self.offsets[ids], self.offsets[ids + 1]
        else:
            start, stop = self.offsets[ids], self.offsets[ids + 1]
            if max_items is not None and max_items >= self.max_degree:
                width = max_items
            else:
                width = int((stop - start).max()) if len(ids) else 0
        if max_items is not None:
            if width > max_items:
                raise ValueError(f"a user has {width} items, more than max_items={max_items}")
            width = max_items
        values = None if self.values is None else side_by_side(self.values, start, stop, width, 0)
        return SelectedItems(side_by_side(self.items, start, stop, width, -1), values)

    @cached_property
    def max_degree(self) -> int:
        """Largest number of items of a user."""
        return int(self.host_degree.max()) if self.num_users else 0

    def without(self, other: Interactions | Tensor) -> Interactions:
        """Return these interactions without the pairs of `other`, such as a test set without the pairs of train.

        If the vocabularies of the two differ, pairs are matched by id. `other` may be bool [I], items to remove.
        """
        if isinstance(other, Tensor) and other.dtype == torch.bool and other.shape == (self.num_items,):
            return self.take(~other[self.items])
        other = self._checked(other)
        return self.take(~torch.isin(self.keys, other.keys, assume_unique=True))

    def take(self, kept: Tensor) -> Interactions:
        """Return the interactions with the edges that `kept` marks, bool [E], in the same shape."""
        values = None if self.values is None else self.values[kept]
        edges = (self.users[kept], self.items[kept])
        return self.of_edges(edges, (self.num_users, self.num_items), values, **self._named)

    def union(self, other: Interactions, *, values_reduce: Reduce = "last") -> Interactions:
        """Return the union, such as train and validation as history of a test; it has values if both have values.

        If the vocabularies of the two differ, pairs are matched by id.

        Raises:
            ValueError: if `other` has users or items that these vocabularies do not hold, which would be lost.
        """
        numbered = self._checked(other)
        if len(numbered) < len(other):
            raise ValueError(
                f"{len(other) - len(numbered)} pairs of other hold an id that these vocabularies lack: recode both, "
                "recode(a.user_ids.union(b.user_ids), a.item_ids.union(b.item_ids))"
            )
        values, more = self.values, numbered.values
        values = None if values is None or more is None else torch.cat([values, more])
        edges = (torch.cat([self.users, numbered.users]), torch.cat([self.items, numbered.items]))
        named = {**self._named, "num_items_inferred": self.num_items_inferred or numbered.num_items_inferred}
        return self.of_edges(edges, (self.num_users, self.num_items), values, "merge", values_reduce, **named)

    def _checked(self, other: Interactions | Tensor) -> Interactions:
        """Return `other` with the row numbers of these interactions; refuse other types, shapes and devices."""
        if not isinstance(other, Interactions):
            hint = ": pass other.to_interactions()" if hasattr(other, "to_interactions") else ""
            raise TypeError(f"expected Interactions, got {type(other).__name__}{hint}")
        other = other.numbered_as(self, "other", "self")
        if (self.num_users, self.num_items) != (other.num_users, other.num_items) or self.device != other.device:
            raise ValueError(f"shapes and devices must be equal: {self} and {other}")
        return other

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
