"""Every form of `exclude` on every path gives the ranks of plain Python, with and without a padding item."""

import math
from itertools import pairwise, product

import pytest
import reference
import torch
from values import numbers
from waiting import never_waits

import torchrecmetrics as trm
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs import exclusion as exclude_module
from torchrecmetrics.inputs import scores as scores_module
from torchrecmetrics.inputs.item_shard import ShardCounter
from torchrecmetrics.kernels import merged

INF = math.inf
ROWS, ITEMS = 7, 13
OFFSETS = torch.tensor([0, 4, 4, 7])  # of three sequences of 4, 0 and 3 items: one row per position


class Batch:
    """Scores with ties and -inf, targets with or without gains, and excluded items in every form."""

    def __init__(self, seed, graded):
        choose = torch.Generator().manual_seed(seed)
        scores = torch.randint(0, 5, (ROWS, ITEMS), generator=choose).double()
        scores[torch.rand(ROWS, ITEMS, generator=choose) < 0.1] = -INF
        target = torch.rand(ROWS, ITEMS, generator=choose).argsort(1)[:, :4]
        target[torch.rand(ROWS, 4, generator=choose) < 0.2] = -1
        gains = torch.randint(-1, 4, (ROWS, 4), generator=choose)
        self.rows = Rows(scores, target, gains if graded else None)
        ids = torch.randint(-2, ITEMS, (ROWS, 6), generator=choose)
        ids[:, 4] = ids[:, 1]  # repeats
        ids[::2, 5] = 0  # the padding item, if there is one
        ids[3] = -1
        packed = torch.randint(-1, ITEMS, (ROWS,), generator=choose)
        packed[[0, 2, 4]] = torch.tensor([0, 0, 0])
        everywhere = torch.rand(ITEMS, generator=choose) < 0.15
        everywhere[0] = graded
        cells = torch.rand(ROWS, ITEMS, generator=choose) < 0.15
        rows = [[item for item in row if item >= 0] for row in ids.tolist()]
        values = torch.tensor([item for row in rows for item in row])
        offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
        past = [packed[start:at].tolist() for start, stop in ((0, 4), (4, 7)) for at in range(start, stop)]
        of_ids, of_first = ids.tolist(), ids[:, :1].tolist()
        of_everywhere = [everywhere.nonzero()[:, 0].tolist()] * ROWS
        of_cells = [row.nonzero()[:, 0].tolist() for row in cells]
        spans = trm.prefix_history(packed, OFFSETS)
        users = torch.arange(ROWS).repeat_interleave(offsets.diff())
        chosen = trm.Interactions.from_columns(users, values, num_users=ROWS, num_items=ITEMS).select(range(ROWS))

        def joined(*excluded):
            return [[item for items in excluded for item in items[row]] for row in range(ROWS)]

        self.forms = {
            "ids [B]": (ids[:, 0], of_first),
            "ids [B, H]": (ids, of_ids),
            "int16": (ids.short(), of_ids),
            "selection": (chosen, of_ids),
            "pair": ((values, offsets), of_ids),
            "Jagged": (trm.Jagged(values, offsets.int()), of_ids),
            "nested": (torch.nested.nested_tensor_from_jagged(values, offsets), of_ids),
            "spans": (spans, past),
            "bool [I]": (everywhere, of_everywhere),
            "bool [B, I]": (cells, of_cells),
            "masks": ((everywhere, cells), joined(of_everywhere, of_cells)),
            "spans and ids": ((spans, ids, ids[:, 0]), joined(past, of_ids)),
            "spans and mask": ((everywhere, spans), joined(past, of_everywhere)),
            "all": (
                (cells, (spans, ids), everywhere, (values, offsets)),
                joined(of_cells, past, of_ids, of_everywhere),
            ),
            "none": (None, [[]] * ROWS),
        }
        # lists of most items, best first, and rows whose scores have the order of the lists
        self.lists = scores.argsort(dim=1, descending=True, stable=True)[:, :10]
        self.lists[1, 6:] = -1
        order = torch.full((ROWS, ITEMS + 1), -INF)
        order.scatter_(1, self.lists.where(self.lists >= 0, ITEMS), -torch.arange(10.0).expand(ROWS, -1))
        self.rows_of_lists = Rows(order[:, :ITEMS], target, self.rows.gains)


