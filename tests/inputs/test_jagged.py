"""Jagged rows (values and offsets) against the same rows padded, and the input that is refused."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import padded, rank_lists, rank_scores
from sizes import examples
from torch import tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchrecmetrics as trm
from torchrecmetrics.inputs import exclusion as exclude_module
from torchrecmetrics.inputs import jagged

INF = float("inf")
ITEMS = 9


def flat(rows, dtype=torch.int64):
    """Return the rows as values and offsets."""
    values = tensor([entry for row in rows for entry in row], dtype=dtype)
    return values, tensor([0, *map(len, rows)]).cumsum(0)


FORMS = {
    "pair": lambda values, offsets: (values, offsets),
    "int32": lambda values, offsets: (values, offsets.int()),
    "Jagged": lambda values, offsets: trm.Jagged(values, offsets),
    "max_length": lambda values, offsets: trm.Jagged(values, offsets, ITEMS + 1),
    "nested": lambda values, offsets: torch.nested.nested_tensor_from_jagged(values, offsets),
}


@st.composite
def ragged(draw):
    """Draw columns of rows of any length, with their padding and dtype, as arguments of `Lists`."""
    rows = draw(st.integers(0, 5))
    distinct = st.lists(st.integers(0, ITEMS - 1), max_size=ITEMS, unique=True)
    targets, lists = (draw(st.lists(distinct, min_size=rows, max_size=rows)) for _ in range(2))
    gain = st.sampled_from([-1.0, 0.0, 1.0, 3.0])
    history = st.lists(st.integers(-1, ITEMS - 1), max_size=7)
    return {
        "target": (targets, -1, torch.int64),
        "gains": ([draw(st.lists(gain, min_size=len(t), max_size=len(t))) for t in targets], 0.0, torch.float64),
        "exclude": (draw(st.lists(history, min_size=rows, max_size=rows)), -1, torch.int64),
        "item_ids": (lists, -1, torch.int64),
    }


def facts(ranking):
    """Return the data of a ranking, without columns of padding."""
    fields = {name: getattr(ranking, name) for name in ("num_relevant", "tied", "num_ranked", "num_recommended")}
    return {name: field if field is None else field.tolist() for name, field in fields.items()} | {
        "ranks": [[rank for rank in row if rank < INF] for row in ranking.ranks.tolist()],
        "NDCG": trm.functional.ndcg(ranking, 3).nan_to_num(7).tolist(),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [["target"], ["target", "gains"], ["target", "gains", "exclude"]])
@settings(max_examples=examples(20), deadline=None)
@given(batch=ragged(), padding_idx=st.sampled_from([None, 0]))
def test_random_jagged_rows_rank_as_the_same_rows_padded(form, names, batch, padding_idx):
    """(test_exclusion.py excludes jagged items of all inputs, also a few rows at a time.)"""
    as_jagged = {name: FORMS[form](*flat(rows, dtype)) for name, (rows, _, dtype) in batch.items()}
    as_padded = {name: padded(*column) for name, column in batch.items()}
    scores = torch.arange(len(batch["target"][0]) * ITEMS).reshape(-1, ITEMS).mul(7).remainder(5).double()
    options = {"overlap": "miss", "padding_idx": padding_idx}
    jagged_rows, padded_rows = ({name: rows[name] for name in names} | options for rows in (as_jagged, as_padded))
    lists, padded_lists = as_jagged["item_ids"], as_padded["item_ids"]

    assert facts(rank_scores(scores, **jagged_rows)) == facts(rank_scores(scores, **padded_rows))
    assert facts(rank_lists(lists, complete=True, **jagged_rows)) == facts(
        rank_lists(padded_lists, complete=True, **padded_rows)
    )


SCORES = tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.2]])
TARGETS = [[2, 0], [], [3]]  # ranks 2 and 4, and 3
VALUES, OFFSETS = PAIR = flat(TARGETS)


@pytest.mark.parametrize("form", FORMS)
def test_topk_ranks_of_jagged_targets_are_padded_with_0(form):
    assert trm.get_topk_ranks(SCORES, FORMS[form](*PAIR), 4)[:, :2].tolist() == [[2, 4], [0, 0], [3, 0]]


def test_a_row_wider_than_max_relevant_is_refused():
    batch = trm.Scores(SCORES, PAIR)

    with pytest.raises(ValueError, match="1 of 3 rows with more relevant items than max_relevant: row 0 has 2 > 1"):
        batch.ranking(max_relevant=1)
    assert batch.ranking(max_relevant=1, validate_args="deferred").rows.valid.tolist() == [False, True, True]


IDS = tensor([1, 0, 2])


@pytest.mark.parametrize(
    ("exclude", "num_ranked"),
    [
        ((IDS, tensor([0, 1, 3])), [2, 2, 2]),
        ((IDS, tensor([0, 1, 3, 3])), [3, 2, 4]),  # rows [1], [0, 2] and []
        (((IDS, tensor([0, 1, 3])), tensor([0, 1, 3])), [2, 2, 2]),
        ((IDS, tensor([True, False, False, False])), [2, 3, 2]),  # a mask of the four items
    ],
)
def test_two_columns_of_ids_stay_two_columns(exclude, num_ranked):
    """Two tensors [B] are two ids per row; offsets have B + 1 entries, so that no pair can be read as both."""
    ranking = trm.Scores(SCORES, tensor([[3], [3], [1]]), exclude=exclude).ranking()

    assert ranking.num_ranked.tolist() == num_ranked


CALLS = {
    "target of Scores": lambda rows, **options: rank_scores(SCORES, rows, **options),
    "target of Lists": lambda rows, **options: rank_lists(SCORES.argsort(1), rows, **options),
    "exclude of Scores": lambda rows, **options: rank_scores(SCORES, IDS, exclude=rows, overlap="miss", **options),
    "item_ids of Lists": lambda rows, **options: rank_lists(rows, IDS, complete=True, **options),
}
BAD_OFFSETS = [  # with the words of the message, and the bad rows
    (trm.Jagged(VALUES, tensor([1, 2, 2, 3])), "row 0 is 1 to 2 of 3 values", [0]),
    (trm.Jagged(VALUES, tensor([0, 3, 2, 3])), "row 1 is 3 to 2 of 3 values", [1]),
    (trm.Jagged(VALUES, tensor([0, -1, 2, 3])), "row 0 is 0 to -1 of 3 values", [0, 1]),
    (trm.Jagged(VALUES, tensor([0, 2, 2, 2])), "row 2 is 2 to 2 of 3 values", [2]),
    (trm.Jagged(VALUES, tensor([0, 2, 2, 9])), "row 2 is 2 to 9 of 3 values", [2]),
    (trm.Jagged(VALUES, OFFSETS, 1), "row 0 is 0 to 2 of 3 values, max_length=1", [0]),
]
of_calls = pytest.mark.parametrize("argument", CALLS)


@of_calls
@pytest.mark.parametrize(("rows", "detail"), [case[:2] for case in BAD_OFFSETS])
def test_invalid_offsets_are_refused(rows, detail, argument):
    message = rf"rows? with invalid offsets \(they must start at 0.*\): {argument.split()[0]}'s {detail}"

    with pytest.raises(ValueError, match=message):
        CALLS[argument](rows)


@of_calls
@pytest.mark.parametrize(("rows", "bad_rows"), [(rows, bad_rows) for rows, _, bad_rows in BAD_OFFSETS])
def test_invalid_offsets_are_counted_once_a_row_where_they_cannot_raise(rows, bad_rows, argument):
    ranking = CALLS[argument](rows, validate_args="deferred")

    assert (~ranking.rows.valid).nonzero()[:, 0].tolist() == bad_rows
    assert ranking.rows.violations.sum() == len(bad_rows)


@of_calls
@pytest.mark.parametrize("rows", [rows for rows, *_ in BAD_OFFSETS])
def test_unchecked_invalid_offsets_index_nothing_outside(rows, argument):
    assert len(CALLS[argument](rows, validate_args=False)) == 3


@pytest.mark.parametrize(("rows", "detail"), [case[:2] for case in BAD_OFFSETS])
def test_interactions_and_histories_refuse_invalid_offsets(rows, detail):
    with pytest.raises(ValueError, match=f"matrix's {detail}"):
        trm.Interactions.from_jagged(rows, num_items=4)
    with pytest.raises(ValueError, match=f"history's {detail}"):
        trm.prefix_history(rows)


@of_calls
@pytest.mark.parametrize(
    ("rows", "error", "message"),
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
def test_what_is_no_jagged_tensor_is_refused(rows, error, message, argument):
    with pytest.raises(error, match=message.replace("NAME", argument.split()[0])):
        CALLS[argument](rows)


def test_pairs_in_any_order_are_rows(device):
    """As RecBole's `positive_u` and `positive_i`, or an edge_index; values of a row keep their order."""
    rows, items = tensor([2, 0, 2, 0, 3], device=device), tensor([7, 3, 5, 1, 0], device=device)
    target = trm.Jagged.from_pairs(rows.int(), items, num_rows=5)

    assert (target.values.tolist(), target.offsets.tolist()) == ([3, 1, 7, 5, 0], [0, 2, 2, 4, 5, 5])


