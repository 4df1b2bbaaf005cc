"""Every form of `exclude` on every path gives the ranks of plain Python, with and without a padding item."""

import math
from itertools import chain, pairwise, product
from typing import NamedTuple

import pytest
import reference
import torch
from torch import tensor
from values import numbers
from waiting import never_waits

import torchrecmetrics as trm
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs import exclusion as exclude_module
from torchrecmetrics.inputs import scores as scores_module
from torchrecmetrics.inputs.item_shard import ShardCounter
from torchrecmetrics.kernels import merged

INF = math.inf
ROWS, ITEMS = 5, 6
SCORES = tensor(
    [[3.0, 1, 3, 2, 3, 0], [1, 1, 1, 1, 1, 1], [5, 4, 3, 2, 1, -INF], [-INF, 2, 2, 0, 4, 4], [0, 1, 2, 3, 4, 5]]
)
TARGET = tensor([[2, 1, 5], [0, 3, -1], [4, 5, 0], [1, 0, 4], [3, 1, -1]])
GAINS = tensor([[1, 2, -1], [3, 1, 9], [2, 1, 0], [-1, 1, 2], [2, -1, 9]])

IDS = tensor([[2, 4, 2], [1, -1, 0], [-2, -1, -1], [4, 5, 1], [5, 0, 0]])
OF_IDS = [[2, 4, 2], [1, 0], [], [4, 5, 1], [5, 0, 0]]
VALUES, OFFSETS = tensor([2, 4, 2, 1, 0, 4, 5, 1, 5, 0, 0]), tensor([0, 3, 5, 5, 8, 11])
USERS = tensor([0, 0, 0, 1, 1, 3, 3, 3, 4, 4, 4])  # of each value
SELECTED = trm.Interactions.from_columns(USERS, VALUES, num_users=ROWS, num_items=ITEMS).select(range(ROWS))
PAST, OF_PAST = trm.prefix_history(tensor([0, 4, 2, 1, 3]), tensor([0, 3, 3, 5])), [[], [0], [0, 4], [], [1]]
MASK, OF_MASK = tensor([True, False, False, True, False, False]), [[0, 3]] * ROWS
CELLS = tensor([[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0], [0] * 6]).bool()
OF_CELLS = [[2, 5], [0], [1, 4], [4], []]


def joined(*excluded):
    return [[*chain(*items)] for items in zip(*excluded, strict=True)]


FORMS = {
    "ids [B]": (tensor([2, 0, -1, 4, 5]), [[2], [0], [], [4], [5]]),
    "ids [B, H]": (IDS, OF_IDS),
    "int16": (IDS.short(), OF_IDS),
    "selection": (SELECTED, OF_IDS),
    "pair": ((VALUES, OFFSETS), OF_IDS),
    "Jagged": (trm.Jagged(VALUES, OFFSETS.int()), OF_IDS),
    "nested": (torch.nested.nested_tensor_from_jagged(VALUES, OFFSETS), OF_IDS),
    "spans": (PAST, OF_PAST),
    "bool [I]": (MASK, OF_MASK),
    "bool [B, I]": (CELLS, OF_CELLS),
    "masks": ((MASK, CELLS), joined(OF_MASK, OF_CELLS)),
    "spans and ids": ((PAST, IDS, IDS[:, 0]), joined(OF_PAST, OF_IDS)),
    "spans and mask": ((MASK, PAST), joined(OF_PAST, OF_MASK)),
    "all": ((CELLS, (PAST, IDS), MASK, (VALUES, OFFSETS)), joined(OF_CELLS, OF_PAST, OF_IDS, OF_MASK)),
    "none": (None, [[]] * ROWS),
}
"""Forms of `exclude`, and the items that each row excludes."""
SPANS = ("pair", "Jagged", "nested", "spans", "spans and ids", "spans and mask", "all")
WITHOUT_MASKS = ("ids [B]", "ids [B, H]", "int16", "selection", "pair", "Jagged", "nested", "spans", "spans and ids")