class Rows:
    """Scores, targets and gains, as plain Python ranks them."""

    def __init__(self, scores, target, gains):
        self.scores, self.target, self.gains, self.users = scores, target, gains, {}

    def candidates(self, columns):
        """Return the rows with -inf for items that are not in `columns`."""
        other = torch.ones(ITEMS, dtype=torch.bool).index_fill(0, columns, False)
        return Rows(self.scores.masked_fill(other, -INF), self.target, self.gains)

    def ranked(self, out, padding_idx, overlap):
        """Return each row as plain Python ranks it without the items `out`."""
        key = id(out), padding_idx, overlap
        if key not in self.users:
            gains = torch.ones_like(self.target) if self.gains is None else self.gains
            self.users[key] = []
            for scores, ids, values, excluded in zip(
                self.scores.tolist(), self.target.tolist(), gains.tolist(), out, strict=True
            ):
                gain = {item: value for item, value in zip(ids, values, strict=True) if item >= 0}
                user = reference.rank(scores, gain, excluded, "realistic", padding_idx, overlap, threshold=2)
                self.users[key].append(user)
        return self.users[key]

    def relevant(self, padding_idx):
        """Return the relevant items of each row."""
        relevant = self.target if self.gains is None else self.target.where(self.gains > 0, -1)
        return [set(row) - {-1, padding_idx} for row in relevant.tolist()]

    def best(self, out, padding_idx, overlap):
        """Return the candidates of each row, best first, equal scores by ascending id."""
        lists = []
        for scores, excluded, relevant in zip(self.scores.tolist(), out, self.relevant(padding_idx), strict=True):
            gone = (set(excluded) - (relevant if overlap == "keep" else set())) | {padding_idx}
            items = [item for item in range(ITEMS) if item not in gone and scores[item] > -INF]
            lists.append(sorted(items, key=lambda item: (-scores[item], item)))
        return lists


BATCHES = Batch(0, graded=False), Batch(1, graded=True)
FORMS = list(BATCHES[0].forms)
SPANS = ("pair", "Jagged", "nested", "spans", "spans and ids", "spans and mask", "all")
MASKED = ("bool [I]", "bool [B, I]", "masks", "spans and mask", "all")
ALL_SETTINGS = [
    {"padding_idx": padding_idx, "overlap": overlap} for padding_idx, overlap in product((None, 0), ("keep", "miss"))
]


def rounded(pairs, depth):
    return [(round(rank, 9), round(gain, 9)) for rank, gain in pairs if rank <= depth]


def placed(items, depth):
    """Return rank and gain of the items of each row, down to the depth."""
    gains = items.placed(torch.clone).tolist()
    return [rounded(zip(*row, strict=True), depth) for row in zip(items.ranks.tolist(), gains, strict=True)]


def check_places(ranking, rows, users, depth=ITEMS):
    assert placed(ranking.relevant, depth) == [rounded(user.hits, depth) for user in users]
    if rows.gains is not None:
        assert placed(ranking.penalties, depth) == [rounded(user.unwanted, depth) for user in users]
    assert ranking.num_relevant.tolist() == [len(user.gains) for user in users]


def check(ranking, rows, out, depth, settings):
    """Assert that a ranking of scores is that of plain Python, down to the depth."""
    users = rows.ranked(out, **settings)
    check_places(ranking, rows, users, depth or ITEMS)
    for name in ("num_ranked", "num_recommended", "unreachable", *(["tied"] if depth is None else [])):
        assert getattr(ranking, name).tolist() == [getattr(user, name) for user in users], name
    if depth is not None:
        best = [row[:depth] for row in rows.best(out, **settings)]
        assert ranking.items.tolist() == [row + [-1] * (depth - len(row)) for row in best]


def check_list(ranking, rows, out, settings):
    users = rows.ranked(out, **settings)
    check_places(ranking, rows, users)
    assert ranking.num_recommended.tolist() == [user.num_ranked for user in users]


def ranked(rows, exclude, depth, settings, columns=None, **options):
    """Return the ranking of rows, or of their `columns` as candidates."""
    given = {"gains": rows.gains, "exclude": exclude}
    if columns is None:
        batch = trm.Scores(rows.scores, rows.target, **given)
    else:
        batch = trm.Candidates(rows.scores[:, columns], rows.target, items=columns, **given)
    items = depth is not None
    return batch.ranking(depth, items=items, score_threshold=2, ties="realistic", **settings, **options)


def cases(forms):
    """Return a decorator that tries forms, those of spans with one row padded at a time, and with all rows."""
    sizes = [(form, size) for form in forms for size in ([1, 2**18] if form in SPANS else [1])]
    return pytest.mark.parametrize(("form", "rows_at_once"), sizes, indirect=["rows_at_once"])


@pytest.fixture(autouse=True)
def rows_at_once(request, monkeypatch):
    """Pad so many ids at once in tests with this parameter."""
    if hasattr(request, "param"):
        monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", request.param)


