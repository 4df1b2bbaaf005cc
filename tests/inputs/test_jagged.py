"""Jagged rows (values and offsets) against the same rows padded, and the input that is refused."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import padded, rank_lists, rank_scores
from sizes import examples
from torch.utils._python_dispatch import TorchDispatchMode

import torchrecmetrics as trm
from torchrecmetrics.core.checks import VIOLATIONS
from torchrecmetrics.inputs import exclusion as exclude_module
from torchrecmetrics.inputs import jagged

ITEMS = 9


def flat(rows, dtype=torch.int64):
    """Return the rows as values and offsets."""
    values = torch.tensor([entry for row in rows for entry in row], dtype=dtype)
    return values, torch.tensor([0, *map(len, rows)]).cumsum(0)


FORMS = {
    "pair": lambda values, offsets: (values, offsets),
    "int32": lambda values, offsets: (values, offsets.int()),
    "Jagged": lambda values, offsets: trm.Jagged(values, offsets),
    "max_length": lambda values, offsets: trm.Jagged(values, offsets, ITEMS + 1),
    "nested": lambda values, offsets: torch.nested.nested_tensor_from_jagged(values, offsets),
}


@st.composite
def ragged(draw):
    """Draw targets with gains, histories and lists of any length."""
    rows = draw(st.integers(0, 5))
    distinct = st.lists(st.integers(0, ITEMS - 1), max_size=ITEMS, unique=True)
    distinct_rows = st.lists(distinct, min_size=rows, max_size=rows)
    targets, lists = draw(distinct_rows), draw(distinct_rows)
    gains = [draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0, 3.0]), min_size=len(t), max_size=len(t))) for t in targets]
    history = draw(st.lists(st.lists(st.integers(-1, ITEMS - 1), max_size=7), min_size=rows, max_size=rows))
    return targets, gains, history, lists


def same(ranking, expected):
    """Assert that two rankings are equal, apart from columns of padding."""
    for name in ("num_relevant", "tied", "unreachable", "num_ranked", "num_recommended"):
        found, wanted = getattr(ranking, name), getattr(expected, name)
        assert (found is None and wanted is None) or found.equal(wanted), name
    width = max(ranking.ranks.shape[1], expected.ranks.shape[1])
    wide = [
        torch.nn.functional.pad(ranks, (0, width - ranks.shape[1]), value=torch.inf)
        for ranks in (ranking.ranks, expected.ranks)
    ]
    assert wide[0].equal(wide[1])
    ndcg = [trm.functional.ndcg(rows, 3).nan_to_num(7) for rows in (ranking, expected)]
    assert ndcg[0].equal(ndcg[1])


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(batch=ragged(), padding_idx=st.sampled_from([None, 0]))
def test_as_padded(form, batch, padding_idx):
    """Every jagged argument of scores, lists and `get_topk_ranks` gives the ranking of the padded rows.

    (test_exclude.py excludes jagged items of all inputs, also a few rows at a time.)
    """
    targets, gains, history, lists = batch
    columns = {
        "target": (targets, -1, torch.int64),
        "gains": (gains, 0.0, torch.float64),
        "exclude": (history, -1, torch.int64),
        "item_ids": (lists, -1, torch.int64),
    }
    as_jagged = {name: FORMS[form](*flat(rows, dtype)) for name, (rows, _, dtype) in columns.items()}
    as_padded = {name: padded(*column) for name, column in columns.items()}
    scores = torch.arange(len(targets) * ITEMS).reshape(-1, ITEMS).mul(7).remainder(5).double()
    options = {"overlap": "miss", "padding_idx": padding_idx}
    for names in (["target"], ["target", "gains"], ["target", "gains", "exclude"]):
        given, expected = ({name: rows[name] for name in names} | options for rows in (as_jagged, as_padded))
        same(rank_scores(scores, **given), rank_scores(scores, **expected))
        lists, padded_lists = as_jagged["item_ids"], as_padded["item_ids"]
        same(rank_lists(lists, complete=True, **given), rank_lists(padded_lists, complete=True, **expected))
    del given["gains"], expected["gains"]
    ranks, expected_ranks = (trm.get_topk_ranks(scores, k=4, **arguments) for arguments in (given, expected))
    width = min(ranks.shape[1], expected_ranks.shape[1])
    assert ranks[:, :width].equal(expected_ranks[:, :width])
    assert not ranks[:, width:].any()
    assert not expected_ranks[:, width:].any()


INF = float("inf")
SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.2]])
TARGETS = [[2, 0], [], [3]]


def test_max_relevant_is_the_width():
    """`max_relevant` is the width of the ranks; a row with more relevant items raises, as with dense targets."""
    target = trm.Jagged(*flat(TARGETS))
    assert trm.Scores(SCORES, target).ranking(max_relevant=5).ranks.shape == (3, 5)
    with pytest.raises(ValueError, match="1 of 3 rows with more relevant items than max_relevant: row 0 has 2 > 1"):
        trm.Scores(SCORES, target).ranking(max_relevant=1)
    deferred = trm.Scores(SCORES, target).ranking(max_relevant=1, validate_args="deferred")
    assert deferred.rows.valid.tolist() == [False, True, True]
    assert deferred.num_relevant[1:].tolist() == [0, 1]
    assert trm.HR(2, max_relevant=5)(SCORES, target) == 0.5


IDS = torch.tensor([1, 0, 2])


@pytest.mark.parametrize(
    ("exclude", "num_ranked"),
    [
        ((IDS, torch.tensor([0, 1, 3])), [2, 2, 2]),
        ((IDS, torch.tensor([0, 1, 3, 3])), [3, 2, 4]),  # rows [1], [0, 2] and []
        (((IDS, torch.tensor([0, 1, 3])), torch.tensor([0, 1, 3])), [2, 2, 2]),
        ((IDS, torch.tensor([True, False, False, False])), [2, 3, 2]),  # a mask of the four items
    ],
)
def test_two_columns_of_ids_stay_two_columns(exclude, num_ranked):
    """Two tensors [B] are two ids per row; offsets have B + 1 entries, so that no pair can be read as both."""
    ranking = trm.Scores(SCORES, torch.tensor([[3], [3], [1]]), exclude=exclude).ranking()
    assert ranking.num_ranked.tolist() == num_ranked


VALUES, OFFSETS = flat(TARGETS)
BAD_OFFSETS = [
    ([1, 2, 2, 3], None, "row 0 is 1 to 2 of 3 values"),
    ([0, 3, 2, 3], None, "row 1 is 3 to 2 of 3 values"),
    ([0, -1, 2, 3], None, "row 0 is 0 to -1 of 3 values"),
    ([0, 2, 2, 2], None, "row 2 is 2 to 2 of 3 values"),
    ([0, 2, 2, 9], None, "row 2 is 2 to 9 of 3 values"),
    ([0, 2, 2, 3], 1, "row 0 is 0 to 2 of 3 values, max_length=1"),
]


def functions(form):
    """Return the functions that take jagged rows, each with the name of its argument."""
    target = torch.tensor([2, 1, 3])
    return [
        ("target", lambda **o: rank_scores(SCORES, form, **o)),
        ("target", lambda **o: rank_lists(SCORES.argsort(1), form, **o)),
        ("exclude", lambda **o: rank_scores(SCORES, target, exclude=form, overlap="miss", **o)),
        ("item_ids", lambda **o: rank_lists(form, target, complete=True, **o)),
    ]


@pytest.mark.parametrize(("offsets", "max_length", "detail"), BAD_OFFSETS)
def test_bad_offsets(offsets, max_length, detail):
    """Invalid offsets raise on the CPU and are counted with deferred checks; without checks indexing is still safe."""
    bad = trm.Jagged(VALUES, torch.tensor(offsets), max_length)
    for name, function in functions(bad):
        with pytest.raises(
            ValueError, match=rf"rows? with invalid offsets \(they must start at 0.*\): {name}'s {detail}"
        ):
            function()
        counted = function(validate_args="deferred")
        violations = dict(zip(VIOLATIONS, counted.rows.violations.tolist(), strict=True))
        assert violations == {**dict.fromkeys(violations, 0), "offsets": sum((~counted.rows.valid).tolist())}
        assert len(function(validate_args=False)) == 3
    with pytest.raises(ValueError, match=f"matrix's {detail}"):
        trm.Interactions.from_jagged(bad, num_items=4)
    with pytest.raises(ValueError, match=f"history's {detail}"):
        trm.prefix_history(bad)
    metric = trm.HR(2, validate_args="deferred")
    metric.update(SCORES, bad)
    with pytest.raises(ValueError, match=r"bad input since the last reset: \d rows? with invalid offsets"):
        metric.compute()


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        ((VALUES, OFFSETS.float()), TypeError, r"offsets of a jagged NAME must be int64 or int32, got a torch.float32"),
        (trm.Jagged(VALUES, OFFSETS[:, None]), ValueError, r"a jagged NAME must be \[rows \+ 1\], got \[4, 1\]"),
        (trm.Jagged(VALUES, OFFSETS[:1]), ValueError, "a jagged NAME hold no row, but its values hold 3 entries"),
        (trm.Jagged(VALUES[:, None], OFFSETS), ValueError, r"values of a jagged NAME must be \[E\].*, got \[3, 1\]"),
        (trm.Jagged(VALUES.tolist(), OFFSETS), TypeError, "values of a jagged NAME must be a tensor, got list"),
        (trm.Jagged(VALUES, OFFSETS.to("meta")), ValueError, "offsets of a jagged NAME are on meta, its values on cpu"),
        ((VALUES.double(), OFFSETS), TypeError, "NAME must hold int64, int32 or int16, got a torch.float64"),
    ],
)
def test_what_is_no_jagged_tensor(form, error, message):
    for name, function in functions(form):
        with pytest.raises(error, match=message.replace("NAME", name)):
            function()


def test_pairs_are_rows(device):
    """Pairs in any order, as in RecBole's `positive_u` and `positive_i` or in an edge_index, give the rows' values."""
    rows, items = torch.tensor([2, 0, 2, 0, 3], device=device), torch.tensor([7, 3, 5, 1, 0], device=device)
    target = trm.Jagged.from_pairs(rows.int(), items, num_rows=5)
    assert (target.values.tolist(), target.offsets.tolist()) == ([3, 1, 7, 5, 0], [0, 2, 2, 4, 5, 5])
    gains = trm.Jagged.from_pairs(rows, items + 1.0, num_rows=5)
    scores = torch.arange(8.0, device=device).expand(5, -1)
    ranking = trm.Scores(scores, target, gains).ranking()
    assert ranking.ranks.tolist() == [[5, 7], [INF, INF], [1, 3], [8, INF], [INF, INF]]
    assert ranking.gains.tolist() == [[4, 2], [0, 0], [8, 6], [1, 0], [0, 0]]
    assert trm.Jagged.from_pairs(rows[:0], items[:0], 2).offsets.tolist() == [0, 0, 0]
    meta = trm.Jagged.from_pairs(rows.to("meta"), items.to("meta"), 5)
    assert (meta.values.shape, meta.offsets.shape) == ((5,), (6,))


@pytest.mark.parametrize(
    ("rows", "values", "error", "message"),
    [
        ([0, 3], [1, 2], ValueError, r"rows hold 0\.\.3, expected 0\.\.2"),
        ([-1, 0], [1, 2], ValueError, r"rows hold -1\.\.0, expected 0\.\.2"),
        ([0, 1], [1], ValueError, r"rows and values must both be \[E\], got \[2\] and \[1\]"),
        ([[0, 1]], [[1, 2]], ValueError, r"rows and values must both be \[E\], got \[1, 2\]"),
        ([0.0], [1], TypeError, "rows must hold int64, int32 or int16, got a torch.float32"),
    ],
)
def test_bad_pairs(rows, values, error, message):
    with pytest.raises(error, match=message):
        trm.Jagged.from_pairs(torch.tensor(rows), torch.tensor(values), num_rows=3)


def test_pairs_of_no_row_are_counted_elsewhere(monkeypatch):
    """Where rows are not read at once, their batch is rejected as offsets are."""
    monkeypatch.setattr(jagged, "can_sync", lambda values: False)
    for row in (-1, 3):
        target = trm.Jagged.from_pairs(torch.tensor([0, row]), torch.tensor([1, 2]), num_rows=3)
        metric = trm.HR(2, validate_args="deferred")
        metric.update(SCORES, target)
        with pytest.raises(ValueError, match="1 row with invalid offsets"):
            metric.compute()


def test_a_row_counts_once():
    """A bad row is counted once, even if several arguments are wrong in it."""
    bad = (VALUES, torch.tensor([1, 2, 2, 3]))
    for target, wrong in ((bad, [True, False, False]), ((VALUES, torch.tensor([0, 2, 2, 2])), [True, False, True])):
        counted = trm.Scores(SCORES, target, exclude=bad).ranking(overlap="miss", validate_args="deferred")
        assert (counted.rows.violations.sum().item(), (~counted.rows.valid).tolist()) == (sum(wrong), wrong)


def test_sequences_that_nobody_could_look_at():
    """Errors that `prefix_history` finds without waiting for the device are counted by the update that uses it."""
    past = trm.prefix_history(VALUES, OFFSETS)
    past.broken[1] = True
    counted = trm.Scores(SCORES, VALUES, exclude=past).ranking(overlap="miss", validate_args="deferred")
    assert (~counted.rows.valid).tolist() == [False, True, False]


def test_another_number_of_rows_or_device():
    two, away = trm.Jagged(VALUES, torch.tensor([0, 2, 3])), trm.Jagged(VALUES.to("meta"), OFFSETS.to("meta"), 2)
    for form, message in (
        (two, r"NAME has 2 rows \(offsets \[3\]\), the scores \(or lists\) have 3"),
        (away, r"NAME is on meta, but the scores \(or lists\) are on cpu"),
    ):
        for name, function in functions(form)[:3]:
            with pytest.raises(ValueError, match=message.replace("NAME", name)):
                function()
    past = trm.prefix_history(VALUES, OFFSETS)
    with pytest.raises(ValueError, match=r"exclude has 2 rows, the scores \(or lists\) have 3"):
        trm.HR(1).update(SCORES, torch.tensor([1, 2, 3]), exclude=past[:2])
    with pytest.raises(ValueError, match=r"exclude ids must be \[3\].*; offsets of a jagged exclude are \[4\]"):
        trm.HR(1).update(SCORES, torch.tensor([1, 2, 3]), exclude=(IDS, torch.tensor([0, 3])))


PAIR = VALUES, OFFSETS


@pytest.mark.parametrize(
    ("target", "gains", "message"),
    [
        (PAIR, torch.ones(3), r"gains of a jagged target must be jagged, such as \(gains, offsets\), got a torch"),
        (PAIR, (torch.ones(2), torch.tensor([0, 1, 1, 2])), "must have the target's rows, 3 of 3 entries, got 3 of 2"),
        (PAIR, (torch.ones(3), torch.tensor([0, 3])), "must have the target's rows, 3 of 3 entries, got 1 of 3"),
        (PAIR, (torch.ones(3), torch.tensor([0, 2, 3, 3])), "offsets of row 1 differ between gains and target"),
        (PAIR, (torch.ones(3, dtype=torch.bool), OFFSETS), "gains must be numbers in the shape of target"),
        (torch.tensor([1, 2, 3]), (torch.ones(3), torch.arange(4)), "gains are jagged, but target is not: pass both"),
    ],
)
def test_gains_that_do_not_fit(target, gains, message):
    with pytest.raises(ValueError, match=message):
        trm.Scores(SCORES, target, gains=gains).ranking()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_of_other_kinds():
    """Nested tensors that have gaps or more dimensions raise an error that names the fix."""
    table = torch.arange(9).remainder(4).reshape(3, 3)
    gaps = torch.nested.narrow(table, 1, torch.zeros(3).long(), torch.tensor([2, 1, 3]), layout=torch.jagged)
    deep = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    for name, function in functions(gaps):
        with pytest.raises(ValueError, match=rf"{name} is a nested tensor with gaps .*: pass {name}.contiguous\(\)"):
            function()
    for name, function in functions(deep):
        with pytest.raises(ValueError, match=rf"values of a jagged {name} must be \[E\]"):
            function()
    assert len(trm.Scores(SCORES, gaps.contiguous()).ranking()) == 3


def pasts(sequences):
    """Return the items before each position, in plain Python."""
    return [row[:place] for row in sequences for place in range(len(row))]


@settings(max_examples=examples(40), deadline=None)
@given(sequences=st.lists(st.lists(st.integers(-1, ITEMS - 1), max_size=8), max_size=5))
def test_prefix_history_is_a_loop(sequences):
    """Each position has the items before it; test_exclude.py ranks without them, a few rows at a time, too."""
    past, rows = trm.prefix_history(*flat(sequences)), pasts(sequences)
    assert len(past) == len(rows)
    for position, row in enumerate(rows):
        assert past.values[past.start[position] : past.stop[position]].tolist() == row


def test_prefix_history_of_selected_rows(device):
    """Rows of a history are selected by slice, number or mask, also if it is made from a nested tensor."""
    sequences = [[3, 1, 3, 2], [], [0, 1]]
    values, offsets = (column.to(device) for column in flat(sequences))
    past = trm.prefix_history(values, offsets)
    nested = trm.prefix_history(torch.nested.nested_tensor_from_jagged(values, offsets), max_length=4)
    assert str(past) == f"Spans(6 rows of up to 3 of 6 values, {values.device})"
    rows = pasts(sequences)
    numbers_of_rows, mask = torch.tensor([5, 0, 2], device=device), torch.arange(6, device=device) % 2 == 1
    for index, expected in ((slice(1, 4), rows[1:4]), (numbers_of_rows, [rows[5], [], rows[2]]), (mask, rows[1::2])):
        for selected in (past[index], nested[index]):
            found = [[item for item in row if item >= 0] for row in selected.padded(-1).tolist()]
            assert found == expected


def test_history_that_is_not_in_the_catalogue(monkeypatch):
    """Ids beyond the last item raise with their row, and ids below 0 are padding; also a few rows at a time."""
    past = trm.prefix_history(*flat([[-5, 9, 1], [2]]))
    batch = trm.Scores(torch.rand(4, 5), torch.tensor([0, 1, 2, 3]), exclude=past)
    for at_once in (1, 2**18):
        monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", at_once)
        with pytest.raises(ValueError, match=r"1 of 4 rows with an excluded id beyond .*: row 2 excludes 9 of"):
            batch.ranking()
        assert batch.ranking(validate_args="deferred").rows.valid.tolist() == [True, True, False, True]
        assert batch.ranking(validate_args=False).num_ranked.tolist() == [5, 5, 5, 5]


class Largest(TorchDispatchMode):
    """A mode that records the number of entries of the largest tensor made inside it."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = made if isinstance(made, (tuple, list)) else [made]
        self.entries = max([self.entries, *(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))])
        return made


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_pasts_never_stand_side_by_side(monkeypatch, padding_idx):
    """No tensor is as large as all pasts, padded: of 400 positions only a few rows are padded at a time."""
    items, scores = torch.arange(400) % 30, torch.rand(400, 30)
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", 4000)
    collection = trm.RecMetricCollection(["HR", "NDCG", "Recall"], k=3, overlap="keep", padding_idx=padding_idx)
    with Largest() as made:
        collection.update(scores, items, exclude=trm.prefix_history(items, torch.tensor([0, 400])))
        trm.Scores(scores, items, exclude=trm.prefix_history(items, torch.tensor([0, 400]))).ranking(overlap="miss")
    assert made.entries <= scores.numel() < 400 * 400 / 10