def test_no_pairs_are_rows_without_an_entry():
    assert trm.Jagged.from_pairs(IDS[:0], IDS[:0], 2).offsets.tolist() == [0, 0, 0]


def test_pairs_on_a_device_are_not_read():
    rows = trm.Jagged.from_pairs(IDS.to("meta"), IDS.to("meta"), 5)

    assert (rows.values.shape, rows.offsets.shape) == ((3,), (6,))


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
def test_bad_pairs_are_refused(rows, values, error, message):
    with pytest.raises(error, match=message):
        trm.Jagged.from_pairs(tensor(rows), tensor(values), num_rows=3)


@pytest.mark.parametrize("row", [-1, 3])
def test_pairs_of_no_row_are_counted_where_rows_are_not_read(row, monkeypatch):
    monkeypatch.setattr(jagged, "can_sync", lambda values: False)
    metric = trm.HR(2, validate_args="deferred")
    metric.update(SCORES, trm.Jagged.from_pairs(tensor([0, row]), tensor([1, 2]), num_rows=3))

    with pytest.raises(ValueError, match="1 row with invalid offsets"):
        metric.compute()


@pytest.mark.parametrize(
    ("offsets", "valid"), [([1, 2, 2, 3], [False, True, True]), ([0, 2, 2, 2], [False, True, False])]
)
def test_a_row_with_two_bad_arguments_counts_once(offsets, valid):
    exclude = VALUES, tensor([1, 2, 2, 3])
    batch = trm.Scores(SCORES, (VALUES, tensor(offsets)), exclude=exclude)
    ranking = batch.ranking(overlap="miss", validate_args="deferred")

    assert (ranking.rows.valid.tolist(), ranking.rows.violations.sum()) == (valid, valid.count(False))


