"""Formulas of recommended lists (popularity, novelty, diversity, calibration, ...) and of item counts (coverage, Gini).

Those of rows map a `Ranking` to one value a row: [B] for one cut-off, [K, B] for several. A row's list is the items in
its first `k` places, l <= k of them; where nothing can be said, of an empty list most often, the value is NaN. Those of
all lists map a `Histogram` to one number: c_i is the number of lists with item i, S the sum of all c_i, I the number of
items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, rowwise_isin, running_sums, search, sort_rows
from torchrecmetrics.checks import check_choice, check_cutoffs
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.functional import Cutoffs, log2_discounts
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.data import derived

if TYPE_CHECKING:
    from torchrecmetrics.beyond.histograms import Histogram

Likeness: TypeAlias = Literal["categories", "embeddings"]
"""Similarity of two items: of their categories, or of the directions of their embeddings."""
Divergence: TypeAlias = Literal["kl", "js"]
"""How far two distributions are apart: Kullback-Leibler of the smoothed one, or Jensen-Shannon; natural logarithms."""
Discount: TypeAlias = Literal["log2"]
"""Discount of a rank: 1 / log2(1 + rank)."""

__all__ = [
    "average_popularity",
    "calibration",
    "category_share",
    "coverage",
    "entropy",
    "exposure_gini",
    "gini",
    "intra_list_diversity",
    "missing",
    "novelty",
    "personalization",
    "popularity_lift",
    "repeats",
    "seen",
    "serendipity",
    "tail_share",
]

# ------------------------------------------------------------------------------------------------- of the list of a row


def average_popularity(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue, normalize: bool = False) -> Tensor:
    """Mean popularity of the list; `normalize`: as a share of all interactions.

    Returns float [B] for one cut-off, [K, B] for K of them; >= 0, NaN for an empty list. Also called ARP, average
    recommendation popularity. Source: Yin et al., Challenging the long tail recommendation, 2012.
    """
    catalogue = _on(ranking, catalogue)
    found = _mean_popularity(ranking, check_cutoffs(k), catalogue)
    return found / catalogue.total_popularity if normalize else found


def popularity_lift(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue) -> Tensor:
    """Mean popularity of the list over that of the row's history, less 1: 0.5 is half as popular again.

    Returns float [B] for one cut-off, [K, B] for K of them; >= -1, NaN for an empty list, and where the history holds
    nothing or nothing popular. Source: Abdollahpouri et al., The unfairness of popularity bias in recommendation, 2019
    (there of the means over groups of users).
    """
    catalogue = _on(ranking, catalogue)
    return _mean_popularity(ranking, check_cutoffs(k), catalogue) / _usual_popularity(ranking, catalogue) - 1


def novelty(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue, normalize: bool = False) -> Tensor:
    """Mean of -log2(users of the item / all users), an item without users counting as that of one user.

    `normalize`: over log2(all users), 1 for an item of one user. Returns float [B] for one cut-off, [K, B] for K of
    them; 0 to log2(all users), NaN for an empty list. Also called self-information, surprisal, mean inverse user
    frequency.
    Source: Zhou et al., Solving the apparent diversity-accuracy dilemma of recommender systems, 2010.
    """
    catalogue = _on(ranking, catalogue)
    found = _mean(ranking, k, _of_items(ranking, catalogue.self_information))
    return found / math.log2(max(catalogue.num_users, 1)) if normalize else found  # of one user at most: 0 / 0


def tail_share(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue, head: float = 0.8) -> Tensor:
    """Share of the list outside the head: the fewest items that hold this share of all interactions.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN for an empty list. Also called APLT, average
    percentage of long-tail items. Source: Abdollahpouri et al., Managing popularity bias in recommender systems with
    personalized re-ranking, 2019.
    """
    return _mean(ranking, k, _of_items(ranking, _on(ranking, catalogue).tail(head)))


def intra_list_diversity(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue, of: Likeness | None = None) -> Tensor:
    """1 - the mean over pairs of items in the list of how alike they are.

    Two items are alike by 1 if they have the same category and else by 0, by the product of their shares of categories,
    or by the cosine of their embeddings. No pair is formed: an item adds its product with the sum of those
    before it. `of`: which of the two, where the catalogue has both. Returns float [B] for one cut-off, [K, B] for K of
    them; 0 to 1, with embeddings to 2; NaN for fewer than two items. Also called ILD, 1 - intra-list similarity.
    Source: Ziegler et al., Improving recommendation lists through topic diversification, 2005.
    """
    length = _length(ranking, k)
    alike = 2 * _sum(ranking, k, _alike_before(ranking, _on(ranking, catalogue), _likeness(catalogue, of)))
    return (1 - alike / (length * (length - 1))).clamp(min=0)


def category_share(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue) -> Tensor:
    """Distinct categories in the list / its length.

    Returns float [B] for one cut-off, [K, B] for K of them; above 0, and to 1 where an item has one category; NaN for
    an empty list. Also called categorical diversity.
    """
    return _mean(ranking, k, _new_categories(ranking, _on(ranking, catalogue)))


def serendipity(ranking: Ranking, k: Cutoffs, *, catalogue: Catalogue) -> Tensor:
    """Mean over places of max(p - p', 0) where the item is relevant, else 0.

    p = (I + 1 - place) / I is how likely its place makes the item; p' is the same of its place in the order of
    popularity, where equals share one, and 0 for items without users. Returns float [B] for one cut-off, [K, B] for K
    of them; 0 to 1, NaN for an empty list. Source: RecTools 0.19, whose code divides by the length of the list.
    """
    return _mean(ranking, k, _serendipities(ranking, _on(ranking, catalogue)))


def calibration(
    ranking: Ranking,
    k: Cutoffs,
    *,
    catalogue: Catalogue,
    divergence: Divergence = "kl",
    discount: Discount | None = None,
) -> Tensor:
    """How far the categories of the list, q, are from those of the row's history, p.

    "kl": sum of p ln(p / q') with q' = 0.99 q + 0.01 p; "js": half of KL from their middle, of p and of q. `discount`:
    places of the list count 1 / log2(1 + place) in q. Returns float [B] for one cut-off, [K, B] for K of them; 0 to
    ln 100 or ln 2, NaN for an empty list or history. Also called miscalibration. Source: Steck, Calibrated
    recommendations, 2018.
    """
    check_choice("divergence", divergence, ("kl", "js"))
    check_choice("discount", discount, (None, "log2"))
    catalogue = _on(ranking, catalogue)
    cut = check_cutoffs(k)
    cutoffs = cut if isinstance(cut, tuple) else (cut,)
    pieces = [_apart(p, q, divergence) for p, q in _distributions(ranking, catalogue, cutoffs, discount)]
    found = torch.cat(pieces, 1)
    return found if isinstance(cut, tuple) else found[0]


def seen(ranking: Ranking, k: Cutoffs) -> Tensor:
    """Share of the list that stands in the row's history.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN for an empty list.
    """
    return _mean(ranking, k, rowwise_isin(ranking.items, history_of(ranking)))


def repeats(ranking: Ranking, k: Cutoffs) -> Tensor:
    """Share of the first `k` entries of the list, as it was handed in, that hold an item which stands before them.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN for an empty list.
    """
    lists = ranking.listed()
    if lists.repeated is None:
        length = _length(ranking, k) if lists.stays is None else _limited(ranking, ranking.entries.sum(1), k)
        return torch.zeros_like(length) / length
    entries, repeated = ranking.entries.cumsum(1), ranking.repeated.to(float_dtype(ranking.items.device))
    length = _limited(ranking, entries[:, -1], k)
    last = search(entries, length.T.contiguous() if length.dim() == 2 else length[:, None])
    found = torch.nn.functional.pad(running_sums(repeated), (1, 0)).gather(1, (last + 1).clamp(max=entries.shape[1]))
    return found.T / length if length.dim() == 2 else found[:, 0] / length


def missing(ranking: Ranking, k: Cutoffs) -> Tensor:
    """1 - l / k: share of the first `k` places that hold no item.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, and 1 for an empty list.
    """
    return 1 - _length(ranking, k) / ranking.cutoffs(k)


# ----------------------------------------------------------------------------------------------------- of all the lists


def coverage(histogram: Histogram, k: int) -> Tensor:
    """Share of all items that stand in the first `k` places of a list: #{c_i > 0} / I.

    Returns float, scalar; above 0 and to 1, NaN if no list holds an item. Also called catalogue coverage, aggregate
    diversity (as a number). Source: Ge, Delgado-Battenfeld & Jannach, Beyond accuracy, 2010.
    """
    counts = histogram.counts
    found = (counts > 0).sum().to(float_dtype(counts.device))
    return (found / counts.shape[0]).masked_fill(found == 0, torch.nan)


def gini(histogram: Histogram, k: int) -> Tensor:
    """Gini coefficient of c, in ascending order: sum of (2 j - I - 1) c_(j) / (I S).

    Returns float, scalar; 0 where all items stand in as many lists, (I - 1) / I where one stands in all; NaN if no list
    holds an item. Source: Fleder & Hosanagar, Blockbuster culture's next rise or fall, 2009.
    """
    return _gini(histogram.ascending)


def entropy(histogram: Histogram, k: int) -> Tensor:
    """Entropy of the items' shares of all entries: -sum of p log2 p with p = c_i / S.

    Returns float, scalar; 0 to log2 I bits, NaN if no list holds an item. Also called Shannon entropy. Source: Szlávik,
    Kowalczyk & Schut, Diversity measurement of recommender systems under different user choice models, 2011.
    """
    shares = histogram.counts.to(float_dtype(histogram.counts.device)) / histogram.total
    nats: Tensor = torch.special.entr(shares).sum()
    return nats / math.log(2)


def personalization(histogram: Histogram, k: int) -> Tensor:
    """1 - items that two lists share, over those they could share, both summed over all pairs of lists.

    Item i is shared by c_i (c_i - 1) / 2 pairs; lists of a and b items could share min(a, b), which is one for each
    length that both reach. Returns float, scalar; 0 to 1, NaN for fewer than two lists that hold an item. Also called
    inter-list diversity. Source: Zhou et al., Solving the apparent diversity-accuracy dilemma of recommender systems,
    2010 (there the mean over pairs of lists of one length).
    """
    dtype = float_dtype(histogram.counts.device)
    counts = histogram.counts.to(dtype)
    reached = histogram.lengths[1:].flip(0).cumsum(0).to(dtype)  # lists of at least k, k - 1, ..., 1 items
    return 1 - (counts * (counts - 1)).sum() / (reached * (reached - 1)).sum()


def exposure_gini(histogram: Histogram, k: int) -> Tensor:
    """Gini coefficient of the items' exposure, the sum of 1 / log2(1 + place) over the lists in which they stand.

    Returns float, scalar; as `gini`. Source: Diaz et al., Evaluating stochastic rankings with expected exposure, 2020
    (the exposure); LensKit (its Gini).
    """
    assert histogram.exposure is not None
    return _gini(histogram.exposure.sort().values)


def _gini(counts: Tensor) -> Tensor:
    """Of counts in ascending order."""
    dtype, items = float_dtype(counts.device), counts.shape[0]
    place = 2 * torch.arange(items, dtype=dtype, device=counts.device) + (1 - items)  # 2 j - I - 1
    values = counts.to(dtype)
    return ((place * values).sum() / (items * values.sum())).clamp(min=0)


# ------------------------------------------------------------------------------------ helpers of row formulas


def _on(ranking: Ranking, catalogue: Catalogue) -> Catalogue:
    return catalogue.on(ranking.items.device)


@derived
def _lengths(ranking: Ranking) -> Tensor:
    """Items of each list, however long, int64 [B]."""
    return (ranking.items >= 0).sum(1)


def _length(ranking: Ranking, k: Cutoffs) -> Tensor:
    """l, float [B] or [K, B]."""
    return _length_at(ranking, check_cutoffs(k))


@derived
def _length_at(ranking: Ranking, k: int | tuple[int, ...]) -> Tensor:
    return _limited(ranking, _lengths(ranking), k).to(float_dtype(ranking.items.device))


def _limited(ranking: Ranking, length: Tensor, k: Cutoffs) -> Tensor:
    limited: Tensor = length.clamp(max=ranking.cutoffs(k))
    return limited


def _of_items(ranking: Ranking, table: Tensor) -> Tensor:
    """Look the items up in a table [I], [B, D]; 0 where there is none."""
    return _emptied(ranking, _at(table, _known(ranking)))


@derived
def _known(ranking: Ranking) -> Tensor:
    """Items that can be looked up, int64 [B, D]."""
    return ranking.items.clamp(min=0)


@derived
def _none(ranking: Ranking) -> Tensor:
    """Places without an item, bool [B, D]."""
    return ranking.items < 0


@derived
def _there(ranking: Ranking) -> Tensor:
    """1 where a place holds an item and else 0, float [B, D]."""
    return (ranking.items >= 0).to(float_dtype(ranking.items.device))


def _emptied(ranking: Ranking, values: Tensor, nothing: float = 0) -> Tensor:
    """Put `nothing` where a place of [B, D] holds no item."""
    return values.masked_fill(_none(ranking), nothing)


def _at(table: Tensor, ids: Tensor) -> Tensor:
    """Entries or rows of a table, in the shape of their ids, in a half of the time of `table[ids]`."""
    return table.index_select(0, ids.flatten()).view(*ids.shape, *table.shape[1:])


def _sum(ranking: Ranking, k: Cutoffs, values: Tensor) -> Tensor:
    """Sum of values [B, D] over the first `k` places, [B] or [K, B]."""
    k, last = check_cutoffs(k), values.shape[1] - 1
    sums = running_sums(values.to(float_dtype(values.device)))
    if isinstance(k, int):
        return sums[:, min(k - 1, last)]
    return torch.stack([sums[:, min(cutoff - 1, last)] for cutoff in k])


def _mean(ranking: Ranking, k: Cutoffs, values: Tensor) -> Tensor:
    """Mean over the list of values [B, D] that are 0 behind its end, [B] or [K, B]."""
    return _sum(ranking, k, values) / _length(ranking, k)


@derived
def _mean_popularity(ranking: Ranking, k: int | tuple[int, ...], catalogue: Catalogue) -> Tensor:
    """Mean popularity of the list, float [B] or [K, B]."""
    return _mean(ranking, k, _of_items(ranking, catalogue.popularity))


@derived
def history_of(ranking: Ranking) -> Tensor:
    """Sort the user's history, with `_NO_ITEM` behind it, int64 [B, H]; an item may stand there twice."""
    history = ranking.history
    return sort_rows(torch.where(history >= 0, history, _NO_ITEM))


_NO_ITEM = 2**62


@derived
def first_had(ranking: Ranking) -> Tensor:
    """Which entries of `history_of` hold an item for the first time, bool [B, H]."""
    history = history_of(ranking)
    had = history < _NO_ITEM
    had[:, 1:].logical_and_(history[:, 1:] != history[:, :-1])
    return had


@derived
def _had(ranking: Ranking) -> Tensor:
    """Items of `history_of` that can be looked up, int64 [B, H]."""
    return torch.where(first_had(ranking), history_of(ranking), 0)


@derived
def _num_had(ranking: Ranking) -> Tensor:
    """Items of each history, float [B]."""
    return first_had(ranking).sum(1, dtype=float_dtype(ranking.items.device))


@derived
def _usual_popularity(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Mean popularity of the history, float [B]; NaN if it is 0 or there is none."""
    popularity = torch.where(first_had(ranking), _at(catalogue.popularity, _had(ranking)), 0)
    mean = popularity.sum(1, dtype=float_dtype(popularity.device)) / _num_had(ranking)
    return mean.masked_fill(mean == 0, torch.nan)


@derived
def hits_of(ranking: Ranking) -> Tensor:
    """Which places hold a relevant item, bool [B, D]; anything where there is none."""
    return rowwise_isin(ranking.items, sort_rows(ranking.relevant_items))


@derived
def _serendipities(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """max(p - p', 0) of each place, 0 where the item is not relevant, float [B, D]."""
    items = ranking.items
    padding_idx = ranking.made_with.get("padding_idx")
    padded = isinstance(padding_idx, int) and padding_idx < catalogue.num_items  # that one is no item
    size = max(catalogue.num_items - padded, 1)
    place = torch.arange(1, items.shape[1] + 1, dtype=float_dtype(items.device), device=items.device)
    hits = _emptied(ranking, hits_of(ranking))
    usual = _at(catalogue.popularity_rank, _known(ranking))
    # (I + 1 - place) / I - (I + 1 - usual place) / I
    return torch.where(hits, ((usual - place) / size).clamp(min=0), 0)


# ----------------------------------------------------------------------------------------- similarity of items


def _likeness(catalogue: Catalogue, of: Likeness | None) -> Likeness:
    """Return the similarity that the catalogue supports."""
    check_choice("of", of, (None, "categories", "embeddings"))
    if of is not None:
        return of
    if {"categories", "embeddings"} <= set(catalogue.known):
        raise ValueError("the catalogue has categories and embeddings: of='categories' or of='embeddings' says which")
    return "embeddings" if "embeddings" in catalogue.known else "categories"


@derived
def _alike_before(ranking: Ranking, catalogue: Catalogue, of: Likeness) -> Tensor:
    """How alike each item is to those before it, in sum: [B, D]."""
    if of == "categories" and catalogue.categories.dim() == 1:
        return _same_before(ranking, catalogue)
    table = catalogue.categories if of == "categories" else catalogue.embeddings
    weights = _there(ranking) if of == "categories" else _of_items(ranking, catalogue.inverse_lengths)
    return _by_pieces(_known(ranking), table, weights, _products)


def _products(vectors: Tensor) -> Tensor:
    """Product of each with the sum of those before it: [b, C, D] -> [b, D]."""
    return (vectors * (_running(vectors) - vectors)).sum(1)


@derived
def _same_before(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """How many items before each have its category code, int64 [B, D]; 0 where there is none."""
    codes = _emptied(ranking, _codes(ranking, catalogue), -1)
    place = torch.arange(codes.shape[1], device=codes.device)
    bits = codes.shape[1].bit_length()
    keys = sort_rows((codes << bits) + place)  # by code, and by place among equal ones
    before = place[1:] - _starts(keys >> bits)
    return _emptied(ranking, torch.zeros_like(codes).scatter_(1, keys[:, 1:] & ((1 << bits) - 1), before))


@derived
def _codes(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """Category code of each item, int64 [B, D]; anything where there is none."""
    return _at(catalogue.categories, _known(ranking))


def _starts(codes: Tensor) -> Tensor:
    """For each entry of ascending rows but the first where the run of equal ones begins, int64 [B, W - 1]."""
    begins = codes[:, 1:] != codes[:, :-1]
    place = torch.arange(codes.shape[1], device=codes.device)
    return (place[1:] * begins).cummax(1).values


@derived
def _new_categories(ranking: Ranking, catalogue: Catalogue) -> Tensor:
    """How many categories each item has that none before it had, [B, D]."""
    if catalogue.categories.dim() == 1:
        return _emptied(ranking, _same_before(ranking, catalogue) == 0)
    return _by_pieces(_known(ranking), catalogue.categories, _there(ranking), _first_times)


def _first_times(shares: Tensor) -> Tensor:
    """How many rows of [b, C, D] are above 0 for the first time at each place: [b, D]."""
    has = (shares > 0).to(shares.dtype)
    return (has * (_running(has) == 1)).sum(1)


def _running(vectors: Tensor) -> Tensor:
    """Add up along the last dimension of [b, C, D]."""
    return running_sums(vectors.flatten(0, 1)).view(vectors.shape)


def _pieces(rows: int, cells_per_row: int, device: torch.device) -> Iterator[slice]:
    """Cut rows into slices of at most 2^21 numbers (2^24 off the CPU), `each` of them a row; one slice at least."""
    size = max(1, 2 ** (21 if device.type == "cpu" else 24) // max(cells_per_row, 1))
    for first in range(0, max(rows, 1), size):
        yield slice(first, first + size)


def _vectors(items: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """Rows of a table [I, C] for items [b, D], times their weights, beside one another: float [b, C, D]."""
    return (_at(table, items).to(weights.dtype) * weights[..., None]).transpose(1, 2)


def _by_pieces(items: Tensor, table: Tensor, weights: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to `_vectors`, some rows at a time, whose number is bounded."""
    cells_per_row = items.shape[1] * table.shape[1]
    pieces = _pieces(len(items), cells_per_row, items.device)
    return torch.cat([function(_vectors(items[piece], table, weights[piece])) for piece in pieces])


def _distributions(
    ranking: Ranking, catalogue: Catalogue, k: Sequence[int], discount: Discount | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Categories of history, p [b, C], and list, q [K, b, C], some rows at a time; NaN where there is none."""
    items, history, device = _known(ranking), _had(ranking), ranking.items.device
    dtype, (rows, depth), width = float_dtype(device), items.shape, items.shape[1] + history.shape[1]
    weights, first = _there(ranking), first_had(ranking).to(dtype)
    if discount:
        weights = weights * log2_discounts(depth, dtype, device)
    length = _sum(ranking, k, weights) if discount else _length(ranking, k)
    shares = catalogue.categories.dim() == 2
    cells_per_row = width * catalogue.num_categories if shares else len(k) * min(width, catalogue.num_categories)
    for piece in _pieces(rows, cells_per_row, device):
        piece_items, usual, weight, once = items[piece], history[piece], weights[piece], first[piece]
        if shares:
            p = _vectors(usual, catalogue.categories, once).sum(2)
            running = _running(_vectors(piece_items, catalogue.categories, weight))
            q = torch.stack([running[..., min(cutoff, depth) - 1] for cutoff in k])
        else:
            codes = _codes(ranking, catalogue)[piece], _at(catalogue.categories, usual)
            listed, had, columns = _slots(*codes, catalogue.num_categories)
            tables = torch.zeros((1 + len(k), len(piece_items), columns), dtype=dtype, device=device)
            p, q = tables[0].scatter_add_(1, had, once), tables[1:]
            for table, cutoff in zip(q, k, strict=True):
                table.scatter_add_(1, listed[:, :cutoff], weight[:, :cutoff])
        yield p / _num_had(ranking)[piece, None], q / length[:, piece, None]


def _slots(codes: Tensor, others: Tensor, categories: int) -> tuple[Tensor, Tensor, int]:
    """Where the categories of codes [b, D] and [b, H] stand in a table, and its width: of D + H, if they are more."""
    depth, width = codes.shape[1], codes.shape[1] + others.shape[1]
    if categories <= width:
        return codes, others, categories
    in_order, order = torch.cat([codes, others], 1).sort(1)
    slots = torch.zeros_like(order).scatter_(1, order[:, 1:], _starts(in_order))
    return slots[:, :depth], slots[:, depth:], width


def _apart(p: Tensor, q: Tensor, divergence: Divergence) -> Tensor:
    """How far q [K, b, C] is from p [b, C], [K, b]."""
    if divergence == "kl":
        return _kl(p, q, 0.99).clamp(min=0)
    return ((_kl(p, q, 0.5) + _kl(q, p, 0.5)) / 2).clamp(min=0)


# Less than any share of a list or history, and not so small that a division by it overflows.
_LITTLE = 1e-30


def _kl(p: Tensor, q: Tensor, share: float) -> Tensor:
    """Kullback-Leibler divergence of `share` q + (1 - `share`) p from p, along the last dimension; 0 ln 0 is 0."""
    ratio = (1 - share) + share * (q / p.clamp(min=_LITTLE))
    return -(p * ratio.log()).sum(-1)