@pytest.mark.parametrize("form", ["pair", "Jagged", "nested"])
def test_interactions(form, device):
    """`from_jagged` equals `from_edge_index` of the same edges, with gains as values."""
    gains = torch.tensor([5.0, 1.0, 2.0, 3.0, 4.0])
    values, offsets = flat([[4, 1], [], [2, 4, 0]])
    expected = trm.Interactions.from_edge_index(torch.tensor([[0, 0, 2, 2, 2], values.tolist()]), 3, 5, gains)
    made = FORMS[form](values.to(device), offsets.to(device))
    arguments = made if form == "pair" else (made,)
    built = trm.Interactions.from_jagged(*arguments, num_items=5, gains=gains.to(device))
    assert (built.num_users, built.num_items, built.device.type) == (3, 5, device.type)
    for name in ("offsets", "items", "values"):
        assert getattr(built, name).cpu().equal(getattr(expected, name))


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (trm.Interactions.from_jagged, (VALUES,), TypeError, r"must be \[E\] with offsets, .* got a torch.int64"),
        (trm.Interactions.from_jagged, (VALUES.tolist(), OFFSETS, 4), TypeError, r"values must be \[E\] .*got list"),
        (trm.Interactions.from_jagged, PAIR, TypeError, "num_items must be a whole number >= 0, an int, got NoneType"),
        (trm.Interactions.from_jagged, (*PAIR, 3), ValueError, r"hold ids 0..3, expected 0..2"),
        (trm.prefix_history, (VALUES,), TypeError, r"must be ids \[E\] with offsets, .*got a torch.int64 tensor"),
        (trm.prefix_history, (VALUES.double(), OFFSETS), TypeError, "history must hold int64, int32 or int16"),
    ],
)
def test_bad_arguments(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(*arguments)


def test_no_sequences():
    assert len(trm.prefix_history(VALUES[:0], OFFSETS[:1])) == 0
    assert jagged.side_by_side(VALUES[:0], OFFSETS[:0], OFFSETS[:0], 0, -1).shape == (0, 1)
