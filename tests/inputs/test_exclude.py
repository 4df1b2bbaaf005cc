"""Every form of `exclude` on every path gives the ranks of plain Python, with and without a padding item."""

import math
from itertools import pairwise, product

import pytest
import reference
import torch

import torchrecmetrics as trm
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs import exclude as exclude_module
from torchrecmetrics.inputs import scores as scores_module
from torchrecmetrics.inputs.item_shard import ShardCounter
from torchrecmetrics.kernels import eager

INF = math.inf
ROWS, ITEMS = 7, 13
OFFSETS = torch.tensor([0, 4, 4, 7])  # of three sequences of 4, 0 and 3 items: one row per position
SEEDS = (0, 1)


class Batch:
    """Scores with ties and -inf, targets with gains, and excluded items in every form."""

    def __init__(self, seed):
        self.users = {}
        choose = torch.Generator().manual_seed(seed)
        self.scores = torch.randint(0, 5, (ROWS, ITEMS), generator=choose).double()
        self.scores[torch.rand(ROWS, ITEMS, generator=choose) < 0.1] = -INF
        self.target = torch.rand(ROWS, ITEMS, generator=choose).argsort(1)[:, :4]
        self.target[torch.rand(ROWS, 4, generator=choose) < 0.2] = -1
        self.gains = torch.randint(-1, 4, (ROWS, 4), generator=choose)
        ids = torch.randint(-2, ITEMS, (ROWS, 6), generator=choose)
        ids[:, 4] = ids[:, 1]  # repeats
        ids[::2, 5] = 0  # the padding item, if there is one
        ids[3] = -1
        packed = torch.randint(-1, ITEMS, (ROWS,), generator=choose)
        packed[[0, 2, 4]] = torch.tensor([0, 0, 0])
        everywhere = torch.rand(ITEMS, generator=choose) < 0.15
        everywhere[0] = bool(seed % 2)
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
                (cells, (spans, ids[:, :2]), everywhere, (values, offsets)),
                joined(of_cells, past, of_ids, of_everywhere),
            ),
            "none": (None, [[]] * ROWS),
        }


class Scored:
    """A batch with other scores."""

    def __init__(self, batch, scores):
        self.scores, self.target, self.users = scores, batch.target, {}


BATCHES = {seed: Batch(seed) for seed in SEEDS}
FORMS = list(BATCHES[0].forms)
SPANS = ("pair", "Jagged", "nested", "spans", "spans and ids", "spans and mask", "all")
MASKED = ("bool [I]", "bool [B, I]", "masks", "spans and mask", "all")


def users_of(batch, out, gains, padding_idx, overlap):
    """Return each row as plain Python ranks it."""
    key = (id(out), gains is None, padding_idx, overlap)
    if key not in batch.users:
        rows = []
        for row, values in enumerate(batch.scores.tolist()):
            worth = [1] * 4 if gains is None else gains[row].tolist()
            gain = {item: value for item, value in zip(batch.target[row].tolist(), worth, strict=True) if item >= 0}
            rows.append(reference.rank(values, gain, out[row], "realistic", padding_idx, overlap, threshold=2))
        batch.users[key] = rows
    return batch.users[key]


def relevant_of(batch, gains, padding_idx):
    """Return the relevant items of each row."""
    relevant = batch.target if gains is None else batch.target.where(gains > 0, -1)
    return [set(row) - {-1, padding_idx} for row in relevant.tolist()]


def best_of(batch, out, gains, padding_idx, overlap):
    """Return the candidates of each row, best first, equal scores by ascending id."""
    lists, rows = [], zip(batch.scores.tolist(), out, relevant_of(batch, gains, padding_idx), strict=True)
    for scores, excluded, relevant in rows:
        gone = (set(excluded) - (relevant if overlap == "keep" else set())) | {padding_idx}
        items = [item for item in range(ITEMS) if item not in gone and scores[item] > -INF]
        lists.append(sorted(items, key=lambda item: (-scores[item], item)))
    return lists


def rounded(pairs, depth):
    return [(round(rank, 9), round(gain, 9)) for rank, gain in pairs if rank <= depth]


def placed(items, depth):
    """Return rank and gain of the items of each row, down to the depth."""
    gains = items.placed(torch.clone).tolist()
    return [rounded(zip(*row, strict=True), depth) for row in zip(items.ranks.tolist(), gains, strict=True)]


