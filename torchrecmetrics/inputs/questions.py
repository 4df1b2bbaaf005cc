"""`Questions`: warnings about odd data in the first large batch of a metric, which is read once and not kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torchmetrics.utilities.prints import rank_zero_only

from torchrecmetrics.core.arrays import float_dtype, is_traced
from torchrecmetrics.core.checks import ID_DTYPES, plain, warn_caller
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.batch_input import BatchInput

Question: TypeAlias = tuple[str, list[Tensor]]
"""A warning with places for numbers; and, on the batch's device, if it applies, bool [], and the numbers []."""

MIN_ROWS, READ_ROWS, READ_COLUMNS = 32, 64, 4096  # rows (or entries) of a batch; rows and columns (entries) read of it
MAX_TIED, ZERO_LABELS = 0.5, 0.1  # share of rows; share of zeros from which numbers are taken as labels
LOW_SCORE, LOW_GAP = -1000, 100  # scores that remove items: maximum; distance from others, in ranges of either group
LOW_ROWS, LOW_SCORES = 0.1, 8  # share of rows that hold such scores, and their number
PADDED_ROWS, MIN_ITEMS = 0.2, 10  # share of rows with 0 at the end; size of a catalogue in which no item is in all rows
FALLING_COLUMNS, FALLING_DIFFERENCE = 5, 0.05  # for scores of lists; standard deviations between rows
EMPTY_ROWS, LATE_HITS = 0.1, 5  # of lists that hold all relevant items: share, number in the second half
SWAPPED = "scores are all 0 or 1, and labels have fractions: are the two swapped? Pass update(scores, target)"
UNREAD = "no metric of this update reads history=, which removes no item: pass exclude=, or first update one that does"


class Questions:
    """The questions of one metric or collection, and of its copies in `evaluate`, which are asked once."""

    are_asked: bool = False

    @rank_zero_only
    def ask(self, batch: Any, ranking: Ranking, needs: Needs, options: Options) -> None:
        """Warn about the first batch with enough rows; waits for the device once."""
        batch = batch if isinstance(batch, BatchInput) else None  # of other inputs the ranking alone is known
        device, rows = ranking.tied.device, len(getattr(batch, "labels", ranking.tied))
        is_captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if rows < MIN_ROWS or not options.validate_args or device.type == "meta" or is_captured or is_traced():
            return
        self.are_asked = True
        questions = list(questions_about(batch, ranking, needs, options.padding_idx))
        numbers = iter(torch.stack([n.to(float_dtype(device)) for _, answers in questions for n in answers]).tolist())
        for sentence, answers in questions:
            is_odd, *values = (next(numbers) for _ in answers)
            if is_odd:
                warn_caller(sentence.format(*values))
                if sentence == SWAPPED:
                    return  # what else is odd follows from it


def questions_about(batch: Any, ranking: Ranking, needs: Needs, padding_idx: int | None) -> Iterator[Question]:
    """Yield the questions about a batch, which read tensors of the caller alone and do not wait for the device."""
    all_scores: Any = getattr(batch, "negative", getattr(batch, "scores", None))
    scores, labels = _first(all_scores), _first(getattr(batch, "labels", getattr(batch, "target", None)))
    if scores is not None:
        scores = scores.to(float_dtype(scores.device))
        if labels is not None and labels.shape == scores.shape:
            if labels.is_floating_point() or hasattr(batch, "labels"):
                yield _swapped(scores, labels.to(scores.dtype))
                yield _all_relevant(labels.to(scores.dtype), needs.graded, len(ranking))
            elif labels.dtype == torch.bool and scores.shape[1] >= FALLING_COLUMNS:
                yield _flags_of_lists(scores.nan_to_num(neginf=-1e30))
        if needs.num_ranked and ranking.num_ranked is not None:
            num_left = getattr(batch, "num_items", all_scores.shape[-1]) - ranking.num_ranked[: len(scores)]
            yield _far_below(scores.reshape(-1, scores.shape[-1]), num_left if hasattr(batch, "target") else -torch.inf)
    yield _ties(ranking.tied)
    if batch is not None and batch.has_unread_history(needs):
        yield UNREAD, [torch.ones_like(ranking.tied[0])]
    if isinstance(getattr(batch, "num_relevant", None), Tensor) and not batch.complete:  # `Hits`
        yield _hits_as_relevant(batch.flags[:READ_ROWS].bool(), batch.num_relevant[:READ_ROWS])
    for name in ("history",) if padding_idx == 0 else ("target", "exclude", "history"):
        value = getattr(batch, name, None)
        for ids in map(_first, value if type(value) is tuple else (value,)):
            if ids is not None and ids.dtype in ID_DTYPES and ids.dim() == 2 and ids.shape[1] > 1:
                yield _zero_padding(ids, name)


def _first(value: Any) -> Tensor | None:
    """Return the first rows and columns of a tensor, or entries; None for lazy scores and other objects."""
    if not isinstance(value, Tensor) or value.is_nested or value.dim() not in (1, 2) or not value.numel():
        return None
    return plain(value)[:READ_COLUMNS] if value.dim() == 1 else plain(value)[:READ_ROWS, :READ_COLUMNS]