@pytest.mark.parametrize("path", ["overwritten", "subtracted"])
@cases(FORMS)
def test_scores(form, path, monkeypatch):
    """Excluded items that are overwritten in a copy, or subtracted from counts, leave the ranks of plain Python."""
    if path == "subtracted":  # as on devices other than the CPU
        monkeypatch.setattr(scores_module.TargetCounter, "copies_pay", lambda *_: False)
    for batch, depth, settings in product(BATCHES, (None, 3), ALL_SETTINGS):
        (exclude, out), rows = batch.forms[form], batch.rows
        before = rows.scores.clone()
        check(ranked(rows, exclude, depth, settings), rows, out, depth, settings)
        assert torch.equal(rows.scores, before)


@cases(FORMS)
def test_deferred(form):
    """With deferred checks a row with an id beyond the last item is left out, and good rows have the same ranks."""
    beyond = torch.full((ROWS,), -1).index_fill(0, torch.tensor([2]), ITEMS)
    for batch, depth, settings in product(BATCHES, (None, 3), ALL_SETTINGS):
        (exclude, out), rows = batch.forms[form], batch.rows
        both = (beyond,) if exclude is None else (exclude, beyond)
        ranking = ranked(rows, both, depth, settings, validate_args="deferred")
        assert ranking.rows.valid.tolist() == [row != 2 for row in range(ROWS)]
        check(ranking, rows, out, depth, settings)  # the id itself excludes nothing
        with pytest.raises(ValueError, match=f"1 of 7 rows with an excluded id beyond .* row 2 excludes {ITEMS} of"):
            ranked(rows, both, depth, settings)


@cases(FORMS)
def test_overlap_error(form):
    """A relevant item that is excluded is an error, at once or later; other rows rank as with "miss"."""
    for batch, depth, padding_idx in product(BATCHES, (None, 3), (None, 0)):
        (exclude, out), rows = batch.forms[form], batch.rows
        settings = {"padding_idx": padding_idx, "overlap": "error"}
        relevant = rows.relevant(padding_idx)
        bad = [bool(items & set(excluded)) for items, excluded in zip(relevant, out, strict=True)]
        later = ranked(rows, exclude, depth, settings, validate_args="deferred")
        assert later.rows.valid.tolist() == [not row for row in bad]
        if any(bad):
            with pytest.raises(ValueError, match=f"^{sum(bad)} of 7 rows with a target that is also excluded"):
                ranked(rows, exclude, depth, settings)
        else:
            check(ranked(rows, exclude, depth, settings), rows, out, depth, settings | {"overlap": "miss"})


@cases(FORMS)
def test_topk_ranks(form):
    """`get_topk_ranks` numbers the targets as plain Python does, rounded up; excluded targets are not in the top k."""
    rows = Rows(BATCHES[1].rows.scores, BATCHES[1].rows.target, None)
    for k, settings in product((3, ITEMS), ALL_SETTINGS):
        exclude, out = BATCHES[1].forms[form]
        ranks = trm.get_topk_ranks(rows.scores, rows.target, k, exclude=exclude, **settings)
        for row, user in zip(ranks.tolist(), rows.ranked(out, **settings), strict=True):
            expected = [math.ceil(rank) for rank, _ in user.hits if math.ceil(rank) <= k]
            assert sorted(rank for rank in row if 0 < rank <= k) == expected
            assert sum(rank > 0 for rank in row) == len(user.gains)


@cases([form for form in FORMS if form not in ("bool [B, I]", "masks", "all")])
@pytest.mark.parametrize("borders", [(0, ITEMS), (0, 1, 1, 9, ITEMS)])
def test_pieces(form, borders):
    """Scores that come in pieces of columns, as on shards of items, rank as whole rows do."""
    for batch, depth, settings in product(BATCHES, (None, 3), ALL_SETTINGS):
        (exclude, out), rows = batch.forms[form], batch.rows
        needs = Needs(depth, num_ranked=True, score_threshold=2, list_depth=depth or 0)
        counter = ShardCounter(
            target=rows.target,
            gains=rows.gains,
            exclude=exclude,
            shape=(ROWS, ITEMS),
            dtype=torch.float64,
            device=rows.scores.device,
            needs=needs,
            options=Options("realistic", **settings),
        )
        pieces = [(rows.scores[:, start:stop], start) for start, stop in pairwise(borders)]
        target_scores = torch.stack([counter.target_scores(*piece) for piece in pieces]).amax(0)
        counted = sum(counter.count(*piece, target_scores) for piece in pieces)
        best = merged([counter.best(*piece) for piece in pieces], needs.list_depth)
        check(counter.ranking(target_scores, counted, best), rows, out, depth, settings)