def check(ranking, batch, out, gains, padding_idx, overlap, depth):
    """Assert that a ranking of scores is that of plain Python, down to the depth."""
    deep, users = ITEMS if depth is None else depth, users_of(batch, out, gains, padding_idx, overlap)
    assert placed(ranking.relevant, deep) == [rounded(user.hits, deep) for user in users]
    if gains is not None:
        assert placed(ranking.penalties, deep) == [rounded(user.unwanted, deep) for user in users]
    assert ranking.num_relevant.tolist() == [len(user.gains) for user in users]
    for name in ("num_ranked", "num_recommended", "unreachable", *(["tied"] if depth is None else [])):
        assert getattr(ranking, name).tolist() == [getattr(user, name) for user in users], name
    if depth is not None:
        best = [row[:depth] for row in best_of(batch, out, gains, padding_idx, overlap)]
        assert ranking.items.tolist() == [row + [-1] * (depth - len(row)) for row in best]


def settings(*overlaps):
    """Yield batches with gains or without, padding_idx, overlap and depth."""
    for seed, padding_idx, overlap, depth, graded in product(
        SEEDS, (None, 0), overlaps or ("keep", "miss"), (None, 3), (False, True)
    ):
        batch = BATCHES[seed]
        yield batch, batch.gains if graded else None, padding_idx, overlap, depth


def ranked(batch, exclude, gains, padding_idx, overlap, depth, columns=None, **options):
    """Return the ranking of a batch, or of its `columns` as candidates."""
    options |= {"ties": "realistic", "padding_idx": padding_idx, "overlap": overlap}
    given = {"gains": gains, "exclude": exclude}
    scores = trm.Scores(batch.scores, batch.target, **given)
    if columns is not None:
        scores = trm.Candidates(batch.scores[:, columns], batch.target, columns, **given)
    return scores.ranking(depth, items=depth is not None, score_threshold=2, **options)


def cases(forms):
    """Return a decorator that tries forms, those of spans with one row padded at a time, and with all rows."""
    sizes = [(form, size) for form in forms for size in ([1, 2**18] if form in SPANS else [1])]
    return pytest.mark.parametrize(("form", "rows_at_once"), sizes, indirect=["rows_at_once"])