class Case(NamedTuple):
    """Settings of a ranking."""

    graded: bool
    depth: int | None
    padding_idx: int | None
    overlap: str

    @property
    def gains(self):
        return GAINS if self.graded else None

    @property
    def options(self):
        return {"padding_idx": self.padding_idx, "overlap": self.overlap}

    @property
    def of_scores(self):
        """Facts about a ranking of scores, but not of lists."""
        return "num_ranked", "unreachable", "tied" if self.depth is None else "items"


def test_the_items_behind_an_excluded_one_move_up():
    scores, target = tensor([[0.1, 0.9, 0.5]]), tensor([[2, 0]])

    assert trm.Scores(scores, target, exclude=tensor([[1]])).ranking().ranks.tolist() == [[2 - 1, 3 - 1]]


CASES = [  # each two settings occur together
    Case(graded=False, depth=None, padding_idx=None, overlap="keep"),
    Case(graded=False, depth=3, padding_idx=0, overlap="miss"),
    Case(graded=True, depth=None, padding_idx=0, overlap="keep"),
    Case(graded=True, depth=3, padding_idx=None, overlap="keep"),
    Case(graded=True, depth=None, padding_idx=None, overlap="miss"),
]
in_cases = pytest.mark.parametrize("case", CASES, ids=str)
in_cases_of_lists = pytest.mark.parametrize("case", [case._replace(depth=None) for case in CASES], ids=str)


def of_forms(forms):
    """Return a decorator that tries forms of `exclude`, those of spans with one row padded at a time, too."""
    sizes = {form: [1, 2**18] if form in SPANS else [1] for form in forms}
    parameters = [pytest.param(*FORMS[form], size, id=f"{form}-{size}") for form in forms for size in sizes[form]]
    return pytest.mark.parametrize(("exclude", "excluded", "ids_at_once"), parameters, indirect=["ids_at_once"])