def _ties(tied: Tensor) -> Question:
    sentence = (
        f"{{:.0f}} of {len(tied)} rows have a relevant item that shares its score with other candidates: are scores "
        "constant, rounded or saturated? ties= sets the value of such rows, by default the mean over all orders"
    )
    return sentence, [tied.sum() > MAX_TIED * len(tied), tied.sum()]


def _far_below(scores: Tensor, num_left: Tensor | float) -> Question:
    """Ask about candidates far below all others; `num_left`, [n], is the number of excluded items and padding."""
    finite = scores.isfinite()
    lowest, highest = scores.where(finite, torch.inf).amin(), scores.where(finite, -torch.inf).amax()
    is_low = finite & (scores < lowest / 2 + highest / 2)
    highest_low = scores.where(is_low, -torch.inf).amax()
    lowest_other = scores.where(finite & ~is_low, torch.inf).amin()
    number = is_low.sum(1)
    number = number.where(number > num_left - (scores == -torch.inf).sum(1), 0)
    is_odd = (lowest <= LOW_SCORE) & (number.count_nonzero() >= LOW_ROWS * len(scores)) & (number.sum() >= LOW_SCORES)
    is_far = lowest_other - highest_low > LOW_GAP * torch.maximum(highest_low - lowest, highest - lowest_other)
    sentence = (
        "score {:g} of {:.0f} candidates is far below all others, {:g} to {:g}: metrics of the whole list count all "
        "candidates; to remove items, set their scores to -torch.inf or pass exclude="
    )
    return sentence, [is_odd & is_far, lowest, number.sum(), lowest_other, highest]


def _zero_padding(ids: Tensor, name: str) -> Question:
    """Ask about ids [n, T] where only 0 repeats in rows, or 0 is only in the last column."""
    zeros, in_order = ids == 0, ids.sort(1).values
    are_inner = zeros[:, :-1].any()
    others_repeat = ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != 0)).any()
    # item 0 in all rows is likely in a tiny catalogue, and ids in descending order end with 0
    is_last = torch.where(zeros.any(1).all(), ids.max() >= MIN_ITEMS, (ids.diff() > 0).any())
    share = (zeros.sum(1) > are_inner.long()).float().mean()
    is_odd = ~(ids < 0).any() & (share >= PADDED_ROWS) & torch.where(are_inner, ~others_repeat, is_last)
    sentence = (
        f"item 0 of {name} looks like padding, in {{:.0f}} of {len(ids)} rows: pad with -1"
        f"{'' if name == 'history' else ', or pass padding_idx=0'}; if ids start at 1, pass {name} - 1"
    )
    return sentence, [is_odd, zeros.any(1).sum()]


def _flags_of_lists(scores: Tensor) -> Question:
    """Ask about scores with a bool target that fall along every row, and differ between rows, as in lists."""
    shape = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True).clamp(min=1e-30)
    differ = (shape - shape[:1]).abs().max() >= FALLING_DIFFERENCE  # else one order for all rows, as popularity
    sentence = (
        "scores fall along every row, as in lists, but a bool target has a column per item of the catalogue: pass "
        "flags of hits in lists as Hits(flags, num_relevant=), lists as Lists(item_ids, target)"
    )
    return sentence, [(scores.diff() <= 0).all() & differ]


def _swapped(scores: Tensor, labels: Tensor) -> Question:
    """Ask about scores that are all 0 and 1 with labels that have fractions and few zeros."""
    are_labels = ((scores == 0) | (scores == 1)).all() & (scores == 0).any() & (scores == 1).any()
    are_scores = (labels != labels.floor()).any() & ((labels == 0).float().mean() <= ZERO_LABELS)
    return SWAPPED, [are_labels & are_scores]


def _all_relevant(labels: Tensor, reads_gains: bool, rows: int) -> Question:
    """Ask about rows all of whose entries are relevant, unless metrics read their gains, which differ."""
    lowest, highest = labels.amin(), labels.amax()
    sentence = (
        f"every entry of {rows} rows is relevant, with labels {{:g}} to {{:g}}: labels > 0 are relevant, so pass 0 "
        "for others, such as (labels >= 4) for ratings, labels - 1 for 1 and 2"
    )
    is_odd = (lowest > 0) & ((lowest == highest) | (not reads_gains)) & (rows >= MIN_ROWS)
    return sentence, [is_odd, lowest, highest]


def _hits_as_relevant(flags: Tensor, num_relevant: Tensor) -> Question:
    """Ask about lists that hold all relevant items, some at late ranks, while some rows have no hit."""
    num_hits, num_late = flags.sum(1), flags[:, (flags.shape[1] + 1) // 2 :].sum()
    num_empty = (num_hits == 0).sum()
    is_odd = (num_hits == num_relevant).all() & (num_empty >= EMPTY_ROWS * len(flags)) & (num_late >= LATE_HITS)
    sentence = (
        f"in all of {len(flags)} rows num_relevant is the number of hits, and {{:.0f}} have none: pass the number of "
        "relevant items, found or not, such as target.ge(0).sum(1); for lists of all items complete=True"
    )
    return sentence, [is_odd, num_empty]
