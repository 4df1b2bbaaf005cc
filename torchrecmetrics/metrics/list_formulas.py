"""Formulas of one list: popularity, novelty, diversity, calibration and others; their classes are in `of_lists`.

A formula of rows maps a `Ranking` to one value per row: float [B] for one cut-off, [K, B] for K of them. A row's list
is the l <= k items in its first `k` ranks; undefined values, mostly of empty lists, are NaN. A formula of all lists
maps a `Histogram` to a float scalar: c_i is the number of lists with item i, S the sum of all c_i, I the number of
items; it is NaN if no list holds an item. The classes document sources, other names and `attainable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, rowwise_isin, running_sums, sort_rows
from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.ranked_items import AnyCutoff, check_cutoffs, derived
from torchrecmetrics.core.ranking import Ranking

if TYPE_CHECKING:
    from torchrecmetrics.data.catalogue import Catalogue

Likeness: TypeAlias = Literal["categories", "embeddings"]
"""Similarity of two items: of their categories, or of the directions of their embeddings."""
Divergence: TypeAlias = Literal["kl", "js"]
"""Divergence of two distributions, in nats: Kullback-Leibler with the second smoothed, or Jensen-Shannon."""

__all__ = [
    "average_popularity",
    "calibration",
    "category_share",
    "intra_list_diversity",
    "invalid",
    "missing",
    "novelty",
    "popularity_lift",
    "repeats",
    "seen",
    "serendipity",
    "tail_share",
]


def average_popularity(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue) -> Tensor:
    """Mean popularity of the items in the list; >= 0."""
    return _mean_popularity(ranking, check_cutoffs(k), _on(ranking, catalogue))


def popularity_lift(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue) -> Tensor:
    """Mean popularity of the list / mean popularity of the row's history - 1; 0.5 is 50 % more popular.

    >= -1; NaN also for an empty history, and for one whose mean popularity is 0.
    """
    catalogue = _on(ranking, catalogue)
    return _mean_popularity(ranking, check_cutoffs(k), catalogue) / _history_popularity(ranking, catalogue) - 1


def novelty(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue, normalize: bool = False) -> Tensor:
    """Mean over the list of -log2(users of the item / all users); an item without users counts as an item of one user.

    0 to log2(all users); `normalize` divides by log2(all users), so that an item of one user has 1.
    """
    catalogue = _on(ranking, catalogue)
    mean = _mean(ranking, k, _values_of_items(ranking, catalogue.self_information))
    return mean / math.log2(max(catalogue.num_users, 1)) if normalize else mean  # at most one user: 0 / 0 is NaN


def tail_share(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue, head: float = 0.8) -> Tensor:
    """Share of the list outside the head, the fewest items that hold a share `head` of all interactions."""
    return _mean(ranking, k, _values_of_items(ranking, _on(ranking, catalogue).tail(head)))


def intra_list_diversity(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue, of: Likeness | None = None) -> Tensor:
    """1 - the mean similarity of all pairs of items in the list; NaN for fewer than two items.

    The similarity of two items is 1 for the same category and else 0, the product of their shares of categories, or the
    cosine of their embeddings. Pairs are not formed: each item's vector is multiplied by the sum of the vectors before
    it. `of`: "categories" or "embeddings", if the catalogue has both. 0 to 1, with embeddings to 2.
    """
    length = _length(ranking, check_cutoffs(k))
    total = 2 * _sum(ranking, k, _similarity_to_previous(ranking, _on(ranking, catalogue), _likeness(catalogue, of)))
    return (1 - total / (length * (length - 1))).clamp(min=0)


def category_share(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue) -> Tensor:
    """Distinct categories in the list / length of the list; at most 1 if every item has a single category."""
    return _mean(ranking, k, _new_categories(ranking, _on(ranking, catalogue)))


def serendipity(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue) -> Tensor:
    """Mean over the list of max(p - p', 0) for relevant items and 0 for other items; 0 to 1.

    p = (I + 1 - rank) / I is the item's likelihood by its rank in the list; p' is the same by its rank in popularity,
    which equally popular items share, and 0 for items without users.
    """
    return _mean(ranking, k, _serendipities(ranking, _on(ranking, catalogue)))


def calibration(ranking: Ranking, k: AnyCutoff, *, catalogue: Catalogue, divergence: Divergence = "kl") -> Tensor:
    """Divergence of the categories of the list, q, from the categories of the row's history, p.

    "kl": sum of p ln(p / q') with q' = 0.99 q + 0.01 p, 0 to ln 100; "js": mean of the KL divergences of p and of q
    from (p + q) / 2, 0 to ln 2. NaN also for an empty history.
    """
    check_choice("divergence", divergence, ("kl", "js"))
    cut = check_cutoffs(k)
    cutoffs = cut if isinstance(cut, tuple) else (cut,)
    pairs = _distributions(ranking, _on(ranking, catalogue), cutoffs)
    divergences = torch.cat([_divergence(p, q, divergence) for p, q in pairs], 1)
    return divergences if isinstance(cut, tuple) else divergences[0]


def seen(ranking: Ranking, k: AnyCutoff) -> Tensor:
    """Share of the items in the list that are also in the row's history; 0 to 1."""
    return _mean(ranking, k, rowwise_isin(ranking.items, history_of(ranking)))


def repeats(ranking: Ranking, k: AnyCutoff) -> Tensor:
    """Share of the first `k` entries of the list, as passed in, that repeat an earlier entry."""
    return _share_of_entries(ranking, k, ranking.listed().repeated)


def invalid(ranking: Ranking, k: AnyCutoff) -> Tensor:
    """Share of the first `k` generated codes, repeats included, that no item has; 0 for lists of items."""
    return _share_of_entries(ranking, k, ranking.listed().invalid)


def missing(ranking: Ranking, k: AnyCutoff) -> Tensor:
    """1 - l / k: share of the first `k` ranks that hold no item; 1 for an empty list."""
    return 1 - _length(ranking, check_cutoffs(k)) / ranking.cutoffs(k)


# ------------------------------------------------------------------------------------ helpers of row formulas


def _on(ranking: Ranking, catalogue: Catalogue) -> Catalogue:
    return catalogue.on(ranking.items.device)


@derived
def _length(ranking: Ranking, k: int | tuple[int, ...]) -> Tensor:
    """Return l, the number of items in the first `k` ranks, float [B] or [K, B]."""
    return _sum(ranking, k, _has_item(ranking))


@derived
def _num_entries(ranking: Ranking, k: int | tuple[int, ...]) -> Tensor:
    """Return the number of entries of the given list, without padding, at most `k`, float [B] or [K, B]."""
    number = ranking.entries.sum(1)
    return number.clamp(max=ranking.cutoffs(k)).to(float_dtype(number.device))


def _share_of_entries(ranking: Ranking, k: AnyCutoff, marked: Tensor | None) -> Tensor:
    """Return the share of the first `k` entries of the given list that are `marked`, bool [B, E] (None = none)."""
    cut = check_cutoffs(k)
    length = _num_entries(ranking, cut)
    if marked is None:
        return torch.zeros_like(length).masked_fill(length == 0, torch.nan)
    marked, numbers = marked & ranking.entries, ranking.entries.cumsum(1)  # padding is not numbered
    cutoffs = cut if isinstance(cut, tuple) else (cut,)
    num_marked = torch.stack([(marked & (numbers <= cutoff)).sum(1) for cutoff in cutoffs])
    return (num_marked if isinstance(cut, tuple) else num_marked[0]) / length


def _values_of_items(ranking: Ranking, table: Tensor) -> Tensor:
    """Look the listed items up in a table [I]; return [B, D], 0 at ranks without an item."""
    return _fill_empty_ranks(ranking, _lookup(table, _table_indices(ranking)))


@derived
def _table_indices(ranking: Ranking) -> Tensor:
    """Return the item ids with 0 at ranks without an item, so that a table can be indexed, int64 [B, D]."""
    return ranking.items.clamp(min=0)


@derived
def _is_empty_rank(ranking: Ranking) -> Tensor:
    """Return which ranks hold no item, bool [B, D]."""
    return ranking.items < 0


@derived
def _has_item(ranking: Ranking) -> Tensor:
    """Return 1 at ranks that hold an item and else 0, float [B, D]."""
    return (ranking.items >= 0).to(float_dtype(ranking.items.device))


def _fill_empty_ranks(ranking: Ranking, values: Tensor, nothing: float = 0) -> Tensor:
    """Replace values [B, D] by `nothing` at ranks without an item."""
    return values.masked_fill(_is_empty_rank(ranking), nothing)


def _lookup(table: Tensor, ids: Tensor) -> Tensor:
    """Return the entries or rows of a table at ids, in the shape of the ids, in half the time of `table[ids]`."""
    return table.index_select(0, ids.flatten()).view(*ids.shape, *table.shape[1:])


def _sum(ranking: Ranking, k: AnyCutoff, values: Tensor) -> Tensor:
    """Sum values [B, D] over the first `k` ranks: [B] or [K, B]."""
    k, last_column = check_cutoffs(k), values.shape[1] - 1
    sums = running_sums(values.to(float_dtype(values.device)))
    if isinstance(k, int):
        return sums[:, min(k - 1, last_column)]
    return torch.stack([sums[:, min(cutoff - 1, last_column)] for cutoff in k])


def _mean(ranking: Ranking, k: AnyCutoff, values: Tensor) -> Tensor:
    """Return the mean of values [B, D] over the list, [B] or [K, B]; values at ranks without an item must be 0."""
    return _sum(ranking, k, values) / _length(ranking, check_cutoffs(k))


@derived
def _mean_popularity(ranking: Ranking, k: int | tuple[int, ...], catalogue: Catalogue) -> Tensor:
    """Return the mean popularity of the list, float [B] or [K, B]."""
    return _mean(ranking, k, _values_of_items(ranking, catalogue.popularity))


@derived
def history_of(ranking: Ranking) -> Tensor:
    """Return each row's history in ascending order with `_NO_ITEM` as padding, int64 [B, H]; items may be repeated."""
    history = ranking.history
    return sort_rows(torch.where(history >= 0, history, _NO_ITEM))


_NO_ITEM = 2**62


@derived
def first_had(ranking: Ranking) -> Tensor:
    """Return which entries of `history_of` are the first occurrence of their item, bool [B, H]."""
    history = history_of(ranking)
    had = history < _NO_ITEM
    had[:, 1:].logical_and_(history[:, 1:] != history[:, :-1])
    return had


@derived
def _history_ids(ranking: Ranking) -> Tensor:
    """Return `history_of` with 0 in place of padding and repeats, so that a table can be indexed, int64 [B, H]."""
    return torch.where(first_had(ranking), history_of(ranking), 0)


@derived
def _history_sizes(ranking: Ranking) -> Tensor:
    """Return the number of distinct items in each history, float [B]."""
    return first_had(ranking).sum(1, dtype=float_dtype(ranking.items.device))


@derived
def _history_popularity(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Return the mean popularity of the history, float [B]; NaN if the mean is 0 or the history is empty."""
    popularity = torch.where(first_had(ranking), _lookup(catalogue.popularity, _history_ids(ranking)), 0)
    mean = popularity.sum(1, dtype=float_dtype(popularity.device)) / _history_sizes(ranking)
    return mean.masked_fill(mean == 0, torch.nan)


@derived
def hits_of(ranking: Ranking) -> Tensor:
    """Return which ranks hold a relevant item, bool [B, D]; arbitrary at ranks without an item."""
    return rowwise_isin(ranking.items, sort_rows(ranking.relevant_items))


@derived
def _serendipities(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Return max(p - p', 0) for each listed item, 0 if the item is not relevant, float [B, D]."""
    items = ranking.items
    padding_idx = ranking.options.get("padding_idx")
    padded = isinstance(padding_idx, int) and padding_idx < catalogue.num_items  # padding is not an item
    size = max(catalogue.num_items - padded, 1)
    place = torch.arange(1, items.shape[1] + 1, dtype=float_dtype(items.device), device=items.device)
    hits = _fill_empty_ranks(ranking, hits_of(ranking))
    popularity_place = _lookup(catalogue.popularity_rank, _table_indices(ranking)).clamp(
        max=size + 1
    )  # items without users: I + 1
    # (I + 1 - place) / I - (I + 1 - usual place) / I
    return torch.where(hits, ((popularity_place - place) / size).clamp(min=0), 0)


# ----------------------------------------------------------------------------------------- similarity of items


def _likeness(catalogue: Catalogue, of: Likeness | None) -> Likeness:
    """Return the similarity to use: `of`, or else the only similarity that the catalogue supports."""
    check_choice("of", of, (None, "categories", "embeddings"))
    if of is not None:
        return of
    if {"categories", "embeddings"} <= set(catalogue.known):
        raise ValueError(
            "the catalogue has categories and embeddings: pass of='categories' or of='embeddings', such as "
            "trm.IntraListDiversity(10, of='embeddings') in place of the name"
        )
    return "embeddings" if "embeddings" in catalogue.known else "categories"


@derived
def _similarity_to_previous(ranking: Ranking, catalogue: Catalogue, of: Likeness) -> Tensor:
    """Return the sum of each item's similarities to the items before it in the list, [B, D]."""
    if of == "categories" and catalogue.categories.dim() == 1:
        return _num_previous_of_category(ranking, catalogue)
    table = catalogue.categories if of == "categories" else catalogue.embeddings
    weights = _has_item(ranking) if of == "categories" else _values_of_items(ranking, catalogue.inverse_lengths)
    return _by_pieces(_table_indices(ranking), table, weights, _products_with_earlier)


def _products_with_earlier(vectors: Tensor) -> Tensor:
    """Return the product of each vector with the sum of the vectors before it: [b, C, D] -> [b, D]."""
    return (vectors * (_running(vectors) - vectors)).sum(1)


@derived
def _num_previous_of_category(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Count the items before each item that have its category code, int64 [B, D]; 0 at ranks without an item."""
    codes = _fill_empty_ranks(ranking, _codes(ranking, catalogue), -1)
    place = torch.arange(codes.shape[1], device=codes.device)
    bits = codes.shape[1].bit_length()
    keys = sort_rows((codes << bits) + place)  # by code, and by rank among equal codes
    num_before = place[1:] - _starts(keys >> bits)
    return _fill_empty_ranks(ranking, torch.zeros_like(codes).scatter_(1, keys[:, 1:] & ((1 << bits) - 1), num_before))


@derived
def _codes(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Return the category code of each listed item, int64 [B, D]; arbitrary at ranks without an item."""
    return _lookup(catalogue.categories, _table_indices(ranking))


def _starts(codes: Tensor) -> Tensor:
    """Return the index of the first equal code in its ascending row, for each entry but the first, int64 [B, W - 1]."""
    begins = codes[:, 1:] != codes[:, :-1]
    place = torch.arange(codes.shape[1], device=codes.device)
    return (place[1:] * begins).cummax(1).values


@derived
def _new_categories(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Count the categories of each item that no item before it in the list has, [B, D]."""
    if catalogue.categories.dim() == 1:
        return _fill_empty_ranks(ranking, _num_previous_of_category(ranking, catalogue) == 0)
    return _by_pieces(_table_indices(ranking), catalogue.categories, _has_item(ranking), _first_times)


def _first_times(shares: Tensor) -> Tensor:
    """Count, at each rank, the categories whose share is above 0 for the first time: [b, C, D] -> [b, D]."""
    has = (shares > 0).to(shares.dtype)
    return (has * (_running(has) == 1)).sum(1)


def _running(vectors: Tensor) -> Tensor:
    """Return the running sums of [b, C, D] along the last dimension."""
    return running_sums(vectors.flatten(0, 1)).view(vectors.shape)


def _pieces(rows: int, cells_per_row: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of rows, at least one, of at most 2^21 numbers (2^24 off the CPU) at `cells_per_row` per row."""
    size = max(1, 2 ** (21 if device.type == "cpu" else 24) // max(cells_per_row, 1))
    for start in range(0, max(rows, 1), size):
        yield slice(start, start + size)


def _vectors(items: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """Return the rows of a table [I, C] for items [b, D], times the items' weights, as columns: float [b, C, D]."""
    return (_lookup(table, items).to(weights.dtype) * weights[..., None]).transpose(1, 2)


def _by_pieces(items: Tensor, table: Tensor, weights: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to the `_vectors` of some rows at a time, to bound memory, and concatenate the results."""
    cells_per_row = items.shape[1] * table.shape[1]
    pieces = _pieces(len(items), cells_per_row, items.device)
    return torch.cat([function(_vectors(items[piece], table, weights[piece])) for piece in pieces])


def _distributions(ranking: Ranking, catalogue: Catalogue, k: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the categories of the history, p [b, C], and of the list, q [K, b, C], for slices of rows; NaN if empty."""
    items, history, device = _table_indices(ranking), _history_ids(ranking), ranking.items.device
    dtype, (rows, depth), width = float_dtype(device), items.shape, items.shape[1] + history.shape[1]
    weights, is_first, length = _has_item(ranking), first_had(ranking).to(dtype), _length(ranking, tuple(k))
    shares = catalogue.categories.dim() == 2
    cells_per_row = width * catalogue.num_categories if shares else len(k) * min(width, catalogue.num_categories)
    for piece in _pieces(rows, cells_per_row, device):
        piece_items, history_ids, weight, first_flags = items[piece], history[piece], weights[piece], is_first[piece]
        if shares:
            p = _vectors(history_ids, catalogue.categories, first_flags).sum(2)
            running = _running(_vectors(piece_items, catalogue.categories, weight))
            q = torch.stack([running[..., min(cutoff, depth) - 1] for cutoff in k])
        else:
            codes = _codes(ranking, catalogue)[piece], _lookup(catalogue.categories, history_ids)
            list_columns, history_columns, columns = _slots(*codes, catalogue.num_categories)
            tables = torch.zeros((1 + len(k), len(piece_items), columns), dtype=dtype, device=device)
            p, q = tables[0].scatter_add_(1, history_columns, first_flags), tables[1:]
            for table, cutoff in zip(q, k, strict=True):
                table.scatter_add_(1, list_columns[:, :cutoff], weight[:, :cutoff])
        yield p / _history_sizes(ranking)[piece, None], q / length[:, piece, None]


def _slots(list_codes: Tensor, history_codes: Tensor, categories: int) -> tuple[Tensor, Tensor, int]:
    """Return table columns of category codes [b, D] and [b, H], and the table's width, min(categories, D + H)."""
    depth, width = list_codes.shape[1], list_codes.shape[1] + history_codes.shape[1]
    if categories <= width:
        return list_codes, history_codes, categories
    in_order, order = torch.cat([list_codes, history_codes], 1).sort(1)
    slots = torch.zeros_like(order).scatter_(1, order[:, 1:], _starts(in_order))
    return slots[:, :depth], slots[:, depth:], width


def _divergence(p: Tensor, q: Tensor, divergence: Divergence) -> Tensor:
    """Return the divergence of q [K, b, C] from p [b, C]: [K, b]."""
    if divergence == "kl":
        return _kl(p, q, 0.99).clamp(min=0)
    return ((_kl(p, q, 0.5) + _kl(q, p, 0.5)) / 2).clamp(min=0)


# Smaller than any share of a list or history, yet large enough that a division by it does not overflow.
_LITTLE = 1e-30


def _kl(p: Tensor, q: Tensor, share: float) -> Tensor:
    """Return the KL divergence of p from `share` q + (1 - `share`) p, along the last dimension; 0 ln 0 is 0."""
    ratio = (1 - share) + share * (q / p.clamp(min=_LITTLE))
    return -(p * ratio.log()).sum(-1)
