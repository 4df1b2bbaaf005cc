"""Questions about odd data: functions of a `Sample` that return a sentence with its cure, or None; and their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES, shown
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranking import Ranking

SampleQuestion: TypeAlias = "Callable[[Sample], str | None]"

MIN_ROWS = 32  # of a batch, entries of sessions, or beams
SAMPLE_ROWS, SAMPLE_COLUMNS = 64, 4096  # of the batch that are read
MAX_TIED = 0.5  # share of rows
LOW_SCORE, LOW_GAP = -1000, 100  # scores that remove items: maximum; distance from others, in ranges of either group
LOW_ROWS, LOW_SCORES = 0.1, 8  # share of rows that hold such scores, and their number
PADDED_ROWS, MIN_ITEMS = 0.2, 10  # share of rows with 0 at the end; size of a catalogue in which no item is in all rows
FALLING_COLUMNS, FALLING_DIFFERENCE = 5, 0.05  # for scores of lists; standard deviations between rows
ZERO_LABELS = 0.1  # share of zeros from which numbers are taken as labels
MIN_RUNS = 4  # of numbers within sessions
EMPTY_ROWS, LATE_HITS = 0.1, 5  # of lists that hold all relevant items: share, number in the second half
ABSENT, SHIFTED = 0.5, 0.9  # share of targets that are not candidates, and that are if shifted by 1
CODES, MORE_CODES, ROW_CODES = 0.5, 0.2, 0.95  # share of beams with an item; its rise by a shift; share of row numbers


class Sample(NamedTuple):
    """An input and its ranking, whose tensors are cut: [B] to 4,096 entries, [B, n] to 64 rows and 4,096 columns."""

    kind: str  # name of the input's class; empty for a class of the user
    batch: Any
    ranking: Ranking
    needs: Needs
    padding_idx: int | None
    num_rows: int  # before the cut
    num_columns: int | None  # scores of a row, or of a pool, before the cut; None = the input has no scores


def tied_rows(sample: Sample) -> str | None:
    """Ask about a batch in which most rows are tied."""
    number, rows = int(sample.ranking.tied.sum()), len(sample.ranking.tied)
    if number <= MAX_TIED * rows:
        return None
    return (
        f"{number} of {rows} rows have a relevant item that shares its score with other candidates: are scores "
        "constant, rounded or saturated? ties= sets the value of such rows, by default the mean over all "
        "orders"
    )


def removed_by_number(sample: Sample) -> str | None:
    """Ask about candidates whose scores are far below all others, if metrics count candidates."""
    scores = (sample.batch.negative if sample.kind == "Negatives" else sample.batch.scores).double()
    scores = scores[None] if scores.dim() == 1 else scores
    finite = scores[scores.isfinite()]
    if not sample.needs.num_ranked or not len(finite) or finite.min() > LOW_SCORE:
        return None
    middle = finite.min() / 2 + finite.max() / 2
    low, others = finite[finite < middle], finite[finite >= middle]
    widest = max(low.max() - low.min(), others.max() - others.min()) if len(low) else torch.inf
    number = (scores.isfinite() & (scores < middle)).sum(1)
    if sample.kind in ("Scores", "Candidates", "ItemShard"):  # as many items may be excluded, or padding
        num_left = sample.num_columns - sample.ranking.num_ranked[: len(scores)]  # type: ignore[operator, index]
        number = number.where(number > num_left - (scores == -torch.inf).sum(1), 0)
    if number.count_nonzero() < LOW_ROWS * len(scores) or number.sum() < LOW_SCORES:
        return None
    if others.min() - low.max() <= LOW_GAP * widest:
        return None
    return (
        f"score {low.min():g} of {int(number.sum())} candidates is far below all others, {others.min():g} to "
        f"{others.max():g}: metrics of the whole list count all candidates; to remove items, set their scores "
        "to -torch.inf or pass exclude="
    )


def zero_padding(sample: Sample) -> str | None:
    """Ask about ids of target, exclude or history in which 0 looks like padding."""
    for name in ("history",) if sample.padding_idx == 0 else ("target", "exclude", "history"):
        value = getattr(sample.batch, name)
        for ids in value if isinstance(value, tuple) else (value,):
            if _is_ids(ids) and ids.dim() == 2 and ids.shape[1] > 1 and _ends_with_zeros(ids):
                cure = "" if name == "history" else ", or pass padding_idx=0"
                return (
                    f"item 0 of {name} looks like padding, in {int((ids == 0).any(1).sum())} of {len(ids)} "
                    f"rows: pad with -1{cure}; if ids start at 1, pass {name} - 1"
                )
    return None


def _ends_with_zeros(ids: Tensor) -> bool:
    """Return True if 0 looks like padding in ids [n, T]: only 0 repeats in rows, or 0 is only in the last column."""
    zeros, in_order = ids == 0, ids.sort(1).values
    share = (zeros.sum(1) > int(zeros[:, :-1].any())).float().mean()
    if (ids < 0).any() or share < PADDED_ROWS:
        return False
    if zeros[:, :-1].any():
        return not ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != 0)).any()
    if zeros.any(1).all():
        return bool(ids.max() >= MIN_ITEMS)
    return bool((ids.diff() > 0).any())  # ids in descending order end with 0


def flags_of_lists(sample: Sample) -> str | None:
    """Ask about scores with a bool target that fall along every row, and differ between rows, as in lists."""
    scores, target = sample.batch.scores.double().nan_to_num(neginf=-1e30), sample.batch.target
    if getattr(target, "dtype", None) != torch.bool or scores.shape[1] < FALLING_COLUMNS or (scores.diff() > 0).any():
        return None
    shape = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True).clamp(min=1e-30)
    if (shape - shape[0]).abs().max() < FALLING_DIFFERENCE:
        return None  # one order of items for all rows, such as popularity
    return (
        "scores fall along every row, as in lists, but a bool target has a column per item of the catalogue: "
        "pass flags of hits in lists as Hits(flags, num_relevant=), lists as Lists(item_ids, target)"
    )


def swapped_scores(sample: Sample) -> str | None:
    """Ask about scores that are all 0 and 1 with labels that have fractions and few zeros."""
    scores, labels = sample.batch.scores, _labels(sample)
    if labels is None or (labels == labels.floor()).all() or scores.unique().tolist() != [0, 1]:
        return None
    if (labels == 0).double().mean() > ZERO_LABELS:
        return None
    return "scores are all 0 or 1, and labels have fractions: are the two swapped? The order is update(scores, target)"


def relevant_entries(sample: Sample) -> str | None:
    """Ask about rows all of whose entries are relevant, and about sessions of one entry."""
    labels, ranking, rows = _labels(sample), sample.ranking, len(sample.ranking.tied)
    if labels is None or rows < MIN_ROWS:
        return None
    is_relevant = labels > 0
    if sample.kind == "Sessions":
        if ranking.num_ranked.max() == 1:  # type: ignore[union-attr]
            return (
                f"each of {rows} sessions has one entry, which is always first: indexes must be the session of "
                "each entry"
            )
        is_relevant = ranking.num_relevant >= ranking.num_ranked  # type: ignore[operator]
    lowest, highest = (float(end) for end in labels.aminmax())
    if not is_relevant.all() or (sample.needs.graded and lowest < highest):
        return None
    return (
        f"every entry of {rows} rows is relevant, with labels {lowest:g} to {highest:g}: labels > 0 are "
        "relevant, so pass 0 for others, such as (labels >= 4) for ratings, labels - 1 for 1 and 2"
    )


def numbers_within(sample: Sample) -> str | None:
    """Ask about session ids that count 0, 1, 2, ... again and again, in runs of unequal lengths."""
    indexes = sample.batch.indexes
    if indexes is None or indexes[0] != 0 or indexes.max() < 2:
        return None
    starts, counts = (indexes == 0).nonzero()[:, 0], (indexes[1:] == 0) | (indexes[1:] == indexes[:-1] + 1)
    # runs that only get shorter are one entry of each session in turn
    if len(starts) < MIN_RUNS or not counts.all() or (starts.diff().diff() <= 0).all():
        return None
    return (
        f"session ids {shown(indexes)} restart at 0: are entries numbered within their session? indexes is the "
        "session of each entry; lengths= the number of entries of each session"
    )


def flags_as_ranks(sample: Sample) -> str | None:
    """Ask about ranks that are all 0 or 1, with a 0 before a 1, where there is no padding."""
    ranks = sample.batch.ranks
    if sample.batch.zero_based or sample.batch.miss is not None or hasattr(ranks, "ties") or ranks.dim() != 2:
        return None
    rises = (ranks.diff() > 0).any(1)
    if ranks.unique().tolist() != [0, 1] or not rises.any():
        return None
    return (
        f"ranks that are all 0 or 1 look like flags of hits, such as {shown(ranks[rises][0])}: pass "
        "Hits(flags, num_relevant=), or the lists as Lists(item_ids, target)"
    )


def hits_as_relevant(sample: Sample) -> str | None:
    """Ask about lists that hold all relevant items, some at late ranks, while some rows have no hit."""
    flags, number = sample.batch.flags, sample.batch.num_relevant
    if sample.batch.complete or not isinstance(number, Tensor) or (flags.sum(1) != number[: len(flags)]).any():
        return None
    none, num_late = int((flags.sum(1) == 0).sum()), flags[:, (flags.shape[1] + 1) // 2 :].sum()
    if none < EMPTY_ROWS * len(flags) or num_late < LATE_HITS:
        return None
    return (
        f"in all of {len(flags)} rows num_relevant is the number of hits, and {none} have none: pass the "
        "number of relevant items, found or not, such as target.ge(0).sum(1); for lists of all items "
        "complete=True"
    )


def pool_as_long(sample: Sample) -> str | None:
    """Ask about a pool of as many negatives as there are positives."""
    if sample.batch.pool or sample.batch.negative.dim() != 1 or sample.num_columns != sample.num_rows:
        return None
    return (
        f"negative [{sample.num_columns}] has one entry per positive: pass one negative per row as negative[:, "
        "None], one pool for all positives as Negatives(positive, negative, pool=True)"
    )


def shifted_candidates(sample: Sample) -> str | None:
    """Ask about targets most of which are not candidates: one id in all rows, or ids that are off by 1."""
    ids, items = sample.batch.target, sample.batch.items
    if not _is_ids(ids):
        return None
    ids = (ids if ids.dim() == 2 else ids[:, None])[: len(sample.batch.scores), :1]
    absent = int(sample.ranking.unreachable[: len(ids)].sum())
    message = f"{absent} of {len(ids)} targets are not candidates"
    if absent <= ABSENT * len(ids):
        return None
    if (ids == ids[0]).all() and 0 <= ids[0] < items.shape[-1]:
        return f"{message}, and all are item {int(ids[0])}: pass item ids, not columns; for column 0 items[:, 0]"
    for shift in (1, -1):
        if ((items == ids + shift) & (ids >= 0)).any(1).sum() >= SHIFTED * (ids >= 0).sum():
            return f"{message}, but target {'+' if shift > 0 else '-'} 1 is: do ids of one of the two start at 1?"
    return None


def shifted_codes(sample: Sample) -> str | None:
    """Ask about beams that match more codes of items if they are shifted."""
    codes, beams = sample.batch.codes, sample.batch.beams[sample.batch.entries]
    size, share = int(codes.codes.max()) + 1, _share_of_codes(codes, beams)
    offsets, by_level = torch.arange(codes.num_levels, device=beams.device) * size, f"{size} * torch.arange(levels)"
    for cure, offset in ((by_level, offsets), ("1", 1), (f"1 - {by_level}", offsets + 1)):
        shifted_share = _share_of_codes(codes, beams - offset)
        if len(beams) >= MIN_ROWS and shifted_share >= max(CODES, share + MORE_CODES):
            return (
                f"{share:.0%} of {len(beams)} beams are codes of items, but {shifted_share:.0%} of beams - "
                f"{cure} are: pass codes as in SemanticIds, without token offsets"
            )
    return None


def codes_as_rows(sample: Sample) -> str | None:
    """Ask about item row numbers, one per level, that are codes of items."""
    codes, target = sample.batch.codes, sample.batch.target
    fits = target is not None and target.shape[1:] == (codes.num_levels,) and codes.num_levels > 1
    if not fits or _share_of_codes(codes, target) < ROW_CODES:
        return None
    return f"target must be item row numbers, but holds codes, such as {shown(target[0])}: pass target_codes="


def unread_history(sample: Sample) -> str | None:
    """Ask about a history that no metric reads, where nothing is excluded."""
    batch = sample.batch
    if batch.history is None or sample.needs.history or batch.exclude is not None or batch.target is None:
        return None
    return (
        "this metric or collection does not read history=, which removes no item: to remove a user's earlier "
        "items, pass exclude="
    )


def _share_of_codes(codes: Any, values: Tensor) -> float:
    return float((codes.look_up(values).size > 0).float().mean())


def _is_ids(values: Any) -> bool:
    return isinstance(values, Tensor) and values.dtype in ID_DTYPES


def _labels(sample: Sample) -> Tensor | None:
    """Return the labels of sessions, or a graded dense target; None for other targets."""
    if sample.kind == "Sessions":
        labels: Tensor = sample.batch.labels.double()
        return labels
    target = sample.batch.target
    return target.double() if isinstance(target, Tensor) and target.is_floating_point() else None


QUESTIONS: dict[str, tuple[SampleQuestion, ...]] = {
    "Scores": (removed_by_number, zero_padding, flags_of_lists, swapped_scores, relevant_entries, unread_history),
    "ItemShard": (removed_by_number, zero_padding),
    "Candidates": (removed_by_number, zero_padding, shifted_candidates),
    "Negatives": (removed_by_number, pool_as_long),
    "Sessions": (removed_by_number, swapped_scores, relevant_entries, numbers_within),
    "Lists": (zero_padding,),
    "Beams": (zero_padding, shifted_codes, codes_as_rows),
    "Ranks": (flags_as_ranks,),
    "Hits": (hits_as_relevant,),
}
"""The questions about each kind of input, by its class; `tied_rows` is asked about all."""