ORDER = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(5))


@cases([form for form in FORMS if form not in MASKED])
@pytest.mark.parametrize("columns", [ORDER, ORDER[:8]])
def test_candidates(form, columns):
    """Scores of some items rank as full scores with -inf elsewhere, and the lists hold item ids."""
    for batch, depth, settings in product(BATCHES, (None, 3), ALL_SETTINGS):
        exclude, out = batch.forms[form]
        ranking = ranked(batch.rows, exclude, depth, settings, columns)
        check(ranking, batch.rows.candidates(columns), out, depth, settings)


@cases(FORMS)
def test_lists(form):
    """Excluded items leave lists, and later items move up, as in scores of the same order."""
    for batch, settings in product(BATCHES, ALL_SETTINGS):
        (exclude, out), rows = batch.forms[form], batch.rows_of_lists
        lists = trm.Lists(batch.lists, rows.target, gains=rows.gains, exclude=exclude, complete=True)
        ranking = lists.ranking(validate_args="deferred", **settings)
        assert ranking.rows.valid.all()
        check_list(ranking, rows, out, settings)
        listed = [[item for item in row if item >= 0] for row in ranking.items.tolist()]
        assert listed == rows.best(out, **settings)


@cases([form for form in FORMS if form not in MASKED])
@pytest.mark.parametrize("shared", ["tie", "first", "code"])
def test_beams(form, shared):
    """Codes that no two items share rank as lists of the items do."""
    codes = trm.SemanticIds(torch.stack([torch.arange(ITEMS), torch.arange(ITEMS) % 3], 1))
    for batch, settings in product(BATCHES, ALL_SETTINGS):
        (exclude, out), rows = batch.forms[form], batch.rows_of_lists
        beams = codes.codes[batch.lists.clamp(min=0)].where((batch.lists >= 0)[..., None], -1)
        given = {"gains": rows.gains, "exclude": exclude, "shared": shared, "complete": True}
        check_list(codes.beams(beams, rows.target, **given).ranking(**settings), rows, out, settings)


@pytest.mark.parametrize("form", MASKED)
def test_masks_beside_codes(form):
    """A bool beside generated codes is refused, because lists of codes leave out ids alone."""
    batch, codes = BATCHES[0], trm.SemanticIds(torch.arange(ITEMS)[:, None])
    with pytest.raises(TypeError, match="exclude with codes must be item ids"):
        codes.beams(batch.lists[..., None], batch.rows.target, exclude=batch.forms[form][0]).ranking()


def on_meta():
    """Return the forms of `exclude` on the device `meta`, which has no values to read."""
    ids, values, offsets, packed, ends = (
        torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((ROWS, 6), 20, ROWS + 1, ROWS, 4)
    )
    past, known = trm.prefix_history(packed, ends, max_length=4), trm.Jagged(values, offsets, 6)
    everywhere, cells = (torch.empty(shape, dtype=torch.bool, device="meta") for shape in ((ITEMS,), (ROWS, ITEMS)))
    all_forms = cells, (past, ids), everywhere, known
    return {"ids": ids, "Jagged": known, "spans": past, "bool [I]": everywhere, "tuple": all_forms, "none": None}


