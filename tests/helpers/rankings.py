"""Random batches, and rankings of inputs whose arguments and options are given together."""

import math

import hypothesis.strategies as st
import torch

import torchrecmetrics as trm

INF = math.inf


def _ranking_of(make, *names):
    """Return a function that makes an input, with the named arguments among its options, and ranks it."""

    def ranking(*arguments, **options):
        given = {name: options.pop(name) for name in names if name in options}
        return make(*arguments, **given).ranking(**options)

    return ranking


rank_scores = _ranking_of(trm.Scores, "scores", "target", "gains", "exclude", "history")
rank_lists = _ranking_of(trm.Lists, "item_ids", "target", "gains", "exclude", "complete", "duplicates", "history")
rank_sessions = _ranking_of(trm.Sessions, "scores", "labels", "indexes", "lengths")
rank_negatives = _ranking_of(trm.Negatives, "lengths")


@st.composite
def batches(draw, most_items=9):
    """Random batches with few distinct scores, so that most are tied; targets and history overlap, of any length."""
    rows, items = draw(st.integers(0, 4)), draw(st.integers(1, most_items))
    score = st.sampled_from([-INF, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
    scores = draw(st.lists(st.lists(score, min_size=items, max_size=items), min_size=rows, max_size=rows))
    ids = st.lists(st.integers(0, items - 1), max_size=items, unique=True)
    targets = draw(st.lists(ids, min_size=rows, max_size=rows))
    gain = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 5.0])
    gains = [[draw(gain) for _ in row] for row in targets]
    history = draw(st.lists(st.lists(st.integers(-2, items - 1), max_size=6), min_size=rows, max_size=rows))
    return scores, targets, gains, history, items


def padded(rows, fill, dtype):
    """Return rows with a column of padding at least: without one, ids of all items in all rows could be grades."""
    width = 1 + max([0, *map(len, rows)])
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype).reshape(len(rows), width)