@pytest.fixture
def rows_at_once(request, monkeypatch):
    """Pad so many ids at once."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", request.param)


@pytest.mark.usefixtures("rows_at_once")
@pytest.mark.parametrize("path", ["overwritten", "subtracted"])
@cases(FORMS)
def test_scores(form, path, monkeypatch):
    """Excluded items that are overwritten in a copy, or subtracted from counts, leave the ranks of plain Python."""
    if path == "subtracted":  # as on devices other than the CPU
        monkeypatch.setattr(scores_module.TargetCounter, "copies_pay", lambda *_: False)
    for batch, gains, padding_idx, overlap, depth in settings():
        exclude, out = batch.forms[form]
        before = batch.scores.clone()
        ranking = ranked(batch, exclude, gains, padding_idx, overlap, depth)
        check(ranking, batch, out, gains, padding_idx, overlap, depth)
        assert torch.equal(batch.scores, before)


@pytest.mark.parametrize(
    ("width", "items", "depth", "expected"),
    [(1, 60, 5, "compare"), (90, 200, None, "bucket"), (12, 1500, 8, "select")],
)
@pytest.mark.parametrize("path", ["overwritten", "subtracted"])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_few_and_many_targets(width, items, depth, expected, path, padding_idx, monkeypatch, generator):
    """The strategy that is chosen for few targets, for many and for few ranks counts without the excluded items."""
    if path == "subtracted":
        monkeypatch.setattr(scores_module.TargetCounter, "copies_pay", lambda *_: False)
    chosen, choose = [], eager.choose_strategy
    monkeypatch.setattr(eager, "choose_strategy", lambda *given: chosen.append(choose(*given)) or chosen[-1])
    scores = torch.randint(0, items // 2, (5, items), generator=generator).float()
    ids = torch.randint(-1, items, (5, 20), generator=generator)
    ids[:, 0] = 0
    mask = torch.rand(5, items, generator=generator) < 0.1
    target = torch.rand(5, items, generator=generator).argsort(1)[:, :width]
    out = [{*ids[row].tolist(), *mask[row].nonzero()[:, 0].tolist()} for row in range(5)]
    ranking = trm.Scores(scores, target, exclude=(ids, mask)).ranking(depth, padding_idx=padding_idx, overlap="miss")
    assert {strategy.__name__ for strategy in chosen} == {expected}
    for row, values in enumerate(scores.tolist()):
        user = reference.rank(values, dict.fromkeys(target[row].tolist(), 1), out[row], padding_idx=padding_idx)
        hits = [rank for rank, _ in user.hits if depth is None or rank <= depth]
        assert [rank for rank in ranking.ranks[row].tolist() if rank < INF] == pytest.approx(hits)
        assert ranking.num_ranked[row] == user.num_ranked


@pytest.mark.usefixtures("rows_at_once")
@cases(FORMS)
def test_deferred(form):
    """With deferred checks a row with an id beyond the last item is left out, and good rows have the same ranks."""
    beyond = torch.full((ROWS,), -1).index_fill(0, torch.tensor([2]), ITEMS)
    for batch, gains, padding_idx, overlap, depth in settings():
        exclude, out = batch.forms[form]
        both = (beyond,) if exclude is None else (exclude, beyond)
        ranking = ranked(batch, both, gains, padding_idx, overlap, depth, validate_args="deferred")
        assert ranking.valid.tolist() == [row != 2 for row in range(ROWS)]
        check(ranking, batch, out, gains, padding_idx, overlap, depth)  # the id itself excludes nothing
        with pytest.raises(ValueError, match=f"1 of 7 rows with an excluded id beyond .* row 2 excludes {ITEMS} of"):
            ranked(batch, both, gains, padding_idx, overlap, depth)


@pytest.mark.usefixtures("rows_at_once")
@cases(FORMS)
def test_overlap_error(form):
    """A relevant item that is excluded is an error, at once or later; other rows rank as with "miss"."""
    for batch, gains, padding_idx, overlap, depth in settings("error"):
        exclude, out = batch.forms[form]
        relevant = relevant_of(batch, gains, padding_idx)
        bad = [bool(items & set(excluded)) for items, excluded in zip(relevant, out, strict=True)]
        later = ranked(batch, exclude, gains, padding_idx, overlap, depth, validate_args="deferred")
        assert later.valid.tolist() == [not row for row in bad]
        if any(bad):
            with pytest.raises(ValueError, match=f"^{sum(bad)} of 7 rows with a target that is also excluded"):
                ranked(batch, exclude, gains, padding_idx, overlap, depth)
        else:
            ranking = ranked(batch, exclude, gains, padding_idx, overlap, depth)
            check(ranking, batch, out, gains, padding_idx, "miss", depth)


@pytest.mark.usefixtures("rows_at_once")
@cases(FORMS)
def test_topk_ranks(form):
    """`get_topk_ranks` numbers the targets as plain Python does, rounded up; excluded targets are not in the top k."""
    for batch, _, padding_idx, overlap, depth in settings():
        exclude, out = batch.forms[form]
        k, options = depth or ITEMS, {"padding_idx": padding_idx, "overlap": overlap}
        ranks = trm.get_topk_ranks(batch.scores, batch.target, k, exclude=exclude, **options)
        for row, user in enumerate(users_of(batch, out, None, padding_idx, overlap)):
            expected = [math.ceil(rank) for rank, _ in user.hits if math.ceil(rank) <= k]
            assert sorted(rank for rank in ranks[row].tolist() if 0 < rank <= k) == expected
            assert int((ranks[row] > 0).sum()) == len(user.gains)


@pytest.mark.usefixtures("rows_at_once")
@cases([form for form in FORMS if form not in ("bool [B, I]", "masks", "all")])
@pytest.mark.parametrize("borders", [(0, ITEMS), (0, 1, 1, 9, ITEMS)])
def test_pieces(form, borders):
    """Scores that come in pieces of columns, as on shards of items, rank as whole rows do."""
    for batch, gains, padding_idx, overlap, depth in settings():
        exclude, out = batch.forms[form]
        needs = Needs(depth, num_ranked=True, score_threshold=2, list_depth=depth or 0)
        options = Options("realistic", padding_idx, overlap)
        shape, device = (ROWS, ITEMS), batch.scores.device
        rows = ShardCounter(batch.target, gains, exclude, shape, torch.float64, device, needs, options)
        pieces = [(batch.scores[:, a:b], a) for a, b in pairwise(borders)]
        own = torch.stack([rows.target_scores(*piece) for piece in pieces]).amax(0)
        counted = sum(rows.count(*piece, own) for piece in pieces)
        best = [rows.best(*piece) for piece in pieces]
        top, ids = (torch.cat(part, 1) for part in zip(*best, strict=True))
        order = ids.where(ids >= 0, ITEMS).sort(dim=1, stable=True).indices
        order = order.gather(1, top.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
        merged = tuple(part.gather(1, order)[:, : depth or 0] for part in (top, ids))
        check(rows.ranking(own, counted, merged), batch, out, gains, padding_idx, overlap, depth)


def part_of(batch, columns):
    """Return the batch with -inf for items that are not in `columns`."""
    full = torch.full_like(batch.scores, -INF)
    full[:, columns] = batch.scores[:, columns]
    return Scored(batch, full)


ORDER = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(5))
PARTS = {batch: [(columns, part_of(batch, columns)) for columns in (ORDER, ORDER[:8])] for batch in BATCHES.values()}


@pytest.mark.usefixtures("rows_at_once")
@cases([form for form in FORMS if form not in MASKED])
def test_candidates(form):
    """Scores of some items rank as full scores with -inf elsewhere, and the lists hold item ids."""
    for batch, gains, padding_idx, overlap, depth in settings():
        exclude, out = batch.forms[form]
        for columns, whole in PARTS[batch]:
            ranking = ranked(batch, exclude, gains, padding_idx, overlap, depth, columns)
            check(ranking, whole, out, gains, padding_idx, overlap, depth)


@pytest.mark.parametrize("form", MASKED)
def test_masks_beside_codes(form):
    """A bool beside generated codes is refused, because lists of codes leave out ids alone."""
    batch, codes = BATCHES[0], trm.SemanticIds(torch.arange(ITEMS)[:, None])
    with pytest.raises(TypeError, match="exclude beside codes is item ids"):
        codes.beams(LISTS[0][0][..., None], batch.target, exclude=batch.forms[form][0]).ranking()


def lists_of(batch):
    """Return lists of most items, best first, and a batch of scores that have the order of each list."""
    lists = batch.scores.argsort(dim=1, descending=True, stable=True)[:, :10]
    lists[1, 6:] = -1
    order = torch.full((ROWS, ITEMS + 1), -INF)
    order.scatter_(1, lists.where(lists >= 0, ITEMS), -torch.arange(10.0).expand(ROWS, -1))
    return lists, Scored(batch, order[:, :ITEMS])


LISTS = {seed: lists_of(batch) for seed, batch in BATCHES.items()}


def check_list(ranking, whole, out, gains, padding_idx, overlap):
    users = users_of(whole, out, gains, padding_idx, overlap)
    assert placed(ranking.relevant, ITEMS) == [rounded(user.hits, ITEMS) for user in users]
    if gains is not None:
        assert placed(ranking.penalties, ITEMS) == [rounded(user.unwanted, ITEMS) for user in users]
    assert ranking.num_relevant.tolist() == [len(user.gains) for user in users]
    assert ranking.num_recommended.tolist() == [user.num_ranked for user in users]


def settings_of_lists():
    """Yield batches with their lists, gains or none, and options."""
    for seed, padding_idx, overlap, graded in product(SEEDS, (None, 0), ("keep", "miss"), (False, True)):
        batch = BATCHES[seed]
        yield batch, *LISTS[seed], batch.gains if graded else None, {"padding_idx": padding_idx, "overlap": overlap}


@pytest.mark.usefixtures("rows_at_once")
@cases(FORMS)
def test_lists(form):
    """Excluded items leave lists, and later items move up, as in scores of the same order."""
    for batch, lists, whole, gains, options in settings_of_lists():
        exclude, out = batch.forms[form]
        rows = trm.Lists(lists, batch.target, gains=gains, exclude=exclude, complete=True)
        ranking = rows.ranking(validate_args="deferred", **options)
        assert ranking.valid.all()
        check_list(ranking, whole, out, gains, **options)
        listed = [[item for item in row if item >= 0] for row in ranking.items.tolist()]
        assert listed == best_of(whole, out, gains, **options)


@pytest.mark.usefixtures("rows_at_once")
@cases([form for form in FORMS if form not in MASKED])
@pytest.mark.parametrize("shared", ["tie", "first", "code"])
def test_beams(form, shared):
    """Codes that no two items share rank as lists of the items do."""
    codes = trm.SemanticIds(torch.stack([torch.arange(ITEMS), torch.arange(ITEMS) % 3], 1))
    for batch, lists, whole, gains, options in settings_of_lists():
        exclude, out = batch.forms[form]
        beams = codes.codes[lists.clamp(min=0)].where((lists >= 0)[..., None], -1)
        rows = codes.beams(beams, batch.target, gains=gains, exclude=exclude, shared=shared, complete=True)
        check_list(rows.ranking(**options), whole, out, gains, **options)


def on_meta():
    """Return the forms of `exclude` on the device `meta`, which has no values to read."""
    ids, values, offsets, packed, ends = (
        torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((ROWS, 6), 20, ROWS + 1, ROWS, 4)
    )
    past, known = trm.prefix_history(packed, ends, max_length=4), trm.Jagged(values, offsets, 6)
    everywhere, cells = (torch.empty(shape, dtype=torch.bool, device="meta") for shape in ((ITEMS,), (ROWS, ITEMS)))
    all_forms = cells, (past, ids), everywhere, known
    return {"ids": ids, "Jagged": known, "spans": past, "bool [I]": everywhere, "tuple": all_forms, "none": None}


@pytest.mark.parametrize("at_once", [1, 2**22])
@pytest.mark.parametrize("overlap", ["error", "keep", "miss"])
@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("form", on_meta())
def test_never_waits_for_the_device(form, padding_idx, overlap, at_once, monkeypatch):
    """Every form of `exclude` is ranked on `meta`, where reading a value raises: scores, lists, candidates, updates."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS", at_once)
    exclude, options = on_meta()[form], {"padding_idx": padding_idx, "overlap": overlap}
    scores = torch.empty(ROWS, ITEMS, device="meta")
    ids, columns = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((ROWS, 5), ITEMS))
    for target in (ids, ids[:, 0]):
        rows = trm.Scores(scores, target, exclude=exclude)
        for depth in (None, 3):
            found = rows.ranking(depth, items=depth is not None, score_threshold=0.5, **options)
            assert found.ranks.shape == (ROWS, 5 if target is ids else 1)
        assert trm.get_topk_ranks(scores, target, 3, exclude=exclude, **options).shape == found.ranks.shape
        assert trm.Lists(ids, target, exclude=exclude).ranking(**options).ranks.is_meta
        if form not in ("bool [I]", "tuple"):
            candidates = trm.Candidates(scores, target, columns, exclude=exclude)
            assert candidates.ranking(3, items=True, **options).items.is_meta
        trm.RecMetricCollection(["NDCG", "AUROC", "RPrecision"], k=3, **options).to("meta").update(rows)