@pytest.fixture
def ids_at_once(request, monkeypatch):
    """Pad so many ids at once."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", request.param)


def ranking_of(case, batch):
    """Return the ranking of a batch of scores, or of some columns of them."""
    return batch.ranking(case.depth, items=bool(case.depth), score_threshold=2, ties="realistic", **case.options)


def rounded(places, depth):
    return [(round(rank, 9), round(gain, 9)) for rank, gain in places if rank <= (depth or ITEMS)]


def places(items, depth):
    """Return rank and gain of the items of each row, down to the depth."""
    if items is None:
        return [[]] * ROWS
    gains = items.placed(torch.clone).tolist()
    return [rounded(zip(*row, strict=True), depth) for row in zip(items.ranks.tolist(), gains, strict=True)]


def facts(case, ranking, names=()):
    """Return what a ranking says about its rows."""
    columns = {name: getattr(ranking, name).tolist() for name in ("num_relevant", "num_recommended", *names)}
    items = {"hits": places(ranking.relevant, case.depth), "unwanted": places(ranking.penalties, case.depth)}
    return columns | items


def candidates(case, row, gain, excluded):
    """Return the items that can be ranked, best first, equal scores by ascending id."""
    kept = {item for item in gain if gain[item] > 0} - {case.padding_idx} if case.overlap == "keep" else set()
    gone = {*excluded} - kept | {case.padding_idx}
    left = [item for item in range(ITEMS) if item not in gone and row[item] > -INF]
    return sorted(left, key=lambda item: (-row[item], item))


def plain_facts(case, scores, excluded, names=()):
    """Return the same about rows that plain Python ranks without the excluded items."""
    gains, rows = GAINS if case.graded else torch.ones_like(GAINS), []
    for row, ids, values, out in zip(scores, TARGET.tolist(), gains.tolist(), excluded, strict=True):
        gain = {item: value for item, value in zip(ids, values, strict=True) if item >= 0}
        user = reference.rank(row, gain, out, "realistic", **case.options, threshold=2)
        user.hits, user.unwanted = rounded(user.hits, case.depth), rounded(user.unwanted, case.depth)
        user.num_relevant = len(user.gains)
        user.items = [*candidates(case, row, gain, out), -1, -1, -1][: case.depth]
        rows.append(user)
    names = ("num_relevant", "num_recommended", *names, "hits", "unwanted")
    return {name: [getattr(user, name) for user in rows] for name in names}


@pytest.mark.parametrize("copies", [True, False], ids=["overwritten in a copy", "subtracted from counts"])
@in_cases
@of_forms(FORMS)
def test_scores_rank_as_in_plain_python_with_every_exclude(exclude, excluded, case, copies, ids_at_once, monkeypatch):
    monkeypatch.setattr(scores_module.TargetCounter, "copies_pay", lambda *_: copies)
    ranking = ranking_of(case, trm.Scores(SCORES, TARGET, case.gains, exclude=exclude))

    assert facts(case, ranking, case.of_scores) == plain_facts(case, SCORES.tolist(), excluded, case.of_scores)


@of_forms(FORMS)
def test_rows_whose_relevant_items_are_excluded_are_bad_rows(exclude, excluded, ids_at_once):
    ranking = trm.Scores(SCORES, TARGET, exclude=exclude).ranking(overlap="error", validate_args="deferred")
    rows = zip(TARGET.tolist(), excluded, strict=True)

    assert ranking.rows.valid.tolist() == [not {*target} & {*out} for target, out in rows]


@pytest.mark.parametrize("borders", [(0, ITEMS), (0, 1, 1, 4, ITEMS)])
@in_cases
@of_forms([form for form in FORMS if form not in ("bool [B, I]", "masks", "all")])
def test_pieces_of_columns_rank_as_in_plain_python(exclude, excluded, case, borders, ids_at_once):
    """As on processes that hold shards of the items."""
    counter = ShardCounter(
        target=TARGET,
        gains=case.gains,
        exclude=exclude,
        shape=(ROWS, ITEMS),
        dtype=SCORES.dtype,
        device=SCORES.device,
        needs=Needs(case.depth, num_ranked=True, score_threshold=2, list_depth=case.depth or 0),
        options=Options("realistic", **case.options),
    )
    pieces = [(SCORES[:, start:stop], start) for start, stop in pairwise(borders)]
    target_scores = torch.stack([counter.target_scores(*piece) for piece in pieces]).amax(0)
    counted = sum(counter.count(*piece, target_scores) for piece in pieces)
    best = merged([counter.best(*piece) for piece in pieces], case.depth or 0)
    ranking = counter.ranking(target_scores, counted, best)

    assert facts(case, ranking, case.of_scores) == plain_facts(case, SCORES.tolist(), excluded, case.of_scores)


@pytest.mark.parametrize("items", [[3, 5, 1, 0, 4, 2], [3, 5, 1, 4]])
@in_cases
@of_forms(WITHOUT_MASKS)
def test_candidates_rank_as_scores_with_minus_inf_elsewhere(exclude, excluded, case, items, ids_at_once):
    batch = trm.Candidates(SCORES[:, items], TARGET, items=tensor(items), gains=case.gains, exclude=exclude)
    ranking = ranking_of(case, batch)
    full = [[score if item in items else -INF for item, score in enumerate(row)] for row in SCORES.tolist()]

    assert facts(case, ranking, case.of_scores) == plain_facts(case, full, excluded, case.of_scores)


LISTS = [[2, 0, 4, 3, 1], [5, 4, 3, -1, -1], [0, 1, 2, 3, 4], [4, 5, 1, 2, 3], [5, 4, 3, 2, 1]]
SCORES_OF_LISTS = [[9.0 - row.index(item) if item in row else -INF for item in range(ITEMS)] for row in LISTS]


@in_cases_of_lists
@of_forms(FORMS)
def test_lists_rank_as_in_plain_python_with_every_exclude(exclude, excluded, case, ids_at_once):
    lists = trm.Lists(tensor(LISTS), TARGET, case.gains, exclude=exclude, complete=True)

    assert facts(case, lists.ranking(**case.options)) == plain_facts(case, SCORES_OF_LISTS, excluded)


@pytest.mark.parametrize("shared", ["tie", "first", "code"])
@in_cases_of_lists
@of_forms(WITHOUT_MASKS)
def test_codes_that_no_items_share_rank_as_lists_of_the_items(exclude, excluded, case, shared, ids_at_once):
    codes = tensor([[item, item % 3] for item in range(ITEMS)] + [[-1, -1]])  # the last one for padding
    beams, index = codes[tensor(LISTS)], trm.SemanticIds(codes[:-1])
    batch = index.beams(beams, TARGET, gains=case.gains, exclude=exclude, shared=shared, complete=True)

    assert facts(case, batch.ranking(**case.options)) == plain_facts(case, SCORES_OF_LISTS, excluded)


@pytest.mark.parametrize("exclude", [tensor([True, False]), tensor([[True, False]]), (tensor([0]), tensor([True] * 2))])
def test_a_mask_beside_codes_is_refused(exclude):
    """Lists of codes leave out ids alone."""
    codes = trm.SemanticIds(tensor([[7], [8]]))
    batch = codes.beams(tensor([[[8], [7]]]), tensor([1]), exclude=exclude)

    with pytest.raises(TypeError, match="exclude with codes must be item ids"):
        batch.ranking()


def of_meta(*shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device="meta")


META_SCORES, META_TARGET, META_IDS = of_meta(5, 6, dtype=torch.float32), of_meta(5, 4), of_meta(5, 6)
META_MASK, META_CELLS = of_meta(6, dtype=torch.bool), of_meta(5, 6, dtype=torch.bool)
META_JAGGED = trm.Jagged(of_meta(20), of_meta(6), max_length=6)
META_PAST = trm.prefix_history(of_meta(5), of_meta(4), max_length=4)
META_MASKS = {"bool [I]": META_MASK, "tuple": (META_CELLS, (META_PAST, META_IDS), META_MASK, META_JAGGED)}
META_FORMS = {"ids": META_IDS, "Jagged": META_JAGGED, "spans": META_PAST, "none": None} | META_MASKS
CUT = {"depth": 3, "items": True, "score_threshold": 0.5}
META_CALLS = {
    "Scores": lambda rule, exclude: trm.Scores(META_SCORES, META_TARGET, exclude=exclude).ranking(**rule),
    "cut": lambda rule, exclude: trm.Scores(META_SCORES, META_TARGET[:, 0], exclude=exclude).ranking(**CUT, **rule),
    "get_topk_ranks": lambda rule, exclude: trm.get_topk_ranks(META_SCORES, META_TARGET, 3, exclude=exclude, **rule),
    "Lists": lambda rule, exclude: trm.Lists(META_IDS, META_TARGET, exclude=exclude).ranking(**rule),
    "Candidates": lambda rule, exclude: trm.Candidates(
        META_SCORES, META_TARGET, items=META_IDS[0], exclude=exclude
    ).ranking(**CUT, **rule),
}


@pytest.mark.parametrize("at_once", [10, 2**22])
@pytest.mark.parametrize("rule", [{}, {"padding_idx": 0, "overlap": "keep"}, {"padding_idx": 0, "overlap": "miss"}])
@pytest.mark.parametrize(
    ("call", "form"),
    [pair for pair in product(META_CALLS, META_FORMS) if pair not in product(["Candidates"], META_MASKS)],
)
def test_no_form_of_exclude_waits_for_the_device(call, form, rule, at_once, monkeypatch):
    """On "meta", reading a value raises."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS", at_once)

    with never_waits():
        META_CALLS[call](rule, META_FORMS[form])


