"""Random inputs of the counting kernels, and a check of their counts against plain Python."""

import math

import hypothesis.strategies as st
import torch

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@st.composite
def problems(draw):
    """Random scores with ties, -inf, NaN and +inf in all dtypes and layouts; thresholds, masks and removed items."""
    rows, items, width = draw(st.integers(0, 4)), draw(st.integers(1, 23)), draw(st.integers(1, 5))
    choose = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    levels = torch.tensor(
        draw(st.sampled_from([[1.0], [0.0, 1, 2], [-INF, -1, 0, 1], [-INF, 0, 1, 2, NAN, INF], [-INF]]))
    )
    if draw(st.booleans()):
        levels = torch.cat([levels, torch.randn(20, generator=choose)])
    dtype = draw(st.sampled_from(DTYPES))

    def some(*shape):
        return levels[torch.randint(len(levels), shape, generator=choose)].to(dtype)

    scores = some(rows, items)
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded", "part"]))
    if layout == "transposed":
        scores = scores.T.contiguous().T
    elif layout == "strided":
        scores = scores.repeat_interleave(2, 1)[:, ::2]
    elif layout == "expanded":
        scores = some(1, items).expand(rows, items)
    elif layout == "part":
        scores = torch.cat([scores, some(rows, 3)], 1)[:, :items]
    thresholds = some(rows, width)
    if draw(st.booleans()):
        thresholds = scores.gather(1, torch.randint(items, (rows, width), generator=choose))
    thresholds = thresholds.where(thresholds > -INF, NAN)
    if draw(st.booleans()):
        thresholds = thresholds.T.contiguous().T
    masks = [
        torch.rand(shape, generator=choose) < 0.3 for shape in draw(st.sampled_from([[], [(items,)], [(rows, items)]]))
    ]
    masks += [torch.rand(rows, items, generator=choose) < 0.1] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        masks = [mask.T.contiguous().T if mask.dim() == 2 else mask.repeat_interleave(2)[::2] for mask in masks]
    out = (torch.rand(rows, items, generator=choose) < draw(st.sampled_from([0.0, 0.2, 0.9]))) & (scores > -INF)
    for mask in masks:
        out &= ~mask
    min_scores = draw(st.sampled_from([(), (-1e4,), (1.0, -1e4)]))
    depth = draw(st.sampled_from([None, 1, 2, 3, 7, 50]))
    return scores, thresholds, depth, min_scores, masks, out


def removed(scores, out, width):
    """Return the scores of `out` as the kernel takes them: ascending, with -inf in front as padding."""
    if not out.any() and width == 0:
        return None
    values = scores.where(out, -INF).sort(1).values
    return values[:, max(0, values.shape[1] - int(out.sum(1).max()) - width) :] if len(values) else values


def check(counts, scores, thresholds, depth, min_scores, masks, out):
    """Compare the counts with plain Python, one score at a time."""
    for row in range(len(scores)):
        gone = [
            bool(out[row, i]) or any(bool((m if m.dim() == 1 else m[row])[i]) for m in masks)
            for i in range(scores.shape[1])
        ]
        values = [s for s, is_gone in zip(scores[row].tolist(), gone, strict=True) if not is_gone]
        for slot, threshold in enumerate(thresholds[row].tolist()):
            better = sum(s > threshold for s in values)
            if math.isnan(threshold):
                continue
            if depth is None or better < depth:
                assert counts.better[row, slot] == better
                assert counts.equal[row, slot] == sum(s == threshold for s in values)
            else:
                assert counts.better[row, slot] >= depth
        found = [] if counts.at_least is None else counts.at_least[row].tolist()
        assert found == [sum(s >= floor for s in values) for floor in min_scores]
        highest = max((INF if math.isnan(s) else s) for s in scores[row].tolist())
        found = counts.highest[row].item()
        assert math.isnan(found) if scores[row].isnan().any() else found == highest
    assert {part.dtype for part in counts[:3] if part is not None} == {torch.float64}
    assert (counts.at_least is None) is (not min_scores)
    assert counts.better.shape == counts.equal.shape == thresholds.shape
