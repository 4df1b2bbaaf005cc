"""Counting in plain PyTorch, on any device: the strategies, and the measured rule that chooses between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import lt

import torch
from torch import Tensor

from torchrecmetrics.arrays import (
    array,
    compare,
    count_above,
    count_at_least,
    indices,
    largest,
    may_look,
    runs,
    search,
    take_top_,
    tiles,
    true_places,
)
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.contract import Counts, Question
from torchrecmetrics.kernels.edges import (
    bar_,
    from_buckets,
    less,
    to_counts,
    with_floors,
    without_nan,
    working,
    working_dtype,
)
from torchrecmetrics.scratch import Scratch

# Items a block, or half or twice as many: 32, 64 and 128 vectorise, 16 and 50 do not. The fewer a block holds, the less
# is read again; the more, the sooner the maxima are found (128 to 64: .7 to .85 of that). Twice as many are worth it
# where there are so many blocks for each place, with one threshold a row or more.
_BLOCK = 64
_BLOCKS_A_PLACE = (3, 8)
# Blocks a group, the first that leaves half as many groups again as places: their maxima say in a fraction of the
# comparisons which thresholds are far; and comparisons of all maxima from which that pays.
_GROUPS, _GROUPS_FROM = (8, 4, 2), 2**18
# Comparisons of all thresholds with the coarsest maxima from which it pays to look first for rows whose best is far.
_NEAR_FROM = 2**19
# Open thresholds a row, and maxima beside all of them, up to which each is compared with blocks of its own (2 to 7 a
# row: .7 to .95 of the time; 2,560 x 782: 1.1); more share the blocks of the row's lowest.
_APART, _APART_MAXIMA = 8, 2**20
# Open thresholds a row beyond which selecting the best `depth` scores is cheaper than comparing blocks with each (64 to
# 1,024 rows, 1,000 to 50,000 items, depth 10 to 100: 3 a row .9 to 1.4 times the time, 5 .7 to 1.1, 20 .3 to .6).
_SELECT = 4
# Share of the scores that the blocks with the best hold, from which whole rows take less (.36: 1.2 times the time,
# .4: .8, .65: .8, .87: .45).
_WHOLE = 0.38
# Thresholds a row from which taking the best `depth` scores is cheaper than comparing every score with each threshold,
# where there are no more blocks than places and so nothing can be skipped (64 to 1,024 rows, I = 900 to 4,700, depth 20
# and 100: 5 to 20).
_TOPK_FROM = 10
# Thresholds a row from which a binary search per score is cheaper than a comparison per score and threshold, each over
# the whole list (I = 1,682: 85, 12,101: 64, 40,981: 52).
_BUCKETS_FROM = 80
# Thresholds a row from which sorting its maxima is cheaper than comparing all with each (20 thresholds: .3 of the time
# with 31 maxima, .65 with 48, 1.1 with 156); and maxima of all rows up to which it is cheaper for any.
_WIDE, _FEW_MAXIMA = 16, 2**13
# Comparisons of whole rows, with the thresholds that are left, up to which looking for blocks does not pay; fewer where
# rows are long (512 x 50,000, 14 such rows: .97 of the time).
_FEW, _FEW_OF_LONG = 2**20, 2**19
# Comparisons, of every score with each threshold, below which nothing is gained by leaving some out; fewer where rows
# are so long that most can be (4 x 20,000 scores, 5 thresholds: .9 of the time; 1 x 20,000, 20: .5 to .9; 64 x 1,000,
# 5: twice the time).
_SMALL, _SMALL_OF_LONG = 2**20, 2**18
_LONG = 10_000
# Scores up to which masks are written over a copy of all of them, in place of one of each tile that is looked at.
_MASKED = 2**20
# Numbers compared at once: the output of a comparison should be summed before it leaves the cache.
_AT_ONCE = 2**21
# Comparisons of all scores that numpy makes sooner, whose calls cost less than PyTorch's (an update of 1 x 1,000 takes
# .85 of the time, of 16 x 1,000 .95).
_CALLS = 2**16


def count(scores: Tensor, question: Question) -> Counts:
    """Count by the strategy that is fastest for these shapes; see `contract`."""
    taken = 0 if question.removed is None else question.removed.shape[1]
    return _strategy(scores, question.thresholds.shape[1], question.depth, taken)(scores, question)


def hampered(scores: Tensor, width: int, depth: int | None, taken: int, masked: bool = False) -> bool:
    """Whether a copy of the scores, in which what is excluded is overwritten, is read sooner than the scores are.

    So many removed items, `taken` a row, can be above a threshold that blocks would settle nothing: an update of
    256 x 3,706 with 20 relevant and 100 excluded items a row takes .3 of the time, of 256 x 10,000 1.4. And masks are
    read each time that scores are looked at.
    """
    if not may_look(scores):
        return False
    if masked and scores.numel() <= _MASKED:
        return True
    if not taken or depth is None or _strategy(scores, width, depth, 0) is not by_blocks:
        return False
    return blocks.number_of(scores.shape[1], _block_size(scores.shape[1], depth, width)) < depth + taken


def _strategy(scores: Tensor, width: int, depth: int | None, taken: int) -> Callable[[Tensor, Question], Counts]:
    """Return the strategy for so many thresholds and removed items a row."""
    items = scores.shape[1]
    # two look at data to know where to look again, which only the CPU can do without waiting, where there is any
    small = _SMALL if items < _LONG else _SMALL_OF_LONG
    if depth is not None and may_look(scores) and scores.numel() * width > small:
        if 2 * (items // (_BLOCK // 2)) >= 3 * depth:
            return by_blocks
        if width >= _TOPK_FROM and depth + taken < items:
            return by_topk
    return by_comparing if width < _BUCKETS_FROM else by_buckets


def by_comparing(scores: Tensor, question: Question) -> Counts:
    """Compare every score with every threshold: two comparisons a threshold, one a floor."""
    thresholds = question.thresholds
    edges = with_floors(thresholds, question.floors)
    if not question.masks and _reads_well(scores) and scores.numel() * edges.shape[1] <= _at_once(scores.device):
        asked = thresholds.shape[1]
        if scores.numel() * edges.shape[1] <= _CALLS and may_look(scores):
            above, at_least, highest = _by_numpy(scores, edges, asked)
        else:
            (above, at_least), highest = _matches(scores, edges, asked), scores.amax(1)
        return to_counts(edges, asked, above, at_least, highest, question.removed)
    above = thresholds.new_zeros(thresholds.shape, dtype=torch.int64)
    at_least = thresholds.new_zeros(edges.shape, dtype=torch.int64)
    highest = _lowest(scores)
    for row, tile in _read(scores, question.masks, edges.shape[1], highest):
        found = _matches(tile, edges[row], thresholds.shape[1])
        above[row] += found[0]
        at_least[row] += found[1]
    return to_counts(edges, thresholds.shape[1], above, at_least, highest, question.removed)


def by_buckets(scores: Tensor, question: Question) -> Counts:
    """Sort each row's thresholds, look up where every score falls between them, and count a histogram."""
    asked = question.thresholds.shape[1]
    edges = with_floors(question.thresholds, question.floors)
    edge, order = without_nan(working(edges), torch.inf).sort(dim=1)  # a binary search cannot pass NaN
    reaching = edge.new_zeros((len(edge), edge.shape[1] + 1), dtype=torch.int64)
    same = torch.zeros_like(reaching)
    highest = _lowest(scores)
    for row, tile in _read(scores, question.masks, 1, highest):
        tile = without_nan(tile, -torch.inf)
        bucket = search(edge[row], tile, right=True)
        met = edge[row].gather(1, (bucket - 1).clamp_(min=0)) == tile
        # int32 is scattered several times faster than int64
        none = torch.zeros_like(same[row], dtype=torch.int32)
        reaching[row] += none.scatter_add(1, bucket, torch.ones_like(bucket, dtype=torch.int32))
        same[row] += none.scatter_add(1, bucket, met.to(torch.int32))
    above, at_least = from_buckets(edge, order, reaching, same)
    return to_counts(edges, asked, above[:, :asked], at_least, highest, question.removed)