@pytest.mark.parametrize("mask_of_items_0_to_4", [torch.ones(5).bool(), torch.ones(1, 5).bool()])
def test_an_id_as_large_as_the_mask_is_long_is_not_excluded(mask_of_items_0_to_4):
    lists = trm.Lists(tensor([[1, 4, 5]]), tensor([[5]]), exclude=mask_of_items_0_to_4, complete=True)

    assert lists.ranking().ranks.tolist() == [[1]]


THREE_IS_THE_BEST = {"scores": tensor([[0.0, 1, 2, 3]] * 2), "target": tensor([3, 3])}


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_an_integer_matrix_of_0_and_1_is_refused(padding_idx):
    batch = trm.Scores(**THREE_IS_THE_BEST, exclude=tensor([[0, 1, 0, 1], [1, 0, 0, 0]]))

    with pytest.raises(ValueError, match=r"2 of 2 rows whose exclude, .*0 and 1 alone .*exclude.bool\(\); .* with -1"):
        batch.ranking(padding_idx=padding_idx)
    assert batch.ranking(validate_args="deferred").rows.valid.tolist() == [False, False]


@pytest.mark.parametrize(
    ("exclude", "padding_idx"),
    [
        (tensor([[0, 1, 0, 1], [2, 0, 0, 0]]), None),  # one row has another item
        (tensor([[0, 1, 0, 1], [1, 0, 0, 0]]), 0),
        (tensor([[0, 1, 0, 1], [1, 0, 0, 0]]), 1),
        (tensor([[0, 1, 0], [1, 0, 0]]), None),  # fewer columns than items
    ],
)
def test_ids_0_and_1_are_a_history_if_they_can_be_no_matrix(exclude, padding_idx):
    ranking = trm.Scores(**THREE_IS_THE_BEST, exclude=exclude).ranking(padding_idx=padding_idx)

    assert ranking.ranks.tolist() == [[1], [1]]