def test_broken_histories_that_could_not_raise_are_counted_by_the_update():
    past = trm.prefix_history(VALUES, OFFSETS)
    past.broken[1] = True  # as `prefix_history` marks it without waiting for the device
    ranking = trm.Scores(SCORES, VALUES, exclude=past).ranking(overlap="miss", validate_args="deferred")

    assert ranking.rows.valid.tolist() == [True, False, True]


@pytest.mark.parametrize("argument", [name for name in CALLS if name != "item_ids of Lists"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (trm.Jagged(VALUES, tensor([0, 2, 3])), r"NAME has 2 rows \(offsets \[3\]\), the scores \(or lists\) have 3"),
        (trm.Jagged(VALUES.to("meta"), OFFSETS.to("meta"), 2), "NAME is on meta, but the scores .* are on cpu"),
    ],
)
def test_another_number_of_rows_or_device_is_refused(rows, message, argument):
    with pytest.raises(ValueError, match=message.replace("NAME", argument.split()[0])):
        CALLS[argument](rows)


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (trm.prefix_history(VALUES, OFFSETS)[:2], r"exclude has 2 rows, the scores \(or lists\) have 3"),
        ((IDS, tensor([0, 3])), r"exclude ids must be \[3\].*; offsets of a jagged exclude are \[4\]"),
    ],
)
def test_a_history_of_another_number_of_rows_is_refused(exclude, message):
    with pytest.raises(ValueError, match=message):
        trm.HR(1).update(SCORES, IDS, exclude=exclude)


@pytest.mark.parametrize(
    ("target", "gains", "message"),
    [
        (PAIR, torch.ones(3), r"gains of a jagged target must be jagged, such as \(gains, offsets\), got a torch"),
        (PAIR, (torch.ones(2), tensor([0, 1, 1, 2])), "must have the target's rows, 3 of 3 entries, got 3 of 2"),
        (PAIR, (torch.ones(3), tensor([0, 3])), "must have the target's rows, 3 of 3 entries, got 1 of 3"),
        (PAIR, (torch.ones(3), tensor([0, 2, 3, 3])), "offsets of row 1 differ between gains and target"),
        (PAIR, (torch.ones(3, dtype=torch.bool), OFFSETS), "gains must be numbers in the shape of target"),
        (tensor([1, 2, 3]), (torch.ones(3), torch.arange(4)), "gains are jagged, but target is not: pass both"),
    ],
)
def test_gains_that_do_not_fit_are_refused(target, gains, message):
    with pytest.raises(ValueError, match=message):
        trm.Scores(SCORES, target, gains=gains).ranking()


def test_rows_whose_gains_begin_or_end_elsewhere_are_counted_where_they_cannot_raise():
    ranking = trm.Scores(SCORES, PAIR, gains=(torch.ones(3), tensor([0, 2, 3, 3]))).ranking(validate_args="deferred")

    assert ranking.rows.valid.tolist() == [True, False, False]