@pytest.mark.parametrize("at_once", [10, 2**22])
@pytest.mark.parametrize("form", on_meta())
def test_never_waits_for_the_device(form, at_once, monkeypatch):
    """Every form of `exclude` is ranked on `meta`, where reading a value raises: scores, lists, candidates, updates."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS", at_once)
    exclude, scores = on_meta()[form], torch.empty(ROWS, ITEMS, device="meta")
    ids, columns = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((ROWS, 5), ITEMS))
    for target, padding_idx, overlap in ((ids, None, "error"), (ids[:, 0], 0, "keep"), (ids, 0, "miss")):
        options = {"padding_idx": padding_idx, "overlap": overlap}
        metrics = trm.RecMetricCollection(["NDCG", "AUROC", "RPrecision"], k=3, **options).to("meta")
        with never_waits():
            rows = trm.Scores(scores, target, exclude=exclude)
            for depth in (None, 3):
                ranking = rows.ranking(depth, items=depth is not None, score_threshold=0.5, **options)
                assert ranking.ranks.shape == (ROWS, 5 if target is ids else 1)
            assert trm.get_topk_ranks(scores, target, 3, exclude=exclude, **options).shape == ranking.ranks.shape
            assert trm.Lists(ids, target, exclude=exclude).ranking(**options).ranks.is_meta
            if form not in ("bool [I]", "tuple"):
                candidates = trm.Candidates(scores, target, items=columns, exclude=exclude)
                assert candidates.ranking(3, items=True, **options).items.is_meta
            metrics.update(rows)


def test_a_mask_has_no_item_behind_its_last():
    """An id as large as the mask is long is no item of the mask: it is not excluded, and nothing is read behind it."""
    items, mask = torch.tensor([[5, 1, 4]]), torch.ones(5, dtype=torch.bool)
    for exclude in (mask, mask[None]):
        rows = trm.Lists(items, torch.tensor([[5]]), exclude=exclude, complete=True)
        assert rows.ranking().ranks.tolist() == [[1]]


IS_MATRIX = (
    r"exclude, .*holds 0 and 1 alone \(pass a 0/1 matrix as exclude.bool\(\); if these are ids, pad them with -1"
)


def test_histories_of_two_items_are_no_matrix():
    """Rows that hold the ids 0 and 1 alone are a 0/1 matrix if all rows do, unless one of the two is padding."""
    matrix, history = torch.tensor([[0, 1] * 5, [1, 0] * 5]), torch.tensor([[0, 1] * 5, [7, 1] * 5])
    scores, target = torch.arange(10.0).expand(2, -1), torch.tensor([9, 9])
    with pytest.raises(ValueError, match=rf"2 of 2 rows whose {IS_MATRIX}"):
        trm.get_topk_ranks(scores, target, 3, exclude=matrix)
    for exclude, padding_idx in ((history, None), (matrix, 0), (matrix, 1)):
        ranks = trm.get_topk_ranks(scores, target, 3, exclude=exclude, padding_idx=padding_idx)
        assert ranks.tolist() == [[1], [1]]


@pytest.mark.parametrize(("shape", "is_refused"), [((4, 3), True), ((1, 3), True), ((40, 2), False)])
def test_narrow_matrices(shape, is_refused):
    """From three items on, a matrix of 0 and 1 is no history."""
    scores, matrix = torch.arange(float(shape[1])).expand(shape), torch.zeros(shape, dtype=torch.int64)
    matrix[:, 1] = 1
    values = {"scores": scores, "target": torch.full((shape[0],), shape[1] - 1), "exclude": matrix}
    metric, deferred = trm.HR(1, overlap="miss"), trm.HR(1, overlap="miss", validate_args="deferred")
    deferred.update(**values)
    if not is_refused:
        metric.update(**values)
        return
    for run in (lambda: metric.update(**values), deferred.compute):
        with pytest.raises(ValueError, match=IS_MATRIX):
            run()


PENALTY = {"target": torch.tensor([[0, 1]]), "gains": torch.tensor([[1.0, -1.0]]), "exclude": torch.tensor([[1]])}
EQUAL, LISTED = torch.zeros(1, 2), torch.tensor([[1, 0]])
BEAM, TIED = torch.zeros(1, 1, 1).long(), trm.SemanticIds(torch.zeros(3, 1).long())
SINGLE, PAIR = trm.SemanticIds(torch.arange(2)[:, None]), trm.SemanticIds(torch.tensor([[1], [0], [0]]))
WITH_PENALTIES = {
    "scores": (trm.Scores(EQUAL, **PENALTY), 1),
    "lists": (trm.Lists(LISTED, **PENALTY, complete=True), 1),
    "lists with scores": (trm.Lists(LISTED, **PENALTY, scores=EQUAL, complete=True), 1),
    "candidates": (trm.Candidates(EQUAL, items=LISTED[0], **PENALTY), 1),
    "codes": (SINGLE.beams(LISTED[..., None], **PENALTY, complete=True), 1),
    "tied items": (TIED.beams(BEAM, **PENALTY, complete=True), (1 + 1 / math.log2(3)) / 2),
    "first items": (TIED.beams(BEAM, **PENALTY, shared="first", complete=True), 1),
    "compared codes": (PAIR.beams(1 - LISTED[..., None], **PENALTY, shared="code", complete=True), 1 / math.log2(3)),
}
"""Inputs in which item 1 is excluded and has a negative gain, and their DCG."""


@pytest.mark.parametrize("overlap", ["keep", "miss"])
@pytest.mark.parametrize("kind", WITH_PENALTIES)
def test_excluded_penalties(kind, overlap):
    """An excluded item with a negative gain is no candidate, and so no penalty."""
    batch, expected = WITH_PENALTIES[kind]
    metrics = trm.RecMetricCollection(["DCG", "NDCG"], overlap=overlap)
    metrics.update(batch)
    assert list(numbers(metrics.compute()).values()) == pytest.approx([expected] * 2)