def test_a_history_of_two_items_in_a_catalogue_of_two_is_taken():
    assert trm.HR(1, overlap="miss")(tensor([[0.0, 1.0]]), tensor([1]), exclude=tensor([[0, 0]])) == 1


ITEM_1_OUT = {"target": tensor([[0, 1]]), "gains": tensor([[1, -1]]), "exclude": tensor([[1]]), "complete": True}
THREE_OF_ONE_CODE, LAST_TWO_OF_ONE_CODE = trm.SemanticIds(tensor([[0]] * 3)), trm.SemanticIds(tensor([[1], [0], [0]]))
DCG_OF_INPUTS = {
    "equal scores": (trm.Lists(tensor([[1, 0]]), **ITEM_1_OUT, scores=torch.zeros(1, 2)), 1),
    # items 0 and 2 are left, in either order
    "tied items": (THREE_OF_ONE_CODE.beams(tensor([[[0]]]), **ITEM_1_OUT), (1 + 1 / math.log2(3)) / 2),
    "first items": (THREE_OF_ONE_CODE.beams(tensor([[[0]]]), **ITEM_1_OUT, shared="first"), 1),
    # the code of items 1 and 2 stays before that of item 0
    "compared codes": (
        LAST_TWO_OF_ONE_CODE.beams(tensor([[[0], [1]]]), **ITEM_1_OUT, shared="code"),
        1 / math.log2(3),
    ),
}


@pytest.mark.parametrize("overlap", ["keep", "miss"])
@pytest.mark.parametrize(("batch", "dcg"), DCG_OF_INPUTS.values(), ids=DCG_OF_INPUTS)
def test_an_excluded_item_with_a_negative_gain_is_no_penalty(batch, dcg, overlap):
    metrics = trm.RecMetricCollection(["DCG", "NDCG"], overlap=overlap)
    metrics.update(batch)

    assert numbers(metrics.compute()) == pytest.approx({"DCG": dcg, "NDCG": dcg})