@of_calls
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_with_gaps_are_refused(argument):
    table, lengths = torch.arange(9).remainder(4).reshape(3, 3), tensor([2, 1, 3])
    gaps = torch.nested.narrow(table, 1, torch.zeros(3).long(), lengths, layout=torch.jagged)
    name = argument.split()[0]

    with pytest.raises(ValueError, match=rf"{name} is a nested tensor with gaps .*: pass {name}.contiguous\(\)"):
        CALLS[argument](gaps)
    assert len(CALLS[argument](gaps.contiguous())) == 3


@settings(max_examples=examples(40), deadline=None)
@given(sequences=st.lists(st.lists(st.integers(-1, ITEMS - 1), max_size=8), max_size=5))
def test_each_position_of_a_sequence_has_the_items_before_it(sequences):
    """(test_exclusion.py ranks without them, a few rows at a time, too.)"""
    past = trm.prefix_history(*flat(sequences))
    rows = [past.values[start:stop].tolist() for start, stop in zip(past.start, past.stop, strict=True)]

    assert rows == [row[:place] for row in sequences for place in range(len(row))]


PASTS = [[], [3], [3, 1], [3, 1, 3], [], [0]]
"""Items before each position of the sequences 3 1 3 2, none, and 0 1."""


@pytest.mark.parametrize("form", ["pair", "nested"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(1, 4), PASTS[1:4]),
        (tensor([5, 0, 2]), [PASTS[5], PASTS[0], PASTS[2]]),
        (tensor([False, True] * 3), PASTS[1::2]),
    ],
)
def test_rows_of_a_history_are_selected_by_slice_number_or_mask(form, rows, expected, device):
    values, offsets = (column.to(device) for column in flat([[3, 1, 3, 2], [], [0, 1]]))
    jagged_rows = FORMS[form](values, offsets)
    past = trm.prefix_history(*(jagged_rows if form == "pair" else (jagged_rows,)), max_length=4)
    selected = past[rows if isinstance(rows, slice) else rows.to(device)].padded(-1).tolist()

    assert [[item for item in row if item >= 0] for row in selected] == expected


@pytest.mark.parametrize("at_once", [1, 2**18])
def test_an_id_of_a_history_beyond_the_last_item_is_refused(at_once, monkeypatch):
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", at_once)
    past = trm.prefix_history(tensor([-5, 9, 1, 2]), tensor([0, 3, 4]))
    batch = trm.Scores(torch.rand(4, 5), torch.arange(4), exclude=past)

    with pytest.raises(ValueError, match=r"1 of 4 rows with an excluded id beyond .*: row 2 excludes 9 of"):
        batch.ranking()
    assert batch.ranking(validate_args="deferred").rows.valid.tolist() == [True, True, False, True]


class Largest(TorchDispatchMode):
    """A mode that records the number of entries of the largest tensor made inside it."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = made if isinstance(made, (tuple, list)) else [made]
        self.entries = max([self.entries, *(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))])
        return made


@pytest.mark.parametrize("overlap", ["keep", "miss"])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_no_tensor_is_as_large_as_all_pasts_side_by_side(padding_idx, overlap, monkeypatch):
    """Of 400 positions only a few rows are padded at a time."""
    monkeypatch.setattr(exclude_module, "PADDED_IDS_CPU", 4000)
    items, scores = torch.arange(400) % 30, torch.rand(400, 30)
    metrics = trm.RecMetricCollection(["HR", "NDCG", "Recall"], k=3, overlap=overlap, padding_idx=padding_idx)
    with Largest() as largest:
        metrics.update(scores, items, exclude=trm.prefix_history(items, tensor([0, 400])))

    assert largest.entries <= 400 * 30  # those of scores; the pasts side by side have 400 * 400


@pytest.mark.parametrize("form", ["pair", "Jagged", "nested"])
def test_interactions_of_jagged_rows_are_those_of_their_edges(form, device):
    values, offsets, gains = tensor([4, 1, 2, 4, 0]), tensor([0, 2, 2, 5]), tensor([5.0, 1.0, 2.0, 3.0, 4.0])
    rows = FORMS[form](values.to(device), offsets.to(device))
    made = trm.Interactions.from_jagged(*(rows if form == "pair" else (rows,)), num_items=5, gains=gains.to(device))

    assert (made.num_users, made.num_items, made.device.type) == (3, 5, device.type)
    assert (made.offsets.tolist(), made.items.tolist()) == ([0, 2, 2, 5], [1, 4, 0, 2, 4])  # ascending in a row
    assert made.values.tolist() == [1, 5, 4, 2, 3]


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
def test_bad_arguments_of_interactions_and_histories_are_refused(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(*arguments)


def test_no_sequences_have_no_position():
    assert len(trm.prefix_history(VALUES[:0], OFFSETS[:1])) == 0
