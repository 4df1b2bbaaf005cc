"""Judges of data that looks as if it meant something else: each returns a question, or None."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import working
from torchrecmetrics.core.checks import shown

Numbers: TypeAlias = Sequence[Sequence[float]]
"""Numbers of each batch."""


def all_zero_or_one(values: Tensor) -> bool:
    """Return True if all values are 0 or 1; waits for the device."""
    return bool(((values == 0) | (values == 1)).all())


def flags_as_ranks(ranks: Tensor) -> str | None:
    """Judge ranks [B, T] that are all 0 or 1, with two 1s in a row."""
    if not ranks.numel() or [end.item() for end in ranks.aminmax()] != [0, 1] or int((ranks == 1).sum(1).max()) < 2:
        return None
    row = int((ranks == 1).sum(1).argmax())
    return (
        f"ranks that are all 0 or 1 look like flags of hits (row {row} is {shown(ranks[row])}): pass Hits(flags, "
        "num_relevant=), or the lists themselves, Lists(item_ids, target)"
    )


def ids_as_ranks(ranks: Tensor, k: int) -> str | None:
    """Judge integer ranks [B, T] that are large, or hold a single 0 per row in any column, as lists of item ids do."""
    if not len(ranks) or ranks.shape[1] < max(k, 5):
        return None
    lowest, highest = (end.item() for end in ranks.aminmax())
    large = highest > 10 * ranks.shape[1]
    if not large and (lowest != 0 or len(ranks) < 32 or int((ranks == 0).any(0).sum()) < 3):
        return None
    if int((ranks <= 0).sum(1).max()) > 1:
        return None  # padded ranks have many zeros
    return (
        f"integers without a target are ranks, and these, {shown(ranks[0])}, look like item ids: lists of item ids are "
        "Lists(item_ids, target), ranks of the whole list Ranks(ranks), ranks that start at 0 Ranks(ranks, "
        "zero_based=True)"
    )


def found_as_relevant(batches: Numbers) -> str | None:
    """Judge [rows whose hits are all relevant items, rows without a relevant item, rows] of `Hits` in batches."""
    complete, none, rows = (sum(column) for column in zip(*batches, strict=True))
    if rows < 500 or complete < rows or none < 0.1 * rows:
        return None
    return (
        f"in all of {int(rows)} rows num_relevant is the number of hits, and {int(none)} have none: num_relevant of "
        "Hits is the number of relevant items, found or not, such as target.ge(0).sum(1)"
    )


def zero_padding(ids: Tensor) -> str | None:
    """Judge target ids [B, T] in which 0 stands in the last column alone, in 20 % of the rows."""
    zeros = ids == 0
    if len(ids) < 32 or zeros[:, -1].float().mean() < 0.2 or zeros[:, :-1].any() or (ids < 0).any():
        return None
    if (ids[:, 1:] < ids[:, :-1]).all():
        return None  # ids in descending order end with 0
    return (
        f"item 0 stands in the last column of target alone, in {int(zeros[:, -1].sum())} of {len(ids)} rows: if it is "
        "padding, pad with -1, or pass padding_idx=0; ids that start at 1 are columns from 0, target - 1"
    )


def matrix_of_two(ids: Tensor) -> str | None:
    """Judge integer target [B, 2] beside 2 items that holds 0 and 1 in both orders."""
    if len(ids) < 8 or not all_zero_or_one(ids) or not (ids[:, 0] > ids[:, 1]).any():
        return None
    return (
        "target of shape [B, 2] beside 2 items looks like a 0/1 matrix: pass target.bool(); as item ids both items are "
        "relevant, target.sort(1).values"
    )


def flags_beside_lists(scores: Tensor) -> str | None:
    """Judge scores beside a bool target that fall along every row, each row in its own way, as those of lists do."""
    if len(scores) < 8 or scores.shape[1] < 5 or not (scores[:, 1:] <= scores[:, :-1]).all():
        return None
    wide = working(scores).nan_to_num(neginf=0)
    shape = (wide - wide.mean(1, keepdim=True)) / wide.std(1, keepdim=True).clamp(min=1e-30)
    if (shape - shape[0]).abs().max() < 0.05:
        return None  # one order of items for all rows, such as popularity
    return (
        "scores fall along every row, as those of lists do, and a bool target beside scores has a column per item of "
        "the catalogue: flags of hits in lists are Hits(flags, num_relevant=), lists Lists(item_ids, target)"
    )


def swapped_scores(scores: Tensor, labels: Tensor) -> str | None:
    """Judge scores that are all 0 and 1 beside labels with fractions."""
    if scores.numel() < 8 or not all_zero_or_one(scores[:1]) or not all_zero_or_one(scores):
        return None  # most scores by their first row
    if scores.min() == scores.max() or not (labels != labels.floor()).any():
        return None
    if (labels == 0).float().mean() > 0.1:
        return None  # labels, many of which are not relevant, beside scores of a rule
    return (
        "scores are all 0 or 1, and the labels beside them have fractions: are the two swapped? update(scores, target),"
        " Sessions(scores, labels, indexes)"
    )


def masked_by_number(scores: Tensor) -> str | None:
    """Judge scores whose lowest value is far below all others, the same in half of the rows."""
    if not scores.numel() or not scores.min() < -1000:
        return None
    finite = working(scores).nan_to_num(neginf=torch.inf)  # -inf removes items
    low = float(finite.min())
    if low > -1000:
        return None
    rest = finite.where(finite > low, torch.inf)
    highest, above = float(scores.max()), float(rest.min())
    at_low = (finite == low).any(1)
    if above == torch.inf or above - low <= 100 * max(highest - above, 1e-9) or at_low.float().mean() < 0.5:
        return None
    return (
        f"score {low:g} in {int(at_low.sum())} of {len(scores)} rows is far below all others, {above:g} to "
        f"{highest:g}: items with a score are candidates, which metrics of the whole list count; removed items score "
        "-torch.inf, or are given as exclude="
    )


def shifted_candidates(absent: Tensor, ids: Tensor, items: Tensor) -> str | None:
    """Judge targets [B, T] that mostly are no candidates: one id in all rows, or beside a candidate in nearly all."""
    target = ids[:, :1][ids[:, 0] >= 0]
    if len(target) < 32 or absent[:, 0].sum() <= 0.5 * len(target):
        return None
    start = f"{int(absent[:, 0].sum())} of {len(target)} targets are no candidates, "
    items = items if items.dim() == 1 else items[ids[:, 0] >= 0]
    if (target == target[0]).all() and int(target[0]) < items.shape[-1]:
        return (
            f"{start}and all are item {int(target[0])}: target beside candidates is item ids, not columns; of the "
            "candidate in column 0 items[:, 0]"
        )
    for shift in (1, -1):
        if (items == target + shift).any(1).float().mean() >= 0.9:
            return f"{start}but target {'+' if shift > 0 else '-'} 1 is: do ids of one of the two start at 1?"
    return None


def shifted_codes(codes: Any, beams: Tensor, given: Tensor, items: Tensor) -> str | None:
    """Judge beams [B, K, L] that mostly are codes of 0 `items` [B, K], and of items if they are shifted."""
    number = given.count_nonzero()
    if number < 32 or items.count_nonzero() >= 0.05 * number:
        return None
    known = beams[given]
    size = int(codes.codes.max()) + 1
    offsets = torch.arange(beams.shape[-1], device=beams.device) * size
    by_level = f"{size} * torch.arange({len(offsets)})"
    for cure, offset in ((by_level, offsets), ("1", 1), (f"1 - {by_level}", offsets + 1)):
        share = float((codes.look_up(known - offset).size > 0).float().mean())
        if share >= 0.5:
            return (
                f"of {len(known)} beams hardly any is the code of an item, but {share:.0%} of beams - {cure} are: "
                "beams are codes as in SemanticIds, without offsets of tokens"
            )
    return None


def codes_as_rows(codes: Any, target: Tensor) -> str | None:
    """Judge item row numbers [B, L] whose rows are codes of items."""
    if len(target) < 8 or (codes.look_up(target).size > 0).float().mean() < 0.95:
        return None
    return f"target holds codes, such as {shown(target[0])}, where item row numbers are read: pass target_codes="


def relevant_entries(batches: Numbers) -> str | None:
    """Judge [lowest label, highest label, rows, entries, 1 = metrics read gains alone] of sessions or dense targets."""
    lowest, highest, sessions, entries, graded = zip(*batches, strict=True)
    rows, further = sum(sessions), sum(entries) - sum(sessions)
    if rows >= 20 and not further:
        return f"each of {rows} sessions has one entry, which always is first: indexes are the sessions of entries"
    if min(lowest) <= 0 or rows < 20 or further < 20:
        return None
    if all(graded) and min(lowest) < max(highest):
        return None
    return (
        f"every entry of {rows} rows is relevant, with labels {min(lowest):g} to {max(highest):g}: labels "
        "> 0 are relevant, others are 0, such as (labels >= 4) of ratings, labels - 1 of 1 and 2"
    )


def numbers_within(indexes: Tensor) -> str | None:
    """Judge session ids [E] that count 0, 1, 2, ... again and again, in runs of unequal lengths."""
    starts = (indexes == 0).nonzero()[:, 0]
    if len(indexes) < 16 or len(starts) < 4 or indexes.max() < 2 or indexes[0] != 0:
        return None
    if not ((indexes[1:] == 0) | (indexes[1:] == indexes[:-1] + 1)).all():
        return None
    lengths = starts.diff()
    if not (lengths[1:] > lengths[:-1]).any():
        return None  # one entry of each session in turn, of fewer and fewer sessions
    return (
        f"session ids run {shown(indexes)}, from 0 in every run: entries numbered within their session? indexes is the "
        "session of each entry; lengths= the number of entries of each session"
    )


def cut_sessions(batches: Numbers) -> str | None:
    """Judge [descents, first id, last id] of ascending batches; the last session of three is the first of the next."""
    if any(descents for descents, _, _ in batches):
        return None
    ends = [(last, first) for (_, _, last), (_, first, _) in pairwise(batches)]
    again = sum(last == first for last, first in ends)
    if again < 3 or any(first < last for last, first in ends) or any(first == last for _, first, last in batches):
        return None
    return (
        f"the last session of a batch is the first of the next one {again} times: sessions that go on in later batches "
        "are collected by trm.CollectSessions(metrics), Sessions are whole in a batch"
    )


def renumbered_sessions(batches: Numbers) -> str | None:
    """Judge [steps that are not 0 or 1, first id, last id, relevant entries, sum of ids, entries] of batches."""
    if len(batches) < 2 or any(steps or first or not last for steps, first, last, *_ in batches):
        return None
    numbers = {last for _, _, last, *_ in batches}
    one_each = all(relevant == last + 1 for _, _, last, relevant, *_ in batches)
    uneven = sum(2 * total != entries * last for _, _, last, _, total, entries in batches)
    if len(numbers) == 1 and not one_each and uneven < 2:
        return None  # chunks of items, the same sessions in each
    return (
        f"session ids begin at 0 in each of {len(batches)} batches, and equal ids are one session: number sessions "
        "over all batches, or, where they are whole in a batch, update(Sessions(...)) of the collection"
    )


def pools_of_rows(batches: Numbers) -> str | None:
    """Judge [positives, negatives of the pool] of batches: a pool that grows with the number of positives."""
    ratios, rows = {pool / rows for rows, pool in batches}, {rows for rows, _ in batches}
    ratio = ratios.pop()
    if ratios or len(rows) < 2 or ratio < 2 or ratio != int(ratio):
        return None
    return (
        f"each pool of negatives is {int(ratio)} times as long as its positives: negatives of each row's own are "
        f"negative.view(-1, {int(ratio)}); a pool that all rows share says pool=True"
    )