def test_a_mask_has_no_item_behind_its_last():
    """An id as large as the mask is long is no item of the mask: it is not excluded, and nothing is read behind it."""
    items, mask = torch.tensor([[5, 1, 4]]), torch.ones(5, dtype=torch.bool)
    for exclude in (mask, mask[None]):
        rows = trm.Lists(items, torch.tensor([[5]]), exclude=exclude, complete=True)
        assert rows.ranking().ranks.tolist() == [[1]]


def test_histories_of_two_items_are_no_matrix():
    """Rows that hold the ids 0 and 1 alone are a 0/1 matrix if all rows do, unless one of the two is padding."""
    matrix, history = torch.tensor([[0, 1] * 5, [1, 0] * 5]), torch.tensor([[0, 1] * 5, [7, 1] * 5])
    scores, target = torch.arange(10.0).expand(2, -1), torch.tensor([9, 9])
    with pytest.raises(
        ValueError, match=r"2 of 2 rows whose exclude looks like a 0/1 matrix \(pass exclude.bool\(\)\)"
    ):
        trm.get_topk_ranks(scores, target, 3, exclude=matrix)
    for exclude, padding_idx in ((history, None), (matrix, 0), (matrix, 1)):
        ranks = trm.get_topk_ranks(scores, target, 3, exclude=exclude, padding_idx=padding_idx)
        assert ranks.tolist() == [[1], [1]]