def by_topk(scores: Tensor, question: Question) -> Counts:
    """Look each threshold up among the row's best scores, as many as matter; waits for the device."""
    thresholds, depth, _, masks, removed, _ = question
    items = scores.shape[1]
    needed = items if depth is None else depth + (0 if removed is None else removed.shape[1])
    number = min(items, needed + 1)
    best = scores.new_empty((len(scores), number), dtype=working_dtype(scores))
    highest = _lowest(scores)
    for row, tile in _read_rows(scores, masks, highest, _SMALL):
        mine = _taken((tile.shape[0], items), tile.dtype, tile.device)  # a tile may be a view of the scores
        torch.nan_to_num(tile, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf, out=mine)
        best[row] = take_top_(mine, number)
    above, at_least = _look_up(scores, indices(len(scores), scores.device), working(thresholds), masks, best)
    above, at_least = less(removed, thresholds, above, at_least)
    return Counts(above, at_least - above, _at_least(scores, question), highest)


def by_blocks(scores: Tensor, question: Question) -> Counts:
    """Read the scores once for the maximum of each block of items; look again only where that can matter.

    As many items as blocks have a maximum above a threshold are better than it: where those are `depth`, nothing more
    is asked. Waits for the device: how much is open is data.
    """
    items = scores.shape[1]
    depth = items + 1 if question.depth is None else question.depth
    size = _block_size(items, depth, question.thresholds.shape[1])
    maxima, highest = _block_maxima(scores, question.masks, size)
    better, equal = _look_again(scores, question._replace(depth=depth), maxima, size)
    return Counts(better, equal, _at_least(scores, question), highest)


STRATEGIES = (by_comparing, by_buckets, by_topk, by_blocks)


def _at_least(scores: Tensor, question: Question) -> Tensor | None:
    """Count what reaches the floors, where the strategy has not read everything itself."""
    if not question.floors:
        return None
    return by_comparing(scores, question._replace(thresholds=question.thresholds[:, :0])).at_least


def _look_again(scores: Tensor, question: Question, maxima: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Count exactly where fewer than `depth` maxima, of blocks of `size` items, are above; `depth` and 1 elsewhere."""
    thresholds, depth, _, masks, removed, every = question
    assert depth is not None
    better = torch.full(thresholds.shape, depth, dtype=torch.int64, device=scores.device)
    equal = torch.ones_like(better)
    width, items = thresholds.shape[1], scores.shape[1]
    asked = working(thresholds).contiguous()
    removed = None if removed is None else working(removed)
    levels = _levels(maxima, asked, depth, removed)
    near = slot = None  # the rows that are looked at, and where their thresholds stood; None = all, where they stand
    if width > 1 and asked.numel() * levels[0].shape[1] >= _NEAR_FROM:
        highest = without_nan(asked, -torch.inf).amax(1, keepdim=True)
        near = _open(levels[0], highest, depth, removed, every)[:, 0].nonzero()[:, 0]
        if 4 * near.shape[0] > 3 * scores.shape[0]:  # to look at all takes less than to pick most
            near = None
        else:
            asked, levels = asked[near], [level[near] for level in levels]
            removed = None if removed is None else removed[near]
    here = indices(len(scores), scores.device) if near is None else near
    for level in levels:
        is_open = _open(level, asked, depth, removed, every)
        cell = is_open.view(-1).nonzero()[:, 0]
        (rows, columns), cells = asked.shape, cell.shape[0]
        few = cells * items <= (_FEW if items < _LONG else _FEW_OF_LONG)
        selecting = level is levels[-1] and removed is None and not few and cells > _SELECT * rows
        if selecting and not level.amax().isnan():  # which would be the best
            best = _best(scores, here, masks, level, size, min(depth + 1, items))
            above, at_least = _look_up(scores, here, asked, masks, best)
            break
        apart = cells <= _APART * rows and cells * maxima.shape[1] <= _APART_MAXIMA
        if few or apart or cells <= rows:
            if cells:
                row = cell if columns == 1 else cell.div(columns, rounding_mode="floor")
                at, place = row if near is None else near[row], cell
                if near is not None or slot is not None:  # else they stand where they stood
                    place = at * width + (cell % columns if slot is None else slot.view(-1)[cell])
                edges = asked.view(-1)[cell][:, None]
                if few:
                    above, at_least = _compare_rows(scores, at, edges, masks)
                else:
                    own = levels[-1] if columns == 1 and cells == rows else levels[-1][row]
                    above, at_least = _compare_blocks(scores, at, edges, masks, own, size)
                above, at_least = less(removed if removed is None else removed[row], edges, above, at_least)
                better.view(-1).index_copy_(0, place, above[:, 0])
                equal.view(-1).index_copy_(0, place, (at_least - above)[:, 0])
            return better, equal
        # the open thresholds of a row in front, as many columns as the row with most needs
        front = is_open.to(torch.int8).topk(max(1, int(is_open.sum(1).max())), dim=1).indices
        asked, slot = asked.where(is_open, torch.nan).gather(1, front), front if slot is None else slot.gather(1, front)
        every = False
    else:
        above, at_least = _compare_blocks(scores, here, asked, masks, levels[-1], size)
        above, at_least = less(removed, asked, above, at_least)
    if near is None and slot is None:
        return above, at_least - above
    asked_for = asked > -torch.inf
    place = (here[:, None] * width + (indices(width, scores.device) if slot is None else slot))[asked_for]
    better.view(-1).index_copy_(0, place, above[asked_for])
    equal.view(-1).index_copy_(0, place, (at_least - above)[asked_for])
    return better, equal


def _levels(maxima: Tensor, asked: Tensor, depth: int, removed: Tensor | None) -> list[Tensor]:
    """Maxima of blocks, and before them those of groups of blocks where that pays."""
    number, needed = maxima.shape[1], depth + (0 if removed is None else removed.shape[1])
    if asked.numel() * number < _GROUPS_FROM:
        return [maxima]
    for group in _GROUPS:
        groups = number // group
        if 2 * groups >= 3 * needed:
            return [maxima[:, : groups * group].view(-1, group, groups).amax(1), maxima]
    return [maxima]


def _open(maxima: Tensor, asked: Tensor, depth: int, removed: Tensor | None, every: bool) -> Tensor:
    """For which thresholds fewer than `depth` maxima are above, less the removed items that are: bool [B, T].

    For those that are NaN it is False; `every`: none is.
    """
    wide = asked.shape[1] >= _WIDE or maxima.numel() <= _FEW_MAXIMA
    if wide and removed is None and maxima.shape[1] >= depth:
        return largest(without_nan(maxima, -torch.inf), depth) <= asked
    above = _number(torch.gt, maxima, asked)
    if removed is not None:
        above = above - count_above(removed, asked)
    return above < depth if every else (above < depth) & (asked > -torch.inf)


def _compare_rows(scores: Tensor, rows: Tensor, asked: Tensor, masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Count what is > and >= the thresholds `asked` of some `rows`, in all of them."""
    return _matches(_whole(scores, rows, masks), asked, asked.shape[1])


def _whole(scores: Tensor, rows: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """Return a copy of the candidates' scores of some rows, in memory that is used again."""
    taken = _taken((rows.shape[0], scores.shape[1]), scores.dtype, scores.device)
    values = working(torch.index_select(scores, 0, rows, out=taken))
    bar_(values, (mask[rows] if mask.dim() == 2 else mask for mask in masks))
    return values


def _best(scores: Tensor, rows: Tensor, masks: Sequence[Tensor], maxima: Tensor, size: int, number: int) -> Tensor:
    """Return the `number` best scores of some rows, ascending: so many blocks, those of the best maxima, hold them."""
    items = scores.shape[1]
    best = scores.new_empty((rows.shape[0], number), dtype=working_dtype(scores))
    whole = number * size > _WHOLE * items
    at_once = max(1, _SMALL // (items if whole else number * size))
    for first in range(0, rows.shape[0], at_once):
        here = slice(first, first + at_once)
        if whole:
            best[here] = take_top_(_whole(scores, rows[here], masks), number)
            continue
        row = rows[here].repeat_interleave(number)
        block = maxima[here].topk(number, dim=1, sorted=False).indices.view(-1)
        taken = _taken((row.shape[0], size), scores.dtype, scores.device)
        values, start = blocks.take(scores, row, block, size, taken)
        values = working(values)
        bar_(values, (runs(mask.expand(scores.shape), row, start, size) for mask in masks))
        best[here] = take_top_(values.view(-1, number * size), number)
    return best


def _look_up(
    scores: Tensor, rows: Tensor, asked: Tensor, masks: Sequence[Tensor], best: Tensor
) -> tuple[Tensor, Tensor]:
    """Count what is > and >= thresholds of some `rows` among their best scores, [R, n], of which one is beyond need.

    Some of what equals that last one may not be among them: where it matters, whole rows are compared.
    """
    number, items = best.shape[1], scores.shape[1]
    above, at_least = count_above(best, asked), count_at_least(best, asked)
    if number < items:
        last = best[:, :1]
        split = ((asked == last) & (above < number - 1)).any(1).nonzero()[:, 0]
        for again in torch.split(split, max(1, _AT_ONCE // items)) if len(split) else ():
            _, whole = _compare_rows(scores, rows[again], last[again], masks)
            at_least[again] = whole.where(asked[again] == last[again], at_least[again])
    return above, at_least


def _compare_blocks(
    scores: Tensor, near: Tensor, asked: Tensor, masks: Sequence[Tensor], maxima: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Count what is > and >= the thresholds `asked` of the rows `near`, in the blocks that reach the lowest of them."""
    least = without_nan(asked, torch.inf).amin(1, keepdim=True)
    row, block = true_places(~compare(lt, maxima, least))  # a block whose maximum is NaN hides the others: look
    above = torch.zeros(asked.shape, dtype=torch.int64, device=scores.device)
    at_least = torch.zeros_like(above)
    at_once = max(1, min(_SMALL, _AT_ONCE // asked.shape[1]) // size)
    for piece in range(0, row.shape[0], at_once):
        i, j = row[piece : piece + at_once], block[piece : piece + at_once]
        taken = _taken((i.shape[0], size), scores.dtype, scores.device)
        values, start = blocks.take(scores, near[i], j, size, taken)
        values = working(values)
        bar_(values, (runs(mask.expand(scores.shape), near[i], start, size) for mask in masks))
        found = _matches(values, asked[i], asked.shape[1])
        above.index_add_(0, i, found[0])
        at_least.index_add_(0, i, found[1])
    return above, at_least


def _block_size(items: int, depth: int, width: int) -> int:
    """Return how many items a block holds: the more, the more blocks there are beside places."""
    if items // (2 * _BLOCK) >= _BLOCKS_A_PLACE[width > 1] * depth:
        return 2 * _BLOCK
    return _BLOCK if 2 * (items // _BLOCK) >= 3 * depth else max(1, min(items, _BLOCK // 2))


def _block_maxima(scores: Tensor, masks: Sequence[Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Maxima of each block's unmasked items, [B, blocks], the last of which may hold fewer, and of all items, [B]."""
    shape = scores.shape[0], blocks.number_of(scores.shape[1], size)
    maxima = _maxima(shape, working_dtype(scores), scores.device)
    if not masks and _reads_well(scores):
        blocks.write_maxima(scores, size, maxima)
        return maxima, maxima.amax(1)
    highest = _lowest(scores)
    for row, tile in _read_rows(scores, masks, highest):
        blocks.write_maxima(tile, size, maxima[row])
    return maxima, highest


def _read_rows(
    scores: Tensor, masks: Sequence[Tensor], highest: Tensor, at_once: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, candidates' scores), some whole rows, `at_once` scores, at a time; keep each row's `highest`."""
    scratch = Scratch()
    tall = max(1, (at_once or _AT_ONCE) // scores.shape[1])
    for first in range(0, len(scores), tall):
        here = slice(first, first + tall), slice(None)
        yield here[0], _candidates(scores[here], here, masks, highest[here[0]], scratch)


def _read(scores: Tensor, masks: Sequence[Tensor], wide: int, highest: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, candidates' scores) tile by tile; keep each row's `highest`. Memory does not depend on the shape."""
    scratch = Scratch()
    for here, tile in tiles(scores, max(1, wide)):
        yield here[0], _candidates(tile, here, masks, highest[here[0]], scratch)


def _candidates(
    tile: Tensor, here: tuple[slice, slice], masks: Sequence[Tensor], highest: Tensor, scratch: Scratch
) -> Tensor:
    """Return a tile as it is, or in scratch memory: in the working dtype, laid out by rows, masked items at -inf."""
    if not masks and _reads_well(tile):
        torch.maximum(highest, tile.amax(1), out=highest)
        return tile
    tile = scratch(tile.shape, working_dtype(tile), tile.device).copy_(tile)
    torch.maximum(highest, tile.amax(1), out=highest)
    bar_(tile, (mask[here] if mask.dim() == 2 else mask[here[1]] for mask in masks))
    return tile


def _matches(values: Tensor, edges: Tensor, asked: int) -> tuple[Tensor, Tensor]:
    """How many of each row's `values` [R, n] are > each of its first `asked` edges [R, E], and >= each of all."""
    edges = working(edges)
    pair = _number(torch.gt, values, edges[:, :asked]), _number(torch.ge, values, edges)
    return pair[0].to(torch.int64), pair[1].to(torch.int64)


def _by_numpy(scores: Tensor, edges: Tensor, asked: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count what `_matches` counts, and find each row's highest score, NaN if it holds one."""
    import numpy as np

    held, sides = array(scores)[:, None], array(edges)[:, :, None]
    above = np.add.reduce(held > sides[:, :asked], 2, np.int64)
    at_least = np.add.reduce(held >= sides, 2, np.int64)
    highest = np.maximum.reduce(held[:, 0], 1)
    return torch.from_numpy(above), torch.from_numpy(at_least), torch.from_numpy(highest)


def _number(compare: Callable[..., Tensor], values: Tensor, thresholds: Tensor) -> Tensor:
    """How many of each row's `values` [R, n] compare true with each of its thresholds [R, T]: whole numbers [R, T]."""
    thresholds = thresholds[:, :, None]
    at_once = max(1, _at_once(values.device) // max(1, values.shape[1] * thresholds.shape[1]))
    rows = values.shape[0]
    if rows <= at_once:
        pieces: Iterable[tuple[Tensor, Tensor]] = [(values, thresholds)]
    else:
        pieces = zip(torch.split(values, at_once), torch.split(thresholds, at_once), strict=True)
    sums = []
    for some, wanted in pieces:
        piece = some[:, None]
        out = None
        if may_look(values):  # floats are summed several times faster there than bools; exact up to 2^24
            out = _compared((piece.shape[0], wanted.shape[1], piece.shape[2]), torch.float32, values.device)
        sums.append(compare(piece, wanted, out=out).sum(2))
    return sums[0] if len(sums) == 1 else torch.cat(sums)


#: What comparisons give, until they are summed, rows that are looked at again, and maxima of blocks: kept from batch to
#: batch, at most 2^20 numbers of each in a thread.
_compared, _taken, _maxima = Scratch(_SMALL), Scratch(_SMALL), Scratch(_SMALL)


def _reads_well(scores: Tensor) -> bool:
    return scores.dtype == working_dtype(scores) and scores.stride(1) == 1


def _at_once(device: torch.device) -> int:
    return _AT_ONCE if device.type == "cpu" else 8 * _AT_ONCE


def _lowest(scores: Tensor) -> Tensor:
    return torch.full((len(scores),), -torch.inf, dtype=working_dtype(scores), device=scores.device)
